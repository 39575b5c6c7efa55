"""Models of OpenVINO with smaller numbers, made by NNCF in the form that devices compute with.

``fp16`` keeps every weight as a float16, from which the float32 is made again: OpenVINO itself writes it.
``int8`` and ``int4`` are compressed weights of NNCF: integers with scales, which the compiler of a device
finds before a product and unpacks while it multiplies. ``int4`` has groups of 32 inputs; convolutions,
embeddings, the last layer and matrices without whole groups are of 8 bits then, as NNCF advises.
``int8-static`` rounds activations as well, between the bounds that calls had.
https://docs.openvino.ai/2026/openvino-workflow/model-optimization-guide/weight-compression.html
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from ...core.errors import ExportError
from ...core.support.packages import require_packages
from ...trace.graph import Graph
from ..integers.layers import float_weights_of, is_one_of
from ..names import names_of
from ..refused import last_words

__all__ = ["bodies_of", "require_nncf", "with_precision"]

#: how many inputs of an output share a scale in int4
_GROUP = 32
#: what only a model with attention has
_ATTENTION = ("ScaledDotProductAttention", "Softmax")
#: NNCF reports to its makers, unless this variable is set when it is imported
_NO_REPORTS = "NNCF_CI"


def require_nncf() -> None:
    """Passes when NNCF can be imported.

    :raises MissingPackageError: ``missing-package``
    """
    with _variable_set(_NO_REPORTS), _silent():
        require_packages(
            "nncf", purpose="An export to OpenVINO in another precision", extra="precision"
        )


def with_precision(
    model: Any, precision: str, graph: Graph, calls: Sequence[Sequence[Any]] = ()
) -> Any:
    """The model with integers: weights alone, or for ``int8-static`` activations as well, whose bounds
    are measured on the inputs of ``calls``.

    :raises ExportError: ``openvino-not-quantised`` where nothing can become an integer,
        ``openvino-refused`` with the message of NNCF
    """
    before = _integers_in(model)
    try:
        with _silent():
            if precision == "int8-static":
                made = _static(model, graph, calls)
            else:
                made = _compressed(model, precision, float_weights_of(graph).values())
    except Exception as error:
        said = last_words(error)
        raise ExportError(
            f"{graph.name} cannot be made with precision={precision} by NNCF:"
            f" {type(error).__name__}: {said}",
            slug="openvino-refused",
            hint='precision="fp16" takes every model.',
        ) from error
    if _integers_in(made) == before and not float_weights_of(graph):
        raise ExportError(
            f"{graph.name} cannot have weights of {precision}: it has no product by a matrix of"
            " weights.",
            slug="openvino-not-quantised",
        )
    return made


def _compressed(model: Any, precision: str, left: Collection[torch.Tensor]) -> Any:
    import nncf

    names = [node.get_friendly_name() for node in _readers_of(model, left)]
    scope = nncf.IgnoredScope(names=names) if names else None

    if precision == "int8":
        mode = nncf.CompressWeightsMode.INT8_ASYM
        return nncf.compress_weights(model, mode=mode, ignored_scope=scope)
    from nncf import AdvancedCompressionParameters, GroupSizeFallbackMode

    return nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=_GROUP,
        ratio=1.0,
        ignored_scope=scope,
        advanced_parameters=AdvancedCompressionParameters(
            group_size_fallback_mode=GroupSizeFallbackMode.ADJUST
        ),
    )


def _static(model: Any, graph: Graph, calls: Sequence[Sequence[Any]]) -> Any:
    import nncf
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        AdvancedSmoothQuantParameters,
    )
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    names = names_of(graph).inputs
    known = {name for port in model.inputs for name in port.get_names()}
    feeds = []
    for inputs in calls:
        pairs = zip(names, inputs, strict=True)
        feeds.append({n: torch.as_tensor(value).numpy() for n, value in pairs if n in known})
    names_left = _left_in_float(model)
    left = float_weights_of(graph).values()
    names_left += [node.get_friendly_name() for node in _readers_of(model, left)]
    advanced = AdvancedQuantizationParameters(
        # the bounds that calls had: their means would cut off what lies between
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,
        # no numbers move from activations into weights: with few calls they fit these calls alone
        smooth_quant_alphas=AdvancedSmoothQuantParameters(matmul=-1, convolution=-1),
    )
    has_attention = any(node.get_type_name() in _ATTENTION for node in model.get_ops())
    return nncf.quantize(
        model,
        nncf.Dataset(feeds),
        subset_size=len(feeds),
        ignored_scope=nncf.IgnoredScope(names=names_left, validate=False),
        model_type=nncf.ModelType.TRANSFORMER if has_attention else None,
        advanced_parameters=advanced,
    )


#: the operators that read rounded numbers in ``int8-static``, where they have weights. NNCF would round
#: sums, norms and products of activations as well
_ROUNDED = (
    "Convolution",
    "ConvolutionBackpropData",
    "GroupConvolution",
    "GroupConvolutionBackpropData",
    "MatMul",
)


def _left_in_float(model: Any) -> list[str]:
    """The names of all operators but products and convolutions that read weights."""
    return [
        node.get_friendly_name()
        for node in model.get_ops()
        if node.get_type_name() not in _ROUNDED or not any(map(_is_constant, node.input_values()))
    ]


def _readers_of(model: Any, weights: Collection[torch.Tensor]) -> list[Any]:
    """The products and convolutions that read one of some weights."""
    return [
        node
        for node in model.get_ops()
        if weights
        and node.get_type_name() in _ROUNDED
        and any(is_one_of(one, weights) for one in _constants_of(node))
    ]


def _constants_of(node: Any) -> list[Any]:
    """The arrays of the constants that a node reads."""
    sources = [port.get_node() for port in node.input_values()]
    return [source.data for source in sources if source.get_type_name() == "Constant"]


def _is_constant(port: Any) -> bool:
    """True for a constant, and for what is made of one by other operators without an input."""
    node = port.get_node()
    if node.get_type_name() in ("Constant", "Parameter"):
        return bool(node.get_type_name() == "Constant")
    inputs = node.input_values()
    return bool(inputs) and all(map(_is_constant, inputs))


def _integers_in(model: Any) -> int:
    """How many constants of 8 or 4 bits the model has, and how many roundings."""
    count = 0
    for node in model.get_ordered_ops():
        count += sum(_integers_in(body) for body in bodies_of(node))
        is_small = node.get_type_name() == "Constant" and node.get_element_type().bitwidth <= 8
        count += is_small or node.get_type_name() == "FakeQuantize"
    return count


def bodies_of(node: Any) -> list[Any]:
    """The models inside of a branch or a loop."""
    if node.get_type_name() == "If":
        return [node.get_then_body(), node.get_else_body()]
    return [node.get_function()] if hasattr(node, "get_function") else []


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the tables that NNCF logs and the bars that it prints."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _variable_set(name: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before

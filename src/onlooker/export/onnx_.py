"""Converts an exported graph to ONNX, with readable names, and runs it in ONNX Runtime."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.errors import ExportError, MissingPackageError
from ..core.plan import Plan
from ..core.spec import Axis
from ..patches.masked_rows import masked_rows_give_zeros
from .graph import Graph
from .obtained import symbols_of

__all__ = ["to_onnx"]

logger = logging.getLogger(__name__)
_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def to_onnx(graph: Graph) -> Graph:
    """The same regime as an ONNX model, run by ONNX Runtime on the CPU.

    The axes that were obtained are read from the ONNX model itself.

    :raises MissingPackageError: ``missing-package`` without onnx, onnxscript or onnxruntime
    :raises ExportError: ``onnx-refused`` with the message of the converter
    """
    start = time.perf_counter()
    _require()
    logger.info("converting %s to ONNX", graph.name)
    converted = _converted(graph)
    _rename_axes(converted.model, _axis_names(graph))
    obtained = _obtained(converted.model, graph)
    seconds = graph.seconds + time.perf_counter() - start
    run = _runner(converted, graph)
    ranges = {text: graph.ranges[text] for text in graph.ranges}
    return replace(graph, run=run, artifact=converted, target="onnx", obtained=obtained, ranges=ranges, seconds=seconds)


def _require() -> None:
    missing = []
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise MissingPackageError(
            f"An export to ONNX needs {', '.join(missing)}.",
            slug="missing-package",
            hint="Install it with: pip install 'onlooker[onnx]'.",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress lines that the converter prints, and its log lines about absent packages."""
    converter = logging.getLogger("torch.onnx")
    level = converter.level
    converter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        converter.setLevel(level)


def _converted(graph: Graph) -> Any:
    try:
        with _quiet(), torch.no_grad(), masked_rows_give_zeros(graph.artifact):
            return torch.onnx.export(
                graph.artifact,
                dynamo=True,
                input_names=list(graph.labels),
                output_names=list(graph.outputs.names),
                verbose=False,
            )
    except Exception as error:
        raise ExportError(
            f"{graph.name} cannot be converted to ONNX: {type(error).__name__}: {error}",
            slug="onnx-refused",
            hint="The torch program of the same plan may hold: export with to='torch'.",
        ) from error


def _axis_names(graph: Graph) -> dict[str, str]:
    """The names of torch's symbols, and what to call them."""
    return {str(s): text for s, text in symbols_of(graph.artifact, graph.plan, graph.names).items()}


def _rename_axes(model: Any, names: Mapping[str, str]) -> None:
    """Calls every symbolic axis of the model as the plan does: ``s33 + s70`` is ``past_sequence + sequence``."""
    import onnx_ir

    def renamed(text: str) -> str:
        return _SYMBOL.sub(lambda found: names.get(found.group(), found.group()), text)

    values = [*model.graph.inputs, *model.graph.outputs]
    values += [value for node in model.graph for value in node.outputs]
    for value in values:
        for position, size in enumerate(value.shape or ()):
            if isinstance(size, onnx_ir.SymbolicDim) and size.value is not None:
                value.shape[position] = renamed(size.value)


def _obtained(model: Any, graph: Graph) -> dict[str, str]:
    """Per axis what the inputs of the model say."""
    inputs = {value.name: value for value in model.graph.inputs}
    found: dict[str, str] = {}
    for leaf, label in zip(graph.plan.inputs, graph.labels, strict=True):
        value = inputs.get(label)
        if value is None:
            found |= {str(Axis(leaf.path, dim)): "unused" for dim in range(len(leaf.shape))}
            continue
        for dim, size in enumerate(value.shape or ()):
            found[str(Axis(leaf.path, dim))] = str(getattr(size, "value", size))
        if not leaf.is_tensor:
            found[str(Axis(leaf.path, None))] = str(leaf.value)
    return found


def _runner(converted: Any, graph: Graph) -> Any:
    """A function of the inputs, in the order of the plan, that runs the model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    content = converted.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    labels, outputs, plan = graph.labels, list(graph.outputs.names), graph.plan

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        _check_equal_axes(plan, inputs)
        feeds = {n: _to_numpy(x) for n, x in zip(labels, inputs, strict=True) if n in wanted}
        try:
            return [torch.from_numpy(value) for value in session.run(outputs, feeds)]
        except Exception as error:
            raise RuntimeError(str(error)) from error

    return run


def _check_equal_axes(plan: Plan, inputs: Sequence[Any]) -> None:
    """ONNX Runtime knows no guards: axes of one symbol must have one size."""
    sizes: dict[str, tuple[int, str]] = {}
    for leaf, value in zip(plan.inputs, inputs, strict=True):
        for dim, expression in enumerate(leaf.shape):
            if expression.is_symbol:
                size = int(value.shape[dim])
                first = sizes.setdefault(str(expression), (size, str(Axis(leaf.path, dim))))
                if first[0] != size:
                    raise RuntimeError(f"{first[1]} is {first[0]} and {leaf.path}.shape[{dim}] is {size}")


def _to_numpy(value: Any) -> Any:
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return tensor.detach().cpu().numpy()

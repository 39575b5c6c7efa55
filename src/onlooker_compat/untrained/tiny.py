"""Shorter ways to the models that are used most."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from onlooker.core.errors import UsageError

from ..shapes.dims import use_dyn_not_str
from ..trees.convert import to_any
from .build import get_untrained_model_with_inputs
from .published import find_configuration, full_name, published_configuration

__all__ = [
    "TinyModelWithInputs",
    "get_cached_configuration",
    "get_phi2",
    "get_tiny_llm",
    "get_tiny_model",
]


@dataclasses.dataclass(frozen=True, slots=True)
class TinyModelWithInputs:
    """A tiny model, the inputs to export it with, and their dynamic shapes in both spellings."""

    model_id: str
    model: torch.nn.Module
    export_inputs: dict[str, Any]
    dynamic_shapes: dict[str, Any]

    @property
    def dynamic_shapes_for_torch_export_export(self) -> Any:
        """The dynamic shapes with ``Dim.DYNAMIC`` where they have names."""
        return use_dyn_not_str(self.dynamic_shapes)


def get_tiny_model(
    model_id: str,
    config_updates: dict[str, Any] | None = None,
    dtype: str | torch.dtype = "float32",
) -> TinyModelWithInputs:
    """A tiny model with random weights and its inputs.

    :param config_updates: attributes of the configuration to set after its reduction
    :param dtype: of the weights and of the inputs that are no integers, such as ``"float16"``
    :raises UsageError: ``unknown-untrained-model``, ``no-such-dtype``
    :raises MissingPackageError: ``missing-package`` when transformers is not installed

    >>> tiny = get_tiny_model("arnir0/Tiny-LLM")
    >>> tiny.dynamic_shapes["attention_mask"]
    {0: Dim('batch', min=1, max=1024), 1: 'cache+seq'}
    >>> tiny.dynamic_shapes_for_torch_export_export["attention_mask"][1]
    DimHint(DYNAMIC)
    """
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(chosen, torch.dtype):
        raise UsageError(
            f"There is no dtype {dtype!r}.", slug="no-such-dtype", hint="Give float32, float16 ..."
        )
    data = get_untrained_model_with_inputs(
        model_id, model_kwargs=config_updates, add_second_input=0
    )
    inputs = data["inputs"]
    if chosen is not torch.float32:
        data["model"].to(chosen)
        inputs = to_any(inputs, chosen)
    return TinyModelWithInputs(model_id, data["model"], inputs, data["dynamic_shapes"])


def get_cached_configuration(name: str, exc: bool = False, **kwargs: Any) -> Any:
    """The configuration that comes with this package, not reduced, with attributes set, or None.

    :param exc: raise instead of returning None
    :raises UsageError: ``unknown-untrained-model`` when asked to
    :raises MissingPackageError: ``missing-package`` when transformers is not installed

    >>> get_cached_configuration("microsoft/phi-2", num_hidden_layers=1).hidden_size
    2560
    """
    if full_name(name) is None and not exc:
        return None
    config = (
        find_configuration(name, only_preinstalled=True) if exc else published_configuration(name)
    )
    for key, value in kwargs.items():
        setattr(config, key, value)
    return config


def get_tiny_llm(
    batch_size: int = 2,
    sequence_length: int = 30,
    sequence_length2: int = 3,
    dynamic_rope: bool = False,
    use_static_cache: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """``arnir0/Tiny-LLM``: see :func:`get_untrained_model_with_inputs`; ``kwargs`` change the
    configuration.
    """
    sizes = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "sequence_length2": sequence_length2,
    }
    return _model("arnir0/Tiny-LLM", sizes, dynamic_rope, use_static_cache, kwargs)


def get_phi2(
    batch_size: int = 2,
    sequence_length: int = 30,
    sequence_length2: int = 3,
    dynamic_rope: bool = False,
    use_static_cache: bool = False,
    **kwargs: Any,
) -> dict[str, Any]:
    """``microsoft/phi-2``: see :func:`get_untrained_model_with_inputs`; ``kwargs`` change the
    configuration.
    """
    sizes = {
        "batch_size": batch_size,
        "sequence_length": sequence_length,
        "sequence_length2": sequence_length2,
    }
    return _model("microsoft/phi-2", sizes, dynamic_rope, use_static_cache, kwargs)


def _model(
    model_id: str, sizes: dict[str, Any], dynamic_rope: bool, static: bool, changes: dict[str, Any]
) -> dict[str, Any]:
    cache = {"cls_cache": "StaticCache"} if static else {}
    return get_untrained_model_with_inputs(
        model_id, inputs_kwargs={**sizes, **cache}, model_kwargs=changes, dynamic_rope=dynamic_rope
    )

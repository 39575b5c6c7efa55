"""The models by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..core.errors import UsageError
from .decoders import gpt2, llama
from .encoders import bert, vit
from .model import TinyModel

__all__ = ["MODELS", "tiny_model"]

#: name -> builder, in the order in which they are shown
MODELS: Mapping[str, Callable[[], TinyModel]] = MappingProxyType(
    {"llama": llama, "gpt2": gpt2, "bert": bert, "vit": vit}
)


def tiny_model(name: str) -> TinyModel:
    """The tiny model of this name, built anew.

    >>> tiny_model("vit").story
    'two calls: 2 images, then 3'

    :raises UsageError: ``unknown-model`` for a name which is not in ``MODELS``
    :raises MissingPackageError: ``missing-package`` when transformers is not installed
    """
    if name not in MODELS:
        raise UsageError(
            f"There is no tiny model named {name!r}.",
            slug="unknown-model",
            hint=f"Choose among: {', '.join(MODELS)}.",
        )
    return MODELS[name]()

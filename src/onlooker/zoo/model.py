"""A model of the zoo with the real use that is watched; and what all of its files need of a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch

from ..core.errors import MissingPackageError

__all__ = ["TinyModel", "load_transformers", "parameters_of"]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A tiny model in eval mode, and a use of it.

    ``story`` says in one line what ``watch`` does. ``watch()`` uses the model as a user would,
    under ``torch.no_grad()``; it is deterministic, returns nothing, and may be called again.
    ``sizes`` are further sizes, each a size per symbol, that an exported program should be tried
    on.
    """

    name: str
    model: torch.nn.Module
    story: str
    watch: Callable[[], None]
    sizes: tuple[dict[str, int], ...] = ()

    def __repr__(self) -> str:
        return f"<TinyModel {self.name}: {self.story}>"


def load_transformers() -> ModuleType:
    """The module ``transformers``.

    :raises MissingPackageError: ``missing-package`` when it is not installed
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            f"The models of the zoo are built by transformers, which cannot be imported ({error}).",
            slug="missing-package",
            hint="Install it with: pip install 'onlooker[transformers]'.",
        ) from error
    module: ModuleType = transformers
    return module


def parameters_of(model: torch.nn.Module) -> dict[str, inspect.Parameter]:
    """The parameters of ``forward``."""
    return dict(inspect.signature(model.forward).parameters)

"""What a program does beside its result: arguments that it changes, and results that are parts
of arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.structure import Tree
from ..lab.runner import ModelRunner
from ..pytrees.agree import leaf_difference
from ..pytrees.numbers import is_same
from ..pytrees.open import map_tensors, open_arguments
from ..pytrees.unread import open_result

__all__ = ["Effects"]


class Effects:
    """Compares what calls leave behind with what the model leaves behind; the model is asked
    only where in doubt.
    """

    def __init__(self, subject: ModelRunner) -> None:
        self._subject = subject
        self._known: set[str] = set()

    def problem(self, given: dict[str, Any], held: Tree[Any], result: Tree[Any]) -> str:
        """What the program did to the arguments that the model does not do, in words; empty for
        nothing.

        ``given`` are the arguments as they were, ``held`` the leaves of the copies that the program
        got, ``result`` what it gave.
        """
        found = set(_found(given, held, result)) - self._known
        if not found:
            return ""
        own = self._of_model(given)
        self._known |= found & own
        return min(found - own, default="")

    def _of_model(self, given: dict[str, Any]) -> set[str]:
        copies = map_tensors(lambda t: t.detach().clone(), given)
        held = open_arguments(copies)
        with self._subject.untouched():
            result = open_result(self._subject(copies))
        return set(_found(given, held, result))


def _found(given: dict[str, Any], held: Tree[Any], result: Tree[Any]) -> Iterator[str]:
    before = open_arguments(given)
    for path, old, now in zip(held.structure.paths(), before.leaves, held.leaves, strict=True):
        if (
            isinstance(now, torch.Tensor)
            and not is_same(old, now)
            and leaf_difference(old, now) > 0
        ):
            yield f"the argument {path.code()} is changed in place"
    memory = _memory(held.leaves)
    for path, leaf in zip(result.structure.paths(), result.leaves, strict=True):
        if _address(leaf) in memory:
            yield f"{_named(path)} is in the memory of an argument"


def _named(path: Path) -> str:
    return path.code() or "the output"


def _memory(leaves: Sequence[Any]) -> set[int]:
    return {address for leaf in leaves if (address := _address(leaf))}


def _address(leaf: Any) -> int | None:
    """Where a tensor keeps its values; None for what has no memory of its own."""
    if not isinstance(leaf, torch.Tensor) or leaf.numel() == 0 or leaf.layout != torch.strided:
        return None
    return leaf.untyped_storage().data_ptr() or None

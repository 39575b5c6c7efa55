"""What calls do beside their result: arguments that they change, and results that are parts of
arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch

from ..core.path import Path
from ..core.structure import Tree
from ..lab.runner import ModelRunner
from ..pytrees.agree import leaf_difference
from ..pytrees.numbers import is_same
from ..pytrees.open import copy_tensors, open_arguments
from ..pytrees.unread import open_result

__all__ = ["Effects"]

#: tensors by their ``id``, which holding them keeps taken, each with how often it was written to
_Versions: TypeAlias = dict[int, tuple[torch.Tensor, int]]


class Effects:
    """Compares what calls of a program leave behind with what those of the model leave behind."""

    def __init__(self, subject: ModelRunner, atol: float) -> None:
        self._subject, self._atol = subject, atol
        self._known: set[str] = set()
        #: the arguments of the last run of the model, and the tensors that it changed in them and did
        #: not return
        self._run: tuple[dict[str, Any], dict[Path, torch.Tensor]] | None = None

    def result_of_model(self, given: dict[str, Any]) -> Tree[Any]:
        """Runs the model on copies; what it changes in them is kept for the next :meth:`problem`."""
        with torch.inference_mode(False):  # tensors made in it cannot be recorded, nor count writes
            copies = copy_tensors(given)
        before = {id(tensor): (tensor, tensor._version) for tensor in _tensors(copies).values()}
        result = self._subject.try_out(given, copies)
        returned = {id(leaf) for leaf in result.leaves}
        changed = {
            path: tensor
            for path, tensor in _tensors(copies).items()
            if id(tensor) not in returned and not _is_as_before(tensor, before)
        }
        self._run = given, changed
        return result

    def problem(
        self, given: dict[str, Any], after: dict[str, Any], held: Tree[Any], result: Tree[Any]
    ) -> str:
        """What the program did to the arguments that the model does not do, or did not do that the
        model does, in words; empty for nothing.

        ``given`` are the arguments as they were, ``after`` the copies that the program got, ``held``
        their leaves before the call, ``result`` what it gave.
        """
        run, self._run = self._run, None
        changed = run[1] if run is not None and run[0] is given else {}
        there = _tensors(after) if changed else {}
        for path, tensor in changed.items():
            if path not in there or leaf_difference(tensor, there[path]) > self._atol:
                return f"the model changes the argument {path.code()}, and the program does not"
        found = set(_found(given, held, result)) - self._known
        if not found:
            return ""
        own = self._of_model(given)
        self._known |= found & own
        return min(found - own, default="")

    def _of_model(self, given: dict[str, Any]) -> set[str]:
        copies = copy_tensors(given)
        held = open_arguments(copies)
        with self._subject.untouched():
            result = open_result(self._subject(copies))
        return set(_found(given, held, result))


def _tensors(arguments: dict[str, Any]) -> dict[Path, torch.Tensor]:
    leaves = open_arguments(arguments).items()
    return {path: leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}


def _is_as_before(tensor: torch.Tensor, before: _Versions) -> bool:
    known = before.get(id(tensor))
    return known is not None and known[1] == tensor._version


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

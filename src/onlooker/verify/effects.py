"""Effects of calls beside their result: arguments that they change, and results that are parts of
arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..core.call import Arguments
from ..core.path import Path
from ..core.structure import Result, Tree
from ..lab.runner import ModelRunner, opened
from ..observing.effects import HeldTree
from ..pytrees.comparisons.agree import agreement_of_trees, leaf_difference
from ..pytrees.numbers import is_same
from ..pytrees.open import copy_tensors, open_arguments
from ..pytrees.unread import open_result
from ..torch_internals.tensor_marks import address_of

__all__ = ["Effects"]


class Effects:
    """Compares what calls of a program leave behind with what those of the model leave behind."""

    def __init__(self, subject: ModelRunner, atol: float) -> None:
        self.subject, self._atol = subject, atol
        self._known: set[str] = set()
        #: the arguments of the last run of the model, and the tensors in them to which it wrote, or that it put there
        #: and did not return
        self._run: tuple[Arguments, dict[Path, torch.Tensor]] | None = None

    def result_of_model(self, given: Arguments) -> Result:
        """Runs the model on copies; what it changes in them is kept for the next :meth:`problem`."""
        with torch.inference_mode(False):  # tensors made in it cannot be recorded, nor count writes
            copies = copy_tensors(given)
        held = HeldTree(open_arguments(copies))
        result = self.subject.try_out(given, copies)
        returned = {id(leaf) for leaf in result.leaves}
        given_back = {changed.name for changed in self.subject.changed}  # beside the result
        self._run = (
            given,
            {
                effect.place: effect.after
                for effect in held.effects(open_arguments(copies))
                if isinstance(effect.after, torch.Tensor)
                and (
                    id(effect.after) not in returned
                    or (effect.is_write and effect.place.root not in given_back)
                )
            },
        )
        return result

    def draws(self, given: Arguments, expected: Result) -> bool:
        """True where the model gives another result than the expected one with other random numbers."""
        copies = copy_tensors(given)
        with self.subject.untouched():
            torch.manual_seed(torch.initial_seed() + 1)
            other = opened(self.subject(copies))
        return not agreement_of_trees(expected, other, atol=self._atol).holds

    def problem(self, given: Arguments, after: Arguments, held: Tree[Any], result: Result) -> str:
        """Compares the changes of the arguments: returns in words what the program did to them that
        the model does not do, or did not do that the model does; empty for nothing.

        ``given`` are the arguments as they were, ``after`` the copies that the program got, ``held``
        their leaves before the call, ``result`` what it gave.
        """
        run, self._run = self._run, None
        changed = run[1] if run is not None and run[0] is given else {}
        there = dict(open_arguments(after).items()) if changed else {}
        for path, tensor in changed.items():
            if path not in there or leaf_difference(tensor, there[path]) > self._atol:
                return f"the model changes the argument {path.code()}, and the program does not"
        found = set(_found(given, held, result)) - self._known
        if not found:
            return ""
        own = self._of_model(given)
        self._known |= found & own
        return min(found - own, default="")

    def _of_model(self, given: Arguments) -> set[str]:
        copies = copy_tensors(given)
        held = open_arguments(copies)
        with self.subject.untouched():
            result = open_result(self.subject(copies))
        return set(_found(given, held, result))


def _found(given: Arguments, held: Tree[Any], result: Result) -> Iterator[str]:
    before = open_arguments(given)
    for path, old, now in zip(held.structure.paths(), before.leaves, held.leaves, strict=True):
        if (
            isinstance(now, torch.Tensor)
            and not is_same(old, now)
            and leaf_difference(old, now) > 0
        ):
            yield f"the argument {path.code()} is changed in place"
    memory = {address for leaf in held.leaves if (address := _address(leaf))}
    for path, leaf in zip(result.structure.paths(), result.leaves, strict=True):
        if _address(leaf) in memory:
            yield f"{path.code() or 'the output'} is in the memory of an argument"


def _address(leaf: Any) -> int | None:
    """Returns the address at which a tensor keeps its values; None for what has no memory of its
    own.
    """
    if not isinstance(leaf, torch.Tensor) or leaf.numel() == 0 or leaf.layout != torch.strided:
        return None
    return address_of(leaf) or None

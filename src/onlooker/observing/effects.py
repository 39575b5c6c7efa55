"""Effects of a call: one value for a change of an argument and of an attribute, and one way to see
that a tensor was written to.
"""

from __future__ import annotations

import reprlib
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from ..core.path import Path
from ..core.structure import Tree
from ..pytrees.comparisons.agree import leaf_difference

__all__ = [
    "MISSING",
    "Effect",
    "HeldTree",
    "hides_writes",
    "note_data",
    "was_written",
    "write_mark",
]

#: what stood, or stands, in a place where nothing is
MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Effect:
    """A change that a call makes at ``place``: ``before`` was there, ``after`` is there now;
    ``MISSING`` is nothing.

    A place is a path from an argument, or the path of an attribute as Python has it. ``is_write`` is
    True for a tensor that is the same object with other values. ``holder`` is what holds an
    attribute, ``key`` where in it; None for a holder that changed as a whole.
    """

    place: Any
    before: Any
    after: Any
    is_write: bool = False
    holder: Any = None
    key: Any = None

    @property
    def lasts(self) -> bool:
        """True for an effect that putting back leaves: a step of an iterator."""
        return self.holder is not None and bool(self.holder.lasts)

    def __str__(self) -> str:
        place = self.place.code() if isinstance(self.place, Path) else self.place
        if self.is_write:
            return f"{place} was written in place"
        return f"{place} was {shown(self.before)} and is {shown(self.after)}"


def shown(value: Any) -> str:
    """A value in a few words."""
    if value is MISSING:
        return "absent"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def write_mark(value: Any, *, copies: bool = True) -> Any:
    """Returns a mark that tells later whether a tensor was written to: torch counts the writes, but
    those to an inference tensor, of which a copy is kept; without ``copies`` it counts as written.
    """
    if not isinstance(value, torch.Tensor):
        return None
    if not value.is_inference():
        return value._version
    return value.clone() if copies else MISSING


def was_written(value: Any, mark: Any) -> bool:
    """True for a tensor that was written to since it had this mark; False without a mark."""
    if isinstance(mark, torch.Tensor):
        return leaf_difference(mark, value) > 0
    return mark is MISSING or (mark is not None and value._version != mark)


#: tensors whose ``data`` was read or set in a run, which hides writes
_BY_DATA: dict[int, weakref.ref[torch.Tensor]] = {}


def note_data(tensor: torch.Tensor) -> None:
    """Notes that the ``data`` of a tensor was read or set: torch counts no write through it."""
    key = id(tensor)
    _BY_DATA[key] = weakref.ref(tensor, lambda _: _BY_DATA.pop(key, None))


def hides_writes(tensor: torch.Tensor) -> bool:
    """True for a tensor to which a model may have written without that torch counts it."""
    found = _BY_DATA.get(id(tensor))
    return found is not None and found() is tensor


class HeldTree:
    """The leaves of a tree at one moment, each with a mark that tells of writes.

    >>> from ..pytrees.open import open_tree
    >>> given = {"x": torch.zeros(2), "n": 1}
    >>> held = HeldTree(open_tree(given))
    >>> given["x"].add_(1), given.update(n=2)
    (tensor([1., 1.]), None)
    >>> [str(effect) for effect in held.effects(open_tree(given))]
    ["['x'] was written in place", "['n'] was 1 and is 2"]
    """

    def __init__(self, tree: Tree[Any], *, copies: bool = True) -> None:
        self._structure = tree.structure
        self._leaves = {
            path: (leaf, write_mark(leaf, copies=copies)) for path, leaf in tree.items()
        }

    def effects(self, tree: Tree[Any]) -> tuple[Effect, ...]:
        """Returns the effects at the places where the tree holds something else now; another
        structure is an effect at the place of all.
        """
        found: list[Effect] = []
        if tree.structure != self._structure:
            found.append(Effect(Path(), self._structure, tree.structure))
        for path, after in tree.items():
            before, mark = self._leaves.get(path, (MISSING, None))
            if before is after:
                if was_written(after, mark):
                    found.append(Effect(path, before, after, is_write=True))
            elif isinstance(before, torch.Tensor) or _differs(before, after):
                found.append(Effect(path, before, after))
        return tuple(found)


def _differs(before: Any, after: Any) -> bool:
    if type(before) is not type(after):  # 1 is no True
        return True
    try:
        return bool(before != after)
    except Exception:  # an array, say, or a class of the user's that cannot be compared
        return True

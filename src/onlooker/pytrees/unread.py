"""A stand-in for objects that a model never reads: it notices when the model reads one.

A tokenizer puts objects into its results that only it knows, one for each sentence. A model that
passes them by is the same program for any of them, and for any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..core.structure import Tree
from .nodes import ATOMS
from .open import open_tree

__all__ = ["HandedBack", "Unread", "is_unknown", "open_result"]


def is_unknown(leaf: Any) -> bool:
    """True for a leaf that is an object which could not be opened."""
    return not isinstance(leaf, (torch.Tensor, *ATOMS))


class Unread(list[Any]):
    """Raises when anything is asked of it, and counts how often.

    It is a list, so that it passes for one; ``is None`` and ``isinstance`` are no readings.

    >>> stand_in = Unread()
    >>> len(stand_in)
    Traceback (most recent call last):
    ...
    RuntimeError: an object is read that was not read in the watched calls
    >>> Unread.n_readings > 0
    True
    """

    n_readings = 0

    def failure(self) -> RuntimeError:
        """The error of a reading."""
        return RuntimeError("an object is read that was not read in the watched calls")

    def __deepcopy__(self, memo: dict[int, Any]) -> Unread:
        return self

    def __copy__(self) -> Unread:
        return self


def _read(stand_in: Unread, *_: Any, **__: Any) -> Any:
    Unread.n_readings += 1
    raise stand_in.failure()


#: all that a list does, and what an object of any class is asked for
_ASKED = {
    *(name for name, value in vars(list).items() if callable(value)),
    *("__getattr__", "__bool__", "__call__", "__int__", "__float__", "__index__", "__str__"),
    *("__next__", "__enter__", "__format__", "__bytes__", "__array__", "__torch_function__"),
}
_PLAIN = {"__new__", "__init__", "__getattribute__", "__class_getitem__", "__torch_function__"}
for _name in _ASKED - _PLAIN:
    setattr(Unread, _name, _read)


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Stands in a result for objects that came in and were not read: results are compared."""


def open_result(value: Any) -> Tree[Any]:
    """The leaves of a result, in which nothing raises."""
    tree = open_tree(value)
    leaves = (HandedBack() if isinstance(leaf, Unread) else leaf for leaf in tree.leaves)
    return Tree(tree.structure, tuple(leaves))

"""The reason for which the values of a call could not be kept: a tensor of it that cannot be copied."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from ..core.path import Path
from ..core.structure import Structure, Tree
from ..pytrees.unusual import Unusual, unusual_leaves

__all__ = ["UnsavedValues", "note_unsaved"]


@dataclass(frozen=True, slots=True)
class UnsavedValues:
    """The first unusual tensor of call ``index``, in arguments or results of this structure."""

    index: int
    structure: Structure
    path: Path
    found: Unusual


def note_unsaved(known: dict[Structure, UnsavedValues], index: int, tree: Tree[Any]) -> None:
    """Adds what stands against keeping the values, where it is a tensor: once for each
    structure.
    """
    if tree.structure in known:
        return
    with contextlib.suppress(Exception):  # a tensor that refuses to be asked is left unnamed
        for path, found in unusual_leaves(tree)[:1]:
            known[tree.structure] = UnsavedValues(index, tree.structure, path, found)

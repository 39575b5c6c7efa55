"""Small tensors that an object holds beside its children: a layer of a cache keeps the size of
its window so.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..core.path import Path
from ..core.structure import Structure
from .identity import attributes_of

__all__ = ["hidden_numbers", "hidden_tensors"]


def hidden_tensors(structure: Structure) -> dict[Path, dict[str, torch.Tensor]]:
    """Per container the tensors among its attributes that are no leaves, by name."""
    found: dict[Path, dict[str, torch.Tensor]] = {}
    for path, node in _objects(structure, Path()):
        build = node.extra
        if not callable(build):
            continue
        made = build([torch.empty(0)] * len(node.children))
        shown = {getattr(entry, "name", None) for entry in node.entries}
        held = {name: value for name, value in attributes_of(made).items() if name not in shown}
        tensors = {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}
        if tensors:
            found[path] = tensors
    return found


def hidden_numbers(structure: Structure) -> dict[Path, dict[str, tuple[object, str]]]:
    """The values of :func:`hidden_tensors` as numbers, each with its dtype."""
    return {
        path: {name: (value.tolist(), str(value.dtype)) for name, value in tensors.items()}
        for path, tensors in hidden_tensors(structure).items()
    }


def _objects(structure: Structure, path: Path) -> Iterator[tuple[Path, Structure]]:
    """The containers whose context says which attributes they have."""
    if structure.context.startswith("{"):
        yield path, structure
    for entry, child in structure.parts:
        yield from _objects(child, path / entry)

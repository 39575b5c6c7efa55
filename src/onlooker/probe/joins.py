"""Does the model only concatenate a list? Then any number of tensors can go through one graph, as one tensor."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.structure import Structure, Tree
from ..observe.store import Sample
from ..pytrees.agree import agreement
from ..pytrees.joins import Join, join_tensors, joined, lists_of_tensors
from ..pytrees.open import close_tree
from .subject import Subject

__all__ = ["find_joins"]

logger = logging.getLogger(__name__)
_DIMS = (0, 1)


def find_joins(samples: Sequence[Sample], subject: Subject) -> tuple[Join, ...]:
    """The lists of tensors that the model reads as their concatenation, proven on observed calls.

    The model must give for the joined list what it gave for the list; a list of one tensor is cut in two
    for the same comparison.
    """
    lists: dict[Path, list[tuple[Sample, tuple[torch.Tensor, ...]]]] = {}
    for sample in samples:
        for path, values in lists_of_tensors(sample.inputs):
            lists.setdefault(path, []).append((sample, values))
    found = []
    for path, seen in lists.items():
        longest = max(seen, key=lambda item: len(item[1]))
        join = next((Join(path, dim) for dim in _DIMS if _holds(Join(path, dim), *longest, subject)), None)
        if join is not None:
            logger.debug("%s", join)
            found.append(join)
    return tuple(found)


def _holds(join: Join, sample: Sample, values: tuple[torch.Tensor, ...], subject: Subject) -> bool:
    if any(value.ndim <= join.dim for value in values):
        return False
    if len(values) > 1:
        sizes = {tuple(n for d, n in enumerate(v.shape) if d != join.dim) for v in values}
        return len(sizes) == 1 and _same(joined(sample.inputs, (join,), join_tensors), sample, subject)
    half = values[0].shape[join.dim] // 2
    return half > 0 and _same(_cut(sample.inputs, join, half), sample, subject)


def _same(inputs: Tree[Any], sample: Sample, subject: Subject) -> bool:
    try:
        got = subject.try_out(close_tree(inputs.structure, inputs.leaves))
    except Exception as error:
        logger.debug("another number of tensors is refused: %s: %s", type(error).__name__, error)
        return False
    paths = list(sample.outputs.structure.paths())
    if paths != list(got.structure.paths()):
        return False
    return agreement(paths, sample.outputs.leaves, got.leaves).holds


def _cut(tree: Tree[Any], join: Join, half: int) -> Tree[Any]:
    """The tree with the one tensor of a list cut in two."""
    leaves: list[Any] = []
    structure = _cut_structure(tree.structure, Path(), iter(tree.leaves), join, half, leaves)
    return Tree(structure, tuple(leaves))


def _cut_structure(
    structure: Structure, path: Path, source: Iterator[Any], join: Join, half: int, leaves: list[Any]
) -> Structure:
    if structure.is_leaf:
        leaves.append(next(source))
        return structure
    if path == join.path:
        value = next(source)
        leaves += value.split([half, value.shape[join.dim] - half], dim=join.dim)
        twice = structure.children * 2
        return Structure(structure.kind, structure.entries * 2, twice, structure.context, structure.extra)
    children = tuple(
        _cut_structure(child, path / entry, source, join, half, leaves)
        for entry, child in zip(structure.entries, structure.children, strict=True)
    )
    return Structure(structure.kind, structure.entries, children, structure.context, structure.extra)

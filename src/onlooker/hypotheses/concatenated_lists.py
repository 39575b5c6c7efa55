"""Does the model only concatenate a list? Then any number of tensors goes through one graph, as
one tensor.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..core.experiment import Finding, FindingKind
from ..core.path import Path
from ..core.structure import Structure, Tree
from ..lab.lab import Lab, SpentError
from ..observing.store import Sample
from ..pytrees.agree import agreement
from ..pytrees.joins import Join, join_tensors, joined, lists_of_tensors
from ..pytrees.open import close_tree

__all__ = ["find_concatenated_lists"]

logger = logging.getLogger(__name__)
_DIMS = (0, 1)


def find_concatenated_lists(samples: Sequence[Sample], lab: Lab) -> tuple[Join, ...]:
    """The lists of tensors that the model reads as their concatenation, proven on observed calls.

    The model must give for the concatenated list what it gave for the list; a list of one tensor is
    cut in two for the same comparison.
    """
    lists: dict[Path, list[tuple[Sample, tuple[torch.Tensor, ...]]]] = {}
    for sample in samples:
        for path, values in lists_of_tensors(sample.inputs):
            lists.setdefault(path, []).append((sample, values))
    found: list[Join] = []
    try:
        for path, seen in lists.items():
            sample, values = max(seen, key=lambda item: len(item[1]))
            join = _concatenation_of(path, sample, values, lab)
            if join is not None:
                found.append(join)
    except SpentError as spent:
        lab.note_unknown("every list was tested for being concatenated", spent)
    return tuple(found)


def _concatenation_of(
    path: Path, sample: Sample, values: tuple[torch.Tensor, ...], lab: Lab
) -> Join | None:
    """The dimension along which the model concatenates a list, if there is one."""
    for dim in _DIMS:
        join = Join(path, dim)
        other = _other_list(join, dim, sample.inputs, values)
        if other is None:
            continue
        holds = _gives_the_same(other, sample, lab, str(join))
        kind = FindingKind.CONFIRMED if holds else FindingKind.REFUTED
        lab.record(finding=Finding(kind), claim=str(join), argument=path.root)
        if holds:
            return join
    return None


def _other_list(
    join: Join, dim: int, inputs: Tree[Any], values: tuple[torch.Tensor, ...]
) -> Tree[Any] | None:
    """The same call with another number of tensors in the list; None where they cannot be
    concatenated.
    """
    if any(value.ndim <= dim for value in values):
        return None
    if len(values) == 1:
        half = values[0].shape[dim] // 2
        return _cut(inputs, join, half) if half else None
    other_sizes = {
        tuple(size for own, size in enumerate(value.shape) if own != dim) for value in values
    }
    return joined(inputs, (join,), join_tensors) if len(other_sizes) == 1 else None


def _gives_the_same(inputs: Tree[Any], sample: Sample, lab: Lab, why: str) -> bool:
    try:
        arguments = close_tree(inputs.structure, inputs.leaves)
    except Exception as error:
        logger.debug(
            "another number of tensors cannot be given: %s: %s", type(error).__name__, error
        )
        return False
    got = lab.try_run(arguments, why=why, memo=True)
    paths = list(sample.outputs.structure.paths())
    if got is None or paths != list(got.structure.paths()):
        return False
    return agreement(paths, sample.outputs.leaves, got.leaves).holds


def _cut(tree: Tree[Any], join: Join, half: int) -> Tree[Any]:
    """The tree with the one tensor of a list cut in two."""
    leaves: list[Any] = []
    structure = _cut_structure(tree.structure, Path(), iter(tree.leaves), join, half, leaves)
    return Tree(structure, tuple(leaves))


def _cut_structure(
    structure: Structure,
    path: Path,
    source: Iterator[Any],
    join: Join,
    half: int,
    leaves: list[Any],
) -> Structure:
    if structure.is_leaf:
        leaves.append(next(source))
        return structure
    if path == join.path:
        value = next(source)
        leaves += value.split([half, value.shape[join.dim] - half], dim=join.dim)
        twice = structure.children * 2
        return Structure(
            structure.kind, structure.entries * 2, twice, structure.context, structure.extra
        )
    children = tuple(
        _cut_structure(child, path / entry, source, join, half, leaves)
        for entry, child in zip(structure.entries, structure.children, strict=True)
    )
    return Structure(
        structure.kind, structure.entries, children, structure.context, structure.extra
    )

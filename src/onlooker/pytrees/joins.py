"""Lists of tensors that count as one: their number may change, their concatenation is one
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..core.path import Index, Path
from ..core.spec import TensorSpec
from ..core.structure import LEAF, Structure, Tree

__all__ = ["Join", "join_specs", "join_tensors", "joined", "lists_of_tensors"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Join:
    """The list at ``path`` counts as the list of one tensor: all of them, concatenated along
    ``dim``.
    """

    path: Path
    dim: int

    def __str__(self) -> str:
        return f"{self.path} is joined along {self.dim}"


def lists_of_tensors(tree: Tree[Any]) -> Iterator[tuple[Path, tuple[torch.Tensor, ...]]]:
    """The lists and tuples that hold tensors of one rank and dtype and nothing else, with these
    tensors.
    """
    leaves = dict(tree.items())
    for path, node in _nodes(tree.structure, Path()):
        values = tuple(
            v for entry in node.entries if isinstance(v := leaves.get(path / entry), torch.Tensor)
        )
        kinds = {(value.dtype, value.ndim) for value in values}
        if node.kind in ("list", "tuple") and len(kinds) == 1 and len(values) == len(node.entries):
            yield path, values


def _nodes(structure: Structure, path: Path) -> Iterator[tuple[Path, Structure]]:
    yield path, structure
    for entry, child in zip(structure.entries, structure.children, strict=True):
        yield from _nodes(child, path / entry)


def joined(
    tree: Tree[T], joins: Sequence[Join], combine: Callable[[Sequence[T], int], T]
) -> Tree[T]:
    """The tree with every joined list replaced by a list of one leaf."""
    if not joins:
        return tree
    leaves: list[T] = []
    return Tree(
        _joined(
            tree.structure,
            Path(),
            iter(tree.leaves),
            {j.path: j.dim for j in joins},
            combine,
            leaves,
        ),
        tuple(leaves),
    )


def _joined(
    structure: Structure,
    path: Path,
    source: Iterator[T],
    dims: dict[Path, int],
    combine: Callable[[Sequence[T], int], T],
    leaves: list[T],
) -> Structure:
    if structure.is_leaf:
        leaves.append(next(source))
        return structure
    if path in dims and structure.children and all(child.is_leaf for child in structure.children):
        leaves.append(combine([next(source) for _ in structure.children], dims[path]))
        return Structure(
            structure.kind, (Index(0),), (Structure(LEAF),), structure.context, structure.extra
        )
    children = tuple(
        _joined(child, path / entry, source, dims, combine, leaves)
        for entry, child in zip(structure.entries, structure.children, strict=True)
    )
    return Structure(
        structure.kind, structure.entries, children, structure.context, structure.extra
    )


def join_tensors(values: Sequence[Any], dim: int) -> Any:
    """The concatenation; what cannot be concatenated is left to be refused as it is."""
    if len(values) == 1 or not all(isinstance(value, torch.Tensor) for value in values):
        return values[0]
    return torch.cat(list(values), dim=dim)


def join_specs(specs: Sequence[Any], dim: int) -> Any:
    """The spec of the concatenation."""
    first = specs[0]
    if len(specs) == 1 or not all(isinstance(spec, TensorSpec) for spec in specs):
        return first
    shape = list(first.shape)
    shape[dim] = sum(spec.shape[dim] for spec in specs)
    return TensorSpec(tuple(shape), first.dtype, first.device)

"""Parts of a call that count as one: tensors of a list as their concatenation, and objects or lists of texts that
the model never reads, however many, as one stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ..core.call import Join
from ..core.path import Entry, Index, Path
from ..core.spec import ConstantSpec, OpaqueSpec, TensorSpec
from ..core.structure import LEAF, Structure, Tree
from .identity import is_named_only
from .open import NESTED, spec_of
from .unread import HandedBack, Unread, is_unknown

__all__ = [
    "join_specs",
    "join_tensors",
    "joined",
    "joined_results",
    "lists_of_tensors",
    "lists_of_texts",
    "split",
    "split_as",
    "unknown_objects",
]

T = TypeVar("T")


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


def unknown_objects(tree: Tree[Any]) -> Iterator[Path]:
    """Yields the places of objects of which only the class is known, alone or in a list of nothing
    else.
    """
    leaves = dict(tree.items())
    inside: set[Path] = set()
    for path, node in _nodes(tree.structure, Path()):
        held = [path / entry for entry in node.entries] or [path]
        is_list = node.kind in ("list", "tuple") and node.entries
        if path in inside or not (node.is_leaf or is_list):
            continue
        if all(inner in leaves and _is_nameless(leaves[inner]) for inner in held):
            inside.update(held)
            yield path


def lists_of_texts(tree: Tree[Any]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The lists and tuples that hold texts and nothing else, with these texts."""
    leaves = dict(tree.items())
    for path, node in _nodes(tree.structure, Path()):
        values = [leaves.get(path / entry) for entry in node.entries]
        texts = tuple(value for value in values if type(value) is str)
        if node.kind in ("list", "tuple") and texts and len(texts) == len(values):
            yield path, texts


def _is_nameless(leaf: Any) -> bool:
    spec = spec_of(leaf) if is_unknown(leaf) else None
    return isinstance(spec, OpaqueSpec) and is_named_only(spec.identity)


def _nodes(structure: Structure, path: Path) -> Iterator[tuple[Path, Structure]]:
    yield path, structure
    for entry, child in structure.parts:
        yield from _nodes(child, path / entry)


def joined(
    tree: Tree[T], joins: Sequence[Join], combine: Callable[[Sequence[T], int | None], T]
) -> Tree[T]:
    """The tree with every joined list replaced by a list of one leaf, and with what is not read
    replaced by one leaf. A list whose items cannot be concatenated stays as it is: no graph takes it.
    """
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


def joined_results(tree: Tree[Any], joins: Sequence[Join]) -> Tree[Any]:
    """The result of a call, or its specs, as graphs see it: lists that are joined are one tensor,
    and objects that are not read stand as they came.
    """
    places = [Join(path, join.dim) for join in joins for path in join.results]
    return joined(tree, places, _joined_result)


def _joined_result(values: Sequence[Any], dim: int | None) -> Any:
    if dim is None:
        return _handed_back(values)
    is_spec = all(isinstance(value, TensorSpec) for value in values)
    return join_specs(values, dim) if is_spec else join_tensors(values, dim)


def _handed_back(values: Sequence[Any]) -> Any:
    is_spec = all(isinstance(value, (OpaqueSpec, ConstantSpec)) for value in values)
    return spec_of(HandedBack(), identified=False) if is_spec else HandedBack()


def _joined(
    structure: Structure,
    path: Path,
    source: Iterator[T],
    dims: dict[Path, int | None],
    combine: Callable[[Sequence[T], int | None], T],
    leaves: list[T],
) -> Structure:
    if path in dims and dims[path] is None and _is_flat(structure):
        values = [next(source) for _ in range(structure.n_leaves)]
        is_replaced = all(_is_object(value) for value in values)
        leaves += [combine(values, None)] if is_replaced else values
        return Structure(LEAF) if is_replaced else structure
    if structure.is_leaf:
        leaves.append(next(source))
        return structure
    if path in dims and structure.children and all(child.is_leaf for child in structure.children):
        values = [next(source) for _ in structure.children]
        dim = dims[path]
        if dim is not None and not _can_be_joined(values, dim):
            leaves += values
            return structure
        leaves.append(combine(values, dim))
        return replace(structure, entries=(Index(0),), children=(Structure(LEAF),))
    children = tuple(
        _joined(child, path / entry, source, dims, combine, leaves)
        for entry, child in structure.parts
    )
    return replace(structure, children=children)


def _can_be_joined(values: Sequence[Any], dim: int) -> bool:
    """True for one value, and for tensors, or their specs, that differ in nothing but their size along ``dim``."""
    if len(values) == 1:
        return True
    if not all(isinstance(value, (torch.Tensor, TensorSpec)) for value in values):
        return False
    kinds = {
        (value.dtype, value.device, len(value.shape), *value.shape[:dim], *value.shape[dim + 1 :])
        for value in values
    }
    return len(kinds) == 1 and dim < len(values[0].shape)


def _is_flat(structure: Structure) -> bool:
    is_list = structure.kind in ("list", "tuple")
    return structure.is_leaf or (is_list and all(child.is_leaf for child in structure.children))


def _is_object(value: Any) -> bool:
    if isinstance(value, OpaqueSpec):
        return value.kind != NESTED
    if isinstance(value, str) or (isinstance(value, ConstantSpec) and isinstance(value.value, str)):
        return True
    return is_unknown(value) and not isinstance(value, (TensorSpec, ConstantSpec))


def split_as(tree: Tree[Any], result: Tree[Any], joins: Sequence[Join]) -> Tree[Any]:
    """The result of a joined call, with its lists in the sizes that the arguments in ``tree``
    have.
    """
    given = dict(lists_of_tensors(tree)) if any(join.results for join in joins) else {}
    for join in joins:
        tensors = given.get(join.path, ()) if join.dim is not None else ()
        for path in join.results if len(tensors) > 1 else ():
            dim = join.dim or 0
            result = split(result, path, dim, [tensor.shape[dim] for tensor in tensors])
    return result


def split(tree: Tree[Any], path: Path, dim: int, sizes: Sequence[int]) -> Tree[Any]:
    """The tree with the one tensor of the list at ``path`` cut in parts of these sizes."""
    leaves: list[Any] = []
    structure = _split(tree.structure, path.entries, iter(tree.leaves), dim, sizes, leaves)
    return Tree(structure, tuple(leaves))


def _split(
    structure: Structure,
    way: Sequence[Entry] | None,
    source: Iterator[Any],
    dim: int,
    sizes: Sequence[int],
    leaves: list[Any],
) -> Structure:
    """``way`` are the entries from here to the list; None where the list is elsewhere."""
    if structure.is_leaf:
        leaves.append(next(source))
        return structure
    if way is not None and not way:
        leaves += next(source).split(list(sizes), dim=dim)
        entries = tuple(Index(number) for number in range(len(sizes)))
        children = structure.children * len(sizes)
        return replace(structure, entries=entries, children=children)
    children = tuple(
        _split(child, way[1:] if way and way[0] == entry else None, source, dim, sizes, leaves)
        for entry, child in structure.parts
    )
    return replace(structure, children=children)


def join_tensors(values: Sequence[Any], dim: int | None) -> Any:
    """The concatenation of tensors; one value is left as it is."""
    if dim is None:
        return Unread()
    return values[0] if len(values) == 1 else torch.cat(list(values), dim=dim)


def join_specs(specs: Sequence[Any], dim: int | None) -> Any:
    """The spec of the concatenation."""
    if dim is None:
        return spec_of(Unread())
    first = specs[0]
    if len(specs) == 1:
        return first
    shape = list(first.shape)
    shape[dim] = sum(spec.shape[dim] for spec in specs)
    return TensorSpec(tuple(shape), first.dtype, first.device)

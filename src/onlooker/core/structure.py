"""The containers of a call, without its leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from .path import Entry, Path

__all__ = ["LEAF", "Result", "Structure", "Tree", "child_of", "kinds_in"]

T = TypeVar("T")
U = TypeVar("U")

#: the kind of a structure that stands for one leaf
LEAF = "leaf"


@dataclass(frozen=True, slots=True)
class Structure:
    """A container and its children, or a leaf.

    ``kind`` is ``"leaf"``, or the qualified name of the container's class. ``context`` is what the
    container needs to be built again beside its children (flags, classes), written as text: two
    structures are equal when text, entries and children are. ``extra`` holds the objects themselves
    and takes no part in comparisons.
    """

    kind: str = LEAF
    entries: tuple[Entry, ...] = ()
    children: tuple[Structure, ...] = ()
    context: str = ""
    extra: object = field(default=None, compare=False, repr=False)

    @property
    def is_leaf(self) -> bool:
        """True for a leaf."""
        return self.kind == LEAF

    @property
    def parts(self) -> Iterator[tuple[Entry, Structure]]:
        """Each child with its entry."""
        return zip(self.entries, self.children, strict=True)

    def paths(self, start: Path | None = None) -> Iterator[Path]:
        """The paths of the leaves, in the order of the leaves."""
        here = Path() if start is None else start
        if self.is_leaf:
            yield here
        for entry, child in self.parts:
            yield from child.paths(here / entry)

    @property
    def n_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.is_leaf else sum(child.n_leaves for child in self.children)


def kinds_in(structure: Structure) -> Iterator[str]:
    """The kind of a structure, and those of all structures in it."""
    yield structure.kind
    for child in structure.children:
        yield from kinds_in(child)


def child_of(structure: Structure | None, *entries: Entry) -> Structure | None:
    """The structure to which entries lead from another one; None where they lead nowhere."""
    for entry in entries:
        structure = None if structure is None else dict(structure.parts).get(entry)
    return structure


@dataclass(frozen=True, slots=True)
class Tree(Generic[T]):
    """A structure and one value per leaf."""

    structure: Structure
    leaves: tuple[T, ...]

    def items(self) -> Iterator[tuple[Path, T]]:
        """``(path, leaf)`` in the order of the leaves."""
        yield from zip(self.structure.paths(), self.leaves, strict=True)

    def each(self, change: Callable[[T], U]) -> Tree[U]:
        """Returns the same structure with another value per leaf."""
        return Tree(self.structure, tuple(map(change, self.leaves)))

    def parts(self) -> dict[Entry, Tree[T]]:
        """The children of the container, each as a tree."""
        found: dict[Entry, Tree[T]] = {}
        start = 0
        for entry, child in self.structure.parts:
            stop = start + child.n_leaves
            found[entry] = Tree(child, self.leaves[start:stop])
            start = stop
        return found

    def with_parts(self, parts: Mapping[Entry, Tree[T]]) -> Tree[T]:
        """The container with these children in place of its own."""
        children = tuple(part.structure for part in parts.values())
        structure = replace(self.structure, entries=tuple(parts), children=children)
        return Tree(structure, tuple(leaf for part in parts.values() for leaf in part.leaves))


#: what a call gives, opened
Result = Tree[Any]

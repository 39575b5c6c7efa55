"""Inputs laid out as ``dynamic_shapes`` addresses them: what stands where, and how a container is
spelled.

Lists, tuples, named tuples and dicts keep their form. A cache of transformers is one flat list of
its leaves, layer by layer, and any other class the list of its children: that is how torch.export
sees the classes that its pytrees know. Nothing has to be registered.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from onlooker.core.path import Attr, Path
from onlooker.pytrees.layers import ROOM, is_cache
from onlooker.pytrees.open import is_leaf, take_apart
from onlooker.torch_internals.trees import torch_pytree

__all__ = [
    "CacheForm",
    "ContainerKind",
    "ShapeTree",
    "closed",
    "lay_out",
    "spelled_tree",
    "states_by_kind",
]

_DEEPEST = 24
_DICTS = (dict, OrderedDict, defaultdict)


class ContainerKind(Enum):
    """Stands for a container in a tree of shapes."""

    LEAF = "leaf"
    LIST = "list"
    TUPLE = "tuple"
    NAMED = "named tuple"
    DICT = "dict"
    OBJECT = "object"  #: the list of its children
    CACHE = "cache"  #: the flat list of its leaves


class CacheForm(Enum):
    """The order in which the tensors of a cache are listed."""

    FLAT = (  #: ``[key_0, value_0, key_1, value_1, ...]``, with the counters that torch.export sees
        "flat"
    )
    NESTED = "nested"  #: ``[[key_0, key_1, ...], [value_0, value_1, ...]]``, without counters


@dataclass(frozen=True, slots=True)
class ShapeTree:
    """A leaf or a container of the inputs; ``keys`` are those of a dict, or the names of
    attributes.
    """

    form: ContainerKind
    path: Path
    value: Any
    keys: tuple[Any, ...] = ()
    children: tuple[ShapeTree, ...] = ()
    in_cache: bool = False

    @property
    def is_counter(self) -> bool:
        """True for what a layer of a cache counts its tokens in."""
        last = self.path.entries[-1] if self.path.entries else None
        return self.in_cache and isinstance(last, Attr) and last.name.startswith("cumulative")

    @property
    def is_room(self) -> bool:
        """True for the length of a static layer, which torch.export reads from its keys."""
        last = self.path.entries[-1] if self.path.entries else None
        return self.in_cache and isinstance(last, Attr) and last.name == ROOM

    def leaves(self) -> Iterator[ShapeTree]:
        """The leaves, in the order of the flat form."""
        if self.form is ContainerKind.LEAF:
            yield self
        for child in self.children:
            yield from child.leaves()


def lay_out(value: Any, path: Path | None = None) -> ShapeTree:
    """The places of ``value`` and of all that it holds.

    >>> import torch
    >>> [place.path.code() for place in lay_out({"a": [torch.zeros(2), 3]}).leaves()]
    ["['a'][0]", "['a'][1]"]
    """
    return _lay_out(value, Path() if path is None else path, (), False)


def spelled_tree(
    place: ShapeTree, spell: Callable[[ShapeTree], Any], *, caches: CacheForm = CacheForm.FLAT
) -> Any:
    """Returns the tree of what ``spell`` gives for each leaf, in the form of the inputs.

    >>> import torch
    >>> spelled_tree(lay_out((torch.zeros(2, 3), [1])), lambda leaf: type(leaf.value).__name__)
    ('Tensor', ['int'])
    """
    if place.form is ContainerKind.LEAF:
        return spell(place)
    if place.form is ContainerKind.CACHE and caches is CacheForm.NESTED:
        groups = states_by_kind(place)
        if groups is not None:
            return [[spell(leaf) for leaf in group] for group in groups]
    children = [spelled_tree(child, spell, caches=caches) for child in place.children]
    return closed(place, children)


def closed(place: ShapeTree, children: list[Any]) -> Any:
    """Shapes of children as the shapes of their container."""
    if place.form is ContainerKind.DICT:
        return dict(zip(place.keys, children, strict=True))
    if place.form is ContainerKind.TUPLE:
        return tuple(children)
    if place.form is ContainerKind.NAMED:
        return type(place.value)(*children)
    return children if place.form is not ContainerKind.OBJECT else _listed(place.value, children)


def states_by_kind(cache: ShapeTree) -> tuple[list[ShapeTree], list[ShapeTree]] | None:
    """The keys and the values of a cache; None when its layers hold something else."""
    states = [leaf for leaf in cache.children if not leaf.is_counter]
    names = [leaf.path.entries[-1].code() for leaf in states]
    if names != [".keys", ".values"] * (len(names) // 2):
        return None
    return states[::2], states[1::2]


def _lay_out(value: Any, path: Path, above: tuple[int, ...], in_cache: bool) -> ShapeTree:
    opened = None
    opens = not is_leaf(value) or isinstance(value, torch.nn.Module)
    if opens and len(above) < _DEEPEST and id(value) not in above:
        opened = take_apart(value)
    if opened is None:
        return ShapeTree(ContainerKind.LEAF, path, value, in_cache=in_cache)
    form, inside = _form_of(value), (*above, id(value))
    children = tuple(
        _lay_out(child, path / entry, inside, in_cache or form is ContainerKind.CACHE)
        for entry, child in opened.children
    )
    if form is ContainerKind.CACHE and not any(
        child.form is ContainerKind.CACHE for child in children
    ):
        return ShapeTree(
            form,
            path,
            value,
            (),
            tuple(leaf for child in children for leaf in child.leaves() if not leaf.is_room),
            in_cache,
        )
    form = ContainerKind.OBJECT if form is ContainerKind.CACHE else form
    keys = tuple(
        getattr(entry, "key", getattr(entry, "name", None)) for entry, _ in opened.children
    )
    return ShapeTree(form, path, value, keys, children, in_cache)


def _form_of(value: Any) -> ContainerKind:
    cls = type(value)
    if cls in _DICTS:
        return ContainerKind.DICT
    if cls in (list, tuple):
        return ContainerKind.LIST if cls is list else ContainerKind.TUPLE
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return ContainerKind.NAMED
    return ContainerKind.CACHE if is_cache(value) else ContainerKind.OBJECT


def _listed(value: Any, children: list[Any]) -> Any:
    """The children of a class as its flattening lists them: a tuple, a deque, nearly always a
    list.
    """
    if type(value) is deque:
        return deque(children)
    node = torch_pytree.SUPPORTED_NODES.get(type(value))
    if node is None:
        return children
    return tuple(children) if isinstance(node.flatten_fn(value)[0], tuple) else children

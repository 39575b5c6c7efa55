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

__all__ = ["CacheForm", "Form", "Place", "closed", "lay_out", "spelled_tree", "states_by_kind"]

_DEEPEST = 24
_DICTS = (dict, OrderedDict, defaultdict)


class Form(Enum):
    """What stands for a container in a tree of shapes."""

    LEAF = "leaf"
    LIST = "list"
    TUPLE = "tuple"
    NAMED = "named tuple"
    DICT = "dict"
    OBJECT = "object"  #: the list of its children
    CACHE = "cache"  #: the flat list of its leaves


class CacheForm(Enum):
    """How the tensors of a cache are listed."""

    FLAT = (  #: ``[key_0, value_0, key_1, value_1, ...]``, with the counters that torch.export sees
        "flat"
    )
    NESTED = "nested"  #: ``[[key_0, key_1, ...], [value_0, value_1, ...]]``, without counters


@dataclass(frozen=True, slots=True)
class Place:
    """A leaf or a container of the inputs; ``keys`` are those of a dict, or the names of
    attributes.
    """

    form: Form
    path: Path
    value: Any
    keys: tuple[Any, ...] = ()
    children: tuple[Place, ...] = ()
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

    def leaves(self) -> Iterator[Place]:
        """The leaves, in the order of the flat form."""
        if self.form is Form.LEAF:
            yield self
        for child in self.children:
            yield from child.leaves()


def lay_out(value: Any, path: Path | None = None) -> Place:
    """The places of ``value`` and of all that it holds.

    >>> import torch
    >>> [place.path.code() for place in lay_out({"a": [torch.zeros(2), 3]}).leaves()]
    ["['a'][0]", "['a'][1]"]
    """
    return _lay_out(value, Path() if path is None else path, (), False)


def spelled_tree(
    place: Place, spell: Callable[[Place], Any], *, caches: CacheForm = CacheForm.FLAT
) -> Any:
    """What ``spell`` gives for each leaf, in the form of the inputs.

    >>> import torch
    >>> spelled_tree(lay_out((torch.zeros(2, 3), [1])), lambda leaf: type(leaf.value).__name__)
    ('Tensor', ['int'])
    """
    if place.form is Form.LEAF:
        return spell(place)
    if place.form is Form.CACHE and caches is CacheForm.NESTED:
        groups = states_by_kind(place)
        if groups is not None:
            return [[spell(leaf) for leaf in group] for group in groups]
    children = [spelled_tree(child, spell, caches=caches) for child in place.children]
    return closed(place, children)


def closed(place: Place, children: list[Any]) -> Any:
    """Shapes of children as the shapes of their container."""
    if place.form is Form.DICT:
        return dict(zip(place.keys, children, strict=True))
    if place.form is Form.TUPLE:
        return tuple(children)
    if place.form is Form.NAMED:
        return type(place.value)(*children)
    return children if place.form is not Form.OBJECT else _listed(place.value, children)


def states_by_kind(cache: Place) -> tuple[list[Place], list[Place]] | None:
    """The keys and the values of a cache; None when its layers hold something else."""
    states = [leaf for leaf in cache.children if not leaf.is_counter]
    names = [leaf.path.entries[-1].code() for leaf in states]
    if names != [".keys", ".values"] * (len(names) // 2):
        return None
    return states[::2], states[1::2]


def _lay_out(value: Any, path: Path, above: tuple[int, ...], in_cache: bool) -> Place:
    opened = None
    opens = not is_leaf(value) or isinstance(value, torch.nn.Module)
    if opens and len(above) < _DEEPEST and id(value) not in above:
        opened = take_apart(value)
    if opened is None:
        return Place(Form.LEAF, path, value, in_cache=in_cache)
    form, inside = _form_of(value), (*above, id(value))
    children = tuple(
        _lay_out(child, path / entry, inside, in_cache or form is Form.CACHE)
        for entry, child in opened.children
    )
    if form is Form.CACHE and not any(child.form is Form.CACHE for child in children):
        return Place(
            form,
            path,
            value,
            (),
            tuple(leaf for child in children for leaf in child.leaves() if not leaf.is_room),
            in_cache,
        )
    form = Form.OBJECT if form is Form.CACHE else form
    keys = tuple(
        getattr(entry, "key", getattr(entry, "name", None)) for entry, _ in opened.children
    )
    return Place(form, path, value, keys, children, in_cache)


def _form_of(value: Any) -> Form:
    cls = type(value)
    if cls in _DICTS:
        return Form.DICT
    if cls in (list, tuple):
        return Form.LIST if cls is list else Form.TUPLE
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return Form.NAMED
    return Form.CACHE if is_cache(value) else Form.OBJECT


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

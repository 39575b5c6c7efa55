"""Caches of transformers, opened by what their objects hold, for every class of cache and layer.

A cache is opened into its layers, a layer into its tensors (``keys``, ``values``,
``conv_states[0]`` ...) and its counters, which are the ints that its methods set: the
``cumulative_length`` of a sliding window grows with every call, as does an int of a dict
``entry_count``. The ``max_cache_len`` of a static cache is an int leaf too, since ``generate()``
makes it for the length of the prompt. A layer that waits for its first tokens has no tensors. A
class of a model's own may keep tensors beside its layers, in a list or a dict: these are leaves
too. Everything else, flags and sizes, is context.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ..core.path import Attr
from ..core.structure import Structure, kinds_in
from .identity import constant_text
from .nodes import Opened, is_size, qualified_name

__all__ = [
    "FOLLOWING",
    "ROOM",
    "class_of_cache",
    "classes_of_caches",
    "holds_tensors",
    "is_cache",
    "is_cache_class",
    "is_layer",
    "is_layer_class",
    "open_cache",
    "set_by_methods",
]

#: what a layer notes of the sizes of its tensors and never reads
FOLLOWING = frozenset({"batch_size"})
#: how many tokens a static layer has room for: its tensors have this length, once there are any
ROOM = "max_cache_len"
#: the methods that make a layer: ``lazy_initialization`` makes its tensors
_MAKERS = frozenset({"__init__", "lazy_initialization"})
_LAYERS = frozenset({"CacheLayerMixin", "LinearAttentionCacheLayerMixin", "DummyLayer"})


def _derives_from(cls: type, names: frozenset[str]) -> bool:
    return any(
        base.__name__ in names and base.__module__ == "transformers.cache_utils"
        for base in cls.__mro__
    )


def is_cache_class(cls: type) -> bool:
    """True for a class of caches of transformers."""
    return _derives_from(cls, frozenset({"Cache"}))


def is_layer_class(cls: type) -> bool:
    """True for a class of the layers of a cache of transformers."""
    return _derives_from(cls, _LAYERS)


def class_of_cache(kind: str) -> type | None:
    """The class of caches, or of their layers, of a qualified name; None for any other one."""
    module, _, name = kind.rpartition(".")
    cls = getattr(sys.modules.get(module), name, None)
    is_one = isinstance(cls, type) and (is_cache_class(cls) or is_layer_class(cls))
    return cls if is_one else None


def classes_of_caches(structure: Structure) -> frozenset[type]:
    """The classes of the caches in a structure, and of their layers."""
    found = map(class_of_cache, kinds_in(structure))
    return frozenset(cls for cls in found if cls is not None)


def is_cache(value: Any) -> bool:
    """True for a cache of transformers, without importing transformers."""
    return is_cache_class(type(value))


def is_layer(value: Any) -> bool:
    """True for one layer of a cache of transformers, without importing transformers."""
    return is_layer_class(type(value))


def open_cache(value: Any) -> Opened | None:
    """Opens a cache or a layer; None for anything else."""
    if is_cache(value):
        shown = {
            k: v
            for k, v in vars(value).items()
            if k == "layers" or is_cache(v) or holds_tensors(k, v)
        }
    elif is_layer(value):
        shown = {k: v for k, v in vars(value).items() if _is_state(k, value)}
    else:
        return None
    cls, names = type(value), tuple(shown)
    hidden = {name: _kept(child) for name, child in vars(value).items() if name not in shown}
    containers = [name for name, child in hidden.items() if type(child) in (dict, list)]
    empty = {**hidden, **dict.fromkeys(names)}
    follows = not FOLLOWING.isdisjoint(hidden) and isinstance(shown.get("keys"), torch.Tensor)

    def build(values: list[Any]) -> Any:
        own = empty.copy()  # a copy of a whole dict is the fastest way to one
        for name in containers:
            own[name] = _kept(hidden[name])
        for name, value in zip(names, values, strict=True):
            own[name] = value
        if follows and own["keys"] is not None:  # one without tensors shows its other attributes
            own["batch_size"] = own["keys"].shape[0]
        obj = object.__new__(cls)
        obj.__dict__ = own
        return obj

    compared = {
        n: c for n, c in hidden.items() if not isinstance(c, torch.Tensor) and n not in FOLLOWING
    }
    return Opened(
        qualified_name(cls),
        tuple((Attr(n), shown[n]) for n in names),
        build,
        constant_text(compared),
    )


def _kept(value: Any) -> Any:
    """A flag as it is now: the model changes dicts and lists of flags in place."""
    return type(value)(value) if type(value) in (dict, list) else value


def holds_tensors(name: str, value: Any) -> bool:
    """True for an attribute that is a tensor, or a list, tuple or dict with tensors in it."""
    if isinstance(value, torch.Tensor):
        return not name.startswith("_")
    if type(value) in (list, tuple):
        return any(holds_tensors("", child) for child in value)
    return isinstance(value, dict) and any(holds_tensors("", child) for child in value.values())


def _is_state(name: str, layer: Any) -> bool:
    """True for what a call reads and writes in a layer: tensors, dicts of tensors, counters, and
    the room of a static one.
    """
    value = getattr(layer, name)
    return (
        holds_tensors(name, value) or _is_counter(name, layer) or (name == ROOM and is_size(value))
    )


def _is_counter(name: str, layer: Any) -> bool:
    """True for an int, or a dict of ints, that a method of the layer sets."""
    value = getattr(layer, name)
    cls: type = type(layer)
    is_number = all(map(is_size, value.values())) if type(value) is dict else is_size(value)
    return is_number and name in set_by_methods(cls)


@functools.cache
def set_by_methods(cls: type) -> frozenset[str]:
    """The attributes that methods of a class set: ``self.count = n``, ``self.count["a"] = n``.

    What ``__init__`` sets says how the layer works, and ``lazy_initialization`` notes the sizes of
    its first tensors.
    """
    methods = [
        value
        for base in cls.__mro__
        for name, value in vars(base).items()
        if inspect.isfunction(value) and name not in _MAKERS
    ]
    return frozenset(name for method in methods for name in _set_by(inspect.unwrap(method)))


def _set_by(method: Any) -> Iterator[str]:
    """Yields the attributes that a function sets, and those of whose items it sets one: the
    instruction that sets an item begins where the one that loads its dict does (Python 3.11).
    """
    steps = list(dis.get_instructions(method))
    items = {_begin(one) for one in steps if one.opname == "STORE_SUBSCR"} - {None}
    for one in steps:
        if one.opname == "STORE_ATTR" or (one.opname == "LOAD_ATTR" and _begin(one) in items):
            yield one.argval


def _begin(one: dis.Instruction) -> tuple[int, int] | None:
    """The line and column of the source at which an instruction begins, where Python tells it."""
    places = getattr(one, "positions", None)
    return places and (places.lineno, places.col_offset)

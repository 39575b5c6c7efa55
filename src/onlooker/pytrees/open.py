"""Opens any Python value down to its leaves, and closes it again, without a global registration.

A leaf is a tensor, a bool, int, float, str or None, or an object that could not be opened. Containers are,
in this order: lists, tuples and dicts; the caches of transformers (:mod:`onlooker.pytrees.layers`); classes
that somebody registered with ``torch.utils._pytree``; modules that hold a tensor
(:mod:`onlooker.pytrees.modules`); ``ModelOutput`` and dataclasses; plain objects that hold a tensor somewhere.
Closing creates no tensor, so that it can be done while torch traces a model: an empty tensor made there would
become a constant of the program (and break its conversion to ONNX).
"""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils._pytree as torch_pytree
from torch.nn.parameter import is_lazy

from ..core.errors import ObservationError
from ..core.path import Attr, Entry, Index, Key, Name
from ..core.spec import ConstantSpec, OpaqueSpec, Spec, TensorSpec
from ..core.structure import LEAF, Structure, Tree
from .layers import open_cache
from .modules import open_module
from .nodes import ATOMS, Opened, constant_text, qualified_name

__all__ = [
    "ARGUMENTS",
    "NAMED_TUPLE",
    "NESTED",
    "close_tree",
    "is_leaf",
    "is_model_output",
    "map_tensors",
    "open_arguments",
    "open_tree",
    "spec_of",
    "take_apart",
]

#: the context of a named tuple, whose shapes torch.export wants in the same class
NAMED_TUPLE = "named tuple"
#: the kind of the structure that holds the arguments of a call by name
ARGUMENTS = "arguments"
#: the kind of a tensor whose rows have lengths of their own
NESTED = "nested tensor"
_CLOSED = (
    type,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.Size,
    torch.nn.Module,
    types.ModuleType,
    bytes,
)
_DEEPEST = 24
_LEAF = Structure(LEAF)
_PLAIN_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, *ATOMS})


def is_leaf(value: Any) -> bool:
    """True for what is never opened; of modules, only those that are arguments are."""
    return isinstance(value, (torch.Tensor, *ATOMS, *_CLOSED)) or callable(value)


def spec_of(leaf: Any) -> Spec:
    """The spec of a leaf; a nested tensor, or a parameter that is not initialised, has no sizes to tell."""
    if isinstance(leaf, torch.Tensor) and not leaf.is_nested and not is_lazy(leaf):
        return TensorSpec(tuple(leaf.shape), str(leaf.dtype), str(leaf.device))
    if isinstance(leaf, (bool, int, float, str, type(None))):
        return ConstantSpec(leaf)
    nested = isinstance(leaf, torch.Tensor) and leaf.is_nested
    return OpaqueSpec(NESTED if nested else qualified_name(type(leaf)))


def open_tree(value: Any) -> Tree[Any]:
    """Opens ``value`` down to its leaves.

    >>> tree = open_tree({"a": [torch.zeros(2), 3]})
    >>> [path.code() for path in tree.structure.paths()]
    ["['a'][0]", "['a'][1]"]
    """
    leaves: list[Any] = []
    return Tree(_open(value, leaves, ()), tuple(leaves))


def open_arguments(arguments: dict[str, Any]) -> Tree[Any]:
    """Opens the arguments of a call: every path begins with a name.

    >>> open_arguments({"x": torch.zeros(2), "flags": [True]}).structure.n_leaves
    2
    """
    leaves: list[Any] = []
    children = tuple(_open(value, leaves, ()) for value in arguments.values())
    names = tuple(Name(name) for name in arguments)
    return Tree(Structure(ARGUMENTS, names, children), tuple(leaves))


def close_tree(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Builds the value again that :func:`open_tree` opened, from other leaves.

    >>> close_tree(open_tree((1, [2])).structure, ["a", "b"])
    ('a', ['b'])
    """
    iterator = iter(leaves)
    return _close(structure, iterator)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``value`` with ``function`` applied to each of its tensors; everything else is kept.

    >>> map_tensors(lambda t: t + 1, [torch.zeros(1), "a"])
    [tensor([1.]), 'a']
    """
    tree = open_tree(value)
    memo: dict[int, Any] = {}
    for leaf in tree.leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
            memo[id(leaf)] = function(leaf)
    return close_tree(tree.structure, [memo.get(id(leaf), leaf) for leaf in tree.leaves])


def _open(value: Any, leaves: list[Any], above: tuple[int, ...]) -> Structure:
    if type(value) in _PLAIN_LEAVES:
        leaves.append(value)
        return _LEAF
    opened = None
    if (not is_leaf(value) or isinstance(value, torch.nn.Module)) and len(above) < _DEEPEST and id(value) not in above:
        opened = take_apart(value)
    if opened is None:
        leaves.append(value)
        return _LEAF
    inside = (*above, id(value))
    children = tuple(_open(child, leaves, inside) for _, child in opened.children)
    entries = tuple(entry for entry, _ in opened.children)
    return Structure(opened.kind, entries, children, opened.context, opened.build)


def _close(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.is_leaf:
        return next(leaves)
    values = [_close(child, leaves) for child in structure.children]
    if structure.kind == ARGUMENTS:
        return {entry.code(): value for entry, value in zip(structure.entries, values, strict=True)}
    build: Any = structure.extra
    if build is None:
        raise ObservationError(
            f"A {structure.kind} cannot be built: this structure was read from a file.",
            slug="structure-without-class",
            hint="Watch the model again in this process.",
        )
    return build(values)


def take_apart(value: Any) -> Opened | None:
    """One level of a container: its children, and what builds it again; None for what cannot be opened."""
    for opener in (_builtin, open_cache, _registered, _module, _model_output, _dataclass, _plain_object):
        opened = opener(value)
        if opened is not None:
            return opened
    return None


def _builtin(value: Any) -> Opened | None:
    cls = type(value)
    if cls in (list, tuple):
        return Opened(cls.__name__, tuple((Index(i), child) for i, child in enumerate(value)), cls)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        fields = tuple((Attr(name), child) for name, child in zip(cls._fields, value, strict=True))
        return Opened(qualified_name(cls), fields, lambda values: cls(*values), NAMED_TUPLE)
    if cls in (dict, OrderedDict):
        keys = tuple(value)
        children = tuple((Key(key), child) for key, child in value.items())
        return Opened(cls.__name__, children, lambda values: cls(zip(keys, values, strict=True)))
    return None


def _module(value: Any) -> Opened | None:
    if not isinstance(value, torch.nn.Module):
        return None
    return open_module(value, lambda child: _holds_tensor(child, 0), _worth_opening)


def _registered(value: Any) -> Opened | None:
    cls = type(value)
    node = torch_pytree.SUPPORTED_NODES.get(cls)
    if node is None or is_model_output(value):
        return None
    children, context = node.flatten_fn(value)
    entries: Sequence[Entry] = [Index(i) for i in range(len(children))]
    if node.flatten_with_keys_fn is not None:
        entries = [_entry(value, key, child) for key, child in node.flatten_with_keys_fn(value)[0]]
    return Opened(
        qualified_name(cls),
        tuple(zip(entries, children, strict=True)),
        lambda values: node.unflatten_fn(values, context),
        constant_text(context),
    )


def _entry(value: Any, key: Any, child: Any) -> Entry:
    """A step that can be followed, from a key of torch's pytrees."""
    if isinstance(key, torch_pytree.SequenceKey):
        return Index(key.idx)
    name = key.key if isinstance(key, torch_pytree.MappingKey) else getattr(key, "name", str(key))
    if isinstance(name, str) and getattr(value, name, None) is child:
        return Attr(name)
    return Key(name)


def is_model_output(value: Any) -> bool:
    """True for a ``ModelOutput`` of transformers, without importing transformers."""
    return isinstance(value, OrderedDict) and any(c.__name__ == "ModelOutput" for c in type(value).__mro__)


def _model_output(value: Any) -> Opened | None:
    if not is_model_output(value):
        return None
    cls, keys = type(value), tuple(value)
    children = tuple((Attr(key), value[key]) for key in keys)
    return Opened(qualified_name(cls), children, lambda values: cls(**dict(zip(keys, values, strict=True))))


def _dataclass(value: Any) -> Opened | None:
    cls = type(value)
    if not dataclasses.is_dataclass(cls):
        return None
    names = tuple(f.name for f in dataclasses.fields(cls) if hasattr(value, f.name))
    children = tuple((Attr(name), getattr(value, name)) for name in names)
    hidden = {name: child for name, child in getattr(value, "__dict__", {}).items() if name not in names}
    return Opened(
        qualified_name(cls),
        children,
        lambda values: _rebuilt(cls, {**dict(zip(names, values, strict=True)), **hidden}),
        constant_text(hidden) if hidden else "",
    )


def _rebuilt(cls: type, attributes: dict[str, Any]) -> Any:
    obj: Any = object.__new__(cls)
    for name, child in attributes.items():
        object.__setattr__(obj, name, child)
    return obj


def _plain_object(value: Any) -> Opened | None:
    cls = type(value)
    if cls.__module__.partition(".")[0] in ("torch", "builtins", "numpy"):
        return None
    attributes = _attributes(value)
    if not _holds_tensor(list(attributes.values()), 0):
        return None
    shown = {name: child for name, child in attributes.items() if _worth_opening(child)}
    hidden = {name: child for name, child in attributes.items() if name not in shown}
    names = tuple(shown)
    return Opened(
        qualified_name(cls),
        tuple((Attr(name), child) for name, child in shown.items()),
        lambda values: _rebuilt(cls, {**hidden, **dict(zip(names, values, strict=True))}),
        constant_text(hidden),
    )


def _attributes(value: Any) -> dict[str, Any]:
    """What an object holds itself: in its slots (a class of attrs has them by default), and in its ``__dict__``."""
    slots: list[str] = []
    for cls in reversed(type(value).__mro__):
        names = vars(cls).get("__slots__", ())
        for name in [names] if isinstance(names, str) else names:
            mangled = name.startswith("__") and not name.endswith("__")
            slots.append(f"_{cls.__name__.lstrip('_')}{name}" if mangled else name)
    own = [name for name in slots if name not in ("__dict__", "__weakref__")]
    held = {name: getattr(value, name) for name in own if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _worth_opening(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, *ATOMS)) or not is_leaf(value)


def _holds_tensor(value: Any, depth: int) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if is_leaf(value) or depth > 4:
        return False
    if isinstance(value, dict):
        return any(_holds_tensor(child, depth + 1) for child in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor(child, depth + 1) for child in value)
    return _holds_tensor(_attributes(value), depth + 1)

"""The openers, in their order: each takes one level of a kind of container apart.

Each class of containers has one opener; the first that knows a value gives its children, and what
builds it again.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.path import Attr, Entry, Index, Key
from ..torch_internals.trees import torch_pytree
from .identity import attributes_of, constant_text, has_only_attributes
from .layers import open_cache
from .modules import open_module
from .nodes import ATOMS, Opened, qualified_name

__all__ = ["NAMED_TUPLE", "is_leaf", "is_model_output", "size_of", "take_apart"]

#: the context of a named tuple, whose shapes torch.export wants in the same class
NAMED_TUPLE = "named tuple"
_CLOSED = (
    type,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.nn.Module,
    types.ModuleType,
    bytes,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    weakref.ref,
)
_DEEPEST = 24
_MOST_LOOKED_AT = 10_000


def is_leaf(value: Any) -> bool:
    """True for what is never opened; of modules, only those that are arguments are."""
    return isinstance(value, (torch.Tensor, *ATOMS, *_CLOSED))


def take_apart(value: Any) -> Opened | None:
    """One level of a container: its children, and what builds it again; None for what cannot be
    opened.
    """
    for opener in _OPENERS:
        opened = opener(value)
        if opened is not None:
            return opened
    return None


def _builtin(value: Any) -> Opened | None:
    cls = type(value)
    if cls in (list, tuple):
        return Opened(cls.__name__, tuple((Index(i), child) for i, child in enumerate(value)), cls)
    if cls is torch.Size:
        sizes = tuple((Index(i), size) for i, size in enumerate(value))
        return Opened("torch.Size", sizes, size_of)
    if cls is slice:
        ends = tuple((Attr(name), getattr(value, name)) for name in ("start", "stop", "step"))
        return Opened("slice", ends, lambda values: slice(*values))
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        fields = tuple((Attr(name), child) for name, child in zip(cls._fields, value, strict=True))
        return Opened(qualified_name(cls), fields, lambda values: cls(*values), NAMED_TUPLE)
    if cls in (dict, OrderedDict):
        keys = tuple(value)
        children = tuple((Key(key), child) for key, child in value.items())
        return Opened(cls.__name__, children, lambda values: cls(zip(keys, values, strict=True)))
    return None


def size_of(values: Sequence[Any]) -> Any:
    """A ``torch.Size``; a tuple of what stands for sizes."""
    is_size = all(isinstance(value, (int, torch.SymInt)) for value in values)
    return torch.Size(values) if is_size else tuple(values)


def _module(value: Any) -> Opened | None:
    if not isinstance(value, torch.nn.Module):
        return None
    return open_module(value, _holds_tensor, _worth_opening)


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
    return isinstance(value, OrderedDict) and any(
        c.__name__ == "ModelOutput" for c in type(value).__mro__
    )


def _model_output(value: Any) -> Opened | None:
    if not is_model_output(value):
        return None
    cls, keys = type(value), tuple(value)
    children = tuple((Attr(key), value[key]) for key in keys)
    return Opened(
        qualified_name(cls), children, lambda values: cls(**dict(zip(keys, values, strict=True)))
    )


def _dataclass(value: Any) -> Opened | None:
    cls = type(value)
    if not dataclasses.is_dataclass(cls):
        return None
    fields = [f.name for f in dataclasses.fields(cls) if hasattr(value, f.name)]
    others = {
        name: child for name, child in getattr(value, "__dict__", {}).items() if name not in fields
    }
    names = (*fields, *(name for name, child in others.items() if _holds_tensor(child)))
    children = tuple((Attr(name), getattr(value, name)) for name in names)
    hidden = {name: child for name, child in others.items() if name not in names}
    return Opened(
        qualified_name(cls),
        children,
        lambda values: _rebuilt(cls, {**dict(zip(names, values, strict=True)), **hidden}),
        constant_text(hidden) if hidden else "",
    )


def _rebuilt(cls: Any, attributes: dict[str, Any]) -> Any:
    try:
        obj: Any = object.__new__(cls)
    except TypeError:  # a class in C, such as types.SimpleNamespace, makes its objects itself
        obj = cls.__new__(cls)
    for name, child in attributes.items():
        object.__setattr__(obj, name, child)
    return obj


def _partial(value: Any) -> Opened | None:
    """A function with some of its arguments, which may be tensors."""
    if type(value) is not functools.partial or not _holds_tensor([value.args, value.keywords]):
        return None
    return Opened(
        "functools.partial",
        ((Attr("args"), value.args), (Attr("keywords"), value.keywords)),
        lambda values: functools.partial(value.func, *values[0], **values[1]),
        constant_text(value.func),
    )


def _derived_container(value: Any) -> Opened | None:
    """An object of a class that derives from dict, list or tuple: its items, and the attributes
    that it has beside.
    """
    cls = type(value)
    base = next((base for base in (dict, list, tuple) if isinstance(value, base)), None)
    if base is None or not _holds_tensor(value):
        return None
    held = attributes_of(value)
    names = tuple(name for name, child in held.items() if _worth_opening(child))
    hidden = {name: child for name, child in held.items() if name not in names}
    keys = tuple(dict.keys(value)) if base is dict else ()
    items = list(dict.values(value)) if base is dict else list(base.__iter__(value))
    entries: list[Entry] = [Key(key) for key in keys] or [Index(i) for i in range(len(items))]

    def build(values: list[Any]) -> Any:
        content, attributes = (
            values[: len(items)],
            dict(zip(names, values[len(items) :], strict=True)),
        )
        made: Any = base.__new__(cls, content) if base is tuple else base.__new__(cls)
        if base is dict:
            dict.update(made, zip(keys, content, strict=True))
        elif base is list:
            list.extend(made, content)
        for name, child in (hidden | attributes).items():
            object.__setattr__(made, name, child)
        return made

    children = (*zip(entries, items, strict=True), *((Attr(name), held[name]) for name in names))
    return Opened(qualified_name(cls), tuple(children), build, constant_text(hidden))


def _plain_object(value: Any) -> Opened | None:
    cls = type(value)
    package = cls.__module__.partition(".")[0]
    if package in ("builtins", "numpy") or (package == "torch" and not has_only_attributes(cls)):
        return None
    attributes = attributes_of(value)
    holds_tensors = any(_holds_tensor(child) for child in attributes.values())
    if not holds_tensors and not _waits_for_tensors(attributes):
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


#: each opens one kind of container; the first one that knows a value decides
_OPENERS = (
    _builtin,
    open_cache,
    _registered,
    _module,
    _model_output,
    _dataclass,
    _partial,
    _derived_container,
    _plain_object,
)


def _waits_for_tensors(attributes: Mapping[str, Any]) -> bool:
    """True for the attributes of an object that holds nothing yet, as a cache before the first call:
    None or empty containers, and numbers or texts beside them.
    """
    values = list(attributes.values())
    holds_nothing = any(value is None or _is_empty(value) for value in values)
    return holds_nothing and all(isinstance(value, ATOMS) or _is_empty(value) for value in values)


def _is_empty(value: Any) -> bool:
    """True for a list or a dict without items."""
    return type(value) in (list, dict) and not value


def _worth_opening(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, weakref.ref, *ATOMS)) or not is_leaf(value)


def _holds_tensor(value: Any) -> bool:
    """True for a tensor, and for what holds one somewhere."""
    seen: set[int] = set()
    waiting = [(value, 0)]
    while waiting and len(seen) < _MOST_LOOKED_AT:
        here, depth = waiting.pop()
        if isinstance(here, torch.Tensor):
            return True
        if is_leaf(here) or depth > _DEEPEST or id(here) in seen:
            continue
        seen.add(id(here))
        waiting += [(child, depth + 1) for child in _held_by(here)]
    return False


def _held_by(value: Any) -> Iterator[Any]:
    """Yields the values in an object: the items of a container, and its attributes."""
    if isinstance(value, dict):
        yield from dict.values(value)
    elif isinstance(value, (list, tuple)):
        yield from list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
    elif type(value) is functools.partial:
        yield from (value.args, value.keywords)
    yield from attributes_of(value).values()

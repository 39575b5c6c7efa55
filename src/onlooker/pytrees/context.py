"""The content of a cache beside its leaves: comparable, and written as JSON when a program is saved."""

from __future__ import annotations

import dataclasses
import enum
import importlib
from typing import Any

import torch

from ..core.errors import UnsupportedError

__all__ = ["CacheContext", "Mark", "Opaque", "dump_context", "load_context"]


class Mark(enum.Enum):
    """Stands for a value that a context does not hold."""

    LEAF = "leaf"  #: one of the children, in their order
    DERIVED = "derived"  #: read from the children again: a dtype, a device, a size
    WINDOW = "window"  #: the tensor that a sliding layer keeps of its window


@dataclasses.dataclass(frozen=True, slots=True)
class Opaque:
    """An object that JSON cannot hold, a configuration for instance: equal to any other of its
    class.
    """

    kind: str
    value: Any = dataclasses.field(compare=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class CacheContext:
    """The names of the leaves, and the attributes of the cache with a :class:`Mark` where a leaf
    was.

    ``state["layers"]`` holds one pair per layer, its class and its attributes.
    """

    names: tuple[str, ...]
    state: dict[str, Any]

    def __hash__(self) -> int:
        return hash(self.names)


def dump_context(context: list[str] | CacheContext) -> Any:
    """The context as values that JSON can hold.

    :raises UnsupportedError: ``context-not-saved`` when it holds an object that JSON cannot hold

    >>> dump_context(["key_0", "value_0"])
    ['key_0', 'value_0']
    """
    if isinstance(context, CacheContext):
        return {"names": list(context.names), "state": _encode(context.state)}
    return list(context)


def load_context(dumped: Any) -> list[str] | CacheContext:
    """The context that :func:`dump_context` wrote.

    >>> load_context(dump_context(CacheContext(("a",), {"x": Mark.LEAF, "n": {0: None}})))
    CacheContext(names=('a',), state={'x': <Mark.LEAF: 'leaf'>, 'n': {0: None}})
    """
    if isinstance(dumped, dict):
        return CacheContext(tuple(dumped["names"]), _decode(dumped["state"]))
    return list(dumped)


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mark):
        return {"mark": value.value}
    if isinstance(value, dict):
        return {"dict": [[_encode(key), _encode(child)] for key, child in value.items()]}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_encode(child) for child in value]}
    if isinstance(value, type):
        return {"class": f"{value.__module__}:{value.__qualname__}"}
    if isinstance(value, (torch.dtype, torch.device)):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    kind = value.kind if isinstance(value, Opaque) else type(value).__name__
    raise UnsupportedError(
        f"A cache holds a {kind}, which cannot be written into the file of a program.",
        slug="context-not-saved",
        hint="Keep the program in memory, or pass a cache without it.",
    )


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "mark":
        return Mark(content)
    if kind == "dict":
        return {_decode(key): _decode(child) for key, child in content}
    if kind == "class":
        module, _, path = content.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found
    if kind in ("dtype", "device"):
        return getattr(torch, content) if kind == "dtype" else torch.device(content)
    items = [_decode(child) for child in content]
    return tuple(items) if kind == "tuple" else items

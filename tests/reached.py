"""All that a model can reach in Python, as text: what the tests compare before and after an export."""

from __future__ import annotations

import collections
import functools
import random
import types
from typing import Any

import torch


def reached(model: Any) -> dict[str, str]:
    """Every value in reach of a model, by path: attributes, containers, closures and globals of its
    methods, attributes of its classes, and what functions with a memory remember.

    It is written apart from the walk of onlooker, so that neither hides what the other one misses.
    """
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any, int]] = [("model", model, 0)]
    seen: set[int] = set()
    kept: list[Any] = []
    while waiting:
        path, value, depth = waiting.pop()
        found[path] = _text(value)
        if id(value) in seen or depth > 12:
            continue
        seen.add(id(value))
        kept.append(value)
        waiting += [(f"{path}{name}", item, depth + 1) for name, item in _parts(value)]
    return found


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{id(value)} {value.tolist()}"
    if isinstance(value, (int, float, str, bool, bytes, type(None))):
        return repr(value)
    if isinstance(value, torch.Generator):
        return str(value.get_state().tolist())
    if isinstance(value, random.Random):
        return str(value.getstate())
    if isinstance(value, (set, frozenset)):
        return str(sorted(map(repr, value)))
    if hasattr(value, "cache_info") and not isinstance(value, type):
        return str(value.cache_info().currsize)
    return f"{type(value).__name__} {id(value)}"


def _parts(value: Any) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        parts += [(f"[{key!r}]", item) for key, item in value.items()]
        parts.append((".keys", repr(list(value))))
    if isinstance(value, (list, tuple, collections.deque)):
        parts += [(f"[{number}]", item) for number, item in enumerate(value)]
        parts.append((".length", len(value)))
    if isinstance(value, functools.partial):
        parts += [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        parts += [(".__func__", value.__func__), (".__self__", value.__self__)]
    if isinstance(value, types.FunctionType):
        if "torch" in value.__code__.co_filename or "site-packages" in value.__code__.co_filename:
            return parts
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        parts += [(f".<{name}>", cell.cell_contents) for name, cell in cells]
        parts.append((".__defaults__", value.__defaults__))
        names = [name for name in value.__code__.co_names if name in value.__globals__]
        parts += [(f".<global {name}>", value.__globals__[name]) for name in names]
    if isinstance(value, (types.ModuleType, torch.Tensor)):
        return parts
    if isinstance(value, type):
        if value.__module__.partition(".")[0] in ("torch", "builtins", "collections", "random", "typing"):
            return parts
        return parts + [(f".{name}", item) for name, item in vars(value).items() if not name.startswith("__")]
    slots = getattr(type(value), "__slots__", ())
    parts += [(f".{name}", getattr(value, name, None)) for name in slots if not name.startswith("__")]
    if hasattr(value, "__dict__"):
        parts += [(f".{name}", item) for name, item in vars(value).items()]
    parts.append((".__class__", type(value)))
    return parts

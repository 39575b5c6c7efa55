"""Places of modules in the program: ``pipe.unet``, found in the frames that lead to a call."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch

from ..observing.wrapped_model import model_inside

__all__ = ["caller_of", "place_of"]

_MOST_FRAMES, _MOST_OBJECTS, _DEEPEST = 40, 500, 3


def place_of(module: Any, frame: FrameType | None) -> str:
    """The path of a module from a name in the outermost frame that reaches it; empty where none
    does.

    Attributes are read from ``__dict__`` alone: no code of the program runs.
    """
    found = ""
    for here in _frames(frame):
        for name, value in _names(here):
            path = _path(value, module)
            if path is not None:
                found = ".".join((name, *path))
                break
    return found


def caller_of(module: Any, frame: FrameType | None) -> str:
    """``Class.method`` of the outermost module whose method, but for ``forward``, leads to the
    call; empty where there is none.

    Such a method is what the program calls, and the module is a part of it.
    """
    found = ""
    for here in _frames(frame):
        names = here.f_code.co_varnames
        owner = here.f_locals.get(names[0]) if here.f_code.co_argcount else None
        if not isinstance(owner, torch.nn.Module) or owner is module:
            continue
        method = here.f_code.co_name
        if model_inside(owner) is not module and hasattr(type(owner), method):
            found = f"{type(owner).__name__}.{method}"
    return found


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _names(frame: FrameType) -> Iterator[tuple[str, Any]]:
    for name, value in list(frame.f_locals.items()):
        if not name.startswith("__"):
            yield name, value


def _path(root: Any, module: Any) -> tuple[str, ...] | None:
    """The attributes that lead from an object to a module, nearest first."""
    level: list[tuple[tuple[str, ...], Any]] = [((), root)]
    known: set[int] = set()
    for _ in range(_DEEPEST + 1):
        following: list[tuple[tuple[str, ...], Any]] = []
        for path, value in level:
            if value is module:
                return path
            if id(value) in known or len(known) > _MOST_OBJECTS:
                continue
            known.add(id(value))
            following += [((*path, name), child) for name, child in _attributes(value)]
        level = following
    return None


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (type, torch.Tensor)) or type(value).__name__ == "module":
        return
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if isinstance(own, dict):
        modules = own.get("_modules")
        yield from (modules or {}).items() if isinstance(modules, dict) else ()
        yield from ((str(name), child) for name, child in list(own.items()) if _may_hold(child))


def _may_hold(value: Any) -> bool:
    return hasattr(type(value), "__dict__") and not isinstance(value, (str, int, float, list, dict))

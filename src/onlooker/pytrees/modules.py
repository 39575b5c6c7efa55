"""A ``torch.nn.Module`` that is an argument, opened: its tensors are leaves, like those of any
object.

``torch.export`` takes the tensors of a module for the state of the program. For a module that is an
argument, a cache that derives from ``torch.nn.Module`` for instance, that is wrong: they are other
tensors, of other sizes, in the next call. Closing builds a module of the same class without its
``__init__``; the flags and hooks are copied.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ..core.path import Attr
from .identity import constant_text
from .nodes import Opened, qualified_name

__all__ = ["open_module"]

_TABLES = ("_parameters", "_buffers", "_modules")
#: what every module has: flags and hooks
_COMMON = frozenset(vars(torch.nn.Module()))


def open_module(
    module: torch.nn.Module,
    holds_tensor: Callable[[Any], bool],
    worth_opening: Callable[[Any], bool],
) -> Opened | None:
    """Opens a module that holds tensors; None for one that holds none, and for what was
    scripted.
    """
    if isinstance(module, torch.jit.ScriptModule) or not _holds_tensor(module, holds_tensor):
        return None
    attributes = vars(module)
    tables = {table: dict(attributes[table]) for table in _TABLES}
    plain = {
        name: child
        for name, child in attributes.items()
        if name not in _COMMON and worth_opening(child)
    }
    shown = {
        **{name: child for name, child in tables["_parameters"].items() if child is not None},
        **{name: child for name, child in tables["_buffers"].items() if child is not None},
        **{
            name: child for name, child in tables["_modules"].items() if _opens(child, holds_tensor)
        },
        **plain,
    }
    hidden = {name: child for name, child in attributes.items() if name not in (*_TABLES, *plain)}
    cls, names = type(module), tuple(shown)

    def build(values: list[Any]) -> Any:
        given = dict(zip(names, values, strict=True))
        made = object.__new__(cls)
        made.__dict__.update({name: _kept(child) for name, child in hidden.items()})
        for table, held in tables.items():
            made.__dict__[table] = {name: given.pop(name, child) for name, child in held.items()}
        made.__dict__.update(given)
        return made

    compared = {
        name: child for name, child in hidden.items() if name == "training" or name not in _COMMON
    }
    children = tuple((Attr(name), child) for name, child in shown.items())
    return Opened(qualified_name(cls), children, build, constant_text(compared))


def _holds_tensor(module: torch.nn.Module, holds_tensor: Callable[[Any], bool]) -> bool:
    if any(_opens(child, holds_tensor) for child in module._modules.values()):
        return True
    tables = [*module._parameters.values(), *module._buffers.values()]
    if any(tensor is not None for tensor in tables):
        return True
    own = (child for name, child in vars(module).items() if name not in _COMMON)
    return any(map(holds_tensor, own))


def _opens(child: torch.nn.Module | None, holds_tensor: Callable[[Any], bool]) -> bool:
    return child is not None and _holds_tensor(child, holds_tensor)


def _kept(value: Any) -> Any:
    """A table of hooks or a list of flags as it is now: what is done to the new module stays
    there.
    """
    return copy.copy(value) if isinstance(value, (dict, list, set)) else value

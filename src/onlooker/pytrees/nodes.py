"""One container that was taken apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from ..core.path import Entry

__all__ = ["ATOMS", "SYMBOLIC", "Opened", "is_plain", "is_size", "qualified_name"]

#: the classes of the numbers that are met while torch traces a model
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
#: the classes of the leaves that are no tensors
ATOMS = (bool, int, float, str, type(None), *SYMBOLIC)


@dataclasses.dataclass(frozen=True, slots=True)
class Opened:
    """A container taken apart: its children, and what builds it again from them."""

    kind: str
    children: tuple[tuple[Entry, Any], ...]
    build: Callable[[list[Any]], Any]
    context: str = ""


def qualified_name(cls: type) -> str:
    """``module.Class`` as in an import."""
    return f"{cls.__module__}.{cls.__qualname__}"


def is_size(value: Any) -> TypeGuard[int | torch.SymInt]:
    """True for a whole number, and for a symbol that stands for one in a trace; a bool is none."""
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def is_plain(value: Any) -> bool:
    """True for a flag or a size: a number, a text, None, a dtype, a device, or containers of
    these.
    """
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, value.values()))
    return isinstance(value, (*ATOMS, torch.dtype, torch.device, torch.layout))

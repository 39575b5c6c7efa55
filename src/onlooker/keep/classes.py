"""Finds the class that a file names, without running what the file could choose.

A class is used when its module is imported already, or is one of :data:`LIBRARIES`; and only when
it is of the kind that its place wants. A file that could have any module imported could run any
code.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections import OrderedDict
from typing import Any

from ..pytrees.layers import is_cache_class, is_layer_class

__all__ = [
    "LIBRARIES",
    "find_cache",
    "find_class",
    "find_named_tuple",
    "find_output",
    "find_record",
]

#: modules that are imported when a result has one of their classes: they have no code of models
LIBRARIES = ("transformers.cache_utils", "transformers.modeling_outputs")


def find_class(kind: str) -> type | None:
    """The class of a qualified name, from a module that is there; None where there is none."""
    parts = kind.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        if name not in sys.modules and name in LIBRARIES:
            _import(name)
        module = sys.modules.get(name)
        if module is not None:
            return _inside(module, parts[cut:])
    return None


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception:  # not installed, or broken: a stand-in serves
        return


def _inside(found: Any, names: list[str]) -> type | None:
    """What the names lead to by plain attributes: no attribute is computed."""
    for name in names:
        found = getattr(found, "__dict__", {}).get(name)
    return found if isinstance(found, type) else None


def find_output(kind: str) -> Any:
    """A ``ModelOutput`` of transformers."""
    cls = find_class(kind)
    if cls is None or not issubclass(cls, OrderedDict):
        return None
    bases = {(base.__module__, base.__name__) for base in cls.__mro__}
    return cls if ("transformers.utils.generic", "ModelOutput") in bases else None


def find_cache(kind: str) -> Any:
    """A cache of transformers, or a layer of one."""
    cls = find_class(kind)
    return cls if cls is not None and (is_cache_class(cls) or is_layer_class(cls)) else None


def find_named_tuple(kind: str, names: tuple[str, ...]) -> Any:
    """A named tuple with these fields."""
    cls = find_class(kind)
    return (
        cls
        if cls is not None and issubclass(cls, tuple) and getattr(cls, "_fields", None) == names
        else None
    )


def find_record(kind: str, names: tuple[str, ...]) -> Any:
    """A dataclass that has these fields."""
    cls = find_class(kind)
    if cls is None or not dataclasses.is_dataclass(cls):
        return None
    return cls if set(names) <= {f.name for f in dataclasses.fields(cls)} else None

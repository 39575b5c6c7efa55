"""The differences between two objects: weights, attributes, methods of their own.

A copy of a model is the same program as the model where nothing that it holds differs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch

from ..identity import attributes_of, has_only_attributes, identity_of
from ..nodes import ATOMS
from ..numbers import is_same

__all__ = ["difference_of"]

_BUILTIN = (dict, list, tuple)
#: where a module keeps its weights and parts, which are its attributes to everybody else
_OF_MODULES = ("_parameters", "_buffers", "_modules")


def difference_of(left: Any, right: Any) -> str:
    """The first place where two objects differ, as Python; empty where they hold the same.

    No code of the objects runs. What cannot be compared counts as a difference.

    >>> import copy
    >>> model = torch.nn.Linear(2, 2)
    >>> difference_of(model, copy.deepcopy(model))
    ''
    >>> difference_of(model, copy.deepcopy(model).eval()), difference_of(model, torch.nn.Linear(2, 2))
    ('model.training', 'model.weight')
    """
    return _Comparison().difference(left, right, "model")


class _Comparison:
    """Two objects, side by side."""

    def __init__(self) -> None:
        self._met: dict[int, int] = {}

    def difference(self, left: Any, right: Any, place: str) -> str:
        """The first place below ``place`` where they differ."""
        if left is right:
            return ""
        if type(left) is not type(right):
            return place
        if isinstance(left, ATOMS):
            return "" if repr(left) == repr(right) else place
        if id(left) in self._met:  # a loop, or a weight that two modules share
            return "" if self._met[id(left)] == id(right) else place
        self._met[id(left)] = id(right)
        if isinstance(left, torch.Tensor):
            return "" if is_same(left.detach(), right.detach()) else place
        if not _has_children(left):
            return "" if identity_of(left) == identity_of(right) else place
        return self._of_children(left, right, place)

    def _of_children(self, left: Any, right: Any, place: str) -> str:
        ours, theirs = dict(_children(left)), dict(_children(right))
        for name, child in ours.items():
            if name not in theirs:
                return f"{place}{name}"
            found = self.difference(child, theirs[name], f"{place}{name}")
            if found:
                return found
        return next((f"{place}{name}" for name in theirs if name not in ours), "")


def _has_children(value: Any) -> bool:
    """True for containers and for objects that have nothing but attributes."""
    if isinstance(value, (*_BUILTIN, MethodType, functools.partial)):
        return True
    cls = type(value)
    is_python = cls.__module__.partition(".")[0] not in ("builtins", "numpy")
    return is_python and has_only_attributes(cls) and bool(attributes_of(value))


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the children of an object, each with the step to it; the keys of a dict are told by
    their text.
    """
    if isinstance(value, MethodType):
        yield from ((".__func__", value.__func__), (".__self__", value.__self__))
        return
    if isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, dict):
        yield from ((f"[{identity_of(key)}]", child) for key, child in dict.items(value))
    elif isinstance(value, list):
        yield from ((f"[{i}]", child) for i, child in enumerate(list.__iter__(value)))
    elif isinstance(value, tuple):
        yield from ((f"[{i}]", child) for i, child in enumerate(tuple.__iter__(value)))
    for name, child in attributes_of(value).items():
        if isinstance(value, torch.nn.Module) and name in _OF_MODULES:
            yield from ((f".{part}", held) for part, held in child.items())
        else:
            yield f".{name}", child

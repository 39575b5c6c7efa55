"""``torch_deepcopy``: a copy that shares no tensor with what it was made from."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict, UserDict, defaultdict
from typing import Any

import torch

from .descriptions.tensors import is_array
from .identity import attributes_of
from .layers import is_cache, is_layer
from .nodes import ATOMS

__all__ = ["torch_deepcopy"]

_SHARED = (*ATOMS, bytes, complex, type, torch.dtype, torch.device, torch.layout, torch.Size)


def torch_deepcopy(value: Any) -> Any:
    """A deep copy of ``value``: tensors are detached and cloned, containers are made again.

    Lists, tuples, named tuples, dicts, sets, arrays, dataclasses, the outputs of transformers and
    their caches, filled or not, are copied. Any other object is left to :func:`copy.deepcopy`, and
    kept itself when this raises. A tensor that stands at two places stands at two places of the
    copy.

    :param value: anything
    :return: the copy, of the same classes; its tensors keep dtype, device and strides, and need no
        gradient

    >>> x = torch.zeros(2)
    >>> a, b = torch_deepcopy((x, {"again": x}))
    >>> a is b["again"], a is x
    (True, False)
    """
    return _copy(value, {})


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, _SHARED):
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    memo.setdefault(id(memo), []).append(value)  # an id is only good while the object lives
    made = _made_again(value, memo)
    return memo.setdefault(id(value), made)


def _made_again(value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor(value, memo)
    if is_array(value):
        return value.copy()
    if is_cache(value) or is_layer(value) or isinstance(value, UserDict):
        return _object(value, memo)
    if isinstance(value, dict):
        return _dict(value, memo)
    if type(value) is list:
        made: list[Any] = []
        memo[id(value)] = made
        made.extend(_copy(child, memo) for child in value)
        return made
    if isinstance(value, tuple):
        return _tuple(value, memo)
    if type(value) in (set, frozenset):
        return type(value)(_copy(child, memo) for child in value)
    if dataclasses.is_dataclass(value):
        return _object(value, memo)
    return _other(value, memo)


def _tensor(value: torch.Tensor, memo: dict[int, Any]) -> Any:
    try:
        return value.detach().clone()
    except Exception:  # some subclass cannot
        return _other(value, memo)


def _other(value: Any, memo: dict[int, Any]) -> Any:
    trial = dict(memo)
    try:
        made = copy.deepcopy(value, trial)
    except Exception:  # a stream, a lock, a tensor with a gradient inside an unknown class ...
        return value
    memo.update(trial)
    return made


def _tuple(value: Any, memo: dict[int, Any]) -> Any:
    children = [_copy(child, memo) for child in value]
    cls = type(value)
    if cls is tuple:
        return tuple(children)
    if hasattr(cls, "_make"):
        return cls._make(children)
    try:
        return cls(children)
    except Exception:
        return _other(value, memo)


def _dict(value: Any, memo: dict[int, Any]) -> Any:
    """A dict, or an object of a class derived from it: its items, then its attributes."""
    cls: Any = type(value)
    made = cls.__new__(cls)
    memo[id(value)] = made
    if isinstance(value, defaultdict):
        made.default_factory = value.default_factory
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    for key, child in base.items(value):
        base.__setitem__(
            made, _copy(key, memo), _copy(child, memo)
        )  # not what the class makes of it
    if hasattr(value, "__dict__"):
        vars(made).update({name: _copy(child, memo) for name, child in vars(value).items()})
    return made


def _object(value: Any, memo: dict[int, Any]) -> Any:
    made = object.__new__(type(value))
    memo[id(value)] = made
    for name, child in attributes_of(value).items():
        object.__setattr__(made, name, _copy(child, memo))
    return made

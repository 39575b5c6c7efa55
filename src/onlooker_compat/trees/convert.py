"""``to_any``: inputs of another dtype or on another device."""

from __future__ import annotations

from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.pytrees.open import is_leaf, take_apart

__all__ = ["to_any"]


def to_any(value: Any, to_value: torch.dtype | torch.device | str) -> Any:
    """``value`` with its tensors converted.

    Ids, masks and other tensors that hold no floats keep their dtype when ``to_value`` is a dtype
    of floats. Containers and caches are made anew; a ``torch.nn.Module`` is converted in place, as
    torch does it.

    :param value: a tensor, a module, or any nesting that holds some
    :param to_value: a dtype, a device, or the name of one: ``"float16"``, ``"cuda:0"``
    :raises UsageError: ``unknown-dtype-or-device``

    >>> to_any({"x": torch.zeros(2), "ids": {1}, "mask": torch.ones(2, dtype=torch.int64)}, "float16")
    {'x': tensor([0., 0.], dtype=torch.float16), 'ids': {1}, 'mask': tensor([1, 1])}
    """
    return _converted(value, _target(to_value), {})


def _target(to_value: Any) -> torch.dtype | torch.device:
    if isinstance(to_value, (torch.dtype, torch.device)):
        return to_value
    dtype = getattr(torch, str(to_value).removeprefix("torch."), None)
    if isinstance(dtype, torch.dtype):
        return dtype
    try:
        return torch.device(to_value)
    except (RuntimeError, TypeError) as error:
        raise UsageError(
            f"{to_value!r} is neither a dtype nor a device.",
            slug="unknown-dtype-or-device",
            hint="Give for example torch.float16, 'float16' or 'cuda:0'.",
        ) from error


def _converted(value: Any, target: torch.dtype | torch.device, memo: dict[int, Any]) -> Any:
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = value  # what holds itself is kept where it does
    memo[id(value)] = made = _made_again(value, target, memo)
    return made


def _made_again(value: Any, target: torch.dtype | torch.device, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        floats = isinstance(target, torch.dtype) and target.is_floating_point
        return value.to(target) if value.is_floating_point() or not floats else value
    if isinstance(value, torch.nn.Module):
        return value.to(target)
    if isinstance(value, (set, frozenset)):
        return type(value)(_converted(child, target, memo) for child in value)
    opened = None if is_leaf(value) else take_apart(value)
    if opened is None:
        return value
    return opened.build([_converted(child, target, memo) for _, child in opened.children])

"""Runs in which floats have no values, and ints have theirs.

A large model computes with floats. What it decides by values are mostly ids, masks and positions:
``if mask.all(): mask = None``, or a table that has no row of such a number. These are little work, and
so a run without floats costs a small part of one with values, and decides and refuses as that one does.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch

from ..proofs.operators import facts_of, flat
from ..torch_internals.fake_tensors import (
    FakeTensorMode,
    is_fake,
    unset_fake_temporarily,
)
from ..torch_internals.trees import tree_map_only
from .recorder import OperatorMode
from .remembering_mode import RememberingMode

__all__ = ["WithoutFloats", "without_float_values", "without_its_floats", "without_values"]

#: constants of up to so many floats have their values: a mask of 300 tokens
_SMALL = 1 << 17


class WithoutFloats(OperatorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block, in which tensors have no values, those of ints are computed.

    >>> mode = RememberingMode()
    >>> with mode, WithoutFloats():
    ...     ids, table = torch.arange(4), mode.from_tensor(torch.zeros(3, 8))
    ...     bool((ids < 4).all()), tuple(table[ids[:3]].shape)
    (True, (3, 8))

    :raises IndexError: where ids are no rows of a table, as with values
    :raises NotImplementedError: where floats decide about ints
    """

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator with values where all of its arguments have some."""
        facts = facts_of(func)
        leaves = flat((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not facts.draws and all(map(_has_values, tensors)):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if facts.asserts:
            raise NotImplementedError(f"{func} asserts what is unknown")
        written = [leaf for leaf in facts.at(facts.written, args, kwargs) if torch.is_tensor(leaf)]
        if not all(map(is_fake, written)):
            raise NotImplementedError(f"{func} writes what is unknown to a known tensor")
        if facts.refuses_values and any(map(_has_values, tensors)):
            with unset_fake_temporarily():
                given = tree_map_only(torch.Tensor, _stand_in, (args, kwargs))
                func(*given[0], **given[1])
        return func(*args, **kwargs)


def _has_values(tensor: torch.Tensor) -> bool:
    if is_fake(tensor) or isinstance(tensor, torch.nn.Parameter):
        return False
    return not tensor.is_floating_point() or tensor.numel() <= _SMALL


def _stand_in(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, of one number, in the place of what has no values."""
    if _has_values(tensor):
        return tensor
    return torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


@contextlib.contextmanager
def without_values(mode: FakeTensorMode | None = None) -> Iterator[FakeTensorMode]:
    """Inside the block operators give tensors without values; the mode makes such tensors.

    torch logs no traceback for an operator that refuses its shapes: here that is an answer.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(_nothing)
    try:
        with mode or RememberingMode() as entered:
            yield entered
    finally:
        log.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


@contextlib.contextmanager
def without_float_values(mode: FakeTensorMode | None = None) -> Iterator[FakeTensorMode]:
    """Inside the block the operators of torch give floats without values; the mode makes such
    tensors.
    """
    with without_values(mode) as entered, WithoutFloats():
        yield entered


def without_its_floats(mode: FakeTensorMode, value: Any) -> Any:
    """A tensor of floats without its values, a copy of any other; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return mode.from_tensor(value) if value.is_floating_point() else value.detach().clone()

"""A number of values that is a multiple of a size: torch takes the equation at the greatest sizes.

Why: ``torch._check(x[mask].numel() == features.numel())`` says that ``u0`` is ``64 * s0``. From the
greatest number that torch gives ``u0``, 2**63 - 2, follows the greatest ``s0``, and torch divides the
two as floats: the bound comes out too large, and torch ends the trace because ``64 * s0`` could be
greater than ``u0``. With the bound that a division of ints gives, the equation is taken.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py,
``ShapeEnv._set_replacement``. It may go when that divides exactly; ``upstream/torch_greatest_size.py``
says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ...patches.swap import swapped
from ...torch_internals.sizes import ShapeEnv, ValueRanges
from ..repair import Repair

__all__ = ["GREATEST_SIZES", "greatest_sizes_fit"]


@contextlib.contextmanager
def greatest_sizes_fit() -> Iterator[None]:
    """Inside the block torch takes a number that is read from values for a multiple of a size."""
    replace = ShapeEnv._set_replacement

    def replaced(env: ShapeEnv, symbol: Any, equal: Any, message: str) -> None:
        try:
            replace(env, symbol, equal, message)
        except AssertionError:
            if not _has_less_room(env, symbol, equal):
                raise
            replace(env, symbol, equal, message)

    with swapped(ShapeEnv, "_set_replacement", replaced):
        yield


def _has_less_room(env: ShapeEnv, symbol: Any, equal: Any) -> bool:
    """Makes the size in ``equal`` as small as the greatest ``symbol`` wants, by a division of ints;
    False where no bound is too large.
    """
    if len(equal.free_symbols) != 1:
        return False
    (size,) = equal.free_symbols
    known, greatest = env.var_to_range[size], env.var_to_range[symbol].upper
    reached = equal.xreplace({size: known.upper})
    if not (reached.is_Integer and greatest.is_Integer and reached > greatest):
        return False
    fits = int(known.upper) * int(greatest) // int(reached)
    env.var_to_range[size] = ValueRanges(known.lower, fits)
    return bool(env.bound_sympy(equal).upper <= greatest)


GREATEST_SIZES = Repair(
    "greatest sizes",
    "``x[mask].numel() == features.numel()`` says that a number of values is a multiple of a"
    " size. torch takes the equation at the greatest sizes, divides them as floats, and ends"
    " the trace because the bound comes out too large.",
    until="upstream/torch_greatest_size.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py",
    refusal="not a subset of src_bound",
    block=lambda _: greatest_sizes_fit(),
)

"""All repairs, in the order in which they are asked after an attempt to trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from .caught_calls import CAUGHT_CALLS
from .constant_tensors import CONSTANT_TENSORS
from .encoder_padding import ENCODER_PADDING
from .guard_count import UNGUARDED
from .idle_autocast import IDLE_AUTOCAST
from .inner_gradients import INNER_GRADIENTS
from .loops.hit_rows import HIT_ROWS
from .loops.recurrent_steps import RECURRENT_STEPS
from .loops.rolled_loops import ROLLED_LOOPS
from .loops.whole_rows import WHOLE_ROWS
from .memory_copies import MEMORY_COPIES
from .neutral_branches import NEUTRAL_BRANCHES
from .not_tracing import EQUAL_SIZES, NOT_TRACING
from .numbers.by_values import ANY_LENGTH, BY_VALUES
from .numbers.float_tensors import FLOAT_TENSORS
from .numbers.greatest_sizes import GREATEST_SIZES
from .numbers.implied_bounds import BOUNDS_BELOW_TWO, IMPLIED_BOUNDS
from .numbers.number_texts import NUMBER_TEXTS
from .numbers.plain_bools import PLAIN_BOOLS
from .numbers.quick_quotients import QUICK_QUOTIENTS
from .numbers.remembered import REMEMBERED
from .numbers.repeated_lists import REPEATED_LISTS
from .numbers.size_functions import SIZE_FUNCTIONS, SIZE_KEYS, SIZE_MATH
from .numbers.size_ints import SIZE_INTS
from .numbers.size_tensors import BUFFER_NUMBERS, FLOATS_DECIDE, SIZE_TENSORS
from .numbers.sized_operators import SIZED_OPERATORS
from .quick_nodes import QUICK_NODES
from .repair import Attempt, Repair, Retry, Setup, TraceRequest
from .repeated_operators import REPEATED_OPERATORS
from .unchanged_modules import UNCHANGED_MODULES
from .unsolved_equations import UNSOLVED_EQUATIONS
from .untraced_tensors import UNTRACED_TENSORS
from .value_branches import VALUE_BRANCHES
from .watched_sizes import WATCHED_SIZES

__all__ = ["REPAIRS", "anew", "next_attempt", "repaired"]

REPAIRS: tuple[Repair, ...] = (
    # parts of every trace; some are given up after an attempt
    SIZE_FUNCTIONS,
    SIZE_MATH,
    SIZE_TENSORS,
    SIZED_OPERATORS,
    REMEMBERED,
    REPEATED_LISTS,
    UNTRACED_TENSORS,
    CONSTANT_TENSORS,
    NUMBER_TEXTS,
    WHOLE_ROWS,
    ROLLED_LOOPS,
    HIT_ROWS,
    FLOAT_TENSORS,
    RECURRENT_STEPS,
    ENCODER_PADDING,
    IDLE_AUTOCAST,
    CAUGHT_CALLS,
    REPEATED_OPERATORS,
    QUICK_NODES,
    QUICK_QUOTIENTS,
    IMPLIED_BOUNDS,
    BOUNDS_BELOW_TWO,
    # after a refusal: what is known by torch's words first, then what is tried
    UNGUARDED,
    INNER_GRADIENTS,
    UNCHANGED_MODULES,
    SIZE_KEYS,
    PLAIN_BOOLS,
    BUFFER_NUMBERS,
    FLOATS_DECIDE,
    EQUAL_SIZES,
    VALUE_BRANCHES,
    BY_VALUES,
    SIZE_INTS,
    GREATEST_SIZES,
    UNSOLVED_EQUATIONS,
    NOT_TRACING,
    # after a program that holds for fewer calls than another one would; memory copies are on until then
    ANY_LENGTH,
    MEMORY_COPIES,
    # on until an attempt fails that nothing else explains
    NEUTRAL_BRANCHES,
    # never after an attempt: where the model reads what calls change
    WATCHED_SIZES,
)


def next_attempt(attempt: Attempt) -> Retry | None:
    """Returns the way to trace after an attempt; None where no repair helps, or none is needed.

    First all repairs are asked whether they are the reason of a failure, then each whether it helps.
    """
    failed = [repair.failed for repair in REPAIRS if repair.failed is not None]
    for retry_after in (*failed, *(repair.after for repair in REPAIRS)):
        retry = retry_after(attempt)
        if retry is not None:
            return retry
    return None


def anew(request: TraceRequest) -> TraceRequest:
    """The request for another trace of the same model, which begins where one ended.

    Whether values decide is found out again, unless sizes are values themselves; and so it is whether
    rows that are taken apart are whole, and whether loops stay as they are, or have a last step by itself, that do
    so at some sizes alone.
    """
    request = replace(request.at_other_sizes(), off=request.off - {WHOLE_ROWS})
    if request.sizes_are_values:
        return request
    return replace(request.dropping(BY_VALUES), value_error=None)


@contextlib.contextmanager
def repaired(setup: Setup) -> Iterator[Mapping[Repair, Any]]:
    """Inside the block torch traces with the repairs of a request. Yields what each block gives."""
    given: dict[Repair, Any] = {}
    with contextlib.ExitStack() as stack:
        for repair in REPAIRS:
            if repair.block is not None and repair.is_part_of(setup.request):
                given[repair] = stack.enter_context(repair.block(setup))
        yield given

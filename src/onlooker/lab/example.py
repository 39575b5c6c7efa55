"""A call of general sizes that the model itself accepts, with its result."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from ..core.call import Values
from ..core.errors import ExportError
from ..core.plan import symbol_names
from ..core.sizes.expression import Sizes
from ..core.structure import Result
from ..infer.sizes import (
    even_sizes,
    example_sizes,
    is_general,
    listed,
    nearly_alike_sizes,
)
from ..materialise.arguments import Calls, leaf_values
from ..materialise.other_values import redrawn
from ..materialise.room import with_room
from .lab import Lab, SpentError
from .small_sizes import representative

__all__ = ["Example", "find_example", "sizes_of_trace"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """Sizes that the model accepts, the values of all leaves, and the result, whose tensors may be
    without values where shapes were asked for alone.
    """

    sizes: Sizes
    values: Values
    outputs: Result


def _is_large(calls: Calls, lab: Lab) -> bool:
    """True where a call of the plan is a lot of work."""
    return any(lab.work_of(leaf_values(sample)) > lab.most_work for sample in calls.own)


def sizes_of_trace(calls: Calls, lab: Lab) -> Iterator[Sizes]:
    """General sizes that a trace may have, first those that are as even as what was seen: the graph shall
    be that of the watched calls.
    """
    watched = [calls.sizes_of(sample) for sample in calls.own]
    usual = chain(even_sizes(calls.plan, watched), example_sizes(calls.plan))
    roomy = (with_room(calls, sizes) for sizes in example_sizes(calls.plan))
    nearly_alike = nearly_alike_sizes(calls.plan, watched, roomy)
    return chain(representative(calls, lab, usual, of_trace=True), nearly_alike)


def _no_larger(calls: Calls, choices: Iterable[Sizes]) -> Iterator[Sizes]:
    """The choices; the sizes of the smallest call of general sizes stand before a larger choice."""
    watched = map(calls.sizes_of, calls.own)
    general = [sizes for sizes in watched if is_general(calls.plan, sizes)]
    least = min(general, key=lambda sizes: math.prod(sizes.values()), default=None)
    for choice in choices:
        if least is not None and math.prod(least.values()) < math.prod(choice.values()):
            yield least
        yield choice


def _values_at(calls: Calls, sizes: Sizes, refusals: Sequence[Exception]) -> Iterator[Values]:
    """Values at some sizes, until one is taken: grown from those of calls, repeated, and drawn anew where the last
    refusal is of a matrix, since rows that repeat have no inverse.
    """
    grown = calls.values(sizes)
    yield grown
    yield calls.values(sizes, varied=False)
    no_inverse = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # it has no type
    if refusals and isinstance(refusals[-1], no_inverse):
        drawn = redrawn(calls, grown, beyond=True, seed=0)
        if drawn is not None:
            yield drawn


def find_example(
    calls: Calls,
    lab: Lab,
    *,
    choices: Iterable[Sizes] | None = None,
    necessary: bool = True,
    shapes_only: bool = False,
) -> Example:
    """The first general sizes that the model itself accepts in eager mode.

    ``choices`` are tried instead of the usual ones. An export cannot do without an example for its trace, so
    its runs are ``necessary``; for an experiment they are not. With ``shapes_only`` nobody asks for the
    values of the result.

    :raises ExportError: ``no-lawful-sizes`` when it refuses all that were tried
    :raises SpentError: for an experiment, when the budget has ended
    """
    plan = calls.plan
    refusals: list[Exception] = []
    if choices is None and necessary:
        choices = sizes_of_trace(calls, lab)
        if _is_large(calls, lab):
            choices = _no_larger(calls, choices)
    elif choices is None:
        choices = representative(calls, lab, example_sizes(plan))
    for sizes in choices:
        why = f"an example at {listed(sizes)}"
        for values in _values_at(calls, sizes, refusals):
            try:
                arguments = calls.arguments_of(values)
                if shapes_only:
                    result = lab.run_for_shapes(arguments, why=why, necessary=necessary)
                else:
                    result = lab.run(arguments, why=why, memo=True, necessary=necessary)
            except SpentError:
                raise
            except Exception as error:
                refusals[:] = [error]  # one of them, since each holds the tensors of its run
                logger.debug("sizes %s are refused by the model: %s", sizes, error)
            else:
                return Example(sizes, values, result)
    refusal = next(iter(refusals), None)
    names = ", ".join(symbol_names(plan)) or "this call"
    raise ExportError(
        f"The model refuses every choice of general sizes for {names}; "
        f"the last refusal was {type(refusal).__name__}: {refusal}.",
        slug="no-lawful-sizes",
        hint="Watch calls of other sizes, so that relations between axes show.",
    ) from refusal

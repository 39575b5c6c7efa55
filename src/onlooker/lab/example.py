"""A call of general sizes that the model itself accepts, with its result."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan
from ..core.structure import Tree
from ..infer.sizes import Sizes, even_sizes, example_sizes, is_general
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observing.store import Sample
from .lab import Lab, SpentError
from .small_sizes import representative
from .work import work_of

__all__ = ["Example", "find_example"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """Sizes that the model accepts, the values of all leaves, and the result."""

    sizes: Sizes
    values: Mapping[Path, Any]
    outputs: Tree[Any]


def _sizes_of_calls(plan: Plan, samples: Sequence[Sample]) -> list[Sizes]:
    """The sizes of the kept calls that a plan was made of."""
    own = (sample for sample in samples if sample.call.index in plan.calls)
    return [sizes_of(plan, leaf_values(sample)) for sample in own]


def _is_large(plan: Plan, samples: Sequence[Sample], lab: Lab) -> bool:
    """True where a call of the plan is a lot of work."""
    own = (sample for sample in samples if sample.call.index in plan.calls)
    return any(work_of(lab.model, leaf_values(sample)) > lab.most_work for sample in own)


def _no_larger(plan: Plan, calls: Sequence[Sizes], choices: Iterable[Sizes]) -> Iterator[Sizes]:
    """The choices; the sizes of the smallest call of general sizes stand before a larger choice."""
    general = [sizes for sizes in calls if is_general(plan, sizes)]
    least = min(general, key=lambda sizes: math.prod(sizes.values()), default=None)
    for choice in choices:
        if least is not None and math.prod(least.values()) < math.prod(choice.values()):
            yield least
        yield choice


def find_example(
    plan: Plan,
    samples: Sequence[Sample],
    lab: Lab,
    *,
    fixed: Mapping[str, int] | None = None,
    choices: Iterable[Sizes] | None = None,
    necessary: bool = True,
) -> Example:
    """The first general sizes that the model itself accepts in eager mode.

    ``choices`` are tried instead of the usual ones; ``fixed`` sizes are kept whatever is chosen. An
    export cannot do without an example, so its runs are ``necessary``; for an experiment they are
    not.

    :raises ExportError: ``no-lawful-sizes`` when it refuses all that were tried
    :raises SpentError: for an experiment, when the budget has ended
    """
    refusal: Exception | None = None
    if choices is None:
        calls: list[Sizes] = []
        usual = example_sizes(plan)
        if necessary:  # the graph shall be that of the watched calls
            calls = _sizes_of_calls(plan, samples)
            usual = chain(even_sizes(plan, calls), usual)
        choices = representative(plan, samples, lab, usual)
        if necessary and _is_large(plan, samples, lab):
            choices = _no_larger(plan, calls, choices)
    for choice in choices:
        sizes = {**choice, **(fixed or {})}
        why = "an example at " + ", ".join(f"{name} = {size}" for name, size in sizes.items())
        for varied in (True, False):
            values = materialise(plan, sizes, samples, varied=varied)
            try:
                result = lab.run(
                    close_arguments(plan, values), why=why, memo=True, necessary=necessary
                )
            except SpentError:
                raise
            except Exception as error:
                refusal = error
                logger.debug("sizes %s are refused by the model: %s", sizes, error)
            else:
                return Example(sizes, values, result)
    names = ", ".join(s.name for s in plan.symbols) or "this call"
    raise ExportError(
        f"The model refuses every choice of general sizes for {names}; "
        f"the last refusal was {type(refusal).__name__}: {refusal}.",
        slug="no-lawful-sizes",
        hint="Watch calls of other sizes, so that relations between axes show.",
    ) from refusal

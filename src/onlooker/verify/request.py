"""The request for a verification, checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.contents import ProgramContents
from ..core.errors import ArgumentKindError, UsageError
from ..core.plan import Plan
from ..core.support.kinds import check_kind, is_int, is_number
from ..trace.graph import Graph
from .trials import symbol_sizes

__all__ = ["ATOL", "SizesOption", "VerifyRequest", "check_request", "is_reduced", "request_of"]

#: the difference of results that is allowed, times (1 + the largest value)
ATOL = 1e-5

#: what a caller may give: sizes by name, of which every combination is tried, or the combinations
#: themselves; numbers alone where there is one symbol
SizesOption = Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int] | int]

_WANTED = (
    "sizes by name, {'batch': [3, 500]}, or a list of sizes, each a number per symbol:"
    " [{'batch': 5}]"
)


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The request of a caller for a verification, after it was checked.

    ``sizes`` are the choices of sizes that were asked for, ``agreement`` is the least share of scores
    that have to agree, None where none are measured. ``options`` say how the target runs the graphs.
    """

    atol: float
    sizes: tuple[Mapping[str, int], ...] = ()
    seed: int = 0
    trials: int | None = None
    seconds: float | None = None
    agreement: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = ""
    metric: Callable[[Callable[..., Any]], float] | None = None
    at_least: float | None = None

    @property
    def repeats(self) -> bool:
        """True where the smallest trial is made once more: it is one of the ``trials``."""
        return self.trials != 1

    @property
    def most(self) -> int | None:
        """The most trials beside the one that is repeated."""
        return None if self.trials is None else self.trials - self.repeats


def request_of(
    contents: ProgramContents[Graph],
    *,
    atol: float | None = None,
    sizes: SizesOption = (),
    seed: int = 0,
    trials: int | None = None,
    seconds: float | None = None,
    agreement: float | None = None,
    options: Mapping[str, Any] | None = None,
    metric: Any = None,
    at_least: float | None = None,
) -> VerifyRequest:
    """What is asked of the verification of a program, after it was checked.

    A program of another precision than its model is judged by its distances where no ``atol`` is given.
    With ``atol`` it is compared number by number, and all its tokens have to agree, unless
    ``agreement`` says less.

    :raises UsageError: ``bad-tolerance``, ``no-such-symbol``, ``bad-trials``, ``bad-metric``
    :raises ArgumentKindError: ``wrong-kind``
    """
    precisions = [graph.options["precision"] for graph in contents.graphs if is_reduced(graph)]
    precision = precisions[0] if precisions and atol is None else ""
    given = check_request(
        contents.plans, ATOL if atol is None else atol, sizes, seed, trials, seconds
    )
    if agreement is not None and not (is_number(agreement) and 0 <= agreement <= 1):
        raise UsageError(
            f"agreement is {agreement!r}.",
            slug="bad-tolerance",
            hint="Give the least share of tokens that have to agree, from 0 to 1.",
        )
    if agreement is None and precisions:
        agreement = 0.0 if precision else 1.0
    _check_metric(metric, at_least)
    return VerifyRequest(
        math.inf if precision else ATOL if atol is None else atol,
        tuple(given),
        seed,
        trials,
        seconds,
        agreement,
        options or {},
        precision,
        metric,
        at_least,
    )


def is_reduced(graph: Graph) -> bool:
    """True for a graph of another precision than its model."""
    return "precision" in graph.options


def _check_metric(metric: Any, at_least: Any) -> None:
    is_bound = at_least is None or is_number(at_least)
    if (metric is None or callable(metric)) and is_bound and (metric or at_least is None):
        return
    raise UsageError(
        f"metric is {metric!r} and at_least is {at_least!r}.",
        slug="bad-metric",
        hint=(
            "Give metric=, a function of what is called as the model that returns a number, the"
            " higher the better, and at_least=, the least that it may be of the program."
        ),
    )


def check_request(
    plans: Sequence[Plan],
    atol: float,
    sizes: SizesOption,
    seed: int,
    trials: int | None,
    seconds: float | None,
) -> list[dict[str, int]]:
    """The choices of sizes that were asked for, by symbol or axis, when everything that was asked
    for can be meant.

    :raises UsageError: ``bad-tolerance``, ``no-such-symbol``, ``bad-trials``
    :raises ArgumentKindError: ``wrong-kind``
    """
    if not (is_number(atol) and 0 <= atol < float("inf")):
        raise UsageError(
            f"atol is {atol!r}.",
            slug="bad-tolerance",
            hint="Give a number, 0 or more: the largest difference allowed.",
        )
    if not (is_int(seed)):
        raise UsageError(
            f"seed is {seed!r}.", slug="bad-trials", hint="Give a whole number; 0 is the usual one."
        )
    if not (trials is None or (is_int(trials) and trials >= 1)):
        raise UsageError(
            f"trials is {trials!r}.",
            slug="bad-trials",
            hint="Give the most trials, 1 or more, or None for the usual ones.",
        )
    if not (seconds is None or (is_number(seconds) and seconds > 0)):
        raise UsageError(
            f"seconds is {seconds!r}.",
            slug="bad-trials",
            hint="Give the time after which no further trial is begun, more than 0, or None.",
        )
    check_kind(sizes, (Mapping, list, tuple), "sizes", _WANTED)
    choices = _grid(sizes) if isinstance(sizes, Mapping) else [_named(plans, s) for s in sizes]
    for choice in choices:
        check_kind(choice, Mapping, "One of the sizes", _WANTED)
        for name, size in choice.items():
            _check_name(plans, name)
            _check_size(name, size)
    return [dict(choice) for choice in choices]


def _named(plans: Sequence[Plan], size: Any) -> Any:
    """A number alone as the size of the one symbol that there is.

    :raises UsageError: ``no-such-symbol`` where there are several, or none
    """
    if not is_int(size):
        return size
    names = list(dict.fromkeys(symbol.name for plan in plans for symbol in plan.symbols))
    if len(names) == 1:
        return {names[0]: size}
    if not names:
        raise UsageError(
            f"sizes has the number {size}, and no size changes.",
            slug="no-such-symbol",
            hint="Leave it out, or watch calls of other sizes and export again.",
        )
    raise UsageError(
        f"sizes has the number {size}, which may be of {' or '.join(names)}.",
        slug="no-such-symbol",
        hint=f"Name it, as in sizes=[{{{names[-1]!r}: {size}}}].",
    )


def _grid(sizes: Mapping[str, Any]) -> list[dict[str, int]]:
    """Every combination of the sizes that stand for each name; a number alone is one size."""
    columns = []
    for name, listed in sizes.items():
        check_kind(
            listed, (int, list, tuple), f"What sizes gives for {name}", "sizes as a list: [3, 500]"
        )
        columns.append([listed] if isinstance(listed, int) else listed)
    return (
        [dict(zip(sizes, row, strict=True)) for row in itertools.product(*columns)] if sizes else []
    )


def _check_size(name: str, size: object) -> None:
    check_kind(size, int, f"The size of {name}", "a number")
    if isinstance(size, bool):
        raise ArgumentKindError(
            f"The size of {name} is {size}.", slug="wrong-kind", hint="Give a number."
        )


def _check_name(plans: Sequence[Plan], name: object) -> None:
    """Passes for the name of a symbol, and for an axis whose size is a symbol, of some plan."""
    if any(symbol_sizes(plan, {str(name): 1}) is not None for plan in plans):
        return
    axes = {str(axis): e for plan in plans for leaf in plan.inputs for axis, e in leaf.axes}
    if name in axes:
        symbols = axes[str(name)].symbols
        hint = f"Name {', '.join(symbols)} instead." if symbols else "It never changes."
        raise UsageError(
            f"sizes names {name!r}, whose size is {axes[str(name)]}.",
            slug="no-such-symbol",
            hint=hint,
        )
    known = {symbol.name for plan in plans for symbol in plan.symbols}
    raise UsageError(
        f"sizes names {name!r}, and no graph has such a symbol.",
        slug="no-such-symbol",
        hint=f"There are {', '.join(sorted(known)) or 'none'}.",
    )

"""At which sizes of each symbol an export does what the model does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..core.plan import Plan, Symbol
from ..core.sizes.expression import Sizes
from ..core.support.enums import StrEnum
from ..core.verdict import Check, Focus, Outcome, Tally
from ..infer.sizes import is_possible, size_label
from ..materialise.arguments import Calls
from ..verify.trials import Trial

__all__ = ["MOST_NUMBER", "PLACES", "Cell", "Held", "held_sizes"]

#: where each symbol is tried, beside a call that the export serves
PLACES = ("0", "1", "min", "max", "unseen")

#: the last place of a size is one less: clamping places to a number shows at the number and 2
_AROUND = (-1, 0, 1, 2)
#: a size of a greater number is not tried, and no more sizes than these around numbers
MOST_NUMBER, _MOST_NEAR = 4096, 48
#: the tally of one trial, and the labels of those that the model refuses
Try = Callable[[Trial], tuple[Tally, tuple[str, ...]]]


class Held(StrEnum):
    """The outcomes of a call of one size."""

    HOLDS = "holds"
    WRONG = "wrong"
    REFUSED = "refused"
    NOT_ASKED = "not asked"  #: the export refuses it, and no call may have it
    UNLAWFUL = "-"  #: the model itself refuses it, or no tensor can have it
    UNKNOWN = "?"  #: no call was found that the export serves


@dataclass(frozen=True, slots=True)
class Cell:
    """One symbol at one place: the sizes that were tried, what became of each, and the first check
    that failed.
    """

    symbol: str
    place: str
    sizes: tuple[int, ...]
    held: Held
    check: Check | None = None
    base: tuple[tuple[str, int], ...] = ()

    @property
    def is_failure(self) -> bool:
        """True where the export does not do what the model does."""
        return self.held in (Held.WRONG, Held.REFUSED)

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.sizes))
        return f"{sizes}: {self.held}" if sizes else str(self.held)


def held_sizes(
    calls: Calls,
    base: Sizes | None,
    attempt: Try,
    numbers: Sequence[int],
) -> Iterator[Cell]:
    """A cell for each symbol and place, in their order.

    One symbol is changed at a time, the others are as in ``base``: the sizes of a call that the
    export serves, or None where there is none. Unseen sizes are also those around the ``numbers`` that
    the export compares sizes with.
    """
    for symbol in calls.plan.symbols:
        for place in PLACES:
            sizes = _sizes(symbol, place)
            if base is None:
                yield Cell(symbol.name, place, (), Held.UNKNOWN)
                continue
            if place == "unseen":
                near = _near(calls.plan, symbol, base, numbers)
                sizes = [*dict.fromkeys((*sizes, *near))]
            found = [_tried(calls, symbol, size, base, attempt) for size in sizes]
            worst = [held for held, _ in found]
            order = (Held.WRONG, Held.REFUSED, Held.HOLDS, Held.NOT_ASKED)
            held = next((one for one in order if one in worst), Held.UNLAWFUL)
            check = next((check for one, check in found if one is held), None)
            yield Cell(symbol.name, place, tuple(sizes), held, check, tuple(base.items()))


def _sizes(symbol: Symbol, place: str) -> list[int]:
    """The sizes of one place: what was seen, or others of the step that were not."""
    seen = sorted(symbol.observed)
    if place in ("0", "1"):
        return [int(place)]
    if place in ("min", "max"):
        return ([seen[0]] if place == "min" else [seen[-1]]) if seen else []
    least, most = (seen[0], seen[-1]) if seen else (symbol.low, symbol.low)
    step = symbol.step
    between = [size for size in range(least, most) if size not in seen and size % step == 0]
    beyond = [(most // step + 1) * step, (2 * most // step + 3) * step]
    return [size for size in (*between[:1], *beyond) if symbol.allows(size) and size > 1]


def _near(plan: Plan, symbol: Symbol, base: Sizes, numbers: Sequence[int]) -> list[int]:
    """The sizes of a symbol at which an axis has about one of the numbers."""
    axes = {expression for leaf in plan.inputs for _, expression in leaf.axes}
    own = [one for one in axes if symbol.name in one.symbols]
    found = {
        one.solved(symbol.name, number + offset, base)
        for number in numbers
        if number <= MOST_NUMBER
        for one in own
        for offset in _AROUND
    }
    taken = {size for size in found if size is not None and size > 1 and symbol.takes(size)}
    return sorted(taken - {*symbol.observed})[:_MOST_NEAR]


def _tried(
    calls: Calls,
    symbol: Symbol,
    size: int,
    base: Sizes,
    attempt: Try,
) -> tuple[Held, Check | None]:
    plan, sizes = calls.plan, {**base, symbol.name: size}
    if not is_possible(plan, sizes):
        return Held.UNLAWFUL, None
    is_asked = symbol.takes(size)
    trial = Trial(
        "unseen",
        size_label(sizes),
        calls.arguments(sizes),
        tuple(sizes.items()),
        plan,
        is_promised=is_asked,
        focus=Focus.GIVEN,
    )
    tally, unlawful = attempt(trial)
    if unlawful:
        return Held.UNLAWFUL, None
    failed = [check for check in tally.checks if not check.passed]
    if not failed:
        return (Held.HOLDS if tally.checks else Held.NOT_ASKED), None
    held = Held.REFUSED if failed[0].outcome is Outcome.REJECTED else Held.WRONG
    return held, replace(failed[0], sizes=tuple(sizes.items()))

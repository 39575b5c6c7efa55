"""Ranges that the user asks for, beside the sizes that the model itself takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..core.errors import UsageError
from ..core.sizes.expression import Sizes
from ..hypotheses.overrides import Overrides
from ..proofs.linear import Linear
from ..proofs.path_condition import Atom
from .one_plan.regions import ProvenRegion
from .one_plan.search import PlanSearch

__all__ = ["check_asked_ranges"]


def check_asked_ranges(overrides: Overrides, searches: Iterable[PlanSearch]) -> None:
    """Passes when no range has sizes that the model itself refuses.

    :raises UsageError: ``range-beyond-bound``
    """
    for search in searches:
        for name, (low, high) in overrides.ranges.items():
            if high is None or all(symbol.name != name for symbol in search.plan.symbols):
                continue
            for bound, size in _refused(search, name, low or 0):
                if size > high:
                    continue
                where = f" The line of the model is {bound.line}." if bound.line else ""
                raise UsageError(
                    f"ranges= asks for {name} up to {high}, and the model takes no more than"
                    f" {size - search.plan.symbol(name).step}: {bound.reason}.",
                    slug="range-beyond-bound",
                    hint=f"Ask for the sizes that the model takes, or for less.{where}",
                )


def _refused(search: PlanSearch, name: str, low: int) -> Iterator[tuple[Atom, int]]:
    """Each bound with the least size of a symbol, of at least ``low``, that the model refuses."""
    for proven in search.graphs:
        for region in proven.regions:
            for bound in region.bounds:
                sizes = _beyond(search, region, {**proven.fixed, **region.fixed}, bound, name, low)
                if sizes is not None and not search.holds(sizes):
                    yield bound, sizes[name]


def _beyond(
    search: PlanSearch, region: ProvenRegion, fixed: Sizes, bound: Atom, name: str, low: int
) -> Sizes | None:
    """The first sizes beyond a bound on the path of a region, where all other sizes are as small as
    that path allows; None where there are none.
    """
    linear = Linear.of(bound.condition)
    if linear is None or name in fixed:
        return None
    step = search.plan.symbol(name).step
    for least in (0, 1, 2):
        others = {symbol.name: max(symbol.low, least) for symbol in search.plan.symbols}
        others |= fixed
        greatest = linear.greatest(name, others)
        if greatest is None:
            return None
        first = max(greatest - greatest % step + step, low)
        sizes = {**others, name: first}
        if all(atom.constraint().holds(sizes) for atom in region.atoms.values()):
            return sizes
    return None

"""Terms of sizes with the tests that conditions make of them, and the sizes that are served of a term.

The tests of a term divide its sizes into cells, in each of which all tests have one answer. Of the tests
``n >= 4`` and ``n % 2 == 0`` with n from 1 on:

    cell                n          where
    (False, False)      1, 3       below the bound, odd
    (False, True)       2
    (True, True)        4, 6       from the bound on, even
    (True, False)       5, 7

They are found at the sizes near to the bounds of the tests, at so many on both sides of each as all moduli
together want, here two: no other size can have other answers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..core.plan import Range
from ..core.sizes.formula import holds
from .size_sums import Limits

__all__ = ["Cell", "SizeSet", "Term", "Test"]

#: intervals that are told of one term, and the longest term that is told
_MOST_INTERVALS, _LONGEST_TERM = 4, 40

#: the answers of all tests of a term
Cell = tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class SizeSet:
    """The sizes of one term, as intervals whose ends are served; None where there is no end. Of a
    ``step`` above 1 only its multiples are served.

    >>> SizeSet("n", ((1, 24),)).words, SizeSet("n", ((2, None),), step=16).words
    ('n 1 to 24', 'n 2 and more, in steps of 16')
    >>> SizeSet("n", ((1, 2), (4, None))).words, SizeSet("n + k", ((None, 64),)).words
    ('n 1 to 2 or 4 and more', 'n + k up to 64')
    """

    term: str
    intervals: tuple[Range, ...]
    step: int = 1
    is_condition: bool = False

    @property
    def words(self) -> str:
        """The term with its sizes; a condition, which is 1 where it holds, as it is."""
        if self.is_condition:
            return self.term if self.holds(1) else f"not {self.term}"
        shown = [_interval(low, high) for low, high in self.intervals[:_MOST_INTERVALS]]
        more = len(self.intervals) - _MOST_INTERVALS
        shown += [f"{more} further intervals"] if more > 0 else []
        step = f", in steps of {self.step}" if self.step > 1 else ""
        return f"{self.term} {' or '.join(shown) or 'of no size'}{step}"

    @property
    def is_readable(self) -> bool:
        """True for a term that a reader takes in: a symbol, or a short sum of some."""
        return len(self.term) <= _LONGEST_TERM

    @property
    def is_of_numbers(self) -> bool:
        """True where single sizes are served, and no interval."""
        return all(low == high is not None for low, high in self.intervals)

    def holds(self, size: int) -> bool:
        """True for a size that is served."""
        return size % self.step == 0 and any(
            (low is None or low <= size) and (high is None or size <= high)
            for low, high in self.intervals
        )


def _interval(low: int | None, high: int | None) -> str:
    if low is None:
        return "any" if high is None else f"up to {high}"
    if high is None:
        return f"{low} and more"
    return str(low) if low == high else f"{low} to {high}"


@dataclass(frozen=True, slots=True)
class Test:
    """A condition on the value of one term, called ``value``. Its answer changes at the ``bounds``
    alone, or, where there is a ``modulus``, with the remainder.
    """

    term: str
    formula: str
    bounds: tuple[int, ...] = ()
    modulus: int = 1

    def holds(self, value: int) -> bool:
        """True for a value of the term for which the condition holds."""
        return holds(self.formula, {"value": value})


@dataclass(slots=True)
class Term:
    """A sum of symbols with all its tests, and the limits that the plan gives it; ``grid`` is what
    the moduli of all its tests divide.
    """

    text: str
    limits: Limits
    step: int = 1
    is_condition: bool = False
    grid: int = 1
    tests: dict[Test, None] = field(default_factory=dict)
    cells: dict[Cell, list[int]] = field(default_factory=dict)

    def divide(self) -> None:
        """Finds the cells: sizes by the answers of all tests, which no other sizes have."""
        for size in self._sizes(self._period):
            if size % self.step == 0:
                answers = tuple(test.holds(size) for test in self.tests)
                self.cells.setdefault(answers, []).append(size)

    def limits_by(self, tests: Sequence[Test]) -> Limits | None:
        """Returns the limits of the sizes for which tests without a modulus hold; None where they hold
        for none.
        """
        sizes = replace(self, tests=dict.fromkeys(tests))._sizes(1)
        held = [size for size in sizes if all(test.holds(size) for test in tests)]
        if not held:
            return None
        is_open = self.limits[1] == math.inf and held[-1] == sizes[-1]
        return held[0], math.inf if is_open else held[-1]

    @property
    def _period(self) -> int:
        """So many sizes in a row, between two bounds, show all answers."""
        return math.lcm(self.step, *(test.modulus for test in self.tests))

    def _sizes(self, period: int) -> list[int]:
        """Sizes that show every cell: one period before and behind each size at which a test changes."""
        low, high = self.limits
        ends = {int(end) for end in self.limits if math.isfinite(end)}
        bounds = {bound for test in self.tests for bound in test.bounds}
        reach = range(-period - 1, period + 2)
        found = {place + offset for place in (ends | bounds or {0}) for offset in reach}
        return [size for size in sorted(found) if low <= size <= high]

    def set_of(self, cells: frozenset[Cell]) -> SizeSet | None:
        """The sizes of some cells as intervals; None where these are none of one step."""
        taken = {size for cell in cells for size in self.cells[cell]}
        sizes = sorted(size for found in self.cells.values() for size in found)
        for step in dict.fromkeys((self.step, math.gcd(self._period, *taken))):
            on_grid = [size for size in sizes if step and size % step == 0]
            if taken <= set(on_grid) and self._is_even(on_grid, taken):
                intervals = tuple(self._intervals(on_grid, taken))
                found = SizeSet(self.text, intervals, step, self.is_condition)
                return replace(found, step=1) if found.is_of_numbers else found
        return None

    def _is_even(self, on_grid: Sequence[int], taken: Collection[int]) -> bool:
        """True where no modulus tells sizes of the grid apart: between two bounds either all of them
        are taken, or none.
        """
        plain = [test for test in self.tests if test.modulus == 1]
        found: dict[Cell, bool] = {}
        for size in on_grid:
            answers = tuple(test.holds(size) for test in plain)
            if found.setdefault(answers, size in taken) != (size in taken):
                return False
        return True

    def _intervals(self, on_grid: Sequence[int], taken: Collection[int]) -> Iterator[Range]:
        low, high = self.limits
        for is_taken, run in itertools.groupby(on_grid, lambda size: size in taken):
            if is_taken:
                members = list(run)
                is_first = low == -math.inf and members[0] == on_grid[0]
                is_last = high == math.inf and members[-1] == on_grid[-1]
                yield None if is_first else members[0], None if is_last else members[-1]

"""How far the numbers of a program are from those of its model, for one output over many calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Distance", "OutputDistance"]


@dataclass(frozen=True, slots=True)
class Distance:
    """Sums over pairs of numbers: what the model gives, and the error of the program. Distances add
    up, over calls of any sizes.

    ``largest`` is the largest error, ``errors`` the sum of all without their signs. ``total``,
    ``squares`` and ``products`` are sums over the numbers of the model, their squares, and their
    products with those of the program, ``given`` of the squares of the program. ``agreeing`` of
    ``rows`` rows have their largest number at the same place.

    The model gives -1, 1, -1, 1 (a spread of 1), the program is off by 0.1 once:

    >>> one = Distance(4, 0.1, 0.1, 0.0, 4.0, 4.1, 4.21)
    >>> one.spread, one.mean_error, one.largest_error
    (1.0, 0.025, 0.1)
    >>> (one + one).mean_error, (one + one).count
    (0.025, 8)
    """

    count: int = 0
    largest: float = 0.0
    errors: float = 0.0
    total: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    given: float = 0.0
    agreeing: int = 0
    rows: int = 0

    def __add__(self, other: Distance) -> Distance:
        return Distance(
            self.count + other.count,
            max(self.largest, other.largest),
            self.errors + other.errors,
            self.total + other.total,
            self.squares + other.squares,
            self.products + other.products,
            self.given + other.given,
            self.agreeing + other.agreeing,
            self.rows + other.rows,
        )

    @property
    def spread(self) -> float:
        """The standard deviation of the numbers of the model; of a constant its size."""
        if not self.count:
            return 0.0
        mean = self.total / self.count
        size = self.squares / self.count
        variance = size - mean * mean
        # a constant: what is left of the difference is rounding
        return math.sqrt(variance if variance > 1e-9 * size else size)

    @property
    def mean_error(self) -> float:
        """The mean error, relative to the spread."""
        return self._relative(self.errors / self.count) if self.count else 0.0

    @property
    def largest_error(self) -> float:
        """The largest error, relative to the spread."""
        return self._relative(self.largest)

    @property
    def cosine(self) -> float:
        """The cosine of the angle between the numbers of the model and those of the program."""
        if not self.squares and not self.given:
            return 1.0
        lengths = math.sqrt(self.squares * self.given)
        return min(self.products / lengths, 1.0) if lengths else 0.0

    @property
    def share(self) -> float:
        """The share of the rows, of which there are some, whose largest number stands at the same place."""
        return self.agreeing / self.rows

    def _relative(self, error: float) -> float:
        if not error:
            return 0.0
        return error / self.spread if self.spread else math.inf


@dataclass(frozen=True, slots=True)
class OutputDistance:
    """The distance of one output of a program of another precision than its model, over all trials
    of a kind: ``held-out`` for watched calls that nothing was calibrated on, ``unseen``,
    ``calibration``.

    ``rounding`` is the distance of the model itself where its products round as the precision does:
    what a right conversion comes to. None where the model could not be run so. A row is a row of the
    last axis.
    """

    output: str
    kind: str
    program: Distance
    rounding: Distance | None = None

    def __add__(self, other: OutputDistance) -> OutputDistance:
        has_both = self.rounding is not None and other.rounding is not None
        return OutputDistance(
            self.output,
            self.kind,
            self.program + other.program,
            self.rounding + other.rounding if has_both else None,  # type: ignore[operator]
        )

    def __str__(self) -> str:
        parts = [
            f"mean error {self.program.mean_error:.2g} of the spread",
            f"largest {self.program.largest_error:.2g}",
            f"cosine {self.program.cosine:.6g}",
        ]
        if self.program.rows:
            parts.append(f"best of {self.program.agreeing} of {self.program.rows} rows the same")
        told = f"{self.output}, {self.kind}: {', '.join(parts)}"
        if self.rounding is None:
            return told
        return f"{told} (rounding alone: mean {self.rounding.mean_error:.2g})"

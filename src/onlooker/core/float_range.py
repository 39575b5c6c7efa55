"""The floats that a graph takes for an argument by which its model decides: those on the side of the trace."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FloatRange"]


@dataclass(frozen=True, slots=True)
class FloatRange:
    """The floats between two numbers, or beyond one of them. ``has_low`` and ``has_high`` say whether these two
    belong to it.

    >>> above = FloatRange(low=1.0)
    >>> above.holds(1.0), above.holds(1.5), above.holds(float("nan"))
    (False, True, False)
    >>> print(above.within(FloatRange(high=2.5, has_high=True)))
    above 1.0 and at most 2.5
    """

    low: float | None = None
    high: float | None = None
    has_low: bool = False
    has_high: bool = False

    def holds(self, value: float) -> bool:
        """True for a float in the range; NaN is in none."""
        is_above = self.low is None or value > self.low or (self.has_low and value == self.low)
        is_below = self.high is None or value < self.high or (self.has_high and value == self.high)
        return is_above and is_below and value == value

    def within(self, other: FloatRange) -> FloatRange:
        """The floats that are in both ranges."""
        low, has_low = max(self._lows(other), default=(None, True))
        high, has_high = min(self._highs(other), default=(None, False))
        return FloatRange(low, high, has_low=low is not None and not has_low, has_high=has_high)

    def _lows(self, other: FloatRange) -> list[tuple[float, bool]]:
        """Returns the lower ends, each with True where it is left out: the stricter ones are greater."""
        return [(one.low, not one.has_low) for one in (self, other) if one.low is not None]

    def _highs(self, other: FloatRange) -> list[tuple[float, bool]]:
        """Returns the upper ends, each with True where it belongs: the stricter ones are smaller."""
        return [(one.high, one.has_high) for one in (self, other) if one.high is not None]

    def __str__(self) -> str:
        if self.low is not None and self.low == self.high:
            return str(self.low)
        low = "" if self.low is None else f"{'from' if self.has_low else 'above'} {self.low}"
        high = "" if self.high is None else f"{'at most' if self.has_high else 'below'} {self.high}"
        return " and ".join(part for part in (low, high) if part) or "any float"

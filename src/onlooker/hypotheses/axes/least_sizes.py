"""The least size that a model takes of axes that may change."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.spec import Axis
from ...infer.samples import Row
from .classes import sides
from .trials import AxisTrials

__all__ = ["LeastSizes", "record_size"]


class LeastSizes:
    """Finds the least sizes; ``lows`` has them by axis, where they are more than 1.

    Each run has one row of the ``batch``, unless the model refuses that.
    """

    def __init__(self, trials: AxisTrials) -> None:
        self._trials = trials
        self.batch: tuple[Axis, ...] = ()
        self.lows: dict[Axis, int] = {}

    def find(self, axes: Sequence[Axis], step: int, rows: list[Row]) -> None:
        """Finds the least size, of each side where the sides of a tensor may differ; ``rows`` get the
        changes of one side alone.

        :raises SpentError: when the budget has ended
        """
        of_sides = self._rows_of_sides(axes, step)
        rows += of_sides
        least = 1
        for part in sides(axes) if of_sides else [tuple(axes)]:
            sizes = {self._trials.size(axis) for axis in part}
            size = self._trials.size(part[0])
            if len(sizes) == 1 and size > step:
                least = self._bisect(part, step, size // step, least)

    def _rows_of_sides(self, axes: Sequence[Axis], step: int) -> list[Row]:
        """The rows of the sides of one tensor, where each changes without the others: they had the same
        size by chance.
        """
        rows = []
        for side in sides(axes):
            row = self._trials.probe(side, self._trials.grown(side, step))
            if row is None:
                return []
            rows.append(row)
        return rows

    def _bisect(self, axes: Sequence[Axis], step: int, taken: int, guess: int) -> int:
        """Halves what is between a size that is too small and one that is taken, in steps; before that it
        tries whether the ``guess``, which another side has, is the least size here too. A model that
        refuses one row at the size that is taken too is run with the rows of the call.
        """
        refused = 0
        takes_one_row = not self.batch
        while taken - refused > 1:
            middle = next(
                (count for count in (guess, guess - 1) if refused < count < taken),
                (taken + refused) // 2,
            )
            if self._takes(axes, middle * step):
                taken, takes_one_row = middle, True
            elif takes_one_row or self._takes(axes, taken * step):
                refused, takes_one_row = middle, True
            else:
                self.batch, takes_one_row = (), True
        self.lows.update(dict.fromkeys(axes, taken * step))
        if refused:
            detail = f"{refused * step} is refused and {taken * step} accepted"
            record_size(self._trials, axes, taken * step, "this is the least size", detail)
        return taken

    def _takes(self, axes: Sequence[Axis], size: int) -> bool:
        sizes = dict.fromkeys(axes, size) | dict.fromkeys(self.batch, 1)
        return self._trials.probe(list(sizes), list(sizes.values())) is not None


def record_size(
    trials: AxisTrials, axes: Sequence[Axis], size: int, claim: str, detail: str
) -> None:
    """Writes down what several experiments say together."""
    sizes = [size] * len(axes)
    trials.lab.record_claim(claim, True, axes=axes, sizes=sizes, detail=detail)

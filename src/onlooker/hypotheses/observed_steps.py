"""The sizes that were observed may all be multiples of 16 by chance: a size between them is
tried.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core.plan import Plan
from ..infer.samples import Row, row_of_values
from ..infer.sizes import sizes_off_step
from ..materialise.arguments import Calls
from .draft import Draft
from .family import Family

__all__ = ["ObservedSteps"]


class ObservedSteps(Family):
    """A symbol whose observed sizes have a common divisor may have other sizes too."""

    question = "which steps of sizes are a coincidence?"
    all_tested = "every step of a size was tested"
    most_runs = 32

    def drafts(self) -> Iterator[Draft]:
        """The draft with a row for each symbol that takes a size off its step."""
        draft = self._draft
        names = [symbol.name for symbol in draft.plan().symbols] if self._samples else []
        for name in names:
            while (row := self._row_off_step(draft.plan(), name)) is not None:
                draft = draft.with_probes(row)
                yield draft

    def _row_off_step(self, plan: Plan, name: str) -> Row | None:
        """The row of the first size off the step of a symbol that the model takes; None where its
        step is 1, or the model has it.
        """
        calls = Calls(plan, self._samples)
        symbols = [symbol for symbol in plan.symbols if symbol.name == name and symbol.step > 1]
        # of a size that others follow from, one further size may be read as another relation
        below = not _is_followed(plan, name)
        for size in (size for symbol in symbols for size in sizes_off_step(symbol, below=below)):
            why = f"{name} = {size}, off its step of {symbols[0].step}"
            label = f"{name} probed at {size}"
            values = self._taken(calls, {name: size}, why, label)
            if values is not None:
                return row_of_values(label, values)
        return None


def _is_followed(plan: Plan, name: str) -> bool:
    """True for a symbol from which the size of an axis is computed."""
    expressions = (expression for leaf in plan.inputs for expression in leaf.sizes)
    return any(name in one.symbols and not one.is_symbol for one in expressions)

"""The sizes that were observed may all be multiples of 16 by chance: a size between them is
tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ..core.experiment import BlindKind, BlindSpot, Finding, FindingKind
from ..core.plan import Plan, Symbol
from ..infer.samples import Row, row_of_values
from ..infer.sizes import sizes_off_step
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observing.store import Sample
from .draft import Draft

__all__ = ["ObservedSteps"]


class ObservedSteps:
    """A symbol whose observed sizes have a common divisor may have other sizes too."""

    question: ClassVar[str] = "which steps of sizes are a coincidence?"
    most_runs: ClassVar[int] = 32

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        self._draft, self._lab = draft, lab
        self._samples = draft.own(samples)

    def drafts(self) -> Iterator[Draft]:
        """The draft with a row for each symbol that takes a size off its step."""
        draft = self._draft
        names = [symbol.name for symbol in draft.plan().symbols] if self._samples else []
        for name in names:
            while (row := self._row_off_step(draft.plan(), name)) is not None:
                draft = draft.with_probes(row)
                yield draft

    def _row_off_step(self, plan: Plan, name: str) -> Row | None:
        """A row with a size off the step of a symbol; None where its step is 1, or the model has
        it.
        """
        symbol = next((s for s in plan.symbols if s.name == name and s.step > 1), None)
        return None if symbol is None else self._accepted_row(plan, symbol)

    def untested(self, spent: SpentError) -> BlindSpot:
        """The steps of all symbols."""
        return BlindSpot(
            BlindKind.BUDGET, detail="every step of a size was tested", limit=spent.limit
        )

    def _accepted_row(self, plan: Plan, symbol: Symbol) -> Row | None:
        """The row of the first size off the step that the model takes."""
        observed = sizes_of(plan, leaf_values(self._samples[-1]))
        axes = plan.axes_of(symbol.name)[:1]
        for size in sizes_off_step(symbol):
            values = materialise(plan, {**observed, symbol.name: size}, self._samples)
            why = f"{symbol.name} = {size}, off its step of {symbol.step}"
            is_accepted = (
                self._lab.try_run(close_arguments(plan, values), why=why, memo=True) is not None
            )
            label = f"{symbol.name} probed at {size}" if is_accepted else ""
            kind = FindingKind.ACCEPTED if is_accepted else FindingKind.REFUSED
            self._lab.record(axes, [size] * len(axes), finding=Finding(kind), label=label)
            if is_accepted:
                return row_of_values(label, values)
        return None

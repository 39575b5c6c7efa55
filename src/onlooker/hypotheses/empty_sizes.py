"""No call was empty, yet the model may take an empty batch, a text without words, a list of nothing.

A model that refuses a size of 0 keeps its least size of 1. Where the model takes 0, the trace and the
trials of its operators say whether the graph is right there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from ..core.experiment import BlindKind, BlindSpot, Finding, FindingKind
from ..core.plan import Plan, Symbol
from ..infer.sizes import Sizes, is_possible
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observing.store import Sample
from .draft import Draft

__all__ = ["EmptySizes"]


class EmptySizes:
    """Sizes of tensors that were at least 1 in all calls may be 0, each alone and all together."""

    question: ClassVar[str] = "which sizes may be 0?"
    most_runs: ClassVar[int] = 16

    def __init__(self, draft: Draft, samples: Sequence[Sample], lab: Lab) -> None:
        self._draft, self._lab = draft, lab
        self._samples = draft.own(samples)

    def drafts(self) -> Iterator[Draft]:
        """The draft with the axes at which the model takes 0."""
        plan = self._draft.plan()
        if not self._samples:
            return
        observed = sizes_of(plan, leaf_values(self._samples[-1]))
        empty = [symbol for symbol in self._open(plan) if self._takes(plan, observed, [symbol])]
        if len(empty) > 1 and not self._takes(plan, observed, empty):
            empty = empty[:1]  # the batch, where there is one: it stands first
        axes = [axis for symbol in empty for axis in plan.axes_of(symbol.name)]
        if axes:
            yield replace(self._draft, empty=self._draft.empty | frozenset(axes))

    def untested(self, spent: SpentError) -> BlindSpot:
        """The least sizes of all symbols."""
        return BlindSpot(BlindKind.BUDGET, detail="every size was tested at 0", limit=spent.limit)

    def _open(self, plan: Plan) -> list[Symbol]:
        """The symbols that are sizes of tensors alone, and that nothing limits to 1 and more."""
        overrides = self._draft.overrides
        numbers = {name for leaf in plan.inputs if leaf.value for name in leaf.value.symbols}
        return [
            symbol
            for symbol in plan.symbols
            if symbol.low == 1
            and symbol.name not in numbers
            and symbol.name not in overrides.ranges
            and not overrides.is_observed(symbol.name)
        ]

    def _takes(self, plan: Plan, observed: Sizes, symbols: Sequence[Symbol]) -> bool:
        """True where the model takes a call with some sizes at 0, the others as in a call."""
        sizes = {**observed, **{symbol.name: 0 for symbol in symbols}}
        if not is_possible(plan, sizes):
            return False
        arguments = close_arguments(plan, materialise(plan, sizes, self._samples))
        names = ", ".join(symbol.name for symbol in symbols)
        result = self._lab.try_run(arguments, why=f"{names} = 0", memo=True)
        kind = FindingKind.REFUSED if result is None else FindingKind.ACCEPTED
        axes = [axis for symbol in symbols for axis in plan.axes_of(symbol.name)[:1]]
        self._lab.record(axes, [0] * len(axes), finding=Finding(kind))
        return result is not None

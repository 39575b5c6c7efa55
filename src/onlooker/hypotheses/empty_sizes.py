"""No call was empty, yet the model may take an empty batch, a text without words, a list of nothing,
and a step, an offset or another int of 0.

A model that refuses a size of 0 keeps its least size of 1. Where the model takes 0, the trace and the
trials of its operators say whether the graph is right there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..core.plan import Plan
from ..materialise.arguments import Calls
from .draft import Draft
from .family import Family

__all__ = ["EmptySizes"]


class EmptySizes(Family):
    """Sizes of tensors and ints that were at least 1 in all calls may be 0, each alone and all
    together.
    """

    question = "which sizes and ints may be 0?"
    all_tested = "every size was tested at 0"
    most_runs = 16

    def drafts(self) -> Iterator[Draft]:
        """The draft with the axes at which the model takes 0."""
        plan = self._draft.plan()
        calls = Calls(plan, self._samples)
        names = self._open(plan, calls) if self._samples else []
        empty = [name for name in names if self._takes_empty(calls, [name])]
        if len(empty) > 1 and not self._takes_empty(calls, empty):
            empty = empty[:1]  # the batch, where there is one: it stands first
        axes = [axis for name in empty for axis in plan.axes_of(name)]
        if axes:
            yield replace(self._draft, empty=self._draft.empty | frozenset(axes))

    def _open(self, plan: Plan, calls: Calls) -> list[str]:
        """The symbols that are sizes of tensors alone, or ints alone, and that nothing limits to 1 and
        more. The number of packed rows is no such symbol: without rows their items would be left over, and
        kernels of torch end the process for such a call.
        """
        overrides = self._draft.overrides
        numbers = {name for leaf in plan.inputs if leaf.value for name in leaf.value.symbols}
        sizes = {name for leaf in plan.inputs for size in leaf.shape for name in size.symbols}
        bounds = [leaf for leaf in plan.inputs if calls.domains.of(leaf.path).last_is is not None]
        closed = {*(numbers & sizes), *overrides.ranges}
        closed.update(name for leaf in bounds for name in leaf.shape[-1].symbols)
        return [
            symbol.name
            for symbol in plan.symbols
            if symbol.low == 1
            and symbol.name not in closed
            and not overrides.is_observed(symbol.name)
        ]

    def _takes_empty(self, calls: Calls, names: list[str]) -> bool:
        """True where the model takes a call with some sizes at 0, the others as in the last call."""
        why = f"{', '.join(names)} = 0"
        return self._taken(calls, dict.fromkeys(names, 0), why) is not None

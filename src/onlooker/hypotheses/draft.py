"""A draft: calls that one graph can serve, and all that is known of them. The plan is built from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..core.experiment import BlindSpot, Experiment
from ..core.path import Path
from ..core.plan import Fill, Note, Plan, Range, Symbol
from ..core.spec import Axis, AxisSizes
from ..infer.build import build_plan
from ..infer.mine import Exclusions
from ..infer.samples import Demands, Row, Table, axes_of, table_of_forms
from ..infer.unify import Union
from ..observing.store import Sample
from .overrides import PINNED, Overrides

__all__ = ["Draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Calls that one graph can serve, and what experiments said about them; :meth:`plan` infers the
    plan.

    ``fills`` are the values of leaves that some calls lack. ``probes`` are rows of sizes that the
    model accepts, ``experiments`` all records, the refused ones too. ``lows`` are the least sizes
    that the model takes, where that is more than 1; ``empty`` are the axes at which it takes 0;
    ``confirmed`` has, by axis, the label of the
    experiment that confirmed its relation; ``exclusions`` say how the table is not to be read;
    ``demands`` are what the model was seen to ask of the sizes;
    ``optional`` are the constants that a call may leave out, ``needed`` the arguments that it may not
    leave out though an empty one was seen. ``blind`` is what no experiment could
    tell.
    """

    union: Union
    fills: Mapping[Path, Fill]
    probes: tuple[Row, ...] = ()
    notes: tuple[Note | str, ...] = ()
    name: str = "main"
    overrides: Overrides = field(default_factory=Overrides)
    lows: AxisSizes = field(default_factory=dict)
    empty: frozenset[Axis] = frozenset()
    experiments: tuple[Experiment, ...] = ()
    blind: tuple[BlindSpot, ...] = ()
    confirmed: Mapping[Axis, str] = field(default_factory=dict)
    exclusions: Exclusions | None = None
    demands: Demands = field(default_factory=Demands)
    optional: frozenset[Path] = frozenset()
    needed: tuple[str, ...] = ()

    @property
    def observed(self) -> Table:
        """The sizes of all calls."""
        return table_of_forms(self.union.forms, self.fills).extended(self._axes(), ())

    @property
    def table(self) -> Table:
        """The sizes of all calls and experiments, without the axes that the caller made static."""
        table = replace(self.observed.extended((), self.probes), demands=self.demands)
        if not (self.overrides.static or self.overrides.weights):
            return table
        columns = {
            axis: sizes
            for axis, sizes in table.columns.items()
            if not self.overrides.is_static(axis)
        }
        return replace(table, columns=columns)

    def own(self, samples: Sequence[Sample]) -> list[Sample]:
        """The kept calls that the draft is about."""
        indices = {call.index for form in self.union.forms for call in form.calls}
        return [sample for sample in samples if sample.call.index in indices]

    def with_probes(self, *rows: Row) -> Draft:
        """The draft with further rows of sizes that the model accepts."""
        return replace(self, probes=(*self.probes, *rows))

    def with_blind(self, *spots: BlindSpot) -> Draft:
        """The draft with more that no experiment could tell."""
        return replace(self, blind=(*self.blind, *spots))

    def plan(self) -> Plan:
        """Returns the plan as far as it was inferred."""
        table = self.table
        ranges = self.overrides.ranges
        static = tuple(
            Note(f"{axis} is pinned static", (axis,))
            for axis in self._axes()
            if self.overrides.is_pinned(axis)
        )
        plan = build_plan(
            self.union,
            table,
            self.fills,
            name=self.name,
            notes=(*self.notes, *static),
            ranges=ranges,
            confirmed=self.confirmed,
            exclusions=self.exclusions,
            given=self.overrides.name_of,
        )
        symbols = plan.symbols
        if ranges or PINNED in table.labels:
            symbols = tuple(
                _within_range(symbol, plan, table, ranges.get(symbol.name)) for symbol in symbols
            )
        symbols = tuple(self._with_low(symbol, plan) for symbol in symbols)
        leaves = plan.leaves
        if self.optional:
            leaves = tuple(replace(leaf, optional=leaf.path in self.optional) for leaf in leaves)
        return replace(
            plan,
            symbols=symbols,
            leaves=leaves,
            probes=self.experiments,
            blind=self.blind,
            needed=self.needed,
            asked=(
                *filter(self.overrides.is_dynamic, self._axes()),
                *(axis for name in ranges for axis in plan.axes_of(name)),
            ),
        )

    def _axes(self) -> Iterator[Axis]:
        for path, spec in self.union.leaves.items():
            yield from axes_of(path, spec)

    def _with_low(self, symbol: Symbol, plan: Plan) -> Symbol:
        """The symbol from the least size on that the model takes, where the caller gave no range
        and none was less; an int from the least one of the calls on, where it was below 0.
        """
        axes = plan.axes_of(symbol.name)
        if symbol.name in self.overrides.ranges or not axes:
            return symbol
        if min(symbol.observed, default=0) < 0:
            return replace(symbol, low=min(symbol.observed))
        if not (self.lows or self.empty):
            return symbol
        if self.empty.issuperset(axes):
            return replace(symbol, low=0, zero_by_trial=True)
        lows = [self.lows.get(axis, 0) for axis in axes]
        return replace(symbol, low=min(max(symbol.low, *lows), *symbol.observed))


def _within_range(symbol: Symbol, plan: Plan, table: Table, limits: Range | None) -> Symbol:
    """The symbol without the sizes that only stand for the word of the caller, and none outside
    its range.
    """
    seen: set[int] = set()
    for axis in plan.axes_of(symbol.name):
        pairs = zip(table.labels, table.column(axis), strict=True)
        seen |= {size for label, size in pairs if size is not None and label != PINNED}
    low, high = limits or (None, None)
    kept = [size for size in symbol.observed if size in seen and (low or 0) <= size]
    if high is not None:
        kept = [size for size in kept if size <= high]
    return replace(symbol, observed=tuple(kept) or symbol.observed)

"""Which calls can one graph serve? Forms are joined when what is missing can be filled, and the model agrees."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

from ..core.call import Call
from ..core.path import Path
from ..core.plan import Fill, Plan, Probe, Symbol
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from ..infer.build import build_plan
from ..infer.mine import Without
from ..infer.samples import Row, Table, axes_of, table_of_forms
from ..infer.unify import Form, Union, find_conflict, forms_of, growing_dim, union_of
from ..materialise.arguments import close_arguments, fill_of, leaf_values
from ..materialise.counting import sizes_of
from ..observe.store import Sample
from ..pytrees.agree import agreement
from .pins import PINNED, Pins
from .subject import Subject

__all__ = ["Regime", "find_regimes", "is_neutral"]

logger = logging.getLogger(__name__)
_MOST_FILLS = 12


@dataclass(frozen=True, slots=True)
class Regime:
    """Forms that one graph can serve, with the fills that make it so and the probes that were run.

    ``probes`` are rows of sizes that the model accepts, ``trace`` all experiments, the refused ones too,
    ``lows`` the least sizes that it takes, where that is more than 1, ``optional`` the constants that a call may
    leave out.
    """

    union: Union
    fills: Mapping[Path, Fill]
    probes: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = "main"
    pins: Pins = field(default_factory=Pins)
    lows: Mapping[Axis, int] = field(default_factory=dict)
    trace: tuple[Probe, ...] = ()
    blind: tuple[str, ...] = ()
    confirmed: Mapping[Axis, str] = field(default_factory=dict)
    reading: Without | None = None
    optional: frozenset[Path] = frozenset()

    @property
    def observed(self) -> Table:
        """The sizes of all calls."""
        axes = (axis for path, spec in self.union.leaves.items() for axis in axes_of(path, spec))
        return table_of_forms(self.union.forms, self.fills).extended(axes, ())

    @property
    def table(self) -> Table:
        """The sizes of all calls and probes, without the axes that are pinned as static."""
        table = self.observed.extended((), self.probes)
        if not self.pins.static:
            return table
        return replace(table, columns={a: sizes for a, sizes in table.columns.items() if not self.pins.is_static(a)})

    def plan(self) -> Plan:
        """What was inferred so far."""
        table, ranges = self.table, self.pins.ranges
        notes = tuple(f"{axis} is pinned static" for axis in self._pinned_static())
        plan = build_plan(
            self.union,
            table,
            self.fills,
            name=self.name,
            notes=(*self.notes, *notes),
            ranges=ranges,
            confirmed=self.confirmed,
            without=self.reading,
        )
        if ranges or PINNED in table.labels:
            symbols = tuple(_as_pinned(symbol, plan, table, ranges.get(symbol.name)) for symbol in plan.symbols)
            plan = replace(plan, symbols=symbols)
        if self.lows:
            plan = replace(plan, symbols=tuple(self._raised(symbol, plan) for symbol in plan.symbols))
        if self.optional:
            plan = replace(plan, leaves=tuple(replace(x, optional=x.path in self.optional) for x in plan.leaves))
        return replace(plan, probes=self.trace, blind=self.blind)

    def _raised(self, symbol: Symbol, plan: Plan) -> Symbol:
        """The symbol from the least size on that the model takes, where the caller gave no range and none was less."""
        if symbol.name in self.pins.ranges:
            return symbol
        lows = [self.lows.get(a, 0) for leaf in plan.inputs for a, e in leaf.axes if str(e) == symbol.name]
        return replace(symbol, low=min(max(symbol.low, *lows), *symbol.observed)) if lows else symbol

    def _pinned_static(self) -> Iterator[Axis]:
        axes = (axis for path, spec in self.union.leaves.items() for axis in axes_of(path, spec))
        return filter(self.pins.is_static, axes)


def _as_pinned(symbol: Symbol, plan: Plan, table: Table, limits: tuple[int, int | None] | None) -> Symbol:
    """The symbol without the sizes that only stand for the word of the caller, and none outside its range."""
    axes = [axis for leaf in plan.inputs for axis, expression in leaf.axes if str(expression) == symbol.name]
    seen: set[int] = set()
    for axis in axes:
        pairs = zip(table.labels, table.column(axis), strict=True)
        seen |= {size for label, size in pairs if size is not None and label != PINNED}
    low, high = limits or (0, None)
    kept = tuple(size for size in symbol.observed if size in seen and low <= size and (high is None or size <= high))
    return replace(symbol, observed=kept or symbol.observed)


def find_regimes(
    calls: Sequence[Call], samples: Sequence[Sample], subject: Subject, pins: Pins | None = None
) -> list[Regime]:
    """The fewest regimes that a greedy search finds: the richest form first, each next one joins if it can."""
    pins = pins or Pins()
    forms = sorted(forms_of(calls), key=lambda f: -f.example.n_tensors)
    regimes: list[Regime] = []
    for form in forms:
        for position, regime in enumerate(regimes):
            joined = _joined((*regime.union.forms, form), samples, subject, pins)
            if joined is not None:
                regimes[position] = joined
                break
        else:
            regimes.append(Regime(union_of((form,)), {}, pins=pins))
    if len(regimes) == 1:
        return regimes
    return [replace(regime, name=f"graph_{i}") for i, regime in enumerate(regimes)]


def _joined(forms: Sequence[Form], samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime | None:
    union = union_of(forms)
    conflict = find_conflict(union)
    if conflict is not None:
        logger.debug("two graphs are needed: %s", conflict)
        return None
    for fills in islice(_fill_choices(union), _MOST_FILLS):
        regime = Regime(union, fills, pins=pins)
        if all(is_neutral(regime, form, samples, subject) for form in forms):
            return regime
    return None


def _fill_choices(union: Union) -> Iterator[dict[Path, Fill]]:
    """What the missing leaves may be: per argument a short list, the likeliest first."""
    missing = [path for form in union.forms for path in union.missing(form)]
    roots = list(dict.fromkeys(path.root for path in missing))
    paths = {root: [p for p in dict.fromkeys(missing) if p.root == root] for root in roots}
    options = [_options(union, paths[root]) for root in roots]
    for choice in product(*options):
        yield {path: fill for part in choice for path, fill in part.items()}


def _options(union: Union, paths: Sequence[Path]) -> list[dict[Path, Fill]]:
    specs = {path: union.leaves[path] for path in paths}
    if any(isinstance(s, TensorSpec) and len(s.shape) > 2 for s in specs.values()):
        kinds = ("empty", "zeros")
    else:
        kinds = ("ones", "zeros")
    found = [{p: f for p, s in specs.items() if (f := _fill(union, p, s, kind)) is not None} for kind in kinds]
    return [f for i, f in enumerate(found) if f not in found[:i]]


def _fill(union: Union, path: Path, spec: Spec, kind: str) -> Fill | None:
    if isinstance(spec, ConstantSpec):
        return Fill("constant", value=0) if spec.is_int else None
    if not isinstance(spec, TensorSpec):
        return None
    if kind != "empty":
        return Fill(kind)
    dim = growing_dim(union, path, spec)
    return Fill("zeros") if dim is None else Fill("empty", dim=dim)


def is_neutral(regime: Regime, form: Form, samples: Sequence[Sample], subject: Subject) -> bool:
    """True when the model gives for a call of this form, filled, what it gave without the fills."""
    if not regime.union.missing(form):
        return True
    indices = {call.index for call in form.calls}
    own = [sample for sample in samples if sample.call.index in indices]
    if not own:
        return False
    plan = regime.plan()
    return all(_same_result(plan, sample, subject) for sample in own[:2])


def _same_result(plan: Plan, sample: Sample, subject: Subject) -> bool:
    values = leaf_values(sample)
    sizes = sizes_of(plan, values)
    try:
        filled = {}
        for leaf in plan.leaves:
            value = values.get(leaf.path)
            if value is None and not (leaf.path in values and leaf.fill is None):
                value = fill_of(leaf, sizes) if leaf.fill else (leaf.constant.value if leaf.constant else None)
            filled[leaf.path] = value
        result = subject.try_out(close_arguments(plan, filled))
    except Exception as error:
        logger.debug("a fill is refused by the model: %s: %s", type(error).__name__, error)
        return False
    expected = dict(sample.outputs.items())
    got = dict(result.items())
    paths = [path for path in expected if path in got]
    if len(paths) != len(expected):
        return False
    return agreement(paths, [expected[p] for p in paths], [got[p] for p in paths]).holds

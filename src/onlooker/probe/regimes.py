"""Which calls can one graph serve? Forms are joined when what is missing can be filled, and the model agrees."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, product

from ..core.call import Call
from ..core.path import Path
from ..core.plan import Fill, Plan
from ..core.spec import ConstantSpec, Spec, TensorSpec
from ..infer.build import build_plan
from ..infer.samples import Row, Table, axes_of, table_of
from ..infer.unify import Form, Union, find_conflict, forms_of, growing_dim, union_of
from ..materialise.arguments import close_arguments, fill_of, leaf_values
from ..materialise.counting import sizes_of
from ..observe.store import Sample
from ..pytrees.agree import agreement
from .subject import Subject

__all__ = ["Regime", "find_regimes", "is_neutral"]

logger = logging.getLogger(__name__)
_MOST_FILLS = 12


@dataclass(frozen=True, slots=True)
class Regime:
    """Forms that one graph can serve, with the fills that make it so and the probes that were run."""

    union: Union
    fills: Mapping[Path, Fill]
    probes: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    name: str = "main"
    ranges: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        """The sizes of all calls and probes."""
        calls = sorted((call for form in self.union.forms for call in form.calls), key=lambda call: call.index)
        table = table_of(calls, self.fills)
        axes = [axis for path, spec in self.union.leaves.items() for axis in axes_of(path, spec)]
        return Table(tuple(dict.fromkeys((*table.axes, *axes))), (*table.rows, *self.probes))

    def plan(self) -> Plan:
        """What was inferred so far."""
        return build_plan(self.union, self.table, self.fills, name=self.name, notes=self.notes, ranges=self.ranges)


def find_regimes(calls: Sequence[Call], samples: Sequence[Sample], subject: Subject) -> list[Regime]:
    """The fewest regimes that a greedy search finds: the richest form first, each next one joins if it can."""
    forms = sorted(forms_of(calls), key=lambda f: -f.example.n_tensors)
    regimes: list[Regime] = []
    for form in forms:
        for position, regime in enumerate(regimes):
            joined = _joined((*regime.union.forms, form), samples, subject)
            if joined is not None:
                regimes[position] = joined
                break
        else:
            regimes.append(Regime(union_of((form,)), {}))
    if len(regimes) == 1:
        return regimes
    return [Regime(r.union, r.fills, notes=r.notes, name=f"graph_{i}") for i, r in enumerate(regimes)]


def _joined(forms: Sequence[Form], samples: Sequence[Sample], subject: Subject) -> Regime | None:
    union = union_of(forms)
    conflict = find_conflict(union)
    if conflict is not None:
        logger.debug("two graphs are needed: %s", conflict)
        return None
    for fills in islice(_fill_choices(union), _MOST_FILLS):
        regime = Regime(union, fills)
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

"""Calls -> graphs: regimes, probes, exports, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import ExportError
from ..core.plan import Plan
from ..infer.unify import forms_of
from ..observe.inner import advice_on_inner
from ..observe.store import Sample
from ..probe.pins import Pins, check_pins, check_ranges, check_static, check_symbols
from ..probe.regimes import Regime, find_regimes
from ..probe.settle import settled
from ..probe.subject import Subject
from .cover import Coverage
from .float_inputs import float_graphs
from .graph import Graph
from .prepare import Prepared
from .relax import relaxed
from .steering import baked_ints, input_floats, per_value, steering_ints
from .torch_ import export_graph
from .widen import widened

__all__ = ["export_graphs", "find_plans"]

logger = logging.getLogger(__name__)


def find_plans(prepared: Prepared, subject: Subject, pins: Pins) -> list[Plan]:
    """The plan of each regime; what is pinned is obeyed, and the model is asked as often as the budget allows.

    :raises UsageError: ``unknown-argument``, ``no-such-dimension``, ``no-such-symbol``, ``pin-contradicts-calls``
    """
    recording, samples = prepared.recording, prepared.samples
    check_pins(pins, recording)
    logger.info("finding out which of %d calls one graph can serve", len(recording))
    with subject.ledger.stage("infer"):
        regimes = find_regimes(recording.calls, samples, subject, pins)
    for regime in regimes if pins.static else ():
        check_static(pins, regime.observed)
    regimes = [settled(regime, samples, subject, pins) for regime in regimes]
    with subject.ledger.stage("infer"):
        plans = [_plan_of(regime, prepared) for regime in regimes]
    check_symbols(pins, plans)
    for plan, regime in zip(plans, regimes, strict=True) if pins.ranges else ():
        check_ranges(pins, plan, regime.observed)
    return plans


def _plan_of(regime: Regime, prepared: Prepared) -> Plan:
    plan, recording = regime.plan(), prepared.recording
    roots = {leaf.path.root for leaf in plan.leaves}
    notes = tuple(str(join) for join in prepared.joins if join.path.root in roots)
    return replace(plan, method=recording.method, model=recording.model, notes=plan.notes + notes)


def export_graphs(
    plans: Sequence[Plan], prepared: Prepared, subject: Subject, pins: Pins | None = None
) -> tuple[list[Graph], list[str]]:
    """The graphs of all plans that torch can export, and the reasons why not of the others.

    Every kept call that the graphs then refuse, though the model takes it, seeds another graph in its own
    region, until all are covered or no further graph helps. So does one of a plan of several forms that torch
    refuses as a whole.

    :raises ExportError: when not one plan can be exported, or what is exported serves no kept call: ``no-call-served``
    """
    samples = prepared.samples
    graphs: list[Graph] = []
    refusals: list[str] = []
    first: ExportError | None = None
    asked: list[Plan] = []
    for plan in plans:
        try:
            found = _graphs_of(plan, prepared, subject)
        except ExportError as error:
            first = first or error
            refusals.append(f"{plan.name} (calls {', '.join(map(str, plan.calls))}): {error.message}")
            asked.append(plan)
            continue
        asked += [graph.plan for graph in found]
        graphs += [widened(relaxed(graph, samples, subject), samples, subject) for graph in found]
    if first is not None and not graphs and len(forms_of(prepared.recording.calls)) == len(plans):
        raise first
    coverage = Coverage(graphs, samples, subject, prepared.recording, pins)
    coverage.complete(asked)
    if first is not None and not coverage.graphs:
        raise first
    if samples and not any(map(coverage.serves, samples)):
        raise _serving_nothing(coverage.graphs, samples, subject)
    return coverage.graphs, [*refusals, *coverage.refusals]


def _serving_nothing(graphs: Sequence[Graph], samples: Sequence[Sample], subject: Subject) -> ExportError:
    """Why: the lines of the model that made sizes or values a part of the graphs."""
    asked = [note for graph in graphs for note in graph.notes if " is asked at " in note]
    why = "".join(f" In {graph.name}, {note}." for graph in graphs[:1] for note in dict.fromkeys(asked[:2]))
    calls = ", ".join(str(sample.call.index) for sample in samples[:6])
    return ExportError(
        f"torch.export gives {len(graphs)} graphs, and none takes a call that was watched (calls {calls}).{why}",
        slug="no-call-served",
        hint=f"{advice_on_inner(subject.model)}Write these lines without numbers of Python that are made from sizes or "
        "values, or pin what they ask about: export(static={'x': [1]}).",
    )


def _graphs_of(plan: Plan, prepared: Prepared, subject: Subject) -> list[Graph]:
    """The graph of a plan; where torch refuses ints or floats that vary, or bakes one in, a graph for each value.

    :raises ExportError: ``export-refused`` and others, as of the plan itself
    """
    if input_floats(plan):
        return float_graphs(plan, prepared.recording.calls, lambda one: _graphs_of_ints(one, prepared, subject))
    return _graphs_of_ints(plan, prepared, subject)


def _graphs_of_ints(plan: Plan, prepared: Prepared, subject: Subject) -> list[Graph]:
    """The same, without another way for floats."""
    logger.info("exporting %s (%d inputs)", plan.name, len(plan.inputs))
    ints = steering_ints(plan)
    refusal: ExportError | None = None
    try:
        graph = export_graph(plan, prepared.samples, subject)
        ints = baked_ints(graph)
        if not ints:
            return [graph]
    except ExportError as error:
        if not ints:
            raise
        refusal = error
    graphs: list[Graph] = []
    for constant in per_value(plan, ints, prepared.recording.calls):
        logger.info("exporting %s", constant.name)
        try:
            graphs.append(export_graph(constant, prepared.samples, subject))
        except ExportError as error:
            logger.debug("%s", error)
            refusal = refusal or error
            if not graphs:
                raise refusal from error
    return graphs

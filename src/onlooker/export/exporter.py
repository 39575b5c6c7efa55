"""Calls -> graphs: regimes, probes, exports, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import ExportError
from ..core.plan import Plan
from ..probe.pins import Pins, check_pins, check_ranges, check_static, check_symbols
from ..probe.regimes import Regime, find_regimes
from ..probe.settle import settled
from ..probe.subject import Subject
from .cover import Coverage
from .graph import Graph
from .prepare import Prepared
from .relax import relaxed
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
    region, until all are covered or no further graph helps.

    :raises ExportError: when not one plan can be exported
    """
    samples = prepared.samples
    graphs: list[Graph] = []
    refusals: list[str] = []
    first: ExportError | None = None
    for plan in plans:
        logger.info("exporting %s (%d inputs)", plan.name, len(plan.inputs))
        try:
            graph = relaxed(export_graph(plan, samples, subject), samples, subject)
            graphs.append(widened(graph, samples, subject))
        except ExportError as error:
            first = first or error
            refusals.append(f"{plan.name} (calls {', '.join(map(str, plan.calls))}): {error.message}")
    if first is not None and not graphs:
        raise first
    coverage = Coverage(graphs, samples, subject, prepared.recording, pins)
    coverage.complete(plans)
    return coverage.graphs, [*refusals, *coverage.refusals]

"""Calls -> graphs: regimes, probes, exports, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..core.errors import ExportError
from ..core.plan import Plan
from ..probe.absent import add_absent
from ..probe.axes import Pins, probe_axes
from ..probe.regimes import Regime, find_regimes
from ..probe.subject import Subject
from .cover import Coverage
from .graph import Graph
from .prepare import Prepared
from .torch_ import export_graph
from .widen import widened

__all__ = ["export_graphs", "find_plans"]

logger = logging.getLogger(__name__)


def find_plans(prepared: Prepared, subject: Subject, *, pins: Pins, probe: bool) -> list[Plan]:
    """The plan of each regime, probed when ``probe`` says so."""
    recording, samples = prepared.recording, prepared.samples
    logger.info("finding out which of %d calls one graph can serve", len(recording))
    regimes = find_regimes(recording.calls, samples, subject)
    if probe:
        logger.info("probing axes that never changed")
        regimes = [probe_axes(regime, samples, subject, pins) for regime in regimes]
        logger.info("probing masks that no call passed")
        regimes = [add_absent(regime, samples, subject) for regime in regimes]
    return [_plan_of(regime, prepared) for regime in regimes]


def _plan_of(regime: Regime, prepared: Prepared) -> Plan:
    plan, recording = regime.plan(), prepared.recording
    roots = {leaf.path.root for leaf in plan.leaves}
    notes = tuple(str(join) for join in prepared.joins if join.path.root in roots)
    return replace(plan, method=recording.method, model=recording.model, notes=plan.notes + notes)


def export_graphs(plans: Sequence[Plan], prepared: Prepared, subject: Subject) -> tuple[list[Graph], list[str]]:
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
            graphs.append(widened(export_graph(plan, samples, subject), samples, subject))
        except ExportError as error:
            first = first or error
            refusals.append(f"{plan.name} (calls {', '.join(map(str, plan.calls))}): {error.message}")
    if first is not None and not graphs:
        raise first
    coverage = Coverage(graphs, samples, subject, prepared.recording)
    coverage.complete(plans)
    return coverage.graphs, [*refusals, *coverage.refusals]

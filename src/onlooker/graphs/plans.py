"""Calls -> plans: which calls share a graph, and what the model says about the axes."""

from __future__ import annotations

import logging
from dataclasses import replace

from ..core.plan import Plan
from ..core.recording import Recording
from ..hypotheses.draft import Draft
from ..hypotheses.families import resolved
from ..hypotheses.overrides import (
    Overrides,
    check_overrides,
    check_ranges,
    check_static,
    check_symbols,
)
from ..hypotheses.ranges import plans_in_ranges, seen_sizes
from ..hypotheses.shared_graphs import find_drafts
from ..infer.interest import DomainOfInterest, domain_of_interest
from ..lab.lab import Lab
from ..materialise.counting import watched_sizes
from .prepare import Prepared

__all__ = ["domain_of", "find_plans", "plan_of"]

logger = logging.getLogger(__name__)


def find_plans(prepared: Prepared, lab: Lab, overrides: Overrides) -> list[Plan]:
    """The plan of each graph; the caller's overrides are obeyed, and the model is run as often as
    the budget allows.

    :raises UsageError: ``unknown-argument``, ``no-such-dimension``, ``no-such-symbol``,
        ``pin-contradicts-calls``
    """
    recording, samples = prepared.recording, prepared.samples
    check_overrides(overrides, recording)
    logger.info("finding out which of %d calls one graph can serve", len(recording))
    with lab.without_repeats(samples):
        with lab.stages.stage("infer"):
            drafts = find_drafts(recording.calls, samples, lab, overrides)
        for draft in drafts if overrides.static else ():
            check_static(overrides, draft.observed)
        drafts = [resolved(draft, samples, lab) for draft in drafts]
    with lab.stages.stage("infer"):
        plans = [plan_of(draft, prepared) for draft in drafts]
    check_symbols(overrides, plans)
    for plan, draft in zip(plans, drafts, strict=True) if overrides.ranges else ():
        check_ranges(overrides, plan, draft.observed)
    if not overrides.observed:
        return plans
    return plans_in_ranges(plans, overrides, seen_sizes(plans, recording))


def domain_of(plan: Plan, recording: Recording, overrides: Overrides) -> DomainOfInterest:
    """The sizes that the graphs of a plan are made for."""
    dynamic = [
        symbol.name
        for symbol in plan.symbols
        if any(map(overrides.is_dynamic, plan.axes_of(symbol.name)))
    ]
    calls = watched_sizes(plan, recording.calls)
    return domain_of_interest(plan, calls, overrides.ranges, dynamic)


def plan_of(draft: Draft, prepared: Prepared) -> Plan:
    """The plan of a draft, with the name of the model and what was joined in its arguments."""
    plan, recording = draft.plan(), prepared.recording
    roots = {leaf.path.root for leaf in plan.leaves}
    notes = tuple(str(join) for join in prepared.joins if join.path.root in roots)
    return replace(plan, method=recording.method, model=recording.model, notes=plan.notes + notes)

"""Calls -> plans: regimes and probes, one after the other."""

from __future__ import annotations

import logging
from dataclasses import replace

from ..core.plan import Plan
from ..probe.pins import Pins, check_pins, check_ranges, check_static, check_symbols
from ..probe.regimes import Regime, find_regimes
from ..probe.settle import settled
from ..probe.subject import Subject
from ..trace.prepare import Prepared

__all__ = ["find_plans"]

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

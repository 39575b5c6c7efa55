"""What calls left open, in one go: pins are obeyed, axes and masks are asked about."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..observe.store import Sample
from .absent import add_absent
from .axes import pin_axes, probe_axes
from .confirm import confirm_relations
from .left_out import add_left_out
from .pins import Pins
from .regimes import Regime
from .seen_steps import probe_seen_steps
from .subject import Subject

__all__ = ["settled"]

logger = logging.getLogger(__name__)


def settled(regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime:
    """The regime with what the model and the caller say about axes and masks that no call changed or passed.

    Without a budget of probes only the caller is heard.
    """
    with subject.ledger.stage("probe"):
        if not pins.probes:
            return pin_axes(regime, pins)
        logger.info("probing axes that never changed")
        regime = pin_axes(probe_axes(regime, samples, subject, pins), pins)
        regime = probe_seen_steps(regime, samples, subject)
        logger.info("probing relations between axes")
        regime = confirm_relations(regime, samples, subject, pins)
        logger.info("probing masks that no call passed")
        regime = add_absent(regime, samples, subject)
        logger.info("probing arguments that every call passed")
        return add_left_out(regime, samples, subject, pins)

"""Runs a model to see whether it reads the order of the dicts among its arguments."""

from __future__ import annotations

import logging

from ...core.plan import Plan
from ...core.sizes.expression import Sizes
from ...lab.lab import Lab
from ...materialise.arguments import Calls
from ...model_source.frames import reading_frame
from ...model_source.lines import line_of
from ...trace.order_reads import (
    has_order,
    holds_noting,
    looks_up_only,
    noting_order,
    of_var_keyword,
)

__all__ = ["has_dicts", "order_read"]

logger = logging.getLogger(__name__)
_RETURNED = "a dict of the call in the result"
_UNKNOWN = "the order of a dict, which could not be tried"


def has_dicts(plan: Plan, lab: Lab) -> bool:
    """True for calls with a dict of two items or more, or with two arguments of ``**kwargs``."""
    return (
        has_order(plan.structure) or len(of_var_keyword(plan.structure, lab.subject.signature)) > 1
    )


def order_read(calls: Calls, lab: Lab, sizes: Sizes) -> str:
    """The line of a model that asks for the order of a dict at some sizes; empty where none does."""
    extra = of_var_keyword(calls.plan.structure, lab.subject.signature)
    method = getattr(type(lab.model), lab.subject.method, None)
    if len(extra) > 1 and not looks_up_only(method):
        return f"**kwargs of {lab.subject.method}"
    lines: list[str] = []

    def note() -> None:
        frame = reading_frame(3)
        if frame is not None:
            lines.append(line_of(frame))

    arguments = calls.arguments(sizes)
    noted = {name: noting_order(value, note) for name, value in arguments.items()}
    try:
        with lab.private_run(why="the order of dicts"):
            result = lab(noted)
    except Exception as error:
        logger.debug("the model refuses dicts that note their order: %s", error)
        return _UNKNOWN
    return lines[0] if lines else _RETURNED if holds_noting(result) else ""

"""Which floats that change can be inputs of a graph? Those that decide nothing in the Python of the
model.

A graph with all of them as inputs is made first. Where torch refuses it, or it differs from the
model, each float is tried alone, beside the others as constants; those that fail alone are
constants, and there is a graph for each of the values that most calls had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..core.call import Call
from ..core.errors import ExportError
from ..core.plan import LeafPlan, Plan
from .control_flow import at_call, input_floats, per_value

__all__ = ["float_graphs"]

logger = logging.getLogger(__name__)


Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class _Maker(Generic[Found]):
    """Exports plans of some calls; ``export`` gives what is made of a plan or raises an
    ExportError.
    """

    calls: Sequence[Call]
    export: Callable[[Plan], list[Found]]

    def may_be_inputs(self, plan: Plan, floats: Sequence[LeafPlan], one: LeafPlan) -> bool:
        """True when a float can be an input where the others are constants."""
        others = [leaf for leaf in floats if leaf is not one]
        own = set(plan.calls)
        call = next(call for call in self.calls if call.index in own)
        try:
            self.export(at_call(plan, others, call))
        except ExportError as error:
            logger.debug("%s decides: %s", one.path, error.message)
            return False
        return True

    def at_values(self, plan: Plan, floats: Sequence[LeafPlan]) -> list[Found]:
        """A graph for each of the values that most calls had, where torch makes one.

        :raises ExportError: where torch makes none of them
        """
        graphs: list[Found] = []
        refusal: ExportError | None = None
        for constant in per_value(plan, floats, self.calls):
            try:
                graphs += self.export(constant)
            except ExportError as error:
                logger.debug("%s: %s", constant.name, error.message)
                refusal = refusal or error
                if not graphs:
                    raise
        if refusal is not None and not graphs:
            raise refusal
        return graphs


def float_graphs(
    plan: Plan, calls: Sequence[Call], export: Callable[[Plan], list[Found]]
) -> list[Found]:
    """Returns the graphs that ``export`` makes of a plan with floats as inputs; those that decide
    in the model are constants, per value.

    :raises ExportError: as ``export`` does, where the floats are not the reason
    """
    floats = input_floats(plan)
    maker = _Maker(calls, export)
    try:
        return export(plan)
    except ExportError as error:
        logger.info("%s has floats that cannot all be inputs: %s", plan.name, error.message)
        refusal = error
    deciding = [
        leaf for leaf in floats if len(floats) == 1 or not maker.may_be_inputs(plan, floats, leaf)
    ]
    for constants in (deciding, list(floats)):
        if constants and (constants is deciding or len(deciding) < len(floats)):
            try:
                return maker.at_values(plan, constants)
            except ExportError as error:
                logger.debug("%s", error.message)
                refusal = error
    raise refusal

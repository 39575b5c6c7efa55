"""Which floats that change can be inputs of a graph? Those that decide nothing in the Python of the
model, or decide by comparisons with numbers alone.

A graph with all of them as inputs is made first. Where the model compares one with a number, the graph takes
the floats on one side of it, and the calls on other sides have graphs of their own. Where torch refuses the
graph, or it differs from the model, each float is tried alone, beside the others as constants; those that fail
alone are constants, and there is a graph for each of the values that most calls had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from ..core.call import Call
from ..core.errors import ExportError
from ..core.plan import LeafPlan, Plan
from ..core.spec import ConstantSpec
from .control_flow import at_call, input_floats, per_value

__all__ = ["float_graphs"]

logger = logging.getLogger(__name__)


#: the most sides of comparisons that have a graph
_MOST_SIDES = 8


class _Planned(Protocol):
    @property
    def plan(self) -> Plan: ...


Found = TypeVar("Found", bound=_Planned)


@dataclass(frozen=True, slots=True)
class _Maker(Generic[Found]):
    """Exports plans of some calls; ``export`` gives what is made of a plan or raises an
    ExportError.
    """

    calls: Sequence[Call]
    export: Callable[[Plan], list[Found]]

    def on_all_sides(self, plan: Plan) -> list[Found]:
        """The graphs of a plan, and those of the calls that have floats on other sides of comparisons.

        :raises ExportError: as ``export`` does for the plan itself
        """
        found, side = self.export(plan), plan
        for number in range(2, _MOST_SIDES):
            left = [
                call for call in self.calls if call.index in plan.calls and not _takes(found, call)
            ]
            if not left:
                break
            side = replace(
                plan,
                name=f"{plan.name}_{number}",
                calls=tuple(call.index for call in left),
                leaves=tuple(_with_floats_of(leaf, left) for leaf in plan.leaves),
            )
            try:
                made = self.export(side)
            except ExportError as error:
                logger.debug("%s: %s", side.name, error.message)
                made = self.at_values(side, input_floats(side))
            found = [*found, *made]
            if not any(_takes(made, call) for call in left):
                break
        return found

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
        return maker.on_all_sides(plan)
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


def _takes(found: Sequence[_Planned], call: Call) -> bool:
    """True where some graph takes all floats of a call."""
    specs = dict(call.inputs.items())
    return any(
        all(_is_taken(leaf, specs.get(leaf.path)) for leaf in one.plan.leaves) for one in found
    )


def _is_taken(leaf: LeafPlan, spec: object) -> bool:
    if not isinstance(spec, ConstantSpec) or not spec.is_float:
        return True
    return spec == leaf.constant if leaf.is_constant else leaf.takes_float(spec.value)


def _with_floats_of(leaf: LeafPlan, calls: Sequence[Call]) -> LeafPlan:
    """The leaf with the floats of these calls, where it is a float."""
    if not leaf.is_float:
        return leaf
    specs = [dict(call.inputs.items()).get(leaf.path) for call in calls]
    own = [one for one in specs if isinstance(one, ConstantSpec) and one.is_float]
    return replace(leaf, floats=tuple(dict.fromkeys(own)) or leaf.floats)

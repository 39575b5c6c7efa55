"""The first graphs of plans: one trace of each plan, or one for each value of numbers that choose a
path.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..core.errors import ExportError
from ..core.plan import Note, Plan
from ..core.sizes.expression import Sizes
from ..core.spec import Axis
from ..core.support.progress import tell
from ..hypotheses.families import resolved
from ..hypotheses.ranges import plans_in_ranges, seen_sizes
from ..hypotheses.shared_graphs import find_drafts
from ..infer.broadcast import broadcast_groups, unchanged_axes
from ..infer.sizes import listed
from ..infer.unify import forms_of
from ..repairs.guard_count import TooManyGuardsError
from ..trace.torch_export import Traced, export_graph
from .control_flow import control_flow_ints, input_floats, per_value, specialized_ints
from .fixed_sizes import at_sizes
from .float_inputs import float_graphs
from .one_plan.search import PlanSearch
from .plans import plan_of
from .program_graphs import ProgramGraphs

__all__ = ["add_first_graphs"]

logger = logging.getLogger(__name__)
#: a trace in which axes change that no watched call changed may meet so many guards
_MOST_OF_UNWATCHED = 60
#: in this part of the guards stands a symbol of which there are many
_OFTEN = 0.25


def add_first_graphs(program: ProgramGraphs, plans: Sequence[Plan]) -> None:
    """Adds the first graph of each plan.

    :raises ExportError: when torch refuses all plans, and each is of one form already
    """
    left = list(plans)
    # the calls whose plans were found by experiments with the whole model, and with the axes that no call changed
    on_whole, as_watched = set[int](), set[int]()
    while left:
        plan = left.pop(0)
        try:
            program.searches += _searches_of(program, plan)
            program.plans += [
                search.plan for search in program.searches if search.plan not in program.plans
            ]
        except ExportError as error:
            parts = (
                _planned_anew(program, plan, on_whole, as_watched)
                if error.slug == "no-lawful-sizes"
                else []
            )
            if parts:
                left = [*parts, *left]
                continue
            program.first_refusal = program.first_refusal or error
            program.refusals.append(
                f"{plan.name} (calls {', '.join(map(str, plan.calls))}): {error.message}"
            )
            program.plans.append(plan)
    forms = forms_of(program.prepared.recording.calls)
    if program.first_refusal is not None and not program.searches and len(forms) == len(plans):
        raise program.first_refusal


def _planned_anew(
    program: ProgramGraphs, plan: Plan, on_whole: set[int], as_watched: set[int]
) -> list[Plan]:
    """Returns the plans in the place of one that has no sizes for all of its calls.

    A plan that experiments with a part of the model gave is first made with the whole of it: later
    blocks may relate sizes that the first ones do not read. Then the calls are parted by the axes
    that are broadcast in them; and last, axes that none of them changes keep their size.
    """
    recording = program.prepared.recording
    calls = tuple(call for call in recording.calls if call.index in plan.calls)
    groups = [(calls, frozenset[Axis]())]
    if not program.lab.left_out_blocks or on_whole.issuperset(plan.calls):
        groups = broadcast_groups(calls)
        if not groups and not as_watched.issuperset(plan.calls):
            as_watched.update(plan.calls)
            groups = [(calls, unchanged_axes(calls))]
    on_whole.update(plan.calls)
    found: list[Plan] = []
    for group, axes in groups:
        static = {path: list(dims) for path, dims in program.overrides.static.items()}
        for axis in axes:
            if axis.dim is not None:
                static.setdefault(axis.path.code(), []).append(axis.dim)
        overrides = replace(program.overrides, static=static)
        for draft in find_drafts(group, program.samples, program.lab, overrides):
            own = plan_of(resolved(draft, program.samples, program.lab), program.prepared)
            name = f"{plan.name}_{len(found) + 1}" if found else plan.name
            found.append(replace(own, name=name))
    if not program.overrides.observed:
        return found
    return plans_in_ranges(found, program.overrides, seen_sizes(found, recording))


def _searches_of(program: ProgramGraphs, plan: Plan) -> list[PlanSearch]:
    """Returns the search of a plan; where torch refuses numbers that vary, or specializes one, one for
    each of their values.

    :raises ExportError: ``export-refused`` and others, as of the plan itself
    """
    if input_floats(plan):
        return float_graphs(
            plan, program.prepared.recording.calls, partial(_searches_of_ints, program)
        )
    return _searches_of_ints(program, plan)


def _searches_of_ints(program: ProgramGraphs, plan: Plan) -> list[PlanSearch]:
    logger.info("exporting %s (%d inputs)", plan.name, len(plan.inputs))
    tell("tracing", detail=plan.name)
    ints = control_flow_ints(plan)
    refusal: ExportError | None = None
    try:
        traced = _first_trace(program, plan)
        ints = specialized_ints(traced.graph)
        if not ints:
            return [program.begin(traced)]
    except ExportError as error:
        if not ints:
            raise
        refusal = error
    found: list[PlanSearch] = []
    for constant in per_value(plan, ints, program.prepared.recording.calls):
        logger.info("exporting %s", constant.name)
        tell("tracing", detail=constant.name)
        try:
            found.append(program.begin(export_graph(constant, program.samples, program.lab)))
        except ExportError as error:
            logger.debug("%s", error)
            refusal = refusal or error
            if not found:
                raise refusal from error
    return found


def _first_trace(program: ProgramGraphs, plan: Plan) -> Traced:
    """Returns the first trace of a plan.

    Axes that no watched call changed, and that the user does not name, become dynamic where that
    costs few decisions on sizes, or where the model decides by the sizes that calls changed as
    well. Else they stay as they were in all calls.

    :raises ExportError: ``export-refused`` and others
    """
    domain = program.domain_of(plan)
    unwatched = {name: domain.symbols[name].watched[0] for name in domain.open_symbols}
    if not unwatched:
        return export_graph(plan, program.samples, program.lab)
    try:
        return export_graph(plan, program.samples, program.lab, most_guards=_MOST_OF_UNWATCHED)
    except TooManyGuardsError as error:
        logger.info("%s: %s", plan.name, error)
        many = _decided_often(plan, unwatched, error)
        if 0 < len(many) < len(unwatched):
            with contextlib.suppress(ExportError, TooManyGuardsError):
                fixed = _at_watched_sizes(plan, many, error)
                return export_graph(
                    fixed, program.samples, program.lab, most_guards=_MOST_OF_UNWATCHED
                )
        traced = export_graph(
            _at_watched_sizes(plan, unwatched, error), program.samples, program.lab
        )
        if traced.condition.atoms:
            with contextlib.suppress(ExportError):
                return export_graph(plan, program.samples, program.lab)
        return traced


def _decided_often(plan: Plan, sizes: Sizes, error: TooManyGuardsError) -> Sizes:
    """The sizes of those symbols that stand in many of the guards of a trace."""
    often = [
        str(plan.inputs[number].shape[dim])
        for (number, dim), share in error.shares.items()
        if share >= _OFTEN and dim < len(plan.inputs[number].shape)
    ]
    return {name: size for name, size in sizes.items() if name in often}


def _at_watched_sizes(plan: Plan, sizes: Sizes, error: Exception) -> Plan:
    """The plan at the sizes of all watched calls, which says how to ask for others."""
    fixed, note = at_sizes(plan, sizes), _note_on_unwatched(plan, sizes, error)
    return replace(fixed, notes=(*fixed.notes, note))


def _note_on_unwatched(plan: Plan, sizes: Sizes, error: Exception) -> Note:
    """Returns a note on axes that stay as they were in all watched calls: how to ask for them."""
    fixed = listed(sizes)
    axes = tuple(axis for name in sizes for axis in plan.axes_of(name))
    asked: dict[str, list[int]] = {}
    for axis in axes:
        if axis.dim is not None:
            asked.setdefault(axis.path.code(), []).append(axis.dim)
    return Note(
        f"only {fixed}, as in every watched call: for other sizes {error};"
        f" export(dynamic={asked}) asks for them all the same",
        axes,
    )

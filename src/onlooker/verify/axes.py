"""What the graphs of a program do with axes that should change: a failed check for each that stays
a number, and the reach of all trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.expression import Expression
from ..core.recording import Recording
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from ..core.structure import Tree
from ..core.traffic import CheckedCall
from ..core.verdict import Check, Focus, Outcome, Reach, Tally
from ..pytrees.joins import Join, join_specs, joined
from ..trace.graph import Graph
from .check import sized_calls

__all__ = ["with_axes"]

#: a watched call with the graph that serves it, and the sizes of the symbols of that graph
SizedCall = tuple[CheckedCall, dict[str, int]]


def with_axes(
    tally: Tally, graphs: Sequence[Graph], recording: Recording, joins: Sequence[Join]
) -> Tally:
    """The tally with a failed check for each axis that should change and stays a number in every
    graph, and with its reach.

    An axis should change where watched calls of one graph had several sizes of it, or where the
    user asked for it. An axis that is a number in one of several graphs is no failure: the others
    take its other sizes. Nor is a number where every watched call is served by some graph.
    """
    calls = sized_calls(graphs, recording, joins, recording) if recording.calls else []
    failed = tuple(_axis_checks(graphs, recording, joins, calls))
    checks = (*tally.checks, *failed)
    return replace(tally, checks=checks, reach=_reach(checks, graphs, calls))


def _axis_checks(
    graphs: Sequence[Graph],
    recording: Recording,
    joins: Sequence[Join],
    calls: Sequence[SizedCall],
) -> Iterator[Check]:
    found: dict[Axis, list[tuple[Graph, Expression, str]]] = {}
    for graph in graphs:
        for leaf in graph.plan.inputs:
            for axis, expression in leaf.axes:
                if expression.symbols:
                    number = _number(graph, axis, expression)
                    found.setdefault(axis, []).append((graph, expression, number))
    numbers = {axis: rows for axis, rows in found.items() if all(number for *_, number in rows)}
    if not numbers:
        return
    are_served = all(row.holds for row, _ in calls)
    specs = {call.index: joined(call.inputs, joins, join_specs) for call in recording.calls}
    for axis, rows in numbers.items():
        is_asked = any(axis in graph.plan.asked for graph, *_ in rows)
        seen = max((_seen(graph, axis, specs) for graph, *_ in rows), key=len)
        is_lost = len(seen) > 1 and not are_served
        if is_lost or is_asked:
            expression = rows[0][1]
            yield _failed_axis(axis, expression, [number for *_, number in rows], sorted(seen))


def _number(graph: Graph, axis: Axis, expression: Expression) -> str:
    """The number or numbers that the axis has in a graph; empty where it changes.

    A graph holds a number by itself, or its contract demands one in each of its regions.
    """
    obtained = graph.obtained.get(str(axis), "")
    if obtained.lstrip("-").isdigit():
        return obtained
    demanded = [
        constraint.formula.removeprefix(f"{expression} == ")
        for region in graph.contract.regions
        for constraint in region.constraints
        if constraint.formula.startswith(f"{expression} == ")
    ]
    is_number = len(demanded) == len(graph.contract.regions)
    return ", ".join(demanded) if is_number and all(map(str.isdigit, demanded)) else ""


def _seen(graph: Graph, axis: Axis, specs: Mapping[int, Tree[Spec]]) -> set[int]:
    """The sizes that an axis had in the calls of a graph."""
    found = set()
    for index in graph.plan.calls:
        spec = dict(specs[index].items()).get(axis.path) if index in specs else None
        if isinstance(spec, TensorSpec) and axis.dim is not None and axis.dim < len(spec.shape):
            found.add(spec.shape[axis.dim])
        elif isinstance(spec, ConstantSpec) and spec.is_int:
            found.add(int(spec.value or 0))
    return found


def _failed_axis(
    axis: Axis, expression: Expression, numbers: Sequence[str], seen: Sequence[int]
) -> Check:
    was = f"calls had {', '.join(map(str, seen))}" if len(seen) > 1 else "dynamic= or ranges= asks"
    note = (
        f"{expression} should change, since {was}; every graph takes numbers alone:"
        f" {', '.join(dict.fromkeys(numbers))}"
    )
    return Check("unseen", str(axis), Outcome.REJECTED, (), float("inf"), note, Focus.AXES)


def _reach(checks: Sequence[Check], graphs: Sequence[Graph], calls: Sequence[SizedCall]) -> Reach:
    """Which sizes the trials speak of.

    The sizes of an export count as watched ones: no trial of them tells what becomes of others.
    """
    if all(_takes_numbers_alone(graph) for graph in graphs):
        return Reach.WATCHED_SERVED
    known = {frozenset(graph.sizes.items()) for graph in graphs}
    known |= {frozenset(sizes.items()) for _, sizes in calls}
    tried = {frozenset(check.sizes) for check in checks if check.sizes}
    return Reach.UNSEEN if tried - known else Reach.WATCHED_TRIED


def _takes_numbers_alone(graph: Graph) -> bool:
    return all(
        _number(graph, axis, expression)
        for leaf in graph.plan.inputs
        for axis, expression in leaf.axes
        if expression.symbols
    )

"""Axes that should change and stay numbers in the graphs of a program: a failed check for each, and
the reach of all trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..core.contents import ProgramContents
from ..core.sizes.expression import Expression
from ..core.sizes.formula import demanded_number
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from ..core.structure import Tree
from ..core.traffic import SizedCall
from ..core.verdict import Check, Focus, Outcome, Reach, Tally
from ..pytrees.joins import join_specs, joined
from ..trace.graph import Graph
from .check import sized_calls

__all__ = ["with_axes"]

#: a watched call with the graph that serves it, and the sizes of the symbols of that graph


def with_axes(tally: Tally, program: ProgramContents[Graph]) -> Tally:
    """The tally with a failed check for each axis that should change and stays a number in every
    graph, and with its reach.

    An axis should change where watched calls of one graph had several sizes of it, or where the
    user asked for it. An axis that is a number in one of several graphs is no failure: the others
    take its other sizes. Nor is a number where every watched call is served by some graph: the verdict
    names the axis.
    """
    calls = sized_calls(program, program.recording) if program.recording.calls else []
    lost = tuple(_axis_checks(program, calls))
    checks = (*tally.checks, *lost)
    failed = {check.label for check in lost}
    alone = tuple(name for name in _axes_of_numbers(program) if name not in failed)
    reach = _reach(checks, program.graphs, calls)
    return replace(tally, checks=checks, reach=reach, watched_alone=alone)


def _axes_of_numbers(program: ProgramContents[Graph]) -> Iterator[str]:
    """The axes of tensors that watched calls changed, and that are a number in every graph."""
    found: dict[Axis, list[bool]] = {}
    for graph in program.graphs:
        for leaf in graph.plan.inputs:
            for axis, expression in leaf.axes if leaf.is_tensor else ():
                is_number = not expression.symbols or bool(_numbers(graph, axis, expression))
                found.setdefault(axis, []).append(is_number)
    axes = [axis for axis, are_numbers in found.items() if all(are_numbers)]
    specs = _specs(program) if axes else {}
    for axis in axes:
        seen = {size for graph in program.graphs for size in _seen(graph, axis, specs)}
        if len(seen) > 1:
            yield str(axis)


def _axis_checks(program: ProgramContents[Graph], calls: Sequence[SizedCall]) -> Iterator[Check]:
    found: dict[Axis, list[tuple[Graph, Expression, tuple[int, ...]]]] = {}
    for graph in program.graphs:
        for leaf in graph.plan.inputs:
            for axis, expression in leaf.axes:
                if expression.symbols:
                    sizes = _numbers(graph, axis, expression)
                    found.setdefault(axis, []).append((graph, expression, sizes))
    numbers = {axis: rows for axis, rows in found.items() if all(sizes for *_, sizes in rows)}
    if not numbers:
        return
    are_served = all(row.holds for row, _ in calls)
    specs = _specs(program)
    for axis, rows in numbers.items():
        is_asked = any(axis in graph.plan.asked for graph, *_ in rows)
        seen = max((_seen(graph, axis, specs) for graph, *_ in rows), key=len)
        is_lost = len(seen) > 1 and not are_served
        if is_lost or is_asked:
            expression = rows[0][1]
            yield _failed_axis(
                axis, expression, [size for *_, sizes in rows for size in sizes], sorted(seen)
            )


def _specs(program: ProgramContents[Graph]) -> dict[int, Tree[Spec]]:
    """The specs of the arguments of the watched calls, by the number of the call."""
    return {
        call.index: joined(call.inputs, program.joins, join_specs)
        for call in program.recording.calls
    }


def _numbers(graph: Graph, axis: Axis, expression: Expression) -> tuple[int, ...]:
    """The number or numbers that the axis has in a graph; nothing where it changes.

    A graph holds a number by itself, or its contract demands one in each of its regions.
    """
    fixed = graph.fixed_size(axis)
    if fixed is not None:
        return (fixed,)
    regions = graph.contract.regions
    demanded = (demanded_number(c.formula, str(expression)) for r in regions for c in r.constraints)
    sizes = tuple(size for size in demanded if size is not None)
    return sizes if len(sizes) == len(regions) else ()


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
    axis: Axis, expression: Expression, numbers: Sequence[int], seen: Sequence[int]
) -> Check:
    was = f"calls had {', '.join(map(str, seen))}" if len(seen) > 1 else "dynamic= or ranges= asks"
    note = (
        f"{expression} should change, since {was}; every graph takes numbers alone:"
        f" {', '.join(map(str, dict.fromkeys(numbers)))}"
    )
    return Check("unseen", str(axis), Outcome.REJECTED, (), float("inf"), note, Focus.AXES)


def _reach(checks: Sequence[Check], graphs: Sequence[Graph], calls: Sequence[SizedCall]) -> Reach:
    """Returns the sizes that the trials speak of.

    The sizes of an export count as watched ones: no trial of them tells what becomes of others.
    Without inputs there are no others.
    """
    if not any(graph.plan.inputs for graph in graphs):
        return Reach.UNSEEN
    if all(_takes_numbers_alone(graph) for graph in graphs):
        return Reach.WATCHED_SERVED
    known = {frozenset(graph.sizes.items()) for graph in graphs}
    known |= {frozenset(sizes.items()) for _, sizes in calls}
    tried = {frozenset(check.sizes) for check in checks if check.sizes}
    return Reach.UNSEEN if tried - known else Reach.WATCHED_TRIED


def _takes_numbers_alone(graph: Graph) -> bool:
    return all(
        _numbers(graph, axis, expression)
        for leaf in graph.plan.inputs
        for axis, expression in leaf.axes
        if expression.symbols
    )

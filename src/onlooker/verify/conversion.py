"""A program for another target: its graphs in the ranges that were asked for, converted, and compared
with what they were made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import UsageError
from ..core.precision import is_calibrated, is_integer
from ..hypotheses.overrides import RangesOption, overrides_of
from ..hypotheses.ranges import check_bounded, from_one_on, plans_in_ranges, seen_sizes
from ..observing.state import kept_state
from ..patches.collector import collecting_new_objects
from ..proofs.exported_sizes import numbers_of_no_shape
from ..serve.runnable import RunnableProgram
from ..targets.first_run import kept_open
from ..targets.fixed_ranks import of_fixed_ranks
from ..targets.integers.layers import FLOAT_LAYERS, check_float_layers
from ..targets.refused import convert_or_leave_out
from ..targets.refused_values import bound_to_values, not_finite
from ..targets.single_floats import of_single_floats
from ..targets.stand_ins import (
    check_weights_are_here,
    only_written,
    weights_are_elsewhere,
    without_numbers,
)
from ..targets.target import Target, check_precision, read_again
from ..targets.targets import check_options, target_of
from ..trace.graph import Graph, check_graphs
from .calibration import CALIBRATION, calibration_calls
from .check import checked_calls
from .effort import Effort
from .narrower import few_trials, lost_checks, noted_losses, noted_refusals, runs
from .request import ATOL, is_reduced
from .trials import infinite_trials, observed_trials

__all__ = ["converted", "is_exact", "run_with"]


def is_exact(graphs: Sequence[Graph]) -> bool:
    """True where no graph was asked for in another precision than that of the model."""
    return not any(map(is_reduced, graphs))


def run_with(program: RunnableProgram, options: Mapping[str, Any]) -> RunnableProgram:
    """The program as its target runs it with these options; itself where none is given.

    :raises UsageError: ``unknown-option``, and those of the target
    """
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return program
    graphs = program.contents.graphs
    target = target_of(graphs[0].target)
    running = [name for name in target.reading if name in target.options]
    check_options(target, given, running)
    return program.with_graphs(read_again(target, graphs, **given))


@collecting_new_objects()
def converted(
    program: RunnableProgram,
    target: str,
    options: Mapping[str, Any],
    *,
    ranges: RangesOption | None = None,
) -> RunnableProgram:
    """Returns the same plans for another target: see :meth:`onlooker.Program.to`.

    :raises UsageError: ``unknown-target``, ``unknown-option``, ``not-from-torch``, and those of the
        ranges and of the target
    :raises ExportError: what the target says of a graph that a watched call needs
    """
    chosen = target_of(target)
    check_options(chosen, options, chosen.options, converted)
    check_graphs(program.contents.graphs)
    check_weights_are_here(program.contents.graphs, streamed=True)
    there = {graph.target for graph in program.contents.graphs}
    if there == {target} and ranges is None and set(options) <= set(chosen.reading):
        return run_with(program, options)
    reduced = [graph.title for graph in program.contents.graphs if is_reduced(graph)]
    if reduced:
        raise UsageError(
            f"{reduced[0]} is in another precision than its model already.",
            slug="not-from-torch",
            hint=(
                "Keep the program that observer.export() gives, and turn that one into each"
                " precision."
            ),
        )
    others = sorted(there - {"torch"})
    if others:
        raise UsageError(
            f"A program of {' and '.join(others)} cannot be turned into {target!r}.",
            slug="not-from-torch",
            hint=(
                "Keep the program of torch that observer.export() gives, and turn that one into"
                " each target."
            ),
        )
    chosen.require()
    graphs = _in_ranges(program, ranges, chosen)
    graphs, options = _to_calibrate(program, graphs, chosen, options)
    with program.stages.stage("export"):
        wide = program.with_graphs(graphs)

        def serves(fewer: Sequence[Graph]) -> bool:
            return _serves_all_calls_of(wide, wide.with_graphs(fewer))

        with kept_open():
            with without_numbers():
                made, left_out = convert_or_leave_out(chosen, graphs, options, serves)
            if weights_are_elsewhere():
                return program.with_graphs(noted_refusals(only_written(made), left_out))
            made = _compared(program, bound_to_values(made, graphs, program.samples))
    return program.with_graphs(noted_refusals(made, left_out))


def _to_calibrate(
    program: RunnableProgram, graphs: list[Graph], target: Target, options: Mapping[str, Any]
) -> tuple[list[Graph], dict[str, Any]]:
    """The graphs, which note the precision that is asked for and the calls that it is calibrated on;
    and the options of the target, with the inputs of these calls.

    :raises UsageError: ``bad-variant``, ``no-calibration``, ``no-such-layer``, ``no-values``
    """
    precision = options.get("precision")
    check_precision(target, precision)
    asked = ("calibration", "seed", FLOAT_LAYERS)
    rest = {name: value for name, value in options.items() if name not in asked}
    left = options.get(FLOAT_LAYERS)
    if left is not None and not is_integer(precision):
        with_integers = [name for name in target.precisions if is_integer(name)]
        raise UsageError(
            f"float_layers is given, and precision={precision!r} makes no integers.",
            slug="bad-variant",
            hint=f"Leave it out, or ask for {' or '.join(with_integers)}.",
        )
    layers = {} if left is None else check_float_layers(graphs, left)
    needless = [name for name in ("calibration", "seed") if options.get(name) is not None]
    if not is_calibrated(precision):
        if needless:
            calibrated = [name for name in target.precisions if is_calibrated(name)]
            raise UsageError(
                f"{needless[0]} is given, and precision={precision!r} is made without calls.",
                slug="bad-variant",
                hint=f"Leave it out, or ask for {' or '.join(calibrated)}.",
            )
        noted = {} if precision is None else {"precision": precision}
    else:
        calls = calibration_calls(
            program, graphs, options.get("calibration"), options.get("seed") or 0
        )
        rest["calibration"] = calls.inputs
        noted = {"precision": precision, CALIBRATION: calls.label}
    noted |= layers
    return [replace(graph, options={**graph.options, **noted}) for graph in graphs], rest


def _serves_all_calls_of(program: RunnableProgram, fewer: RunnableProgram) -> bool:
    """True when ``fewer`` serves every watched call that ``program`` serves: by the sizes of all
    calls, and by running those whose values were kept.
    """
    recording = program.contents.recording
    before, now = (checked_calls(one.contents, recording) for one in (program, fewer))
    if any(old.holds and not new.holds for old, new in zip(before, now, strict=True)):
        return False
    trials = list(observed_trials(program.samples))
    return not any(runs(program.serve, trial) > runs(fewer.serve, trial) for trial in trials)


def _in_ranges(
    program: RunnableProgram, ranges: RangesOption | None, target: Target
) -> list[Graph]:
    """The graphs in narrower ranges of their sizes, with all bounds that the target needs.

    :raises UsageError: ``bounds-needed`` and others of the ranges
    """
    contents = program.contents
    seen = seen_sizes(contents.plans, contents.recording, contents.joins)
    plans = plans_in_ranges(contents.plans, overrides_of(ranges=ranges), seen)
    if target.name != "torch":
        numbers = (
            numbers_of_no_shape(graph.artifact, graph.plan, graph.names)
            for graph in contents.graphs
        )
        plans = list(map(from_one_on, plans, numbers))
    if target.needs_bounds:
        check_bounded(plans, seen, target.name)
    pairs = zip(contents.graphs, plans, strict=True)
    bound = of_fixed_ranks([replace(graph, plan=plan) for graph, plan in pairs], target.name)
    return of_single_floats(bound, target.name)


def _compared(program: RunnableProgram, graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs that were made of those of a program, with notes of the calls that they serve no more.

    Tried are the observed calls and some other sizes, for no more work than a verification may have.
    A program without model or values, or with a graph that cannot be run here, is not tried.
    """
    is_blocked = any(graph.blocked for graph in graphs)
    if is_blocked or program.lab is None or not program.samples:
        return list(graphs)
    model = program.watched.model
    with kept_state(model, {}):  # a program shares buffers with its model
        checks = lost_checks(
            program.with_graphs(graphs).serve,
            program.serve,
            few_trials(graphs, program.samples, program.kept),
            Effort(model),
            atol=ATOL if is_exact(graphs) else float("inf"),
        )
        if is_exact(graphs):
            graphs = _bound_to_finite(program, graphs)
    return noted_losses(graphs, checks, program.contents.graphs[0].target)


def _bound_to_finite(program: RunnableProgram, graphs: Sequence[Graph]) -> list[Graph]:
    """Graphs of another runtime, of which those that compute otherwise with infinite numbers take
    none.
    """
    serve, kept, model = program.with_graphs(graphs).serve, program.kept, program.watched.model
    bound = list(graphs)
    for at, graph in enumerate(graphs):
        own = infinite_trials(graph, kept, program.argument_of_weights)
        trials = own if graph.target != "torch" else []
        if not trials:
            continue
        found = lost_checks(serve, program.serve, trials, Effort(model), atol=ATOL)
        if not all(check.passed for checks in found.values() for check in checks):
            bound[at] = not_finite(graph, program.samples)
    return bound

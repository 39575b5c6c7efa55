"""Exports one regime with torch.export."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch._dynamo.exc import UserError

from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan
from ..infer.name import label_of
from ..infer.sizes import Sizes
from ..observe.inner import advice_on_inner
from ..observe.store import Sample, copy_leaves
from ..probe.example import Example, find_example
from ..probe.subject import Subject
from .by_values import UncheckedBranchError, depends_on_values
from .dims import Asked, least_of, read_refusal
from .flat import FlatModel, identifiers, output_labels
from .float_check import checked_floats
from .float_tensors import floats_stay_numbers, with_float_tensors
from .graph import Graph, Outputs
from .guard_count import TooManyGuardsError, most_guards
from .lines import Guard, listening, place_of_error, reasons
from .obtained import read_obtained
from .size_ints import asks_for_int, bakes_int, ints_stay_sizes
from .torch_run import runner_on_demand
from .whole_rows import is_exact_elsewhere

__all__ = ["export_graph", "graph_of"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 8


def export_graph(
    plan: Plan,
    samples: Sequence[Sample],
    subject: Subject,
    *,
    choices: Sequence[Sizes] | None = None,
    oblivious: bool = False,
) -> Graph:
    """The exported graph of a plan; when torch refuses, its message is read and it is asked again.

    ``choices`` are sizes to export with, the likeliest first; without them general ones are chosen.
    ``oblivious`` asks at once without guards on 0 and 1, which is else done after a trace that met too many.

    :raises ExportError: ``export-refused`` with the last message of torch, ``float-decides``
    """
    start = time.perf_counter()
    labels = [label_of(leaf.path) for leaf in plan.inputs]
    names = dict(zip([leaf.path for leaf in plan.inputs], identifiers(labels), strict=True))
    asked = Asked().without_guards(plan) if oblivious else Asked.first(plan)
    fixed, notes, join_rows = dict[str, int](), list(plan.notes), True
    refusal: Exception | None = None
    for _ in range(_ATTEMPTS):
        example = find_example(plan, samples, subject, fixed=fixed, choices=choices)
        flat = FlatModel.of(subject, plan, names, example.values)
        flat.join_rows(join_rows)
        try:
            with listening() as heard:
                program = _export(flat, subject, plan, names, example, asked)
        except Exception as error:
            refusal = error
            logger.debug("torch.export refuses: %s", error)
            asked, note = _another_way(error, plan, asked, heard)
            found = None if note else read_refusal(str(error), asked, plan)
            if found is None:
                if not note and (asked.auto or isinstance(error, UncheckedBranchError)):
                    break
                asked = asked if note else replace(asked, auto=True)
                notes.append(note or f"asked again without names: {_first_line(error)}")
                continue
            asked = found.asked
            notes += [found.note] if found.note else []
            notes += reasons(heard, plan, names, found.texts)
            fixed |= _observed(plan, found.specialised)
            continue
        if asked.ints is None and bakes_int(heard):
            asked = replace(asked, ints=True)
            continue
        graph = graph_of(plan, names, program, example, flat)
        if flat.n_joined and not is_exact_elsewhere(graph, samples, subject):
            join_rows = False
            continue
        notes += reasons(heard, plan, names, _narrow(graph))
        seconds, told = time.perf_counter() - start, tuple(dict.fromkeys(notes))
        return checked_floats(
            replace(graph, notes=told, seconds=seconds, oblivious=asked.oblivious, named=asked.named(plan)),
            samples,
            subject,
        )
    cause = asked.branch if isinstance(refusal, UncheckedBranchError) else refusal
    raise _refused(plan, cause, subject) from cause


def _refused(plan: Plan, refusal: Exception | None, subject: Subject) -> ExportError:
    place = place_of_error(refusal) if refusal is not None else ""
    where = f"The line of the model is {place}. " if place else ""
    inner = advice_on_inner(subject.model)
    return ExportError(
        f"torch.export refuses {plan.model or 'the model'}.{plan.method} ({plan.name}): {refusal}",
        slug="export-refused",
        hint=f"{where}{inner}The message above is torch's own; the plan that was asked for is observer.plans().",
    )


def _another_way(error: Exception, plan: Plan, asked: Asked, heard: Sequence[Guard]) -> tuple[Asked, str]:
    """How else to trace, and why; no reason where there is no other way."""
    if isinstance(error, TooManyGuardsError):
        return asked.without_guards(plan), f"asked again without guards on 0 and 1: {error}"
    if depends_on_values(error) and asked.branch is None:
        way = replace(asked, branch=error)
        where = f" is asked at {place}" if (place := place_of_error(error)) else ""
        return way, f"the side of a branch that the example takes is in the graph{where}: {_first_line(error)}"
    if asked.ints is None and asks_for_int(heard):
        return replace(asked, ints=True), f"int() and range() of a size are read as sizes: {_first_line(error)}"
    if asked.ints and not isinstance(error, UserError):
        return replace(asked, ints=False), f"int() and range() are those of Python again: {_first_line(error)}"
    return asked, ""


def _narrow(graph: Graph) -> list[str]:
    """The expressions of the plan that the program takes as a number, or in a range that nobody asked for."""
    plan = graph.plan
    lows = {str(e): least_of(plan, e) or 2 for leaf in plan.inputs for e in leaf.shape if e.symbols}
    limited = {text for text, (low, high) in graph.ranges.items() if low > lows.get(text, 2) or high is not None}
    own = {symbol.name for symbol in plan.symbols if symbol.high is not None}
    changing = [(axis, str(e)) for leaf in plan.inputs for axis, e in leaf.axes if e.symbols]
    fixed = [text for axis, text in changing if graph.obtained.get(str(axis), "").isdigit()]
    return list(dict.fromkeys([*fixed, *(text for _, text in changing if text in limited - own)]))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _observed(plan: Plan, specialised: Mapping[str, int]) -> dict[str, int]:
    """A size that was seen for each symbol that torch will not let change."""
    return {s.name: max(s.observed, default=2) for s in plan.symbols if s.name in specialised}


def _export(
    flat: FlatModel, subject: Subject, plan: Plan, names: Mapping[Path, str], example: Example, asked: Asked
) -> torch.export.ExportedProgram:
    leaves = copy_leaves(tuple(example.values[leaf.path] for leaf in plan.inputs))
    inputs = dict(zip(names.values(), with_float_tensors(leaves), strict=True))
    flat.limit_guards(None if asked.oblivious else most_guards(len(plan.inputs)))
    ints = ints_stay_sizes(subject.model if asked.ints else None)
    floats = floats_stay_numbers(subject.model, plan)
    with torch.no_grad(), warnings.catch_warnings(), subject.untouched(traced=True), asked.settings(), ints, floats:
        warnings.simplefilter("ignore")
        return torch.export.export(flat, (), inputs, dynamic_shapes=asked.dynamic_shapes(plan, names), strict=False)


def graph_of(
    plan: Plan,
    names: Mapping[Path, str],
    program: torch.export.ExportedProgram,
    example: Example,
    flat: FlatModel,
) -> Graph:
    """The graph around an exported program."""
    outputs = Outputs(
        example.outputs.structure,
        tuple(output_labels(example.outputs, [label_of(leaf.path) for leaf in plan.inputs])),
        flat.dynamic,
        tuple(None if flag else leaf for leaf, flag in zip(example.outputs.leaves, flat.dynamic, strict=True)),
        tuple(i for i, leaf in enumerate(example.outputs.leaves) if flat.dynamic[i] and type(leaf) is int),
        tuple(i for i, leaf in enumerate(example.outputs.leaves) if flat.dynamic[i] and isinstance(leaf, float)),
    )
    obtained, ranges = read_obtained(program, plan, names)
    return Graph(
        plan,
        names,
        outputs,
        runner_on_demand(program, tuple(names.values())),
        program,
        "torch",
        example.sizes,
        obtained,
        ranges,
        example=tuple(example.values[leaf.path] for leaf in plan.inputs),
    )

"""Exports one regime with torch.export."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan
from ..infer.name import label_of
from ..infer.sizes import Sizes
from ..observe.inner import advice_on_inner
from ..observe.store import Sample, copy_leaves
from ..probe.example import Example, find_example
from ..probe.subject import Subject
from .dims import Asked, least_of, read_refusal
from .flat import FlatModel, identifiers, output_labels
from .graph import Graph, Outputs
from .guard_count import TooManyGuardsError, most_guards
from .lines import listening, place_of_error, reasons
from .obtained import read_obtained
from .torch_run import runner_on_demand

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

    :raises ExportError: ``export-refused`` with the last message of torch
    """
    start = time.perf_counter()
    labels = [label_of(leaf.path) for leaf in plan.inputs]
    names = dict(zip([leaf.path for leaf in plan.inputs], identifiers(labels), strict=True))
    asked = Asked().without_guards(plan) if oblivious else Asked.first(plan)
    fixed, notes = dict[str, int](), list(plan.notes)
    refusal: Exception | None = None
    for _ in range(_ATTEMPTS):
        example = find_example(plan, samples, subject, fixed=fixed, choices=choices)
        flat = FlatModel.of(subject, plan, names, example.values)
        try:
            with listening() as heard:
                program = _export(flat, subject, plan, names, example, asked)
        except TooManyGuardsError as error:
            refusal, asked = error, asked.without_guards(plan)
            notes.append(f"asked again without guards on 0 and 1: {error}")
            continue
        except Exception as error:
            refusal = error
            logger.debug("torch.export refuses: %s", error)
            found = read_refusal(str(error), asked, plan)
            if found is None:
                if asked.auto:
                    break
                asked = replace(asked, auto=True)
                notes.append(f"asked again without names: {_first_line(error)}")
                continue
            asked = found.asked
            notes += [found.note] if found.note else []
            notes += reasons(heard, plan, names, found.texts)
            fixed |= _observed(plan, found.specialised)
            continue
        graph = graph_of(plan, names, program, example, flat)
        notes += reasons(heard, plan, names, _narrow(graph))
        seconds = time.perf_counter() - start
        graph = replace(graph, notes=tuple(dict.fromkeys(notes)), seconds=seconds, oblivious=asked.oblivious)
        return replace(graph, named=asked.named(plan))
    raise _refused(plan, refusal, subject) from refusal


def _refused(plan: Plan, refusal: Exception | None, subject: Subject) -> ExportError:
    place = place_of_error(refusal) if refusal is not None else ""
    where = f"The line of the model is {place}. " if place else ""
    inner = advice_on_inner(subject.model)
    return ExportError(
        f"torch.export refuses {plan.model or 'the model'}.{plan.method} ({plan.name}): {refusal}",
        slug="export-refused",
        hint=f"{where}{inner}The message above is torch's own; the plan that was asked for is observer.plans().",
    )


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
    inputs = {names[leaf.path]: value for leaf, value in zip(plan.inputs, leaves, strict=True)}
    flat.limit_guards(None if asked.oblivious else most_guards(len(plan.inputs)))
    with torch.no_grad(), warnings.catch_warnings(), subject.untouched(traced=True), asked.settings():
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

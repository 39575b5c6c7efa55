"""Exports one regime with torch.export."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan
from ..core.structure import Tree
from ..infer.name import label_of
from ..infer.sizes import Sizes, choose_sizes, observed_sizes
from ..materialise.arguments import close_arguments, materialise
from ..observe.store import Sample
from ..probe.subject import Subject
from .dims import Asked, read_refusal
from .flat import FlatModel, identifiers, output_labels
from .graph import Graph, Outputs
from .obtained import read_obtained

__all__ = ["Example", "export_graph", "find_example", "graph_of", "runner_of"]

logger = logging.getLogger(__name__)
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class Example:
    """Sizes that the model accepts, the values of all leaves, and the result."""

    sizes: Sizes
    values: Mapping[Path, Any]
    outputs: Tree[Any]


def find_example(plan: Plan, samples: Sequence[Sample], subject: Subject, fixed: Mapping[str, int]) -> Example:
    """The first general sizes that the model itself accepts in eager mode.

    :raises ExportError: ``no-lawful-sizes`` when it refuses all that were tried
    """
    refusal: Exception | None = None
    for sizes in _size_choices(plan):
        sizes = {**sizes, **fixed}
        for varied in (True, False):
            values = materialise(plan, sizes, samples, varied=varied)
            try:
                return Example(sizes, values, subject.try_out(close_arguments(plan, values)))
            except Exception as error:
                refusal = error
                logger.info("sizes %s are refused by the model: %s", sizes, error)
    names = ", ".join(s.name for s in plan.symbols) or "this call"
    raise ExportError(
        f"The model refuses every choice of general sizes for {names}; "
        f"the last refusal was {type(refusal).__name__}: {refusal}.",
        slug="no-lawful-sizes",
        hint="Watch calls of other sizes, so that relations between axes show.",
    ) from refusal


def _size_choices(plan: Plan) -> Iterator[Sizes]:
    for near, offset in ((False, 0), (False, 1), (True, 0), (True, 1), (True, 3)):
        try:
            yield choose_sizes(plan, near=near, offset=offset)
        except ExportError as error:
            logger.info("%s", error)
    yield observed_sizes(plan)


def export_graph(plan: Plan, samples: Sequence[Sample], subject: Subject) -> Graph:
    """The exported graph of a plan; when torch refuses, its message is read and it is asked again.

    :raises ExportError: ``export-refused`` with the last message of torch
    """
    start = time.perf_counter()
    labels = [label_of(leaf.path) for leaf in plan.inputs]
    names = dict(zip([leaf.path for leaf in plan.inputs], identifiers(labels), strict=True))
    asked, fixed, notes = Asked(), dict[str, int](), list(plan.notes)
    refusal: Exception | None = None
    for _ in range(_ATTEMPTS):
        example = find_example(plan, samples, subject, fixed)
        flat = FlatModel.of(subject, plan, names)
        try:
            program = _export(flat, plan, names, example, asked)
        except Exception as error:
            refusal = error
            logger.info("torch.export refuses: %s", error)
            found = read_refusal(str(error), asked, plan)
            if found is None:
                if asked.auto:
                    break
                asked = replace(asked, auto=True)
                notes.append(f"asked again without names: {_first_line(error)}")
                continue
            asked = found.asked
            notes += [found.note] if found.note else []
            fixed |= _observed(plan, found.specialised)
            continue
        graph = graph_of(plan, names, program, example, flat)
        return replace(graph, notes=tuple(notes), seconds=time.perf_counter() - start)
    raise ExportError(
        f"torch.export refuses {plan.model or 'the model'}.{plan.method} ({plan.name}): {refusal}",
        slug="export-refused",
        hint="The message above is torch's own; the plan that was asked for is observer.plan().",
    ) from refusal


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _observed(plan: Plan, specialised: Mapping[str, int]) -> dict[str, int]:
    """A size that was seen for each symbol that torch will not let change."""
    return {s.name: max(s.observed, default=2) for s in plan.symbols if s.name in specialised}


def _export(
    flat: FlatModel, plan: Plan, names: Mapping[Path, str], example: Example, asked: Asked
) -> torch.export.ExportedProgram:
    inputs = {names[leaf.path]: _copied(example.values[leaf.path]) for leaf in plan.inputs}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(flat, (), inputs, dynamic_shapes=asked.dynamic_shapes(plan, names), strict=False)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


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
    )
    obtained, ranges = read_obtained(program, plan, names)
    return Graph(
        plan,
        names,
        outputs,
        runner_of(program, tuple(names.values())),
        program,
        "torch",
        example.sizes,
        obtained,
        ranges,
        example=tuple(example.values[leaf.path] for leaf in plan.inputs),
    )


def runner_of(program: torch.export.ExportedProgram, names: Sequence[str]) -> Any:
    """A function of the inputs, in their order, that runs the program with its guards."""
    module = program.module()

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        result: Sequence[Any] = module(**dict(zip(names, inputs, strict=True)))
        return result

    return run

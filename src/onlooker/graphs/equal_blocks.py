"""Are the graphs of equal blocks the graph of each of them?

A program of equal blocks is traced on a copy of the first one, whose weights are an argument. The blocks
hold the same but for weights (:mod:`onlooker.observing.wrapping.shared_block`). Whether code tells them
apart all the same is seen in a trace of each of them, at the sizes of the first trace of each plan and
with its weights as an argument too: it has to be the same graph, under the same conditions on sizes. Blocks
that hold numbers of their own are traced with these at the sizes of all traces, the first one too, since the
class of a number can be asked for where a stand-in is not read. Each block itself also runs one watched
call, since code outside of it may know it, and not a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.errors import ExportError, UnsupportedError
from ..lab.lab import Lab
from ..lab.rerun import difference
from ..lab.runner import ModelRunner
from ..observing.samples import Sample
from ..observing.state import StateKeeper
from ..observing.wrapping.lifted_weights import Weights
from ..observing.wrapping.own_layer import BlockNumberError
from ..observing.wrapping.shared_block import SharedBlock, weights_of
from ..trace.torch_export import Traced, export_graph
from .one_plan.search import PlanSearch
from .program_graphs import ProgramGraphs

__all__ = ["check_equal_blocks", "telling_blocks_apart"]


@contextlib.contextmanager
def telling_blocks_apart(model: Any) -> Iterator[None]:
    """Inside the block a refusal of blocks that read what is another number in each of them says so.

    :raises UnsupportedError: ``blocks-differ``
    """
    try:
        yield
    except ExportError as error:
        if isinstance(model, SharedBlock) and isinstance(error.__cause__, BlockNumberError):
            raise _blocks_differ(model, str(error.__cause__)) from error
        raise


def check_equal_blocks(program: ProgramGraphs) -> None:
    """Passes for a model that is no list of blocks, and for blocks that give the same graphs.

    :raises UnsupportedError: ``blocks-differ``
    """
    shared = program.lab.subject.watched
    if not isinstance(shared, SharedBlock):
        return
    first, subject = next(iter(shared.blocks)), program.lab.subject
    traces = list(_traces(program, every=bool(shared.counts)))
    for name, block in shared.blocks.items():
        itself, alone = shared.itself(name)
        found = _difference_of_run(itself, weights_of(block), subject, shared, program.samples)
        if found:
            why = f"block {name} gives another result than a copy of it with its weights ({found})"
            raise _blocks_differ(shared, why)
        if name == first and not shared.counts:
            continue  # its copy is what was traced
        lab = _lab_of(subject, alone)
        for search, traced in traces:
            found = _difference(search, traced, lab)
            if found:
                known = "a copy of it without its number" if name == first else f"block {first}"
                raise _blocks_differ(shared, f"block {name} is not {known}: {found}")


def _difference_of_run(
    itself: torch.nn.Module,
    weights: Weights,
    subject: ModelRunner,
    shared: SharedBlock,
    samples: Sequence[Sample],
) -> str:
    """Where a block and the module with its weights part on the first kept call; empty where they
    agree, and without a kept call.
    """
    if not samples:
        return ""
    arguments = samples[0].arguments()
    own = {name: value for name, value in arguments.items() if name != shared.argument}
    as_block = replace(subject, model=itself, original=None, keeper=StateKeeper(), changed=())
    as_module = {**own, shared.argument: weights}
    runner = replace(subject, changed=())
    return difference(as_block.try_out(own), runner.try_out(as_module))


def _blocks_differ(shared: SharedBlock, why: str) -> UnsupportedError:
    """The refusal of blocks that no one graph serves."""
    return UnsupportedError(
        f"The {len(shared.blocks)} blocks of class {shared.kind.__name__} are no repetition of one"
        f" function: {why}.",
        slug="blocks-differ",
        hint=(
            "Watch those apart that differ: onlooker.observe(first=blocks[:4], last=blocks[4:]);"
            " or the whole model."
        ),
    )


def _lab_of(subject: ModelRunner, shared: SharedBlock) -> Lab:
    runner = ModelRunner.of_twin(
        shared,
        subject.method,
        subject.signature,
        autocast=subject.autocast,
        gradients=subject.gradients,
    )
    return Lab(replace(runner, changed=subject.changed))


def _traces(program: ProgramGraphs, *, every: bool) -> Iterator[tuple[PlanSearch, Traced]]:
    """The traces that proved the graphs; the first one of each plan, or ``every`` one."""
    for search in program.searches:
        traces = [traced for proven in search.graphs for traced in proven.traces]
        yield from ((search, traced) for traced in traces[: None if every else 1])


def _difference(search: PlanSearch, traced: Traced, lab: Lab) -> str:
    """Where the trace of another block differs from this one, in words; empty where it does not."""
    graph = traced.graph
    try:
        other = export_graph(
            graph.plan, search.calls.samples, lab, choices=[graph.sizes], like=traced.request
        )
    except ExportError as error:
        return f"its trace is refused ({error.message})"
    if other.condition.atoms.keys() != traced.condition.atoms.keys():
        return f"it decides otherwise by sizes ({_decisions(traced, other)})"
    return search.difference_of(other.graph, traced)


def _decisions(first: Traced, second: Traced) -> Any:
    keys = first.condition.atoms.keys() ^ second.condition.atoms.keys()
    atoms = {**first.condition.atoms, **second.condition.atoms}
    return ", ".join(sorted(str(atoms[key].constraint()) for key in keys))

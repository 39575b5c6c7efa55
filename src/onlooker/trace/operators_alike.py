"""Do a model and a graph of it run the same operators at some sizes? Both run without floats, or both with
values.

Equal operators on equal arguments give equal results for all values. So two such runs prove more than
results that agree for a few, and of a large model those without floats cost less than one run with values.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Values
from ..core.path import Path
from ..lab.effects import HeldArguments
from ..lab.lab import Lab
from ..lab.recorder import Recorder
from ..lab.remembering_mode import RememberingMode
from ..lab.without_floats import without_float_values, without_its_floats
from ..materialise.arguments import Calls
from ..observing.store import copy_leaves
from ..proofs.same_run import Numbers
from ..repairs.trace_mode import reading
from ..repairs.untraced_tensors import UntracedTensors
from ..torch_internals.fake_tensors import FakeTensorMode
from .graph import Graph
from .size_reads import SizeReads

__all__ = ["AlikeRuns", "run_alike", "sizes_read_alike"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlikeRuns:
    """The operators and the results of a run of a model and of a run of its graph, which are the same."""

    of_model: Recorder
    results: Sequence[Any]
    of_graph: Recorder
    results_of_graph: Sequence[Any]


def sizes_read_alike(
    graph: Graph, calls: Calls, lab: Lab, values: Values, why: str
) -> list[tuple[Any, ...]] | None:
    """The sizes that the Python of the model reads in a call, where the model and the graph run the
    same operators on the same arguments; None where they do not, or where that is unknown.

    The model runs as it is: it is not told of any trace.
    """
    reads = SizeReads()

    @contextlib.contextmanager
    def looking(mode: FakeTensorMode, recorder: Recorder) -> Iterator[None]:
        with without_float_values(mode), recorder, reading(reads, UntracedTensors()):
            yield

    run = run_alike(graph, calls, lab, values, looking, why=why)
    return None if run is None else list(reads.sizes)


def run_alike(
    graph: Graph,
    calls: Calls,
    lab: Lab,
    values: Values,
    looking: Callable[[FakeTensorMode, Recorder], AbstractContextManager[None]],
    *,
    why: str,
    has_values: bool = False,
    by_operators: bool = False,
) -> AlikeRuns | None:
    """A run of the model without floats and one of the graph, where both run the same operators on the same
    arguments; None where they do not, or where that is unknown.

    The model runs inside of ``looking``, which takes the values of floats away, unless the run ``has_values``. What
    is computed of constants is compared by its values, or ``by_operators`` too.
    """
    of_model, of_graph = Recorder(), Recorder()
    paths = [leaf.path for leaf in graph.plan.inputs]
    mode, why = RememberingMode(), why if has_values else f"{why}, without floats"
    ours = _copied(values) if has_values else _without_floats(mode, values)
    arguments = calls.arguments_of(ours)
    held = HeldArguments(arguments, {one.name for one in lab.subject.changed})
    try:
        result = lab.run_within(arguments, looking(mode, of_model), why=why)
        with contextlib.ExitStack() as stack:
            if has_values:
                given = _copied(values)
            else:
                given = _without_floats(stack.enter_context(without_float_values()), values)
            theirs = [given[path] for path in paths]
            stack.enter_context(of_graph)
            got = graph(theirs)
        if result.structure != graph.outputs.structure or held.changes(result):
            return None
        weights = lab.subject.watched if isinstance(lab.subject.watched, torch.nn.Module) else None
        own = () if weights is None else (*weights.parameters(), *weights.buffers())
        numbers = Numbers(own, by_operators=by_operators)
        given_to_model = [ours[path] for path in paths]
        # what is left behind in the arguments is part of both
        of_the_model = numbers.of(of_model, given_to_model, [*result.leaves, *given_to_model])
        is_same = of_the_model.is_done_by(numbers.of(of_graph, theirs, [*got, *theirs]))
    except Exception as error:  # a nested tensor has no shape, for one
        logger.debug("%s: %s", why, error)
        return None
    logger.debug("%s: %s runs the same operators: %s", why, graph.name, is_same)
    return AlikeRuns(of_model, result.leaves, of_graph, got) if is_same else None


def _copied(values: Values) -> dict[Path, Any]:
    return dict(zip(values, copy_leaves(tuple(values.values())), strict=True))


def _without_floats(mode: FakeTensorMode, values: Values) -> dict[Path, Any]:
    return {path: without_its_floats(mode, value) for path, value in values.items()}

"""What the graphs of a search give for calls, and what their operators do with values and positions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...core.errors import RejectedCallError
from ...core.structure import Tree
from ...lab.lab import Lab
from ...lab.memory import is_out_of_memory
from ...lab.recorder import Recorder
from ...lab.runner import opened
from ...pytrees.open import copy_tensors, open_arguments
from ...serve.dispatch import Dispatcher
from ...trace.graph import Graph
from ..identity import pieces_of
from .operators_of_runs import (
    numbers_of_positions,
    places_taken,
    thresholds_on_values,
    used_steps,
    value_reads,
)
from .symbolic_sizes import TooLargeError, WayDiffersError

__all__ = ["GraphRun", "GraphRuns"]


@dataclass(frozen=True)
class GraphRun:
    """The results of a graph for some inputs, and what its operators do with values; None for the
    latter where it has inner graphs that are not recorded.
    """

    inputs: Sequence[Any]
    result: Tree[Any]
    thresholds: Counter[Any] | None
    value_reads: int = 0
    positions: Counter[int] = field(default_factory=Counter)
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    #: the sizes at which what the graph computes of sizes may begin another piece
    pieces: frozenset[int] = frozenset()

    def is_for(self, inputs: Sequence[Any]) -> bool:
        """True for the same inputs."""
        return len(inputs) == len(self.inputs) and all(map(_is_same, inputs, self.inputs))


class GraphRuns:
    """Runs of the graphs of one search, each in a program of its own.

    A graph is run once for all forms of a way that give it the same inputs: a call with an empty
    cache is another call for the model than one without a cache, and the same one for the graph.
    """

    def __init__(self, graphs: Sequence[Graph], lab: Lab) -> None:
        self._gradients = lab.subject.gradients
        # not by name: while graphs come and go, two may have the same one
        self._programs = [(graph, Dispatcher([graph], lab.signature)) for graph in graphs]
        self._known: dict[int, list[GraphRun]] = {}
        self._pieces: dict[int, frozenset[int]] = {}

    def forget(self) -> None:
        """Lets go of the runs so far."""
        self._known.clear()

    def of(self, graph: Graph, arguments: dict[str, Any]) -> GraphRun:
        """Returns what a graph gives for a call.

        :raises WayDiffersError: where the graph does not take the call
        :raises TooLargeError: where there is no memory for it
        """
        dispatcher = next(program for one, program in self._programs if one is graph)
        with torch.set_grad_enabled(self._gradients):
            taken = dispatcher.taken(arguments)
        inputs = copy_tensors(() if taken is None else taken[1])
        known = self._known.setdefault(id(graph), [])
        found = next((one for one in known if one.is_for(inputs)), None)
        if found is None or not inputs:
            if id(graph) not in self._pieces:
                self._pieces[id(graph)] = pieces_of(graph)
            found = self._run(dispatcher, arguments, inputs, self._pieces[id(graph)])
            known.append(found)
        return found

    def _run(
        self,
        dispatcher: Dispatcher,
        arguments: dict[str, Any],
        inputs: Sequence[Any],
        pieces: frozenset[int],
    ) -> GraphRun:
        recorder = Recorder()
        given = [
            leaf for leaf in open_arguments(arguments).leaves if isinstance(leaf, torch.Tensor)
        ]
        with torch.set_grad_enabled(self._gradients):
            try:
                with recorder:
                    result = opened(dispatcher.serve_values(arguments)[2])
            except RejectedCallError as refusal:
                raise WayDiffersError(f"the graph refuses it: {refusal.message}") from refusal
            except NotImplementedError:
                result = opened(dispatcher.serve_values(arguments)[2])
                return GraphRun(inputs, result, None)
            except Exception as error:
                if is_out_of_memory(error):
                    raise TooLargeError("the call takes more memory than there is") from error
                raise
        steps = used_steps(recorder.steps, result.leaves)
        return GraphRun(
            inputs,
            result,
            thresholds_on_values(steps, given),
            value_reads(steps),
            numbers_of_positions(steps),
            places_taken(steps),
            pieces,
        )


def _is_same(one: Any, other: Any) -> bool:
    """True for two inputs of a graph that hold the same."""
    if not _is_tensor(one) or not _is_tensor(other):
        return type(one) is type(other) and bool(one == other)
    is_alike = one.dtype == other.dtype and one.stride() == other.stride()
    return is_alike and torch.equal(one, other)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)

"""The graphs that take the kept calls: their contracts allow a call, and they run on it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from ..core.call import Signature
from ..core.structure import Tree
from ..lab.lab import Lab
from ..lab.small_sizes import short_call
from ..lab.without_floats import without_float_values, without_its_floats
from ..materialise.arguments import leaf_values
from ..observing.store import Sample
from ..pytrees.open import open_arguments
from ..serve.dispatch import Dispatcher, Mismatch
from ..trace.graph import Graph

__all__ = ["ServedCalls"]

logger = logging.getLogger(__name__)
#: how many notes of a graph are in an error
_MOST_NOTES = 2


class ServedCalls:
    """Finds the graphs that take kept calls; each pair is run once."""

    def __init__(self, signature: Signature, lab: Lab) -> None:
        self._signature, self._lab = signature, lab
        #: what a graph said to a call, empty where it ran, and the program that keeps its id
        self._runs: dict[tuple[int, int], tuple[str, Any]] = {}

    def is_taken(self, sample: Sample, graphs: Iterable[Graph]) -> bool:
        """True when one of the graphs takes the call."""
        with torch.set_grad_enabled(self._lab.subject.gradients):  # as it was watched
            return any(self._takes(graph, sample) for graph in graphs)

    def forget_all_but(self, graphs: Iterable[Graph]) -> None:
        """Forgets what other graphs than these said, which are freed."""
        kept = {id(graph.artifact) for graph in graphs}
        self._runs = {key: run for key, run in self._runs.items() if key[0] in kept}

    def refusal_of(self, graph: Graph, sample: Sample) -> str:
        """Returns what the graph said to the call when it ran, or what its contract demands.

        The first notes of its trace follow: they name lines.
        """
        refusal, _ = self._runs.get((id(graph.artifact), sample.call.index), ("", None))
        if not refusal:
            dispatcher = Dispatcher([graph], self._signature)
            tree = open_arguments(dict(sample.arguments()))
            refusal = "; ".join(one.said for one in dispatcher.violations(graph, tree)[:2])
        texts = [f"Of {graph.name}: {note}" for note in graph.notes[:_MOST_NOTES]]
        if refusal:
            texts.insert(0, f"To call {sample.call.index} {graph.name} says: {refusal}")
        return "".join(f" {text.rstrip('.')}." for text in texts)

    def _takes(self, graph: Graph, sample: Sample) -> bool:
        """True when a call is in the contract of a graph, and the graph runs on it, or on a short
        call that stands for it.
        """
        tree = open_arguments(dict(sample.arguments()))
        dispatcher = Dispatcher([graph], self._signature)
        if dispatcher.violations(graph, tree):
            return False
        key = (id(graph.artifact), sample.call.index)
        if key not in self._runs:
            refusal = ""
            try:
                if not self._runs_without_floats(dispatcher, graph, sample, tree):
                    dispatcher.run(graph, self._short(dispatcher, graph, sample))
            except Mismatch as mismatch:
                logger.debug("%s does not take the call: %s", graph.name, mismatch)
                refusal = str(mismatch) or "it refuses the call"
            self._runs[key] = refusal, graph.artifact  # which stays alive, and its id its own
        return not self._runs[key][0]

    def _runs_without_floats(
        self, dispatcher: Dispatcher, graph: Graph, sample: Sample, tree: Tree[Any]
    ) -> bool:
        """True where a graph runs without floats on a call that is a lot of work: such a run asserts
        what ints say, and refuses what the model refuses.
        """
        if not self._lab.is_dear(leaf_values(sample)):
            return False
        try:
            with without_float_values() as mode:
                dispatcher.run(graph, tree.each(partial(without_its_floats, mode)))
        except Exception as error:
            logger.debug("%s is not run without floats: %s", graph.name, error)
            return False
        return True

    def _short(self, dispatcher: Dispatcher, graph: Graph, sample: Sample) -> Tree[Any]:
        """Returns the arguments of a call, or those of a short call that stands for it.

        The short call has to be in the same contract.
        """
        short = short_call(graph.plan, sample, self._lab)
        if short is not None:
            tree = open_arguments(dict(short.arguments()))
            if not dispatcher.violations(graph, tree):
                return tree
        return open_arguments(dict(sample.arguments()))

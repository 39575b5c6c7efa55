"""Calls that the graphs refuse seed further graphs: a guard has two sides, and a graph is right on one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.plan import Plan
from ..core.recording import Recording
from ..core.structure import Tree
from ..infer.sizes import Sizes, is_general
from ..infer.unify import forms_of
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..observe.store import Sample
from ..probe.axes import Pins, probe_axes
from ..probe.regimes import find_regimes, sizes_of
from ..probe.subject import Subject
from ..pytrees.open import open_arguments
from .dispatch import Dispatcher, Mismatch
from .graph import Graph
from .torch_ import export_graph
from .widen import widened

__all__ = ["Coverage"]

logger = logging.getLogger(__name__)
_MOST_GRAPHS = 4


class Coverage:
    """The graphs of a program, completed until every kept call is served."""

    def __init__(
        self, graphs: Sequence[Graph], samples: Sequence[Sample], subject: Subject, recording: Recording
    ) -> None:
        self.graphs = list(graphs)
        self.refusals: list[str] = []
        self.samples, self.subject, self.recording = samples, subject, recording

    def complete(self, plans: Sequence[Plan]) -> None:
        """Adds a graph for every kept call that is refused, at most a handful."""
        given_up: set[int] = set()
        for number in range(2, 2 + _MOST_GRAPHS):
            sample = next((s for s in self.samples if s.call.index not in given_up and not self.serves(s)), None)
            if sample is None:
                return
            plan = next((p for p in plans if sample.call.index in p.calls), None)
            graph = self._region(plan, sample, number) or self._own(sample, number)
            if graph is not None:
                self.graphs.append(graph)
            if graph is None or not self.serves(sample):
                given_up.add(sample.call.index)
                self.refusals.append(f"call {sample.call.index} is served by no graph")

    def serves(self, sample: Sample) -> bool:
        """True when a graph takes the call."""
        return self._taken(sample.arguments())

    def _taken(self, arguments: Mapping[str, Any]) -> bool:
        dispatcher = Dispatcher(self.graphs, self.recording.signature)
        tree = open_arguments(dict(arguments))
        for graph in self.graphs:
            copy = Tree(tree.structure, tuple(_copied(leaf) for leaf in tree.leaves))
            try:
                dispatcher.run(graph, copy)
            except Mismatch:
                continue
            return True
        return False

    def _region(self, plan: Plan | None, sample: Sample, number: int) -> Graph | None:
        """A graph of the same plan, exported with sizes that the other graphs refuse as they refuse the call."""
        if plan is None:
            return None
        choices = [sizes for sizes in _sizes_near(plan, sample) if self._refused(plan, sizes)]
        return self._export(replace(plan, name=f"{plan.name}_{number}"), choices[:3]) if choices else None

    def _refused(self, plan: Plan, sizes: Sizes) -> bool:
        """True when the model takes these sizes, and no graph does."""
        arguments = close_arguments(plan, materialise(plan, sizes, self.samples))
        try:
            self.subject.try_out(arguments)
        except Exception as error:
            logger.debug("%s is refused by the model: %s", sizes, type(error).__name__)
            return False
        return not self._taken(arguments)

    def _own(self, sample: Sample, number: int) -> Graph | None:
        """A graph of the calls of the same form alone."""
        form = next(f for f in forms_of(self.recording.calls) if sample.call.index in {c.index for c in f.calls})
        (regime,) = find_regimes(form.calls, self.samples, self.subject)
        plan = probe_axes(regime, self.samples, self.subject, Pins()).plan()
        named = replace(plan, name=f"{plan.name}_{number}", method=self.recording.method, model=self.recording.model)
        return self._export(named, None)

    def _export(self, plan: Plan, choices: Sequence[Sizes] | None) -> Graph | None:
        logger.info("exporting %s for a call that the other graphs refuse", plan.name)
        try:
            return widened(export_graph(plan, self.samples, self.subject, choices=choices), self.samples, self.subject)
        except ExportError as error:
            logger.debug("%s", error)
            return None


def _sizes_near(plan: Plan, sample: Sample) -> Iterator[Sizes]:
    """General sizes from those of a call on: a size of 0 or 1 cannot be exported and becomes another one."""
    seed = sizes_of(plan, leaf_values(sample))
    for step in range(8):
        sizes: Sizes = {}
        for symbol in plan.symbols:
            size = max(seed[symbol.name], 2) + step * symbol.step
            while not is_general(plan, {**sizes, symbol.name: size}) and size < seed[symbol.name] + 64 * symbol.step:
                size += symbol.step
            sizes[symbol.name] = size
        if is_general(plan, sizes):
            yield sizes


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

"""Calls that the graphs refuse seed further graphs: a guard has two sides, and a graph is right on one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ..core.errors import ExportError
from ..core.plan import Plan
from ..core.recording import Recording
from ..core.structure import Tree
from ..infer.sizes import Sizes, grain, is_general, trial_sizes
from ..infer.unify import forms_of
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observe.store import Sample, copy_leaves
from ..probe.pins import Pins
from ..probe.regimes import find_regimes
from ..probe.settle import settled
from ..probe.subject import Subject
from ..pytrees.open import open_arguments
from .baked import at_sizes, baked_symbols, is_narrower
from .dispatch import Dispatcher, Mismatch
from .graph import Graph
from .relax import relaxed
from .steering import at_call, steering_ints, steering_numbers
from .torch_ import export_graph
from .widen import widened

__all__ = ["Coverage"]

logger = logging.getLogger(__name__)
_MOST_GRAPHS = 4
_SMALL = 24
#: seconds of the processor after which no further graph is begun for a call that was seen, and for other sizes
_SECONDS, _SECONDS_UNSEEN = 60.0, 25.0


class Coverage:
    """The graphs of a program, completed until every kept call is served."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        samples: Sequence[Sample],
        subject: Subject,
        recording: Recording,
        pins: Pins | None = None,
    ) -> None:
        self.graphs = list(graphs)
        self.refusals: list[str] = []
        self._start = time.thread_time()
        self.samples, self.subject, self.recording = samples, subject, recording
        self.pins = pins or Pins()

    def complete(self, plans: Sequence[Plan]) -> None:
        """Adds graphs for what is refused: first for kept calls, then for sizes that no call had."""
        given_up = self._complete_observed(plans)
        self._complete_unseen([plan for plan in plans if not self._dropped(plan)])
        self.refusals += [f"call {s.call.index} is served by no graph" for s in given_up if not self.serves(s)]

    def _dropped(self, plan: Plan) -> bool:
        """True where torch baked sizes that no call had, and a graph with sizes of a call stands in: others go."""
        if not any(is_narrower(graph.plan, plan) for graph in self.graphs):
            return False
        wide = [graph for graph in self.graphs if graph.plan.inputs == plan.inputs]
        if any(self.serves(sample, wide) for sample in self.samples):
            return False
        self.graphs = [graph for graph in self.graphs if graph not in wide]
        return True

    def _complete_unseen(self, plans: Sequence[Plan]) -> None:
        """Adds a graph for sizes that the model takes and every graph refuses, once per plan."""
        for plan in plans:
            used = [dict(graph.sizes) for graph in self.graphs]
            for _, sizes in trial_sizes(plan, used):
                if len(self.graphs) >= len(plans) + _MOST_GRAPHS or self._spent > _SECONDS_UNSEEN:
                    return
                if not self._refused(plan, sizes):
                    continue
                number = len(self.graphs) + 1
                sample = self._without_empty(plan, sizes)
                graph = self._own(sample, number) if sample else self._region(plan, sizes, number)
                if graph is not None:
                    self.graphs.append(graph)
                if graph is None or self._refused(plan, sizes):
                    break

    def _without_empty(self, plan: Plan, sizes: Sizes) -> Sample | None:
        """A kept call that does not have the leaves which are empty for these sizes."""
        empty = {
            leaf.path
            for leaf in plan.inputs
            if leaf.fill is not None
            and leaf.fill.kind == "empty"
            and leaf.fill.dim is not None
            and leaf.shape[leaf.fill.dim].evaluate(sizes) == 0
        }
        calls = [s for s in self.samples if s.call.index in plan.calls and not empty & set(leaf_values(s))]
        return calls[0] if empty and calls else None

    def _complete_observed(self, plans: Sequence[Plan]) -> list[Sample]:
        """Adds a graph for every kept call that is refused, at most a handful; gives those that none could serve."""
        given_up: dict[int, Sample] = {}
        for number in range(2, 2 + _MOST_GRAPHS):
            sample = next((s for s in self.samples if s.call.index not in given_up and not self.serves(s)), None)
            if sample is None or self._spent > _SECONDS:
                break
            plan = next((p for p in plans if sample.call.index in p.calls), None)
            made = (graph for graph in self._candidates(plan, sample, number) if graph is not None)
            graph = next((graph for graph in made if self.serves(sample, (graph,))), None)
            if graph is not None:
                self.graphs.append(graph)
            else:
                given_up[sample.call.index] = sample
        return list(given_up.values())

    def _candidates(self, plan: Plan | None, sample: Sample, number: int) -> Iterator[Graph | None]:
        """Graphs that may take a kept call: of its region, with ints or sizes as constants, then of its own form."""
        if plan is not None and _has_small_int(plan, sample):
            yield from self._at_ints(plan, sample, number)
            yield self._around(plan, sample, number)
        elif plan is not None:
            yield self._around(plan, sample, number)
            yield from self._at_ints(plan, sample, number)
        if plan is not None:
            yield from self._at_sizes(plan, sample, number)
        yield self._own(sample, number)

    def _around(self, plan: Plan, sample: Sample, number: int) -> Graph | None:
        return self._region(plan, sizes_of(plan, leaf_values(sample)), number)

    def _at_ints(self, plan: Plan, sample: Sample, number: int) -> Iterator[Graph | None]:
        """Graphs of the same plan with the ints of the call as constants: a guard on one has a side of one value."""
        numbers = steering_numbers(plan)
        if numbers:
            constant = at_call(plan, numbers, sample.call)
            yield self._export(constant, None)
            yield self._around(constant, sample, number)

    def _at_sizes(self, plan: Plan, sample: Sample, number: int) -> Iterator[Graph | None]:
        """Graphs of the same plan with the sizes as constants that a guard is about: torch bakes some of them in."""
        sizes = sizes_of(plan, leaf_values(sample))
        for names in baked_symbols(self.graphs, plan, sizes):
            constant = at_sizes(plan, {name: sizes[name] for name in sorted(names)}, sample.call.index)
            yield self._export(replace(constant, name=f"{plan.name}_{number}"), None)

    @property
    def _spent(self) -> float:
        """The seconds that further graphs took; other work on the machine does not count."""
        return time.thread_time() - self._start

    def serves(self, sample: Sample, graphs: Sequence[Graph] | None = None) -> bool:
        """True when one of the graphs takes the call; by default one of all."""
        return self._taken(sample.arguments(), self.graphs if graphs is None else graphs)

    def _taken(self, arguments: Mapping[str, Any], graphs: Sequence[Graph]) -> bool:
        dispatcher = Dispatcher(graphs, self.recording.signature)
        tree = open_arguments(dict(arguments))
        for graph in graphs:
            copy = Tree(tree.structure, copy_leaves(tree.leaves))
            try:
                dispatcher.run(graph, copy)
            except Mismatch:
                continue
            return True
        return False

    def _region(self, plan: Plan, seed: Sizes, number: int) -> Graph | None:
        """A graph of the same plan, exported with sizes that the other graphs refuse as they refuse ``seed``."""
        choices = [sizes for sizes in _sizes_near(plan, seed) if self._refused(plan, sizes)]
        return self._export(replace(plan, name=f"{plan.name}_{number}"), choices[:3]) if choices else None

    def _refused(self, plan: Plan, sizes: Sizes) -> bool:
        """True when the model takes these sizes, and no graph does."""
        arguments = close_arguments(plan, materialise(plan, sizes, self.samples))
        try:
            self.subject.try_out(arguments)
        except Exception as error:
            logger.debug("%s is refused by the model: %s", sizes, type(error).__name__)
            return False
        return not self._taken(arguments, self.graphs)

    def _own(self, sample: Sample, number: int) -> Graph | None:
        """A graph of the calls of the same form alone."""
        form = next(f for f in forms_of(self.recording.calls) if sample.call.index in {c.index for c in f.calls})
        (regime,) = find_regimes(form.calls, self.samples, self.subject, self.pins)
        plan = settled(regime, self.samples, self.subject, self.pins).plan()
        named = replace(plan, name=f"{plan.name}_{number}", method=self.recording.method, model=self.recording.model)
        near = list(islice(_sizes_near(named, sizes_of(named, leaf_values(sample))), 3))
        return (self._export(named, near) if near else None) or self._export(named, None)

    def _export(self, plan: Plan, choices: Sequence[Sizes] | None) -> Graph | None:
        logger.info("exporting %s for a call that the other graphs refuse", plan.name)
        try:
            oblivious = any(graph.oblivious for graph in self.graphs)
            graph = export_graph(plan, self.samples, self.subject, choices=choices, oblivious=oblivious)
            return widened(relaxed(graph, self.samples, self.subject), self.samples, self.subject)
        except ExportError as error:
            logger.debug("%s", error)
            return None


def _has_small_int(plan: Plan, sample: Sample) -> bool:
    """True when an int of the call is 0 or 1: torch exports no dynamic int of that value."""
    values = leaf_values(sample)
    return any(values.get(leaf.path, 0) in (0, 1) for leaf in steering_ints(plan))


def _sizes_near(plan: Plan, seed: Sizes) -> Iterator[Sizes]:
    """General sizes from those of a call on: a size of 0 or 1 cannot be exported and becomes another one.

    Large sizes stay as even as they were seen: a side of 33 is on the other side of many a guard than one of 32.
    """
    units = {symbol.name: grain(symbol) if seed[symbol.name] > _SMALL else symbol.step for symbol in plan.symbols}
    for step in range(8):
        sizes: Sizes = {}
        for name, unit in units.items():
            size = max(seed[name], 2) + step * unit
            while not is_general(plan, {**sizes, name: size}) and size < seed[name] + 64 * unit:
                size += unit
            sizes[name] = size
        if is_general(plan, sizes):
            yield sizes

"""Plans -> graphs: every watched call has to be served, and every graph is proven for the sizes
that it takes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.experiment import Experiment
from ..core.formula import symbols_in
from ..core.plan import Plan
from ..core.progress import tell
from ..core.spec import Axis
from ..core.structure import Tree
from ..hypotheses.families import resolved
from ..hypotheses.overrides import Overrides
from ..hypotheses.ranges import plans_in_ranges, seen_sizes
from ..hypotheses.shared_graphs import find_drafts
from ..infer.broadcast import broadcast_groups
from ..infer.interest import DomainOfInterest
from ..infer.sizes import Sizes
from ..infer.unify import forms_of
from ..lab.lab import Lab
from ..lab.small_sizes import short_call
from ..materialise.arguments import leaf_values
from ..materialise.counting import sizes_of
from ..materialise.domains import Domains, domains_of
from ..materialise.padding import with_padding
from ..observing.inner import advice_on_inner
from ..observing.store import Sample
from ..pytrees.open import open_arguments
from ..repairs.guard_count import UNGUARDED, TooManyGuardsError
from ..repairs.repair import TraceRequest
from ..serve.dispatch import Dispatcher, Mismatch
from ..trace.fixed_sizes import at_sizes, is_narrower
from ..trace.float_inputs import float_graphs
from ..trace.graph import Graph
from ..trace.identity import identity_difference
from ..trace.prepare import Prepared
from ..trace.search import PlanSearch, ProvenGraph
from ..trace.steering import (
    at_call,
    baked_ints,
    input_floats,
    per_value,
    steering_ints,
    steering_numbers,
)
from ..trace.torch_export import Traced, export_graph
from ..trace.ways import (
    absent_tensors,
    calls_without,
    has_empty_fills,
    is_proven_wherever,
    watched_ways,
    without,
)
from .asked_ranges import check_asked_ranges
from .plans import domain_of, plan_of

__all__ = ["export_graphs"]

logger = logging.getLogger(__name__)
#: the most graphs that are made for calls which the graphs of the plans refuse
_MOST_FURTHER = 4
#: so many attempts one after the other that help no call are made for refused calls
_MOST_IN_VAIN = 6
#: a trace in which axes change that no watched call changed may meet so many guards
_MOST_OF_UNWATCHED = 60
#: of so many tensors that a call may leave out, each set is traced
_MOST_ABSENT = 2
#: how many notes of a graph are in an error
_MOST_NOTES = 2


def export_graphs(
    plans: Sequence[Plan], prepared: Prepared, lab: Lab, overrides: Overrides | None = None
) -> tuple[list[Graph], list[str]]:
    """The graphs of all plans that torch can export, and the reasons why not of the others.

    Every kept call that no graph takes, though the model takes it, leads to further traces, until
    all are served or no further graph helps. Then the sizes of interest that no graph holds are
    traced. The graph that serves most watched calls is the first one, and is called ``main``.

    :raises ExportError: when not one plan can be exported, or what is exported serves no kept call:
        ``no-call-served``
    :raises UsageError: ``range-beyond-bound`` for a range with sizes that the model refuses
    """
    search = _Search(prepared, lab, overrides or Overrides())
    search.export(plans)
    check_asked_ranges(search.overrides, search.searches)
    search.add_watched_ways()
    search.complete_observed()
    search.drop_useless()
    search.add_sides_of_masks()
    for one in search.searches:
        one.drop_unwanted()
        search.explore(one)
    search.settle_absent_tensors()
    search.add_free_options()
    search.check()
    return search.finished(), search.refusals


class _Search:
    """The graphs of a program, one search per plan."""

    def __init__(self, prepared: Prepared, lab: Lab, overrides: Overrides) -> None:
        self.prepared, self.samples, self.lab, self.overrides = (
            prepared,
            prepared.samples,
            lab,
            overrides,
        )
        self.searches: list[PlanSearch] = []
        self.refusals: list[str] = []
        self._first: ExportError | None = None
        self._plans: list[Plan] = []
        #: the calls whose plans were found by experiments with the whole model
        self._on_whole: set[int] = set()
        self._oblivious = False
        self._spent = 0
        self._experiments: dict[PlanSearch, list[Experiment]] = {}
        #: what a graph said to a call, empty where it ran, and the program that keeps its id
        self._runs: dict[tuple[int, int], tuple[str, Any]] = {}

    @contextlib.contextmanager
    def noting(self, search: PlanSearch) -> Iterator[None]:
        """Notes the experiments that are made in the block as those of one search."""
        before = len(self.lab.records)
        yield
        self._experiments.setdefault(search, []).extend(self.lab.records[before:])

    def explore(self, search: PlanSearch) -> None:
        """Traces one plan for further sizes of interest, within what is left to spend."""
        with self.noting(search):
            self._spent += search.explore(self._spent)

    # -- the graphs of the plans

    def export(self, plans: Sequence[Plan]) -> None:
        """The first graph of each plan.

        :raises ExportError: when torch refuses all plans, and each is of one form already
        """
        left = list(plans)
        while left:
            plan = left.pop(0)
            try:
                self.searches += self._searches_of(plan)
                self._plans += [
                    search.plan for search in self.searches if search.plan not in self._plans
                ]
            except ExportError as error:
                parts = self._planned_anew(plan) if error.slug == "no-lawful-sizes" else []
                if parts:
                    left = [*parts, *left]
                    continue
                self._first = self._first or error
                self.refusals.append(
                    f"{plan.name} (calls {', '.join(map(str, plan.calls))}): {error.message}"
                )
                self._plans.append(plan)
        forms = forms_of(self.prepared.recording.calls)
        if self._first is not None and not self.searches and len(forms) == len(plans):
            raise self._first

    def _planned_anew(self, plan: Plan) -> list[Plan]:
        """The plans in the place of one that has no sizes for all of its calls.

        A plan that experiments with a part of the model gave is first made with the whole of it: later
        blocks may relate sizes that the first ones do not read. Then the calls are parted by the axes
        that are broadcast in them.
        """
        recording = self.prepared.recording
        calls = tuple(call for call in recording.calls if call.index in plan.calls)
        groups = [(calls, frozenset[Axis]())]
        if not self.lab.left_out_blocks or self._on_whole.issuperset(plan.calls):
            groups = broadcast_groups(calls)
        self._on_whole.update(plan.calls)
        found: list[Plan] = []
        for group, axes in groups:
            static = {path: list(dims) for path, dims in self.overrides.static.items()}
            for axis in axes:
                if axis.dim is not None:
                    static.setdefault(axis.path.code(), []).append(axis.dim)
            overrides = replace(self.overrides, static=static)
            for draft in find_drafts(group, self.samples, self.lab, overrides):
                own = plan_of(resolved(draft, self.samples, self.lab), self.prepared)
                name = f"{plan.name}_{len(found) + 1}" if found else plan.name
                found.append(replace(own, name=name))
        if not self.overrides.observed:
            return found
        return plans_in_ranges(found, self.overrides, seen_sizes(found, recording))

    def _searches_of(self, plan: Plan) -> list[PlanSearch]:
        """The search of a plan; where torch refuses numbers that vary, or bakes one in, one for
        each of their values.

        :raises ExportError: ``export-refused`` and others, as of the plan itself
        """
        if input_floats(plan):
            return float_graphs(plan, self.prepared.recording.calls, self._searches_of_ints)
        return self._searches_of_ints(plan)

    def _searches_of_ints(self, plan: Plan) -> list[PlanSearch]:
        logger.info("exporting %s (%d inputs)", plan.name, len(plan.inputs))
        tell("tracing", detail=plan.name)
        ints = steering_ints(plan)
        refusal: ExportError | None = None
        try:
            traced = self._first_trace(plan)
            ints = baked_ints(traced.graph)
            if not ints:
                return [self._begun(traced)]
        except ExportError as error:
            if not ints:
                raise
            refusal = error
        found: list[PlanSearch] = []
        for constant in per_value(plan, ints, self.prepared.recording.calls):
            logger.info("exporting %s", constant.name)
            tell("tracing", detail=constant.name)
            try:
                found.append(self._begun(export_graph(constant, self.samples, self.lab)))
            except ExportError as error:
                logger.debug("%s", error)
                refusal = refusal or error
                if not found:
                    raise refusal from error
        return found

    def _first_trace(self, plan: Plan) -> Traced:
        """The first trace of a plan.

        Axes that no watched call changed, and that the user does not name, become dynamic where that
        costs few decisions on sizes, or where the model decides by the sizes that calls changed as
        well. Else they stay as they were in all calls.

        :raises ExportError: ``export-refused`` and others
        """
        domain = self._domain_of(plan)
        unwatched = {name: domain.symbols[name].watched[0] for name in domain.open_symbols}
        if not unwatched:
            return export_graph(plan, self.samples, self.lab)
        try:
            return export_graph(plan, self.samples, self.lab, most_guards=_MOST_OF_UNWATCHED)
        except TooManyGuardsError as error:
            logger.info("%s: %s", plan.name, error)
            note = _note_on_unwatched(plan, unwatched, error)
            fixed = at_sizes(plan, unwatched)
            fixed = replace(fixed, notes=(*fixed.notes, note))
            traced = export_graph(fixed, self.samples, self.lab)
            if traced.condition.atoms:
                with contextlib.suppress(ExportError):
                    return export_graph(plan, self.samples, self.lab)
            return traced

    def _domain_of(self, plan: Plan) -> DomainOfInterest:
        """The sizes that the graphs of a plan are made for."""
        return domain_of(plan, self.prepared.recording, self.overrides)

    def _begun(self, traced: Traced, samples: Sequence[Sample] | None = None) -> PlanSearch:
        plan = traced.graph.plan
        search = PlanSearch(plan, samples or self.samples, self.lab, self._domain_of(plan))
        with self.noting(search):
            search.begin(traced)
        self._oblivious = self._oblivious or traced.graph.oblivious
        return search

    # -- what calls leave out

    def add_watched_ways(self) -> None:
        """A trace for each set of options that watched calls left out while others passed them: it
        gives the graph of the others, or one of its own.
        """
        recording = self.prepared.recording
        for search in list(self.searches):
            ways = watched_ways(search.plan, recording.calls, recording.signature)
            for names, calls in ways.items():
                other = self._search_without(search, names, calls)
                if other is not None and not search.add_way(names, other):
                    self.searches.append(other)

    def add_free_options(self) -> None:
        """One more trace of a plan whose calls are all of one kind: without all options that every
        call passed and that experiments took for free. Calls may leave them out where it gives the
        graph of the others.

        Where calls are of several kinds, each kind would need such a trace: options stay bound.
        """
        calls = {call.index: call for call in self.prepared.recording.calls}
        for search in list(self.searches):
            names = frozenset(leaf.path.root for leaf in search.plan.leaves if leaf.optional)
            own = [calls[index] for index in search.plan.calls if index in calls]
            if names and len(forms_of(own)) == 1:
                other = self._search_without(search, names)
                if other is None or search.add_way(names, other):
                    continue
                if not any(self._differences(search, other)):
                    search.add_way(names, other, is_identity=True)

    def settle_absent_tensors(self) -> None:
        """A trace for each set of tensors that a call may leave out, a mask for instance: graphs that
        it is no identity with lose what stood for these tensors, and its graphs join the program.

        Plans with caches are left to experiments: each kind of their calls would need such traces. So
        are arguments that every call has to bring, though they may hold no tensor.
        """
        signature = self.prepared.recording.signature
        required = {parameter.name for parameter in signature.parameters if parameter.required}
        for search in list(self.searches):
            roots = tuple(root for root in absent_tensors(search.plan) if root not in required)
            if not roots or has_empty_fills(search.plan):
                continue
            bound = set(roots[_MOST_ABSENT:])
            for names in _subsets(roots[:_MOST_ABSENT]):
                if not names & bound and not self._may_leave_out(search, names):
                    bound |= names
            search.bind(bound)

    def _may_leave_out(self, search: PlanSearch, names: frozenset[str]) -> bool:
        """True where the trace without these tensors is an identity with every graph of the search;
        else its graphs are further ones of the program.
        """
        recording = self.prepared.recording
        calls = calls_without(search.plan, names, recording.calls)
        other = self._search_without(search, names, calls)
        if other is None:
            return False
        own = other.graphs[0].current()
        is_general = len(other.graphs) == 1 and is_proven_wherever(own, search.holds)
        if is_general and not any(self._differences(search, other)):
            return True
        self.explore(other)
        place = self.searches.index(search)
        is_first = len(calls) * 2 > len(search.plan.calls)
        self.searches.insert(place if is_first else place + 1, other)
        return False

    def _differences(self, search: PlanSearch, other: PlanSearch) -> list[str]:
        """Where the first graph of the other search is no identity with each graph of a search, at
        sizes that both hold.
        """
        own = other.graphs[0]
        found = []
        for proven in search.graphs:

            def both_hold(sizes: Sizes, proven: ProvenGraph = proven) -> bool:
                return proven.holds(sizes) and own.holds(sizes)

            graphs = proven.current(), own.current()
            found.append(identity_difference(*graphs, self.samples, both_hold))
        logger.debug("%s and %s: %s", search.plan.name, other.plan.name, found)
        return found

    def _search_without(
        self, search: PlanSearch, names: frozenset[str], calls: tuple[int, ...] = ()
    ) -> PlanSearch | None:
        """The graphs of calls that leave out some arguments; None where torch makes none of them.

        ``calls`` are the numbers of watched calls that did, of whose sizes there are traces too.
        """
        pins, sizes = search.general_sizes()
        plan = without(at_sizes(search.plan, pins), names)
        named = f"{plan.name}_without_{'_'.join(sorted(names))}"
        plan = replace(plan, name=named, calls=calls or plan.calls)
        samples = [sample for sample in self.samples if sample.call.index in calls]
        tell("tracing", detail=plan.name)
        try:
            traced = export_graph(
                plan, self.samples, self.lab, choices=[sizes], like=search.request
            )
        except ExportError as error:
            logger.debug("%s", error)
            return None
        other = self._begun(traced)
        other.pins = pins
        for sample in samples:
            own = sizes_of(plan, leaf_values(sample))
            if not other.holds(own):
                other.add_sizes(own)
        return other

    # -- the calls that were watched

    def complete_observed(self) -> None:
        """Further traces for every kept call that is refused, at most a handful.

        A model that loops over values makes a graph of each call that holds for these values alone:
        after some attempts that helped no call, no further ones are made.
        """
        given_up: dict[int, Sample] = {}
        in_vain = 0
        for _ in range(_MOST_FURTHER):
            left = [
                one
                for one in self.samples
                if one.call.index not in given_up and not self.serves(one)
            ]
            if not left:
                break
            if in_vain >= _MOST_IN_VAIN:
                given_up |= {one.call.index: one for one in left}
                break
            before, is_served = len(self.searches), False
            for _ in self._attempts(left[0]):
                is_served = self.serves(left[0])
                in_vain = 0 if is_served else in_vain + 1
                if is_served or in_vain >= _MOST_IN_VAIN:
                    break
            if not is_served:
                self._give_up_after(before)
                given_up[left[0].call.index] = left[0]
        for sample in given_up.values():
            if not self.serves(sample):
                self.refusals.append(f"call {sample.call.index} is served by no graph")

    def _attempts(self, sample: Sample) -> Iterator[None]:
        """Makes graphs that may take a kept call, one way after the other.

        The next way is asked for only where the one before does not help: its graphs go.
        """
        search = next((one for one in self.searches if sample.call.index in one.plan.calls), None)
        plan = (
            search.plan
            if search
            else next((p for p in self._plans if sample.call.index in p.calls), None)
        )
        if search is not None:
            sizes = sizes_of(search.plan, leaf_values(sample))
            with self.noting(search):
                search.add_sizes(sizes)
            yield
        if plan is not None:
            for constant in self._with_constants(plan, sample):
                before = len(self.searches)
                self._try(constant)
                yield
                self._give_up_after(before)
            own = replace(plan, name=f"{plan.name}_at_call_{sample.call.index}")
            # a branch on values that were grown to other sizes may take another side
            for choices in (None, [sizes_of(plan, leaf_values(sample))]):
                before = len(self.searches)
                self._try(own, samples=(sample,), choices=choices)
                yield
                self._give_up_after(before)
        before = len(self.searches)
        self._try_own_form(sample)
        yield
        self._give_up_after(before)

    def _give_up_after(self, before: int) -> None:
        """Forgets all searches after the first ones, and what their graphs said to calls: a graph of
        unrolled loops is large.
        """
        del self.searches[before:]
        kept = {id(graph.artifact) for graph in self.graphs}
        self._runs = {key: run for key, run in self._runs.items() if key[0] in kept}

    def _with_constants(self, plan: Plan, sample: Sample) -> Iterator[Plan]:
        """The plan with ints, or with sizes that torch bakes, as this call has them."""
        numbers = steering_numbers(plan)
        if numbers:
            yield at_call(plan, numbers, sample.call)
        sizes = sizes_of(plan, leaf_values(sample))
        for number, names in enumerate(self._baked(plan, sizes)):
            fixed = {name: sizes[name] for name in sorted(names)}
            text = ", ".join(f"{name} = {size}" for name, size in fixed.items())
            blind = f"only {text} served: torch cannot keep open what the model computes from it"
            narrow = at_sizes(plan, fixed)
            leaves = tuple(replace(leaf, calls=min(leaf.calls, 1)) for leaf in narrow.leaves)
            yield replace(
                narrow,
                name=f"{plan.name}_at_call_{sample.call.index}{f'_{number}' if number else ''}",
                leaves=leaves,
                calls=(sample.call.index,),
                blind=tuple(dict.fromkeys((*plan.blind, blind))),
            )

    def _baked(self, plan: Plan, sizes: Sizes) -> list[frozenset[str]]:
        """The symbols in the constraints that refuse some sizes: without first axes, then with
        them.
        """
        found: set[str] = set()
        for search in self.searches:
            for proven in search.graphs if search.plan.inputs == plan.inputs else ():
                for constraint in proven.current().contract.failing(sizes):
                    named = symbols_in(constraint.formula)
                    found |= {symbol.name for symbol in plan.symbols if symbol.name in named}
        rows = {
            name
            for leaf in plan.inputs
            for axis, e in leaf.axes
            if axis.dim == 0
            for name in e.symbols
        }
        ways = dict.fromkeys((frozenset(found - rows), frozenset(found)))
        return [way for way in ways if way]

    def _try(
        self,
        plan: Plan,
        samples: Sequence[Sample] | None = None,
        choices: Sequence[Sizes] | None = None,
    ) -> None:
        """A further graph of a plan, with values of some calls only where a branch on values has
        other sides; ``choices`` are sizes to trace it with.
        """
        try:
            traced = export_graph(
                plan,
                samples or self.samples,
                self.lab,
                choices=choices,
                like=TraceRequest().with_repair(UNGUARDED) if self._oblivious else None,
            )
        except ExportError as error:
            logger.debug("%s", error)
            return
        # a call that was altered for one side of a branch says nothing of other sides
        altered = [sample for sample in samples or () if sample.altered]
        self.searches.append(self._begun(traced, altered or None))

    def _try_own_form(self, sample: Sample) -> None:
        """A graph of the calls of the same form alone."""
        recording = self.prepared.recording
        form = next(
            f for f in forms_of(recording.calls) if sample.call.index in {c.index for c in f.calls}
        )
        (draft,) = find_drafts(form.calls, self.samples, self.lab, self.overrides)
        plan = resolved(draft, self.samples, self.lab).plan()
        name = f"{plan.name}_{len(self.searches) + 1}"
        named = replace(plan, name=name, method=recording.method, model=recording.model)
        self._try(named)
        if self.searches and self.searches[-1].plan.name == name and not self.serves(sample):
            self.searches[-1].add_sizes(sizes_of(named, leaf_values(sample)))

    def drop_useless(self) -> None:
        """Leaves out graphs that serve no watched call where torch baked sizes, and graphs of
        calls stand in.
        """
        narrow = [search.plan for search in self.searches]
        kept: list[PlanSearch] = []
        for search in self.searches:
            stands_in = any(is_narrower(plan, search.plan) for plan in narrow)
            served = any(self.serves(sample, self._graphs_of(search)) for sample in self.samples)
            if served or not stands_in:
                kept.append(search)
        self.searches = kept

    def add_sides_of_masks(self) -> None:
        """A graph for each side of a branch that asks whether a mask hides anything, in place of
        those that have one side at some sizes and the other one at others.

        The first call of a plan stands for both sides, with masks that hide something and with masks
        that hide nothing.
        """
        plans = {
            search.plan.inputs: search.plan
            for search in reversed(self.searches)
            if search.decides_by_masks
        }
        for plan in plans.values():
            before, served = list(self.searches), self._served()
            self.searches = [one for one in before if one.plan.inputs != plan.inputs]
            sample = next(one for one in self.samples if one.call.index in plan.calls)
            for name, hidden in (("", True), ("_without_padding", False)):
                side = _with_padding(plan, sample, domains_of(self.samples), hidden)
                if side is not None:
                    self._try(replace(plan, name=f"{plan.name}{name}"), [side])
            if not served <= self._served():
                self.searches = before

    def _served(self) -> set[int]:
        """The kept calls that some graph takes, by their numbers."""
        return {sample.call.index for sample in self.samples if self.serves(sample)}

    def _graphs_of(self, search: PlanSearch) -> list[Graph]:
        return [proven.current() for proven in search.graphs]

    @property
    def graphs(self) -> list[Graph]:
        """All graphs as they are now."""
        return [graph for search in self.searches for graph in self._graphs_of(search)]

    def serves(self, sample: Sample, graphs: Sequence[Graph] | None = None) -> bool:
        """True when one of the graphs takes the call; by default one of all."""
        found = self.graphs if graphs is None else graphs
        with torch.set_grad_enabled(self.lab.subject.gradients):  # as it was watched
            return any(self._takes(graph, sample) for graph in found)

    def _takes(self, graph: Graph, sample: Sample) -> bool:
        """True when a call is in the contract of a graph, and the graph runs on it, or on a short
        call that stands for it; each pair is run once.
        """
        tree = open_arguments(dict(sample.arguments()))
        dispatcher = Dispatcher([graph], self.prepared.recording.signature)
        if dispatcher.breaches(graph, tree):
            return False
        key = (id(graph.artifact), sample.call.index)
        if key not in self._runs:
            try:
                dispatcher.run(graph, self._short(dispatcher, graph, sample))
                refusal = ""
            except Mismatch as mismatch:
                logger.debug("%s does not take the call: %s", graph.name, mismatch)
                refusal = str(mismatch) or "it refuses the call"
            self._runs[key] = refusal, graph.artifact  # which stays alive, and its id its own
        return not self._runs[key][0]

    def _short(self, dispatcher: Dispatcher, graph: Graph, sample: Sample) -> Tree[Any]:
        """The arguments of a call, or of a short call in the same contract that stands for it."""
        short = short_call(graph.plan, sample, self.lab)
        if short is not None:
            tree = open_arguments(dict(short.arguments()))
            if not dispatcher.breaches(graph, tree):
                return tree
        return open_arguments(dict(sample.arguments()))

    # -- the end

    def check(self) -> None:
        """Passes when there are graphs, and one of them serves a kept call.

        :raises ExportError: ``no-call-served``, or what torch says of the first plan
        """
        if self._first is not None and not self.searches:
            raise self._first
        if self.samples and not any(map(self.serves, self.samples)):
            raise self._serving_nothing()

    def _serving_nothing(self) -> ExportError:
        """Why: the lines of the model that made sizes or values a part of the graphs."""
        graphs = self.graphs
        sample = self.samples[0]
        failing = []
        for search in self.searches[:1]:
            sizes = sizes_of(search.plan, leaf_values(sample))
            failing = [
                c for graph in self._graphs_of(search)[:1] for c in graph.contract.failing(sizes)
            ]
        why = "".join(f" {graphs[0].name} needs {constraint}." for constraint in failing[:2])
        if not failing and graphs:
            why = self._refusal_of(graphs[0], sample)
        calls = ", ".join(str(sample.call.index) for sample in self.samples[:6])
        return ExportError(
            f"torch.export gives {len(graphs)} graphs, and none takes a call that was watched"
            f" (calls {calls}).{why}",
            slug="no-call-served",
            hint=(
                f"{advice_on_inner(self.lab.model)}Write these lines without numbers of Python that"
                " are made from sizes or values, or pin the axes that they ask about with static=."
            ),
        )

    def _refusal_of(self, graph: Graph, sample: Sample) -> str:
        """What the graph said to the call when it ran, and the first notes of its trace: they name lines."""
        refusal, _ = self._runs.get((id(graph.artifact), sample.call.index), ("", None))
        texts = [f"Of {graph.name}: {note}" for note in graph.notes[:_MOST_NOTES]]
        if refusal:
            texts.insert(0, f"To call {sample.call.index} {graph.name} says: {refusal}")
        return "".join(f" {text.rstrip('.')}." for text in texts)

    def finished(self) -> list[Graph]:
        """All graphs, each with its contract, and the notes and experiments of its search; names
        are unique.
        """
        found: list[Graph] = []
        names: set[str] = set()
        weights: list[int] = []
        for search in self.searches:
            weights += map(search.weight, search.graphs)
            for graph in search.finished():
                name, number = graph.name, 2
                while name in names:
                    name, number = f"{graph.name}_{number}", number + 1
                names.add(name)
                told = tuple(dict.fromkeys((*graph.notes, *search.notes)))
                probes = tuple(
                    dict.fromkeys((*graph.plan.probes, *self._experiments.get(search, ())))
                )
                found.append(
                    replace(graph, plan=replace(graph.plan, name=name, probes=probes), notes=told)
                )
        return _with_main_first(found, weights)


def _with_main_first(graphs: list[Graph], weights: Sequence[int]) -> list[Graph]:
    """The graphs, the one that serves most watched calls first and with the name of the first one."""
    most = max(range(len(graphs)), key=weights.__getitem__, default=0)
    if most == 0:
        return graphs
    main, first = graphs[most], graphs[0]
    others = [graph for graph in graphs if graph is not main and graph is not first]
    return [_renamed(main, first.name), _renamed(first, main.name), *others]


def _renamed(graph: Graph, name: str) -> Graph:
    return replace(graph, plan=replace(graph.plan, name=name))


def _note_on_unwatched(plan: Plan, sizes: Mapping[str, int], error: Exception) -> str:
    """What is said of axes that stay as they were in all watched calls, and how to ask for them."""
    fixed = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    asked: dict[str, list[int]] = {}
    for name in sizes:
        for axis in plan.axes_of(name):
            if axis.dim is not None:
                asked.setdefault(axis.path.code(), []).append(axis.dim)
    return (
        f"only {fixed}, as in every watched call: for other sizes {error};"
        f" export(dynamic={asked}) asks for them all the same"
    )


def _subsets(roots: Sequence[str]) -> Iterator[frozenset[str]]:
    """All sets of one argument and more, the smaller ones first."""
    for count in range(1, len(roots) + 1):
        yield from map(frozenset, combinations(roots, count))


def _with_padding(plan: Plan, sample: Sample, domains: Domains, hidden: bool) -> Sample | None:
    """A call with masks that hide the beginning of rows, or nothing; None where it has no masks."""
    values = leaf_values(sample)
    if not all(leaf.path in values for leaf in plan.inputs):
        return None
    other = with_padding(plan, values, domains, hidden=not hidden)
    changed = with_padding(plan, other or values, domains, hidden=hidden)
    if changed is None:
        return None
    leaves = tuple(changed[path] for path in values)
    return replace(sample, inputs=replace(sample.inputs, leaves=leaves), altered=True)

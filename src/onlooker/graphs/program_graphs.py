"""The graphs of a program while they are searched: one search per plan, and the kept calls that
its graphs take.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import nlargest

from ..core.drawing.alike import unused_name
from ..core.errors import ExportError
from ..core.experiment import Experiment
from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..hypotheses.overrides import Overrides
from ..infer.interest import DomainOfInterest
from ..lab.lab import Lab
from ..observing.store import Sample
from ..repairs.guard_count import UNGUARDED
from ..repairs.repair import TraceRequest
from ..repairs.value_branches import VALUE_BRANCHES
from ..serve.checked_call import checked_call, records_gradients
from ..serve.dispatch import Dispatcher
from ..trace.graph import Graph
from ..trace.torch_export import Traced, export_graph
from .one_plan.search import PlanSearch
from .plans import domain_of
from .prepare import Prepared
from .served_calls import ServedCalls
from .sides.alike_sides import alike_side

__all__ = ["ProgramGraphs"]

logger = logging.getLogger(__name__)
#: so many recorded calls tell which graph serves most
_MOST_CALLS = 200


class ProgramGraphs:
    """The searches of a program. Each step of an export adds some or takes some away."""

    def __init__(self, prepared: Prepared, lab: Lab, overrides: Overrides) -> None:
        self.prepared, self.lab, self.overrides = prepared, lab, overrides
        self.samples = prepared.samples
        self.searches: list[PlanSearch] = []
        #: the plans that torch traced, and those that it refused
        self.plans: list[Plan] = []
        #: for the user: plans that torch refuses, and calls that no graph serves
        self.refusals: list[str] = []
        #: what torch said of the first plan that it refused
        self.first_refusal: ExportError | None = None
        self._served = ServedCalls(prepared.recording.signature, lab)
        self._is_oblivious = False
        self._spent = 0
        self._experiments: dict[PlanSearch, list[Experiment]] = {}

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

    def domain_of(self, plan: Plan) -> DomainOfInterest:
        """Returns the sizes that the graphs of a plan are made for."""
        return domain_of(plan, self.prepared.recording, self.overrides)

    def begin(self, traced: Traced, samples: Sequence[Sample] | None = None) -> PlanSearch:
        """Returns a search that begins with a trace. It is not in the program yet."""
        plan = traced.graph.plan
        domain = self.domain_of(plan)
        search = PlanSearch(plan, samples or self.samples, self.lab, domain, alike_side)
        with self.noting(search):
            search.begin(traced)
        self._is_oblivious = self._is_oblivious or traced.graph.oblivious
        return search

    def trace(
        self,
        plan: Plan,
        samples: Sequence[Sample] | None = None,
        choices: Sequence[Sizes] | None = None,
    ) -> None:
        """Adds the search of a further plan, if torch traces it.

        Only the values of ``samples`` are used where a branch on values has other sides, and each of
        these has graphs of its own; ``choices`` are sizes to trace the plan with.
        """
        try:
            traced = export_graph(
                plan,
                samples or self.samples,
                self.lab,
                choices=choices,
                like=TraceRequest().with_repair(UNGUARDED) if self._is_oblivious else None,
                off=() if samples is None else (VALUE_BRANCHES,),
            )
        except ExportError as error:
            logger.debug("%s", error)
            return
        # a call that was altered for one side of a branch says nothing of other sides
        altered = [sample for sample in samples or () if sample.altered]
        self.searches.append(self.begin(traced, altered or None))

    def give_up_after(self, before: int) -> None:
        """Forgets all searches after the first ``before``, and what their graphs said to calls.

        A graph of unrolled loops is large.
        """
        del self.searches[before:]
        self._served.forget_all_but(self.graphs)

    @property
    def graphs(self) -> list[Graph]:
        """All graphs as they are now."""
        return [graph for search in self.searches for graph in search.current_graphs()]

    def serves(self, sample: Sample) -> bool:
        """True when one of the graphs takes the call."""
        return self._served.is_taken(sample, self.graphs)

    def search_serves(self, search: PlanSearch, sample: Sample) -> bool:
        """True when one of the graphs of a search takes the call."""
        return self._served.is_taken(sample, search.current_graphs())

    def served_calls(self) -> set[int]:
        """Returns the numbers of the kept calls that some graph takes."""
        return {sample.call.index for sample in self.samples if self.serves(sample)}

    def refusal_of(self, graph: Graph, sample: Sample) -> str:
        """Returns what a graph says to a call that it does not take, in sentences, or nothing."""
        return self._served.refusal_of(graph, sample)

    def finished(self) -> list[Graph]:
        """Returns all graphs, each with its contract, and the notes and experiments of its search.

        Names are unique, and the graph that serves most watched calls is the first one.
        """
        found: list[Graph] = []
        names: set[str] = set()
        for search in self.searches:
            experiments = self._experiments.get(search, ())
            for graph in search.finished():
                name = unused_name(graph.name, names)
                names.add(name)
                notes = tuple(dict.fromkeys((*graph.notes, *search.notes)))
                probes = tuple(dict.fromkeys((*graph.plan.probes, *experiments)))
                plan = replace(graph.plan, name=name, probes=probes)
                found.append(replace(graph, plan=plan, notes=notes))
        return self._with_main_first(found)

    def _with_main_first(self, graphs: list[Graph]) -> list[Graph]:
        """Returns the graphs, with the one that serves most recorded calls in the place of the first one, as
        far as the commonest calls tell.

        It takes the name of that one, which gets another: a name says in which form calls come.
        """
        recording = self.prepared.recording
        calls = nlargest(_MOST_CALLS, recording.calls, key=lambda call: call.count)
        dispatcher = Dispatcher(graphs, recording.signature)
        served: Counter[str] = Counter()
        for call in calls if len(graphs) > 1 else ():
            records = records_gradients(call)
            found = checked_call(dispatcher, call.inputs, call.index, records=records)
            served[found.graph] += call.count if found.holds else 0
        first = graphs[0] if graphs else None
        main = max(graphs, key=lambda graph: served[graph.name], default=None)
        if main is None or first is None or main is first:
            return graphs
        others = [graph for graph in graphs if graph is not main and graph is not first]
        name = unused_name(first.name, {first.name, *(graph.name for graph in others)})
        return [_renamed(main, first.name), _renamed(first, name), *others]


def _renamed(graph: Graph, name: str) -> Graph:
    return replace(graph, plan=replace(graph.plan, name=name))

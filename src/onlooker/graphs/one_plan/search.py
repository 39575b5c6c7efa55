"""The search for the graphs of one plan, and for the sizes for which each is proven.

The first trace proves its graph under its path condition. Sizes of interest outside of it that the
model takes (:mod:`...infer.interest`) are traced as well, unless runs tell that the model computes a known
graph there (:mod:`..sides.alike_sides`). Where the trace gives a graph that is known already, that graph is
proven there too, else the new graph joins the program (:mod:`.proven_graphs`). So no
condition of the model is dropped because trials agree.

Only conditions of torch's operators on sizes of 0 and 1 are left to trials, exactly there: an
operator decides again whenever the graph runs. Model and graph must run the same operators in such
a trial.

An example: calls had 10 and 100 tokens, and the model has ``if n > 64``::

    traced at    graph    path condition    what is left of the sizes of interest
    10           A        n <= 64           100 is held by no graph
    100          B        n > 64            A is not what B computes: two graphs, and nothing is left

Had both sides computed the same, A would be proven for ``n <= 64`` and ``n > 64``, and the condition would go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ...contract.boundaries import boundary_sizes
from ...core.contract import Constraint, Origin
from ...core.errors import ExportError
from ...core.marks import ORDER
from ...core.plan import Plan
from ...core.sizes.expression import Sizes
from ...core.sizes.formula import remainders_in
from ...core.support.progress import tell
from ...infer.interest import DomainOfInterest
from ...infer.sizes import are_in_range, is_possible, listed
from ...lab.lab import Lab, SpentError
from ...materialise.arguments import Calls
from ...observing.store import Sample
from ...repairs.not_tracing import NOT_TRACING
from ...repairs.numbers.by_values import BY_VALUES
from ...repairs.repair import TraceRequest
from ...trace.graph import Graph
from ...trace.torch_export import Traced, export_graph
from ..fixed_sizes import at_sizes
from .nearby_sizes import NearbySizes
from .operator_trials import OperatorTrials
from .order_runs import has_dicts, order_read
from .proven_graphs import ProvenGraph, ProvenGraphs, sizes_without
from .ways import Limits

__all__ = ["PlanSearch"]

#: says which known graph a model computes on the side of some sizes, and what a trace there would say
SideOf = Callable[["PlanSearch", Sizes], tuple[ProvenGraph, Traced] | None]

logger = logging.getLogger(__name__)
#: what may be spent on traces for sizes of interest that no watched call had: a trace costs 1, and 1
#: more per so many conditions
_MOST_SPENT, _CONDITIONS = 12, 10
#: so much may be spent on each plan, whatever was spent on those before
_LEAST_SPENT = 4
#: a trace in which sizes are values costs so many others: its other sides are rarely proven equal
_OF_VALUES = 4
#: how many traces are made for sizes that are worth no further graph
_MOST_FURTHER = 2
#: so many sides on which a model runs no known operators are compared
_MOST_IN_VAIN = 2
#: where conditions are about more remainders, no trace is made off their grid: its sizes are long sums
_MOST_REMAINDERS = 4


class PlanSearch:
    """The graphs of one plan, and the traces that are made for it."""

    def __init__(
        self,
        plan: Plan,
        samples: Sequence[Sample],
        lab: Lab,
        domain: DomainOfInterest | None = None,
        side_of: SideOf | None = None,
    ) -> None:
        self.calls, self.lab = Calls(plan, samples), lab
        self._side_of, self._sides_in_vain = side_of, 0
        #: symbols of a plan that this one was made from, as numbers
        self.fixed: Sizes = {}
        self.domain = domain or DomainOfInterest()
        self.notes: list[str] = []
        self._request = TraceRequest()
        self._taken: dict[tuple[tuple[str, int], ...], bool] = {}
        #: the conditions on whose other sides a trace was made in vain
        self._tried: set[frozenset[str]] = set()
        self._proven = ProvenGraphs(plan, OperatorTrials(self.calls, lab, self.takes))
        self._nearby = NearbySizes(plan, self._proven, self.takes)

    @property
    def graphs(self) -> list[ProvenGraph]:
        """The graphs of the plan, each with its regions."""
        return self._proven.graphs

    @property
    def plan(self) -> Plan:
        """The plan whose graphs are searched."""
        return self.calls.plan

    def difference_of(self, graph: Graph, traced: Traced) -> str:
        """Where a graph computes something else than a trace of the plan, in words; empty where it
        does not.
        """
        return self._proven.difference_of(graph, traced)

    def begin(self, traced: Traced) -> None:
        """Takes the first graph of the plan."""
        self._request = traced.request
        self._proven.begin(traced)

    @property
    def request(self) -> TraceRequest:
        """The request of the last trace."""
        return self._request

    def general_sizes(self) -> tuple[Sizes, Sizes]:
        """Returns the sizes that are numbers in the most general graph, and sizes of the other symbols.

        The graph is the one with the fewest numbers, the sizes are those of the trace of it that holds most
        of what is wanted.
        """
        proven = min(self.graphs, key=lambda proven: len(proven.fixed))
        wanted = list(self.domain.choices())
        general = [region for region in proven.regions if not region.fixed]
        held = [sum(map(region.holds, wanted)) for region in general]
        sizes = general[held.index(max(held))].sizes if general else proven.graph.sizes
        return dict(proven.fixed), sizes_without(sizes, proven.fixed)

    def bind(self, names: Collection[str]) -> None:
        """From here on a call has to bring these arguments: nothing stands for them."""
        if names:
            self.calls = Calls(_bound(self.plan, names), self.calls.samples)
            for proven in self.graphs:
                proven.graph = replace(proven.graph, plan=_bound(proven.graph.plan, names))

    def find_broadcast_axes(self) -> None:
        """From here on calls may have a size of 1 where the graphs only broadcast."""
        for proven in self.graphs:
            proven.graph = self._proven.with_broadcast_axes(proven)

    def refuse_ways(self, sets: Iterable[Collection[str]]) -> None:
        """From here on no call may leave out just the arguments of one of these sets."""
        found = tuple(tuple(sorted(names)) for names in sets)
        plan = replace(self.plan, never_absent=found)
        self.calls = Calls(plan, self.calls.samples)
        for proven in self.graphs:
            plan = replace(proven.graph.plan, never_absent=found)
            proven.graph = replace(proven.graph, plan=plan)

    def limit_ways(self, limits: Limits) -> None:
        """From here on calls may leave out just the arguments of one of these sets at some sizes alone."""
        self._proven.limits.update(limits)

    def end_at(self, limits: Sequence[Constraint]) -> None:
        """From here on the graphs hold within these limits alone."""
        for proven in self.graphs if limits else ():
            proven.regions = [
                replace(region, limits=(*region.limits, *limits)) for region in proven.regions
            ]

    @property
    def has_limits(self) -> bool:
        """True where calls may leave out some arguments at some sizes alone."""
        return bool(self._proven.limits)

    @property
    def decides_by_masks(self) -> bool:
        """True where the model was told that it is not traced, and decides by values then: whether a
        mask hides anything, as :mod:`onlooker.trace.graph_check` found.
        """
        return {NOT_TRACING, BY_VALUES} <= self._request.on

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes for which some graph is proven."""
        return self._proven.holds(sizes)

    def current_graphs(self) -> list[Graph]:
        """Returns all graphs with their regions as they are."""
        return [proven.current() for proven in self.graphs]

    def finished(self) -> list[Graph]:
        """Returns all graphs, each with its contract."""
        return [self._with_order(proven, proven.finished()) for proven in self.graphs]

    def _with_order(self, proven: ProvenGraph, graph: Graph) -> Graph:
        """The graph, which says whether its model reads the order of dicts in any of its regions."""
        line = ""
        for region in proven.regions if has_dicts(self.plan, self.lab) else ():
            line = line or order_read(self.calls, self.lab, dict(region.sizes))
        return replace(graph, marks={**graph.marks, ORDER: line}) if line else graph

    def add_sizes(self, sizes: Sizes) -> bool:
        """Traces the plan for sizes of a call that no graph holds; True when a graph holds them then.

        Smaller sizes on the same sides of all known conditions stand for large ones.
        """
        return self._trace_near(sizes)

    def explore(self, spent_before: int = 0) -> int:
        """Traces the plan for sizes of interest that no graph holds and the model takes; gives what
        was spent on it. ``spent_before`` was spent on other plans of the program.

        Sizes that are wanted may have a graph of their own. Other sizes near to them are traced too,
        as long as all traces give graphs that are known already: what is free is generalised. Sizes
        off a grid of many conditions, as where five layers halve a side, are none of these.
        """
        spent, most = 0, max(_MOST_SPENT - spent_before, _LEAST_SPENT)
        while (seed := self._open_choice(self._wanted_choices())) is not None:
            if spent >= most:
                self.notes.append(
                    "not every side of every condition was traced: such sizes are refused"
                )
                break
            spent += self._cost()
            self._trace_near(seed)
        for _ in range(0 if self._proven.n_further else _MOST_FURTHER):
            seed = self._open_choice(filter(self._is_on_grids, self.domain.further_choices()))
            if seed is None or not self._try_further_sizes(seed):
                break
        return spent

    def _wanted_choices(self) -> Iterator[Sizes]:
        """The sizes of interest, then those at the bounds of the graphs as far as they are wanted."""
        yield from self.domain.choices()
        for proven in self.graphs:
            current = proven.current()
            sizes = {**proven.regions[0].sizes, **proven.fixed}
            bounds = boundary_sizes(self.plan, current.contract, sizes)
            yield from filter(self.domain.wants, bounds)

    def drop_unwanted(self) -> None:
        """Leaves out graphs that hold none of the sizes of interest, where others hold watched
        calls: a first trace may have taken another path than the calls. One that went their path, and
        ends before their sizes for an operator, is there for free and stays: torch keeps sizes of 1.
        """
        if not any(self.weight(proven) for proven in self.graphs):
            return
        wanted = list(self.domain.choices())
        held = [one for one in self.graphs if any(map(one.holds, wanted))]
        free = [one for one in self.graphs if one not in held and self._is_on_their_path(one)]
        self._proven.graphs = [*held, *free]
        for number, one in enumerate(self.graphs[:1] if not free else self.graphs):
            name = self.plan.name if number == 0 else f"{self.plan.name}_{number + 1}"
            one.graph = replace(one.graph, plan=replace(one.graph.plan, name=name))

    def _is_on_their_path(self, proven: ProvenGraph) -> bool:
        """True where nothing but conditions of operators excludes a watched call."""
        return any(
            all(c.holds(sizes) or c.origin is Origin.OPERATOR for c in region.region.constraints)
            for region in proven.regions
            for sizes, _ in self.domain.calls
        )

    def weight(self, proven: ProvenGraph) -> int:
        """Counts the watched calls that have sizes for which a graph is proven."""
        return self.domain.weight(proven.holds)

    def _cost(self) -> int:
        """Returns the cost of a further trace: the time of torch grows with the number of
        conditions.
        """
        n_conditions = max(len(proven.regions[-1].atoms) for proven in self.graphs)
        cost = 1 + n_conditions // _CONDITIONS
        return cost * _OF_VALUES if self._request.sizes_are_values else cost

    def _open_choice(self, choices: Iterable[Sizes]) -> Sizes | None:
        """The first of some sizes that no graph holds, which the plan allows, and for which no trace
        was tried in vain; None where there are none.
        """
        for sizes in choices:
            if (
                not are_in_range(self.plan, sizes)
                or self.holds(sizes)
                or not is_possible(self.plan, sizes)
            ):
                continue
            if self._sides_of(sizes) not in self._tried and self._is_worth_a_trace(sizes):
                return sizes
        return None

    def _is_worth_a_trace(self, sizes: Sizes) -> bool:
        """True for watched sizes, and for those that have no other numbers than the traces so far: a
        further number would be a further graph.
        """
        if self._proven.are_beyond_steps(sizes):
            return False
        is_watched = any(sizes == watched for watched, _ in self.domain.calls)
        return is_watched or self._proven.have_known_numbers(sizes)

    def _is_on_grids(self, sizes: Sizes) -> bool:
        """True where the conditions of the graphs are about few remainders, or sizes violate none of
        them.
        """
        conditions = [c for c in self._proven.conditions() if remainders_in(c.formula)]
        remainders = frozenset().union(*(remainders_in(c.formula) for c in conditions))
        return len(remainders) <= _MOST_REMAINDERS or all(c.holds(sizes) for c in conditions)

    def _sides_of(self, sizes: Sizes) -> frozenset[str]:
        """The conditions that sizes violate, and the symbols that are 0 or 1."""
        violated = {c.formula for c in self._proven.conditions() if not c.holds(sizes)}
        pinned = {f"{name} == {size}" for name, size in sizes.items() if size in (0, 1)}
        return frozenset(violated | pinned)

    def _trace_near(self, seed: Sizes) -> bool:
        """Traces the plan until a graph holds some sizes; True where one does then."""
        before = self._sides_of(seed)
        for choice in self._nearby.general_near(seed):
            if self._prove_side(choice) and self.holds(seed):
                return True
            refusal = self._trace(choice)
            if self.holds(seed):
                return True
            if refusal is not None and refusal.slug == "model-keeps-state":
                break  # the other choices stand on the same sides of all conditions
        self._tried |= {before, self._sides_of(seed)}
        return False

    def _try_further_sizes(self, seed: Sizes) -> bool:
        """Traces the plan once for sizes that are worth no further graph: returns True where there is none,
        and leaves it out again where there is one.
        """
        choice = next(self._nearby.general_near(seed), None)
        if choice is None:
            self._tried.add(self._sides_of(seed))
            return True
        if self._prove_side(choice) and self.holds(seed):
            return True
        n_graphs = len(self.graphs)
        self._trace(choice)
        if len(self.graphs) > n_graphs:
            del self.graphs[n_graphs:]
            return False
        if not self.holds(seed):
            self._tried.add(self._sides_of(seed))
        return True

    def _prove_side(self, choice: Sizes) -> bool:
        """Proves a known graph on the side of some sizes without a trace; False where that is not known."""
        if self._side_of is None or self._sides_in_vain >= _MOST_IN_VAIN:
            return False
        found = self._side_of(self, choice)
        is_proven = found is not None and self._proven.add_side(*found, choice)
        self._sides_in_vain += not is_proven
        return is_proven

    def first_violated(self, sizes: Sizes) -> list[str]:
        """For each region the first condition that sizes violate, empty where they violate none."""
        return self._proven.first_violated(sizes)

    def _trace(self, choice: Sizes) -> ExportError | None:
        """Traces the plan once: its graph at these sizes is a known one, proven there from now on, or
        a further one. Gives the refusal where there is none.
        """
        fixed = {
            symbol.name: choice[symbol.name]
            for symbol in self.plan.symbols
            if choice[symbol.name] in (0, 1)
        }
        plan = at_sizes(self.plan, fixed) if fixed else self.plan
        free = {name: size for name, size in choice.items() if name not in fixed}
        logger.info("tracing %s with %s", plan.name, choice)
        tell("tracing", detail=f"{plan.name} with {listed(choice)}")
        try:
            traced = export_graph(
                plan, self.calls.samples, self.lab, choices=[free], like=self._request
            )
        except ExportError as error:
            logger.debug("%s", error)
            self.notes.append(f"sizes such as {listed(choice)} are refused by torch.export")
            return error
        self._proven.add(traced, fixed, choice)
        return None

    def add_way(
        self, names: frozenset[str], other: PlanSearch, *, is_identity: bool = False
    ) -> bool:
        """Lets calls leave out these arguments where the search without them, ``other``, found the
        same graph, or one of which an identity test says so; True where each of its graphs is one of
        this plan.
        """
        return self._proven.add_way(names, other._proven, other.fixed, is_identity=is_identity)

    def takes(self, sizes: Sizes) -> bool:
        """True when the model takes these sizes; it is asked once."""
        key = tuple(sorted(sizes.items()))
        if key not in self._taken:
            self._taken[key] = is_possible(self.plan, sizes) and self._runs(sizes)
        return self._taken[key]

    def _runs(self, sizes: Sizes) -> bool:
        try:
            self.lab.run_for_shapes(
                self.calls.arguments(sizes),
                why="the other side of a condition",
                about=self.plan.axis_sizes(sizes),
            )
        except SpentError as spent:
            self.lab.note_unknown("the other side of every condition was tried", spent)
            return False
        except Exception as error:
            logger.debug("the model refuses %s: %s", sizes, error)
            return False
        return True


def _bound(plan: Plan, names: Collection[str]) -> Plan:
    leaves = (
        replace(leaf, bound=True) if leaf.path.root in names else leaf for leaf in plan.leaves
    )
    return replace(plan, leaves=tuple(leaves))

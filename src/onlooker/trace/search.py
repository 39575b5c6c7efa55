"""Which graphs are needed for a plan, and for which sizes each is proven.

The first trace proves its graph under its path condition. Sizes of interest outside of it that the
model takes (:mod:`..infer.interest`) are traced as well: where the trace gives a graph that is known
already, that graph is proven there too, else the new graph joins the program. So no condition of the
model is dropped because trials agree.

Only conditions of torch's operators on sizes of 0 and 1 are left to trials, exactly there: an
operator decides again whenever the graph runs. Model and graph must run the same operators in such
a trial.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..contract.boundaries import boundary_sizes
from ..contract.places import formulas_of
from ..core.contract import Constraint, Contract, Origin
from ..core.errors import ExportError
from ..core.formula import remainders_in
from ..core.marks import ORDER
from ..core.plan import Plan
from ..core.progress import tell
from ..infer.interest import DomainOfInterest
from ..infer.sizes import Sizes, grain, is_general, is_possible
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import close_arguments, materialise
from ..observing.store import Sample
from ..repairs.by_values import BY_VALUES
from ..repairs.not_tracing import NOT_TRACING
from ..repairs.repair import TraceRequest
from .dim_names import with_bounds
from .fixed_sizes import at_sizes
from .graph import Graph
from .obtained import sizes_in_plan
from .operator_trials import OperatorTrials
from .order_runs import has_dicts, order_read
from .path_condition import proofs_of
from .regions import ProvenRegion, bounded_plan, contract_of
from .same_graph import Comparison
from .torch_export import Traced, export_graph
from .torch_run import as_guards, write_contract
from .ways import ProvenWay, joined_ways

__all__ = ["PlanSearch", "ProvenGraph"]

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
#: where conditions are about more remainders, no trace is made off their grid: its sizes are long sums
_MOST_REMAINDERS = 4
_SMALL = 24


@dataclass(slots=True)
class ProvenGraph:
    """A graph, and the regions of sizes for which it is proven, each by one trace.

    ``pins`` are symbols that are numbers in the graph.
    """

    graph: Graph
    pins: Mapping[str, int]
    traces: list[Traced]
    regions: list[ProvenRegion] = field(default_factory=list)
    ways: list[ProvenWay] = field(default_factory=list)

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes of the whole plan, or of the symbols that are open in the graph, for which
        the graph is proven.
        """
        if any(sizes.get(name, size) != size for name, size in self.pins.items()):
            return False
        return any(region.holds({**self.pins, **sizes}) for region in self.regions)

    def current(self) -> Graph:
        """The graph with its regions as they are."""
        regions = tuple(region.region for region in self.regions)
        return replace(self.graph, contract=Contract(regions, ways=joined_ways(self.ways)))

    def finished(self) -> Graph:
        """The graph with its contract, as short as the proofs allow."""
        contract = contract_of(self.graph.plan, self.regions)
        plan = bounded_plan(self.graph.plan, self.regions)
        write_contract(
            self.graph.artifact, formulas_of(plan, contract, as_guards(self.graph.names))
        )
        return replace(
            self.graph,
            plan=plan,
            contract=replace(contract, ways=joined_ways(self.ways)),
            named=with_bounds(self.graph.named, plan),
        )


class PlanSearch:
    """The graphs of one plan.

    ``model_takes`` says whether the model takes sizes; every answer is one run of the model.
    """

    def __init__(
        self,
        plan: Plan,
        samples: Sequence[Sample],
        lab: Lab,
        domain: DomainOfInterest | None = None,
    ) -> None:
        self.plan, self.samples, self.lab = plan, samples, lab
        #: symbols of a plan that this one was made from, as numbers
        self.pins: Sizes = {}
        #: how many traces gave a graph that was not known
        self._n_further = 0
        self.domain = domain or DomainOfInterest()
        self.graphs: list[ProvenGraph] = []
        self.notes: list[str] = []
        self._request = TraceRequest()
        self._taken: dict[tuple[tuple[str, int], ...], bool] = {}
        self._tried: set[frozenset[str]] = set()
        self._comparisons: dict[int, tuple[Traced, Comparison]] = {}
        self._trials = OperatorTrials(plan, tuple(samples), lab, self.takes)

    def begin(self, traced: Traced) -> None:
        """Takes the first graph of the plan."""
        self._request = traced.request
        self.graphs.append(self._proven(traced, {}))

    @property
    def request(self) -> TraceRequest:
        """How the last trace was asked for."""
        return self._request

    def general_sizes(self) -> tuple[Sizes, Sizes]:
        """The symbols that are numbers in the graph with the fewest of these, and the sizes of its
        trace without further numbers that holds most of what is wanted.
        """
        proven = min(self.graphs, key=lambda proven: len(proven.pins))
        wanted = list(self.domain.choices())
        general = [region for region in proven.regions if not region.pins]
        held = [sum(map(region.holds, wanted)) for region in general]
        sizes = general[held.index(max(held))].sizes if general else proven.graph.sizes
        return dict(proven.pins), _without(sizes, proven.pins)

    def bind(self, names: Collection[str]) -> None:
        """From here on a call has to bring these arguments: nothing stands for them."""
        if names:
            self.plan = _bound(self.plan, names)
            for proven in self.graphs:
                proven.graph = replace(proven.graph, plan=_bound(proven.graph.plan, names))

    @property
    def decides_by_masks(self) -> bool:
        """True where the model was told that it is not traced, and decides by values then: whether a
        mask hides anything, as :mod:`.mask_check` found.
        """
        return {NOT_TRACING, BY_VALUES} <= self._request.on

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes for which some graph is proven."""
        return any(graph.holds(sizes) for graph in self.graphs)

    def finished(self) -> list[Graph]:
        """All graphs, each with its contract."""
        return [self._with_order(proven, proven.finished()) for proven in self.graphs]

    def _with_order(self, proven: ProvenGraph, graph: Graph) -> Graph:
        """The graph, which says whether its model reads the order of dicts in any of its regions."""
        line = ""
        for region in proven.regions if has_dicts(self.plan, self.lab) else ():
            line = line or order_read(self.plan, self.lab, tuple(self.samples), dict(region.sizes))
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
        for _ in range(0 if self._n_further else _MOST_FURTHER):
            seed = self._open_choice(filter(self._is_on_grids, self.domain.further_choices()))
            if seed is None or not self._is_known_graph_at(seed):
                break
        return spent

    def _wanted_choices(self) -> Iterator[Sizes]:
        """The sizes of interest, then those at the bounds of the graphs as far as they are wanted."""
        yield from self.domain.choices()
        for proven in self.graphs:
            current = proven.current()
            bounds = boundary_sizes(self.plan, current.contract, self._of_all_symbols(proven))
            yield from filter(self.domain.wants, bounds)

    def _of_all_symbols(self, proven: ProvenGraph) -> Sizes:
        return {**proven.regions[0].sizes, **proven.pins}

    def drop_unwanted(self) -> None:
        """Leaves out graphs that hold none of the sizes of interest, where others hold watched
        calls: a first trace may have taken another path than the calls.
        """
        if not any(self.weight(proven) for proven in self.graphs):
            return
        wanted = list(self.domain.choices())
        self.graphs = [proven for proven in self.graphs if any(map(proven.holds, wanted))]
        first = self.graphs[0]
        first.graph = replace(first.graph, plan=replace(first.graph.plan, name=self.plan.name))

    def weight(self, proven: ProvenGraph) -> int:
        """How many watched calls have sizes for which a graph is proven."""
        return self.domain.weight(proven.holds)

    def _cost(self) -> int:
        """What a further trace costs: with the number of conditions grows the time of torch."""
        n_conditions = max(len(proven.regions[-1].atoms) for proven in self.graphs)
        cost = 1 + n_conditions // _CONDITIONS
        return cost * _OF_VALUES if self._request.sizes_are_values else cost

    def _open_choice(self, choices: Iterable[Sizes]) -> Sizes | None:
        """The first of some sizes that no graph holds, which the plan allows, and for which no trace
        was tried in vain; None where there are none.
        """
        for sizes in choices:
            is_allowed = all(symbol.takes(sizes[symbol.name]) for symbol in self.plan.symbols)
            if not is_allowed or self.holds(sizes) or not is_possible(self.plan, sizes):
                continue
            if self._sides_of(sizes) not in self._tried and self._has_known_numbers(sizes):
                return sizes
        return None

    def _is_on_grids(self, sizes: Sizes) -> bool:
        """True where the conditions of the graphs are about few remainders, or sizes violate none of
        them.
        """
        conditions = [c for c in self._conditions() if remainders_in(c.formula)]
        remainders = frozenset().union(*(remainders_in(c.formula) for c in conditions))
        return len(remainders) <= _MOST_REMAINDERS or all(c.holds(sizes) for c in conditions)

    def _sides_of(self, sizes: Sizes) -> frozenset[str]:
        """The conditions that sizes violate, and the symbols that are 0 or 1."""
        violated = {c.formula for c in self._conditions() if not c.holds(sizes)}
        pinned = {f"{name} == {size}" for name, size in sizes.items() if size in (0, 1)}
        return frozenset(violated | pinned)

    def _trace_near(self, seed: Sizes) -> bool:
        """Traces the plan until a graph holds some sizes; True where one does then."""
        before = self._sides_of(seed)
        for choice in self._general_near(seed):
            self._trace(choice)
            if self.holds(seed):
                return True
        self._tried |= {before, self._sides_of(seed)}
        return False

    def _is_known_graph_at(self, seed: Sizes) -> bool:
        """Traces the plan once for sizes; True where that gives no further graph, which is left out
        again.
        """
        choice = next(self._general_near(seed), None)
        if choice is None:
            self._tried.add(self._sides_of(seed))
            return True
        n_graphs = len(self.graphs)
        self._trace(choice)
        if len(self.graphs) > n_graphs:
            self.graphs = self.graphs[:n_graphs]
            return False
        if not self.holds(seed):
            self._tried.add(self._sides_of(seed))
        return True

    def _trace(self, choice: Sizes) -> None:
        """One trace: the graph of these sizes is a known one, proven there from now on, or a new
        one.
        """
        pins = {
            symbol.name: choice[symbol.name]
            for symbol in self.plan.symbols
            if choice[symbol.name] in (0, 1)
        }
        plan = at_sizes(self.plan, pins) if pins else self.plan
        free = {name: size for name, size in choice.items() if name not in pins}
        logger.info("tracing %s with %s", plan.name, choice)
        tell("tracing", detail=f"{plan.name} with {_listed(choice)}")
        try:
            traced = export_graph(plan, self.samples, self.lab, choices=[free], like=self._request)
        except ExportError as error:
            logger.debug("%s", error)
            self.notes.append(f"sizes such as {_listed(choice)} are refused by torch.export")
            return
        for known in self.graphs:
            if _are_within(pins, known.pins) and not self._differs(known.graph, traced):
                known.graph = _with_marks_of(known.graph, traced.graph)
                known.traces.append(traced)
                known.regions.append(
                    self._region(known.graph, traced, _without(pins, known.pins), choice)
                )
                return
        for known in self.graphs:
            if _are_within(known.pins, pins) and not any(
                self._differs(traced.graph, one) for one in known.traces
            ):
                self._replace(known, traced, pins, choice)
                return
        self._n_further += 1
        named = replace(traced.graph.plan, name=f"{self.plan.name}_{len(self.graphs) + 1}")
        self.graphs.append(
            self._proven(replace(traced, graph=replace(traced.graph, plan=named)), pins)
        )

    def _replace(
        self, known: ProvenGraph, traced: Traced, pins: Mapping[str, int], choice: Sizes
    ) -> None:
        """A graph that is right wherever a known one is, and for its own sizes, stands in its
        place.
        """
        graph = replace(traced.graph, plan=replace(traced.graph.plan, name=known.graph.name))
        graph = _with_marks_of(graph, known.graph)
        moved = [
            self._region(graph, one, _without({**known.pins, **region.pins}, pins), region.sizes)
            for one, region in zip(known.traces, known.regions, strict=True)
        ]
        own = self._region(graph, traced, {}, choice)
        ways = [way for way in known.ways if not self._differs(graph, way.traced)]
        self.graphs[self.graphs.index(known)] = ProvenGraph(
            graph, pins, [*known.traces, traced], [*moved, own], ways
        )

    def add_way(
        self, names: frozenset[str], other: PlanSearch, *, is_identity: bool = False
    ) -> bool:
        """Lets calls leave out these arguments where the search without them, ``other``, found the
        same graph, or one of which an identity test says so; True where each of its graphs is one of
        this plan.
        """
        found = [self._has_way(names, one, other.pins, is_identity) for one in other.graphs]
        return all(found)

    def _has_way(
        self, names: frozenset[str], other: ProvenGraph, pins: Sizes, is_identity: bool
    ) -> bool:
        pins = {**pins, **other.pins}
        for known in self.graphs:
            if not _are_within(pins, known.pins):
                continue
            if not is_identity and any(
                self._differs(known.graph, traced) for traced in other.traces
            ):
                continue
            for region, traced in zip(other.regions, other.traces, strict=True):
                pinned = replace(region, pins=_without({**region.pins, **pins}, known.pins))
                known.ways.append(ProvenWay(names, pinned, traced))
            return True
        return False

    def _differs(self, first: Graph, traced: Traced) -> str:
        second = traced.graph
        if (
            first.outputs.structure != second.outputs.structure
            or first.outputs.dynamic != second.outputs.dynamic
        ):
            return "the results have other parts"
        if not _same_constants(first.outputs.constants, second.outputs.constants):
            return "constant results differ"
        found = self._comparison(traced).difference_of(first.artifact)
        logger.debug(
            "%s and a trace with %s: %s", first.name, second.sizes, found or "the same graph"
        )
        return found

    def _comparison(self, traced: Traced) -> Comparison:
        """The graph of a trace, with which others are compared: it is numbered once."""
        if id(traced) not in self._comparisons:
            graph = traced.graph
            sizes = sizes_in_plan(graph.artifact, graph.plan, graph.names)
            conditions = [atom.condition for atom in traced.condition.atoms.values()]
            made = Comparison(graph.artifact, sizes, proofs_of(self.plan, conditions))
            # the trace is kept alive, so that no other one gets its id
            self._comparisons[id(traced)] = traced, made
        return self._comparisons[id(traced)][1]

    def _proven(self, traced: Traced, pins: Mapping[str, int]) -> ProvenGraph:
        region = self._region(traced.graph, traced, {}, {**pins, **traced.graph.sizes})
        return ProvenGraph(traced.graph, pins, [traced], [region])

    def _region(
        self, graph: Graph, traced: Traced, pins: Mapping[str, int], sizes: Mapping[str, int]
    ) -> ProvenRegion:
        """The region of a trace, with the least sizes at which ``graph`` is right."""
        fixed = tuple(
            c
            for c in traced.graph.contract.regions[0].constraints
            if c.origin in (Origin.FIXED, Origin.STEPS)
        )
        evidence = f"traced with {_listed(sizes)}" if sizes else "traced"
        region = ProvenRegion(
            pins,
            traced.condition.atoms,
            fixed,
            dict(sizes),
            evidence,
            traced.condition.tried,
            traced.condition.reads,
            not_tracing=NOT_TRACING in traced.request.on,
            rolling=traced.rolling,
            bounds=traced.bounds,
        )
        found = self._trials.of(graph, region)
        return replace(region, limits=(*fixed, *found.limits), dropped=tuple(found.dropped))

    # -- the other sides

    def takes(self, sizes: Sizes) -> bool:
        """True when the model takes these sizes; it is asked once."""
        key = tuple(sorted(sizes.items()))
        if key not in self._taken:
            self._taken[key] = is_possible(self.plan, sizes) and self._runs(sizes)
        return self._taken[key]

    def _runs(self, sizes: Sizes) -> bool:
        try:
            arguments = close_arguments(self.plan, materialise(self.plan, sizes, self.samples))
            self.lab.run(
                arguments,
                why="the other side of a condition",
                memo=True,
                about=self.plan.axis_sizes(sizes),
            )
        except SpentError as spent:
            self.lab.note_unknown("the other side of every condition was tried", spent)
            return False
        except Exception as error:
            logger.debug("the model refuses %s: %s", sizes, error)
            return False
        return True

    def _general_near(self, seed: Sizes) -> Iterator[Sizes]:
        """Sizes that stand for those of a call: on the same sides of all conditions, general,
        and small if possible.
        """
        formulas = self._conditions()
        sides = [formula.holds(seed) for formula in formulas]
        small = dict(seed)
        for name, size in seed.items():
            nearer = {**small, name: self._base(name, size)}
            if [formula.holds(nearer) for formula in formulas] == sides:
                small = nearer
        found = 0
        steps = (
            (*self._steps_from(small), *self._steps_from(seed))
            if self._has_known_numbers(seed)
            else ()
        )
        for choice in steps:
            if (
                not self._is_general(choice)
                or [formula.holds(choice) for formula in formulas] != sides
            ):
                continue
            if self.takes(choice):
                found += 1
                yield choice
            if found == 2:
                break
        own = dict(seed)
        for name, size in seed.items():
            freed = {**own, name: self._base(name, size)}
            if size in (0, 1) and [formula.holds(freed) for formula in formulas] == sides:
                own = freed
        for choice in (own, seed):
            if self.takes(choice):
                yield choice

    def _has_known_numbers(self, sizes: Sizes) -> bool:
        """True where each size that became a number in some trace is that number.

        A trace with a size of 0 or 1 does not tell whether it makes numbers of others. False also where
        a loop has more steps than were compared.
        """
        if any(
            limit.origin is Origin.STEPS and not limit.holds(sizes)
            for proven in self.graphs
            for region in proven.regions
            for limit in region.limits
        ):
            return False
        return any(
            all(sizes[name] == size for name, size in {**proven.pins, **region.pins}.items())
            and region.has_its_numbers(sizes)
            for proven in self.graphs
            for region in proven.regions
        )

    def _base(self, name: str, size: int) -> int:
        return self.graphs[0].regions[0].sizes.get(name, size) if self.graphs else size

    def _conditions(self) -> list[Constraint]:
        found = {
            c.formula: c
            for g in self.graphs
            for region in g.regions
            for c in region.region.constraints
        }
        return list(found.values())

    def _is_general(self, sizes: Sizes) -> bool:
        pins = {name: size for name, size in sizes.items() if size in (0, 1)}
        free = {name: size for name, size in sizes.items() if name not in pins}
        return is_general(at_sizes(self.plan, pins) if pins else self.plan, free)

    def _steps_from(self, seed: Sizes) -> Iterator[Sizes]:
        """Sizes from those of a call on. Large sizes stay as even as they were seen."""
        units = {s.name: grain(s) if seed[s.name] > _SMALL else s.step for s in self.plan.symbols}
        for step in range(8):
            yield {
                name: (
                    seed[name]
                    if seed[name] in (0, 1)
                    else seed[name] + step * unit * (1 + position)
                )
                for position, (name, unit) in enumerate(units.items())
            }


def _bound(plan: Plan, names: Collection[str]) -> Plan:
    leaves = (
        replace(leaf, bound=True) if leaf.path.root in names else leaf for leaf in plan.leaves
    )
    return replace(plan, leaves=tuple(leaves))


def _with_marks_of(graph: Graph, other: Graph) -> Graph:
    """The graph with what the model reads in the trace of another one too."""
    return replace(graph, marks={**other.marks, **graph.marks})


def _are_within(pins: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """True where sizes with the pins have the other pins as well."""
    return all(pins.get(name) == size for name, size in others.items())


def _without(pins: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in pins.items() if name not in others}


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())


def _same_constants(first: Iterable[Any], second: Iterable[Any]) -> bool:
    """True when the leaves of two results that are no outputs of the graphs are equal."""
    for one, other in zip(first, second, strict=True):
        if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
            same = (
                isinstance(one, torch.Tensor)
                and isinstance(other, torch.Tensor)
                and torch.equal(one, other)
            )
        else:
            same = type(one) is type(other) and (one is other or one == other)
        if not same:
            return False
    return True

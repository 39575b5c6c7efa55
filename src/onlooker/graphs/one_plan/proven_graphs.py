"""The graphs of one plan, and for which sizes each is proven.

A trace proves the graph that it gives for the sizes of its path condition. Where that graph is one that
is known already, the known one is proven there too. Else the new graph joins the others, or stands in
the place of one that is right for fewer sizes.

An example: a model pads images to even sides, and was watched at sides of 8, 9 and 10.

    trace at 8      graph A, with the path condition "side % 2 == 0"
                    10 satisfies it, 9 does not: 9 is the next size to trace
    trace at 9      graph B, which pads by 1, with the path condition "side % 2 == 1"
                    Is A what B computes at odd sides? No: A pads nothing.
                    Is B what A computes at even sides? Only if it pads by ``side % 2`` there.

If it does, B takes the place of A: it is proven for its own region, and for that of A, whose trace at 8 is
compared with B once more. What A was known to hold for is a region of B from there on, and so are calls
that may leave out arguments. If B pads by the number 1, both graphs stay, each with its own region.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from ...contract.places import formulas_of
from ...core.contract import Constraint, Contract, Origin, Region, Way
from ...core.plan import Plan
from ...core.sizes.expression import Sizes
from ...infer.sizes import listed
from ...proofs.exported_sizes import output_kinds, read_sizes, sizes_in_plan
from ...proofs.path_condition import proofs_of
from ...proofs.same_graph import Comparison
from ...repairs.not_tracing import NOT_TRACING
from ...torch_internals.graph_modules import with_open_axes, with_shapes_of
from ...trace.dim_names import with_bounds
from ...trace.graph import Graph
from ...trace.torch_export import Traced, traced_at
from ...trace.torch_run import as_guards, runner_on_demand, write_contract
from .broadcast_axes import with_broadcast_axes
from .operator_trials import OperatorTrials
from .regions import ProvenRegion, bounded_plan, contract_of
from .ways import Limits, ProvenWay, joined_ways, limited_ways

__all__ = ["ProvenGraph", "ProvenGraphs", "sizes_without"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ProvenGraph:
    """A graph, and the regions of sizes for which it is proven, each by one trace or by runs on a side.

    ``fixed`` are symbols that are numbers in the graph, ``limits`` those of all graphs of the plan,
    ``never_absent`` the sets of arguments that calls of this graph alone may not leave out.
    """

    graph: Graph
    fixed: Sizes
    traces: list[Traced]
    limits: Limits
    regions: list[ProvenRegion] = field(default_factory=list)
    ways: list[ProvenWay] = field(default_factory=list)
    never_absent: tuple[tuple[str, ...], ...] = ()

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes of the whole plan, or of the symbols that are open in the graph, for which
        the graph is proven.
        """
        if any(sizes.get(name, size) != size for name, size in self.fixed.items()):
            return False
        return any(region.holds({**self.fixed, **sizes}) for region in self.regions)

    def add(self, traced: Traced, region: ProvenRegion) -> None:
        """Notes one more region, with the trace that proves the graph there."""
        self.traces.append(traced)
        self.regions.append(region)

    def current(self) -> Graph:
        """The graph with its regions as they are."""
        regions = tuple(region.region for region in self.regions)
        contract = Contract(regions, ways=self._ways_of(regions))
        return replace(self.graph, plan=self._plan, contract=contract)

    def finished(self) -> Graph:
        """The graph with its contract, as short as the proofs allow."""
        contract = contract_of(self.graph.plan, self.regions)
        plan = bounded_plan(self._plan, self.regions)
        graph = _with_open_axes(self.graph, self._of_several_sizes())
        program, names = graph.artifact, graph.names
        write_contract(program, formulas_of(plan, contract, as_guards(names)))
        return replace(
            graph,
            plan=plan,
            contract=replace(contract, ways=self._ways_of(contract.regions)),
            named=with_bounds(graph.named, plan),
            run=runner_on_demand(program, tuple(names.values())),
        )

    def _of_several_sizes(self) -> frozenset[str]:
        """The symbols that have other sizes in the examples of some regions than in those of others."""
        first, *others = (region.sizes for region in self.regions)
        return frozenset(
            name
            for name, size in first.items()
            if any(one.get(name, size) != size for one in others)
        )

    @property
    def _plan(self) -> Plan:
        plan = self.graph.plan
        return replace(plan, never_absent=(*plan.never_absent, *self.never_absent))

    def _ways_of(self, regions: Sequence[Region]) -> tuple[Way, ...]:
        limited = limited_ways(self.limits, self.fixed, regions)
        return (*joined_ways(self.ways, regions), *limited)


class ProvenGraphs:
    """The graphs of one plan, which grow with each trace."""

    def __init__(self, plan: Plan, trials: OperatorTrials) -> None:
        self.graphs: list[ProvenGraph] = []
        #: how many traces gave a graph that was not known
        self.n_further = 0
        #: the sets of arguments that calls may leave out at some sizes alone
        self.limits: dict[frozenset[str], Sequence[Constraint]] = {}
        self._plan, self._trials = plan, trials
        self._comparisons: dict[int, tuple[Traced, Comparison]] = {}

    def begin(self, traced: Traced) -> None:
        """Adds the first graph, of a trace in which no symbol is a number."""
        self.graphs.append(self._proven(traced, {}))

    def add(self, traced: Traced, fixed: Sizes, choice: Sizes) -> None:
        """Adds the graph of a trace in which some symbols are numbers, ``fixed``, or proves a known one.

        ``choice`` are the sizes of the trace, of all symbols.
        """
        for known in self.graphs:
            if _are_within(fixed, known.fixed) and not self.difference_of(known.graph, traced):
                if self._is_more_open(traced, fixed, known):
                    self._replace(known, traced, fixed, choice)
                    return
                known.graph = _with_marks_of(known.graph, traced.graph)
                open_pins = sizes_without(fixed, known.fixed)
                known.add(traced, self._region(known.graph, traced, open_pins, choice))
                return
        for known in self.graphs:
            if _are_within(known.fixed, fixed) and self._is_right_for(traced.graph, known.traces):
                self._replace(known, traced, fixed, choice)
                return
        self.n_further += 1
        plan = replace(traced.graph.plan, name=f"{self._plan.name}_{len(self.graphs) + 1}")
        named = replace(traced, graph=replace(traced.graph, plan=plan))
        self.graphs.append(self._proven(named, fixed))

    def add_side(self, known: ProvenGraph, side: Traced, choice: Sizes) -> bool:
        """Proves a known graph on a side that a run stands for; False where it is not shown right at sizes of 0 and 1,
        of which a trace knows more.
        """
        pins = {name: size for name, size in choice.items() if size < 2}
        region = self._region(known.graph, side, sizes_without(pins, known.fixed), choice)
        if any(limit.origin is Origin.UNPROVEN for limit in region.limits):
            return False
        known.add(side, region)
        return True

    def _is_more_open(self, traced: Traced, fixed: Sizes, known: ProvenGraph) -> bool:
        """True where a trace of the symbols of a known graph has fewer numbers of its own, and says more of the
        sizes of what it computes: a window of 6 makes a length of 6 a number, and one of 20 none.
        """
        return (
            _n_numbers(traced) < _n_numbers_in(known)
            and _are_within(known.fixed, fixed)
            and self._is_right_for(traced.graph, known.traces)
        )

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes for which some graph is proven."""
        return any(graph.holds(sizes) for graph in self.graphs)

    def conditions(self) -> list[Constraint]:
        """Returns the conditions of all regions, each formula once."""
        found = {
            c.formula: c
            for g in self.graphs
            for region in g.regions
            for c in region.region.constraints
        }
        return list(found.values())

    def first_violated(self, sizes: Sizes) -> list[str]:
        """For each region the first condition that sizes violate, empty where they violate none: what
        the model does after it is another matter there.
        """
        regions = [region.region for graph in self.graphs for region in graph.regions]
        return [
            next((c.formula for c in region.constraints if not c.holds(sizes)), "")
            for region in regions
        ]

    def are_beyond_steps(self, sizes: Sizes) -> bool:
        """True where a loop has more steps than were compared."""
        return any(
            limit.origin is Origin.STEPS and not limit.holds(sizes)
            for proven in self.graphs
            for region in proven.regions
            for limit in region.limits
        )

    def have_known_numbers(self, sizes: Sizes) -> bool:
        """True where each size that became a number in some trace is that number.

        A trace with a size of 0 or 1 does not tell whether it makes numbers of others.
        """
        return any(
            all(sizes[name] == size for name, size in {**proven.fixed, **region.fixed}.items())
            and region.has_its_numbers(sizes)
            for proven in self.graphs
            for region in proven.regions
        )

    def _replace(self, known: ProvenGraph, traced: Traced, fixed: Sizes, choice: Sizes) -> None:
        """Puts a graph that is right wherever a known one is, and for its own sizes, in its place."""
        graph = replace(traced.graph, plan=replace(traced.graph.plan, name=known.graph.name))
        graph = _with_marks_of(graph, known.graph)
        if fixed == known.fixed and _n_numbers(traced) > _n_numbers_in(known):
            graph = _with_shapes_of(graph, known.graph)
        moved = [
            self._region(
                graph,
                one,
                sizes_without({**known.fixed, **region.fixed}, fixed),
                region.sizes,
            )
            for one, region in zip(known.traces, known.regions, strict=True)
        ]
        own = self._region(graph, traced, {}, choice)
        ways = [way for way in known.ways if not self.difference_of(graph, way.traced)]
        self.graphs[self.graphs.index(known)] = ProvenGraph(
            graph,
            fixed,
            [*known.traces, traced],
            self.limits,
            [*moved, own],
            ways,
            known.never_absent,
        )

    def add_way(
        self,
        names: frozenset[str],
        others: ProvenGraphs,
        fixed: Sizes,
        *,
        is_identity: bool = False,
    ) -> bool:
        """Lets calls leave out these arguments where a trace without them gave the same graph.

        ``others`` are the graphs without them, ``fixed`` the symbols that were numbers in their plan, and
        ``is_identity`` says that an identity test found them equal. True where each of them is one
        of these graphs.
        """
        found = [self._prove_way(names, others, one, fixed, is_identity) for one in others.graphs]
        return all(found)

    def _prove_way(
        self,
        names: frozenset[str],
        others: ProvenGraphs,
        other: ProvenGraph,
        fixed: Sizes,
        is_identity: bool,
    ) -> bool:
        fixed = {**fixed, **other.fixed}
        for known in self.graphs:
            if not _are_within(fixed, known.fixed):
                continue
            if not is_identity and not self._is_right_for(known.graph, other.traces):
                continue
            for region, traced in zip(other.regions, other.traces, strict=True):
                pinned = sizes_without({**region.fixed, **fixed}, known.fixed)
                if is_identity:
                    proven = replace(region, fixed=pinned)
                else:
                    proven = others._region(known.graph, traced, pinned, region.sizes)
                known.ways.append(ProvenWay(names, proven, traced, is_identity))
            return True
        return False

    def with_broadcast_axes(self, proven: ProvenGraph) -> Graph:
        """One of the graphs, whose plan says which axes may be of size 1 in a call."""
        return with_broadcast_axes(proven.graph, proven.regions, self._trials)

    def _is_right_for(self, graph: Graph, traces: Iterable[Traced]) -> bool:
        """True for a graph that computes what the graph of each trace computes, at its sizes."""
        return not any(self.difference_of(graph, traced) for traced in traces)

    def difference_of(self, first: Graph, traced: Traced) -> str:
        """Where a graph computes something else than that of a trace, in words; empty where it does
        not.
        """
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
            made = Comparison(graph.artifact, sizes, proofs_of(self._plan, conditions))
            # the trace is kept alive, so that no other one gets its id
            self._comparisons[id(traced)] = traced, made
        return self._comparisons[id(traced)][1]

    def _proven(self, traced: Traced, fixed: Sizes) -> ProvenGraph:
        region = self._region(traced.graph, traced, {}, {**fixed, **traced.graph.sizes})
        return ProvenGraph(traced.graph, fixed, [traced], self.limits, [region])

    def _region(self, graph: Graph, traced: Traced, fixed: Sizes, sizes: Sizes) -> ProvenRegion:
        """The region of a trace, with the least sizes at which ``graph`` is right."""
        by_number = tuple(
            c
            for c in traced.graph.contract.regions[0].constraints
            if c.origin in (Origin.FIXED, Origin.STEPS)
        )
        evidence = f"a run with {listed(sizes)}" if traced.by_run else traced_at(sizes)
        region = ProvenRegion(
            fixed,
            traced.condition.atoms,
            by_number,
            dict(sizes),
            evidence,
            traced.condition.tried,
            traced.condition.reads,
            not_tracing=NOT_TRACING in traced.request.on,
            rolling=traced.rolling,
            bounds=traced.bounds,
            unread=traced.unread,
        )
        found = self._trials.of(graph, region)
        return replace(region, limits=(*by_number, *found.limits), dropped=tuple(found.dropped))


def _with_marks_of(graph: Graph, other: Graph) -> Graph:
    """The graph with what the model reads in the trace of another one too."""
    return replace(graph, marks={**other.marks, **graph.marks})


def _n_numbers(traced: Traced) -> int:
    """Counts the expressions of sizes that are a number in a trace: ``side // 2`` is 1 for sides of 2 and 3."""
    atoms = traced.condition.atoms.values()
    n_equal = sum(isinstance(atom.condition, sympy.Eq) for atom in atoms)
    return n_equal + len(traced.graph.fixed_axes)


def _n_numbers_in(known: ProvenGraph) -> int:
    """Counts the numbers in the trace that gave a graph its shapes."""
    program = known.graph.artifact
    own = (_n_numbers(traced) for traced in known.traces if traced.graph.artifact is program)
    return next(own, 0)


def _with_shapes_of(graph: Graph, other: Graph) -> Graph:
    """The graph with the shapes that its tensors have in a trace of more general sizes: converters read them. The
    graph as it is where that cannot be told.
    """
    made = _with_program(graph, lambda: with_shapes_of(graph.artifact, other.artifact))
    return graph if made is None else replace(made, sizes=other.sizes, example=other.example)


def _with_open_axes(graph: Graph, symbols: Collection[str]) -> Graph:
    """The graph with a size of their own for axes that are one number in its trace, where it is proven for several:
    a table of a model has one value for two lengths. The graph as it is where its operators need the number.
    """
    axes: dict[str, dict[int, str]] = {}
    for axis, size in graph.exported_sizes.items():
        expression = graph.plan.expression(axis)
        if (
            axis.dim is not None
            and size is not None
            and size.is_constant
            and str(expression) in symbols
        ):
            axes.setdefault(graph.names[axis.path], {})[axis.dim] = str(expression)
    if not axes:
        return graph
    return _with_program(graph, lambda: with_open_axes(graph.artifact, axes)) or graph


def _with_program(
    graph: Graph, make: Callable[[], torch.export.ExportedProgram | None]
) -> Graph | None:
    """The graph with a program of the same operators and other shapes; None where there is none."""
    try:
        program = make()
    except Exception as error:  # an operator decides by sizes that are others there
        logger.debug("%s has the shapes of its own trace: %s", graph.name, error)
        return None
    if program is None:
        return None
    sizes, ranges = read_sizes(program, graph.plan, graph.names)
    kinds = output_kinds(program, graph.plan, graph.names)
    return replace(
        graph,
        artifact=program,
        outputs=replace(graph.outputs, kinds=kinds),
        exported_sizes=sizes,
        ranges=ranges,
        run=runner_on_demand(program, tuple(graph.names.values()), as_traced=True),
    )


def _are_within(fixed: Sizes, others: Sizes) -> bool:
    """True where sizes with the fixed ones have the other fixed ones as well."""
    return all(fixed.get(name) == size for name, size in others.items())


def sizes_without(sizes: Sizes, others: Sizes) -> Sizes:
    """Returns the sizes of symbols that have none in the other ones."""
    return {name: size for name, size in sizes.items() if name not in others}


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

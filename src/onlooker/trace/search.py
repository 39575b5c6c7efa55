"""Which graphs are needed for a plan, and for which sizes each is proven.

The first trace proves its graph under its path condition. Sizes outside that the model takes are
traced as well: where the trace gives a graph that is known already, that graph is proven there too,
else the new graph joins the program. So no condition of the model is dropped because trials agree.

Only conditions of torch's operators on sizes of 0 and 1 are left to trials, exactly there: an
operator decides again whenever the graph runs. Model and graph must run the same operators in such
a trial.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

import sympy
import torch

from ..contract.places import formulas_of
from ..core.contract import Constraint, Contract, Origin
from ..core.errors import ExportError
from ..core.plan import Plan, Symbol
from ..core.progress import tell
from ..infer.sizes import Sizes, grain, is_general, is_possible, observed_sizes
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import close_arguments, materialise
from ..observing.store import Sample
from ..torch_internals.sizes import FloorDiv, Mod, PythonMod
from .dims import Asked
from .fixed_sizes import at_sizes
from .graph import Graph
from .obtained import sizes_in_plan
from .operator_trials import OperatorTrials, sizes_of_symbol
from .path_condition import Atom, proofs_of
from .regions import ProvenRegion, contract_of
from .same_graph import Comparison
from .size_proofs import is_periodic
from .torch_export import Traced, export_graph
from .torch_run import as_guards, write_contract

__all__ = ["PlanSearch", "ProvenGraph"]

logger = logging.getLogger(__name__)
#: what may be spent on traces for sizes that no watched call had: a trace costs 1, and 1 more per
#: so many conditions
_MOST_SPENT, _CONDITIONS = 12, 10
#: a trace in which sizes are values costs so many others: its other sides are rarely proven equal
_OF_VALUES = 4
#: a plan with more conditions on remainders than this has too many sides for a graph each; so many
#: graphs with other pads tell that a further side would be one more
_MOST_REMAINDERS, _MOST_SIDES = 4, 6
_SMALL = 24
#: how many sizes on the other side of a condition are looked at for a general one
_MOST_NEAR = 8


@dataclass(slots=True)
class ProvenGraph:
    """A graph, and the regions of sizes for which it is proven, each by one trace.

    ``pins`` are symbols that are numbers in the graph.
    """

    graph: Graph
    pins: Mapping[str, int]
    traces: list[Traced]
    regions: list[ProvenRegion] = field(default_factory=list)

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes of the whole plan for which the graph is proven."""
        if any(sizes[name] != size for name, size in self.pins.items()):
            return False
        return any(region.holds(sizes) for region in self.regions)

    def current(self) -> Graph:
        """The graph with its regions as they are."""
        return replace(
            self.graph, contract=Contract(tuple(region.region for region in self.regions))
        )

    def finished(self) -> Graph:
        """The graph with its contract, as short as the proofs allow."""
        contract = contract_of(self.graph.plan, self.regions)
        write_contract(
            self.graph.artifact, formulas_of(self.graph.plan, contract, as_guards(self.graph.names))
        )
        return replace(self.graph, contract=contract)


class PlanSearch:
    """The graphs of one plan.

    ``model_takes`` says whether the model takes sizes; every answer is one run of the model.
    """

    def __init__(self, plan: Plan, samples: Sequence[Sample], lab: Lab) -> None:
        self.plan, self.samples, self.lab = plan, samples, lab
        self.graphs: list[ProvenGraph] = []
        self.notes: list[str] = []
        self._asked = Asked()
        self._taken: dict[tuple[tuple[str, int], ...], bool] = {}
        self._tried: set[Any] = set()
        self._seen: list[Sizes] = [observed_sizes(plan)]
        self._comparisons: dict[int, tuple[Traced, Comparison]] = {}
        self._trials = OperatorTrials(plan, tuple(samples), lab, self.takes)

    def begin(self, traced: Traced) -> None:
        """Takes the first graph of the plan."""
        self._asked = traced.asked
        self.graphs.append(self._proven(traced, {}))

    @property
    def decides_by_masks(self) -> bool:
        """True where the model was told that it is not traced, and decides by values then: whether a
        mask hides anything, as :mod:`.mask_check` found.
        """
        return self._asked.untold and self._asked.branch is not None

    def holds(self, sizes: Sizes) -> bool:
        """True for sizes for which some graph is proven."""
        return any(graph.holds(sizes) for graph in self.graphs)

    def finished(self) -> list[Graph]:
        """All graphs, each with its contract."""
        return [proven.finished() for proven in self.graphs]

    def add_sizes(self, sizes: Sizes) -> bool:
        """Traces the plan for sizes of a call that no graph holds; True when a graph holds them then.

        Smaller sizes on the same sides of all known conditions stand for large ones.
        """
        self._seen.append(sizes)
        for choice in self._general_near(sizes):
            self._trace(choice)
            if self.holds(sizes):
                return True
        return False

    def explore(self) -> None:
        """Traces the other side of every condition that is left, where the model takes sizes
        there.
        """
        spent = 0
        while spent < _MOST_SPENT:
            if self._each_side_is_a_graph:
                self.notes.append(self._note_on_sides())
                return
            choice = next(self._open_sizes(), None)
            if choice is None:
                return
            self._trace(choice)
            cost = 1 + self._n_conditions // _CONDITIONS
            spent += cost * _OF_VALUES if self._asked.opaque else cost
        self.notes.append("not every side of every condition was traced: such sizes are refused")

    @property
    def _n_conditions(self) -> int:
        """The conditions of the last trace: with them grows the time that torch takes."""
        return max(len(proven.regions[-1].atoms) for proven in self.graphs)

    @property
    def _each_side_is_a_graph(self) -> bool:
        """True where the sides of many conditions on remainders gave graphs of their own.

        Five halvings of a height and a width that each pad by ``height % 2`` are 1,024 graphs, of
        which the watched calls have theirs. Where a pad of 0 is in the graph as well, one trace
        serves several sides, and all are looked at.
        """
        many = [graph for graph in self.graphs if len(_remainders(graph)) > _MOST_REMAINDERS]
        return len(many) >= _MOST_SIDES

    def _note_on_sides(self) -> str:
        first, *others = max(map(_remainders, self.graphs), key=len)
        where = f" at {first.line}" if first.line else ""
        return (
            f"the other sides of {first.formula}{where}, and of {len(others)} more conditions on"
            " remainders, were not all traced, since each that was is a graph of its own: such sizes"
            " are refused"
        )

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
            traced = export_graph(plan, self.samples, self.lab, choices=[free], like=self._asked)
        except ExportError as error:
            logger.debug("%s", error)
            self.notes.append(f"sizes such as {_listed(choice)} are refused by torch.export")
            return
        for known in self.graphs:
            if _are_within(pins, known.pins) and not self._differs(known.graph, traced):
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
        moved = [
            self._region(graph, one, _without({**known.pins, **region.pins}, pins), region.sizes)
            for one, region in zip(known.traces, known.regions, strict=True)
        ]
        own = self._region(graph, traced, {}, choice)
        self.graphs[self.graphs.index(known)] = ProvenGraph(
            graph, pins, [*known.traces, traced], [*moved, own]
        )

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
            untold=traced.asked.untold,
            rolling=traced.rolling,
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

    def _open_sizes(self) -> Iterator[Sizes]:
        """Sizes that no graph holds and the model takes: the other side of one condition, then of
        several.

        Sizes as even as those that were seen come first: sides of images are rarely odd, and never
        0 or 1. Before them come sizes at which no two sizes are equal by chance, since these stand
        for most. The graphs of calls that were seen come before those of other sides.
        """
        graphs = sorted(self.graphs, key=lambda graph: not any(map(graph.holds, self._seen)))
        for proven in graphs:
            for region in list(proven.regions):
                yield from self._off_equalities(region, proven.pins)
        for even in (True, False):
            for proven in graphs:
                for region in list(proven.regions):
                    limits = [c for c in region.limits if c.origin is not Origin.STEPS]
                    conditions: list[Atom | Constraint] = [*region.atoms.values(), *limits]
                    for condition in conditions:
                        yield from self._beyond(region, condition, proven.pins, even)
        symbols = self.plan.symbols
        pools = [
            dict.fromkeys((self.graphs[0].regions[0].sizes.get(s.name, 2), s.low, 1, 0))
            for s in symbols
        ]
        for choice in product(*pools):
            sizes = {symbol.name: size for symbol, size in zip(symbols, choice, strict=True)}
            if all(symbol.takes(sizes[symbol.name]) for symbol in symbols):
                yield from self._if_open(sizes, ("small", choice))

    def _beyond(
        self,
        region: ProvenRegion,
        condition: Atom | Constraint,
        pins: Mapping[str, int],
        even: bool,
    ) -> Iterator[Sizes]:
        """The nearest sizes at which a condition of a region fails, one symbol changed."""
        formula = condition.formula
        mark = (*_mark(formula, {**region.pins, **pins}), even)
        if mark in self._tried:
            return
        self._tried.add(mark)
        base = {**region.sizes, **pins}
        constraint = condition if isinstance(condition, Constraint) else condition.constraint()
        for symbol in self.plan.symbols:
            if symbol.name not in formula:
                continue
            sizes = [
                n for n in sizes_of_symbol(symbol) if not constraint.holds({**base, symbol.name: n})
            ]
            unit = grain(symbol) if even else 1
            even_ones = [n for n in sizes if n % unit == 0 and (n or unit == 1)]
            for size in self._nearest(region, symbol, base, even_ones):
                yield from self._if_open({**base, symbol.name: size}, None)

    def _off_equalities(self, region: ProvenRegion, pins: Mapping[str, int]) -> Iterator[Sizes]:
        """Sizes of a region, changed until all equalities fail that operators found in its trace:
        a size is the next multiple of 16 only where it is one.
        """
        sizes = {**region.sizes, **pins}
        equalities = [atom for atom in region.atoms.values() if _is_chance(atom)]
        for atom in equalities:
            constraint = atom.constraint()
            names = {symbol.name for symbol in atom.condition.free_symbols}
            for symbol in (one for one in self.plan.symbols if one.name in names):
                near = sorted(sizes_of_symbol(symbol), key=lambda n: abs(n - sizes[symbol.name]))
                choices = ({**sizes, symbol.name: n} for n in near if n > 1)
                sizes = next((one for one in choices if not constraint.holds(one)), sizes)
        if equalities:
            yield from self._if_open(sizes, ("chance", tuple(sorted(pins.items()))))

    def _nearest(
        self, region: ProvenRegion, symbol: Symbol, base: Sizes, sizes: Sequence[int]
    ) -> list[int]:
        """Of some sizes of a symbol the nearest general one that no graph holds, and those of 0
        and 1.
        """
        near = sorted((n for n in sizes if n > 1), key=lambda n: abs(n - base[symbol.name]))
        open_ = (n for n in near if not self.holds({**base, symbol.name: n}))
        first = list(islice(open_, _MOST_NEAR))
        general = [n for n in first if is_general(self.plan, {**base, symbol.name: n})] or first
        sound = [n for n in general if region.is_general({**base, symbol.name: n})] or general
        return [*sound[:1], *(n for n in sizes if n < 2)]

    def _if_open(self, sizes: Sizes, mark: Any) -> Iterator[Sizes]:
        """The sizes, unless a size that became a number would be a further one: a graph for that
        number alone.
        """
        if mark is not None:
            if mark in self._tried:
                return
            self._tried.add(mark)
        if self._has_known_numbers(sizes) and not self.holds(sizes) and self.takes(sizes):
            yield sizes

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
                return
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


def _is_chance(atom: Atom) -> bool:
    """True for an equality between sizes that hangs on their remainders, and that only operators
    found.
    """
    condition = atom.condition
    return (
        atom.origin is Origin.OPERATOR
        and isinstance(condition, sympy.Eq)
        and not atom.is_number
        and condition.has(FloorDiv, PythonMod, Mod)
    )


def _remainders(proven: ProvenGraph) -> list[Atom]:
    """The conditions of the last trace of a graph that hang on remainders of sizes alone."""
    return [atom for atom in proven.regions[-1].atoms.values() if is_periodic(atom.condition)]


def _mark(formula: str, pins: Mapping[str, int]) -> tuple[str, tuple[tuple[str, int], ...]]:
    """What was looked at: a condition, at some pinned sizes; of equalities with numbers the left
    side alone.
    """
    left, equals, right = formula.partition(" == ")
    text = left if equals and right.lstrip("-").isdigit() else formula
    return text, tuple(sorted(pins.items()))


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

"""Runs of a model on each side of what its Python decides by sizes.

A graph of a decoder stands for many ways of a call: without a mask, without a cache, without both.
A trace of each way would cost more than the export. So the model runs in such a way on plain
tensors, while each size that its Python reads is a symbol of torch. What Python decides by a symbol
is a condition on sizes, and a run stands for all sizes that satisfy its conditions. Sizes for which
no run stands get a run of their own, until the sizes of the graph are covered:

    def forward(self, x, mask=None):                # the graph was traced with a mask
        if mask is None and x.shape[1] > 64: ...

    run without a mask      decided         stands for
    x.shape == (3, 5)       n <= 64         1 to 64
    x.shape == (3, 65)      n > 64          65 and more

Within the sizes of one run the model computes by the same operators. Each run is compared with the
graph: for plain values, with a padded mask, and for extreme values. A threshold of one of them on
values that the other lacks counts as a difference, and so does a value that Python reads. A number
that only one of them compares positions with gets runs beside it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from ..core.call import Values
from ..core.contract import Constraint
from ..core.errors import RejectedCallError
from ..core.path import Path
from ..core.sizes.expression import Sizes
from ..core.sizes.formula import numbers_near, symbols_in
from ..core.structure import Tree
from ..infer.sizes import is_possible
from ..lab.lab import Lab, SpentError
from ..lab.recorder import Recorder
from ..lab.rerun import difference
from ..lab.runner import opened
from ..lab.stateful import Stateful
from ..lab.without_floats import without_float_values, without_its_floats
from ..lab.work import is_dear, work_of
from ..materialise.extremes import LARGE, extreme_values
from ..materialise.padding import with_padding
from ..observing.effects import Effect
from ..observing.module_state import copied_values, values_at
from ..observing.reach import Snapshot
from ..observing.store import Sample
from ..proofs.decisions import Decision, recorded_decisions
from ..proofs.path_condition import symbol_of
from ..pytrees.open import copy_tensors, map_tensors, open_arguments
from ..repairs.loops.hit_rows import HitRows
from ..repairs.numbers.size_ints import builtins_swapped, files_of
from ..repairs.trace_mode import reading
from ..serve.dispatch import Dispatcher
from ..torch_internals.fake_tensors import FakeTensorMode
from ..torch_internals.trees import tree_leaves
from ..trace.graph import Graph
from ..trace.operators_alike import run_alike
from .identity import (
    Step,
    is_met,
    numbers_of_positions,
    places_taken,
    symbols_of_positions,
    thresholds_on_values,
    value_reads,
)
from .one_plan.operator_trials import as_in_a_trace
from .one_plan.search import PlanSearch
from .one_plan.ways import USUAL_SIZES, sizes_of_absent
from .symbolic_sizes import SymbolicSizes, WayDiffersError, plain_of

__all__ = ["SideRuns"]

logger = logging.getLogger(__name__)
#: the most sides of the decisions of one way of a call
_MOST_SIDES = 16
#: sizes of runs: each symbol has another one
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
#: a threshold on positions is met by sizes up to this one
_GREATEST = 600
#: the most work of a run, beside that of the first one
_MOST_LARGER = 32
#: what a call may leave behind for which runs without floats stand
_NUMBERS = frozenset({bool, int, float, str, type(None)})


@dataclass(frozen=True)
class _Side:
    """One run: its sizes, and the conditions under which Python decides as it did.

    ``fixed`` are sizes that could not be told from constants of the model, ``operators`` those that
    ran.
    """

    sizes: Sizes
    conditions: tuple[Constraint, ...]
    fixed: Sizes
    operators: tuple[str, ...] = ()

    @property
    def key(self) -> Any:
        """Equal for two runs that go the same way."""
        return tuple(self.sizes.items()), self.conditions, self.operators

    def covers(self, sizes: Sizes) -> bool:
        """True for sizes for which the run stands."""
        is_same = all(sizes[name] == size for name, size in self.fixed.items())
        return is_same and all(condition.holds(sizes) for condition in self.conditions)


@dataclass(frozen=True)
class _Recorded:
    """A run of the model: its result, its operators, the tensors that it was given, and what Python
    decided.
    """

    result: Tree[Any]
    steps: Sequence[Step]
    given: Sequence[torch.Tensor]
    symbols: SymbolicSizes
    hits: HitRows
    decisions: tuple[Decision, ...]


class _OtherResult(WayDiffersError):
    """The result is another one."""


@dataclass(frozen=True)
class _Numbers:
    """The numbers on positions that runs or graphs alone have.

    A loop over the rows of a block of 64 has all numbers up to 63. An axis of a constant length has
    the same places at every size, and what stands there is all there once the axis is full: for
    these numbers there is its length.
    """

    of_runs: set[int] = field(default_factory=set)
    of_graphs: set[int] = field(default_factory=set)

    @property
    def all(self) -> set[int]:
        """The numbers of runs and those of graphs."""
        return self.of_runs | self.of_graphs

    def add(self, run: _Recorded, of_graph: _OfGraph) -> None:
        """Notes the numbers of a run and of a graph at the same sizes."""
        one, other = numbers_of_positions(run.steps), of_graph.positions
        self.of_runs.update(_unexplained(run, one - other, places_taken(run.steps)))
        self.of_graphs.update(_unexplained(run, other - one, of_graph.places))


def _unexplained(
    run: _Recorded, alone: Counter[int], taken: Counter[tuple[int, int]]
) -> Iterator[int]:
    """Yields the numbers that no size of a run explains; for places of an axis its constant length."""
    for number, count in alone.items():
        if run.symbols.explains(number):
            continue
        lengths = [n for n in run.symbols.constants if n <= _GREATEST and taken[number, n]]
        is_constant = sum(taken[number, n] for n in lengths) >= count
        yield from lengths if is_constant else [number]


@dataclass(frozen=True)
class _OfGraph:
    """The results of a graph for some inputs, and what its operators do with values; None for the
    latter where it has inner graphs that are not recorded.
    """

    inputs: Sequence[Any]
    result: Tree[Any]
    thresholds: Counter[Any] | None
    value_reads: int = 0
    positions: Counter[int] = field(default_factory=Counter)
    places: Counter[tuple[int, int]] = field(default_factory=Counter)

    def is_for(self, inputs: Sequence[Any]) -> bool:
        """True for the same inputs."""
        return len(inputs) == len(self.inputs) and all(map(_is_same, inputs, self.inputs))


class SideRuns:
    """The runs of a model beside the graphs of one search, on each side of what it decides.

    A graph is run once for all forms of a way that give it the same inputs: a call with an empty
    cache is another call for the model than one without a cache, and the same one for the graph.
    """

    def __init__(self, search: PlanSearch, lab: Lab) -> None:
        self.search, self.lab = search, lab
        self.graphs = [(proven, proven.current()) for proven in search.graphs]
        self.constants = _constants_of(search, lab)
        self.expressions = tuple(dict.fromkeys(_expressions(search)))
        self.files = files_of(lab.model)
        self._dispatchers = {g.name: Dispatcher([g], lab.signature) for _, g in self.graphs}
        self._of_graphs: dict[str, list[_OfGraph]] = {}

    def difference_without(self, names: Collection[str], forms: Iterable[Mapping[str, Any]]) -> str:
        """Returns the difference between calls without some arguments and the graphs that would serve
        them; nothing where they agree at every size.

        Each of the ``forms`` has the arguments that a call passes as an empty object, such as a new
        cache, instead of leaving them out. Where a form has the operators and the decisions of another
        one, it runs with plain values alone.
        """
        known: set[Any] = set()
        self._of_graphs.clear()
        try:
            for empty in forms:
                way = _Way(self, frozenset(names), empty, known=known)
                way.visit_sides()
                known |= {side.key for side in way.sides}
        except SpentError:
            return "not all sides of its decisions could be tried"
        except WayDiffersError as different:
            return str(different)
        return ""

    def difference_after_a_call(self, before: Sample) -> str:
        """Returns the difference between the result of a call that follows the one ``before`` and that
        of the graphs; nothing where no run found another result.
        """
        way = _Way(self, frozenset(), {}, before=before)
        with contextlib.suppress(SpentError):
            try:
                way.visit_sides()
            except _OtherResult as different:
                return str(different)
            except WayDiffersError as different:
                logger.debug("a call after another one: %s", different)
        return ""

    def symbols_of_positions(self, number: int) -> frozenset[str]:
        """Returns the symbols on which those positions depend that graphs compare with a number."""
        found = (symbols_of_positions(graph, number) for _, graph in self.graphs)
        return frozenset().union(*found)

    def of_graph(self, graph: Graph, arguments: dict[str, Any]) -> _OfGraph:
        """Returns what a graph gives for a call.

        :raises WayDiffersError: where the graph does not take the call
        """
        dispatcher = self._dispatchers[graph.name]
        taken = dispatcher.taken(arguments)
        inputs = copy_tensors(() if taken is None else taken[1])
        known = self._of_graphs.setdefault(graph.name, [])
        found = next((one for one in known if one.is_for(inputs)), None)
        if found is None or not inputs:
            found = self._run(dispatcher, arguments, inputs)
            known.append(found)
        return found

    def _run(
        self, dispatcher: Dispatcher, arguments: dict[str, Any], inputs: Sequence[Any]
    ) -> _OfGraph:
        recorder = Recorder()
        given = [leaf for leaf in open_arguments(arguments).leaves if _is_tensor(leaf)]
        with torch.set_grad_enabled(self.lab.subject.gradients):
            try:
                with recorder:
                    result = opened(dispatcher.serve_values(arguments)[2])
            except RejectedCallError as refusal:
                raise WayDiffersError(f"the graph refuses it: {refusal.message}") from refusal
            except NotImplementedError:
                result = opened(dispatcher.serve_values(arguments)[2])
                return _OfGraph(inputs, result, None)
        return _OfGraph(
            inputs,
            result,
            thresholds_on_values(recorder.steps, given),
            value_reads(recorder.steps),
            numbers_of_positions(recorder.steps),
            places_taken(recorder.steps),
        )


class _Way:
    """A way of a call: the arguments that it leaves out, the call ``before`` it, and its runs.

    ``known`` are the sides of other forms of the way: on these, plain values alone are compared.
    """

    def __init__(
        self,
        runs: SideRuns,
        names: frozenset[str],
        empty: Mapping[str, Any],
        *,
        before: Sample | None = None,
        known: Collection[Any] = (),
    ) -> None:
        self.runs, self.names, self.empty, self.before = runs, names, empty, before
        self.search, self.lab, self.plan = runs.search, runs.lab, runs.search.plan
        self.sides: list[_Side] = []
        self._absent = sizes_of_absent(self.plan, names)
        self._most_work = 0
        self._known = known
        #: True once the model was found to compute otherwise when it is not traced
        self._in_a_trace = False

    def visit_sides(self) -> None:
        """Runs the model until its runs stand for all sizes of the graphs.

        :raises WayDiffersError: where a run differs from the graph
        :raises SpentError: when the budget has ended
        """
        numbers = _Numbers()
        for proven, _ in self.runs.graphs:
            for region in proven.regions:
                base = {**region.sizes, **proven.fixed, **region.fixed, **self._absent}
                self._visit(self._with_own_sizes(base), numbers)
        n_known = -1
        while n_known < len(self.sides):
            n_known = len(self.sides)
            for side in list(self.sides):
                for sizes in self._sizes_near(side):
                    self._visit(sizes, numbers)
        if not self.sides:
            raise WayDiffersError("no sizes could be tried")
        if any(number > _GREATEST and self._may_meet(number, numbers) for number in numbers.all):
            raise WayDiffersError("it has a number on positions that is too large to be tried")
        small = sorted(number for number in numbers.all if number <= _GREATEST)
        for sizes in self._sizes_beside(small):
            self._compare(sizes, _Numbers())

    def _visit(self, sizes: Sizes, numbers: _Numbers) -> None:
        """A run at sizes of the graphs for which no run stands."""
        if any(side.covers(sizes) for side in self.sides) or not self._is_served(sizes):
            return
        if len(self.sides) >= _MOST_SIDES:
            raise WayDiffersError("it decides by sizes in too many ways")
        self.sides.append(self._compare(sizes, numbers))

    def _is_served(self, sizes: Sizes) -> bool:
        return self.search.holds(sizes) and is_possible(self.plan, sizes)

    def _with_own_sizes(self, base: Sizes) -> Sizes:
        """Sizes that no constant of the model has, where the graphs hold for such."""
        found, primes = dict(base), [p for p in _PRIMES if p not in self.runs.constants]
        for name, size in base.items():
            for prime in primes if size > 1 and name not in self._absent else ():
                choice = {**found, name: prime}
                if self._is_served(choice):
                    found = choice
                    primes.remove(prime)
                    break
        return found

    def _sizes_near(self, side: _Side) -> Iterator[Sizes]:
        """Sizes at the numbers of the conditions of a run, beside them and elsewhere; small ones
        first.
        """
        for condition in side.conditions:
            names = symbols_in(condition.formula) - self._absent.keys()
            free = [symbol for symbol in self.plan.symbols if symbol.name in names]
            tried = sorted({*USUAL_SIZES, *numbers_near(condition.formula)})
            pools = [[size for size in tried if symbol.takes(size)] for symbol in free]
            for choice in sorted(product(*pools), key=sum):
                chosen = {symbol.name: size for symbol, size in zip(free, choice, strict=True)}
                yield {**side.sizes, **chosen}

    def _sizes_beside(self, numbers: Sequence[int]) -> Iterator[Sizes]:
        """Sizes at some numbers on positions, beside them and beyond, each once: a loop over the rows of
        a block has all numbers up to its length.
        """
        names = [symbol.name for symbol in self.plan.symbols if symbol.name not in self._absent]
        known = {tuple(side.sizes.items()) for side in self.sides}
        for number in numbers:
            for name, size in product(names, (number - 1, number, number + 1, 2 * number + 3)):
                sizes = {**self.sides[0].sizes, name: size}
                key = tuple(sizes.items())
                if key not in known and self._is_served(sizes):
                    known.add(key)
                    yield sizes

    def _may_meet(self, number: int, numbers: _Numbers) -> bool:
        """True where the graphs take calls with as many positions as a number that is compared with them."""
        names = {symbol.name for symbol in self.plan.symbols} - self._absent.keys()
        if number not in numbers.of_runs:
            names &= self.runs.symbols_of_positions(number)
        return is_met(number, names, self.sides[0].sizes, self._is_served)

    # -- one run

    def _compare(self, sizes: Sizes, numbers: _Numbers) -> _Side:
        """The run of the model at some sizes, after it was compared with the graph.

        :raises WayDiffersError: where it differs
        """
        graph = next(graph for proven, graph in self.runs.graphs if proven.holds(sizes))
        calls = self.search.calls
        values = calls.values(sizes)
        work = work_of(self.lab.model, values)
        self._most_work = self._most_work or max(self.lab.most_work, _MOST_LARGER * work)
        if work > self._most_work:
            raise WayDiffersError(f"it decides by sizes that are too large to be tried: {sizes}")
        proven = self._proven_side(graph, values, sizes)
        if proven is not None:
            return proven
        side = self._compare_values(graph, values, sizes, numbers)
        if self.sides or side.key in self._known:
            return side
        others = (
            with_padding(calls, values, hidden=True),
            extreme_values(calls, values, LARGE),
        )
        for changed in others:
            if changed is not None and self._passes_other(values, changed):
                self._compare_values(graph, changed, sizes, numbers)
        return side

    def _proven_side(self, graph: Graph, values: Values, sizes: Sizes) -> _Side | None:
        """The run of a large model after another call, where runs without floats prove for all values
        that the graph computes the same; None elsewhere.

        The call before may leave numbers of Python behind, and no tensors: what those hold is unknown.
        """
        inputs = [values[leaf.path] for leaf in graph.plan.inputs]
        if self.before is None or isinstance(self.lab.model, Stateful):
            return None
        if not is_dear(self.lab.model, values) or not all(map(_has_floats, inputs)):
            return None
        regions = [region for proven, _ in self.runs.graphs for region in proven.regions]
        if any(region.rolling.lines or region.rolling.visited for region in regions):
            return None
        symbols = SymbolicSizes(self.plan, sizes, self.runs.expressions, self.runs.constants)
        before, hits = self.before, self._hit_rows()

        @contextlib.contextmanager
        def looking(mode: FakeTensorMode, recorder: Recorder) -> Iterator[None]:
            state = Snapshot.of(self.lab.model)
            with without_float_values(mode):
                without = functools.partial(without_its_floats, mode)
                self.lab.subject(map_tensors(without, dict(before.arguments())))
            if not state.is_whole or not all(map(_leaves_numbers, state.effects())):
                raise WayDiffersError("the call before leaves more than numbers behind")
            with without_float_values(mode), self._reading(recorder, symbols, hits):
                yield

        calls, why = self.search.calls, "a side of a decision after another call"
        with recorded_decisions() as log:
            run = run_alike(graph, calls, self.lab, values, looking, why=why)
        if run is None:
            return None
        operators = tuple(str(function) for function, *_ in run.steps)
        conditions = symbols.conditions(log.decisions.values())
        return _Side(sizes, conditions, symbols.fixed, operators)

    def _passes_other(self, values: Mapping[Path, Any], changed: Mapping[Path, Any]) -> bool:
        """True where a value that the way does not leave out was changed."""
        return any(
            changed[path] is not value
            for path, value in values.items()
            if path.root not in self.names
        )

    def _compare_values(
        self, graph: Graph, values: Mapping[Path, Any], sizes: Sizes, numbers: _Numbers
    ) -> _Side:
        run = self._recorded(values, sizes)
        if run is None:  # the model refuses these sizes with the arguments too
            return _Side(sizes, (), sizes)
        of_graph = self.runs.of_graph(graph, self._arguments(values))
        found = difference(run.result, of_graph.result)
        if found:
            raise _OtherResult(f"at {sizes}: {found}")
        why = _other_values(run, of_graph)
        if why and not self._in_a_trace:
            # a model may leave out a mask that hides nothing, except in a trace
            self._in_a_trace = True
            traced = self._recorded(values, sizes)
            if traced is not None:
                run, why = traced, _other_values(traced, of_graph)
        if why:
            raise WayDiffersError(why)
        if of_graph.thresholds is not None:
            numbers.add(run, of_graph)
        operators = tuple(str(function) for function, *_ in run.steps)
        conditions = run.symbols.conditions(run.decisions)
        return _Side(sizes, conditions, run.symbols.fixed, operators)

    def _recorded(self, values: Mapping[Path, Any], sizes: Sizes) -> _Recorded | None:
        """A run of the model; None where it refuses the sizes with the arguments as well.

        :raises WayDiffersError: where it refuses them without the arguments alone
        """
        arguments = self._arguments(values)
        given = [leaf for leaf in open_arguments(arguments).leaves if _is_tensor(leaf)]
        symbols = SymbolicSizes(self.plan, sizes, self.runs.expressions, self.runs.constants)
        recorder, hits = Recorder(), self._hit_rows()
        without = f" without {', '.join(sorted(self.names))}" if self.names else ""
        after = " after another call" if self.before is not None else ""
        why = f"a side of a decision{without}{after}"
        try:
            with recorded_decisions() as log:
                looking = self._looking(recorder, symbols, hits)
                result = self.lab.run_within(arguments, looking, why=why)
        except SpentError:
            raise
        except Exception as error:
            if self.search.takes(sizes):
                raise WayDiffersError(f"the model refuses {sizes}: {error}") from error
            return None
        if hits.visited:
            self._check_visits(result, values, sizes, why)
        decisions = tuple(log.decisions.values())
        return _Recorded(_plain(result), recorder.steps, given, symbols, hits, decisions)

    def _check_visits(
        self, visited: Tree[Any], values: Mapping[Path, Any], sizes: Sizes, why: str
    ) -> None:
        """Passes where a run that visits all rows gives what the model gives.

        :raises WayDiffersError: elsewhere
        """
        arguments = self._arguments(values)
        plain = SymbolicSizes(self.plan, sizes, self.runs.expressions, self.runs.constants)
        looking = self._looking(Recorder(), plain, HitRows(like=()))
        result = _plain(self.lab.run_within(arguments, looking, why=why))
        found = difference(result, _plain(visited))
        if found:
            raise WayDiffersError(f"its loop over rows gives something else: {found}")

    def _hit_rows(self) -> HitRows:
        """The loops of the model of which the graphs visit all rows."""
        regions = [region for proven in self.search.graphs for region in proven.regions]
        visited = {line for region in regions for line in region.rolling.visited}
        refused = {row for region in regions for row in region.rolling.refused}
        return HitRows(like=visited, refused=refused)

    @contextlib.contextmanager
    def _looking(self, recorder: Recorder, symbols: SymbolicSizes, hits: HitRows) -> Iterator[None]:
        """The run of the model stands inside; the call before it has been made."""
        model = self.lab.model
        left: AbstractContextManager[None] = contextlib.nullcontext()
        if self.before is not None and isinstance(model, Stateful):
            # what watched calls left, as copies: the model is the user's
            values = copied_values(values_at(self.lab.subject.watched, model.unread))
            left = model.lifted(lambda path, value: values.get(path))
        elif self.before is not None:
            self.lab.subject(dict(self.before.arguments()))
        with left, self._reading(recorder, symbols, hits):
            yield

    @contextlib.contextmanager
    def _reading(self, recorder: Recorder, symbols: SymbolicSizes, hits: HitRows) -> Iterator[None]:
        """Inside the block sizes are symbols, and operators are recorded."""
        within = as_in_a_trace() if self._in_a_trace else contextlib.nullcontext()
        builtins = symbols.ranges.builtins
        lists = builtins_swapped(self.lab.model, builtins, files=self.runs.files)
        with within, recorder, reading(symbols, hits), lists:
            yield
            symbols.ranges.settle()

    def _arguments(self, values: Mapping[Path, Any]) -> dict[str, Any]:
        """The arguments of the way, as copies."""
        arguments: dict[str, Any] = copy_tensors(self.search.calls.arguments_of(values))
        for name in self.names:
            arguments.pop(name, None)
        return {**arguments, **{name: copy_tensors(value) for name, value in self.empty.items()}}


def _other_values(run: _Recorded, of_graph: _OfGraph) -> str:
    """Returns what a run does with values that the graph does not; nothing where there is no such
    thing.
    """
    if of_graph.thresholds is None:
        return ""
    if thresholds_on_values(run.steps, run.given) != of_graph.thresholds:
        return "it has other thresholds on values"
    if value_reads(run.steps, run.hits.numbers) > of_graph.value_reads:
        return "it decides by values"
    return ""


def _is_same(one: Any, other: Any) -> bool:
    """True for two inputs of a graph that hold the same."""
    if not _is_tensor(one) or not _is_tensor(other):
        return type(one) is type(other) and bool(one == other)
    is_alike = one.dtype == other.dtype and one.stride() == other.stride()
    return is_alike and torch.equal(one, other)


def _has_floats(value: Any) -> bool:
    return _is_tensor(value) and value.is_floating_point()


def _leaves_numbers(effect: Effect) -> bool:
    """True for a change to a number or a text of Python, or to a tuple or list of these."""
    leaves = tree_leaves((effect.before, effect.after))
    return not effect.is_write and all(type(leaf) in _NUMBERS for leaf in leaves)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _plain(tree: Tree[Any]) -> Tree[Any]:
    return tree.each(plain_of)


def _expressions(search: PlanSearch) -> Iterator[Any]:
    """The sizes of the plan, those of its axes, and those that the model read in a trace."""
    yield from map(symbol_of, search.plan.symbols)
    for leaf in search.plan.inputs:
        for _, expression in leaf.axes:
            yield expression.value
    for proven in search.graphs:
        for region in proven.regions:
            yield from (size for sizes in region.reads for size in sizes if size is not None)


def _constants_of(search: PlanSearch, lab: Lab) -> frozenset[int]:
    """The sizes that the model has whatever the call is."""
    found = {int(size) for size in _expressions(search) if size.is_Integer}
    if isinstance(lab.model, torch.nn.Module):
        for tensor in (*lab.model.parameters(), *lab.model.buffers()):
            found.update(tensor.shape)
    return frozenset(found)

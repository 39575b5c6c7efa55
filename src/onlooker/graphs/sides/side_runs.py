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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch

from ...core.call import Arguments, Values
from ...core.contract import Constraint, Origin
from ...core.path import Path
from ...core.plan import symbol_names
from ...core.sizes.expression import Sizes
from ...core.sizes.formula import numbers_near, symbols_in
from ...infer.sizes import is_possible
from ...lab.lab import Lab, SpentError
from ...lab.recorder import Recorder
from ...lab.rerun import difference
from ...lab.runner import opened
from ...lab.stateful import Stateful
from ...lab.without_floats import without_float_values, without_its_floats
from ...materialise.arguments import leaf_values
from ...materialise.extremes import LARGE, extreme_values
from ...materialise.other_values import redrawn
from ...materialise.padding import with_padding
from ...observing.effects import Effect
from ...observing.reach import Snapshot
from ...observing.store import Sample
from ...proofs.decisions import recorded_decisions
from ...pytrees.numbers import has_floats
from ...pytrees.open import copy_tensors, map_tensors
from ...torch_internals.fake_tensors import FakeTensorMode
from ...torch_internals.trees import tree_leaves
from ...trace.graph import Graph
from ...trace.operators_alike import run_alike
from ..identity import are_lengths, is_met, symbols_of_positions
from ..one_plan.search import PlanSearch
from ..one_plan.ways import USUAL_SIZES, sizes_from, sizes_of_absent
from ..thresholds import GREATEST_TRIED, LARGE_SIZE
from .graph_runs import GraphRun, GraphRuns
from .operators_of_runs import thresholds_on_values, value_reads
from .position_numbers import PositionNumbers
from .symbolic_sizes import TooLargeError, WayDiffersError, WayRefusesError
from .way_runs import RecordedRun, SizesOfModel, WayRuns

__all__ = ["SideRuns"]

logger = logging.getLogger(__name__)
#: the most sides of the decisions of one way of a call
_MOST_SIDES = 16
#: sizes of runs: each symbol has another one
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
#: the most work of a run, beside that of the first one
_MOST_LARGER = 32
#: the most numbers that the operators of a run may give, all of which are kept: 4 GB of floats
_MOST_NUMBERS = 2**30
#: a run at a large size, which no condition asks for, may be this part of the most work of a run
_PART_OF_LARGE = 0.5
#: the least size that torch does not make a constant
_LEAST_GENERAL = 2
_INTS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
#: other sizes of a side that are tried, up to which size where the side hangs on one symbol, and on several
_MOST_OTHERS, _BESIDE_ONE, _BESIDE_SEVERAL = 2, 130, 12
#: so many calls that differ from a watched one in what is bound are made before it
_MOST_BOUND = 12
#: what a call may leave behind for which runs without floats stand
_NUMBERS = frozenset({bool, int, float, str, type(None)})


@dataclass(frozen=True)
class _Side:
    """One run: its sizes, and the conditions under which Python decides as it did.

    ``fixed`` are sizes that could not be told from constants of the model, ``operators`` those that
    ran. A run that ``is_refused`` by the model stands for its own sizes.
    """

    sizes: Sizes
    conditions: tuple[Constraint, ...]
    fixed: Sizes
    operators: tuple[str, ...] = ()
    is_refused: bool = False

    @property
    def key(self) -> Any:
        """Equal for two runs that go the same way."""
        return tuple(self.sizes.items()), self.conditions, self.operators

    def covers(self, sizes: Sizes) -> bool:
        """True for sizes for which the run stands."""
        is_same = all(sizes[name] == size for name, size in self.fixed.items())
        return is_same and all(condition.holds(sizes) for condition in self.conditions)


class SideRuns:
    """The runs of a model beside the graphs of one search, on each side of what it decides."""

    def __init__(self, search: PlanSearch, lab: Lab) -> None:
        self.search, self.lab = search, lab
        self.graphs = [(proven, proven.current()) for proven in search.graphs]
        self.known = SizesOfModel.of(search, lab)
        self.graph_runs = GraphRuns([graph for _, graph in self.graphs], lab)

    def limits_without(
        self, names: Collection[str], forms: Iterable[Mapping[str, Any]]
    ) -> list[Constraint]:
        """Returns the conditions on sizes under which calls without some arguments are what the graphs
        compute: none where that is so at every size. Sizes that are too large to be tried are left out.

        Each of the ``forms`` has the arguments that a call passes as an empty object, such as a new
        cache, instead of leaving them out. Where a form has the operators and the decisions of another
        one, it runs with plain values alone.

        :raises WayDiffersError: where they differ, or could not be tried
        """
        known: set[Any] = set()
        limits: list[Constraint] = []
        self.graph_runs.forget()
        try:
            for empty in forms:
                without = frozenset(names)
                runs = WayRuns(self.search, self.lab, self.known, names=without, empty=empty)
                way = _Way(self, runs, known, limits)
                way.visit_sides()
                known |= {side.key for side in way.sides}
        except SpentError as spent:
            raise WayDiffersError("not all sides of its decisions could be tried") from spent
        return limits

    def is_same_at(self, names: Collection[str], sizes: Sizes) -> bool:
        """True where the model computes without some arguments what the graphs compute, at the sizes of 1 among
        some sizes, whatever the others are.
        """
        runs = WayRuns(self.search, self.lab, self.known, names=frozenset(names))
        try:
            side = _Way(self, runs).compared(sizes)
        except (WayDiffersError, SpentError) as different:
            logger.info("without %s at %s: %s", ", ".join(sorted(names)), sizes, different)
            return False
        ones = {name: size for name, size in sizes.items() if size == 1}
        return not side.is_refused and all(
            condition.holds({**others, **ones})
            for condition in side.conditions
            for others in sizes_from(2, condition, dict(sizes))
        )

    def limits_after_a_call(self, before: Sample) -> list[Constraint]:
        """Returns the conditions on sizes under which a call that follows another one is what the graphs
        compute: none where that is so at every size. The other call is the one ``before``, and one on each
        side of what the model decides by sizes.

        :raises WayDiffersError: where they differ, or could not be tried
        """
        try:
            way = _Way(self, self._runs_after(before.arguments(), self._values_of(before)))
            way.visit_sides()
            is_stateful = isinstance(self.lab.model, Stateful)
            others = [side for side in way.sides if not (is_stateful or side.is_refused)]
            if before.call.index in self.search.plan.calls:
                sizes = self.search.calls.sizes_of(before)
                others = [side for side in others if not side.covers(sizes)]
            for side in others:
                values = self.search.calls.values(side.sizes)
                runs = self._runs_after(self.search.calls.arguments_of(values), values)
                _Way(self, runs, limits=way.limits).visit_sides()
            if before.call.index in self.search.plan.calls and not is_stateful:
                self._check_after_others(before)
        except SpentError as spent:
            raise WayDiffersError("not all sides of its decisions could be tried") from spent
        return way.limits

    def _check_after_others(self, sample: Sample) -> None:
        """Passes where a call gives what it gives by itself after calls that differ from it in what is bound: sizes
        beyond a condition of the graphs, flags, arguments that they leave out, values. A program may refuse these,
        and what the model kept for one of them would be used by the call.

        :raises WayDiffersError: where it gives something else
        """
        arguments = dict(sample.arguments())
        alone = self._result_after((), arguments)
        for other in islice(self._others_beside(sample), _MOST_BOUND):
            try:
                after = self._result_after((other,), arguments)
            except SpentError:
                raise
            except Exception as error:
                logger.debug("the model refuses a call beside a watched one: %s", error)
                continue
            if found := difference(alone, after):
                raise WayDiffersError(f"after a call that differs in what is bound: {found}")

    def _result_after(self, before: Iterable[Arguments], arguments: Arguments) -> Any:
        """The result of a call after others, which draw no random number of it."""
        with self.lab.private_run(why="a call after others that may be refused"):
            for one in before:
                self.lab.subject(copy_tensors(one))
            torch.manual_seed(0)
            return opened(self.lab.subject(copy_tensors(arguments)))

    def _others_beside(self, sample: Sample) -> Iterator[Arguments]:
        """Yields calls that differ from a watched one in a size, a flag, an argument or in values."""
        calls, arguments = self.search.calls, dict(sample.arguments())
        for name, value in arguments.items():
            parameter = self.lab.signature.get(name)
            if type(value) is bool:
                yield {**arguments, name: not value}
            elif parameter is not None and parameter.default_spec is not None:
                yield {other: one for other, one in arguments.items() if other != name}
        sizes = calls.sizes_of(sample)
        regions = (region for _, graph in self.graphs for region in graph.contract.regions)
        for bound in dict.fromkeys(one for region in regions for one in region.constraints):
            for name in sorted(symbols_in(bound.formula)):
                for size in _sizes_beyond(bound, name, sizes)[-1:]:
                    yield calls.arguments_of(calls.values({**sizes, name: size}))
        values = self._values_of(sample)
        changed = None if values is None else extreme_values(calls, values, LARGE)
        if changed is not None:
            yield calls.arguments_of(changed)

    def _values_of(self, sample: Sample) -> Values | None:
        """The values of a call, by leaf; None for one of another form."""
        values = leaf_values(sample)
        return values if all(leaf.path in values for leaf in self.search.plan.leaves) else None

    def _runs_after(self, call: Arguments, values: Values | None) -> WayRuns:
        """The runs after a call, of which the values are others where the model takes these: what the model keeps may
        be used again for calls of the same sizes.
        """
        for other in () if values is None else self._other_values(values):
            with contextlib.suppress(Exception):  # the model refuses such values
                return self._runs_after_these(self.search.calls.arguments_of(other))
        return self._runs_after_these(call)

    def _runs_after_these(self, call: Arguments) -> WayRuns:
        return WayRuns(self.search, self.lab, self.known.after(call, self.lab), before=call)

    def _other_values(self, values: Values) -> Iterator[Values]:
        """Other values of the same sizes: first of all inputs, then of those that are no numbers or lists of them."""
        calls = self.search.calls
        values = redrawn(calls, values, beyond=True, seed=0) or values
        values = with_padding(calls, values, hidden=True) or values
        numbers = dict(values)
        for leaf in calls.plan.inputs:
            value = values[leaf.path]
            if leaf.is_float:
                numbers[leaf.path] = value + 1
            elif isinstance(value, torch.Tensor) and value.ndim == 1:
                numbers[leaf.path] = value.flip(0)
            elif isinstance(value, torch.Tensor) and not value.ndim and value.dtype in _INTS:
                numbers[leaf.path] = value + 1
        yield numbers
        yield values


class _Way:
    """The sides of one way of a call: for which sizes the runs of the model stand.

    ``known`` are the sides of other forms of the way: on these, plain values alone are compared. The
    way ends at its ``limits``, which grow where sizes are too large to be tried.
    """

    def __init__(
        self,
        sides: SideRuns,
        runs: WayRuns,
        known: Collection[Any] = (),
        limits: list[Constraint] | None = None,
    ) -> None:
        self._of_search, self.runs = sides, runs
        self.search, self.lab, self.plan = sides.search, sides.lab, sides.search.plan
        self.sides: list[_Side] = []
        self._absent = sizes_of_absent(self.plan, runs.names)
        self._most_work = 0
        self._known = known
        self.limits = [] if limits is None else limits

    def visit_sides(self) -> None:
        """Runs the model until its runs stand for all sizes of the graphs.

        :raises WayDiffersError: where a run differs from the graph
        :raises SpentError: when the budget has ended
        """
        numbers = PositionNumbers()
        for proven, _ in self._of_search.graphs:
            for region in proven.regions:
                base = {**region.sizes, **proven.fixed, **region.fixed, **self._absent}
                self._visit(self._with_own_sizes(base), numbers)
        n_known = -1
        while n_known < len(self.sides):
            n_known = len(self.sides)
            for side in list(self.sides):
                for sizes in self._sizes_near(side):
                    self._visit_beside(side, sizes, numbers)
        if all(side.is_refused for side in self.sides):
            raise WayDiffersError("no sizes could be tried")
        for side in list(self.sides) if self.runs.before is not None else ():
            for sizes in self._others_of(side):
                self._compare(sizes, PositionNumbers())
        for number in sorted(numbers.all):
            if number > GREATEST_TRIED and self._may_meet(number, numbers):
                self._end_before(number, numbers)
        small = sorted(number for number in numbers.all if number <= GREATEST_TRIED)
        for name, sizes in self._sizes_beside(small):
            try:
                self._compare(sizes, PositionNumbers())
            except TooLargeError:
                self._end_at(f"{name} < {sizes[name]}")
        for sizes in self._large_sizes():
            if self._work_at(sizes) <= self.lab.most_work * _PART_OF_LARGE:
                with contextlib.suppress(TooLargeError):  # more memory than there is
                    self._compare(sizes, PositionNumbers())

    def _visit(self, sizes: Sizes, numbers: PositionNumbers) -> None:
        """A run at sizes of the graphs for which no run stands."""
        if any(side.covers(sizes) for side in self.sides) or not self._is_served(sizes):
            return
        if len(self.sides) >= _MOST_SIDES:
            raise WayDiffersError("it decides by sizes in too many ways")
        self.sides.append(self._compare(sizes, numbers))

    def _visit_beside(self, side: _Side, sizes: Sizes, numbers: PositionNumbers) -> None:
        """A run beside one of the sides; where its sizes are too large, the way ends before them."""
        try:
            self._visit(sizes, numbers)
        except TooLargeError:
            limit = next((one for one in side.conditions if not one.holds(sizes)), None)
            if limit is None:
                raise
            self.limits.append(replace(limit, origin=Origin.UNPROVEN, reason=self._reason))

    def _end_before(self, number: int, numbers: PositionNumbers) -> None:
        """Ends the way before its calls have as many positions as a number that graphs alone compare
        with them.

        :raises WayDiffersError: where a position may be a larger number than the length of its call
        """
        names = sorted(self._names_of(number, numbers))
        base, left_out = self.sides[0].sizes, self.runs.names
        graphs = [graph for _, graph in self._of_search.graphs]
        is_limit = number not in numbers.of_runs and all(
            are_lengths(graph, number, names, base, left_out) for graph in graphs
        )
        if not is_limit:
            raise WayDiffersError("it has a number on positions that is too large to be tried")
        self._end_at(f"{' + '.join(names)} < {number - 1}")

    def _end_at(self, formula: str) -> None:
        self.limits.append(Constraint(formula, Origin.UNPROVEN, reason=self._reason))

    @property
    def _reason(self) -> str:
        """The way, for the limits at which it ends."""
        return (
            f"without {', '.join(sorted(self.runs.names))}" if self.runs.names else "after a call"
        )

    def _is_served(self, sizes: Sizes) -> bool:
        own = (symbol for symbol in self.plan.symbols if symbol.name not in self._absent)
        if not all(symbol.takes(sizes[symbol.name]) for symbol in own):
            return False
        if not self.search.holds(sizes) or not is_possible(self.plan, sizes):
            return False
        return all(limit.holds(sizes) for limit in self.limits)

    def _with_own_sizes(self, base: Sizes) -> Sizes:
        """Sizes that no constant of the model has, where the graphs hold for such."""
        found, primes = dict(base), list(_PRIMES)
        steps = {symbol.name: symbol.step for symbol in self.plan.symbols}
        constants = self.runs.known.constants_at(self.plan, base)
        for name, size in base.items():
            known = {*constants, *(found[one] for one in found if one != name)}
            for prime in primes if size > 1 and name not in self._absent else ():
                own = prime * steps.get(name, 1)
                choice = {**found, name: own}
                if own not in known and self._is_served(choice):
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
            beyond = _sizes_beyond(condition, free[0].name, side.sizes) if len(free) == 1 else ()
            tried = sorted({*USUAL_SIZES, *numbers_near(condition.formula), *beyond})
            pools = [[size for size in tried if symbol.takes(size)] for symbol in free]
            for choice in sorted(product(*pools), key=sum):
                chosen = {symbol.name: size for symbol, size in zip(free, choice, strict=True)}
                yield {**side.sizes, **chosen}

    def _others_of(self, side: _Side) -> Iterator[Sizes]:
        """Yields a few other sizes of a side: what the call before it keeps may be right for its own sizes alone."""
        if side.is_refused:
            return
        names = {name for one in side.conditions for name in symbols_in(one.formula)}
        free = [one for one in self.plan.symbols if one.name in names - self._absent.keys()]
        end = _BESIDE_ONE if len(free) == 1 else _BESIDE_SEVERAL
        pools = [[size for size in range(2, end) if one.takes(size)] for one in free]
        n_found = 0
        for choice in sorted(product(*pools), key=sum) if len(free) < 4 else ():
            chosen = {symbol.name: size for symbol, size in zip(free, choice, strict=True)}
            sizes = {**side.sizes, **chosen}
            if sizes != side.sizes and side.covers(sizes) and self._is_served(sizes):
                yield sizes
                n_found += 1
            if n_found == _MOST_OTHERS:
                return

    def _sizes_beside(self, numbers: Sequence[int]) -> Iterator[tuple[str, Sizes]]:
        """Sizes at some numbers on positions, beside them and beyond, each once, with the symbol that changes: a loop
        over the rows of a block has all numbers up to its length.
        """
        names = [name for name in symbol_names(self.plan) if name not in self._absent]
        known = {tuple(side.sizes.items()) for side in self.sides}
        for number in numbers:
            for name, size in product(names, (number - 1, number, number + 1, 2 * number + 3)):
                sizes = {**self.sides[0].sizes, name: size}
                key = tuple(sizes.items())
                if key not in known and self._is_served(sizes):
                    known.add(key)
                    yield name, sizes

    def _large_sizes(self) -> Iterator[Sizes]:
        """Sizes that meet what no number tells, one symbol after the other; the others are small where they can be."""
        base = self.sides[0].sizes
        small = {name: min(size, _LEAST_GENERAL) for name, size in base.items()}
        for name in (name for name in symbol_names(self.plan) if name not in self._absent):
            choices = ({**others, name: LARGE_SIZE} for others in (small, base))
            yield from islice(filter(self._is_served, choices), 1)

    def _may_meet(self, number: int, numbers: PositionNumbers) -> bool:
        """True where the graphs take calls with as many positions as a number that is compared with them."""
        names = self._names_of(number, numbers)
        return is_met(number, names, self.sides[0].sizes, self._is_served)

    def _names_of(self, number: int, numbers: PositionNumbers) -> set[str]:
        """The symbols of which positions that are compared with a number depend."""
        names = set(symbol_names(self.plan)) - self._absent.keys()
        if number not in numbers.of_runs:
            left_out = self.runs.names
            found = (
                symbols_of_positions(graph, number, left_out) for _, graph in self._of_search.graphs
            )
            names &= frozenset().union(*found)
        return names

    # -- one run

    def compared(self, sizes: Sizes) -> _Side:
        """The run of the model at some sizes.

        :raises WayDiffersError: where it differs from the graph
        """
        return self._compare(self._with_own_sizes({**sizes, **self._absent}), PositionNumbers())

    def _compare(self, sizes: Sizes, numbers: PositionNumbers) -> _Side:
        """The run of the model at some sizes, after it was compared with the graph.

        :raises WayDiffersError: where it differs
        """
        graph = next(graph for proven, graph in self._of_search.graphs if proven.holds(sizes))
        calls = self.search.calls
        work = self._work_at(sizes)
        self._most_work = self._most_work or max(self.lab.most_work, _MOST_LARGER * work)
        if work > self._most_work:
            raise TooLargeError(f"it decides by sizes that are too large to be tried: {sizes}")
        values = calls.values(sizes)
        proven = self._proven_side(graph, values, sizes)
        if proven is not None:
            return proven
        if self.lab.numbers_of(values) > _MOST_NUMBERS:
            raise TooLargeError(f"the run at {sizes} takes too much memory")
        side = self._compare_values(graph, values, sizes, numbers)
        if self.sides or side.key in self._known:
            return side
        others = (
            with_padding(calls, values, hidden=True),
            extreme_values(calls, values, LARGE),
        )
        for changed in others:
            if changed is not None and self._passes_other(values, changed):
                self._compare_others(graph, changed, sizes, numbers)
        return side

    def _work_at(self, sizes: Sizes) -> int:
        """The work of a run at some sizes."""
        return self.lab.work_of(self.search.calls.shapes(sizes))

    def _compare_others(
        self, graph: Graph, values: Values, sizes: Sizes, numbers: PositionNumbers
    ) -> None:
        """Compares runs with other values; both may refuse them, as indices that are too large.

        :raises WayDiffersError: where they differ
        """
        try:
            self._compare_values(graph, values, sizes, numbers)
        except WayRefusesError:
            if self._takes(graph, values):
                raise

    def _takes(self, graph: Graph, values: Values) -> bool:
        try:
            self._of_search.graph_runs.of(graph, self.runs.arguments(values))
        except TooLargeError:
            raise
        except Exception as error:
            logger.debug("%s refuses these values as well: %s", graph.name, error)
            return False
        return True

    def _proven_side(self, graph: Graph, values: Values, sizes: Sizes) -> _Side | None:
        """The run of a large model after another call, where runs without floats prove for all values
        that the graph computes the same; None elsewhere.

        The call before may leave numbers of Python behind, and no tensors: what those hold is unknown.
        """
        inputs = [values[leaf.path] for leaf in graph.plan.inputs]
        if self.runs.before is None or isinstance(self.lab.model, Stateful):
            return None
        if not self.lab.is_dear(values) or not all(map(has_floats, inputs)):
            return None
        regions = [region for proven, _ in self._of_search.graphs for region in proven.regions]
        if any(region.rolling.lines or region.rolling.visited for region in regions):
            return None
        symbols = self.runs.symbols(sizes)
        before, hits = self.runs.before, self.runs.hit_rows()

        @contextlib.contextmanager
        def looking(mode: FakeTensorMode, recorder: Recorder) -> Iterator[None]:
            state = Snapshot.of(self.lab.model)
            with without_float_values(mode):
                without = functools.partial(without_its_floats, mode)
                self.lab.subject(map_tensors(without, dict(before)))
            if not state.is_whole or not all(map(_leaves_numbers, state.effects())):
                raise WayDiffersError("the call before leaves more than numbers behind")
            with without_float_values(mode), self.runs.reading(recorder, symbols, hits):
                yield

        calls, why = self.search.calls, "a side of a decision after another call"
        with recorded_decisions() as log:
            run = run_alike(graph, calls, self.lab, values, looking, why=why)
        if run is None:
            return None
        operators = tuple(str(function) for function, *_ in run.of_model.steps)
        conditions = symbols.conditions(log.decisions.values())
        return _Side(sizes, conditions, symbols.fixed, operators)

    def _passes_other(self, values: Mapping[Path, Any], changed: Mapping[Path, Any]) -> bool:
        """True where a value that the way does not leave out was changed."""
        return any(
            changed[path] is not value
            for path, value in values.items()
            if path.root not in self.runs.names
        )

    def _compare_values(
        self, graph: Graph, values: Mapping[Path, Any], sizes: Sizes, numbers: PositionNumbers
    ) -> _Side:
        run = self.runs.recorded(values, sizes)
        if run is None:  # the model refuses these sizes with the arguments too
            return _Side(sizes, (), sizes, is_refused=True)
        of_graph = self._of_search.graph_runs.of(graph, self.runs.arguments(values))
        found = difference(run.result, of_graph.result)
        if found:
            raise WayDiffersError(f"at {sizes}: {found}")
        why = _other_values(run, of_graph)
        if why and not self.runs.in_a_trace:
            # a model may leave out a mask that hides nothing, except in a trace
            self.runs.in_a_trace = True
            traced = self.runs.recorded(values, sizes)
            if traced is not None:
                run, why = traced, _other_values(traced, of_graph)
        if why:
            raise WayDiffersError(why)
        if of_graph.thresholds is not None:
            numbers.add(run, of_graph)
        operators = tuple(str(function) for function, *_ in run.steps)
        conditions = run.symbols.conditions(run.decisions)
        return _Side(sizes, conditions, run.symbols.fixed, operators)


def _other_values(run: RecordedRun, of_graph: GraphRun) -> str:
    """Returns what a run does with values that the graph does not; nothing where there is no such
    thing.
    """
    if of_graph.thresholds is None:
        return ""
    if thresholds_on_values(run.steps, run.given) != of_graph.thresholds:
        return "it has other thresholds on values"
    known = [*run.hits.numbers, *run.symbols.plain_tensors]
    if value_reads(run.steps, known, run.symbols.tensors_of_sizes) > of_graph.value_reads:
        return "it decides by values"
    return ""


def _sizes_beyond(condition: Constraint, name: str, sizes: Sizes) -> list[int]:
    """The least sizes of a symbol for which a condition does not hold, among those that are tried."""
    failing = (n for n in range(GREATEST_TRIED) if not condition.holds({**sizes, name: n}))
    return list(islice(failing, _MOST_OTHERS))


def _leaves_numbers(effect: Effect) -> bool:
    """True for a change to a number or a text of Python, or to a tuple or list of these."""
    leaves = tree_leaves((effect.before, effect.after))
    return not effect.is_write and all(type(leaf) in _NUMBERS for leaf in leaves)

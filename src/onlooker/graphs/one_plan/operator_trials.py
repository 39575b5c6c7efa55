"""Trials of a graph at the sizes about which only operators of torch decided: 0 and 1, and sizes
that were not equal.

An operator decides again whenever the graph runs, so its conditions need not bound the graph. But
its result may steer the Python of the model: ``x.squeeze(0)`` has another rank at size 1. So model
and graph are both run exactly where such a condition fails, and must run the same operators; and
the model must read the sizes by which it decided in the trace. Where that is not so, or where no
such sizes are found, the condition stays.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, product
from typing import Any

import sympy
import torch

from ...core.call import Values
from ...core.contract import Constraint, Dropped, Origin
from ...core.experiment import Finding, FindingKind
from ...core.plan import Symbol, symbol_names
from ...core.sizes.expression import Sizes
from ...core.sizes.formula import holds, symbols_in
from ...core.spec import Axis
from ...infer.sizes import is_possible, listed, smaller_sizes
from ...lab.lab import Lab
from ...lab.recorder import Recorder
from ...materialise.arguments import Calls
from ...observing.store import copy_leaves
from ...patches.swap import swapped
from ...proofs.path_condition import Atom, proofs_of, symbol_of, value_at, written
from ...proofs.same_run import READERS, Numbers
from ...pytrees.comparisons.agree import agreement
from ...pytrees.numbers import has_floats
from ...repairs.loops.hit_rows import HitRows
from ...repairs.loops.rolled_loops import RolledLoops, Rolling
from ...repairs.numbers.size_ints import builtins_swapped, ints_stay_sizes
from ...repairs.numbers.sized_operators import SizedOperators
from ...repairs.trace_mode import Reader, reading
from ...repairs.untraced_tensors import UntracedTensors
from ...trace.graph import Graph
from ...trace.operators_alike import sizes_read_alike
from ...trace.size_reads import SizeReads, SmallReads
from .regions import ProvenRegion

__all__ = ["OperatorTrials", "RegionTrials", "as_in_a_trace"]

logger = logging.getLogger(__name__)
_OF_OPERATORS = "sizes of 0 and 1"
#: how far from 0 sizes are looked for, beyond those that were seen
_REACH = 130
#: sizes below this one are combined for two symbols at once
_FEW = 4
#: multiply-adds of a run above which it is made at smaller sizes (some hundredths of a second)
_WORTH_SMALLER = 1_000_000_000


@dataclass(slots=True)
class RegionTrials:
    """The result of the trials of a region: conditions that stay, those that may go, and sizes that
    were exact.
    """

    limits: list[Constraint] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)

    def allows(self, sizes: Sizes) -> bool:
        """True for sizes that no condition found so far excludes."""
        return all(limit.holds(sizes) for limit in self.limits)


class OperatorTrials:
    """Runs model and graph side by side. ``takes`` says whether the model takes sizes."""

    def __init__(self, calls: Calls, lab: Lab, takes: Callable[[Sizes], bool]) -> None:
        self._calls, self._plan, self._lab, self._takes = calls, calls.plan, lab, takes

    def of(self, graph: Graph, region: ProvenRegion) -> RegionTrials:
        """Tries a graph where the operators' conditions of a region fail: returns the conditions that
        stay, and those that may go.
        """
        tried, exact = RegionTrials(), dict[Symbol, int]()
        for small in self._small_sizes(graph, region):
            if not tried.allows({**region.sizes, **_by_name(small)}):
                continue
            sizes = self._try_at(graph, region, small, tried, _all_larger(small))
            if sizes is not None:
                exact.update(small)
                dropped = (f"{name} != {size}" for name, size in _by_name(small).items())
                tried.dropped += (Dropped(formula, _evidence(sizes)) for formula in dropped)
        if len(exact) > 1:
            one = " or ".join(limit.formula for limit in _all_larger(exact))
            self._try_at(graph, region, exact, tried, [Constraint(one, Origin.UNPROVEN)])
        for atom in region.tried:
            self._try_exceptions(graph, region, atom, tried)
        return tried

    def _small_sizes(self, graph: Graph, region: ProvenRegion) -> Iterator[dict[Symbol, int]]:
        """Each symbol that is open in the graph, with 1, then with 0, where the plan allows that; those
        that nothing reads all at once.
        """
        own = set(symbol_names(graph.plan)) - region.fixed.keys()
        symbols = [one for one in self._plan.symbols if one.name in own and self._is_size(one)]
        unread = _unread_symbols(graph, region)
        alone = [[one] for one in symbols if one.name not in unread]
        for group in [*alone, [one for one in symbols if one.name in unread]]:
            for size in (1, 0):
                small = {symbol: size for symbol in group if symbol.takes(size)}
                if small:
                    yield small

    def _try_at(
        self,
        graph: Graph,
        region: ProvenRegion,
        small: Mapping[Symbol, int],
        tried: RegionTrials,
        limits: Sequence[Constraint],
    ) -> Sizes | None:
        """Tries the graph with some symbols at small sizes; where it is not exact there, or cannot
        be tried, the limits stay. Returns the sizes where it is exact.
        """
        choice = next(self._sizes_at(small, region, tried), None)
        if choice is None:
            together = [sympy.Eq(symbol_of(symbol), size) for symbol, size in small.items()]
            if not any(self._is_outside(exception, region) for exception in together):
                tried.limits += limits
            return None
        exact = self._exact_sizes(graph, region, choice)
        if exact is None:
            tried.limits += limits
        else:
            tried.sizes.append(exact)
        return exact

    def _sizes_at(
        self, small: Mapping[Symbol, int], region: ProvenRegion, tried: RegionTrials
    ) -> Iterator[Sizes]:
        """Sizes of a region with some symbols at small sizes: those of its trace, then with one
        other symbol changed, to 1 or 0 only where the region has no other sizes: ``rows <= columns``
        leaves one row to one column.
        """
        base = {**region.sizes, **_by_name(small)}
        free = [s for s in self._plan.symbols if s not in small and s.name not in region.fixed]
        general = ((one, size) for one in free for size in _sizes_of_symbol(one) if size > 1)
        smaller = ((one, size) for size in (1, 0) for one in free if one.takes(size))
        changed = ({**base, one.name: size} for one, size in chain(general, smaller))
        for choice in chain([base], changed):
            if region.holds(choice) and tried.allows(choice):
                yield choice

    def _is_size(self, symbol: Symbol) -> bool:
        """True for a symbol that is the size of a tensor: torch makes no assumption about ints."""
        return any(symbol.name in e.symbols for leaf in self._plan.inputs for e in leaf.shape)

    def _try_exceptions(
        self, graph: Graph, region: ProvenRegion, atom: Atom, tried: RegionTrials
    ) -> None:
        """Tries the graph where a condition fails, once for each way that no trial so far has
        been at. Only the ways that could not be tried stay outside: ``n // 4 != 0`` of
        ``n // 4 >= 2``.
        """
        for exception in atom.exceptions():
            formula = written(exception)
            if any(holds(formula, {**sizes}) for sizes in tried.sizes) or self._is_outside(
                exception, region
            ):
                continue
            choices = [
                sizes for sizes in self._sizes_with(formula, region, tried) if tried.allows(sizes)
            ]
            choice = next((sizes for sizes in choices if self._takes(sizes)), None)
            exact = None if choice is None else self._exact_sizes(graph, region, choice)
            if exact is not None:
                tried.sizes.append(exact)
                tried.dropped.append(Dropped(atom.formula, _evidence(exact), atom.line))
            elif choice is not None or not choices:
                limit = written(sympy.Not(exception))
                tried.limits.append(Constraint(limit, Origin.UNPROVEN, atom.line))

    def _is_outside(self, exception: Any, region: ProvenRegion) -> bool:
        """True where a condition of the region, or the plan, excludes the exception."""
        known = (*region.atoms.values(), *region.bounds)
        conditions = [atom.condition for atom in known]
        if proofs_of(self._plan, conditions).never(exception):
            return True
        if not (isinstance(exception, sympy.Eq) and exception.lhs.is_Symbol):
            return False
        return any(_is_false_at(condition, exception) for condition in conditions)

    def _sizes_with(
        self, formula: str, region: ProvenRegion, tried: RegionTrials
    ) -> Iterator[Sizes]:
        """Sizes of a region that satisfy a formula: one symbol changed, then two."""
        names = symbols_in(formula) - region.fixed.keys()
        symbols = [symbol for symbol in self._plan.symbols if symbol.name in names]
        for symbol in symbols:
            for size in _sizes_of_symbol(symbol):
                choice = {**region.sizes, symbol.name: size}
                if holds(formula, choice) and region.holds(choice):
                    yield choice
        for pair in combinations(symbols, 2):
            pools = [
                sorted({*range(_FEW), *(sizes[symbol.name] for sizes in tried.sizes)})
                for symbol in pair
            ]
            for sizes in product(*pools):
                changed = {symbol.name: size for symbol, size in zip(pair, sizes, strict=True)}
                choice = {**region.sizes, **changed}
                valid = all(symbol.takes(changed[symbol.name]) for symbol in pair)
                if valid and holds(formula, choice) and region.holds(choice):
                    yield choice

    def _exact_sizes(self, graph: Graph, region: ProvenRegion, sizes: Sizes) -> Sizes | None:
        """These sizes, or smaller ones at which the same conditions of operators fail, where model
        and graph are exact there; None where they are not.

        Within a region the model goes one way. So where a run is much work, all sizes are small.
        """
        if not is_possible(self._plan, sizes):
            return None
        values = self._calls.values(sizes)
        is_proven = self._lab.is_dear(values) and self._is_proven(graph, region, sizes, values)
        if is_proven:
            return sizes
        if self._lab.work_of(values) > _WORTH_SMALLER:
            ways = tuple(map(written, chain.from_iterable(a.exceptions() for a in region.tried)))

            def is_alike(smaller: Sizes) -> bool:
                same = all(holds(way, smaller) == holds(way, sizes) for way in ways)
                return same and region.holds(smaller)

            smaller = next(smaller_sizes(self._plan, sizes, is_alike), None)
            if smaller is not None and self._is_exact(graph, region, smaller):
                return smaller
        return sizes if self._is_exact(graph, region, sizes) else None

    def _is_exact(self, graph: Graph, region: ProvenRegion, sizes: Sizes) -> bool:
        """True when model and graph run the same operators at these sizes, and give the same, and
        the model reads the sizes by which it decided in the trace.
        """
        paths = [leaf.path for leaf in graph.plan.inputs]
        values = self._calls.values(sizes)
        given = tuple(values[path] for path in paths)
        ours, theirs = copy_leaves(given), copy_leaves(given)
        of_model, of_graph = Recorder(), Recorder()
        about = self._plan.axis_sizes(sizes)
        try:
            expected = self._lab.run(
                self._calls.arguments_of(values), why=_OF_OPERATORS, memo=True, about=about
            )
            arguments = {**values, **dict(zip(paths, ours, strict=True))}
            results, reads = self._looked_at(region, arguments, of_model)
            with of_graph:
                got = graph(theirs)
        except Exception as error:
            logger.debug("%s is not tried at %s: %s", graph.name, sizes, error)
            return False
        numbers = Numbers()
        of_the_model = numbers.of(of_model, ours, results)
        same = of_the_model.is_done_by(numbers.of(of_graph, theirs, got))
        agrees = agreement(expected.structure.paths(), expected.leaves, got)
        as_read = _are_read(reads, region.reads, sizes)
        logger.debug(
            "%s at %s: same operators %s, same sizes read %s; %s",
            graph.name,
            sizes,
            same,
            as_read,
            agrees.note or "the same results",
        )
        return same and as_read and agrees.holds

    def is_unread(self, graph: Graph, region: ProvenRegion, small: Sequence[Axis]) -> bool:
        """True where the model reads the sizes of the trace of a region, though some axes are of size 1
        instead, and gives what the graph gives for the expanded tensors. It reads no values: it is not
        told of any trace, and may go another way for others.
        """
        whole = self._calls.values(region.sizes)
        values = dict(whole)
        for axis in small:
            if axis.dim is not None:
                values[axis.path] = values[axis.path].narrow(axis.dim, 0, 1)
        ours = dict(zip(values, copy_leaves(tuple(values.values())), strict=True))
        paths = [leaf.path for leaf in graph.plan.inputs]
        unseen, recorder = SmallReads(), Recorder()
        try:
            untold = replace(region, not_tracing=True)
            results, reads = self._looked_at(untold, ours, recorder, unseen)
            given = copy_leaves(tuple(values[path] for path in paths))
            got = graph(
                [_expanded_as(one, whole[path]) for path, one in zip(paths, given, strict=True)]
            )
        except Exception as error:
            logger.debug("not tried with %s of size 1: %s", ", ".join(map(str, small)), error)
            return False
        agrees = agreement(list(graph.outputs.structure.paths()), results, got)
        values_read = READERS.intersection(func for func, *_ in recorder.steps)
        as_read = _are_read(reads, region.reads, region.sizes)
        as_read = as_read and not unseen.found and not values_read
        logger.debug("%s of size 1: as read %s, %s", list(map(str, small)), as_read, agrees.note)
        return as_read and agrees.holds

    def _looked_at(
        self, region: ProvenRegion, values: Values, recorder: Recorder, *others: Reader
    ) -> tuple[list[Any], list[tuple[Any, ...]]]:
        """The result of the model for a call, whose operators are recorded, and the sizes that its Python
        reads. The model goes the way that it went in the trace of a region. ``others`` read it too.

        :raises Exception: what the model raises
        """
        reads, loops = SizeReads(), RolledLoops(like=region.rolling, unseen=recorder.paused)
        with contextlib.nullcontext() if region.not_tracing else as_in_a_trace():
            traced = self._lab.run_within(
                self._calls.arguments_of(values),
                self._looking(recorder, [*others, reads], loops, region.rolling),
                why="operators at sizes of 0 and 1",
            )
        with recorder:
            results = [loops.value(leaf) for leaf in traced.leaves]
        if loops.failure is not None:
            raise loops.failure
        return results, reads.sizes

    def _is_proven(self, graph: Graph, region: ProvenRegion, sizes: Sizes, values: Values) -> bool:
        """True where runs without floats prove for all values what :meth:`_is_exact` finds for some.

        Loops that were rolled are run with values, and so are models that take ints: of these many
        read a mask, and go another way in a trace.
        """
        inputs = [values[leaf.path] for leaf in graph.plan.inputs]
        if region.rolling.lines or region.rolling.visited or not all(map(has_floats, inputs)):
            return False
        read = sizes_read_alike(graph, self._calls, self._lab, values, _OF_OPERATORS)
        if read is None or not _are_read(read, region.reads, sizes):
            return False
        about = self._plan.axis_sizes(sizes)
        finding = Finding(FindingKind.ACCEPTED)
        self._lab.record(tuple(about), tuple(about.values()), finding=finding, claim=_OF_OPERATORS)
        return True

    @contextlib.contextmanager
    def _looking(
        self, recorder: Recorder, reads: Sequence[Reader], loops: RolledLoops, rolling: Rolling
    ) -> Iterator[None]:
        """Inside the block a run of the model is looked at, with the loops rolled, and all rows visited,
        as they are in the graph.
        """
        readers: list[Reader] = [*reads]
        readers += [loops] if loops.rolls else []
        if rolling.visited:
            readers.append(HitRows(like=rolling.visited, refused=rolling.refused))
        readers.append(UntracedTensors())
        with contextlib.ExitStack() as stack:
            # the numbers that steps without values read are symbols, as in the trace
            if rolling.numbered:
                stack.enter_context(ints_stay_sizes(self._lab.model))
            if loops.rolls:
                stack.enter_context(builtins_swapped(self._lab.model, loops.builtins))
            stack.enter_context(recorder)
            stack.enter_context(reading(*readers))
            yield


@contextlib.contextmanager
def as_in_a_trace() -> Iterator[None]:
    """Inside the block ``torch.compiler.is_exporting()`` is true, and functions of torch are
    replaced as in a trace: a model then takes the way that it took there.

    The flags are those of ``torch._export.utils._compiling_state_context`` (checked with torch
    2.13).
    """
    with contextlib.ExitStack() as stack:
        for name in ("_is_compiling_flag", "_is_exporting_flag"):
            if hasattr(torch.compiler, name):
                stack.enter_context(swapped(torch.compiler, name, True))
        stack.enter_context(reading(SizedOperators()))
        yield


def _expanded_as(value: Any, whole: Any) -> Any:
    return value.expand(whole.shape) if isinstance(value, torch.Tensor) else value


def _are_read(
    found: Sequence[tuple[Any, ...]], traced: Sequence[tuple[Any, ...]], sizes: Sizes
) -> bool:
    """True where a run read the sizes of a trace, at these sizes; those that hang on values are
    not compared.

    A shape that is read twice in a row tells nothing the second time: code that keeps results by their
    sizes asks a trace again, in which no size is a key.
    """
    expected = [
        tuple([size if size is None else _value_of(size, sizes) for size in shape])
        for shape in traced
    ]
    return _are_alike(found, expected) or _are_alike(_once(found), _once(expected))


def _are_alike(found: Sequence[tuple[Any, ...]], expected: Sequence[tuple[Any, ...]]) -> bool:
    if list(map(len, found)) != list(map(len, expected)):
        return False
    pairs = zip(chain.from_iterable(found), chain.from_iterable(expected), strict=True)
    return all(size is None or got == size for got, size in pairs)


def _once(shapes: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The shapes, each once where it stands several times in a row; one with a value is another each time."""
    found: list[tuple[Any, ...]] = []
    for shape in shapes:
        if not (found and _is_plain(shape) and _is_plain(found[-1]) and shape == found[-1]):
            found.append(shape)
    return found


def _is_plain(shape: tuple[Any, ...]) -> bool:
    return all(isinstance(size, (int, sympy.Integer)) for size in shape)


def _value_of(size: Any, sizes: Sizes) -> Any:
    numbers = {symbol: sympy.Integer(sizes[symbol.name]) for symbol in size.free_symbols}
    return value_at(size, numbers)


def _sizes_of_symbol(symbol: Symbol) -> Sequence[int]:
    """The sizes of a symbol that its plan allows, up to a little more than was seen."""
    seen = 2 * max(symbol.observed, default=2)
    return symbol.sizes_up_to(_REACH if symbol.high is None else max(_REACH, seen))


def _unread_symbols(graph: Graph, region: ProvenRegion) -> frozenset[str]:
    """The symbols of inputs that no operator of the graph takes, of which the Python of the model read no
    size and nothing was decided: states of an encoder that are given back as they are.
    """
    inputs = graph.artifact.graph.find_nodes(op="placeholder")
    taken = {one.name for one in inputs if any(user.op != "output" for user in one.users)}
    read: set[str] = set()
    for leaf in graph.plan.inputs:
        if graph.names[leaf.path] in taken:
            read.update(*(expression.symbols for _, expression in leaf.axes))
    atoms = (*region.atoms.values(), *region.tried, *region.bounds)
    known = [atom.condition for atom in atoms]
    for expression in (*known, *filter(None, chain.from_iterable(region.reads))):
        read.update(map(str, expression.free_symbols))
    return frozenset(symbol_names(graph.plan)) - read


def _by_name(small: Mapping[Symbol, int]) -> Sizes:
    return {symbol.name: size for symbol, size in small.items()}


def _all_larger(small: Mapping[Symbol, int]) -> list[Constraint]:
    """The conditions that each symbol is larger than a size."""
    larger = (f"{name} >= {size + 1}" for name, size in _by_name(small).items())
    return [Constraint(formula, Origin.UNPROVEN) for formula in larger]


def _evidence(sizes: Sizes) -> str:
    return f"model and graph run the same operators at {listed(sizes)}"


def _is_false_at(condition: Any, exception: Any) -> bool:
    """True where a condition does not hold at a size; also where it divides by 0 there, as
    ``n % (batch - 1) == 0`` does at a batch of 1, which the model cannot take.
    """
    try:
        return condition.subs(exception.lhs, exception.rhs) in (False, sympy.false)
    except ZeroDivisionError:
        return True

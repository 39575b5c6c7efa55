"""Sides of what a model decides by sizes on which it runs the operators of a graph that is known.

A trace of each side costs as much as the first one, and most sides give the same graph::

    traced with (batch 3, 12 tokens, a cache of 20)     what Python decides elsewhere
    a cache of 0                                        keys.numel() == 0
    1 token                                             q_length > 1

So before such a trace, model and graph run at sizes of the side, a large model without floats, each size that
Python reads being a symbol of torch. Equal operators on equal arguments give equal results for all values, and
what Python decides by the symbols is the path condition of the side. Sizes alone could agree by chance:
two runs of other sizes have to do so, with the same decisions, the same numbers on positions, and
pieces of what is computed of sizes. A side of which all of that is not known is traced.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import sympy

from ...core.contract import Origin
from ...core.errors import ExportError
from ...core.sizes.expression import Sizes
from ...core.support.progress import tell
from ...infer.sizes import are_in_range, is_possible, listed
from ...lab.lab import SpentError
from ...lab.recorder import Recorder
from ...lab.stateful import Stateful
from ...lab.without_floats import without_float_values
from ...materialise.padding import with_padding
from ...observing.cached_functions import Cache, named_caches
from ...observing.reach import Snapshot
from ...observing.wrapping.shared_block import SharedBlock
from ...proofs.decisions import Decision, recorded_decisions
from ...proofs.path_condition import (
    Atom,
    PathCondition,
    in_least_terms,
    key_of,
    proofs_of,
    symbol_of,
    value_at,
)
from ...pytrees.nodes import SYMBOLIC
from ...repairs.not_tracing import NOT_TRACING
from ...repairs.numbers.remembered import TablesOfSizes
from ...torch_internals.fake_tensors import FakeTensorMode
from ...torch_internals.trees import tree_leaves
from ...trace.mark_reads import MarkReads
from ...trace.operators_alike import run_alike
from ...trace.size_reads import SizeReads
from ...trace.torch_export import Traced
from ..identity import pieces_of
from ..one_plan.proven_graphs import ProvenGraph
from ..one_plan.search import PlanSearch
from .operators_of_runs import (
    Step,
    divided_lengths,
    numbers_of_positions,
    used_steps,
    value_reads,
)
from .symbolic_sizes import SymbolicSizes, WayDiffersError
from .way_runs import SizesOfModel, WayRuns

__all__ = ["alike_side"]

logger = logging.getLogger(__name__)
#: sizes of the two runs of a side, each symbol has others; those of the second one where the model takes them
_SMALL, _BETWEEN = (5, 7, 11, 13, 17, 19), (23, 29, 31, 37, 41, 43)
_LARGE = (131, 137, 139, 149, 151, 157)
#: what a run shows: its path condition, and the lengths of the axes that it divides into lists of tensors
_Shown = tuple[PathCondition, tuple[int, ...]]
_PRIMES = ((_SMALL,), ((*_LARGE, *_BETWEEN), _BETWEEN))


def alike_side(search: PlanSearch, choice: Sizes) -> tuple[ProvenGraph, Traced] | None:
    """The graph of a search whose operators the model runs on the side of some sizes, and what a trace there
    would say; None where there is none, or where that is not known.
    """
    if not _may_be_compared(search):
        return None
    lab = search.lab
    known = SizesOfModel.of(search, lab)
    pins = {name: size for name, size in choice.items() if size < 2}
    for proven in search.graphs:
        if any(pins.get(name) != size for name, size in proven.fixed.items()):
            continue
        tell("tracing", detail=f"{search.plan.name} with {listed(choice)}")
        runs = _Runs(search, known, proven)
        try:
            found = runs.side(choice, pins)
        except (SpentError, WayDiffersError, ExportError) as error:
            logger.debug("the side of %s is not compared: %s", choice, error)
            found = None
        if found is not None:
            return proven, found
    return None


def _may_be_compared(search: PlanSearch) -> bool:
    """False where a trace knows more than a run: of numbers that are arguments, loops that were rolled, state, tables
    that calls fill, lists that are read as a whole, and blocks that share a graph.
    """
    lab = search.lab
    regions = [region for proven in search.graphs for region in proven.regions]
    is_plain = not isinstance(lab.model, Stateful) and not (
        lab.kept.lifted or lab.kept.counted or lab.kept.remembered or lab.joined_lists
    )
    return (
        is_plain
        and TablesOfSizes(lab.model, lab.subject.former).is_empty
        and not isinstance(lab.subject.watched, SharedBlock)
        and not search.request.sizes_are_values
        and all(leaf.is_tensor for leaf in search.plan.inputs)
        and not any(region.rolling.lines or region.rolling.visited for region in regions)
    )


class _Runs:
    """Runs of the model and of one graph on a side."""

    def __init__(self, search: PlanSearch, known: SizesOfModel, proven: ProvenGraph) -> None:
        self._search, self._lab, self._known = search, search.lab, known
        self._graph, self._plan = proven.graph, search.plan
        own = (one for one in proven.traces if one.graph.artifact is proven.graph.artifact)
        #: the trace that gave the graph, and what its operators and its bounds ask for
        self._traced = next(own, proven.traces[0])
        of_trace = self._traced.condition.atoms.values()
        self._of_operators = [atom for atom in of_trace if atom.origin is Origin.OPERATOR]
        self._asked = [atom.constraint() for atom in (*self._of_operators, *self._traced.bounds)]

    def side(self, choice: Sizes, pins: Sizes) -> Traced | None:
        """What a trace of the side would say, where two runs show the operators of the graph; None elsewhere."""
        found: list[_Shown] = []
        for choices in _PRIMES:
            sizes = (self._own_sizes(choice, primes) for primes in choices)
            runs = (self._condition_at(one, pins) for one in sizes if one is not None)
            shown = next((one for one in runs if one is not None), None)
            if shown is None or (found and not _are_same(found[0], shown)):
                return None
            found.append(shown)
        of_run, _ = found[0]
        traced = self._traced
        # the same operators ask for the same
        asked, bounds = self._at_pins(self._of_operators, pins), self._at_pins(traced.bounds, pins)
        if asked is None or bounds is None:
            return None
        # a size of 1 may be a part of a larger one: those that Python reads are known from the trace
        known = {tuple(self._at(size, pins) for size in shape) for shape in traced.condition.reads}
        if not known.issuperset(of_run.reads):
            return None
        tried = tuple(atom for atom in traced.condition.tried if self._is_open(atom, pins))
        atoms = {**{one.key: one for one in asked}, **of_run.atoms}
        condition = replace(of_run, atoms=atoms, tried=tried)
        return replace(
            traced,
            graph=self._graph,
            condition=condition,
            bounds=tuple(bounds),
            unread=frozenset(),
            by_run=True,
        )

    def _at_pins(self, atoms: Iterable[Atom], pins: Sizes) -> list[Atom] | None:
        """Conditions at the sizes that are numbers on the side; None where one does not hold there."""
        found: list[Atom] = []
        for atom in atoms:
            condition = value_at(atom.condition, self._numbers(pins))
            if condition in (True, sympy.true):
                continue
            if condition in (None, False, sympy.false):
                return None
            found.append(replace(atom, key=key_of(condition), condition=condition))
        return found

    def _own_sizes(self, choice: Sizes, primes: Sequence[int]) -> Sizes | None:
        """Sizes on the side of the choice, of which nothing that the model reads is one of its constants; None where
        there are none.
        """
        violated = self._search.first_violated(choice)
        steps = {symbol.name: symbol.step for symbol in self._plan.symbols}
        found, left = dict(choice), list(primes)
        for name in (name for name, size in choice.items() if size > 1):
            for prime in left:
                own = {**found, name: prime * steps.get(name, 1)}
                is_beside = self._search.first_violated(own) == violated
                is_lawful = are_in_range(self._plan, own) and all(c.holds(own) for c in self._asked)
                if is_beside and is_lawful and self._is_own(own, name):
                    found = own
                    left.remove(prime)
                    break
            else:
                return None
        return found if is_possible(self._plan, found) else None

    def _is_own(self, sizes: Sizes, name: str) -> bool:
        """True where no size that hangs on a symbol is a constant of the model."""
        constants = self._known.constants_at(self._plan, sizes)
        numbers = self._numbers(sizes)
        hanging = (e for e in self._known.expressions if name in map(str, e.free_symbols))
        found = (value_at(one, numbers) for one in hanging)
        # 0 and 1 are no symbols in any run
        return all(size not in constants for size in found if size is not None and size > 1)

    def _condition_at(self, sizes: Sizes, pins: Sizes) -> _Shown | None:
        """The path condition of a run at some sizes that shows the operators of the graph, with the lengths of the axes
        that it divides; None for another run.
        """
        runs = WayRuns(self._search, self._lab, self._known)
        runs.in_a_trace = NOT_TRACING not in self._search.request.on
        symbols, reads = runs.symbols(sizes), SizeReads()
        calls, lab = self._search.calls, self._lab
        is_dear, is_untouched = lab.is_dear(calls.shapes(sizes)), False
        values = calls.values(sizes, has_floats=not is_dear)
        values = with_padding(calls, values, hidden=True) or values
        marks = MarkReads(values, lab.model, lab.subject.autocast)

        @contextlib.contextmanager
        def looking(mode: FakeTensorMode, recorder: Recorder) -> Iterator[None]:
            nonlocal is_untouched
            state = Snapshot.of(self._lab.model)
            without = without_float_values(mode) if is_dear else contextlib.nullcontext()
            with (
                without,
                named_caches(self._lab.model, _asked_for_numbers),
                runs.reading(recorder, symbols, runs.hit_rows(), others=[reads, marks]),
            ):
                yield
            is_untouched = state.is_whole and not state.effects()

        why = "a side of a decision"
        with recorded_decisions() as log:
            run = run_alike(
                *(self._graph, calls, lab, values, looking),
                why=why,
                has_values=not is_dear,
                by_operators=True,
            )
        if run is None or not is_untouched or symbols.fixed != pins or symbols.lines_of_floats:
            return None
        if symbols.is_unknown:
            return None
        if symbols.pieces != pieces_of(self._graph):
            return None
        of_model = used_steps(run.of_model.steps, run.results)
        of_graph = used_steps(run.of_graph.steps, run.results_of_graph)
        if not _have_same_positions(of_model, of_graph, symbols):
            return None
        if _reads_more_values(of_model, of_graph, symbols):
            return None
        if runs.asked or marks.found.keys() - self._graph.marks.keys():
            return None
        found = (tuple(map(symbols.in_plan, shape)) for shape in reads.sizes)
        read = tuple(tuple(self._at(size, pins) for size in shape) for shape in found)
        if any(size is None for shape in read for size in shape):
            return None
        atoms = self._atoms(symbols, pins, log.decisions.values())
        return PathCondition(atoms, reads=read), divided_lengths(run.of_model.steps)

    def _atoms(
        self, symbols: SymbolicSizes, pins: Sizes, decisions: Iterable[Decision]
    ) -> dict[tuple[str, str], Atom]:
        proofs, numbers = proofs_of(self._plan), self._numbers(pins)
        found: dict[tuple[str, str], Atom] = {}
        for decided, decision in symbols.decided(decisions):
            condition = value_at(in_least_terms(decided), numbers)
            if condition is None:
                raise WayDiffersError(f"it divides by 0 at {decision.line}")
            if not proofs.always(condition):
                key, line = key_of(condition), decision.line
                atom = Atom(key, condition, Origin.MODEL, line, decision.is_number)
                found.setdefault(key, atom)
        return found

    def _is_open(self, atom: Atom, pins: Sizes) -> bool:
        """False for a condition that holds whatever the sizes are that are no number on the side."""
        return value_at(atom.condition, self._numbers(pins)) not in (None, True, sympy.true)

    def _at(self, size: Any, pins: Sizes) -> Any:
        return None if size is None else value_at(size, self._numbers(pins))

    def _numbers(self, sizes: Sizes) -> dict[Any, Any]:
        symbols = (symbol_of(one) for one in self._plan.symbols if one.name in sizes)
        return {symbol: sympy.Integer(sizes[str(symbol)]) for symbol in symbols}


def _asked_for_numbers(cache: Cache) -> Callable[..., Any]:
    """A function that remembers results, which nobody may ask for a size: what it remembers may hang on more."""

    @functools.wraps(cache)
    def ask(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(leaf, SYMBOLIC) for leaf in tree_leaves((args, kwargs))):
            raise WayDiffersError(f"{cache.__qualname__} remembers results for sizes")
        return cache(*args, **kwargs)

    return ask


def _have_same_positions(
    of_model: Sequence[Step], of_graph: Sequence[Step], symbols: SymbolicSizes
) -> bool:
    """True where model and graph compare positions with the same numbers."""
    one, other = map(numbers_of_positions, (of_model, of_graph))
    alone: Counter[int] = (one - other) + (other - one)
    return all(map(symbols.explains, alone))


def _reads_more_values(
    of_model: Sequence[Step], of_graph: Sequence[Step], symbols: SymbolicSizes
) -> bool:
    """True where Python reads values that the graph does not read, those of tensors that were made of sizes too."""
    known = symbols.plain_tensors
    return value_reads(of_model, known, symbols.tensors_of_sizes) > value_reads(of_graph)


def _are_same(one: _Shown, other: _Shown) -> bool:
    (condition, lengths), (other_condition, other_lengths) = one, other
    is_same_condition = condition.atoms.keys() == other_condition.atoms.keys()
    return (
        is_same_condition and condition.reads == other_condition.reads and lengths == other_lengths
    )

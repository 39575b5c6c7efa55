"""Runs of a model in one way of a call, with symbols for the sizes that its Python reads."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import sympy
import torch

from ...core.call import Arguments
from ...core.path import Path
from ...core.plan import Plan
from ...core.sizes.expression import Sizes
from ...core.structure import Tree
from ...lab.lab import Lab, SpentError
from ...lab.memory import is_out_of_memory
from ...lab.recorder import Recorder
from ...lab.rerun import difference
from ...lab.stateful import Stateful
from ...observing.module_state import copied_values, values_at
from ...observing.reach import Snapshot
from ...proofs.decisions import Decision, recorded_decisions
from ...proofs.path_condition import symbol_of, value_at
from ...pytrees.open import copy_tensors, open_arguments
from ...repairs.loops.hit_rows import HitRows
from ...repairs.loops.rolled_loops import RolledLoops, Rolling
from ...repairs.numbers.number_texts import texts_are_of_numbers
from ...repairs.numbers.remembered import TablesOfSizes
from ...repairs.numbers.size_functions import sizes_are_ints
from ...repairs.numbers.size_ints import NUMBERS_OF_SIZES, builtins_swapped, files_of
from ...repairs.trace_mode import Reader, reading
from ...repairs.untraced_tensors import UntracedTensors
from ...torch_internals.trees import tree_leaves
from ...trace.mark_reads import CacheReads
from ..one_plan.operator_trials import as_in_a_trace
from ..one_plan.search import PlanSearch
from .loops_of_runs import LoopsOfRuns
from .operators_of_runs import Step, made_by_python, used_steps
from .symbolic_sizes import (
    NotedFloat,
    SymbolicSizes,
    TooLargeError,
    WayDiffersError,
    WayRefusesError,
    plain_of,
)

__all__ = ["RecordedRun", "SizesOfModel", "WayRuns"]


@dataclass(frozen=True)
class SizesOfModel:
    """What is known of the sizes of a model: those that it has whatever the call is, expressions of the
    plan for others, and the files in which its Python reads them.
    """

    constants: frozenset[int]
    expressions: tuple[Any, ...]
    files: Sequence[ModuleType]

    @classmethod
    def of(cls, search: PlanSearch, lab: Lab) -> SizesOfModel:
        """The sizes of the model of a search."""
        expressions = tuple(dict.fromkeys(_expressions(search)))
        return cls(_constants_of(expressions, lab), expressions, files_of(lab.model))

    def constants_at(self, plan: Plan, sizes: Sizes) -> frozenset[int]:
        """The sizes that the model has at all sizes that agree with these where they are 0 or 1: after
        ``cat([state, step], 1)`` the size of the state and one more.
        """
        sized = ((symbol_of(one), sizes[one.name]) for one in plan.symbols)
        small = {symbol: sympy.Integer(size) for symbol, size in sized if size < 2}
        found = (value_at(expression, small) for expression in self.expressions)
        integers = (int(size) for size in found if size is not None and size.is_Integer)
        return self.constants.union(integers)

    def after(self, call: Arguments, lab: Lab) -> SizesOfModel:
        """The sizes of the model with those of the tensors that a call leaves behind."""
        model = lab.model
        if isinstance(model, Stateful):
            left: Any = values_at(lab.subject.watched, model.unread)
        else:
            with lab.private_run(why="what a call leaves behind"):
                begun = Snapshot.of(model, copies=False)
                lab.subject(copy_tensors(call))
                left = [change.after for change in begun.effects()]
        return replace(self, constants=self.constants | _sizes_in(left))


@dataclass(frozen=True)
class RecordedRun:
    """A run of the model: its result, the operators that count for it, the tensors that it was given, and what Python
    decided.
    """

    result: Tree[Any]
    steps: Sequence[Step]
    given: Sequence[torch.Tensor]
    symbols: SymbolicSizes
    hits: HitRows
    decisions: tuple[Decision, ...]


class WayRuns:
    """Runs of a model in one way of a call: without the arguments of some ``names``, with the ``empty``
    objects instead, and after the call ``before``.
    """

    def __init__(
        self,
        search: PlanSearch,
        lab: Lab,
        known: SizesOfModel,
        *,
        names: frozenset[str] = frozenset(),
        empty: Mapping[str, Any] | None = None,
        before: Arguments | None = None,
    ) -> None:
        self.search, self.lab, self.known = search, lab, known
        self.names, self.empty, self.before = names, empty or {}, before
        #: True once the model was found to compute otherwise when it is not traced; then its state is looked at too
        self.in_a_trace = False
        #: what the last run asked caches for in vain and the graphs do not, with the line
        self.asked: dict[str, str] = {}
        #: the tensors that the model held when the last run began; None where these are unknown
        self._held: list[torch.Tensor] | None = None

    def symbols(self, sizes: Sizes) -> SymbolicSizes:
        """Returns the symbols of one run."""
        plan, known = self.search.plan, self.known
        constants = known.constants_at(plan, sizes)
        return SymbolicSizes(plan, sizes, known.expressions, constants)

    def recorded(self, values: Mapping[Path, Any], sizes: Sizes) -> RecordedRun | None:
        """A run of the model; None where it refuses the sizes with the arguments as well.

        :raises WayRefusesError: where it refuses sizes that the graphs take
        :raises WayDiffersError: where a loop cannot be looked at
        """
        plain = self.arguments(values)
        given = [leaf for leaf in open_arguments(plain).leaves if isinstance(leaf, torch.Tensor)]
        symbols, recorder = self.symbols(sizes), Recorder()
        arguments = self._with_numbers(plain, symbols)
        loops = LoopsOfRuns(self._rollings(), self.lab, recorder, symbols)
        hits = self.hit_rows(loops)
        without = f" without {', '.join(sorted(self.names))}" if self.names else ""
        after = " after another call" if self.before is not None else ""
        why = f"a side of a decision{without}{after}"
        try:
            with recorded_decisions() as log:
                looking = self._looking(recorder, symbols, hits, loops)
                result = self.lab.run_within(arguments, looking, why=why)
            with recorder:
                result = result.each(loops.value)
        except SpentError:
            raise
        except Exception as error:
            if loops.failure is not None:
                raise WayDiffersError(str(loops.failure)) from error
            if is_out_of_memory(error):
                raise TooLargeError(f"{sizes} take more memory than there is") from error
            if self.search.takes(sizes):
                raise WayRefusesError(f"the model refuses {sizes}: {error}") from error
            return None
        if loops.failure is not None:
            raise WayDiffersError(str(loops.failure))
        for mark, line in self.asked.items():
            raise WayDiffersError(f"it asks whether it has {mark}, at {line}")
        for line in symbols.lines_of_floats - self._lines_of_graphs():
            raise WayDiffersError(f"it decides by a float that is an argument, at {line}")
        if hits.visited or loops.rolled:
            self._check_loops(result, values, sizes, why)
        decisions = tuple(log.decisions.values())
        steps = used_steps(recorder.steps, result.leaves)
        if self._held is not None:
            symbols.plain_tensors += made_by_python(recorder.steps, (*given, *self._held))
        symbols.note_pieces(result.leaves)
        recorder.steps.clear()  # the loops are in a cycle, and would keep gigabytes of tensors
        return RecordedRun(_plain(result), steps, given, symbols, hits, decisions)

    def _check_loops(
        self, found: Tree[Any], values: Mapping[Path, Any], sizes: Sizes, why: str
    ) -> None:
        """Passes where a run that visits all rows, and rolls loops, gives what the model gives.

        :raises WayDiffersError: elsewhere
        """
        arguments = self.arguments(values)
        plain = self.symbols(sizes)
        looking = self._looking(Recorder(), plain, HitRows(like=()))
        result = _plain(self.lab.run_within(arguments, looking, why=why))
        other = difference(result, _plain(found))
        if other:
            raise WayDiffersError(f"one of its loops gives something else: {other}")

    def _rollings(self) -> list[Rolling]:
        """The loops that the traces of the graphs rolled, or of which they visit all rows."""
        return [region.rolling for proven in self.search.graphs for region in proven.regions]

    def hit_rows(self, loops: RolledLoops | None = None) -> HitRows:
        """The loops of the model of which the graphs visit all rows, where they stand in none of the
        rolled ``loops``.
        """
        visited = {line for rolling in self._rollings() for line in rolling.visited}
        refused = {row for rolling in self._rollings() for row in rolling.refused}
        is_rolling = (lambda: False) if loops is None else (lambda: loops.is_rolling)
        return HitRows(like=visited, refused=refused, is_rolling=is_rolling)

    @contextlib.contextmanager
    def _looking(
        self,
        recorder: Recorder,
        symbols: SymbolicSizes,
        hits: HitRows,
        loops: LoopsOfRuns | None = None,
    ) -> Iterator[None]:
        """The run of the model stands inside; the call before it has been made."""
        model = self.lab.model
        left: AbstractContextManager[None] = contextlib.nullcontext()
        if self.before is not None and isinstance(model, Stateful):
            # what watched calls left, as copies: the model is the user's
            values = copied_values(values_at(self.lab.subject.watched, model.unread))
            left = model.lifted(lambda path, value: values.get(path))
        elif self.before is not None:
            self.lab.subject(copy_tensors(self.before))
        self._held = None
        if self.in_a_trace and not isinstance(model, Stateful):
            begun = Snapshot.of(model, copies=False)
            self._held = [*begun.tensors.values()] if begun.is_whole else None
        with left, self.reading(recorder, symbols, hits, loops):
            yield

    @contextlib.contextmanager
    def reading(
        self,
        recorder: Recorder,
        symbols: SymbolicSizes,
        hits: HitRows,
        loops: LoopsOfRuns | None = None,
        others: Sequence[Reader] = (),
    ) -> Iterator[None]:
        """Inside the block sizes are symbols, operators are recorded, and ``loops`` are rolled; ``others`` read as
        well, with symbols.
        """
        within = as_in_a_trace() if self.in_a_trace else contextlib.nullcontext()
        rolled = [loops] if loops is not None and loops.rolls else []
        builtins = rolled[0].builtins if rolled else symbols.ranges.builtins
        model, files = self.lab.model, self.known.files
        kinds = sizes_are_ints(model, files=files)
        names = {**NUMBERS_OF_SIZES, **builtins}
        swapped = builtins_swapped(model, names, keeps_compared=True, files=files)
        tables = TablesOfSizes(model, self.lab.subject.former, full=self.before is not None)
        caches = CacheReads(self.search.plan.structure)
        looked_at = reading(symbols, *others, *rolled, hits, UntracedTensors(), caches)
        with within, recorder, looked_at, kinds, swapped, tables, texts_are_of_numbers():
            yield
            symbols.ranges.settle()
        known = [proven.graph.marks for proven in self.search.graphs]
        asked = caches.found.items()
        self.asked = {mark: line for mark, line in asked if not all(mark in own for own in known)}

    def _lines_of_graphs(self) -> set[str]:
        """The lines of the model whose decisions are in the contracts of the graphs."""
        regions = [region for proven in self.search.graphs for region in proven.regions]
        return {atom.line for region in regions for atom in region.atoms.values()}

    def _with_numbers(self, arguments: dict[str, Any], symbols: SymbolicSizes) -> dict[str, Any]:
        """The arguments, with symbols for those that are ints of the plan, and floats that note who decides by them."""
        found: Any = dict(arguments)
        for leaf in self.search.plan.inputs:
            names = () if leaf.value is None else tuple(leaf.value.symbols)
            if leaf.is_float:
                noted = functools.partial(NotedFloat.of, lines=symbols.lines_of_floats)
                found = _with_part(found, leaf.path.entries, noted)
            elif len(names) == 1 and str(leaf.value) == names[0]:
                found = _with_part(
                    found, leaf.path.entries, functools.partial(symbols.number, names[0])
                )
        return dict(found)

    def arguments(self, values: Mapping[Path, Any]) -> dict[str, Any]:
        """The arguments of the way, as copies."""
        arguments: dict[str, Any] = copy_tensors(self.search.calls.arguments_of(values))
        for name in self.names:
            arguments.pop(name, None)
        return {**arguments, **{name: copy_tensors(value) for name, value in self.empty.items()}}


def _with_part(value: Any, entries: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """A value with another number at a place, as far as dicts, lists and tuples lead there."""
    if not entries:
        return change(value) if type(value) in (int, float) else value
    if type(value) is dict:
        key = getattr(entries[0], "name", getattr(entries[0], "key", None))
        return {
            one: _with_part(part, entries[1:], change) if one == key else part
            for one, part in value.items()
        }
    if type(value) in (list, tuple):
        place = getattr(entries[0], "index", None)
        parts = [
            _with_part(part, entries[1:], change) if one == place else part
            for one, part in enumerate(value)
        ]
        return type(value)(parts)
    return value


def _sizes_in(values: Any) -> frozenset[int]:
    """The sizes of all tensors in a value."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    return frozenset(size for tensor in tensors for size in tensor.shape)


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


def _constants_of(expressions: Sequence[Any], lab: Lab) -> frozenset[int]:
    """The sizes that the model has whatever the call is."""
    found = {int(size) for size in expressions if size.is_Integer}
    if isinstance(lab.model, torch.nn.Module):
        for tensor in (*lab.model.parameters(), *lab.model.buffers()):
            found.update(tensor.shape)
    return frozenset(found)

"""The model with a flat signature, for the time of an export.

torch.export then sees tensors and ints by name only, and floats as tensors without dimensions: no
cache, no ``**kwargs`` (which it cannot spell dynamic shapes for), no class that would have to be
registered where the program is loaded.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sympy
import torch

from ..core.call import ARGUMENTS, OUTPUT
from ..core.contents import LOOP_NOTE
from ..core.drawing.alike import numbered
from ..core.errors import UsageError
from ..core.marks import ATTRIBUTES, contiguous_mark
from ..core.path import Key, Path, label_of
from ..core.plan import Plan
from ..core.structure import Tree
from ..lab.effects import HeldArguments
from ..lab.kept import Side
from ..lab.lab import Lab
from ..lab.stateful import Stateful
from ..materialise.arguments import close_arguments
from ..observing.cached_functions import cache_reads_are_told
from ..observing.effects import Effect
from ..observing.reach import Snapshot
from ..proofs.operators import returned_placeholders, written_placeholders
from ..proofs.path_condition import Atom
from ..pytrees.unread import open_result
from ..repairs.constant_tensors import CONSTANT_TENSORS, ConstantTensors
from ..repairs.guard_count import UNGUARDED, GuardCount, usual_guards
from ..repairs.loops.hit_rows import HitRows
from ..repairs.loops.rolled_loops import FEWEST_STEPS, MOST_STEPS, RolledLoops, Rolling
from ..repairs.loops.whole_rows import WHOLE_ROWS, WholeRows
from ..repairs.memory_copies import MEMORY_COPIES
from ..repairs.neutral_branches import NEUTRAL_BRANCHES, NeutralBranches
from ..repairs.numbers.by_values import BY_VALUES
from ..repairs.numbers.number_texts import texts_are_of_numbers
from ..repairs.numbers.range_tensors import RangeTensors
from ..repairs.numbers.remembered import REMEMBERED, Remembered, TablesOfSizes
from ..repairs.numbers.repeated_lists import REPEATED_LISTS, RepeatedLists
from ..repairs.numbers.size_ints import builtins_swapped, ints_of_floats_are_values
from ..repairs.numbers.size_tensors import (
    BUFFER_NUMBERS,
    FLOATS_DECIDE,
    SizeTensors,
    numbers_in_buffers,
)
from ..repairs.numbers.sized_operators import SIZED_OPERATORS, SizedOperators
from ..repairs.repair import TraceRequest
from ..repairs.trace_mode import InVainError, Reader, reading
from ..repairs.untraced_tensors import UNTRACED_TENSORS, UntracedTensors
from ..repairs.value_branches import VALUE_BRANCHES, ValueBranches
from ..repairs.whole_lists import JoinedList, noting_list
from ..torch_internals.tensor_marks import attributes_given_to
from .equal_sizes import unify_sizes
from .generators import without_generator
from .identity_tests import compares_numbers, marks_in_source
from .mark_reads import CacheReads, MarkReads
from .returned_numbers import as_output, is_output
from .size_reads import SizeReads
from .state_reads import StateReads

__all__ = ["FlatModel", "FlatRun", "identifiers", "output_labels"]

_COUNTS = "which counts where its test says so"
_CHANGES_NOTHING = "it changes nothing where its test fails"


def identifiers(labels: Iterable[str]) -> list[str]:
    """Python names for labels, no two equal.

    >>> identifiers(["past_key_values.0.key", "x", "x"])
    ['past_key_values_0_key', 'x', 'x_1']
    """
    return numbered(map(_identifier, labels))


def _identifier(label: str) -> str:
    name = "".join(c if c.isalnum() or c == "_" else "_" for c in label).strip("_") or "value"
    return f"_{name}" if name[0].isdigit() else name


def output_labels(outputs: Tree[Any], inputs: Iterable[str], *, has_parts: bool) -> list[str]:
    """A readable name per output leaf: ``logits``, or ``output`` for a lone tensor.

    A leaf that is also an input, as a cache is, gets another name: ``past_key_values.0.key`` comes
    out as ``present.0.key``. A result that ``has_parts``, with state or with arguments that the call
    changed, has the names that its parts would have alone.
    """
    taken = set(inputs)
    paths = list(outputs.structure.paths())
    labels = [label_of(path) for path in paths]
    if has_parts:
        alone = [label_of(_without_part(path)) for path in paths]
        labels = alone if len(set(alone)) == len(alone) else labels
    named = [f"output_{text}" if text[:1].isdigit() else text or "output" for text in labels]
    return [_present(text) if text in taken else text for text in named]


def _without_part(path: Path) -> Path:
    first, *rest = path.entries
    return Path(tuple(rest)) if first in (Key(OUTPUT), Key(ARGUMENTS)) else path


def _present(label: str) -> str:
    root, dot, rest = label.partition(".")
    return f"present{dot}{rest}" if root.startswith("past") else f"new_{label}"


class FlatModel(torch.nn.Module):
    """One method of a model, taking the inputs of a plan by name and giving those leaves of its result
    that are tensors or symbolic numbers.
    """

    def __init__(self, run: FlatRun) -> None:
        super().__init__()
        self.watched = run.lab.model
        self.training = bool(getattr(run.lab.model, "training", False))
        self._run = run

    @classmethod
    def of(cls, run: FlatRun) -> FlatModel:
        """The model with a signature that has the inputs of the plan, in their order."""
        names = list(run.names.values())
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("self", *names)
        ]

        def forward(self: FlatModel, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return self._run(dict(zip(names, args, strict=False)) | kwargs)

        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        made: type[FlatModel] = type("FlatModel", (cls,), {"forward": forward})
        return made(run)


class FlatRun:
    """Runs the method on named inputs, and keeps what the last run did; no module, so that torch does
    not take its attributes for state.

    ``names`` has the name of each input of the ``plan``. ``values`` are those of an example: what is no
    input, constants and objects, is taken from there. ``request`` says how it is traced. A trace ends at
    more than ``most_guards``, which is the usual number for None.

    After a run ``readers`` are what read the functions of torch in it, ``reads`` has the sizes that the
    Python of the model read, ``state`` what it read of what calls count, and ``dynamic`` says of each
    leaf of the result whether it is a tensor or a symbolic number.
    """

    def __init__(
        self,
        lab: Lab,
        plan: Plan,
        values: Mapping[Path, Any],
        request: TraceRequest,
        *,
        most_guards: int | None = None,
    ) -> None:
        labels = identifiers(label_of(leaf.path) for leaf in plan.inputs)
        usual = None if UNGUARDED in request.on else usual_guards(len(plan.inputs))
        self.lab, self.plan, self.request = lab, plan, request
        self.names = {leaf.path: label for leaf, label in zip(plan.inputs, labels, strict=True)}
        self._most_guards = most_guards or usual
        self._fixed = {
            leaf.path: without_generator(values[leaf.path])
            for leaf in plan.leaves
            if leaf.path not in self.names
        }
        self._floats = tuple(leaf.path for leaf in plan.inputs if leaf.is_float)
        seen = [size for symbol in plan.symbols for size in symbol.observed]
        self._n_steps = min(MOST_STEPS, max(FEWEST_STEPS, 2 * max(seen, default=0) + 1))
        self._has_numbers = compares_numbers(lab.model, lab.subject.method)
        self.dynamic: tuple[bool, ...] = ()
        self.decided: tuple[str, ...] = ()
        #: the symbols of floats that are inputs, and what the last trace asked of floats, with the answers
        self.symbols_of_floats: dict[Path, str] = {}
        self.decided_floats: tuple[tuple[Any, bool], ...] = ()
        self.has_values_of_floats = False
        self.readers: Sequence[Reader] = ()
        self.rows = WholeRows() if WHOLE_ROWS.is_part_of(request) else None
        self.branches, self.loops = NeutralBranches(), RolledLoops()
        self.values: ValueBranches | None = None
        self._ranges, self.hits = RangeTensors(), HitRows()
        self._repeated = RepeatedLists()
        self._remembered = Remembered(None, TablesOfSizes(None, {}))
        self.reads, self.state, self.marks_read = SizeReads(), StateReads(), MarkReads({})
        self.caches_read = CacheReads(plan.structure)
        self._changes: Sequence[Effect] = ()
        #: what the last trace made of the objects of its caller, where no watched call does that
        self.arguments_changed: Sequence[Effect] = ()
        self._numbers: Mapping[str, int] = {}
        if BUFFER_NUMBERS in request.on and not isinstance(lab.model, Stateful):
            self._numbers = numbers_in_buffers(lab.model)

    @property
    def rolling(self) -> Rolling:
        """The loops that the last trace rolled, or visited, for runs that do the same."""
        visited = tuple(dict.fromkeys(self.hits.visited))
        rolled = tuple(dict.fromkeys(self.loops.rolled))
        request = self.request
        refused = (*request.refused_rows, *self.hits.ends.items())
        numbered = tuple(dict.fromkeys(self.loops.numbered))
        return Rolling(
            *(rolled, self._n_steps, visited, refused, request.ends, numbered, request.not_rolled),
            sides=tuple(self.loops.sides),
            valued=request.valued,
        )

    def is_of_steps(self, atom: Atom) -> bool:
        """True for a condition that a loop of the last trace has no more steps than were compared."""
        return (
            isinstance(atom.condition, sympy.core.relational.Relational)
            and self._n_steps in atom.condition.args
            and bool(self.loops.rolled)
        )

    @property
    def unread(self) -> frozenset[str]:
        """The attributes that each call sets before it reads them, at all sizes and values of the last trace. None
        where the trace rolled a loop, or took one side of a branch: another call may read an attribute there.
        """
        by_values = self.values is not None and self.values.taken
        is_plain = not (self.loops.rolled or self.hits.visited or self.branches.taken or by_values)
        return self.state.unread if is_plain else frozenset()

    @property
    def notes(self) -> Sequence[str]:
        """Notes about the loops and branches that the last trace changed, by their lines."""
        most = f"of up to {self._n_steps} steps"
        scans = dict.fromkeys(self.loops.scans)
        taken = dict.fromkeys(self.branches.taken)
        by_values = dict.fromkeys(self.values.taken if self.values is not None else ())
        return [
            *(f"{LOOP_NOTE} {line} is a scan of torch, {most}" for line in scans),
            *(f"the branch at {line} is taken for all sizes: {_CHANGES_NOTHING}" for line in taken),
            *(f"the branch at {line} is traced on one side, {_COUNTS}" for line in by_values),
        ]

    @property
    def state_written(self) -> Sequence[Effect]:
        """The state that the last trace left behind in Python and that no watched call does."""
        known = self.lab.kept.changes
        return [change for change in self._changes if change.place not in known]

    def note_side(
        self, values: Mapping[Path, Any], *, refusal: Exception | None = None
    ) -> dict[str, Any]:
        """Keeps the arguments of a call that leaves behind what no watched call does, and gives
        them; ``refusal`` is why it is not served.
        """
        arguments = close_arguments(self.plan, dict(values))
        places = tuple(change.place for change in self.state_written)
        self.lab.kept.add_side(Side(arguments, places, refusal))
        return arguments

    @property
    def marks(self) -> Mapping[str, str]:
        """The marks of tensors that the model read in the last trace, with their lines."""
        in_source = marks_in_source(self.lab.model, self.lab.subject.method)
        return {**self.marks_read.found, **self.caches_read.found, **in_source}

    def marks_of_memory(self, program: torch.export.ExportedProgram) -> Mapping[str, str]:
        """The marks of inputs that the model asks for in contiguous memory, and gives back or writes to: it copies
        another one.
        """
        reached = written_placeholders(program) | returned_placeholders(program)
        given_back = self.marks_read.given_back
        return {
            contiguous_mark(str(path)): given_back[name]
            for path, name in self.names.items()
            if name in reached and name in given_back
        }

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The leaves of the result that are tensors or symbolic numbers, for inputs by name."""
        values = self._fixed | {path: inputs[name] for path, name in self.names.items()}
        values |= {path: values[path].item() for path in self._floats}
        self.symbols_of_floats = {
            path: str(values[path].node.expr)
            for path in self._floats
            if isinstance(values[path], torch.SymFloat)
        }
        readers = self.readers = self._readers_of(inputs)
        if self._has_numbers:
            _fix_sizes(inputs.values())
        unify_sizes(self.plan, values)
        arguments = close_arguments(self.plan, values)
        readers = self.readers = (*readers, *self._joined_lists(arguments))
        loops = self.loops
        known = {one.name for one in self.lab.subject.changed}
        held = HeldArguments(arguments, known.union(path.root for path in self.lab.joined_lists))
        with (
            self._own_state(),
            ints_of_floats_are_values(BY_VALUES in self.request.on) as values_of_floats,
            builtins_swapped(self.lab.model, loops.builtins),
            reading(*readers),
            texts_are_of_numbers(),
        ):
            result = self._repeated.plain(loops.plain(self.lab(arguments)))
            self._ranges.settle()
            self.state.check(result)
            self._check_marks(values)
            leaves = [loops.value(leaf) for leaf in open_result(result).leaves]
            self.hits.check(leaves)
            self._remembered.check()
            if self.values is not None:
                leaves = self.values.checked(leaves)
        self.arguments_changed = held.changes(result)
        leaves = [as_output(self._own_row(leaf)) for leaf in leaves]
        for reader in readers:
            if reader.failure is not None:
                raise reader.failure
        self.lab.rolled_numbers |= bool(loops.numbered)
        self.has_values_of_floats = bool(values_of_floats)
        self.dynamic = tuple(map(is_output, leaves))
        return tuple(leaf for leaf, flag in zip(leaves, self.dynamic, strict=True) if flag)

    def _check_marks(self, values: Mapping[Path, Any]) -> None:
        """Notes a reading of attributes that the model gives the tensors of its caller, who may pass them again."""
        if ATTRIBUTES in self.marks_read.found:
            line = self.marks_read.found[ATTRIBUTES]
            for path, value in values.items():
                given = attributes_given_to(value) if isinstance(value, torch.Tensor) else ()
                self.state.found.update({f"{path}.{name}": line for name in given})

    def _readers_of(self, inputs: Mapping[str, Any]) -> Sequence[Reader]:
        """Returns the readers of the functions of torch in a run of the model; the last one is the
        first that gets a function.
        """
        request = self.request
        has_branches = NEUTRAL_BRANCHES.is_part_of(request)
        self.branches = NeutralBranches(request.decided if has_branches else None)
        ranges = self._ranges = RangeTensors()
        self.hits = HitRows(
            request.not_rolled,
            refused=request.refused_rows,
            reach=self._held,
            is_rolling=lambda: self.loops.is_rolling,
        )
        self.loops = RolledLoops(
            request.not_rolled,
            self.rows,
            self._n_steps,
            reach=self._held,
            is_told=lambda change: self.state.tells(change),
            ranges=ranges,
            ends=request.ends,
            valued=request.valued,
            numbers=self.lab.rolls_numbers,
        )
        self._repeated = RepeatedLists()
        subject = self.lab.subject
        self.reads = SizeReads()
        self.marks_read = MarkReads(inputs, self.lab.model, subject.autocast)
        self.caches_read = CacheReads(self.plan.structure)
        tables = TablesOfSizes(self.lab.model, subject.former)
        self._remembered = Remembered(
            subject.watched, tables, inputs.values(), lambda name: self.state.read(name)
        )
        self.values = None
        if VALUE_BRANCHES in request.on:
            self.values = ValueBranches(
                self._held, request.decided, is_rolling=lambda: self.loops.is_rolling
            )
        return (
            GuardCount(inputs.values(), self._most_guards),
            *([] if self.rows is None else [self.rows]),
            self.branches,
            *(
                [SizedOperators(copies=MEMORY_COPIES.is_part_of(request))]
                if SIZED_OPERATORS.is_part_of(request)
                else []
            ),
            SizeTensors(FLOATS_DECIDE in request.on, ranges, self._buffers_with_numbers()),
            *([self._repeated] if REPEATED_LISTS.is_part_of(request) else []),
            *([self._remembered] if REMEMBERED.is_part_of(request) else []),
            self.reads,
            self.marks_read,
            self.caches_read,
            self.loops,
            self.hits,
            *([] if self.values is None else [self.values]),
            *([UntracedTensors()] if UNTRACED_TENSORS.is_part_of(request) else []),
            *self._constants_of(request),
        )

    def _joined_lists(self, arguments: dict[str, Any]) -> Iterator[Reader]:
        """Puts lists that note who reads them in the places of those that are joined."""
        for path in self.lab.joined_lists:
            found: Any = None
            with contextlib.suppress(UsageError):  # a call of another form
                found = path.follow(arguments)
            if type(found) in (list, tuple) and len(found) == 1:
                watch = JoinedList(str(path), found, partial(self._ended_branch, path))
                path.put(arguments, noting_list(found, watch))
                yield watch

    def _ended_branch(self, path: Path) -> InVainError | None:
        reason = f"it reads {path}, of which the watched calls read no item"
        return None if self.values is None else self.values.ended(reason)

    def _constants_of(self, request: TraceRequest) -> Iterator[Reader]:
        if CONSTANT_TENSORS.is_part_of(request):
            yield ConstantTensors(lambda: self.loops.is_rolling)

    def _buffers_with_numbers(self) -> Iterator[tuple[Any, int]]:
        """Yields the stand-ins of the buffers that count as numbers in a trace, with the numbers."""
        for name, number in self._numbers.items():
            yield self.lab.model.get_buffer(name), number

    def _held(self) -> Snapshot:
        """Returns a snapshot of the model in a trace."""
        return self.lab.subject.keeper.begun.now()

    @contextlib.contextmanager
    def _own_state(self) -> Iterator[None]:
        """Inside the block stand-ins are in the places of what calls count; on exit what Python keeps
        is as before: a trace runs the model twice.
        """
        self.state, self._changes = StateReads(), ()
        model, kept = self.lab.model, self.lab.kept
        lifted: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if isinstance(model, Stateful):
            lifted = model.lifted(self.state.stand_in)
        with lifted:
            begun = self._held()
            try:
                with self.state.of(begun, kept.counted, kept.remembered):
                    with cache_reads_are_told(self.lab.subject.watched, self.state.read):
                        yield
                    self._changes = [
                        change for change in begun.effects() if not self.state.stands_for(change)
                    ]
            finally:
                begun.put_back()

    def _own_row(self, leaf: Any) -> Any:
        """A leaf of the result; for what stood in for a row of a tensor, this row."""
        is_tensor = isinstance(leaf, torch.Tensor)
        return self.rows.value(leaf) if self.rows is not None and is_tensor else leaf


def _fix_sizes(inputs: Iterable[Any]) -> None:
    """Makes each size of the inputs a constant, by decisions that the path condition has."""
    for value in inputs:
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                int(size)

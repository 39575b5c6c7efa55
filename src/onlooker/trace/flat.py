"""The model with a flat signature, for the time of an export.

torch.export then sees tensors and ints by name only, and floats as tensors without dimensions: no
cache, no ``**kwargs`` (which it cannot spell dynamic shapes for), no class that would have to be
registered where the program is loaded.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..core.call import ARGUMENTS, OUTPUT
from ..core.marks import IDENTITY, PARAMETERS
from ..core.path import Key, Path
from ..core.plan import Plan
from ..core.structure import Tree
from ..infer.name import label_of
from ..lab.kept import Side
from ..lab.lab import Lab
from ..lab.stateful import Stateful
from ..materialise.arguments import close_arguments
from ..observing.reach import Change, Snapshot
from ..pytrees.unread import open_result
from ..repairs.by_values import BY_VALUES
from ..repairs.guard_count import UNGUARDED, GuardCount, usual_guards
from ..repairs.memory_copies import MEMORY_COPIES
from ..repairs.neutral_branches import NEUTRAL_BRANCHES, NeutralBranches
from ..repairs.number_texts import texts_are_of_numbers
from ..repairs.repair import TraceRequest
from ..repairs.rolled_loops import FEWEST_STEPS, MOST_STEPS, RolledLoops, Rolling
from ..repairs.size_ints import builtins_swapped, ints_of_floats_are_values
from ..repairs.size_tensors import FLOATS_DECIDE, SizeTensors
from ..repairs.sized_operators import SizedOperators
from ..repairs.trace_mode import Reader, reading
from ..repairs.whole_rows import WHOLE_ROWS, WholeRows
from .equal_sizes import unify_sizes
from .generators import without_generator
from .identity_tests import asks_for_parameters, compares_identity, compares_numbers
from .mark_reads import MarkReads
from .path_condition import Atom
from .returned_numbers import as_output, is_output
from .size_reads import SizeReads
from .state_reads import StateReads

__all__ = ["FlatModel", "identifiers", "output_labels"]

_CHANGES_NOTHING = "it changes nothing where its test fails"


def identifiers(labels: Iterable[str]) -> list[str]:
    """Python names for labels, no two equal.

    >>> identifiers(["past_key_values.0.key", "x", "x"])
    ['past_key_values_0_key', 'x', 'x_1']
    """
    names: list[str] = []
    for label in labels:
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in label).strip("_") or "value"
        name = f"_{name}" if name[0].isdigit() else name
        unique, number = name, 1
        while unique in names:
            unique, number = f"{name}_{number}", number + 1
        names.append(unique)
    return names


def output_labels(
    outputs: Tree[Any], inputs: Iterable[str], *, has_parts: bool = False
) -> list[str]:
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
    """One method of a model, taking the inputs of a plan by name and giving the leaves of its
    result.

    ``dynamic`` holds, after a run, which leaves of the result are tensors or symbolic numbers; only
    those are given.
    """

    def __init__(self, run: _Runner) -> None:
        super().__init__()
        self.watched = run.lab.model
        self.training = bool(getattr(run.lab.model, "training", False))
        self._run = run

    @classmethod
    def of(
        cls,
        lab: Lab,
        plan: Plan,
        values: Mapping[Path, Any],
        request: TraceRequest,
        *,
        most_guards: int | None = None,
    ) -> FlatModel:
        """The model with a signature that has the inputs of the plan, in their order.

        ``values`` are those of an example: what is no input, constants and objects, is taken from
        there. ``request`` says how it is traced. A trace ends at more than ``most_guards``, which is
        the usual number for None.
        """
        labels = identifiers(label_of(leaf.path) for leaf in plan.inputs)
        names = {leaf.path: label for leaf, label in zip(plan.inputs, labels, strict=True)}
        usual = None if UNGUARDED in request.on else usual_guards(len(plan.inputs))
        parameters = [
            inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for n in ("self", *names.values())
        ]

        def forward(self: FlatModel, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            return self._run(dict(zip(names.values(), args, strict=False)) | kwargs)

        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        made: type[FlatModel] = type("FlatModel", (cls,), {"forward": forward})
        return made(_Runner(lab, plan, names, values, request, most_guards or usual))

    @property
    def has_parts(self) -> bool:
        """True where results have parts: see :attr:`~onlooker.lab.runner.ModelRunner.has_parts`."""
        return self._run.lab.subject.has_parts

    @property
    def readers(self) -> Sequence[Reader]:
        """What read the functions of torch in the last run of the model."""
        return self._run.readers

    @property
    def n_joined(self) -> int:
        """How often the last trace joined rows that it had taken apart."""
        return self._run.rows.joined if self._run.rows is not None else 0

    @property
    def has_values_of_floats(self) -> bool:
        """True where the last trace made values of ints that floats of sizes give."""
        return self._run.n_values > 0

    @property
    def rolled(self) -> Sequence[str]:
        """The lines of the loops that the last trace rolled."""
        return self._run.loops.rolled

    @property
    def rolling(self) -> Rolling:
        """How the last trace rolled loops, for runs that do the same."""
        return Rolling(tuple(dict.fromkeys(self.rolled)), self._run.n_steps)

    def is_of_steps(self, atom: Atom) -> bool:
        """True for a condition that a loop of the last trace has no more steps than were compared."""
        return (
            isinstance(atom.condition, sympy.core.relational.Relational)
            and self._run.n_steps in atom.condition.args
            and bool(self.rolled)
        )

    @property
    def notes(self) -> Sequence[str]:
        """What the last trace did to loops and branches of the model, by their lines."""
        most = f"of up to {self._run.n_steps} steps"
        scans = dict.fromkeys(self._run.loops.scans)
        taken = dict.fromkeys(self._run.branches.taken)
        return [
            *(f"the loop at {line} is a scan of torch, {most}" for line in scans),
            *(f"the branch at {line} is taken for all sizes: {_CHANGES_NOTHING}" for line in taken),
        ]

    @property
    def reads(self) -> Sequence[tuple[Any, ...]]:
        """The sizes that the Python of the model read from tensors in the last trace."""
        return self._run.reads.sizes

    @property
    def state_reads(self) -> Mapping[str, str]:
        """Of what calls count, what the last trace read: path -> line of the model."""
        return self._run.state.found

    @property
    def state_written(self) -> Sequence[Change]:
        """What the last trace left behind in Python that no watched call does."""
        known = self._run.lab.kept.changes
        return [change for change in self._run.changes if change.path not in known]

    @property
    def names(self) -> Mapping[Path, str]:
        """The name of each input of the plan."""
        return self._run.names

    @property
    def plan(self) -> Plan:
        """The plan whose inputs are given."""
        return self._run.plan

    def note_side(
        self, values: Mapping[Path, Any], *, refusal: Exception | None = None
    ) -> dict[str, Any]:
        """Keeps the arguments of a call that leaves behind what no watched call does, and gives
        them; ``refusal`` is why it is not served.
        """
        arguments = close_arguments(self.plan, dict(values))
        self._run.lab.kept.add_side(Side(arguments, refusal))
        return arguments

    @property
    def marks(self) -> Mapping[str, str]:
        """The marks of tensors that the model read in the last trace, with their lines."""
        model, method = self._run.lab.model, self._run.lab.subject.method
        in_source = {
            IDENTITY: compares_identity(model, method),
            PARAMETERS: asks_for_parameters(model, method),
        }
        return {**self._run.marks.found, **{mark: line for mark, line in in_source.items() if line}}

    @property
    def dynamic(self) -> tuple[bool, ...]:
        """Per leaf of the last result: True for a tensor and for a symbolic number."""
        flags: tuple[bool, ...] = tuple(self._run.flags)
        return flags


class _Runner:
    """Runs the method on named inputs; no module, so that torch does not take its attributes for
    state.
    """

    def __init__(
        self,
        lab: Lab,
        plan: Plan,
        names: Mapping[Path, str],
        values: Mapping[Path, Any],
        request: TraceRequest,
        most_guards: int | None,
    ) -> None:
        self.lab, self.plan, self.names = lab, plan, names
        self.request, self.most_guards = request, most_guards
        self.fixed = {
            leaf.path: without_generator(values[leaf.path])
            for leaf in plan.leaves
            if leaf.path not in names
        }
        self.floats = tuple(leaf.path for leaf in plan.inputs if leaf.is_float)
        self.flags: list[bool] = []
        self.n_values = 0
        self.branches = NeutralBranches()
        self.rows = WholeRows() if WHOLE_ROWS.is_part_of(request) else None
        self.readers: Sequence[Reader] = ()
        seen = [size for symbol in plan.symbols for size in symbol.observed]
        self.n_steps = min(MOST_STEPS, max(FEWEST_STEPS, 2 * max(seen, default=0) + 1))
        self.loops = RolledLoops()
        self.reads = SizeReads()
        self.state = StateReads()
        self.changes: Sequence[Change] = ()
        self.marks = MarkReads(())
        self.has_numbers = compares_numbers(lab.model, lab.subject.method)

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        values = self.fixed | {path: inputs[name] for path, name in self.names.items()}
        values |= {path: values[path].item() for path in self.floats}
        readers = self.readers = self._readers_of(inputs)
        if self.has_numbers:
            _fix_sizes(inputs.values())
        unify_sizes(self.plan, values)
        arguments = close_arguments(self.plan, values)
        loops, branches = self.loops, self.branches
        with (
            self._own_state(),
            ints_of_floats_are_values(BY_VALUES in self.request.on) as values_of_floats,
            builtins_swapped(self.lab.model, loops.builtins),
            reading(*readers),
            texts_are_of_numbers(),
        ):
            result = self.lab(arguments)
            self.state.check(result)
            leaves = [loops.value(leaf) for leaf in open_result(result).leaves]
        leaves = [as_output(self._own_row(leaf)) for leaf in leaves]
        for failure in (loops.failure, branches.failure):
            if failure is not None:
                raise failure
        self.n_values = len(values_of_floats)
        self.flags[:] = map(is_output, leaves)
        return tuple(leaf for leaf, flag in zip(leaves, self.flags, strict=True) if flag)

    def _readers_of(self, inputs: Mapping[str, Any]) -> Sequence[Reader]:
        """What reads the functions of torch in a run of the model; the last one is the first that
        gets a function.
        """
        request = self.request
        has_branches = NEUTRAL_BRANCHES.is_part_of(request)
        self.branches = NeutralBranches(request.decided if has_branches else None)
        self.loops = RolledLoops(request.unrolled, self.rows, self.n_steps, reach=self._held)
        self.reads, self.marks = SizeReads(), MarkReads(inputs.values())
        return (
            GuardCount(inputs.values(), self.most_guards),
            *([] if self.rows is None else [self.rows]),
            self.branches,
            SizedOperators(copies=MEMORY_COPIES.is_part_of(request)),
            SizeTensors(floats_decide=FLOATS_DECIDE in request.on),
            self.reads,
            self.marks,
            self.loops,
        )

    def _held(self) -> Snapshot:
        """What the model holds now, in a trace."""
        return self.lab.subject.keeper.begun.again()

    @contextlib.contextmanager
    def _own_state(self) -> Iterator[None]:
        """Inside the block stand-ins are in the places of what calls count; on exit what Python keeps
        is as before: a trace runs the model twice.
        """
        self.state, self.changes = StateReads(), ()
        model = self.lab.model
        lifted: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if isinstance(model, Stateful):
            lifted = model.lifted(self.state.stand_in)
        with lifted:
            begun = self._held()
            try:
                with self.state.of(begun, self.lab.kept.counted):
                    yield
                    self.changes = [
                        change for change in begun.changes() if not self.state.stands_for(change)
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

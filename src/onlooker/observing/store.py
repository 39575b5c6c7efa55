"""What is kept of the calls: the specs of all, the values of a few."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Call, Passing, Signature
from ..core.locks import lock_of
from ..core.recording import Recording
from ..core.structure import Structure, Tree
from ..core.surroundings import Surroundings
from ..pytrees.nodes import qualified_name
from ..pytrees.open import open_tree, opened_call, opened_result
from ..torch_internals.modes import (
    is_fx_symbolic_tracing,
    jit_tracing_state,
    number_of_function_modes,
)
from .bind import Binder
from .budget import Budget
from .copies import Copying, copy_leaves, why_without_values, without_function_modes
from .forks import Elsewhere
from .inner import method_signature
from .instead import Parts
from .ledger import Ledger
from .missed import Missed, reason
from .remove import call_without, tree_without
from .samples import Form, Sample, Samples
from .surroundings import surroundings_now
from .tracked_state import (
    Marks,
    StateTracker,
    plain_call,
    plain_sample,
    stateful_result,
    with_state_parameter,
)
from .unkept import Unkept, note_unkept
from .wrapper import Around

__all__ = ["Sample", "Store", "copy_leaves"]

logger = logging.getLogger(__name__)
_numbers = itertools.count()
_compiled: set[int] = set()


@dataclass(slots=True)
class _Begun:
    """A call that has not returned yet; ``kept`` are its inputs where its values shall be kept.

    ``marks`` are there where the state of the model is tracked.
    """

    inputs: Form
    passed: tuple[tuple[str, Passing], ...]
    surroundings: Surroundings
    form: Form
    kept: Tree[Any] | None = None
    needed: Mapping[torch.device, int] | None = None
    marks: Marks | None = None


class Store:
    """Records the calls of one method: thread-safe, and silent to the user whatever happens.

    The values of the first ``n_values`` calls are kept, and of calls that bring a new structure or
    new constants, as far as the budget goes; of the others only the specs. For a call whose values
    are not kept no operator runs and nothing waits for a device.

    With ``state``, what the calls change in the attributes of the model is an argument and a part of
    the result of each call.
    """

    def __init__(
        self,
        signature: inspect.Signature,
        recording: Recording,
        budget: Budget | None = None,
        model: Any = None,
        state: StateTracker | None = None,
    ) -> None:
        """``model`` is the object whose calls these are, ``state`` follows what it keeps."""
        self.state = state
        self._lock = lock_of(self)
        self.model = model
        self.signature = signature
        self.blocks = 0
        self.hook: contextlib.ExitStack = contextlib.ExitStack()
        self.place: Any = None
        self.number: int = next(_numbers)
        self.missed: Missed = Missed()
        self.n_others: int = 0
        self.part_calls: Counter[str] = Counter()
        self._parts: Parts | None = None
        self._elsewhere = Elsewhere()
        self._unkept: dict[Structure, Unkept] = {}
        self._entry_point = recording
        self._binder = Binder(signature)
        self._ledger = Ledger()
        self._budget = budget or Budget()
        self._kept = Samples(self._budget, self.missed)
        self._counted_bytes = 0
        self.was_compiled: bool = False
        self._sees_compiled = False
        self._inside = threading.local()
        self._cached: tuple[Any, Recording] = ((), recording)
        self._is_full = False

    @property
    def n_values(self) -> int:
        """The number of calls whose values are wanted."""
        return self._kept.n_wanted

    @n_values.setter
    def n_values(self, number: int) -> None:
        self._kept.n_wanted = number

    @property
    def samples(self) -> list[Sample]:
        """The calls whose values were kept."""
        if self.state is None:
            return self._kept.samples
        return [self.state.completed_sample(sample) for sample in self._kept.samples]

    @property
    def plain_samples(self) -> list[Sample]:
        """The kept calls as the method takes and gives them, without state."""
        if self.state is None:
            return self._kept.samples
        return [plain_sample(sample, self.state.name) for sample in self._kept.samples]

    @property
    def unkept(self) -> tuple[Unkept, ...]:
        """Tensors for which no values could be kept, the first one of each structure."""
        return tuple(self._unkept.values())

    @property
    def dropped(self) -> tuple[str, ...]:
        """What was not kept in the present block for want of room."""
        return tuple(self._kept.dropped)

    @property
    def n_counted(self) -> int:
        """The number of calls that were kept because ``store_n_calls`` asks for them."""
        return self._kept.n_counted

    @property
    def signature_value(self) -> Signature:
        """The parameters of the method."""
        return self._entry_point.signature

    @property
    def n_calls(self) -> int:
        """The number of calls so far."""
        return self._ledger.n_calls

    def beside(self, model: Any) -> Store:
        """A store for the calls of another object, with the same budget and as many values."""
        entry_point = replace(self._entry_point, calls=(), missed=())
        made = Store(self.signature, entry_point, self._budget, model)
        made.n_values = self.n_values
        return made

    def of_part(self, part: Any) -> Store:
        """A store for the calls of a part, with the same budget and as many values."""
        signature, value = method_signature(part, "forward")
        recording = Recording(qualified_name(type(part)), "forward", value)
        made = Store(signature, recording, self._budget, part)
        made.n_values = self.n_values
        return made

    def add_recording(self, recording: Recording) -> None:
        """Adds calls that were seen elsewhere: their specs, and what was missed there."""
        with self._lock:
            for call in recording.calls:
                self._ledger.add_call(call)
            for text in recording.missed:
                self.missed.add(text)

    def begin_block(self, model: Any, followed: Callable[[str, Any], Around]) -> None:
        """Counts what is called instead, until the method is called; ``followed(name, part)`` gives
        what runs around the calls of a part that has all weights.
        """
        if not self.n_calls:
            self._parts = Parts(model, followed)
            self._parts.begin()

    def end_parts(self) -> None:
        """Counts the calls of parts of the model no further."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.end()
            self.part_calls += parts.calls

    def end_block(self, method: str) -> None:
        """Notes what was not seen in the block that ends."""
        self.end_parts()
        self.n_others += self.place.n_others
        if not self.place.still_stands():
            self.missed.add(
                f"{method} was replaced inside the block: calls after that were not seen"
            )
        if self.place.n_replicas:
            self.missed.add(f"{self.place.n_replicas} calls of replicas of the model were not seen")
        was_compiled = self.number in _compiled
        _compiled.discard(self.number)
        if was_compiled and not self._sees_compiled:
            self.missed.add(
                f"{method} was compiled inside the block: calls of the compiled code were not seen"
            )
            self.was_compiled = True
        self.hook.close()

    @property
    def recording(self) -> Recording:
        """The calls so far, as a value."""
        with self._lock:
            paths = self.state.paths if self.state is not None else ()
            missed = self._missed_texts()
            state = (self._ledger.n_calls, self._ledger.n_changes, missed, paths)
            if self._cached[0] != state:
                calls = self._ledger.calls()
                signature = self._entry_point.signature
                if self.state is not None:
                    calls = tuple(map(self.state.completed_call, calls))
                    signature = with_state_parameter(signature, self.state.name)
                found = replace(self._entry_point, signature=signature, calls=calls, missed=missed)
                self._cached = state, found
            return self._cached[1]

    @property
    def plain_recording(self) -> Recording:
        """The same without the state of the calls."""
        if self.state is None:
            return self.recording
        calls = tuple(plain_call(call, self.state.name) for call in self._ledger.calls())
        return replace(self._entry_point, calls=calls, missed=self._missed_texts())

    def _missed_texts(self) -> tuple[str, ...]:
        return (*self.missed.texts(), *self._elsewhere.texts())

    def watch(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the call and records it when it has returned; an exception of the call is passed
        on.
        """
        if torch.compiler.is_compiling():
            if not torch.compiler.is_exporting():
                _note_compiled(self.number)
            return original(*args, **kwargs)
        if jit_tracing_state() is not None or is_fx_symbolic_tracing():
            return original(*args, **kwargs)
        if getattr(self._inside, "compiled", False):  # a part of a call that is recorded already
            return original(*args, **kwargs)
        if number_of_function_modes():
            return self._watch_under_modes(original, args, kwargs)
        if self._parts is not None:
            self.end_parts()
        begun = self._begin(args, kwargs)
        start = time.perf_counter()
        result = original(*args, **kwargs)
        seconds = time.perf_counter() - start
        if begun is not None:
            self._finish(begun, result, seconds)
        return result

    def watch_compiled(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """As :meth:`watch`, for the code of a model that was compiled in place."""
        self._sees_compiled = True

        def run(*args: Any, **kwargs: Any) -> Any:
            self._inside.compiled = True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside.compiled = False

        return self.watch(run, args, kwargs)

    def _watch_under_modes(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The same where the user has put a mode on that would see us reading shapes."""
        with without_function_modes():
            begun = self._begin(args, kwargs)
        start = time.perf_counter()
        result = original(*args, **kwargs)
        seconds = time.perf_counter() - start
        if begun is not None:
            with without_function_modes():
                self._finish(begun, result, seconds)
        return result

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun | None:
        if self._is_full:
            self.missed.add(
                f"a call after very many different ones was not recorded (limit: {self._budget})"
            )
            return None
        try:
            names, values, passed = self._binder(args, kwargs)
            marks = None
            if self.state is not None:
                kept, marks = self.state.before()
                names, values = (*names, self.state.name), [*values, kept]
                passed = (*passed, (self.state.name, Passing.KEYWORD))
            structure, leaves = self._ledger.inputs.open(
                names, values, lambda: opened_call(names, values)
            )
            numbers = self._ledger.numbers
            row = numbers.row(leaves)
            form = (structure, numbers.kinds(row))
            begun = _Begun((structure, row), passed, surroundings_now(), form)
            begun.marks = marks
            if self._kept.wants_more or self._kept.is_new(form):
                with self._lock:
                    keeps = self._kept.may_keep(form, (structure, numbers.wide_kinds(row)))
                if keeps:
                    begun.kept = self._copied(opened_call(names, values)[0], begun)
            return begun
        except Exception as error:
            self._miss("before a call", error)
            return None

    def _copied(self, tree: Tree[Any], begun: _Begun) -> Tree[Any] | None:
        """The tree with copies of its tensors; None where it has no values, or too many, or they
        cannot be copied.
        """
        try:
            why = why_without_values(tree.leaves)
            if why is None:
                copying = Copying(tree.leaves, self._kept.known)
                before = begun.needed or {}
                begun.needed = {d: before.get(d, 0) + n for d, n in copying.nbytes.items()}
                with self._lock:
                    if not self._kept.make_room(begun.needed, begun.form, index=self.n_calls):
                        return None
                leaves = copying.run()
                self._kept.remember(tree.leaves, leaves)
                return Tree(tree.structure, leaves)
        except Exception as error:
            why = reason(error)
        self._kept.failed(begun.form)
        note_unkept(self._unkept, self.n_calls, tree)
        self.missed.add(f"the values of a call were not kept: {why}")
        return None

    def _finish(self, begun: _Begun, result: Any, seconds: float) -> None:
        try:
            if self.state is not None and begun.marks is not None:
                after = self.state.after(begun.marks, self.n_calls)
                result = stateful_result(result, after)
            structure, leaves = self._ledger.outputs.open(
                None, (result,), lambda: opened_result(result)
            )
            row = self._ledger.numbers.row(leaves, identified=False)
            outputs = None if begun.kept is None else self._copied(open_tree(result), begun)
            with self._lock:
                self._note(begun, (structure, row), outputs, seconds)
        except Exception as error:
            self._miss("after a call", error)

    def _note(self, begun: _Begun, outputs: Form, values: Tree[Any] | None, seconds: float) -> None:
        """Notes a finished call, and keeps its values where there are some and they are still
        wanted.
        """
        if self._elsewhere.is_child:
            self._elsewhere.count()
        keeps = begun.kept is not None and values is not None
        keeps = keeps and (self._kept.wants_more or self._kept.is_new(begun.form))
        self._ledger.add(
            begun.inputs, outputs, begun.passed, seconds, begun.surroundings, alone=keeps
        )
        if self._ledger.nbytes + self._ledger.numbers.nbytes != self._counted_bytes:
            self._count_bytes()
        if keeps and begun.kept is not None and values is not None:
            call = self._ledger.last_call()
            self._kept.add(Sample(call, begun.kept, values, self._kept.wants_more), begun.form)

    def _count_bytes(self) -> None:
        """Notes what the specs take by now; from some number of different calls on no further
        ones are recorded.
        """
        total = self._ledger.nbytes + self._ledger.numbers.nbytes
        self._budget.spec_bytes += total - self._counted_bytes
        self._counted_bytes = total
        self._is_full = not self._budget.has_room_for_specs

    def _miss(self, when: str, error: Exception) -> None:
        """A call that could not be recorded is named in the recording, never in the user's run."""
        text = f"{when}: {reason(error)}"
        self.missed.add(text)
        with contextlib.suppress(Exception):
            logger.warning("A call of %s was not recorded: %s", self._entry_point.method, text)

    def remove(self, names: Collection[str]) -> int:
        """Forgets these arguments in all calls so far, and gives the number of those that a call
        had.
        """
        with self._lock:
            had = {name for call in self._ledger.calls() for name, _ in call.passed}
            self._ledger.change(lambda call: call_without(call, names))
            by_index = {call.index: call for call in self._ledger.calls()}
            samples = [
                self._without(sample, by_index[sample.call.index], names)
                for sample in self._kept.samples
            ]
            self._kept.replace(samples, self._ledger.input_forms())
        return len(had & set(names))

    @staticmethod
    def _without(sample: Sample, call: Call, names: Collection[str]) -> Sample:
        inputs = tree_without(sample.inputs, names)
        altered = sample.altered or len(inputs.structure.entries) < len(
            sample.inputs.structure.entries
        )
        return replace(sample, call=call, inputs=inputs, altered=altered)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _note_compiled(number: int) -> bool:
    """Runs once, when torch compiles a call: the compiled code calls no wrapper any more."""
    _compiled.add(number)
    return True

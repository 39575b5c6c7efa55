"""The store of the calls of a model: the specs of all, the values of a few."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from ..core.call import Call, Passing, Signature
from ..core.recording import Recording
from ..core.structure import Structure, Tree
from ..pytrees.nodes import qualified_name
from ..pytrees.open import open_tree
from .budget import MemoryBudget
from .call_recorder import BegunCall, BoundCall, CallRecorder
from .copies import Copying, copy_leaves, why_without_values
from .ledger import Form
from .remove import call_without, tree_without
from .samples import Sample, Samples
from .tracked_state import (
    Marks,
    StateTracker,
    plain_call,
    plain_sample,
    stateful_result,
    with_state_parameter,
)
from .unrecorded_calls import reason
from .unsaved_values import UnsavedValues, note_unsaved
from .wrapped_model import method_signature
from .wrapping.forked_calls import ForkedCalls
from .wrapping.submodule_calls import SubmoduleCalls
from .wrapping.wrapper import Around

__all__ = ["Sample", "Store", "copy_leaves"]

logger = logging.getLogger(__name__)
_numbers = itertools.count()
_compiled: set[int] = set()


class Store(CallRecorder):
    """Records the calls of one method of a model that is watched.

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
        budget: MemoryBudget | None = None,
        model: Any = None,
        state: StateTracker | None = None,
    ) -> None:
        """``model`` is the object whose calls these are, ``state`` follows what it keeps."""
        super().__init__(signature)
        self.state = state
        self.model = model
        self.signature = signature
        self.blocks = 0
        self.hook: contextlib.ExitStack = contextlib.ExitStack()
        self.place: Any = None
        self.number: int = next(_numbers)
        self.n_others: int = 0
        self.part_calls: Counter[str] = Counter()
        self._parts: SubmoduleCalls | None = None
        self._forked = ForkedCalls()
        self._unsaved: dict[Structure, UnsavedValues] = {}
        self._entry_point = recording
        self._budget = budget or MemoryBudget()
        self._kept = Samples(self._budget, self.unrecorded)
        self._counted_bytes = 0
        self.was_compiled: bool = False
        self._sees_compiled = False
        self._inside = threading.local()
        self._cached: tuple[Any, Recording] = ((), recording)

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
    def unsaved(self) -> tuple[UnsavedValues, ...]:
        """Tensors for which no values could be kept, the first one of each structure."""
        return tuple(self._unsaved.values())

    @property
    def dropped(self) -> tuple[str, ...]:
        """The values that were not kept in the present block for want of room."""
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
        return self.ledger.n_calls

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
                self.ledger.add_call(call)
            for text in recording.missed:
                self.unrecorded.add(text)

    def begin_block(self, model: Any, followed: Callable[[str, Any], Around]) -> None:
        """Counts what is called instead, until the method is called; ``followed(name, part)`` gives
        what runs around the calls of a part that has all weights.
        """
        if not self.n_calls:
            self._parts = SubmoduleCalls(model, followed)
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
            self.unrecorded.add(
                f"{method} was replaced inside the block: calls after that were not seen"
            )
        if self.place.n_replicas:
            self.unrecorded.add(
                f"{self.place.n_replicas} calls of replicas of the model were not seen"
            )
        was_compiled = self.number in _compiled
        _compiled.discard(self.number)
        if was_compiled and not self._sees_compiled:
            self.unrecorded.add(
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
            state = (self.ledger.n_calls, self.ledger.n_changes, missed, paths)
            if self._cached[0] != state:
                calls = self.ledger.calls()
                signature = self._entry_point.signature
                if self.state is not None:
                    calls = tuple(map(self.state.completed_call, calls))
                    signature = with_state_parameter(signature, self.state.name)
                found = replace(self._entry_point, signature=signature, calls=calls, missed=missed)
                self._cached = state, found
            return self._cached[1]

    @property
    def plain_recording(self) -> Recording:
        """Returns the recording without the state of the calls."""
        if self.state is None:
            return self.recording
        calls = tuple(plain_call(call, self.state.name) for call in self.ledger.calls())
        return replace(self._entry_point, calls=calls, missed=self._missed_texts())

    def _missed_texts(self) -> tuple[str, ...]:
        return (*self.unrecorded.texts(), *self._forked.texts())

    @contextlib.contextmanager
    def wanting(self, wanted: bool) -> Iterator[None]:
        """Inside the block the values of calls in this thread are wanted, or those of new kinds
        alone.
        """
        self._inside.passes_over = not wanted
        try:
            yield
        finally:
            self._inside.passes_over = False

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
        if getattr(self._inside, "compiled", False):  # a part of a call that is recorded already
            return original(*args, **kwargs)
        return super().watch(original, args, kwargs)

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

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BegunCall | None:
        if self._parts is not None:
            self.end_parts()
        if not self._has_room:
            self.unrecorded.add(
                f"a call after very many different ones was not recorded (limit: {self._budget})"
            )
            return None
        return super()._begin(args, kwargs)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        names, values, passed = self._binder(args, kwargs)
        if self.state is None:
            return names, values, passed, None
        kept, marks = self.state.before()
        given = (self.state.name, Passing.KEYWORD)
        return (*names, self.state.name), [*values, kept], (*passed, given), marks

    def _completed(self, seen: Marks, result: Any) -> Any:
        assert self.state is not None
        return stateful_result(result, self.state.after(seen, self.n_calls))

    def _look_at(self, begun: BegunCall, tree: Callable[[], Tree[Any]]) -> None:
        is_counted = self._kept.wants_more and not getattr(self._inside, "passes_over", False)
        wanted = is_counted or self._kept.is_new(begun.kind)
        if begun.inputs is None or not wanted:
            return
        structure, row = begun.inputs
        with self._lock:
            wide = structure, self.ledger.numbers.wide_kinds(row)
            keeps = self._kept.may_keep(begun.kind, wide)
        if keeps:
            begun.kept = self._copied(tree(), begun)

    def _copied(self, tree: Tree[Any], begun: BegunCall) -> Tree[Any] | None:
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
                    if not self._kept.make_room(begun.needed, begun.kind, index=self.n_calls):
                        return None
                leaves = copying.run()
                self._kept.remember(tree.leaves, leaves)
                return Tree(tree.structure, leaves)
        except Exception as error:
            why = reason(error)
        self._kept.failed(begun.kind)
        note_unsaved(self._unsaved, self.n_calls, tree)
        self.unrecorded.add(f"the values of a call were not kept: {why}")
        return None

    def _note(self, begun: BegunCall, outputs: Form | None, result: Any, seconds: float) -> None:
        """Notes a finished call, and keeps its values where there are some and they are still
        wanted.
        """
        if begun.inputs is None or outputs is None:  # there is room for each call that begins
            return
        kept = begun.kept
        values = None if kept is None else self._copied(open_tree(result), begun)
        with self._lock:
            if self._forked.is_child:
                self._forked.count()
            keeps = values is not None and (self._kept.wants_more or self._kept.is_new(begun.kind))
            self.ledger.add(begun.inputs, outputs, begun.made, seconds, alone=keeps)
            if self.ledger.nbytes + self.ledger.numbers.nbytes != self._counted_bytes:
                self._count_bytes()
            if keeps and kept is not None and values is not None:
                call = self.ledger.last_call()
                self._kept.add(Sample(call, kept, values, self._kept.wants_more), begun.kind)

    def _count_bytes(self) -> None:
        """Notes what the specs take by now; from some number of different calls on no further
        ones are recorded.
        """
        total = self.ledger.nbytes + self.ledger.numbers.nbytes
        self._budget.spec_bytes += total - self._counted_bytes
        self._counted_bytes = total
        self._has_room = self._budget.has_room_for_specs

    def _fail(self, text: str) -> None:
        super()._fail(text)
        with contextlib.suppress(Exception):
            logger.warning("A call of %s was not recorded: %s", self._entry_point.method, text)

    def remove(self, names: Collection[str]) -> int:
        """Forgets these arguments in all calls so far, and gives the number of those that a call
        had.
        """
        with self._lock:
            had = {name for call in self.ledger.calls() for name, _ in call.passed}
            self.ledger.change(lambda call: call_without(call, names))
            by_index = {call.index: call for call in self.ledger.calls()}
            samples = [
                self._without(sample, by_index[sample.call.index], names)
                for sample in self._kept.samples
            ]
            self._kept.replace(samples, self.ledger.input_forms())
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

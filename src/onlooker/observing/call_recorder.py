"""Records the calls of one method: how each was made, and the specs of its arguments and its result.

What is to become of the calls is the matter of a subclass: the store of an observer keeps values of
them, the recorder of `onlooker run` keeps their order until it is written into a file.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from ..core.call import Passed
from ..core.structure import Tree
from ..core.support.locks import lock_of
from ..pytrees.open import opened_call, opened_result
from ..torch_internals.modes import (
    is_fx_symbolic_tracing,
    jit_tracing_state,
    number_of_function_modes,
)
from .bind import Binder
from .copies import without_function_modes
from .ledger import Form, Ledger, Made
from .surroundings import surroundings_now
from .unrecorded_calls import UnrecordedCalls, reason

__all__ = ["BegunCall", "CallRecorder"]

#: the names of arguments in the order of the signature, their values, how each came, and what a subclass
#: sees of the model before the call
BoundCall: TypeAlias = tuple[tuple[str, ...], list[Any], Passed, Any]


@dataclass(slots=True)
class BegunCall:
    """A call that has not returned yet.

    ``has_room`` is False where no further calls are told from each other; ``inputs`` are None where the
    call has new specs then. ``kind`` is the kind of call that it is. ``kept`` are its inputs where its
    values shall be kept, which take the bytes ``needed`` of each device. ``seen`` is what a subclass has
    seen of the call.
    """

    inputs: Form | None
    made: Made
    has_room: bool
    seen: Any
    kind: Form = (0, ())
    kept: Tree[Any] | None = None
    needed: dict[torch.device, int] | None = None


class CallRecorder:
    """Records calls: thread-safe, and silent to the user whatever happens.

    No operator runs and nothing waits for a device, but where a subclass looks at values.
    """

    def __init__(self, signature: inspect.Signature) -> None:
        self._lock = lock_of(self)  # first: the locks of the others are taken inside of it
        self.ledger: Ledger = Ledger()
        self.unrecorded: UnrecordedCalls = UnrecordedCalls()
        self._binder = Binder(signature)
        #: False where no further calls are told from each other
        self._has_room: bool = True

    def watch(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the call and records it when it has returned; an exception of the call is passed
        on.
        """
        if jit_tracing_state() is not None or is_fx_symbolic_tracing():
            return original(*args, **kwargs)
        # a mode of the user would see us reading shapes
        has_modes = number_of_function_modes() > 0
        begun = (_outside_modes(self._begin) if has_modes else self._begin)(args, kwargs)
        start = time.perf_counter()
        result = original(*args, **kwargs)
        seconds = time.perf_counter() - start
        if begun is not None:
            (_outside_modes(self._finish) if has_modes else self._finish)(begun, result, seconds)
        return result

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BegunCall | None:
        try:
            names, values, passed, seen = self._bound(args, kwargs)
            structure, leaves = self.ledger.inputs.open(
                names, values, lambda: opened_call(names, values)
            )
            numbers, has_room = self.ledger.numbers, self._has_room
            row = numbers.row(leaves) if has_room else numbers.known_row(leaves)
            made = passed, surroundings_now()
            if row is None:
                return BegunCall(None, made, has_room, seen)
            kind = structure, numbers.kinds(row)
            begun = BegunCall((structure, row), made, has_room, seen, kind)
            self._look_at(begun, lambda: opened_call(names, values)[0])
            return begun
        except Exception as error:
            self._fail(f"before a call: {reason(error)}")
            return None

    def _finish(self, begun: BegunCall, result: Any, seconds: float) -> None:
        try:
            if begun.seen is not None:
                result = self._completed(begun.seen, result)
            structure, leaves = self.ledger.outputs.open(
                None, (result,), lambda: opened_result(result)
            )
            numbers = self.ledger.numbers
            row_of = numbers.row if begun.has_room else numbers.known_row
            row = row_of(leaves, identified=False)
            outputs = None if row is None else (structure, row)
            self._note(begun, outputs, result, seconds)
        except Exception as error:
            self._fail(f"after a call: {reason(error)}")

    def _fail(self, text: str) -> None:
        """A call that could not be recorded is named in the recording, never in the user's run."""
        self.unrecorded.add(text)

    # ------------------------------------------------------------- what a subclass does otherwise

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        """The arguments, and what is seen of the model before the call."""
        return *self._binder(args, kwargs), None

    def _look_at(self, begun: BegunCall, tree: Callable[[], Tree[Any]]) -> None:
        """Looks at the values of the arguments, and may keep them; ``tree()`` opens them."""
        raise NotImplementedError

    def _completed(self, seen: Any, result: Any) -> Any:
        """The result, with what is seen of the model after the call."""
        return result

    def _note(self, begun: BegunCall, outputs: Form | None, result: Any, seconds: float) -> None:
        """Notes a finished call; ``outputs`` are None where they have new specs and there is no room."""
        raise NotImplementedError


def _outside_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with the modes of the user off."""

    def run(*args: Any) -> Any:
        with without_function_modes():
            return function(*args)

    return run

"""What is kept of the calls: the specs of all, the values of a few."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Call, Passing
from ..core.recording import Recording
from ..core.structure import Structure, Tree
from ..pytrees.open import close_tree, open_arguments, open_tree, spec_of
from .bind import bind
from .remove import call_without, tree_without

__all__ = ["Sample", "Store", "copy_leaves"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one call: its arguments by name as they were before the call, and its result.

    ``counted`` is False for a call that was kept beyond the number asked for, because it brought something new.
    """

    call: Call
    inputs: Tree[Any]
    outputs: Tree[Any]
    counted: bool = True

    def arguments(self) -> dict[str, Any]:
        """A fresh copy of the arguments, so that a model may change them in place."""
        copied: dict[str, Any] = close_tree(self.inputs.structure, copy_leaves(self.inputs.leaves))
        return copied


def copy_leaves(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """The leaves with every tensor copied; a tensor that stands at two places stays one tensor."""
    memo: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
                memo[id(leaf)] = leaf.detach().clone()
    return tuple(memo.get(id(leaf), leaf) for leaf in leaves)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A call that has not returned yet."""

    inputs: Tree[Any]
    specs: Tree[Any]
    passed: tuple[tuple[str, Passing], ...]
    keep: bool


class Store:
    """Records the calls of one method: thread-safe, and silent to the user whatever happens.

    The values of the first ``n_values`` calls are kept, and of every call that brings a new structure or
    new constants; of the others only the specs.
    """

    def __init__(self, signature: inspect.Signature, recording: Recording) -> None:
        self.signature = signature
        self.samples: list[Sample] = []
        self.n_values = 0
        self._entry_point = recording
        self._calls: list[Call] = []
        self._missed: list[str] = []
        self._forms: set[Any] = set()
        self._structures: dict[Structure, Structure] = {}
        self._lock = threading.Lock()

    @property
    def n_counted(self) -> int:
        """The number of calls that were kept because ``store_n_calls`` asks for them."""
        return sum(sample.counted for sample in self.samples)

    @property
    def recording(self) -> Recording:
        """The calls so far, as a value."""
        with self._lock:
            return replace(self._entry_point, calls=tuple(self._calls), missed=tuple(self._missed))

    def watch(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs the call and records it when it has returned; an exception of the call is passed on."""
        if torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return original(*args, **kwargs)
        begun = self._begin(args, kwargs)
        start = time.perf_counter()
        result = original(*args, **kwargs)
        seconds = time.perf_counter() - start
        if begun is not None:
            self._finish(begun, result, seconds)
        return result

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun | None:
        try:
            values, passed = bind(self.signature, args, kwargs)
            inputs = open_arguments(values)
            specs = Tree(inputs.structure, tuple(map(spec_of, inputs.leaves)))
            with self._lock:
                keep = self.n_counted < self.n_values or self._form(specs) not in self._forms
            kept = copy_leaves(inputs.leaves) if keep else ()
            return _Begun(Tree(inputs.structure, kept), specs, passed, keep)
        except Exception as error:
            self._miss("before", error)
            return None

    def _finish(self, begun: _Begun, result: Any, seconds: float) -> None:
        try:
            outputs = open_tree(result)
            specs = Tree(outputs.structure, tuple(map(spec_of, outputs.leaves)))
            kept = copy_leaves(outputs.leaves) if begun.keep else ()
            with self._lock:
                call = Call(len(self._calls), self._shared(begun.specs), self._shared(specs), begun.passed, seconds)
                self._calls.append(call)
                self._forms.add(self._form(begun.specs))
                if begun.keep:
                    counted = self.n_counted < self.n_values
                    self.samples.append(Sample(call, begun.inputs, Tree(outputs.structure, kept), counted))
        except Exception as error:
            self._miss("after", error)

    def _miss(self, when: str, error: Exception) -> None:
        """A call that could not be recorded is named in the recording, never in the user's run."""
        text = f"{when} a call: {type(error).__name__}: {error}"
        logger.warning("A call of %s was not recorded: %s", self._entry_point.method, text)
        with self._lock:
            self._missed.append(text)

    def remove(self, names: Collection[str]) -> int:
        """Forgets these arguments in all calls so far, and gives the number of those that a call had."""
        with self._lock:
            calls = [call_without(call, names) for call in self._calls]
            by_index = {call.index: call for call in calls}
            had = {name for call in self._calls for name, _ in call.passed}
            self.samples = [
                replace(sample, call=by_index[sample.call.index], inputs=tree_without(sample.inputs, names))
                for sample in self.samples
            ]
            self._calls = calls
            self._forms |= {self._form(call.inputs) for call in calls}
        return len(had & set(names))

    def _shared(self, specs: Tree[Any]) -> Tree[Any]:
        """The same specs, with one object for all structures that are equal."""
        return Tree(self._structures.setdefault(specs.structure, specs.structure), specs.leaves)

    @staticmethod
    def _form(specs: Tree[Any]) -> tuple[Structure, tuple[Any, ...]]:
        """What makes a call a new kind of call: its structure, its constants, the ranks of its tensors."""
        return specs.structure, tuple(
            (spec.dtype, len(spec.shape))
            if hasattr(spec, "shape")
            else None
            if getattr(spec, "is_int", False)
            else spec
            for spec in specs.leaves
        )

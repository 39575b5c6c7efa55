"""The calls of one entry point in one process, until they are written."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.call import Passing
from ..core.locks import lock_of
from ..core.structure import Tree
from ..core.surroundings import Surroundings
from ..materialise.facts import Shown, shown_by
from ..observing.bind import Binder
from ..observing.copies import (
    copy_leaves,
    unseen,
    why_without_values,
    without_function_modes,
)
from ..observing.inner import model_inside
from ..observing.ledger import Ledger, Row
from ..observing.missed import Missed, reason
from ..observing.surroundings import surroundings_now
from ..pytrees.open import opened_call, opened_result
from ..torch_internals.modes import (
    is_fx_symbolic_tracing,
    jit_tracing_state,
    number_of_function_modes,
)
from .entry_point import EntryPoint

__all__ = ["News", "Recorder"]

#: calls of which the order is kept, in each process; of further ones only the number
MOST_ORDERED = 200_000
#: calls of each kind whose values are looked at, and kept where values are asked for
_MOST_VALUES = 3
#: kinds of calls whose values are looked at
_MOST_KINDS = 16


@dataclass(slots=True)
class News:
    """What came since the last look.

    ``runs`` are calls in their order: the row of a call, how many followed each other, and their
    seconds. ``counts`` are those whose order is not kept, by row. ``others`` are the number and the
    seconds of calls after too many different ones. ``ranges`` are, by the path of a tensor, what its
    values show: the least and the greatest, and whether they count, or are a mask. ``values`` are
    those of the arguments of calls, by row.
    """

    runs: list[list[Any]] = field(default_factory=list)
    counts: dict[int, list[Any]] = field(default_factory=dict)
    others: list[Any] = field(default_factory=lambda: [0, 0.0])
    ranges: list[tuple[str, Shown]] = field(default_factory=list)
    values: list[tuple[int, Tree[Any]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.counts or self.others[0] or self.ranges or self.values)


@dataclass(slots=True)
class _Begun:
    """A call that has not returned yet; ``row`` is None where there are too many different ones."""

    structure: int
    row: Row | None
    passed: tuple[tuple[str, Passing], ...]
    surroundings: Surroundings
    ranges: tuple[tuple[str, Shown], ...] = ()
    kept: Tree[Any] | None = None


class Recorder:
    """Records specs, numbers and seconds of calls: thread-safe, and silent to the program whatever
    happens.

    At most ``most_specs`` different calls are told from each other. Of the first calls of each kind
    the values of the arguments are kept where ``keeps_values``.
    """

    def __init__(
        self,
        entry: EntryPoint,
        signature: inspect.Signature,
        *,
        most_specs: int,
        keeps_values: bool = False,
    ) -> None:
        self.entry = entry
        self.ledger: Ledger = Ledger()
        self.missed: Missed = Missed()
        self.models: list[Any] = []
        self.places: Counter[str] = Counter()
        self.callers: Counter[str] = Counter()
        self.is_over = False
        self._binder = Binder(signature)
        self._most = most_specs
        self._keeps_values = keeps_values
        self._kept: Counter[Any] = Counter()
        self._lock = lock_of(self)
        self._news = News()
        self._told: tuple[str, ...] = ()
        self._n_ordered = 0

    @property
    def has_news(self) -> bool:
        """True where a call came, or was missed, since the last time."""
        return bool(self._news) or self.missed.texts() != self._told

    def take(self) -> News:
        """What came since the last time."""
        with self._lock:
            news, self._news = self._news, News()
        self._told = self.missed.texts()
        return news

    def watch(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs the call, of the object ``args[0]``, and records it when it has returned; an
        exception is passed on.
        """
        if jit_tracing_state() is not None or is_fx_symbolic_tracing():
            return original(*args, **kwargs)
        modes = number_of_function_modes()
        if modes:
            with without_function_modes():
                begun = self._begin(args, kwargs)
        else:
            begun = self._begin(args, kwargs)
        start = time.perf_counter()
        result = original(*args, **kwargs)
        seconds = time.perf_counter() - start
        if begun is not None and not self.is_over:
            if modes:
                with without_function_modes():
                    self._finish(begun, result, seconds)
            else:
                self._finish(begun, result, seconds)
        return result

    @property
    def _is_full(self) -> bool:
        ledger = self.ledger
        return len(ledger.entries) >= self._most or len(ledger.numbers) >= 16 * self._most

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Begun | None:
        try:
            names, values, passed = self._binder(*_named(args, kwargs))
            structure, leaves = self.ledger.inputs.open(
                names, values, lambda: opened_call(names, values)
            )
            numbers = self.ledger.numbers
            row = numbers.known_row(leaves) if self._is_full else numbers.row(leaves)
            begun = _Begun(structure, row, passed, surroundings_now())
            if row is not None:
                kind = structure, numbers.kinds(row)
                if self._kept[kind] < _MOST_VALUES and len(self._kept) <= _MOST_KINDS:
                    self._kept[kind] += 1
                    self._look_at(begun, opened_call(names, values)[0])
            return begun
        except Exception as error:
            self.missed.add(f"before a call: {reason(error)}")
            return None

    def _look_at(self, begun: _Begun, tree: Tree[Any]) -> None:
        """Notes what the values of one of the first calls of a kind show, and keeps them where that
        was asked for.
        """
        why = why_without_values(tree.leaves)
        if why is not None:
            self.missed.add(f"the values of a call were not looked at: {why}")
            return
        with unseen():
            shown = [(path.code(), shown_by(leaf)) for path, leaf in tree.items()]
        begun.ranges = tuple((path, one) for path, one in shown if one is not None)
        if self._keeps_values:
            with unseen():
                begun.kept = Tree(tree.structure, copy_leaves(tree.leaves))

    def _finish(self, begun: _Begun, result: Any, seconds: float) -> None:
        try:
            structure, leaves = self.ledger.outputs.open(
                None, (result,), lambda: opened_result(result)
            )
            numbers, is_full = self.ledger.numbers, self._is_full
            if is_full:
                row = numbers.known_row(leaves, identified=False)
            else:
                row = numbers.row(leaves, identified=False)
            with self._lock:
                position = self._position(begun, structure, row, seconds, is_full=is_full)
                if position is None:
                    self._news.others[0] += 1
                    self._news.others[1] += seconds
                    return
                self._note(position, seconds)
                self._news.ranges += begun.ranges
                if begun.kept is not None:
                    self._news.values.append((position, begun.kept))
        except Exception as error:
            self.missed.add(f"after a call: {reason(error)}")

    def _position(
        self, begun: _Begun, structure: int, row: Row | None, seconds: float, *, is_full: bool
    ) -> int | None:
        """The row of the call among the different ones; None where it is one too many."""
        if begun.row is None or row is None:
            return None
        inputs, outputs = (begun.structure, begun.row), (structure, row)
        if is_full:
            return self.ledger.position_of(inputs, outputs, begun.passed, begun.surroundings)
        return self.ledger.add(
            inputs, outputs, begun.passed, seconds, begun.surroundings, alone=False
        )

    def _note(self, position: int, seconds: float) -> None:
        runs = self._news.runs
        if runs and runs[-1][0] == position:
            runs[-1][1] += 1
            runs[-1][2] += seconds
        elif self._n_ordered < MOST_ORDERED:
            self._n_ordered += 1
            runs.append([position, 1, seconds])
        else:
            count = self._news.counts.setdefault(position, [0, 0.0])
            count[0] += 1
            count[1] += seconds


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as the model takes them: a wrapper with a signature of its own has other
    positions.
    """
    if len(args) == 1 or model_inside(args[0]) is args[0]:
        return args[1:], kwargs
    own = inspect.signature(args[0].forward)
    if any(p.kind is p.VAR_POSITIONAL for p in own.parameters.values()):
        return args[1:], kwargs
    names = list(own.parameters)
    return (), {**dict(zip(names, args[1:], strict=False)), **kwargs}

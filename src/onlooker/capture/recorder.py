"""The calls of one entry point in one process, until they are written."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..core.structure import Tree
from ..core.support.kinds import ArgsKwargs
from ..materialise.facts import TensorFacts, facts_of
from ..observing.call_recorder import BegunCall, BoundCall, CallRecorder
from ..observing.copies import copy_leaves, unseen, why_without_values
from ..observing.ledger import Form
from ..observing.wrapped_model import model_inside
from .entry_point import EntryPoint

__all__ = ["EntryRecorder", "News"]

#: calls of which the order is kept, in each process; of further ones only the number
MOST_ORDERED = 200_000
#: calls of each kind whose values are looked at, and kept where values are asked for
_MOST_VALUES = 3
#: kinds of calls whose values are looked at
_MOST_KINDS = 16


@dataclass(slots=True)
class News:
    """The rows that a recorder added since the last look.

    ``runs`` are calls in their order: the row of a call, how many followed each other, and their
    seconds. ``counts`` are those whose order is not kept, by row. ``others`` are the number and the
    seconds of calls after too many different ones. ``ranges`` are, by the path of a tensor, what its
    values show: the least and the greatest, and whether they count, or are a mask. ``values`` are
    those of the arguments of calls, by row.
    """

    runs: list[list[Any]] = field(default_factory=list)
    counts: dict[int, list[Any]] = field(default_factory=dict)
    others: list[Any] = field(default_factory=lambda: [0, 0.0])
    ranges: list[tuple[str, TensorFacts]] = field(default_factory=list)
    values: list[tuple[int, Tree[Any]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.counts or self.others[0] or self.ranges or self.values)


class EntryRecorder(CallRecorder):
    """Records specs, numbers and seconds of the calls of one entry point.

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
        super().__init__(signature)
        self.entry = entry
        self.models: list[Any] = []
        self.places: Counter[str] = Counter()
        self.callers: Counter[str] = Counter()
        self.is_over = False
        self._most = most_specs
        self._keeps_values = keeps_values
        self._kept: Counter[Any] = Counter()
        self._news = News()
        self._told: tuple[str, ...] = ()
        self._n_ordered = 0

    @property
    def has_news(self) -> bool:
        """True where a call came, or was missed, since the last time."""
        return bool(self._news) or self.unrecorded.texts() != self._told

    def take(self) -> News:
        """Returns the calls and the ranges that came since the last time."""
        with self._lock:
            news, self._news = self._news, News()
        self._told = self.unrecorded.texts()
        return news

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BoundCall:
        ledger = self.ledger
        has_rows = len(ledger.entries) < self._most
        self._has_room = has_rows and len(ledger.numbers) < 16 * self._most
        return *self._binder(*_named(args, kwargs)), None

    def _look_at(self, begun: BegunCall, tree: Callable[[], Tree[Any]]) -> None:
        """Notes what the values of one of the first calls of a kind show, and keeps them where that
        was asked for.
        """
        if self._kept[begun.kind] >= _MOST_VALUES or len(self._kept) > _MOST_KINDS:
            return
        self._kept[begun.kind] += 1
        opened = tree()
        why = why_without_values(opened.leaves)
        if why is not None:
            self.unrecorded.add(f"the values of a call were not looked at: {why}")
            return
        with unseen():
            shown = [(path.code(), facts_of(leaf)) for path, leaf in opened.items()]
            if self._keeps_values:
                begun.kept = Tree(opened.structure, copy_leaves(opened.leaves))
        begun.seen = tuple((path, one) for path, one in shown if one is not None)

    def _note(self, begun: BegunCall, outputs: Form | None, result: Any, seconds: float) -> None:
        if self.is_over:
            return
        with self._lock:
            position = None
            if begun.inputs is not None and outputs is not None:
                position = self.ledger.add(
                    begun.inputs, outputs, begun.made, seconds, has_room=begun.has_room
                )
            if position is None:
                self._news.others[0] += 1
                self._news.others[1] += seconds
                return
            self._count(position, seconds)
            self._news.ranges += begun.seen or ()
            if begun.kept is not None:
                self._news.values.append((position, begun.kept))

    def _count(self, position: int, seconds: float) -> None:
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


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgsKwargs:
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

"""The changes in Python that calls of a model leave behind: found while a watched call is run
again.

The call is run twice in a row. What the first run changes and the second one changes once more, a
counter or a list that grows, is *counted*: no later call finds it as it was. What the second run leaves
alone, a table for a size or the last result, is *remembered*. A tensor that both put there, though
maybe with the same values, is *renewed*: the greatest value so far, or the last result. So is a
list or another container of tensors. Where None stood before the first run it is counted, too: a model
may ask whether a call came before.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.call import Arguments
from ..core.drawing.alike import named_few
from ..observing.effects import MISSING, Effect
from ..observing.module_state import are_equal
from ..observing.reach import Snapshot
from ..torch_internals.tensor_marks import memories_in
from ..torch_internals.trees import tree_leaves

__all__ = ["MOST_SIDES", "Kept", "Side"]

#: calls of further sizes that are kept, since they leave behind what no watched call does
MOST_SIDES = 4
_MOST_NAMED = 2


@dataclass(frozen=True, slots=True)
class Side:
    """The arguments of a call that leaves behind what no watched call does, where it leaves that, and
    why the call is refused; None for one that is served.
    """

    arguments: Arguments
    places: tuple[str, ...]
    refusal: Exception | None = None

    def __str__(self) -> str:
        shapes = [
            f"{name} {list(value.shape)}"
            for name, value in self.arguments.items()
            if isinstance(value, torch.Tensor)
        ]
        places = named_few(self.places, _MOST_NAMED)
        return f"a call of {named_few(shapes, _MOST_NAMED)}, which changes {places}"


@dataclass(slots=True)
class Kept:
    """The places that calls change, by path: all of them, the ``counted`` ones, and the ``renewed``
    ones, which get another tensor in each run. ``lifted`` are
    those of them that only traces change, ``sides`` further calls, which leave behind what no watched call does.
    ``is_of_all_calls`` says that each kept call was run again, and not only the first and the last one.
    ``difference`` says how a call after another one gives another result than it does by itself, or why
    that is unknown; it is empty where none was found.
    """

    changes: dict[str, Effect] = field(default_factory=dict)
    counted: dict[str, Effect] = field(default_factory=dict)
    renewed: dict[str, Effect] = field(default_factory=dict)
    lifted: set[str] = field(default_factory=set)
    sides: list[Side] = field(default_factory=list)
    is_of_all_calls: bool = False
    difference: str = ""

    @property
    def remembered(self) -> dict[str, Effect]:
        """The changes that are not *counted*: those that are *remembered*, or *renewed*."""
        return {path: change for path, change in self.changes.items() if path not in self.counted}

    @property
    def sizes(self) -> frozenset[int]:
        """The sizes that stood in the places of what is *remembered*, before the calls."""
        held = tree_leaves([change.before for change in self.remembered.values()])
        shapes = [one.shape for one in held if isinstance(one, torch.Tensor)]
        return frozenset(size for size in (*itertools.chain(*shapes), *held) if type(size) is int)

    def look_at(self, model: Any, begun: Snapshot, run_again: Callable[[], Any]) -> None:
        """Notes what a run has changed since it has begun, from inside of it; ``run_again`` makes a
        second one.
        """
        first = _unwritten(begun.effects())
        if not first:
            return
        self.changes.update(first)
        after = Snapshot.of(model, copies=False)
        with contextlib.suppress(Exception):  # a call that only the first state takes
            run_again()
        effects = list(after.effects())
        # a tensor that the first run put there, and the second one writes to
        for change in effects:
            if change.is_write and change.place in first:
                self.counted[change.place] = self.changes[change.place]
        for path, change in _unwritten(effects).items():
            had_no_tensor = path in first and not memories_in(first[path].before)
            is_renewed = not memories_in(change.after) <= memories_in(change.before)
            if not _is_equal(change.before, change.after) or (had_no_tensor and is_renewed):
                self.changes.setdefault(path, change)
                self.counted[path] = self.changes[path]
            elif path in first and is_renewed:
                self.renewed[path] = first[path]
        # a queue that is full: its last item is that of the last call, and moves on with the next one
        for path, change in self.changes.items():
            if any(_is_in_one_queue(change, other) for other in list(self.counted.values())):
                self.counted[path] = change

    def add_side(self, side: Side) -> None:
        """Keeps a call that leaves behind what no watched call does; of served ones a few."""
        if len(self.sides) < MOST_SIDES or side.refusal is not None:
            self.sides.append(side)

    def lift(self, changes: Iterable[Effect]) -> None:
        """Counts what a trace changes among what calls count, to see whether a trace reads it."""
        for change in changes:
            self.changes[change.place] = self.counted[change.place] = change
            self.lifted.add(change.place)

    def settle(self, paths: Iterable[str]) -> None:
        """Takes back what :meth:`lift` did."""
        for path in paths:
            self.lifted.discard(path)
            self.counted.pop(path, None)
            self.changes.pop(path, None)


def _is_in_one_queue(left: Effect, right: Effect) -> bool:
    """True for items of one list or deque."""
    one, other = left.holder, right.holder
    if one is None or other is None or not isinstance(one.value, (list, collections.deque)):
        return False
    return type(left.key) is int and type(right.key) is int and one.is_about(other)


def _unwritten(effects: Iterable[Effect]) -> Mapping[str, Effect]:
    """The changes by path, but for writes to tensors: a graph carries those to buffers."""
    return {change.place: change for change in effects if not change.is_write}


def _is_equal(left: Any, right: Any) -> bool:
    if left is MISSING or right is MISSING:
        return left is right
    try:
        return are_equal(left, right)
    except Exception:  # a class of the user's that cannot be compared
        return False

"""What Python keeps from one step of a loop to the next: numbers, and what containers hold.

A rolled loop runs some steps only, so whatever counts them would be another number in a call. All that
the model and its frames hold is compared after the last step with what it was after the first one.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType, GeneratorType
from typing import Any

import torch

from ...model_source.frames import is_code_of_model, is_own_code
from ...model_source.source_tests import tree_of
from ...observing.reach import Snapshot
from .loop_lists import counted_by
from .steps import Loop

__all__ = ["check_kept", "frames_of_model", "may_count", "numbers_in"]


def frames_of_model(frame: FrameType | None) -> list[FrameType]:
    """The frame of the loop and those that called it, as far as they run code of the model."""
    found = []
    while frame is not None:
        if is_code_of_model(frame.f_code.co_filename):
            found.append(frame)
        elif found and is_own_code(frame.f_code.co_filename):
            break  # that is where the model was called
        frame = frame.f_back
    return found


def numbers_in(frames: Iterable[FrameType]) -> dict[str, str]:
    """The numbers among the local names of frames, as text."""
    kinds = (bool, int, float, str, torch.SymInt, torch.SymFloat)
    return {
        f"{depth} {name}": str(value)
        for depth, frame in enumerate(frames)
        for name, value in frame.f_locals.items()
        if isinstance(value, kinds)
    }


def check_kept(loop: Loop, kept: Snapshot, frames: Sequence[FrameType], *, follows: bool) -> None:
    """Passes where Python keeps nothing from the steps but results: lists with one of each step,
    which nobody counts, and tensors in the place of others. ``follows`` is True where a trace rolled
    the loop before.

    :raises NotRolledError: where it keeps something else, as a count
    """
    added = len(loop.steps) - 1
    grown: list[Any] = []
    for change in kept.effects():
        if isinstance(change.before, torch.Tensor) and isinstance(change.after, torch.Tensor):
            continue
        new = change.after[len(change.before) :] if type(change.after) is list else []
        if len(new) != added or not all(isinstance(one, torch.Tensor) for one in new):
            raise loop.refused(f"{change.place or 'a container'} changes from step to step")
        grown.append(change.after)
    if follows:
        return  # the trace has looked at the source
    names = {
        name
        for frame in frames
        for name, value in frame.f_locals.items()
        if any(value is one for one in grown)
    }
    if sum(any(value is one for one in grown) for value in frames[0].f_locals.values()) < len(
        grown
    ):
        raise loop.refused("a list that is no local name has a result of each step")
    code = frames[0].f_code
    tree = tree_of(code.co_filename)
    counted = (
        "its source is not there" if tree is None else counted_by(tree, names, frames[0].f_lineno)
    )
    if counted:
        raise loop.refused(f"the number of its steps may be counted: {counted}")


def may_count(value: Any) -> bool:
    """True for a local value in which Python may keep a count: a container, or what is stepped
    through; the model has been looked at already.
    """
    if isinstance(value, GeneratorType) and is_own_code(value.gi_code.co_filename):
        return False  # it gives the steps
    kinds = (list, dict, set, collections.deque, bytearray, Iterator)
    return isinstance(value, kinds) and not isinstance(value, (Loop, torch.Tensor))

"""Sizes that leave room for values which stand as often as another argument is long."""

from __future__ import annotations

import math

from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Sizes
from ..core.spec import Axis
from ..infer.sizes import is_general, is_possible
from .arguments import Calls
from .repeats import Repeat

__all__ = ["with_room"]

#: how many sizes are tried above the least one with room
_MOST_TRIES = 64


def with_room(calls: Calls, sizes: Sizes) -> Sizes:
    """The sizes, with rows so long that the values which have to stand in them do.

    13 images of four tokens need a text of 52 tokens and more. One row has room for all, unless the
    rows are as many as what they have room for: so the number of rows may shrink later on. Sizes
    that the number of values depends on stay. Sizes that were general stay general.
    """
    plan, found = calls.plan, sizes
    was_general = is_general(plan, found)
    for leaf in plan.inputs:
        repeats = calls.domains.of(leaf.path).repeats if leaf.is_tensor and leaf.shape else ()
        if not repeats:
            continue
        needed = _needed(plan, leaf, repeats, found)
        if needed is None or leaf.shape[-1].evaluate(found) > needed:
            continue
        bound = {name for r in repeats for axis in r.axes for name in _symbols(plan, axis)}
        free = [n for n in leaf.shape[-1].symbols if n not in bound]
        for name in free[-1:]:
            found = _grown(plan, leaf, found, name, needed, was_general=was_general)
    return found


def _needed(plan: Plan, leaf: LeafPlan, repeats: tuple[Repeat, ...], sizes: Sizes) -> int | None:
    """Returns how many places a row needs; None where that is not known."""
    known: dict[Axis, int] = {
        axis: expression.evaluate(sizes) for other in plan.inputs for axis, expression in other.axes
    }
    total = 0
    for repeat in repeats:
        count = repeat.count(known)
        if count is None:
            return None
        rows = leaf.shape[0] if len(leaf.shape) > 1 else None
        shared = rows is not None and any(
            set(rows.symbols) & set(_symbols(plan, axis)) for axis in repeat.axes
        )
        total += math.ceil(count / max(rows.evaluate(sizes), 1)) if shared and rows else count
    return total


def _symbols(plan: Plan, axis: Axis) -> tuple[str, ...]:
    """The symbols of the size of an axis."""
    leaf = next((leaf for leaf in plan.inputs if leaf.path == axis.path), None)
    if leaf is None or axis.dim is None or not leaf.is_tensor:
        return ()
    return tuple(leaf.shape[axis.dim].symbols)


def _grown(
    plan: Plan,
    leaf: LeafPlan,
    sizes: Sizes,
    name: str,
    needed: int,
    *,
    was_general: bool,
) -> Sizes:
    """The sizes with one symbol so large that a row has room, and one place more."""
    symbol = plan.symbol(name)
    begin = sizes[name] + needed + 1 - leaf.shape[-1].evaluate(sizes)
    begin = -(-begin // symbol.step) * symbol.step
    for number in range(_MOST_TRIES):
        size = begin + number * symbol.step
        changed = {**sizes, name: size}
        if not symbol.allows(size) or not is_possible(plan, changed):
            return sizes
        has_room = leaf.shape[-1].evaluate(changed) > needed
        if has_room and (not was_general or is_general(plan, changed)):
            return changed
    return sizes

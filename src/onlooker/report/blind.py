"""Lists the questions that neither calls nor experiments answered, each with the run that would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.call import Signature
from ..core.drawing.alike import folded
from ..core.experiment import BlindKind, BlindSpot
from ..core.plan import Plan

__all__ = ["blind_spots", "told_spots"]


def blind_spots(
    plans: Sequence[Plan], signature: Signature, unknown: Sequence[BlindSpot] = ()
) -> tuple[str, ...]:
    """The blind spots of all graphs, each once: untested claims, arguments never passed, flags with
    one value.

    ``unknown`` are further ones, of no graph alone.
    """
    spots = _spots(plans, unknown)
    untested_masks = {
        spot.argument
        for spot in spots
        if isinstance(spot, BlindSpot) and spot.kind is BlindKind.MASK_NEVER_PASSED
    }
    leaves = [leaf for plan in plans for leaf in plan.leaves]
    taken = {leaf.path.root for leaf in leaves if not _is_none(leaf.constant)}
    passed = {leaf.path.root for leaf in leaves}
    parameters = [
        parameter for parameter in signature.parameters if not parameter.kind.startswith("VAR")
    ]
    names = [
        parameter.name for parameter in parameters if parameter.name not in taken | untested_masks
    ]
    never = [name for name in names if name not in passed]
    only_none = [name for name in names if name in passed]
    told = [str(spot) for spot in spots]
    if never:
        told.append(
            f"{', '.join(never)} never passed: such a call is refused, watch one to have it served"
        )
    if only_none:
        told.append(
            f"{', '.join(only_none)} only passed as None: another value is refused, watch one to"
            " have it served"
        )
    return tuple(dict.fromkeys((*told, *_flags(plans))))


def told_spots(plans: Sequence[Plan], unknown: Sequence[BlindSpot] = ()) -> tuple[str, ...]:
    """The questions that experiments left open, each once, without arguments that no call passed."""
    return tuple(dict.fromkeys(map(str, _spots(plans, unknown))))


def _spots(plans: Sequence[Plan], unknown: Sequence[BlindSpot]) -> list[BlindSpot | str]:
    return [*(_with_graph(plan, spot, plans) for plan in plans for spot in plan.blind), *unknown]


def _with_graph(plan: Plan, spot: BlindSpot | str, plans: Sequence[Plan]) -> BlindSpot | str:
    """A question about a mask with the graph that lacks the mask, where another graph takes one."""
    if not isinstance(spot, BlindSpot) or spot.kind is not BlindKind.MASK_NEVER_PASSED:
        return spot
    takes = any(leaf.path.root == spot.argument for one in plans for leaf in one.leaves)
    return f"in calls of {plan.name}, {spot}" if takes else spot


def _is_none(constant: object) -> bool:
    return constant is not None and getattr(constant, "value", constant) is None


def _flags(plans: Sequence[Plan]) -> Iterator[str]:
    """The flags that had one value wherever they were passed."""
    seen: dict[str, set[object]] = {}
    for plan in plans:
        for leaf in plan.leaves:
            if leaf.constant is not None and isinstance(leaf.constant.value, bool):
                seen.setdefault(leaf.path.code(), set()).add(leaf.constant.value)
    one = [f"{name}={next(iter(values))}" for name, values in seen.items() if len(values) == 1]
    if one:
        flags = ", ".join(folded(one))
        yield (
            f"only {flags} seen: the other value is refused, watch a call that has it to have it"
            " served"
        )

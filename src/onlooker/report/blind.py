"""What neither calls nor probes could settle, each with the run that would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..core.call import Signature
from ..core.plan import Plan

__all__ = ["blind_spots"]


def blind_spots(plans: Sequence[Plan], signature: Signature) -> tuple[str, ...]:
    """The blind spots of all graphs, each once: open experiments, arguments never passed, flags with one value."""
    told = list(dict.fromkeys(_of_plans(plans)))
    taken = {leaf.path.root for plan in plans for leaf in plan.leaves if not _is_none(leaf.constant)}
    passed = {leaf.path.root for plan in plans for leaf in plan.leaves}
    names = [p.name for p in signature.parameters if not p.kind.startswith("VAR") and p.name not in taken]
    open_masks = [text.partition(" ")[0] for text in told]
    never = [name for name in names if name not in open_masks and name not in passed]
    none = [name for name in names if name not in open_masks and name in passed]
    if never:
        told.append(f"{', '.join(never)} never passed: such a call is refused, watch one to have it served")
    if none:
        told.append(f"{', '.join(none)} only passed as None: another value is refused, watch one to have it served")
    return (*told, *_flags(plans))


def _of_plans(plans: Sequence[Plan]) -> Iterator[str]:
    for plan in plans:
        yield from plan.blind


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
        yield f"only {', '.join(one)} seen: the other value is refused, watch a call that has it to have it served"

"""What the caller decided: axes that stay, axes that change, and ranges of symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.call import Call
from ..core.errors import UsageError
from ..core.plan import Plan
from ..core.recording import Recording
from ..core.spec import Axis, TensorSpec
from ..infer.samples import Table

__all__ = [
    "PINNED",
    "Dims",
    "Overrides",
    "Range",
    "check_overrides",
    "check_ranges",
    "check_static",
    "check_symbols",
    "overrides_of",
]

#: the label of a row that stands for the word of the caller
PINNED = "pinned by the caller"

Dims = Mapping[str, Sequence[int]]
Range = tuple[int, int | None]


@dataclass(frozen=True, slots=True)
class Overrides:
    """Axes by argument (its name, or the path of one leaf as Python), and ranges by symbol.

    Without ``probe`` only the calls and the caller say what a plan is: no hypothesis is tested with
    the model.
    """

    static: Dims = field(default_factory=dict)
    dynamic: Dims = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    probe: bool = True

    def is_static(self, axis: Axis) -> bool:
        """True when the caller said that the axis never changes."""
        return _names(self.static, axis)

    def is_dynamic(self, axis: Axis) -> bool:
        """True when the caller said that the axis changes."""
        return _names(self.dynamic, axis)


def _names(dims: Dims, axis: Axis) -> bool:
    return any(axis.dim in dims.get(key, ()) for key in (axis.path.root, axis.path.code()))


def overrides_of(
    static: Dims | None = None,
    dynamic: Dims | None = None,
    ranges: Mapping[str, Range] | None = None,
    *,
    probe: bool = True,
) -> Overrides:
    """The overrides, checked for what can be wrong with them alone.

    :raises UsageError: ``bad-pin``
    """
    for word, given in (("static", static), ("dynamic", dynamic), ("ranges", ranges)):
        if given is not None and not isinstance(given, Mapping):
            raise _bad(f"{word}={given!r}", "Give a dict, by argument or by symbol.")
    static, dynamic, ranges = dict(static or {}), dict(dynamic or {}), dict(ranges or {})
    _check_dims("static", static)
    _check_dims("dynamic", dynamic)
    for name, limits in ranges.items():
        if not _is_range(limits):
            hint = "Give the least and the greatest size, or None for no limit: {'batch': (1, 64)}."
            raise _bad(f"ranges={{{name!r}: {limits!r}}}", hint)
    for name, dims in static.items():
        for dim in dims:
            if dim in dynamic.get(name, ()):
                raise _bad(
                    f"{name}.shape[{dim}], static and dynamic at once,", "Leave one of the two out."
                )
    return Overrides(static, dynamic, ranges, probe)


def _check_dims(word: str, dims: Dims) -> None:
    for name, numbers in dims.items():
        if isinstance(numbers, (str, int)) or not all(_is_count(number) for number in numbers):
            raise _bad(
                f"{word}={{{name!r}: {numbers!r}}}",
                "Give a list of dimensions: {'input_ids': [0, 1]}.",
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_range(limits: Any) -> bool:
    if not isinstance(limits, (tuple, list)) or len(limits) != 2 or not _is_count(limits[0]):
        return False
    return limits[1] is None or (_is_count(limits[1]) and limits[0] <= limits[1])


def _bad(text: str, hint: str) -> UsageError:
    return UsageError(f"{text} cannot be obeyed.", slug="bad-pin", hint=hint)


def check_overrides(overrides: Overrides, recording: Recording) -> None:
    """Every pinned axis must be one of the method, and of the calls where they have the argument.

    :raises UsageError: ``unknown-argument``, ``no-such-dimension``
    """
    for word, dims in (("static", overrides.static), ("dynamic", overrides.dynamic)):
        for name, numbers in dims.items():
            ranks = _ranks(name, recording.calls)
            if ranks is None and name not in recording.signature.names:
                known = ", ".join(recording.signature.names)
                raise UsageError(
                    f"{word}= names {name!r}, which is no argument of"
                    f" {recording.model}.{recording.method}.",
                    slug="unknown-argument",
                    hint=f"It has {known}.",
                )
            wrong = [
                number
                for number in numbers
                if ranks is not None and number >= max(ranks, default=0)
            ]
            if wrong:
                count = max(ranks or (), default=0)
                raise UsageError(
                    f"{word}= names dimension {wrong[0]} of {name}, which has {count}.",
                    slug="no-such-dimension",
                    hint="Dimensions count from 0; only tensors have some.",
                )


def _ranks(name: str, calls: Iterable[Call]) -> set[int] | None:
    """The numbers of dimensions of the tensors of that name; None where no call has it."""
    is_known = False
    ranks: set[int] = set()
    for call in calls:
        for path, spec in call.inputs.items():
            if name not in (path.root, path.code()):
                continue
            is_known = True
            if isinstance(spec, TensorSpec):
                ranks.add(len(spec.shape))
    return ranks if is_known else None


def check_static(overrides: Overrides, table: Table) -> None:
    """A static dimension must not have changed over calls.

    :raises UsageError: ``pin-contradicts-calls``
    """
    for axis in filter(overrides.is_static, table.axes):
        seen: dict[int, str] = {}
        for label, size in zip(table.labels, table.column(axis), strict=True):
            if size is not None:
                seen.setdefault(size, label)
        if len(seen) > 1:
            (one, first), (two, second), *_ = seen.items()
            raise UsageError(
                f"{axis} is pinned static, and was {one} in {first} and {two} in {second}.",
                slug="pin-contradicts-calls",
                hint="Leave it out of static=, or watch calls of one size only.",
            )


def check_symbols(overrides: Overrides, plans: Iterable[Plan]) -> None:
    """Every range must be of a symbol that some plan has.

    :raises UsageError: ``no-such-symbol``
    """
    known = list(dict.fromkeys(symbol.name for plan in plans for symbol in plan.symbols))
    for name in overrides.ranges:
        if name not in known:
            raise UsageError(
                f"ranges= names {name!r}, and no axis is called that.",
                slug="no-such-symbol",
                hint=f"The symbols are {', '.join(known) or 'none'}; dynamic= makes an axis one.",
            )


def check_ranges(overrides: Overrides, plan: Plan, table: Table) -> None:
    """The observed sizes must lie in the ranges.

    :raises UsageError: ``pin-contradicts-calls``
    """
    for symbol in plan.symbols:
        if symbol.name not in overrides.ranges:
            continue
        for axis in plan.axes_of(symbol.name):
            for label, size in zip(table.labels, table.column(axis), strict=True):
                if size is not None and not symbol.allows(size):
                    raise UsageError(
                        f"{symbol.name} is pinned to {symbol.range}, and {axis} was {size} in"
                        f" {label}.",
                        slug="pin-contradicts-calls",
                        hint="Widen the range, or watch calls inside it only.",
                    )

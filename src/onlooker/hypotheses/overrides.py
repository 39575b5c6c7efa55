"""The decisions of the caller: axes that stay, axes that change, and ranges of symbols."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..core.call import Call
from ..core.errors import UsageError
from ..core.plan import Plan, Range
from ..core.recording import Recording
from ..core.sizes.formula import FUNCTIONS
from ..core.spec import Axis, TensorSpec
from ..core.support.kinds import is_count
from ..infer.samples import Table

__all__ = [
    "OBSERVED",
    "OTHERS",
    "PINNED",
    "AxisNames",
    "Dims",
    "Overrides",
    "RangesOption",
    "check_overrides",
    "check_ranges",
    "check_static",
    "check_symbols",
    "is_symbol_name",
    "overrides_of",
]

#: the label of a row that stands for the word of the caller
PINNED = "pinned by the caller"

#: what a user writes for the least and the greatest size of the watched calls
OBSERVED: Final = "observed"
#: the name that stands for all symbols that ``ranges`` does not name
OTHERS = "*"

Dims = Mapping[str, Sequence[int]]
#: ``ranges`` as a user writes them: limits by symbol, or ``"observed"``, for one symbol or for all
RangesOption = Mapping[str, Range | Literal["observed"]] | Literal["observed"]
#: names of axes, by argument or path and by dimension
AxisNames = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Overrides:
    """Axes by argument (its name, or the path of one leaf as Python), and ranges by symbol.

    The ranges of the symbols in ``observed`` are the sizes that watched calls had; :data:`OTHERS`
    among them stands for every symbol that ``ranges`` does not name.

    ``names`` are what the caller calls axes, by argument or path: the symbol of an axis has that name.

    Without ``probe`` only the calls and the caller say what a plan is: no hypothesis is tested with
    the model.
    """

    static: Dims = field(default_factory=dict)
    dynamic: Dims = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    probe: bool = True
    observed: frozenset[str] = frozenset()
    names: AxisNames = field(default_factory=dict)
    #: an argument that has weights: its axes are no sizes of calls
    weights: str = ""

    def name_of(self, axis: Axis) -> str | None:
        """The name that the caller has for an axis; None without one."""
        if axis.dim is None or not self.names:
            return None
        found = (self.names.get(key, {}) for key in (axis.path.code(), axis.path.root))
        return next((names[axis.dim] for names in found if axis.dim in names), None)

    def is_static(self, axis: Axis) -> bool:
        """True for an axis that never changes: the caller said so, or it is one of a weight."""
        return axis.path.root == self.weights or self.is_pinned(axis)

    def is_pinned(self, axis: Axis) -> bool:
        """True when the caller said that the axis never changes."""
        return _names(self.static, axis)

    def is_dynamic(self, axis: Axis) -> bool:
        """True when the caller said that the axis changes."""
        return _names(self.dynamic, axis)

    def is_observed(self, name: str) -> bool:
        """True when the caller said that a symbol has the sizes of the watched calls."""
        return name in self.observed or (OTHERS in self.observed and name not in self.ranges)

    def may_change(self, axis: Axis) -> bool:
        """True when an axis that no call changed may become dynamic.

        Where every symbol has the sizes of the watched calls, it stays as it was.
        """
        are_all_observed = OTHERS in self.observed and not self.ranges
        return self.is_dynamic(axis) or not (are_all_observed or self.is_static(axis))


def _names(dims: Dims, axis: Axis) -> bool:
    return any(axis.dim in dims.get(key, ()) for key in (axis.path.root, axis.path.code()))


def overrides_of(
    static: Dims | None = None,
    dynamic: Dims | None = None,
    ranges: RangesOption | None = None,
    *,
    probe: bool = True,
    names: AxisNames | None = None,
) -> Overrides:
    """The overrides, checked for what can be wrong with them alone.

    :raises UsageError: ``bad-pin``
    """
    for word, given in (("static", static), ("dynamic", dynamic)):
        if given is not None and not isinstance(given, Mapping):
            raise _bad(f"{word}={given!r}", "Give a dict, by argument or by symbol.")
    static, dynamic = dict(static or {}), dict(dynamic or {})
    _check_dims("static", static)
    _check_dims("dynamic", dynamic)
    limits, observed = _ranges_of(ranges)
    for name, dims in static.items():
        for dim in dims:
            if dim in dynamic.get(name, ()):
                raise _bad(
                    f"{name}.shape[{dim}], static and dynamic at once,", "Leave one of the two out."
                )
    return Overrides(static, dynamic, limits, probe, observed, _names_of(names))


def _names_of(names: Any) -> dict[str, dict[int, str]]:
    """Names of axes, by argument and dimension.

    :raises UsageError: ``bad-pin``
    """
    hint = "Give identifiers by argument and dimension: {'input_ids': {0: 'batch', 1: 'sequence'}}."
    if names is not None and not isinstance(names, Mapping):
        raise _bad(f"names={names!r}", hint)
    found: dict[str, dict[int, str]] = {}
    for argument, given in (names or {}).items():
        is_by_dim = isinstance(given, Mapping) and all(map(is_count, given))
        if not is_by_dim or not all(map(is_symbol_name, given.values())):
            raise _bad(f"names={{{argument!r}: {given!r}}}", hint)
        found[argument] = dict(given)
    return found


def is_symbol_name(name: Any) -> bool:
    """True for what a symbol can be called: it is a variable of formulas."""
    if not isinstance(name, str) or name in (*FUNCTIONS, "math"):
        return False
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _ranges_of(ranges: Any) -> tuple[dict[str, Range], frozenset[str]]:
    """Limits by symbol, and the names of the symbols whose range the watched calls say.

    :raises UsageError: ``bad-pin``
    """
    if isinstance(ranges, str) and ranges == OBSERVED:
        return {}, frozenset({OTHERS})
    if ranges is not None and not isinstance(ranges, Mapping):
        hint = f"Give a dict, by argument or by symbol, or {OBSERVED!r} for what calls had."
        raise _bad(f"ranges={ranges!r}", hint)
    limits: dict[str, Range] = {}
    observed: set[str] = set()
    for name, given in (ranges or {}).items():
        if isinstance(given, str) and given == OBSERVED:
            observed.add(name)
        elif name != OTHERS and _is_range(given):
            limits[name] = (given[0], given[1])
        else:
            hint = (
                "Give the least and the greatest size, or None for no limit: {'batch': (1, 64)}; or"
                " 'observed' for those of the watched calls."
            )
            raise _bad(f"ranges={{{name!r}: {given!r}}}", hint)
    return limits, frozenset(observed)


def _check_dims(word: str, dims: Dims) -> None:
    for name, numbers in dims.items():
        if isinstance(numbers, (str, int)) or not all(is_count(number) for number in numbers):
            raise _bad(
                f"{word}={{{name!r}: {numbers!r}}}",
                "Give a list of dimensions: {'input_ids': [0, 1]}.",
            )


def _is_range(limits: Any) -> bool:
    if not isinstance(limits, (tuple, list)) or len(limits) != 2:
        return False
    if not all(limit is None or is_count(limit) for limit in limits):
        return False
    return None in limits or limits[0] <= limits[1]


def _bad(text: str, hint: str) -> UsageError:
    return UsageError(f"{text} cannot be obeyed.", slug="bad-pin", hint=hint)


def check_overrides(overrides: Overrides, recording: Recording) -> None:
    """Every pinned axis must be one of the method, and of the calls where they have the argument.

    :raises UsageError: ``unknown-argument``, ``no-such-dimension``
    """
    pinned: tuple[tuple[str, Mapping[str, Iterable[int]]], ...] = (
        ("static", overrides.static),
        ("dynamic", overrides.dynamic),
        ("names", overrides.names),
    )
    for word, dims in pinned:
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
    for name in (*overrides.ranges, *sorted(overrides.observed - {OTHERS})):
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

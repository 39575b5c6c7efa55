"""What a caller may ask of a verification."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ArgumentKindError, UsageError
from ..core.kinds import check_kind
from ..core.plan import Plan
from ..core.recording import Recording
from ..observing.inner import method_signature
from ..observing.instead import part_of_class
from .trials import symbol_sizes

__all__ = ["SizesOption", "check_model", "check_request", "wanted_agreement"]

#: what a caller may give: sizes by name, of which every combination is tried, or the combinations
#: themselves; numbers alone where there is one symbol
SizesOption = Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int] | int]

_WANTED = (
    "sizes by name, {'batch': [3, 500]}, or a list of sizes, each a number per symbol:"
    " [{'batch': 5}]"
)


def wanted_agreement(agreement: Any, *, is_exact: bool) -> float | None:
    """The least share of scores that have to agree; None where none are measured: an exact program
    is compared number by number.

    Of a program that is no exact copy of its model every one has to, unless the caller says less.

    :raises UsageError: ``bad-tolerance``
    """
    if agreement is None:
        return None if is_exact else 1.0
    is_number = isinstance(agreement, (int, float)) and not isinstance(agreement, bool)
    if not is_number or not 0 <= agreement <= 1:
        raise UsageError(
            f"agreement is {agreement!r}.",
            slug="bad-tolerance",
            hint="Give the least share of tokens that have to agree, from 0 to 1.",
        )
    return float(agreement)


def check_request(
    plans: Sequence[Plan],
    atol: float,
    sizes: SizesOption,
    seed: int = 0,
    trials: int | None = None,
    seconds: float | None = None,
) -> list[dict[str, int]]:
    """The choices of sizes that were asked for, by symbol or axis, when everything that was asked
    for can be meant.

    :raises UsageError: ``bad-tolerance``, ``no-such-symbol``, ``bad-trials``
    :raises ArgumentKindError: ``wrong-kind``
    """
    if isinstance(atol, bool) or not isinstance(atol, (int, float)) or not 0 <= atol < float("inf"):
        raise UsageError(
            f"atol is {atol!r}.",
            slug="bad-tolerance",
            hint="Give a number, 0 or more: the largest difference allowed.",
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(
            f"seed is {seed!r}.", slug="bad-trials", hint="Give a whole number; 0 is the usual one."
        )
    if trials is not None and (
        isinstance(trials, bool) or not isinstance(trials, int) or trials < 1
    ):
        raise UsageError(
            f"trials is {trials!r}.",
            slug="bad-trials",
            hint="Give the most trials, 1 or more, or None for the usual ones.",
        )
    if seconds is not None and (
        isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0
    ):
        raise UsageError(
            f"seconds is {seconds!r}.",
            slug="bad-trials",
            hint="Give the time after which no further trial is begun, more than 0, or None.",
        )
    check_kind(sizes, (Mapping, list, tuple), "sizes", _WANTED)
    choices = _grid(sizes) if isinstance(sizes, Mapping) else [_named(plans, s) for s in sizes]
    for choice in choices:
        check_kind(choice, Mapping, "One of the sizes", _WANTED)
        for name, size in choice.items():
            _check_name(plans, name)
            _check_size(name, size)
    return [dict(choice) for choice in choices]


def _named(plans: Sequence[Plan], size: Any) -> Any:
    """A number alone as the size of the one symbol that there is.

    :raises UsageError: ``no-such-symbol`` where there are several, or none
    """
    if not isinstance(size, int) or isinstance(size, bool):
        return size
    names = list(dict.fromkeys(symbol.name for plan in plans for symbol in plan.symbols))
    if len(names) == 1:
        return {names[0]: size}
    if not names:
        raise UsageError(
            f"sizes has the number {size}, and no size changes.",
            slug="no-such-symbol",
            hint="Leave it out, or watch calls of other sizes and export again.",
        )
    raise UsageError(
        f"sizes has the number {size}, which may be of {' or '.join(names)}.",
        slug="no-such-symbol",
        hint=f"Name it, as in sizes=[{{{names[-1]!r}: {size}}}].",
    )


def _grid(sizes: Mapping[str, Any]) -> list[dict[str, int]]:
    """Every combination of the sizes that stand for each name; a number alone is one size."""
    columns = []
    for name, listed in sizes.items():
        check_kind(
            listed, (int, list, tuple), f"What sizes gives for {name}", "sizes as a list: [3, 500]"
        )
        columns.append([listed] if isinstance(listed, int) else listed)
    return (
        [dict(zip(sizes, row, strict=True)) for row in itertools.product(*columns)] if sizes else []
    )


def _check_size(name: str, size: object) -> None:
    check_kind(size, int, f"The size of {name}", "a number")
    if isinstance(size, bool):
        raise ArgumentKindError(
            f"The size of {name} is {size}.", slug="wrong-kind", hint="Give a number."
        )


def _check_name(plans: Sequence[Plan], name: object) -> None:
    """Passes for the name of a symbol, and for an axis whose size is a symbol, of some plan."""
    if any(symbol_sizes(plan, {str(name): 1}) is not None for plan in plans):
        return
    axes = {str(axis): e for plan in plans for leaf in plan.inputs for axis, e in leaf.axes}
    if name in axes:
        symbols = axes[str(name)].symbols
        hint = f"Name {', '.join(symbols)} instead." if symbols else "It never changes."
        raise UsageError(
            f"sizes names {name!r}, whose size is {axes[str(name)]}.",
            slug="no-such-symbol",
            hint=hint,
        )
    known = {symbol.name for plan in plans for symbol in plan.symbols}
    raise UsageError(
        f"sizes names {name!r}, and no graph has such a symbol.",
        slug="no-such-symbol",
        hint=f"There are {', '.join(sorted(known)) or 'none'}.",
    )


def check_model(model: Any, recording: Recording) -> Any:
    """The model, or the part of it that was watched, when it has the method, with the same
    parameters.

    :raises UsageError: ``another-signature``
    """
    method, model = recording.method, part_of_class(model, recording.model)
    known = callable(getattr(model, method, None)) and method_signature(model, method)[1].names
    if known != recording.signature.names:
        raise UsageError(
            f"{type(model).__name__} has no"
            f" {recording.method}({', '.join(recording.signature.names)}).",
            slug="another-signature",
            hint=f"Give a model that is called as {recording.model} was.",
        )
    return model

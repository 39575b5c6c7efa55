"""Values that the user gives for arguments which some calls lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.call import Call, Passing, Signature
from ..core.errors import ArgumentKindError, UnsupportedError, UsageError
from ..core.structure import Structure, Tree
from ..core.support.kinds import check_kind
from ..observing.store import Sample
from ..pytrees.open import open_arguments, spec_of

__all__ = ["check_positions", "named_values", "with_missing_calls", "with_missing_samples"]


def named_values(
    value_if_missing: Mapping[Any, Any] | None, signature: Signature
) -> dict[str, Any]:
    """The values by name; a position is turned into the name of the signature.

    :raises ArgumentKindError: ``unexpected-key`` for a key that is neither a name nor a position,
        ``wrong-kind``
    :raises UsageError: ``unknown-argument`` for a name or a position that the signature does not
        have
    """
    found: dict[str, Any] = {}
    if value_if_missing is not None:
        check_kind(
            value_if_missing,
            Mapping,
            "value_if_missing",
            "values by the name or the position of an argument",
        )
    takes_any = signature.of_kind("VAR_KEYWORD") is not None
    for key, value in (value_if_missing or {}).items():
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise ArgumentKindError(
                f"Unexpected type {type(key).__name__} for a key of value_if_missing.",
                slug="unexpected-key",
                hint="Use the name of an argument or its position.",
            )
        known = (
            key in signature.names or takes_any
            if isinstance(key, str)
            else 0 <= key < len(signature.names)
        )
        if not known:
            raise UsageError(
                f"Unexpected keyword argument {key!r} in value_if_missing.",
                slug="unknown-argument",
                hint=f"The method has {', '.join(signature.names)}.",
            )
        found[signature.names[key] if isinstance(key, int) else key] = value
    return found


def check_positions(
    value_if_missing: Mapping[Any, Any] | None, calls: Sequence[Call], signature: Signature
) -> None:
    """Refuses a position that no call reached: how the argument would be passed is not known then.

    :raises UnsupportedError: ``position-never-given``
    """
    given = {name for call in calls for name, _ in call.passed}
    for key in value_if_missing or {}:
        if calls and isinstance(key, int) and signature.names[key] not in given:
            raise UnsupportedError(
                f"Unexpected keyword argument {key!r} in value_if_missing: position {key} was never"
                " given.",
                slug="position-never-given",
                hint=f"Give the value by its name, {signature.names[key]!r}.",
            )


def with_missing_calls(calls: Sequence[Call], values: Mapping[str, Any]) -> tuple[Call, ...]:
    """The calls, each with the values of the arguments that it lacks."""
    opened = {name: open_arguments({name: value}) for name, value in values.items()}
    specs = {name: tree.each(spec_of) for name, tree in opened.items()}
    return tuple(_completed_call(call, specs) for call in calls)


def with_missing_samples(samples: Sequence[Sample], values: Mapping[str, Any]) -> list[Sample]:
    """The kept calls, each with the values of the arguments that it lacks."""
    opened = {name: open_arguments({name: value}) for name, value in values.items()}
    calls = with_missing_calls([sample.call for sample in samples], values)
    return [
        replace(sample, call=call, inputs=_joined(sample.inputs, opened))
        for sample, call in zip(samples, calls, strict=True)
    ]


def _completed_call(call: Call, specs: Mapping[str, Tree[Any]]) -> Call:
    own = {entry.code() for entry in call.inputs.structure.entries}
    how = (
        Passing.POSITIONAL
        if all(h is Passing.POSITIONAL for _, h in call.passed)
        else Passing.KEYWORD
    )
    added = tuple((name, how) for name in specs if name not in own)
    return replace(call, inputs=_joined(call.inputs, specs), passed=call.passed + added)


def _joined(tree: Tree[Any], others: Mapping[str, Tree[Any]]) -> Tree[Any]:
    structure, leaves = tree.structure, tree.leaves
    own = {entry.code() for entry in structure.entries}
    for name, other in others.items():
        if name not in own:
            structure = Structure(
                structure.kind,
                structure.entries + other.structure.entries,
                structure.children + other.structure.children,
                structure.context,
            )
            leaves += other.leaves
    return Tree(structure, leaves)

"""Calls without some of their arguments, as if these had never been passed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from ..core.call import Call, Passing, Signature
from ..core.errors import UsageError
from ..core.structure import Tree
from ..core.support.kinds import check_kind

__all__ = ["call_without", "names_to_remove", "tree_without"]

T = TypeVar("T")


def names_to_remove(names: Collection[str | int], signature: Signature) -> tuple[str, ...]:
    """The names of arguments; a position is turned into the name of the signature.

    :raises UsageError: ``variadic-argument`` for ``*args`` or ``**kwargs`` as a whole
    """
    check_kind(names, Collection, "input_names", "the names or positions of arguments, as a list")
    found = []
    for item in names:
        in_range = isinstance(item, int) and 0 <= item < len(signature.names)
        name = signature.names[item] if isinstance(item, int) and in_range else item
        parameter = signature.get(name) if isinstance(name, str) else None
        if parameter is not None and parameter.kind.startswith("VAR"):
            raise UsageError(
                f"Cannot remove variadic argument {name!r}.",
                slug="variadic-argument",
                hint=(
                    "Name the arguments that came by **kwargs one by one; those of *args cannot be"
                    " told apart."
                ),
            )
        if isinstance(name, str):
            found.append(name)
    return tuple(dict.fromkeys(found))


def call_without(call: Call, names: Collection[str]) -> Call:
    """The call without these arguments; those that came by position behind a removed one count as
    named.

    :raises UsageError: ``variadic-argument`` when ``*args`` stand behind a removed argument
    """
    own = {name for name, _ in call.passed} & set(names)
    if not own:
        return call
    passed: list[tuple[str, Passing]] = []
    gap = ""
    for name, how in call.passed:
        if name in own:
            gap = name if how is Passing.POSITIONAL else gap
        elif gap and how is Passing.VAR_POSITIONAL:
            raise UsageError(
                f"Cannot remove {gap!r} from call {call.index}: the variadic *{name} stands"
                " behind it.",
                slug="variadic-argument",
                hint="Keep it, or watch a method whose arguments have names.",
            )
        else:
            passed.append((name, Passing.KEYWORD if gap and how is Passing.POSITIONAL else how))
    return replace(call, inputs=tree_without(call.inputs, own), passed=tuple(passed))


def tree_without(arguments: Tree[T], names: Collection[str]) -> Tree[T]:
    """The tree of the arguments without these."""
    parts = arguments.parts().items()
    return arguments.with_parts({entry: p for entry, p in parts if entry.code() not in names})

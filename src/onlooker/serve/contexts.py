"""The content of containers beside their leaves: a graph is right for the flags that it was
exported with.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..core.path import Path
from ..core.structure import Structure
from ..core.traffic import Violation, ViolationKind
from ..pytrees.open import ARGUMENTS

__all__ = ["conflict", "flags_of"]

#: containers of Python: one without leaves is a value, and does not count as absent
_PLAIN = frozenset({"list", "tuple", "dict", "collections.OrderedDict", "OrderedDict", ARGUMENTS})
#: what follows from the tensors of a layer, and what a cache appends when it is empty
_FOLLOWS = frozenset(
    {"'batch_size'", "'dtype'", "'device'", "'layer_class_to_replicate'", "'layer_classes'"}
)


def conflict(planned: Structure, given: Structure, path: Path | None = None) -> Violation | None:
    """Returns the violation at the place where a call of another structure does not fit; None where
    it does.

    A model may ask any container for its class, and a list that stands for a deque has other methods.
    A container without leaves counts as absent: what then stands for it was proven neutral. One
    that lacks some leaves waits for its first tokens, so its flags need not be there yet, but those
    that stay must be equal.
    """
    here = Path() if path is None else path
    if planned.is_leaf or given.is_leaf:
        return None
    if planned.kind != given.kind and (given.n_leaves or {planned.kind, given.kind} & _PLAIN):
        return Violation(ViolationKind.CLASS, str(here), f"a {planned.kind}", f"a {given.kind}")
    if not given.n_leaves:
        return None
    if planned.context != given.context:
        found = _flag_conflict(planned, given, here)
        if found is not None:
            return found
    children = dict(planned.parts)
    for entry, child in given.parts:
        known = children.get(entry)
        found = None if known is None else conflict(known, child, here / entry)
        if found is not None:
            return found
    return None


def _flag_conflict(planned: Structure, given: Structure, path: Path) -> Violation | None:
    wanted, came = flags_of(planned.context), flags_of(given.context)
    waits = set(planned.entries) - set(given.entries)
    for name in (*wanted, *(name for name in came if name not in wanted)):
        left, right = wanted.get(name), came.get(name)
        if (
            left == right
            or name in _FOLLOWS
            or (waits and (left is None or right in (None, "None", "False")))
        ):
            continue
        plain = name.strip("'")
        expected, got = _said(left, plain, planned), _said(right, plain, given)
        place = f"{path}.{plain}" if plain else f"what {path} holds beside its items"
        return Violation(ViolationKind.FLAG, place, expected, got)
    return None


def _said(flag: str | None, name: str, structure: Structure) -> str:
    """A flag in words; where there is none, the container may have a part of the name."""
    if flag is not None:
        return flag
    has_part = name in {getattr(entry, "name", None) for entry in structure.entries}
    return "a value" if has_part else "None"


@lru_cache(maxsize=4096)
def flags_of(context: str) -> dict[str, str]:
    """The items of a context that was written from a dict; any other is one item.

    >>> flags_of("{'window': 6, 'full': {0: True, 1: False}}")
    {"'window'": '6', "'full'": '{0: True, 1: False}'}
    """
    if not (context.startswith("{") and context.endswith("}")):
        return {"": context}
    items: dict[str, str] = {}
    key, start = "", 1
    for position in _top_level(context):
        if not key and context.startswith(": ", position):
            key, start = context[start:position], position + 2
        elif context.startswith(", ", position):
            items[key] = context[start:position]
            key, start = "", position + 2
    if key:
        items[key] = context[start:-1]
    return items


def _top_level(context: str) -> Iterator[int]:
    """The positions between the outer braces that stand in no text and in no brackets."""
    depth, quote, escaped = 0, "", False
    for position, char in enumerate(context[1:-1], 1):
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "'\"":
            quote = char
        elif char in "([{)]}":
            depth += 1 if char in "([{" else -1
        elif depth == 0:
            yield position

"""The content of containers beside their leaves: a graph is right for the flags that it was
exported with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache

from ..core.marks import ATTRIBUTES, asked_in
from ..core.path import Path
from ..core.structure import Structure
from ..core.traffic import Violation, ViolationKind
from ..pytrees.layers import class_of_cache
from ..pytrees.open import ARGUMENTS

__all__ = ["conflict", "flags_of"]

#: containers of Python: one without leaves is a value, and does not count as absent
_PLAIN = frozenset({"list", "tuple", "dict", "collections.OrderedDict", "OrderedDict", ARGUMENTS})
#: what follows from the tensors of a layer, and what a cache appends when it is empty
_FOLLOWS = frozenset(
    {"'batch_size'", "'dtype'", "'device'", "'layer_class_to_replicate'", "'layer_classes'"}
)


def conflict(
    planned: Structure, given: Structure, marks: Collection[str], path: Path | None = None
) -> Violation | None:
    """Returns the violation at the place where a call of another structure does not fit; None where
    it does.

    A model may ask any container for its class, and a list that stands for a deque has other methods.
    A container without leaves counts as absent: what then stands for it was proven neutral. One
    that lacks some leaves waits for its first tokens, so its flags need not be there yet, but those
    that stay must be equal. The ``marks`` of the graph say which attributes of a cache the model asks for
    in vain: any other one that the cache of the graph lacks is free.
    """
    here = Path() if path is None else path
    if planned.is_leaf or given.is_leaf:
        return None
    if planned.kind != given.kind and (given.n_leaves or {planned.kind, given.kind} & _PLAIN):
        return Violation(ViolationKind.CLASS, str(here), f"a {planned.kind}", f"a {given.kind}")
    if not given.n_leaves:
        return _asked_conflict(planned, given, marks, here)
    if planned.context != given.context:
        found = _flag_conflict(planned, given, marks, here)
        if found is not None:
            return found
    children = dict(planned.parts)
    for entry, child in given.parts:
        known = children.get(entry)
        found = None if known is None else conflict(known, child, marks, here / entry)
        if found is not None:
            return found
    return None


def _asked_conflict(
    planned: Structure, given: Structure, marks: Collection[str], path: Path
) -> Violation | None:
    """Returns the violation of an empty cache with an attribute that the model asks for, and that the cache of the
    graph lacks.
    """
    wanted = flags_of(planned.context)
    for name, flag in flags_of(given.context).items():
        plain = name.strip("'")
        if name not in wanted and plain in asked_in(marks):
            return Violation(ViolationKind.FLAG, f"{path}.{plain}", "None", flag)
    return None


def _flag_conflict(
    planned: Structure, given: Structure, marks: Collection[str], path: Path
) -> Violation | None:
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
        if left is None and _is_unread(plain, planned, marks):
            continue
        expected, got = _said(left, plain, planned), _said(right, plain, given)
        place = f"{path}.{plain}" if plain else f"what {path} holds beside its items"
        return Violation(ViolationKind.FLAG, place, expected, got)
    return None


def _is_unread(name: str, planned: Structure, marks: Collection[str]) -> bool:
    """True for an attribute that the cache of a graph lacks, its class too, and that the model never asks for."""
    cls = class_of_cache(planned.kind)
    is_asked = ATTRIBUTES in marks or name in asked_in(marks)
    return cls is not None and not (is_asked or hasattr(cls, name) or _has_part(name, planned))


def _has_part(name: str, structure: Structure) -> bool:
    return name in {getattr(entry, "name", None) for entry in structure.entries}


def _said(flag: str | None, name: str, structure: Structure) -> str:
    """A flag in words; where there is none, the container may have a part of the name."""
    if flag is not None:
        return flag
    return "a value" if _has_part(name, structure) else "None"


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

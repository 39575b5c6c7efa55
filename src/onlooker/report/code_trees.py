"""The arguments of a model as plain lists and dicts: their values, their dynamic shapes, and the
way back to classes.

A class is written as the dict of its parts; lists, tuples and dicts stay what they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

from ..core.path import Attr, Entry, Index, Key, Path
from ..core.structure import Structure
from .code_classes import PLAIN, Imports, attributes_of
from .code_layout import bracketed, listed, quoted, repeated

Hidden = Mapping[Path, Mapping[str, tuple[object, str]]]

__all__ = ["as_classes", "as_plain", "holds_class", "plain_tree"]

#: what an item of a list is called, by the depth of the list
_ITEMS = ("item", "inner", "third", "fourth", "fifth")


def holds_class(structure: Structure) -> bool:
    """True when there is more than lists, tuples and dicts."""
    return structure.kind not in PLAIN or any(holds_class(child) for child in structure.children)


def _key(entry: Entry) -> str:
    if isinstance(entry, Key):
        return quoted(entry.key)
    return quoted(entry.name) if not isinstance(entry, Index) else quoted(entry.index)


def _dict(parts: Iterable[tuple[Entry, str]]) -> str:
    return bracketed("{", [f"{_key(entry)}: {text}" for entry, text in parts], "}")


def _item(depth: int) -> str:
    return _ITEMS[min(depth, len(_ITEMS) - 1)]


def _is_list(structure: Structure) -> bool:
    return structure.kind in ("list", "tuple")


def plain_tree(structure: Structure, path: Path, leaf: Callable[[Path], str]) -> str:
    """The plain form of a structure, every leaf written by ``leaf``."""
    if structure.is_leaf:
        return leaf(path)
    parts = [(entry, plain_tree(child, path / entry, leaf)) for entry, child in structure.parts]
    if _is_list(structure):
        return repeated([text for _, text in parts], kind=structure.kind)
    return _dict(parts)


def as_classes(
    structure: Structure, path: Path, access: str, imports: Imports, hidden: Hidden, depth: int = 0
) -> str:
    """Builds the classes again from the plain form, which is found at ``access``."""
    if not holds_class(structure):
        return access
    pairs = list(structure.parts)
    if _is_list(structure):

        def build(at: int, name: str) -> str:
            entry, child = pairs[at]
            return as_classes(child, path / entry, name, imports, hidden, depth + 1)

        return _runs(structure, access, build, _item(depth))
    places = [f"{access}[{_key(entry)}]" for entry, _ in pairs]
    parts = [
        (entry, as_classes(child, path / entry, place, imports, hidden, depth))
        for (entry, child), place in zip(pairs, places, strict=True)
    ]
    texts = [text for _, text in parts]
    if structure.kind == "dict":
        return _dict(parts)
    if structure.kind == "slice":
        return bracketed("slice(", texts, ")")
    if structure.kind == "torch.Size":
        return bracketed("torch.Size([", texts, "])")
    flags = attributes_of(structure, path, imports)
    name = imports.name(structure.kind, path)
    given = [f"{entry.name}={text}" for entry, text in parts if isinstance(entry, Attr)]
    if given and texts == places:
        given = [f"**{access}"]
    if flags is None:
        return bracketed(f"{name}(", given, ")")
    named = [f"{key}={text}" for key, text in flags.items()]
    for key, (numbers, dtype) in hidden.get(path, {}).items():
        named.append(f"{key}=torch.tensor({numbers}, dtype={dtype})")
    return bracketed("made(", [name, *given, *named], ")")


def _runs(structure: Structure, access: str, build: Callable[[int, str], str], item: str) -> str:
    """The items of a list, runs that are built alike by one comprehension."""
    places = range(len(structure.children))
    texts = [build(at, item) for at in places]
    runs = [[*run] for _, run in itertools.groupby(places, texts.__getitem__)]
    if len(runs) == 1 < len(texts):
        whole = f"[{texts[0]} for {item} in {access}]"
        return whole if structure.kind == "list" else f"tuple({whole})"
    items = [
        build(run[0], f"{access}[{run[0]}]")
        if len(run) == 1
        else f"*[{texts[run[0]]} for {item} in {access}[{run[0]}:{run[-1] + 1}]]"
        for run in runs
    ]
    return listed(items, kind=structure.kind)


def as_plain(
    structure: Structure, access: str, kept: Callable[[Path], bool], path: Path, depth: int = 0
) -> str:
    """Takes a result apart into lists and dicts; leaves that ``kept`` refuses are left out."""
    if structure.is_leaf:
        return access
    parts = [
        (entry, child)
        for entry, child in structure.parts
        if any(map(kept, child.paths(path / entry)))
    ]
    texts = [
        as_plain(child, f"{access}{entry.code()}", kept, path / entry, depth)
        for entry, child in parts
    ]
    if not _is_list(structure):
        return _dict((entry, text) for (entry, _), text in zip(parts, texts, strict=True))
    item = _item(depth)
    alike = {as_plain(child, item, kept, path / entry, depth + 1) for entry, child in parts}
    if len(parts) == len(structure.children) > 1 and len(alike) == 1:
        (one,) = alike
        return f"list({access})" if one == item else f"[{one} for {item} in {access}]"
    return listed(texts, kind="list")

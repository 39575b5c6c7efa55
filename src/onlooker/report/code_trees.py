"""The arguments of a model as plain lists and dicts: their values, their dynamic shapes, and the
way back to classes.

A class is written as the dict of its parts; lists, tuples and dicts stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..core.path import Attr, Entry, Index, Key, Path
from ..core.structure import Structure
from .code_classes import PLAIN, Imports, attributes_of
from .code_layout import Piece, Pieces, bracketed, flat, followed_by, quoted, repeated

Hidden = Mapping[Path, Mapping[str, tuple[object, str]]]

__all__ = ["as_classes", "as_plain", "holds_class", "plain_parts", "plain_tree"]

#: what an item of a list is called, by the depth of the list
_ITEMS = ("item", "inner", "third", "fourth", "fifth")


def holds_class(structure: Structure) -> bool:
    """True when there is more than lists, tuples and dicts."""
    return structure.kind not in PLAIN or any(holds_class(child) for child in structure.children)


def _key(entry: Entry) -> str:
    if isinstance(entry, Key):
        return quoted(entry.key)
    return quoted(entry.name) if not isinstance(entry, Index) else quoted(entry.index)


def plain_tree(structure: Structure, path: Path, leaf: Callable[[Path], Piece]) -> Piece:
    """The plain form of a structure, every leaf written by ``leaf``."""
    if structure.is_leaf:
        return leaf(path)
    children = [
        plain_tree(child, path / entry, leaf)
        for entry, child in zip(structure.entries, structure.children, strict=True)
    ]
    if _is_list(structure) and not children:
        return "[]" if structure.kind == "list" else "()"
    if _is_list(structure):
        return repeated(children, kind=structure.kind)
    keys = [f"{_key(entry)}: " for entry in structure.entries]
    return bracketed("{", list(zip(keys, children, strict=True)), "}")


def _is_list(structure: Structure) -> bool:
    return structure.kind in ("list", "tuple")


def as_classes(
    structure: Structure, path: Path, access: str, imports: Imports, hidden: Hidden, depth: int = 0
) -> Piece:
    """Builds the classes again from the plain form, which is found at ``access``."""
    if not holds_class(structure):
        return access
    pairs = list(zip(structure.entries, structure.children, strict=True))
    if _is_list(structure):

        def build(at: int, name: str, deeper: int) -> Piece:
            return as_classes(pairs[at][1], path / pairs[at][0], name, imports, hidden, deeper)

        return _runs(structure, access, build, depth)
    parts: list[tuple[Entry, str, Piece]] = []
    for entry, child in pairs:
        place = f"{access}[{_key(entry)}]"
        built = as_classes(child, path / entry, place, imports, hidden, depth)
        parts.append((entry, place, built))
    if structure.kind == "dict":
        return bracketed("{", [(f"{_key(entry)}: ", piece) for entry, _, piece in parts], "}")
    if structure.kind in ("torch.Size", "slice"):
        sizes = [("", piece) for _, _, piece in parts]
        if structure.kind == "slice":
            return bracketed("slice(", sizes, ")")
        return bracketed("torch.Size([", sizes, "])")
    flags = attributes_of(structure, path, imports)
    name = imports.name(structure.kind, path)
    given: Pieces = [(f"{e.name}=", piece) for e, _, piece in parts if isinstance(e, Attr)]
    if given and all(piece == at for _, at, piece in parts):
        given = [("**", access)]
    if flags is None:
        return bracketed(f"{name}(", given, ")")
    named: Pieces = [(f"{key}=", text) for key, text in flags.items()]
    for key, (numbers, dtype) in hidden.get(path, {}).items():
        named.append((f"{key}=", f"torch.tensor({numbers}, dtype={dtype})"))
    return bracketed("made(", [("", name), *given, *named], ")")


def _runs(
    structure: Structure, access: str, build: Callable[[int, str, int], Piece], depth: int
) -> Piece:
    """The items of a list, runs that are built alike by one comprehension."""
    item = _ITEMS[min(depth, len(_ITEMS) - 1)]
    pieces = [build(at, item, depth + 1) for at in range(len(structure.children))]
    runs: list[tuple[int, int]] = []
    for at, piece in enumerate(pieces):
        if runs and pieces[runs[-1][0]] == piece:
            runs[-1] = (runs[-1][0], at + 1)
        else:
            runs.append((at, at + 1))
    whole = len(runs) == 1 and len(pieces) > 1
    items: Pieces = []
    for start, stop in runs:
        if stop - start == 1:
            items.append(("", build(start, f"{access}[{start}]", depth + 1)))
            continue
        part = access if whole else f"{access}[{start}:{stop}]"
        tail = f" for {item} in {part}"
        items.append(("" if whole else "*", _each(pieces[start], tail, whole)))
    if structure.kind == "list":
        return bracketed("[", items, "]")
    if whole:
        return bracketed("tuple(", [("", bracketed("[", items, "]"))], ")")
    return bracketed("(", items, ")")


def _each(piece: Piece, tail: str, whole: bool) -> Piece:
    each = followed_by(piece, tail)
    return each if whole else bracketed("[", [("", each)], "]")


def as_plain(
    structure: Structure, access: str, kept: Callable[[Path], bool], path: Path, depth: int = 0
) -> Piece:
    """Takes a result apart into lists and dicts; leaves that ``kept`` refuses are left out."""
    parts = plain_parts(structure, access, kept, path, depth)
    if structure.is_leaf:
        return access
    if not _is_list(structure):
        return bracketed("{", [(f"{_key(entry)}: ", piece) for entry, piece in parts], "}")
    item = _ITEMS[min(depth, len(_ITEMS) - 1)]
    texts = [
        flat(as_plain(child, item, kept, path / entry, depth + 1))
        for entry, child in zip(structure.entries, structure.children, strict=True)
        if _some(child, path / entry, kept)
    ]
    if len(parts) == len(structure.children) > 1 and len(set(texts)) == 1:
        if texts[0] == item:
            return f"list({access})"
        first = as_plain(structure.children[0], item, kept, path / structure.entries[0], depth + 1)
        return bracketed("[", [("", _each(first, f" for {item} in {access}", True))], "]")
    return bracketed("[", [("", piece) for _, piece in parts], "]")


def plain_parts(
    structure: Structure, access: str, kept: Callable[[Path], bool], path: Path, depth: int
) -> Sequence[tuple[Entry, Piece]]:
    """The parts of a result that are kept."""
    return [
        (entry, as_plain(child, f"{access}{entry.code()}", kept, path / entry, depth))
        for entry, child in zip(structure.entries, structure.children, strict=True)
        if _some(child, path / entry, kept)
    ]


def _some(structure: Structure, path: Path, kept: Callable[[Path], bool]) -> bool:
    return any(kept(leaf) for leaf in structure.paths(path))

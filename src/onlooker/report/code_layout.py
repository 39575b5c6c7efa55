"""Nested Python expressions as text: on one line where they fit, else one item a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = [
    "Brackets",
    "Piece",
    "Pieces",
    "bracketed",
    "flat",
    "followed_by",
    "laid_out",
    "quoted",
    "repeated",
]

_WIDTH = 108


@dataclass(frozen=True, slots=True)
class Brackets:
    """``before`` and its closing bracket around items; ``after`` stands behind the bracket."""

    before: str
    items: tuple[tuple[str, Piece], ...]
    close: str
    after: str = ""


Piece = str | Brackets
#: items of a container or a call, each with what stands before it: ``name=`` or nothing
Pieces = list[tuple[str, Piece]]


def bracketed(before: str, items: Sequence[tuple[str, Piece]], close: str) -> Brackets:
    """Items, each with what stands in front of it (``'key': ``, ``name=``, nothing)."""
    return Brackets(before, tuple(items), close)


def flat(piece: Piece) -> str:
    """The piece on one line.

    >>> flat(bracketed("[", [("", "1"), ("", bracketed("f(", [("x=", "2")], ")"))], "]"))
    '[1, f(x=2)]'
    """
    if isinstance(piece, str):
        return piece
    inside = ", ".join(front + flat(item) for front, item in piece.items)
    comma = (
        ","
        if piece.before == "(" and len(piece.items) == 1 and not piece.after.startswith(" for ")
        else ""
    )
    return f"{piece.before}{inside}{comma}{piece.close}{piece.after}"


def laid_out(piece: Piece, indent: int = 0, taken: int = 0) -> str:
    """The piece as text, its first line ``taken`` columns behind the indent."""
    line = flat(piece)
    if isinstance(piece, str) or not piece.items or indent + taken + len(line) <= _WIDTH:
        return line
    inner = " " * (indent + 4)
    lines = [
        f"{inner}{front}{_item(item, len(inner), len(front))}\n" for front, item in piece.items
    ]
    return f"{piece.before}\n{''.join(lines)}{' ' * indent}{piece.close}{piece.after}"


def _item(item: Piece, indent: int, taken: int) -> str:
    """An item on lines of its own; the ``for`` of a comprehension begins a line."""
    if isinstance(item, str) or not item.after.startswith(" for "):
        return f"{laid_out(item, indent, taken)},"
    text = laid_out(replace(item, after=""), indent, taken)
    return f"{text}\n{' ' * indent}{item.after.strip()}"


def quoted(value: object) -> str:
    """A constant as Python, a plain string in the quotes of the house.

    >>> quoted("a"), quoted(1)
    ('"a"', '1')
    """
    is_plain = isinstance(value, str) and value.isprintable() and not set(value) & {'"', "\\"}
    return f'"{value}"' if is_plain else repr(value)


def repeated(pieces: Sequence[Piece], *, kind: str) -> Piece:
    """The items of a list or tuple, runs of equal ones written as a comprehension.

    >>> flat(repeated(["a", "b", "b"], kind="list"))
    '[a, *[b for _ in range(2)]]'
    """
    runs: list[tuple[Piece, int]] = []
    for piece in pieces:
        if runs and runs[-1][0] == piece:
            runs[-1] = (piece, runs[-1][1] + 1)
        else:
            runs.append((piece, 1))
    if len(runs) == 1 and runs[0][1] > 1:
        comprehension = _comprehension(*runs[0])
        return comprehension if kind == "list" else bracketed("tuple(", [("", comprehension)], ")")
    items = [
        ("", piece) if count == 1 else ("*", _comprehension(piece, count)) for piece, count in runs
    ]
    return bracketed("[" if kind == "list" else "(", items, "]" if kind == "list" else ")")


def _comprehension(piece: Piece, count: int) -> Brackets:
    tail = f" for _ in range({count})"
    return bracketed("[", [("", followed_by(piece, tail))], "]")


def followed_by(piece: Piece, tail: str) -> Piece:
    """A piece with some text behind it."""
    if isinstance(piece, Brackets):
        return replace(piece, after=piece.after + tail)
    return piece + tail

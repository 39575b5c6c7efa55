"""Texts about the items of a list that say the same are one: ``layers[0].keys``,
``layers[1].keys`` ...
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

__all__ = ["first_of", "folded", "folded_rows"]

#: an index into a list; a dimension, as in ``x.shape[0]``, is none
_INDEX = re.compile(r"(?<=[\w\])'\"])(?<!\.shape)\[(\d+)\]")
#: several indices
_RANGE = re.compile(r"\[(\d+)(?:\.\.\d+|, \d+)+\]")
#: between the cells of a row, which have no such character
_CELL = "\x1f"


def folded(texts: Iterable[str]) -> list[str]:
    """The texts, each once, and those that differ in indices alone as one, in the place of the
    first of them.

    >>> folded(["x", "layers[0].keys", "layers[0].values", "layers[1].keys", "layers[1].values", "layers[4].keys"])
    ['x', 'layers[0..1, 4].keys', 'layers[0..1].values']
    >>> folded(["p[0].keys.shape[2] == p[0].values.shape[2]", "p[1].keys.shape[2] == p[1].values.shape[2]"])
    ['p[0..1].keys.shape[2] == p[0..1].values.shape[2]']
    """
    groups: dict[tuple[str, ...], list[tuple[int, ...]]] = {}
    for text in dict.fromkeys(texts):
        parts = _INDEX.split(text)
        groups.setdefault(tuple(parts[::2]), []).append(tuple(map(int, parts[1::2])))
    return [
        _joined(parts, indices) for parts, found in groups.items() for indices in _merged(found)
    ]


def folded_rows(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """The same for rows of texts.

    >>> folded_rows([("xs[0]", "batch"), ("xs[1]", "batch"), ("xs[2]", "4")])
    [('xs[0..1]', 'batch'), ('xs[2]', '4')]
    """
    return [tuple(text.split(_CELL)) for text in folded(_CELL.join(row) for row in rows)]


def first_of(text: str) -> str:
    """The first of the texts that were folded into one.

    >>> first_of("layers[2..23].keys"), first_of("x['0..3']")
    ('layers[2].keys', "x['0..3']")
    """
    return _RANGE.sub(r"[\1]", text)


def _joined(parts: Sequence[str], indices: Sequence[str]) -> str:
    pairs = zip(parts, (*(f"[{index}]" for index in indices), ""), strict=True)
    return "".join(text for pair in pairs for text in pair)


def _merged(found: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, ...]]:
    """The indices of texts of one form: all that vary in one place are one; places that always
    agree are one place.
    """
    places = range(len(found[0]))
    first = [
        next(other for other in places if all(row[other] == row[place] for row in found))
        for place in places
    ]
    rows = [tuple(map(str, row)) for row in found]
    for place in sorted(set(first), reverse=True):
        groups: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            rest = tuple("" if first[other] == place else index for other, index in enumerate(row))
            groups.setdefault(rest, []).append(row[place])
        rows = []
        for rest, indices in groups.items():
            shown = _ranges([int(index) for index in indices]) if len(indices) > 1 else indices[0]
            rows.append(
                tuple(shown if first[other] == place else index for other, index in enumerate(rest))
            )
    yield from rows


def _ranges(indices: Sequence[int]) -> str:
    """Ints in words: those without a gap from the first to the last.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0..2, 5, 7..8'
    """
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)

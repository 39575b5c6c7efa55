"""Texts about the items of a list that say the same are one: ``layers[0].keys``,
``layers[1].keys`` ...
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

__all__ = [
    "counted",
    "first_few",
    "first_of",
    "folded",
    "folded_rows",
    "listed_sizes",
    "named_few",
    "numbered",
    "shortened",
    "unused_name",
]

#: an index into a list; a dimension, as in ``x.shape[0]``, is none
_INDEX = re.compile(r"(?<=[\w\])'\"])(?<!\.shape)\[(\d+)\]")
#: several indices
_RANGE = re.compile(r"\[(\d+)(?:\.\.\d+|, \d+)+\]")
_MOST_SIZES = 5
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


def listed_sizes(sizes: Sequence[int]) -> str:
    """Sizes in a few words.

    >>> listed_sizes((1, 2)), listed_sizes(range(1, 10))
    ('1, 2', '1, 2 ... 9 (9 sizes)')
    """
    if len(sizes) <= _MOST_SIZES:
        return ", ".join(map(str, sizes))
    return f"{sizes[0]}, {sizes[1]} ... {sizes[-1]} ({len(sizes)} sizes)"


def folded_rows(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Folds rows of texts as :func:`folded` folds texts.

    >>> folded_rows([("xs[0]", "batch"), ("xs[1]", "batch"), ("xs[2]", "4")])
    [('xs[0..1]', 'batch'), ('xs[2]', '4')]
    """
    return [tuple(text.split(_CELL)) for text in folded(_CELL.join(row) for row in rows)]


def counted(number: int, word: str, words: str = "") -> str:
    """A number of things, in words.

    >>> counted(1, "call"), counted(2, "call"), counted(3, "process", "processes")
    ('1 call', '2 calls', '3 processes')
    """
    return f"{number} {word if number == 1 else words or f'{word}s'}"


def first_few(texts: Sequence[str], most: int, rest: str = "{} more") -> list[str]:
    """Returns the first texts, and one that counts the others.

    >>> first_few(["a", "b", "c", "d"], 2), first_few(["a", "b"], 2)
    (['a', 'b', '2 more'], ['a', 'b'])
    """
    n_more = len(texts) - most
    return [*texts[:most], rest.format(n_more)] if n_more > 0 else [*texts]


def named_few(names: Sequence[str], most: int) -> str:
    """Returns the first names in a row, and how many more there are.

    >>> named_few(["a", "b", "c", "d"], 3), named_few(["a", "b"], 3)
    ('a, b, c and 1 more', 'a, b')
    """
    n_more = len(names) - most
    return ", ".join(names[:most]) + (f" and {n_more} more" if n_more > 0 else "")


def shortened(text: str, most: int) -> str:
    """The text, cut where it has more characters.

    >>> shortened("a line of some length", 12), shortened("a line", 12)
    ('a line o ...', 'a line')
    """
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number behind it where it is in use.

    >>> unused_name("n", ["n", "n_2"]), unused_name("m", ["n"])
    ('n_3', 'm')
    """
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def numbered(names: Iterable[str]) -> list[str]:
    """The names, with a number behind those that stood before.

    >>> numbered(["x", "y", "x", "x_1", "x"])
    ['x', 'y', 'x_1', 'x_1_1', 'x_2']
    """
    found: dict[str, None] = {}
    for name in names:
        shown, number = name, 0
        while shown in found:
            number += 1
            shown = f"{name}_{number}"
        found[shown] = None
    return list(found)


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
    """Yields the indices of texts of one form: all that vary in one place are one; places that
    always agree are one place.

    Rows (0, 4, 0), (1, 4, 1), (2, 4, 2) and (2, 7, 2): the first and the last place agree, so each
    row has two groups of places. Rows that differ in the middle alone are joined first, then those
    that differ in the others alone: (0..1, 4, 0..1) and (2, "4, 7", 2).
    """
    groups_of_places: dict[tuple[int, ...], list[int]] = {}
    for place, column in enumerate(zip(*found, strict=True)):
        groups_of_places.setdefault(column, []).append(place)
    rows = [tuple(map(str, row)) for row in found]
    for places in reversed(groups_of_places.values()):
        alike: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            rest = tuple("" if place in places else index for place, index in enumerate(row))
            alike.setdefault(rest, []).append(row[places[0]])
        rows = [_with_index(rest, places, indices) for rest, indices in alike.items()]
    yield from rows


def _with_index(
    rest: Sequence[str], places: Sequence[int], indices: Sequence[str]
) -> tuple[str, ...]:
    """Returns the row with some indices in words at some places."""
    shown = indices[0] if len(indices) == 1 else _ranges([int(index) for index in indices])
    return tuple(shown if place in places else index for place, index in enumerate(rest))


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

"""The sizes that some regions serve, in as few words as are exact.

A worked example. The regions of one graph are ``sequence >= 3 and batch >= 2``, ``sequence == 2``,
``sequence == 1`` and ``batch == 1``; the plan has both symbols from 1 on. Each formula is read as a
test of one term, a sum of symbols without its constant: ``(-1) + sequence == 1`` tests ``sequence``
for 2. The tests of a term divide its sizes into cells in which no test changes: ``sequence`` has 1,
2 and "3 and more", ``batch`` 1 and "2 and more". A region is a box of cells, and the four boxes
cover every pair of cells: the graph serves all sizes of the plan, and no condition is left to tell.

Different terms are taken for independent, though ``n`` and ``n + k`` are not. A box may then look
smaller against the whole than it is, and never larger: what is said to be served is served.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.contract import Region
from ..core.drawing.alike import counted
from ..core.plan import Symbol
from .size_sets import Cell, SizeSet, Term, Test
from .size_tests import by_term, range_tests, tests_of

__all__ = ["ServedSizes", "served_sizes"]

#: boxes that are compared before the search for a cover ends without an answer
_MOST_STEPS = 20_000

#: the cells of each term that a region allows; a term that is not there is free
_Box = Mapping[str, frozenset[Cell]]


@dataclass(frozen=True, slots=True)
class ServedSizes:
    """The sizes that some regions serve: all sizes of ``sets`` together; where these are not
    ``exact``, those that satisfy one of the ``cases`` as well, each a conjunction in words.

    ``limited`` are the terms of which not all sizes of the plan are served.
    """

    sets: tuple[SizeSet, ...] = ()
    limited: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    exact: bool = True


def served_sizes(parts: Sequence[tuple[Sequence[Symbol], Sequence[Region]]]) -> ServedSizes:
    """Returns the sizes that the regions of some graphs serve together; each part has the symbols
    of one graph, with the range that its plan gives them, and the regions of its contract.

    >>> from onlooker.core.contract import Constraint, Origin
    >>> def region(*formulas):
    ...     return Region(tuple(Constraint(formula, Origin.MODEL) for formula in formulas))
    >>> n = Symbol("n")
    >>> [found.words for found in served_sizes([((n,), (region("n > 4"), region("(-1) + n == 3")))]).sets]
    ['n 4 and more']
    >>> served_sizes([((n,), (region("n <= 24"),)), ((n,), (region("n > 24"),))]).limited
    ()
    >>> [found.words for found in served_sizes([((n,), (region("n % 16 == 0", "n != 32"),))]).sets]
    ['n 16 or 48 and more, in steps of 16']
    """
    terms = _terms_of_symbols(symbols for symbols, _ in parts)
    regions_as_tests = []
    for symbols, regions in parts:
        own = [test for symbol in symbols for test in range_tests(symbol, terms[symbol.name])]
        regions_as_tests += [[*own, *tests_of(region, own, terms)] for region in regions]
    for text, tests in by_term(itertools.chain(*regions_as_tests)).items():
        terms[text].tests = dict.fromkeys(tests)
    for term in terms.values():
        term.divide()
    boxes = [_box_of(tests, terms) for tests in regions_as_tests]
    return _told([box for box in boxes if all(box.values())], terms)


def _terms_of_symbols(all_symbols: Iterable[Sequence[Symbol]]) -> dict[str, Term]:
    """A term for each symbol, over the sizes that any of the plans allows."""
    terms: dict[str, Term] = {}
    for symbol in itertools.chain(*all_symbols):
        high = math.inf if symbol.high is None else symbol.high
        term = terms.setdefault(symbol.name, Term(symbol.name, (symbol.low, high), symbol.step))
        term.limits = min(term.limits[0], symbol.low), max(term.limits[1], high)
        term.step = math.gcd(term.step, symbol.step)
    return terms


def _box_of(tests: Iterable[Test], terms: Mapping[str, Term]) -> _Box:
    """The cells of each term in which all tests hold, of some terms none for a region that no sizes
    are in.
    """
    box = {}
    for text, own in by_term(tests).items():
        places = [list(terms[text].tests).index(test) for test in own]
        cells = terms[text].cells
        allowed = frozenset(cell for cell in cells if all(cell[place] for place in places))
        if len(allowed) < len(cells) or not cells:
            box[text] = allowed
    return box


def _told(boxes: Sequence[_Box], terms: Mapping[str, Term]) -> ServedSizes:
    hulls = {
        text: frozenset[Cell]().union(*(box.get(text, term.cells) for box in boxes))
        for text, term in terms.items()
    }
    limited = tuple(text for text, cells in hulls.items() if len(cells) < len(terms[text].cells))
    sets = {text: terms[text].set_of(cells) for text, cells in hulls.items()}
    narrower = [
        {text: cells for text, cells in box.items() if not cells >= hulls[text]} for box in boxes
    ]
    is_told = all(sets[text] is not None for text in limited)
    exact = bool(boxes) and is_told and _covers(narrower, hulls, [_MOST_STEPS])
    # symbols are told always, other terms where they limit something
    shown = tuple(
        found for text, found in sets.items() if found and (text in limited or text.isidentifier())
    )
    return ServedSizes(shown, limited, () if exact else _cases(boxes, terms), exact)


def _covers(boxes: Sequence[_Box], whole: Mapping[str, frozenset[Cell]], steps: list[int]) -> bool:
    """True where the boxes together are the product of the cells of all terms; False as well where
    too many steps would tell.

    A term of a box with most of them is taken cell by cell: the boxes that have the cell must cover the
    other terms. Of ``a >= 2`` and ``b >= 2`` none has the cell ``b == 1`` of ``b`` but the first, which
    does not cover ``a == 1``.
    """
    if any(not box for box in boxes):
        return True
    steps[0] -= 1
    if not boxes or steps[0] < 0:
        return False
    _, text = max((len(box), name) for box in boxes for name in box)
    taking = dict.fromkeys(
        tuple(n for n, box in enumerate(boxes) if text not in box or cell in box[text])
        for cell in whole[text]
    )
    for members in taking:
        rest = [{name: cells for name, cells in boxes[n].items() if name != text} for n in members]
        if not _covers(rest, whole, steps):
            return False
    return True


def _cases(boxes: Sequence[_Box], terms: Mapping[str, Term]) -> tuple[str, ...]:
    """Each box in words, without those that lie inside of another one."""
    found: dict[str, None] = {}
    for number, box in enumerate(boxes):
        is_told_by_other = any(
            _is_inside(box, other) and (n < number or not _is_inside(other, box))
            for n, other in enumerate(boxes)
            if n != number
        )
        if is_told_by_other:
            continue
        sets = [terms[text].set_of(cells) for text, cells in box.items()]
        words = [each.words for each in sets if each is not None and each.is_readable]
        count = len(sets) - len(words)
        if count:
            words.append(counted(count, "further condition"))
        found.setdefault(" and ".join(words) or "all sizes")
    return tuple(found)


def _is_inside(box: _Box, other: _Box) -> bool:
    return all(text in box and box[text] <= cells for text, cells in other.items())

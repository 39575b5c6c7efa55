"""The decisions that the graph of a file shows: tables that inputs index, and numbers that sizes
are compared with.

A file that others made has weights and numbers of its own. One wrong row of a table shows only in a
call with its id, and ``positions >= 64`` only in a call of 65 tokens: no watched call need have
either. Each format has a reader that gives the operators of the graph as steps; the steps are
followed here, once for all formats.

For ``rows = table[ids.clamp(max=99)]`` with a table of 100 rows, the clamp hands the values of
``ids`` on, and the lookup says that ``ids`` index 100 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

__all__ = ["Act", "Contents", "OperatorStep", "contents_of", "numbers_in"]

#: a number above this one is an end that nothing reaches, or a mark
_MOST = 2**20


class Act(Enum):
    """The kinds of operators, as far as tables and sizes go."""

    COUNT = auto()  #: gives sizes, or what follows from sizes alone
    HAND_ON = auto()  #: gives values of its inputs, or numbers made of each one by itself
    LOOK_UP = auto()  #: takes rows of a table; the input is the index
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class OperatorStep:
    """One operator. ``inputs`` are the names of its inputs that are no constants.

    ``numbers`` are constants that it compares with or cuts at; ``are_ints`` is True where they stand
    beside ints, which floats of the model do not. ``rows`` is the length of the table of a lookup.
    """

    act: Act
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: tuple[float, ...] = ()
    are_ints: bool = False
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of the longest table that the values of an input index, by the name of the input;
    and the numbers at which sizes may decide, in rising order.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()


def contents_of(steps: Iterable[OperatorStep], inputs: Sequence[str]) -> Contents:
    """Returns the tables and the decisions in the steps of a graph, in the order in which they run.

    >>> look = OperatorStep(Act.LOOK_UP, ("ids",), ("rows",), rows=100)
    >>> count = OperatorStep(Act.COUNT, (), ("places",))
    >>> compare = OperatorStep(Act.OTHER, ("places",), ("late",), (64.0,))
    >>> contents_of([look, count, compare], ["ids"])
    Contents(rows={'ids': 100}, numbers=(64,))
    """
    sources: dict[str, frozenset[str]] = {name: frozenset({name}) for name in inputs}
    counted: set[str] = set()
    rows: dict[str, int] = {}
    numbers: set[float] = set()
    for step in steps:
        own = frozenset(source for name in step.inputs for source in sources.get(name, ()))
        is_counted = bool(step.inputs) and counted.issuperset(step.inputs)
        if step.act is Act.COUNT or is_counted:
            counted.update(step.outputs)
        if step.act is Act.HAND_ON:
            sources.update(dict.fromkeys(step.outputs, own))
        if step.are_ints or is_counted:
            numbers.update(step.numbers)
        if step.act is Act.LOOK_UP:
            rows.update({name: max(step.rows, rows.get(name, 0)) for name in own})
            numbers.update({step.rows} if is_counted else ())
    whole = {
        abs(int(number)) for number in numbers if abs(number) < _MOST and number == int(number)
    }
    return Contents(rows, tuple(sorted(number for number in whole if number > 1)))


def numbers_in(arrays: Iterable[Any]) -> tuple[tuple[float, ...], bool]:
    """The numbers of arrays of numpy, but for NaN, and whether all are ints; other arrays have none."""
    numbers: list[float] = []
    are_ints = True
    for array in arrays:
        if array.dtype.kind in "iuf":
            numbers += [number for number in array.reshape(-1).tolist() if not math.isnan(number)]
            are_ints = are_ints and array.dtype.kind != "f"
    return tuple(numbers), are_ints

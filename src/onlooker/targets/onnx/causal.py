"""Whether a mask of attention lets a token look ahead: proven from the nodes that make it, for all
sizes and values.

A mask is a conjunction: ``column <= row + past``, a window, padding. One part that hides all that
lies ahead is enough, whatever the others say. So such a part is looked for: a comparison of
positions that are counted along the columns and along the rows, from a start that sizes give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ...core.expression import Expression
from .sizes import Sizes

__all__ = ["is_causal"]

#: a score to which this is added counts for nothing
_NOTHING = -1e4
#: operators that give the same numbers, in the same order, another shape
_RESHAPED = ("Expand", "Unsqueeze", "Squeeze", "Reshape", "Identity")
#: by operator whether the first of two numbers is the smaller one where it holds, and whether it
#: has to be smaller
_COMPARED = {
    "LessOrEqual": (True, False),
    "Less": (True, True),
    "GreaterOrEqual": (False, False),
    "Greater": (False, True),
}
_INTEGERS = (6, 7)  # int32 and int64, as ONNX numbers its types


class _Part(NamedTuple):
    """A part of a conjunction: what it says, or the contrary of it."""

    value: Any
    negated: bool = False


def is_causal(mask: Any, tokens: str, length: str, sizes: Sizes) -> bool:
    """True for a mask ``(batch, heads, tokens, length)`` in which the last token sees the whole
    length at most, the one before it all but the last, and so on, for all sizes.

    False says that this was not proven. A mask with one row for several tokens is none.
    """
    found = _Mask(tokens, length, sizes)
    return found.has_shape(mask) and (tokens == "1" or any(map(found.hides, found.parts(mask))))


class _Mask:
    """What is known of the sizes of a mask; each size is a text."""

    def __init__(self, tokens: str, length: str, sizes: Sizes) -> None:
        self._tokens, self._length, self._sizes = tokens, length, sizes
        self._past = Expression.parse(length) - Expression.parse(tokens)

    def _shape(self, value: Any) -> list[str]:
        rank = len(value.shape) if value.shape is not None else 0
        return [self._sizes.text(value, axis) for axis in range(rank)]

    def has_shape(self, value: Any) -> bool:
        """True where the last two dimensions are rows and columns of the mask."""
        return self._shape(value)[-2:] == [self._tokens, self._length]

    def parts(self, mask: Any) -> Iterator[_Part]:
        """The parts of the conjunction, each as large as the mask."""
        below = [_Part(mask)]
        while below:
            part = below.pop()
            if self.has_shape(part.value):
                yield part
                below += _within(part)

    def hides(self, part: _Part) -> bool:
        """True where ``column <= row + past`` follows from a part."""
        node = part.value.producer()
        if node is None or node.domain or node.op_type not in _COMPARED:
            return False
        first_is_smaller, strict = _COMPARED[node.op_type]
        first, second = node.inputs
        if first_is_smaller == part.negated:
            first, second = second, first
        strict = strict != part.negated
        column = self._start(first, self._length, -1)
        row = self._start(second, self._tokens, -2)
        if column is None or row is None:
            return False
        spare = self._past + column - row
        return spare.is_constant and spare.evaluate({}) + strict >= 0

    def _start(self, value: Any, size: str, axis: int) -> Expression | None:
        """The first of the positions ``start, start + 1, ...`` that a value counts along an axis;
        None where it is anything else.
        """
        shape = self._shape(value)
        alone = len(shape) >= -axis and shape.pop(axis) == size and set(shape) <= {"1"}
        return self._counted(value, size) if alone else None

    def _counted(self, value: Any, size: str) -> Expression | None:
        node = value.producer()
        if node is None or node.domain or [s for s in self._shape(value) if s != "1"] != [size]:
            return None
        if node.op_type in _RESHAPED or _is_integer_cast(node):
            return self._counted(node.inputs[0], size)
        if node.op_type == "Range":
            start, _, step = map(self._number, node.inputs)
            return start if step is not None and str(step) == "1" else None
        if node.op_type not in ("Add", "Sub"):
            return None
        first, second = node.inputs
        if node.op_type == "Add" and self._number(first) is not None:
            first, second = second, first
        start, more = self._counted(first, size), self._number(second)
        if start is None or more is None:
            return None
        return start + more if node.op_type == "Add" else start - more

    def _number(self, value: Any) -> Expression | None:
        """A number that sizes give, or a constant; None for any other."""
        if value.const_value is not None:
            array = value.const_value.numpy()
            is_number = array.size == 1 and array.dtype.kind == "i"
            return Expression.constant(int(array.reshape(-1)[0])) if is_number else None
        node = value.producer()
        if node is None or node.domain:
            return None
        if node.op_type == "Shape":
            return self._size(node)
        if node.op_type in _RESHAPED or _is_integer_cast(node):
            return self._number(node.inputs[0]) if set(self._shape(value)) <= {"1"} else None
        if node.op_type in ("Add", "Sub"):
            first, second = map(self._number, node.inputs)
            if first is None or second is None:
                return None
            return first + second if node.op_type == "Add" else first - second
        return None

    def _size(self, node: Any) -> Expression | None:
        """The one size that a node reads."""
        measured = node.inputs[0]
        rank = len(measured.shape) if measured.shape is not None else 0
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", rank)
        axes = range(rank)[start:end]
        text = self._sizes.text(measured, axes[0]) if len(axes) == 1 else ""
        return Expression.parse(text) if text else None


def _within(part: _Part) -> list[_Part]:
    """The parts of which a part is the conjunction."""
    node = part.value.producer()
    if node is None or node.domain:
        return []
    if node.op_type == "Not":
        return [_Part(node.inputs[0], not part.negated)]
    if node.op_type == ("Or" if part.negated else "And"):
        return [_Part(value, part.negated) for value in node.inputs]
    if node.op_type in _RESHAPED:
        return [_Part(node.inputs[0], part.negated)]
    if node.op_type == "Where" and not part.negated:
        condition, then, otherwise = node.inputs
        hidden = [(otherwise, _Part(condition)), (then, _Part(condition, negated=True))]
        return [found for value, found in hidden if _is_hidden(value)]
    return []


def _is_hidden(value: Any) -> bool:
    """True for a constant that hides: False, or a score of nothing."""
    if value.const_value is None:
        return False
    array = value.const_value.numpy()
    return not array.any() if array.dtype == bool else bool(array.size and array.max() <= _NOTHING)


def _is_integer_cast(node: Any) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) in _INTEGERS

"""The index of a step of a loop that is rolled, and floats that a step computes from it.

Neither is a number of Python, so that nothing decides by it: what a step does must be the same in each. Beside a tensor
it is a tensor of its step, and in brackets it reads a row::

    h = h + x[:, t] * (t / n)       the row of the step, times a tensor with the index over n
    h = h + x[:, : t // 2].sum(1)   as many rows as a size says, which the step reads from its index

A function of torch that is given the index wants an int: the next attempt gives the model such a size for it.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import sympy
import torch

from ...model_source.frames import is_code_of_model
from ...model_source.source_loops import name_of_items
from ...pytrees.nodes import is_size
from ...torch_internals.sizes import (
    expression_of,
    free_unbacked_symbols,
    is_less,
    statically_known_true,
)
from ..numbers.size_ints import is_sized

__all__ = ["BY_INDEX", "ItemRead", "StepFloat", "StepIndex"]

#: a function of two values
_Compute = Callable[[Any, Any], Any]
BY_INDEX = "what a step does depends on its index"
_OF_INDEX = "a step computes a number from its index, which is another constant in each step"
#: the dtypes of tensors without dimensions beside which a tensor of an int gives what the int does
_AS_NUMBERS = frozenset({torch.int64, torch.float32, torch.float64})
_FLOATS = (float, torch.SymFloat)


class LoopOfIndex(Protocol):
    """The loop of an index; ``n_steps`` of its steps are run."""

    count: Any
    line: str
    n_steps: int
    steps: list[Any]

    def refused(self, reason: str, **where: bool) -> Exception:
        """The error that the loop is no scan."""

    def tensor_of(self, index: StepIndex) -> torch.Tensor:
        """The index of a step as a tensor."""

    def number_of(self, index: StepIndex) -> Any:
        """The index of a step as a size that is a value; None where the steps have no such sizes."""

    def has_numbers(self, value: Any) -> bool:
        """True for a size that a step makes of numbers."""

    def goes_on(self) -> bool | None:
        """The answer to the test of a ``while`` loop whose steps these are; None for any other question."""

    def place_in_list(self, index: StepIndex, values: list[Any] | None) -> int:
        """The place of the item of a list that the step reads at an index."""


def _or_of_tensors(compute: _Compute) -> Callable[[_Compute], _Compute]:
    """A method of an index that computes with the index as a tensor where the other one is a tensor."""

    def decorated(method: _Compute) -> _Compute:
        @functools.wraps(method)
        def either(index: StepIndex, other: Any) -> Any:
            if isinstance(other, torch.Tensor):
                return compute(index.tensor_beside(other), other)
            return method(index, other)

        return either

    return decorated


def _or_of_steps(method: _Compute) -> _Compute:
    """A comparison of an index: in the test of a ``while`` loop the answer is whether another step begins."""

    @functools.wraps(method)
    def compared(index: StepIndex, other: Any) -> Any:
        goes_on = index.loop.goes_on()
        return method(index, other) if goes_on is None else goes_on

    return compared


def _by_value(compute: _Compute) -> _Compute:
    """A method of an index that computes a size, which is a value, with an int, a size or an index."""

    def computed(index: StepIndex, other: Any) -> Any:
        value = index.loop.number_of(index)
        if isinstance(other, StepIndex):
            other = index.loop.number_of(other)
        if value is None or not is_size(other):
            raise index.loop.refused(_OF_INDEX)
        return compute(value, other)

    return computed


_plus, _minus, _times = (_by_value(one) for one in (operator.add, operator.sub, operator.mul))


@dataclass(frozen=True, slots=True, eq=False)
class StepIndex:
    """The index of a step: ``first + each * step``. It is no int, so nothing decides by it but
    comparisons with numbers that are beyond the indices of all steps. With a tensor it is a tensor, and ``t // 2`` is a
    size that is a value. ``step`` is the number of the step that made it.
    """

    loop: LoopOfIndex
    #: how often which numbers are in ``first``: a sum of sizes that a step makes is none of the graph
    terms: tuple[tuple[Any, Any], ...]
    #: an int, or a size of at least 1
    each: Any
    step: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", len(self.loop.steps) - 1)

    @classmethod
    def of(cls, loop: LoopOfIndex, first: Any, each: Any) -> StepIndex:
        """The index of the steps of a loop."""
        return cls(loop, ((1, first),), each)

    @property
    def first(self) -> Any:
        """The index of the first step."""
        numbers = [value if count == 1 else count * value for count, value in self.terms]
        return sum(numbers[1:], numbers[0])

    @_or_of_tensors(operator.add)
    def __add__(self, other: Any) -> Any:
        if _is_float(other):
            return self.as_float() + other
        if self.loop.has_numbers(other):
            return _plus(self, other)
        return StepIndex(self.loop, (*self.terms, (1, self._number(other))), self.each)

    @_or_of_tensors(operator.sub)
    def __sub__(self, other: Any) -> Any:
        if _is_float(other):
            return self.as_float() - other
        if self.loop.has_numbers(other):
            return _minus(self, other)
        return StepIndex(self.loop, (*self.terms, (-1, self._number(other))), self.each)

    @_or_of_tensors(lambda own, other: other - own)
    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1

    @_or_of_tensors(operator.mul)
    def __mul__(self, other: Any) -> Any:
        if _is_float(other):
            return self.as_float() * other
        is_size = isinstance(other, torch.SymInt) and bool(statically_known_true(other >= 1))
        if not is_size and (type(other) is not int or not other):
            return _times(self, other)
        terms = tuple((count * other, value) for count, value in self.terms)
        return StepIndex(self.loop, terms, self.each * other)

    def _computes(self, *_: Any) -> Any:
        raise self.loop.refused(_OF_INDEX)

    @_or_of_tensors(torch.div)
    def __truediv__(self, other: Any) -> Any:
        return self.as_float() / other

    @_or_of_tensors(lambda own, other: torch.div(other, own))
    def __rtruediv__(self, other: Any) -> Any:
        return other / self.as_float()

    @_or_of_tensors(torch.pow)
    def __pow__(self, other: Any) -> Any:
        return self.as_float() ** other if _is_float(other) else self._computes()

    @_or_of_tensors(lambda own, other: torch.pow(other, own))
    def __rpow__(self, other: Any) -> Any:
        return other ** self.as_float() if _is_float(other) else self._computes()

    __radd__, __rmul__ = __add__, __mul__
    __mod__ = _or_of_tensors(torch.remainder)(_by_value(operator.mod))
    __rmod__ = _or_of_tensors(lambda own, other: torch.remainder(other, own))(_computes)
    __floordiv__ = _or_of_tensors(torch.floor_divide)(_by_value(operator.floordiv))
    __rfloordiv__ = _or_of_tensors(lambda own, other: torch.floor_divide(other, own))(_computes)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def as_float(self) -> StepFloat:
        """The index as a float."""
        return StepFloat(self.loop, self.loop.tensor_of(self).to(torch.float64))

    def tensor_beside(self, other: torch.Tensor) -> torch.Tensor:
        """The index as a tensor, where it computes with the other one what a number would."""
        if not other.ndim and other.dtype not in _AS_NUMBERS:
            raise self.loop.refused("the loop index is used with a number of a small dtype")
        return self.loop.tensor_of(self)

    def _number(self, value: Any) -> Any:
        if not is_size(value):
            self._decides()
        return value

    def is_less(self, number: Any) -> bool | None:
        """Whether the index is less than a number in all steps; None where that hangs on the sizes, or on the step."""
        least, greatest = self.ends
        if is_less(greatest, number):
            return True
        return False if is_less(number, least + 1) else None

    @_or_of_tensors(operator.lt)
    @_or_of_steps
    def __lt__(self, other: Any) -> Any:
        # ``t < 0`` is no for all steps and ``t < n`` yes; ``t < 3`` is yes for some, and ends the rolling
        number, (least, greatest) = self._number(other), self.ends
        found = self.is_less(number)
        if found is not None:
            return found
        if self._is_inside(number):
            if is_demanded(greatest < number):
                return True
            if is_demanded(number <= least):
                return False
        raise self._differs(
            lambda least, greatest: is_less(greatest, number) or is_less(number, least + 1)
        )

    @_or_of_tensors(operator.le)
    @_or_of_steps
    def __le__(self, other: Any) -> Any:
        return self.__lt__(self._number(other) + 1)

    @_or_of_tensors(operator.gt)
    @_or_of_steps
    def __gt__(self, other: Any) -> Any:
        return not self.__le__(other)

    @_or_of_tensors(operator.ge)
    @_or_of_steps
    def __ge__(self, other: Any) -> Any:
        return not self.__lt__(other)

    @_or_of_tensors(operator.eq)
    def __eq__(self, other: Any) -> Any:
        number, (least, greatest) = self._number(other), self.ends
        if is_less(greatest, number) or is_less(number, least):
            return False
        if self._is_inside(number) and (
            is_demanded(greatest < number) or is_demanded(number < least)
        ):
            return False
        raise self._differs(
            lambda least, greatest: is_less(greatest, number) or is_less(number, least)
        )

    def _differs(self, is_alike: Callable[[Any, Any], bool]) -> Exception:
        """The error for a comparison that not all steps answer alike; ``is_alike`` says of the least and the greatest
        of some indices whether it is the same for those.
        """
        before_last = self.last - self.each
        ends = (self.first, before_last) if self.is_growing else (before_last, self.first)
        at_last = is_alike(*ends)
        return self.loop.refused(BY_INDEX, at_ends=not at_last, at_last=at_last)

    def _is_inside(self, number: Any) -> bool:
        """True for a number that is none at an end of the indices, where the first or the last step alone differs."""
        if type(number) is not int:
            return False
        reach = abs(self.each) if type(self.each) is int else 1
        beside = [sympy.sympify(expression_of(number - end)) for end in self.ends]
        return not any(one.is_Integer and abs(one) <= reach for one in beside)

    def is_behind(self, other: StepIndex) -> bool:
        """True for an index that the other one had in a step before, and has in no step that comes."""
        distance = (other.first - self.first) * (1 if other.is_growing else -1)
        return self.goes_with(other) and bool(statically_known_true(distance > 0))

    def goes_with(self, other: StepIndex) -> bool:
        """True for an index that differs from the other one by the same number in each step."""
        return bool(statically_known_true(self.each == other.each))

    @property
    def is_growing(self) -> bool:
        """True for an index that is greater in each step."""
        return bool(statically_known_true(self.each > 0))

    @_or_of_tensors(operator.ne)
    def __ne__(self, other: Any) -> Any:
        return not self == other

    @property
    def ends(self) -> tuple[Any, Any]:
        """The least and the greatest index."""
        return (self.first, self.last) if self.is_growing else (self.last, self.first)

    @property
    def last(self) -> Any:
        """The index of the last step."""
        return self.first + self.each * (self.loop.count - 1)

    def _decides(self, *_: Any) -> Any:
        raise self.loop.refused(BY_INDEX)

    def __index__(self) -> int:
        frame = sys._getframe(1)
        is_known = is_code_of_model(frame.f_code.co_filename)
        name = name_of_items(frame.f_code, frame.f_lasti) if is_known else ""
        values = frame.f_locals.get(name) if name else None
        return self.loop.place_in_list(self, values if isinstance(values, list) else None)

    __bool__ = __int__ = __float__ = __hash__ = __str__ = __format__ = _decides


def _is_computed(value: Any) -> bool:
    """True for a float that an operator computes when the program runs, as ``math.log`` of a size is."""
    return isinstance(value, torch.SymFloat) and bool(free_unbacked_symbols(value))


@dataclass(frozen=True, slots=True)
class Extreme:
    """``min`` or ``max``: of the index of a step and a size it is the index, or the size, and where steps differ a
    value. Of a float that is computed when the program runs it is computed there too. Of other values it is
    what the function ``plain`` gives.
    """

    of_sizes: _Compute
    plain: Callable[..., Any]

    def around(self, plain: Callable[..., Any]) -> Extreme:
        """The same for what another function gives."""
        return replace(self, plain=plain)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The smaller or the greater value."""
        if len(args) == 1 and not options and is_sized(args[0]) and hasattr(args[0], "extreme"):
            return args[0].extreme("min" if self._is_min else "max")
        if len(args) > 1 and not options and any(map(_is_computed, args)):
            return functools.reduce(self.of_sizes, args)
        if len(args) != 2 or options or not any(isinstance(one, StepIndex) for one in args):
            return self.plain(*args, **options)
        index, other = args if isinstance(args[0], StepIndex) else reversed(args)
        if is_size(other) and index.is_less(other) is None:
            value = index.loop.number_of(index)
            if value is not None:
                return self.of_sizes(value, other)
        is_it = operator.le if self._is_min else operator.ge
        return index if is_it(index, other) else other

    @property
    def _is_min(self) -> bool:
        return self.of_sizes is torch.sym_min


SMALLER, GREATER = Extreme(torch.sym_min, min), Extreme(torch.sym_max, max)


def is_demanded(condition: Any) -> bool:
    """True for a condition on sizes that holds in the trace: its graph is for such sizes from here on."""
    if isinstance(condition, torch.SymBool) and free_unbacked_symbols(condition):
        return False
    return bool(condition)


def _is_float(value: Any) -> bool:
    return isinstance(value, (*_FLOATS, StepFloat))


def _of_float(compute: _Compute, *, is_swapped: bool = False) -> _Compute:
    """A method of a float of a step, which is a tensor beside a tensor."""

    def computed(own: StepFloat, other: Any) -> Any:
        number, is_tensor = own.tensor, isinstance(other, torch.Tensor)
        if is_tensor:
            number = own.tensor_beside(other)
        elif isinstance(other, (StepIndex, StepFloat)):
            other = (other.as_float() if isinstance(other, StepIndex) else other).tensor
        elif isinstance(other, bool) or not isinstance(other, (*_FLOATS, int, torch.SymInt)):
            raise own.loop.refused(_OF_INDEX)
        result = compute(other, number) if is_swapped else compute(number, other)
        return result if is_tensor else StepFloat(own.loop, result)

    return computed


@dataclass(frozen=True, slots=True, eq=False)
class StepFloat:
    """A float that a step computes from its index, as ``t / n``: a tensor of float64 without dimensions. With a
    tensor it computes what a float would.
    """

    loop: LoopOfIndex
    tensor: torch.Tensor

    __add__ = __radd__ = _of_float(torch.add)
    __mul__ = __rmul__ = _of_float(torch.mul)
    __sub__, __rsub__ = _of_float(torch.sub), _of_float(torch.sub, is_swapped=True)
    __truediv__, __rtruediv__ = _of_float(torch.div), _of_float(torch.div, is_swapped=True)
    __pow__, __rpow__ = _of_float(torch.pow), _of_float(torch.pow, is_swapped=True)

    def __neg__(self) -> Any:
        return self * -1.0

    def tensor_beside(self, other: torch.Tensor) -> torch.Tensor:
        """The float as a tensor that computes with the other one what a number would."""
        is_float = other.is_floating_point()
        if other.is_complex() or (is_float and other.dtype not in _AS_NUMBERS):
            raise self.loop.refused("a float of a step is used with a number of another dtype")
        dtype = other.dtype if is_float else torch.get_default_dtype()
        return self.tensor if dtype is torch.float64 else self.tensor.to(dtype)

    def _decides(self, *_: Any) -> Any:
        raise self.loop.refused(BY_INDEX)

    __bool__ = __index__ = __int__ = __float__ = __str__ = __format__ = _decides
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _decides


@dataclass(frozen=True, slots=True)
class ItemRead:
    """An item of a list that a step reads at an index; ``beside`` are the items around it, with the item."""

    index: StepIndex
    beside: tuple[Any, ...]

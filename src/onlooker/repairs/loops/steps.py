"""A loop that is rolled, and the functions of its steps, as values that can be compared.

``x[:, t]`` in a step is an :class:`Operation` with the rows ``Rows(x, index)``; ``torch.tanh(row + h)`` is one for the
sum, whose arguments are a ``Result`` of this step and a ``Result`` of the step ``before``, and one for the ``tanh``.
Two steps do the same where their operations are equal: tensors from outside by identity, sizes by their
expressions, numbers by class and value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import sympy
import torch

from ...torch_internals.fake_tensors import give_value, has_values, value_beside
from ...torch_internals.modes import WithoutFunctions, without_dispatch_modes
from ...torch_internals.sizes import expression_of, statically_known_true
from ...torch_internals.tensor_marks import memory_of
from ..numbers.padded_rows import padded_rows
from ..trace_mode import InVainError
from .step_indices import BY_INDEX, ItemRead, StepIndex
from .step_numbers import StepNumbers, StepSize, demanded

__all__ = [
    "Constant",
    "Joined",
    "Loop",
    "NotRolledError",
    "Operation",
    "Outer",
    "Place",
    "Result",
    "Rows",
    "Size",
    "grows",
    "leaves_of",
    "mapped",
    "name_of",
    "number_as_tensor",
    "writes",
]

#: so far from an end of a list the first item may be that a loop reads: what is farther may be there for its number of
#: steps alone
_MOST_BEFORE = 16
#: the number of an operation in its step, and that of one of its results
Place = tuple[int, int]
_SUMS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
_WRITING = {"__setitem__", *(f"__i{name}__" for name in _SUMS)}


class NotRolledError(InVainError):
    """A loop is no ``scan``; ``at_ends`` is True where the first or the last step alone may be the reason,
    ``at_last`` where the last step is, ``here`` where it may be one at other sizes, ``is_int`` where its index is to
    be an int, which may be a size.
    """

    words = "the loop at {line} is no scan of torch: {reason}"

    def __init__(
        self,
        line: str,
        reason: str,
        *,
        at_ends: bool = False,
        at_last: bool = False,
        here: bool = False,
        is_int: bool = False,
    ) -> None:
        super().__init__(line, reason)
        self.at_ends, self.at_last, self.here, self.is_int = at_ends, at_last, here, is_int


@dataclass(frozen=True, slots=True)
class Constant:
    """An argument that is no tensor and no size: equal ones are of one class."""

    kind: type
    value: Any


@dataclass(frozen=True, slots=True)
class Size:
    """A symbolic size, by its expression."""

    expression: str
    value: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class Outer:
    """A tensor that was there before the loop."""

    number: int
    tensor: torch.Tensor = field(compare=False)


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that a step computes: of the same step, or of one that was so many steps ``before``."""

    operation: int
    leaf: int
    before: int = 0

    @property
    def place(self) -> Place:
        """The number of the operation in its step, and that of the result of the operation."""
        return self.operation, self.leaf


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor, one a step: those that ``entries``, with the index among them, read.

    ``dim`` is the dimension of the tensor that the index is for, ``place`` that of the rows.
    """

    number: int
    key: Any
    tensor: torch.Tensor = field(compare=False)
    entries: tuple[Any, ...] = field(compare=False)
    index: StepIndex = field(compare=False)
    dim: int
    place: int

    def whole(self) -> torch.Tensor:
        """A view of the tensor with the rows of all steps, in the order of their indices."""
        entries = tuple(slice(None) if isinstance(e, StepIndex) else e for e in self.entries)
        return self._cut()[entries]

    def of_steps(self) -> torch.Tensor:
        """The rows in the order of the steps, along the first dimension."""
        rows = self.whole().movedim(self.place, 0)
        return rows if self.index.is_growing else rows.flip(0)

    def of_first_index(self) -> torch.Tensor:
        """One row, for its shape."""
        return self.tensor[tuple(0 if isinstance(e, StepIndex) else e for e in self.entries)]

    def of_step(self, step: int) -> torch.Tensor:
        """The row of a step, for its shape, with the value that the example has there."""
        row = self.of_first_index()
        if has_values(row):
            row = row.view_as(row)  # torch may give the tensor itself
            with contextlib.suppress(LookupError), without_dispatch_modes(), WithoutFunctions():
                entries = mapped(mapped(self.entries, self._at(step)), value_beside)
                give_value(row, value_beside(self.tensor)[entries])
        return row

    def _at(self, step: int) -> Callable[[Any], Any]:
        """Replaces the index by its number in a step, that of the last step of the example at most."""
        index = self.index
        last = value_beside(index.loop.count) - 1
        return lambda entry: (
            index.first + index.each * min(step, last) if isinstance(entry, StepIndex) else entry
        )

    def _cut(self) -> torch.Tensor:
        size, count = self.tensor.shape[self.dim], self.index.loop.count
        first, each = self.index.first, self.index.each
        if isinstance(first, int) and first < 0:
            first = first + size
        if each < -1:
            raise self.index.loop.refused("rows are read backwards in larger steps")
        if each > 1:
            entries = [slice(None)] * self.dim
            index = (*entries, slice(first, first + each * (count - 1) + 1, each))
            return self.tensor[index]
        begin = first if each == 1 else first - (count - 1)
        if statically_known_true(begin == 0) and statically_known_true(size == count):
            return self.tensor
        return self.tensor.narrow(self.dim, begin, count)


@dataclass(frozen=True, slots=True)
class Operation:
    """One function of a step with its arguments, or rows that are read, or ``written``."""

    function: Callable[..., Any] | None
    arguments: Any = None
    rows: Rows | None = None
    written: Result | None = None

    @property
    def demands(self) -> bool:
        """True for a condition on numbers of the step."""
        return self.function is demanded

    @property
    def writes(self) -> bool:
        """True where the function writes to an argument."""
        return self.function is not None and writes(self.function, self.arguments[1])


def grows(operation: Operation, number: int) -> bool:
    """True for the operation of this number in a step if it joins what it gave in the step before with others."""
    is_join = operation.function in (torch.cat, torch.concat, torch.concatenate)
    return is_join and Result(number, 0, before=1) in leaves_of(operation.arguments, Result)


@dataclass(frozen=True, slots=True)
class Joined:
    """The results of all steps one after another in the first dimension of ``whole``, in place of their
    dimension ``dim``, and how many rows each of them has.
    """

    whole: torch.Tensor
    lengths: torch.Tensor
    dim: int

    @property
    def begins(self) -> torch.Tensor:
        """The place of the first row of each result."""
        return self.lengths.cumsum(0) - self.lengths

    def padded(self, padding_value: float, padding_side: str) -> torch.Tensor:
        """All results filled up to the length of the longest one, ``[steps, rows, ...]``."""
        greatest = self.lengths.max().item()
        return padded_rows(self.whole, self.lengths, greatest, padding_value, padding_side)


class Driver(Protocol):
    """Runs the steps of loops, and remembers why one of them is no scan."""

    def run(self, loop: Loop) -> Iterator[StepIndex]:
        """Yields the index of each step."""

    def given(self, index: Any) -> Any:
        """What the model gets for the index of a step."""

    def failed(self, error: NotRolledError) -> NotRolledError:
        """Remembers an error, which the model may catch, and gives it."""

    def tensor_of(self, index: StepIndex) -> torch.Tensor:
        """The index of a step as a tensor."""

    def number_of(self, index: StepIndex) -> Any:
        """The index of a step as a size that is a value; None where the steps have no such sizes."""

    def goes_on(self) -> bool | None:
        """The answer to the test of a ``while`` loop; None for any other question of the model."""


class Loop:
    """The steps of one loop: an iterable that stands for a ``range``.

    ``steps`` has the operations of each step that was run. After the loop was rolled, ``firsts`` and
    ``finals`` are results of the first and of the last step, and ``stacked`` those of all steps, by their place
    in a step.
    """

    def __init__(self, driver: Driver, first: Any, each: int, count: Any, line: str) -> None:
        self.first, self.each, self.count, self.line = first, each, count, line
        self._driver = driver
        self.is_running = False
        #: True where a step ends with an error of torch that asks for another trace
        self.is_left_to_torch = False
        #: the numbers of the steps, of which a step that computes with its index reads one
        self.numbers_of_steps: torch.Tensor | None = None
        self.steps: list[list[Operation]] = []
        #: how many steps are run, whatever the number of steps of a call
        self.n_steps = 0
        #: the items of lists that the step that runs has read, by identity
        self.items: dict[int, list[ItemRead]] = {}
        #: what stands for the items that the first step has read, where they are at an end of their list
        self.begun: dict[Place, torch.Tensor] = {}
        self.firsts: dict[Place, torch.Tensor] = {}
        self.finals: dict[Place, torch.Tensor] = {}
        self.stacked: dict[Place, torch.Tensor] = {}
        #: the places of copies of what the step before has computed, by the place of that
        self.copies: dict[Place, Place] = {}
        #: the results of all steps, one after another in a dimension, whose sizes are numbers of the steps
        self.joined: dict[Place, Joined] = {}
        #: results that are views of rows to which their step writes: what is done to the tensor after the loop
        #: would change them
        self.views_of_rows: set[Place] = set()
        #: the numbers that steps read; None for a loop whose steps read none
        self.numbers: StepNumbers | None = None
        #: True for a loop over numbers themselves
        self.is_of_numbers = False
        #: the item of each step where all steps have the same one; of a tuple, None stands for a part that differs
        self.repeated: Any = None
        #: the memory of tensors that other steps, or others, can read; kept, so that no other has
        #: its address
        self.shared: dict[int, torch.UntypedStorage] = {}

    def refused(self, reason: str, **where: bool) -> NotRolledError:
        """The error that the loop is no scan; ``where`` has the flags of the error."""
        return self._driver.failed(NotRolledError(self.line, reason, **where))

    @property
    def index(self) -> StepIndex:
        """The index of the step that runs."""
        return StepIndex.of(self, self.first, self.each)

    def tensor_of(self, index: StepIndex) -> torch.Tensor:
        """The index of a step of this loop as a tensor."""
        return self._driver.tensor_of(index)

    def number_of(self, index: StepIndex) -> Any:
        """The index of a step as a size that is a value; None where the steps have no such sizes."""
        return None if self.numbers is None else self._driver.number_of(index)

    def goes_on(self) -> bool | None:
        """The answer to the test of a ``while`` loop whose steps these are; None for any other question."""
        return self._driver.goes_on()

    def has_numbers(self, value: Any) -> bool:
        """True for a value, a key say, with a size that a step makes of numbers."""
        sizes, numbers = leaves_of(value, torch.SymInt), self.numbers
        return numbers is not None and any(numbers.has_numbers(one.node.expr) for one in sizes)

    def place_in_list(self, index: StepIndex, values: list[Any] | None) -> int:
        """The place of the item of a list that the step reads at an index, if the loop has the steps that are
        run and no others. An index that falls counts from the number of steps.

        :raises NotRolledError: for a place that hangs on another size, and for what is no list
        """
        if values is None:
            raise self.refused(BY_INDEX, is_int=True)
        first = index.first
        is_of_end = index.each < 0 and isinstance(first, int) and first < 0
        is_falling = index.each < 0 and not is_of_end
        begin = sympy.sympify(expression_of(first - self.count if is_falling else first))
        is_near = bool(begin.is_Integer) and abs(int(begin)) <= _MOST_BEFORE
        is_own = index.loop is self and self.is_running and isinstance(index.each, int)
        if not is_own or not is_near:
            raise self.refused("the item of a list is read at another place than that of the step")
        begin = int(begin) + (self.n_steps if is_falling else 0)
        place: int = begin + index.each * (len(self.steps) - 1)
        own = place + (len(values) if is_of_end else 0)
        if 0 <= own < len(values):
            beside = tuple(values[max(own - 1, 0) : own + 2])
            self.items.setdefault(id(values[own]), []).append(ItemRead(index, beside))
        return place

    def formula_of(self, expression: Any, step: int, *, plain: bool = False) -> StepSize | None:
        """The formula of an expression in the numbers of a step, as :meth:`StepNumbers.formula_of`.

        :raises NotRolledError: for a number of another step
        """
        try:
            numbers = self.numbers
            return None if numbers is None else numbers.formula_of(expression, step, plain=plain)
        except LookupError as error:
            raise self.refused(str(error)) from error

    def between(self, *, first: bool, last: bool) -> Loop:
        """Returns the loop without its ``first`` step, and without its ``last`` one."""
        begin = self.first + self.each if first else self.first
        loop = Loop(self._driver, begin, self.each, self.count - first - last, self.line)
        loop.repeated = self.repeated
        return loop

    def __len__(self) -> int:
        raise self.refused("the number of its steps is read as a number")

    def __getitem__(self, place: Any) -> Any:
        """One of the numbers; a negative place counts from the last one."""
        if isinstance(place, slice):
            raise self.refused("a part of its range is taken")
        is_known = self.count > place if place >= 0 else self.count >= -place
        if not is_known:
            raise IndexError("range object index out of range")
        return self.first + self.each * (place if place >= 0 else self.count + place)

    def __contains__(self, number: Any) -> bool:
        beyond = (number - self.first) * (1 if self.each > 0 else -1)
        step = abs(self.each)
        return bool(beyond >= 0 and beyond < step * self.count and beyond % step == 0)

    def shares(self, tensor: torch.Tensor) -> None:
        """The memory of a tensor is not for steps to write to from here on."""
        with WithoutFunctions():
            self.shared[memory_of(tensor)] = tensor.untyped_storage()

    def backwards(self) -> Loop:
        """Returns the loop over the same steps from the last one on."""
        last = self.first + self.each * (self.count - 1)
        return Loop(self._driver, last, -self.each, self.count, self.line)

    def __reversed__(self) -> Iterator[StepIndex]:
        return iter(self.backwards())

    def __iter__(self) -> Iterator[Any]:
        return map(self._driver.given, self._driver.run(self))


def name_of(func: Callable[..., Any]) -> str:
    """The name of a function, or its text where it has none."""
    return str(getattr(func, "__name__", func))


def writes(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """True for a function that writes to its first argument, or to ``out``."""
    name = name_of(func)
    if name.startswith("__"):
        return name in _WRITING
    inplace = kwargs.get("inplace", False)
    return name.endswith("_") or "out" in kwargs or inplace not in (False, Constant(bool, False))


def number_as_tensor(number: Any, dtype: torch.dtype) -> torch.Tensor:
    """A number as a tensor without dimensions: a scan gives it to each step as one of float64."""
    if isinstance(number, torch.Tensor):
        return number.to(dtype)
    return torch.full((), number, dtype=dtype)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Containers and slices with other leaves."""
    if isinstance(value, dict):
        return {name: mapped(item, change) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        kind = list if isinstance(value, list) else tuple
        # of what was taken apart the parts themselves, not the steps of a loop over it
        items = tuple.__iter__(value) if isinstance(value, tuple) else value
        return kind(mapped(item, change) for item in items)
    if isinstance(value, slice):
        return slice(*(mapped(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def leaves_of(value: Any, kinds: Any) -> list[Any]:
    """The leaves of containers and slices that are of some kinds."""
    found: list[Any] = []

    def keep(leaf: Any) -> None:
        if isinstance(leaf, kinds):
            found.append(leaf)

    mapped(value, keep)
    return found

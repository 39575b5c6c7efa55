"""Records what the steps of a loop compute, as operations that can be compared.

The first two steps run on tensors without values. The later ones do the same as a rule: where the
second step had the same operation at the same place, its result is not computed again, and an empty
tensor of that shape stands for it. A step that differs is found when the steps are compared.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
import torch

from ...model_source.frames import asked_of_model, frame_of_model
from ...model_source.source_rows import (
    has_other_rows_read,
    has_rows_written,
    is_added_to,
    is_set_by_its_loop,
    is_written_to,
    items_written,
)
from ...patches.swap import swapped
from ...torch_internals.fake_tensors import has_values, value_beside
from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.sizes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    SymNode,
    expression_of,
    statically_known_true,
)
from ...torch_internals.tensor_marks import memory_of
from ..repeated_operators import Blank
from .lists_of_numbers import PartOfList
from .loop_results import LoopResults
from .step_indices import BY_INDEX, GREATER, SMALLER, StepFloat, StepIndex
from .step_keys import (
    BASIC,
    BESIDE_OTHERS,
    are_within,
    begins_of_cuts,
    has_shape,
    in_two,
    is_last_shorter,
    is_of_ints,
    is_whole,
    is_within,
    places_of_numbers,
    text_of_entry,
    width_of,
)
from .step_numbers import NumberOrigin, StepNumbers, StepSize, demanded
from .steps import (
    Constant,
    Loop,
    Operation,
    Outer,
    Result,
    Rows,
    Size,
    grows,
    leaves_of,
    mapped,
    name_of,
    number_as_tensor,
    writes,
)
from .written_states import WrittenStates, result_of_write

__all__ = ["Blanks", "StepRecorder"]

_NUMBERS = {torch.Tensor.item, torch.Tensor.__index__}
_MAKES_TENSORS = {torch.tensor, torch.as_tensor}
#: the functions that choose by a condition, with the place of it
_CHOOSES = {torch.where: 0, torch.Tensor.where: 1}
_READS_VALUES = {
    *(torch.Tensor.tolist, torch.Tensor.equal, torch.equal, torch.allclose),
    *(torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__),
    *_NUMBERS,
}
#: functions of a tensor and of sizes, and of sizes alone
_RESHAPES = {
    *(torch.Tensor.expand, torch.Tensor.repeat, torch.Tensor.reshape, torch.Tensor.view),
    *(torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_empty, torch.Tensor.narrow),
    *(torch.narrow, torch.reshape, torch.Tensor.unflatten),
}
_TAKE_SIZES = _RESHAPES | {torch.arange, torch.zeros, torch.ones, torch.empty, torch.eye}
_CONTEXT = "autocast"
#: they change no number
_OF_GRADIENTS = "set_grad_enabled"
#: functions that compute the same of a number and of a tensor without dimensions
_OF_NUMBERS = frozenset(
    {
        *("add", "sub", "mul", "div", "pow", "remainder", "floor_divide", "masked_fill"),
        *("lt", "le", "gt", "ge", "eq", "ne"),
    }
)
#: those that compute the same of a number and of a tensor of it, in these dtypes
_OF_FLOATS = frozenset(
    {*("add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "masked_fill")}
    | {"lt", "le", "gt", "ge", "eq", "ne"}
)
_EXACT_FLOATS = frozenset({torch.float32, torch.float64})
#: the smaller and the greater of two sizes, as Python finds it
_EXTREMES = {torch.sym_min: SMALLER, torch.sym_max: GREATER}
#: a step reads what was computed at most so many steps before: each is a state of the scan
_MOST_BEFORE = 8
#: so many steps are compared with each other before the others are
_EARLY = 3


@dataclass(frozen=True, slots=True)
class Blanks:
    """The shapes of the results of an operation; ``kind`` is the class of several of them."""

    blanks: tuple[Blank, ...]
    kind: type | None


@dataclass(frozen=True, slots=True)
class Repeated:
    """The result of an operation, and the tensors in it."""

    value: Any
    results: Sequence[torch.Tensor]


class StepRecorder:
    """Records the steps of one loop: each function with its arguments, and what it gives.

    ``blanks`` are the shapes that operations of the second step gave, by their number, ``states`` the
    tensors that steps write to. With ``of_numbers`` a scan has the plain numbers of sizes that are symbols.
    """

    def __init__(
        self,
        results: LoopResults,
        *,
        of_numbers: bool = False,
        as_fake: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
        sides: Mapping[tuple[int, int], bool] = MappingProxyType({}),
    ) -> None:
        self._results, self._of_numbers, self._as_fake = results, of_numbers, as_fake
        self.blanks: dict[int, Blanks] = {}
        self._later: dict[int, Blanks] = {}
        #: rows with the number of the step that has read them
        self._rows_read: dict[Rows, tuple[int, Any]] = {}
        #: the rows that stand for items of lists in the step that runs, by the identity of the items
        self._of_lists: dict[int, torch.Tensor] = {}
        #: the rows of states that the step that runs has read, by their memory: the state, the key and the row
        self._rows_of_states: dict[int, tuple[torch.Tensor, tuple[Any, ...], torch.Tensor]] = {}
        #: the conditions on numbers of steps that are noted
        self._known: set[Any] = set()
        self.states = WrittenStates(results)
        #: the least numbers of the indices that are values, by their symbols
        self._leasts: dict[Any, int] = {}
        #: the answers to tests of tensors, in the first step and in the others, by their order
        self.sides = dict(sides)
        self._n_asked = 0

    def call(
        self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a function of a step, and notes what it computes of what.

        :raises NotRolledError: for a function that no step of a scan can have
        """
        name = name_of(func)
        self.note_conditions(loop)
        if loop.items:
            args, kwargs = self._with_rows(loop, func, args, kwargs)
        place = _CHOOSES.get(func, len(args))
        if place < len(args) and getattr(args[place], "dtype", None) is torch.uint8:
            # a scan takes bools alone for a condition
            condition = self.call(loop, torch.Tensor.bool, (args[place],), {})
            args = (*args[:place], condition, *args[place + 1 :])
        if func in _READS_VALUES or _CONTEXT in name:
            return self._value_read(loop, func, args)
        if func in _TAKE_SIZES and loop.numbers is not None:
            args, kwargs = self._with_plain_sizes(loop, loop.numbers, func, args, kwargs)
        if _OF_GRADIENTS in name:
            return func(*args, **kwargs)
        if func is torch.Tensor.__getitem__:
            return self._get(loop, *args)
        if func is torch.Tensor.__setitem__:
            return self._set(loop, *args)
        if func in _MAKES_TENSORS and leaves_of(args[0], (StepIndex, StepFloat)):
            return self._made(loop, args[0], **kwargs)
        if func in _EXTREMES and leaves_of(args, StepIndex):
            return _EXTREMES[func](*args)
        if leaves_of((args, kwargs), StepIndex):
            return self._beside(loop, func, args, kwargs)
        if writes(func, kwargs):
            return self._written(loop, func, args, kwargs)
        return self._compute(loop, func, args, kwargs)

    def _get(self, loop: Loop, tensor: torch.Tensor, key: Any) -> Any:
        """What a step reads by a key."""
        key = self._with_numbers(loop, key)
        if places := places_of_numbers(key):
            return self._item(loop, places, tensor, key)
        if leaves_of(key, StepIndex):
            return self._read(loop, tensor, key)
        if loop.has_numbers(key):
            return self._part(loop, tensor, key)
        return self._compute(loop, torch.Tensor.__getitem__, (tensor, key), {})

    def _set(self, loop: Loop, tensor: torch.Tensor, key: Any, value: Any) -> Any:
        """Writes what a step writes by a key."""
        args = self._with_tensor(loop, tensor, self._with_numbers(loop, key), value)
        if places := places_of_numbers(args[1]):
            args = self._written_item(loop, places, *args)
        if leaves_of(args[1], StepIndex):
            return self._write(loop, *args)
        return self._written(loop, torch.Tensor.__setitem__, args, {})

    def _beside(
        self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What a function computes of a tensor and the index: methods such as ``select`` want an int before."""
        if name_of(func).strip("_") not in _OF_NUMBERS or writes(func, kwargs):
            raise loop.refused(f"{name_of(func)} computes with the index")
        beside = leaves_of((args, kwargs), torch.Tensor)[0]
        return self._compute(
            loop, func, *mapped((args, kwargs), functools.partial(_as_tensor, beside))
        )

    def _written(
        self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Notes a write to a state, or runs a write to a tensor of the step; a row of a state is put into the state
        again.
        """
        is_new = None if "out" in kwargs else self.states.begin(loop, args[0])
        if is_new is not None:
            return self._write_state(loop, func, args, kwargs, is_new=is_new)
        self._check_write(loop, func, args, kwargs)
        result = self._compute(loop, func, args, kwargs)
        state, first, row = self._rows_of_states.get(memory_of(args[0]), (None, (), args[0]))
        if state is not None:
            self._put(loop, state, first, (), row)
        return result

    def _value_read(self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """What Python reads of the values of a tensor in a step: a number, or whether it is true.

        :raises NotRolledError: for anything else, and where a run without numbers has no symbol for it
        """
        numbers = loop.numbers
        if func is torch.Tensor.__int__ and numbers is not None:
            loop.is_left_to_torch = True  # whose error asks for an int() that takes symbols
            return func(*args)
        if func in _NUMBERS and numbers is not None and is_of_ints(args[0]):
            return self._number(loop, numbers, args[0])
        if func is torch.Tensor.__bool__ and numbers is not None:
            return self._side(loop, numbers, args[0])
        raise loop.refused(f"a step has {name_of(func)}")

    def _item(self, loop: Loop, places: Sequence[int], tensor: torch.Tensor, key: Any) -> Any:
        """What a key with ints in tensors reads, as in ``x[t, lengths[t] - 1]``: torch makes numbers of them."""
        key, dim = self._with_rows_of_one(loop, places, key), 0
        for entry in key[: places[0]]:
            is_left_out = isinstance(entry, (int, torch.SymInt, StepIndex))
            n_given = sum(one is not None and one is not ... for one in key)
            dim += tensor.ndim - n_given if entry is ... else int(not is_left_out)
        found = self.call(loop, torch.Tensor.__getitem__, (tensor, tuple(key)), {})
        return self._compute(loop, torch.select, (found, dim, 0), {})

    def _with_rows_of_one(self, loop: Loop, places: Sequence[int], key: Any) -> list[Any]:
        """The entries of a key, with one place in a dimension for each of these numbers."""
        entries = list(key) if isinstance(key, tuple) else [key]
        for place in places:
            entries[place] = self._compute(loop, torch.unsqueeze, (entries[place], 0), {})
        return entries

    def _written_item(
        self, loop: Loop, places: Sequence[int], tensor: torch.Tensor, key: Any, value: Any
    ) -> Any:
        """The arguments of a write by a key with ints in tensors, as in ``x[t, lengths[t]] = y``."""
        key = self._with_rows_of_one(loop, places, key)
        n_given = sum(one is not None and one is not ... for one in key)
        n_left = tensor.ndim - n_given  # what ``...`` stands for, and all that is not given
        is_before = any(one is ... for one in key[: places[0]])
        n_after = 0 if is_before else n_left
        for entry in key[places[-1] + 1 :]:
            n_after += entry is not ... and not isinstance(entry, (int, torch.SymInt, StepIndex))
        if isinstance(value, torch.Tensor) and value.ndim > n_after:
            value = self._compute(loop, torch.unsqueeze, (value, value.ndim - n_after), {})
        return tensor, tuple(key), value

    def _with_plain_sizes(
        self, loop: Loop, numbers: StepNumbers, func: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """The arguments with numbers for the ints in tensors that are sizes, as in ``torch.arange(lengths[t])``."""
        n_tensors = func in _RESHAPES

        def plain(leaf: Any) -> Any:
            is_int = isinstance(leaf, torch.Tensor) and leaf.ndim == 0 and is_of_ints(leaf)
            return self._number(loop, numbers, leaf) if is_int else leaf

        others, kwargs = mapped((args[n_tensors:], kwargs), plain)
        return (*args[:n_tensors], *others), kwargs

    def _made(self, loop: Loop, value: Any, dtype: Any = None, device: Any = None) -> Any:
        """The tensor that ``torch.tensor`` makes of the index of a step, or of a list with it."""
        is_float = bool(leaves_of(value, (StepFloat, float, torch.SymFloat)))
        usual = torch.get_default_dtype() if is_float else torch.int64
        about = {"dtype": dtype or usual, "copy": True}
        about |= {} if device is None else {"device": device}
        return self._compute(loop, torch.Tensor.to, (self._stacked(loop, value),), about)

    def _stacked(self, loop: Loop, value: Any) -> Any:
        if isinstance(value, StepFloat):
            return value.tensor
        if isinstance(value, StepIndex):
            return self.tensor_of(loop, value)
        if isinstance(value, (list, tuple)):
            parts = [self._stacked(loop, one) for one in value]
            return self._compute(loop, torch.stack, (parts,), {})
        if isinstance(value, torch.SymFloat):
            return self._compute(loop, number_as_tensor, (value, torch.float64), {})
        kind = torch.float64 if isinstance(value, float) else torch.int64
        return self._compute(loop, torch.full, ((), value), {"dtype": kind})

    def _with_numbers(self, loop: Loop, key: Any) -> Any:
        """A key with numbers for the ints in tensors that bound its slices, as in ``x[: lengths[t]]``, and for
        indices that do, as in ``x[: t + 1]``; with tensors for places that are numbers, as in ``x[t // 2]``, and for
        an index after another one, as in ``x[t, t]``.
        """
        if isinstance(key, tuple):
            places = [n for n, entry in enumerate(key) if isinstance(entry, StepIndex)]
            entries = [
                self.tensor_of(loop, entry) if n in places[1:] else entry
                for n, entry in enumerate(key)
            ]
            return tuple(self._with_numbers(loop, entry) for entry in entries)
        if isinstance(key, torch.SymInt) and loop.has_numbers(key):
            return self._compute(loop, torch.full, ((), key), {"dtype": torch.int64})
        if not isinstance(key, slice) or loop.numbers is None:
            return key
        is_window = width_of(key) is not None

        def number(bound: Any) -> Any:
            if isinstance(bound, StepIndex) and not is_window:
                return self.number_of(loop, bound)
            is_tensor = isinstance(bound, torch.Tensor) and is_of_ints(bound)
            return self.number(loop, bound) if is_tensor else bound

        return slice(*map(number, (key.start, key.stop, key.step)))

    def _with_tensor(self, loop: Loop, target: torch.Tensor, key: Any, value: Any) -> Any:
        """The arguments of a write in which a number is a tensor: it is no constant of a scan then, which
        converters do not take.
        """
        if isinstance(value, StepIndex) and target.dtype not in (torch.int8, torch.uint8):
            value = self.tensor_of(loop, value)
        if isinstance(value, (int, float, complex, torch.SymInt)):
            about = {"dtype": target.dtype, "device": target.device}
            value = self._compute(loop, torch.full, ((), value), about)
        return target, key, value

    def _write_state(
        self,
        loop: Loop,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        is_new: bool,
        index: StepIndex | None = None,
    ) -> Any:
        """Notes a write to a tensor from before the loop; nothing is computed, since its shape stays."""
        state = args[0]
        if is_new:
            self._copy_state(loop, state)
        arguments = mapped((args, kwargs), lambda leaf: self._reference(loop, leaf))
        self._note(loop, Operation(func, arguments), [])
        if _is_early(loop):
            self.states.writes(state, index)
        return result_of_write(func, state)

    def _copy_state(self, loop: Loop, state: torch.Tensor) -> None:
        """Notes that a step begins with a copy of a tensor, to which it writes."""
        copy = Operation(torch.clone, ((self._reference(loop, state),), {}))
        self._note(loop, copy, [state])

    def _compute(
        self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        args, kwargs = self._with_float_tensors(loop, func, args, kwargs)
        arguments = mapped((args, kwargs), lambda leaf: self._reference(loop, leaf))
        operation = Operation(func, arguments)
        if operation.writes and self._shapes_of(loop, operation) is not None:
            self._note(loop, operation, [])  # no shape is another one after it
            return result_of_write(func, args[0])
        repeated = self._repeated(loop, operation)
        if repeated is not None:
            self._note(loop, operation, repeated.results)
            return repeated.value
        args, kwargs = mapped((args, kwargs), self._without_values)
        result = func(*args, **kwargs)
        results = leaves_of(result, torch.Tensor)
        if loop.numbers is not None:
            # an operator of torch demands its own conditions again in a scan
            loop.numbers.sees(results, len(loop.steps[-1]), len(loop.steps) - 1)
            self._known |= set(loop.numbers.conditions())
        if results or result is None:
            tensors = leaves_of((args, kwargs), torch.Tensor)
            given = {id(leaf) for leaf in tensors}
            self._note(loop, operation, results, given)
            new = [leaf for leaf in results if id(leaf) not in given]
            self.states.makes(loop, new, tensors)
            if not operation.writes and given.isdisjoint(map(id, results)):
                self._remember(loop, result)
        return result

    def _with_float_tensors(
        self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with a tensor for each float that is no constant, as of an argument of the model or of a
        size: beside a tensor it is a number of the same dtype.

        :raises NotRolledError: where a function wants the number itself
        """
        if func is number_as_tensor or not leaves_of((args, kwargs), torch.SymFloat):
            return args, kwargs
        tensors = [one for one in leaves_of((args, kwargs), torch.Tensor) if not one.is_complex()]
        dtypes = {one.dtype for one in tensors if one.is_floating_point()}
        is_plain = name_of(func).strip("_") in _OF_FLOATS and not kwargs
        if not is_plain or len(dtypes) != 1 or not dtypes <= _EXACT_FLOATS:
            raise loop.refused(f"{name_of(func)} has a float that is no constant")
        (dtype,) = dtypes

        def tensor(leaf: Any) -> Any:
            is_float = isinstance(leaf, torch.SymFloat)
            return self._compute(loop, number_as_tensor, (leaf, dtype), {}) if is_float else leaf

        found: tuple[Any, ...] = mapped(args, tensor)
        return found, kwargs

    def _without_values(self, leaf: Any) -> Any:
        value = self._results.value(leaf)
        return self._as_fake(value) if isinstance(value, torch.Tensor) else value

    def listed(self, loop: Loop, tensor: torch.Tensor) -> tuple[PartOfList, torch.SymInt]:
        """What a list gets of the numbers of a tensor of one dimension: all of them, and the last one."""
        whole = self._compute(loop, torch.Tensor.to, (tensor, torch.int64), {})
        with WithoutFunctions():  # the model reads none of these sizes
            length = whole.shape[0]
        about = {"dtype": torch.int64, "device": whole.device}
        place = self._compute(loop, torch.full, ((1,), length - 1), about)
        last_of = self._compute(loop, torch.index_select, (whole, 0, place), {})
        last = self.number(loop, last_of)
        return PartOfList(whole, last_of, last), last

    def number(self, loop: Loop, tensor: torch.Tensor) -> torch.SymInt:
        """A number that a step reads from a tensor with one int.

        :raises NotRolledError: where a run without numbers has no symbol for it
        """
        if loop.numbers is None:
            raise loop.refused("a step reads a number")
        return self._number(loop, loop.numbers, tensor)

    def _number(self, loop: Loop, numbers: StepNumbers, tensor: torch.Tensor) -> torch.SymInt:
        """A number that a step reads from a tensor with one int."""
        step, operation = (
            loop.steps[-1],
            Operation(torch.Tensor.item, ((self._reference(loop, tensor),), {})),
        )
        if operation in step:
            return numbers.number(NumberOrigin(step.index(operation)), len(loop.steps) - 1)
        step.append(operation)
        return numbers.number(NumberOrigin(len(step) - 1), len(loop.steps) - 1)

    def _side(self, loop: Loop, numbers: StepNumbers, tensor: torch.Tensor) -> bool:
        """The answer to a test of a tensor: that of the example, which each step demands.

        :raises NotRolledError: where the example has no value for it
        """
        holds = self._compute(loop, torch.ne, (tensor, 0), {})
        as_number = self._compute(loop, torch.Tensor.to, (holds, torch.int64), {})
        number = self._number(loop, numbers, as_number)
        n_steps = len(loop.steps)
        place = min(n_steps, 2), self._n_asked
        self._n_asked += 1
        if place not in self.sides:
            if n_steps > 2 or self._of_numbers:
                raise loop.refused("a step asks for a value that others do not ask for")
            self.sides[place] = self._value(loop, holds)
        self._demand(loop, sympy.Eq(expression_of(number), int(self.sides[place])))
        return self.sides[place]

    @staticmethod
    def _value(loop: Loop, holds: torch.Tensor) -> bool:
        """The value of a tensor in the example; where the trace has no values, it ends with the error of torch, and
        the next one has them.
        """
        try:
            return bool(value_beside(holds))
        except LookupError:
            if has_values(holds):
                raise loop.refused("a step asks for a value that torch does not compute") from None
            loop.is_left_to_torch = True
            return bool(holds)

    def tensor_of(self, loop: Loop, index: StepIndex) -> torch.Tensor:
        """The index of a step as a tensor without dimensions."""
        numbers = loop.numbers_of_steps
        if numbers is None or index.loop is not loop:
            raise loop.refused("its index is read outside of its steps")
        number = self._row(loop, self._rows(loop, numbers, (StepIndex.of(loop, 0, 1),)))
        if index.each != 1:
            number = self._compute(loop, torch.mul, (number, index.each), {})
        if not statically_known_true(index.first == 0):
            number = self._compute(loop, torch.add, (number, index.first), {})
        return number

    def number_of(self, loop: Loop, index: StepIndex) -> torch.SymInt:
        """The index of a step as a size that is a value, by which nothing may decide."""
        number = self.number(loop, self.tensor_of(loop, index))
        least, _ = index.ends
        if isinstance(least, int):
            self._leasts |= dict.fromkeys(number.node.expr.free_symbols, least)
            self._demand(loop, sympy.Ge(expression_of(number), least))
        return number

    def _demand(self, loop: Loop, condition: Any) -> None:
        """Notes a condition on numbers of the step."""
        demand = Operation(demanded, ((self._formula(loop, condition),), {}))
        if demand not in loop.steps[-1]:
            loop.steps[-1].append(demand)

    def after_step(self, loop: Loop) -> None:
        """A step is over, and with it the copies of the rows that it wrote."""
        self.note_conditions(loop)
        self.states.forget_rows()
        self._of_lists.clear()
        self._rows_of_states.clear()
        loop.items.clear()
        self._n_asked = 0

    def note_conditions(self, loop: Loop) -> None:
        """Notes the conditions on numbers of the step that the model itself demands, as by
        ``torch._check(length > 0)``.
        """
        step, n_steps = loop.steps[-1], len(loop.steps)
        while n_steps > 3 and loop.numbers is not None and len(step) < len(loop.steps[1]):
            operation = loop.steps[1][len(step)]
            if operation.function is not demanded:
                break
            step.append(operation)  # of the same symbols it is known
        for condition in () if loop.numbers is None else list(loop.numbers.conditions()):
            if condition in self._known:
                continue
            self._known.add(condition)
            found = self._formula(loop, condition)
            if found is not None:
                loop.steps[-1].append(Operation(demanded, ((found,), {})))

    @contextlib.contextmanager
    def answering(self, loop: Loop) -> Iterator[None]:
        """Inside the block questions about numbers of a step that torch cannot decide have the answer of all
        numbers of 2 and more, which the step demands.
        """
        below, known = ShapeEnv.evaluate_sym_node, dict[Any, bool | None]()

        def evaluate(self_: ShapeEnv, node: SymNode, *args: Any, **kwargs: Any) -> Any:
            question = node.expr
            if question not in known:
                try:
                    return below(self_, node, *args, **kwargs)
                except GuardOnDataDependentSymNode:
                    known[question] = (
                        None
                        if loop.numbers is None
                        else loop.numbers.assumed(question, self._leasts)
                    )
                    if known[question] is None and self._leasts.keys() & question.free_symbols:
                        raise loop.refused(BY_INDEX, at_ends=True) from None
                    if known[question] is None:
                        raise
            answer = known[question]
            if answer is None:
                return below(self_, node, *args, **kwargs)
            holds = self._formula(loop, question if answer else sympy.Not(question))
            loop.steps[-1].append(Operation(demanded, ((holds,), {})))
            return sympy.sympify(answer)

        with swapped(ShapeEnv, "evaluate_sym_node", evaluate):
            yield

    def _formula(self, loop: Loop, expression: Any) -> StepSize | None:
        return loop.formula_of(expression, len(loop.steps) - 1)

    def _shapes_of(self, loop: Loop, operation: Operation) -> Mapping[int, Blanks] | None:
        """The shapes of the step that had an operation at this place: of the second one or, where the first one has
        more operations than the others, the third one. None for another operation. With numbers they are those of the
        step two before.
        """
        number, n_steps = len(loop.steps[-1]), len(loop.steps)

        def is_of(step: int) -> bool:
            return loop.steps[step][number : number + 1] == [operation]

        if n_steps > (3 if loop.numbers else 2) and is_of(1):
            return self._later if loop.numbers and n_steps % 2 else self.blanks
        # later steps read what the third one has written
        if n_steps > 3 and not loop.numbers and is_of(2) and not _any_writes(loop.steps[1:3]):
            return self._later
        return None

    def _repeated(self, loop: Loop, operation: Operation) -> Repeated | None:
        """Returns the result of an operation in a step after the second one, where it gave new
        tensors there: tensors of the same shapes; None where it has to be computed.

        Only what steps do is looked at, and a step that differs is found in the end.
        """
        number, shapes = len(loop.steps[-1]), self._shapes_of(loop, operation)
        blanks = None if shapes is None else shapes.get(number)
        if blanks is None or grows(operation, number):
            return None
        results = [blank.fresh() for blank in blanks.blanks]
        if loop.numbers is not None:
            loop.numbers.sees(results, number, len(loop.steps) - 1)
        return Repeated(results[0] if blanks.kind is None else blanks.kind(results), results)

    def _remember(self, loop: Loop, result: Any) -> None:
        """Keeps the shapes of the last operation of the second step or the third one, of which the later ones are
        copies.
        """
        several = type(result) in (tuple, list)
        tensors = result if several else (result,)
        number, is_later = len(loop.steps[-1]) - 1, len(loop.steps) == 3
        if is_later and not loop.numbers:
            is_later = loop.steps[1][number : number + 1] != loop.steps[2][number:]
        if len(loop.steps) != 2 and not is_later:
            return
        if not all(isinstance(one, torch.Tensor) for one in tensors):
            return
        blanks = [blank for blank in map(Blank.of, tensors) if blank is not None]
        if len(blanks) == len(tensors):
            kind = type(result) if several else None
            memory = self._later if is_later else self.blanks
            memory[number] = Blanks(tuple(blanks), kind)

    def _note(
        self, loop: Loop, operation: Operation, results: Sequence[Any], given: Iterable[int] = ()
    ) -> None:
        """Keeps an operation of a step; a result that is an argument stays what it was."""
        step = loop.steps[-1]
        for number, leaf in enumerate(results):
            if id(leaf) not in given:
                self._results.add(leaf, loop, (len(step), number))
        if loop.numbers is not None:
            loop.numbers.sees(results, len(step), len(loop.steps) - 1)
        step.append(operation)

    def _reference(self, loop: Loop, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            self.states.check(loop, leaf)
            found = self._results.origin_of(leaf)
            if found is None or found.loop is not loop:
                outer = self._results.value(leaf)
                loop.shares(outer)
                self.states.reads(loop, outer)
                return Outer(id(outer), outer)
            before = len(loop.steps) - 1 - found.step
            if before > _MOST_BEFORE:
                raise loop.refused("a step reads what was computed many steps before")
            if before:
                loop.shares(leaf)
            return Result(*found.place, before)
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            formula = self._formula(loop, leaf.node.expr)
            if formula is not None:
                return formula
        if isinstance(leaf, (torch.SymInt, torch.SymFloat)):
            return Size(str(leaf.node.expr), leaf.node.hint if self._of_numbers else leaf)
        return Constant(type(leaf), leaf)

    def _check_write(
        self, loop: Loop, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Passes where a step writes to its own tensors alone.

        :raises NotRolledError: where it writes to what other steps, or others, can read
        """
        for target in (*args[:1], *leaves_of(kwargs.get("out"), torch.Tensor)):
            found = self._results.origin_of(target)
            own = found is not None and found.loop is loop and found.step == len(loop.steps) - 1
            if not own or memory_of(target) in loop.shared:
                reason = f"{name_of(func)} writes to a tensor that is not of its step"
                # after a first step by itself a state is a tensor from outside
                raise loop.refused(reason, at_ends=len(loop.steps) > 1)

    def _read(self, loop: Loop, tensor: torch.Tensor, key: Any) -> Any:
        """Rows of a tensor that stays, at the index of the step."""
        key = key if isinstance(key, tuple) else (key,)
        entries, widths = begins_of_cuts(loop, key)
        if len(widths) > 1:
            return self._block(loop, tensor, entries, widths)
        is_cut = len(widths) == 1 and type(widths[0]) is int and widths[0] == 1
        if widths and not is_cut:
            return self._window(loop, tensor, entries, widths[0])
        first, rest = in_two(loop, entries, tensor.ndim)
        if not is_cut and (self.states.is_written(tensor) or asked_of_model(has_other_rows_read)):
            if self.states.begin(loop, tensor):
                self._copy_state(loop, tensor)
            return self._picked(loop, tensor, first, rest, is_state=True)
        is_apart = self._is_of(loop, tensor) or isinstance(first[-1].each, torch.SymInt)
        if not is_cut and (is_apart or asked_of_model(is_set_by_its_loop)):
            loop.shares(tensor)  # the row is a view for Python: nobody may write to it
            return self._picked(loop, tensor, first, rest)
        is_basic = all(type(entry) in BASIC for entry in entries)
        if is_cut and not is_basic:
            raise loop.refused(BESIDE_OTHERS)
        rows = self._rows(loop, tensor, entries if is_basic else first)
        whole = self._rows(loop, tensor, first)
        if not is_cut and (asked_of_model(is_written_to) or _is_of_items_written(tensor)):
            self.states.begin_row(loop, whole)
            self._copy_of_row(loop, whole)
        if self.states.has_row(whole):
            own = self._copy_of_row(loop, whole), rest
            row = self._compute(loop, torch.Tensor.__getitem__, own, {})
        else:
            self._reference(loop, tensor)
            is_part = not is_basic or loop.has_numbers(rest)
            row = self._row(loop, whole if is_part else rows)
            if is_part:
                row = self._compute(loop, torch.Tensor.__getitem__, (row, rest), {})
        if is_cut:
            return self._compute(loop, torch.unsqueeze, (row, rows.place), {})
        return row

    def _is_of(self, loop: Loop, tensor: torch.Tensor) -> bool:
        """True for a result of a step of the loop."""
        found = self._results.origin_of(tensor)
        return found is not None and found.loop is loop

    def _picked(
        self,
        loop: Loop,
        tensor: torch.Tensor,
        first: tuple[Any, ...],
        rest: tuple[Any, ...],
        *,
        is_state: bool = False,
    ) -> torch.Tensor:
        """A row of a result of the steps, or of a state, which each step reads at its index."""
        dim, places = self._place(loop, tensor, first)
        picked = self._compute(loop, torch.index_select, (tensor, dim, places), {})
        if is_state and _is_early(loop):
            self.states.keep_copy(tensor, first[-1], picked)
        row: torch.Tensor = self._compute(loop, torch.select, (picked, dim, 0), {})
        if is_state:
            self._rows_of_states[memory_of(row)] = tensor, first, row
        if not is_whole(rest):
            row = self._compute(loop, torch.Tensor.__getitem__, (row, rest), {})
        return row

    def _window(
        self, loop: Loop, tensor: torch.Tensor, entries: tuple[Any, ...], width: Any
    ) -> torch.Tensor:
        """Several rows from the index on, as ``x[:, t : t + 3]`` reads them."""
        (*before, index), _ = in_two(loop, entries, tensor.ndim)
        is_state = self.states.is_written(tensor) or asked_of_model(has_rows_written)
        if self._is_of(loop, tensor) and not self.states.is_written(tensor):
            raise loop.refused("a step reads several rows of what the steps compute")
        if is_state:
            self._begin_state(loop, tensor)
        places = self._places(loop, tensor, len(before), index, width)
        whole = self._compute(loop, torch.index_select, (tensor, len(before), places), {})
        if is_state and _is_early(loop):
            self.states.keep_copy(tensor, index, whole)
        key = tuple(slice(None) if isinstance(one, StepIndex) else one for one in entries)
        rows: torch.Tensor = self._compute(loop, torch.Tensor.__getitem__, (whole, key), {})
        if not (is_state and asked_of_model(is_added_to)):
            loop.shares(rows)  # they are a view for Python: nobody may write to them
        return rows

    def _part(self, loop: Loop, tensor: torch.Tensor, key: Any) -> torch.Tensor:
        """Rows of which each step has other numbers, as ``x[:, :t]`` reads them: of a state a copy."""
        is_state = self.states.is_written(tensor) or asked_of_model(has_rows_written)
        if not is_state or (self._is_of(loop, tensor) and not self.states.is_written(tensor)):
            found: torch.Tensor = self._compute(loop, torch.Tensor.__getitem__, (tensor, key), {})
            return found
        self._begin_state(loop, tensor)
        whole = self._compute(loop, torch.clone, (tensor,), {})
        if _is_early(loop):
            self.states.keep_copy(tensor, None, whole)
        part: torch.Tensor = self._compute(loop, torch.Tensor.__getitem__, (whole, key), {})
        if asked_of_model(is_added_to):
            # torch asks for dense memory where sizes are numbers
            dense = {"memory_format": torch.contiguous_format}
            return self._compute(loop, torch.clone, (part,), dense)  # type: ignore[no-any-return]
        loop.shares(part)  # it is a view for Python: nobody may write to it
        return part

    def _block(
        self, loop: Loop, tensor: torch.Tensor, entries: tuple[Any, ...], widths: Sequence[Any]
    ) -> torch.Tensor:
        """Several rows of several dimensions, as ``x[t : t + 3, t : t + 3]`` reads them."""
        is_state = self.states.is_written(tensor) or asked_of_model(has_rows_written)
        if is_state or self._is_of(loop, tensor):
            raise loop.refused("a step reads a block of what the steps compute")
        block = tensor
        for dim, places in self._places_of_block(loop, tensor, entries, widths):
            block = self._compute(loop, torch.index_select, (block, dim, places), {})
        loop.shares(block)  # it is a view for Python: nobody may write to it
        return block

    def _put_block(
        self,
        loop: Loop,
        tensor: torch.Tensor,
        entries: tuple[Any, ...],
        widths: Sequence[Any],
        value: Any,
    ) -> None:
        """Writes several rows of several dimensions, as ``y[t : t + 3, t : t + 3] = part`` does."""
        places = self._places_of_block(loop, tensor, entries, widths)
        self._begin_state(loop, tensor)
        (first, *_), (last, *_) = places[0], places[-1]
        if last - first >= len(places):
            raise loop.refused(BESIDE_OTHERS)
        key: list[Any] = [slice(None)] * first
        for order, (_, rows) in enumerate(places):
            shape = [-1 if order == other else 1 for other in range(len(places))]
            key.append(self._compute(loop, torch.reshape, (rows, shape), {}))
        put = tensor, tuple(key), self._compute(loop, torch.Tensor.to, (value, tensor.dtype), {})
        self._write_state(loop, torch.Tensor.__setitem__, put, {}, is_new=False)

    def _places_of_block(
        self, loop: Loop, tensor: torch.Tensor, entries: tuple[Any, ...], widths: Sequence[Any]
    ) -> list[tuple[int, torch.Tensor]]:
        """The dimensions of a block, and the places of its rows in each."""
        found, n_given = list[tuple[int, torch.Tensor]](), sum(one is not ... for one in entries)
        left, dim = iter(widths), 0
        if sum(isinstance(one, StepIndex) for one in entries) != len(widths):
            raise loop.refused(BESIDE_OTHERS)
        for entry in entries:
            if isinstance(entry, StepIndex):
                found.append((dim, self._places(loop, tensor, dim, entry, next(left))))
            elif entry is not ... and not (type(entry) is slice and entry == slice(None)):
                raise loop.refused(BESIDE_OTHERS)
            dim += tensor.ndim - n_given if entry is ... else 1
        return found

    def _put_window(
        self,
        loop: Loop,
        tensor: torch.Tensor,
        entries: tuple[Any, ...],
        widths: Sequence[Any],
        value: Any,
    ) -> None:
        """Writes several rows from the index on, as ``y[:, t : t + 3] = part`` does: the tensor is a state."""
        (width,) = widths
        (*before, index), rest = in_two(loop, entries, tensor.ndim)
        if not is_whole(rest):
            raise loop.refused("a step writes to a part of several rows")
        self._begin_state(loop, tensor)
        dim = len(before)
        places = self._places(loop, tensor, dim, index, width)
        with WithoutFunctions():  # the model reads none of these sizes
            shape = (*tensor.shape[:dim], width, *tensor.shape[dim + 1 :])
        rows = self._compute(loop, torch.Tensor.to, (value, tensor.dtype), {})
        rows = self._compute(loop, torch.Tensor.expand, (rows, shape), {})
        put = (tensor, dim, places, rows)
        self._write_state(loop, torch.Tensor.index_copy_, put, {}, is_new=False)

    def _begin_state(self, loop: Loop, tensor: torch.Tensor) -> None:
        is_new = self.states.begin(loop, tensor)
        if is_new is None:
            raise loop.refused("a step writes to several rows of what the steps compute")
        if is_new:
            self._copy_state(loop, tensor)

    def _places(
        self, loop: Loop, tensor: torch.Tensor, dim: int, index: StepIndex, width: Any
    ) -> torch.Tensor:
        """The places of several rows from the index on."""
        if index.loop is not loop:
            raise loop.refused("it reads the index of another loop")
        if _is_early(loop) and (
            is_last_shorter(tensor, dim, index, width) or not are_within(tensor, dim, index, width)
        ):
            reason = "a step may read beyond the rows of a tensor"
            raise loop.refused(reason, at_last=True, here=True)
        places = self._compute(loop, torch.arange, (width,), {"device": tensor.device})
        found: torch.Tensor = self._compute(
            loop, torch.add, (places, self.tensor_of(loop, index)), {}
        )
        return found

    def _place(
        self, loop: Loop, tensor: torch.Tensor, first: tuple[Any, ...]
    ) -> tuple[int, torch.Tensor]:
        """The dimension of a tensor that the index is for, and the index as a tensor with one place."""
        (*before, index) = first
        if index.loop is not loop:
            raise loop.refused("it reads the index of another loop")
        if _is_early(loop) and not is_within(tensor, len(before), index):
            raise loop.refused("a step may read beyond the rows of its own results")
        return len(before), self._compute(
            loop, torch.unsqueeze, (self.tensor_of(loop, index), 0), {}
        )

    def _put(
        self,
        loop: Loop,
        tensor: torch.Tensor,
        first: tuple[Any, ...],
        rest: tuple[Any, ...],
        value: torch.Tensor,
    ) -> None:
        """Writes a row of a tensor of which steps read other rows too: the tensor is a state of the loop."""
        is_new = self.states.begin(loop, tensor)
        if is_new is None or not is_whole(rest):
            raise loop.refused("a step writes to a part of a row, and reads other rows")
        if is_new:
            self._copy_state(loop, tensor)
        dim, places = self._place(loop, tensor, first)
        with WithoutFunctions():  # the model reads none of these sizes
            shape = (*tensor.shape[:dim], *tensor.shape[dim + 1 :])
        row = self._compute(loop, torch.Tensor.to, (value, tensor.dtype), {})
        row = self._compute(loop, torch.Tensor.expand, (row, shape), {})
        row = self._compute(loop, torch.unsqueeze, (row, dim), {})
        put = (tensor, dim, places, row)
        self._write_state(loop, torch.Tensor.index_copy_, put, {}, is_new=False, index=first[-1])

    def _row(self, loop: Loop, rows: Rows) -> torch.Tensor:
        """The row of the step, as it was before the loop."""
        operation = Operation(None, rows=rows)
        if loop.is_of_numbers and self._rows_read.get(rows, (0, None))[0] == len(loop.steps):
            found: torch.Tensor = self._rows_read[rows][1]
            return found
        repeated = self._repeated(loop, operation)
        row: torch.Tensor = (
            self._as_fake(rows.of_step(len(loop.steps) - 1)) if repeated is None else repeated.value
        )
        self._note(loop, operation, [row])
        self._remember(loop, row)
        self._rows_read[rows] = len(loop.steps), row
        return row

    def _with_rows(
        self, loop: Loop, func: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Arguments with rows of the results of another loop for items of lists that the step has read.

        The last item, say, stays where the second step had it as a tensor from outside at the same place: in the
        last step it is the item of that step too.
        """
        number = len(loop.steps[-1])
        later = loop.steps[1][number:] if len(loop.steps) > 2 else []
        second = next((one for one in later if one.rows is None), None)
        known = leaves_of(second.arguments, object) if second and second.function is func else []
        places = iter(known)

        def of_list(leaf: Any) -> Any:
            expected = next(places, None)
            if isinstance(expected, Outer) and id(leaf) in loop.items:
                end = self._results.end_of(leaf)
                if end is not None and id(end) == expected.number:
                    return leaf
            return self._row_of_list(loop, leaf)

        args, kwargs = mapped((args, kwargs), of_list)
        return args, kwargs

    def _row_of_list(self, loop: Loop, leaf: Any) -> Any:
        """The row of the results of another loop for an item of a list that the step has read at its index;
        other values as they are.
        """
        found = self._results.origin_of(leaf) if isinstance(leaf, torch.Tensor) else None
        if found is None or found.loop is loop or found.place not in found.loop.stacked:
            return leaf
        number, step = len(loop.steps[-1]), len(loop.steps) - 1
        whole = found.loop.stacked[found.place]
        rows = [
            self._rows(loop, whole, (self._results.index_of(read, found, step),))
            for read in loop.items.get(id(leaf), ())
        ]
        # an item in the middle may be that of an index that grows and of one that falls
        second = loop.steps[1][number : number + 1] if step > 1 else []
        expected = [one for one in rows if [Operation(None, rows=one)] == second]
        known = self._of_lists.get(id(leaf))
        if not rows or (known is not None and (len(rows) == 1 or not expected)):
            return leaf if known is None else known
        end = self._results.end_of(leaf) if step == 0 else None
        if end is not None:
            loop.begun[number, 0] = end
        row = self._row(loop, (expected or rows)[0])
        loop.shares(row)  # to write to it is to write to the item
        self._of_lists[id(leaf)] = row
        return row

    def _rows(self, loop: Loop, tensor: torch.Tensor, entries: tuple[Any, ...]) -> Rows:
        found, whole = self._results.origin_of(tensor), self._results.value(tensor)
        if found is not None and found.loop is loop:
            raise loop.refused("a step reads or writes its own results at its index")
        if any(type(entry) not in BASIC for entry in entries):
            raise loop.refused(BESIDE_OTHERS)
        (*before, index), _ = in_two(loop, entries, whole.ndim)
        if index.loop is not loop:
            raise loop.refused("it reads the index of another loop")
        first = next(n for n, entry in enumerate(entries) if isinstance(entry, StepIndex))
        place = len(before)
        for entry in entries[:first]:
            place += (entry is None) - isinstance(entry, (int, torch.SymInt))
        key = tuple(map(text_of_entry, entries))
        return Rows(id(whole), key, whole, entries, index, len(before), place)

    def _write(self, loop: Loop, tensor: torch.Tensor, key: Any, value: Any) -> None:
        """A row of a tensor that stays is written, or a part of it, by one step alone.

        The results of all steps may be the rows; a part is written to a copy of the row, and the copies are.
        """
        entries, widths = begins_of_cuts(loop, key if isinstance(key, tuple) else (key,))
        if widths:
            put = self._put_window if len(widths) == 1 else self._put_block
            put(loop, tensor, entries, widths, value)
            return
        first, rest = in_two(loop, entries, tensor.ndim)
        if asked_of_model(has_other_rows_read) or isinstance(first[-1].each, torch.SymInt):
            self._put(loop, tensor, first, rest, value)
            return
        rows = self._rows(loop, tensor, first)
        self.states.begin_row(loop, rows)
        source = self._reference(loop, value)
        is_own = isinstance(source, Result) and not source.before
        if (
            not self.states.has_row(rows)
            and is_whole(rest)
            and is_own
            and has_shape(value, rows.of_first_index().shape)
        ):
            loop.shares(value)
            self.states.keep_row(rows, value)
            loop.steps[-1].append(Operation(None, rows=rows, written=source))
            return
        arguments = self._copy_of_row(loop, rows), rest, value
        self._check_write(loop, torch.Tensor.__setitem__, arguments, {})
        self._compute(loop, torch.Tensor.__setitem__, arguments, {})

    def _copy_of_row(self, loop: Loop, rows: Rows) -> torch.Tensor:
        """The copy of the row of the step that stands for it after the first write."""
        known, is_copy = self.states.row(rows)
        if known is not None and is_copy:
            return known
        before = self._row(loop, rows) if known is None else known
        row: torch.Tensor = self._compute(loop, torch.clone, (before,), {})
        self.states.keep_row(rows, row, is_copy=True)
        written = self._reference(loop, row)
        loop.steps[-1].append(Operation(None, rows=rows, written=written))
        return row


def _is_of_items_written(tensor: torch.Tensor) -> bool:
    """True for a tensor that the loop goes over, and to whose rows it writes."""
    frame = frame_of_model()
    names = () if frame is None else items_written(frame.f_code, frame.f_lineno)
    return frame is not None and any(frame.f_locals.get(name) is tensor for name in names)


def _as_tensor(beside: torch.Tensor, leaf: Any) -> Any:
    return leaf.tensor_beside(beside) if isinstance(leaf, StepIndex) else leaf


def _any_writes(steps: Iterable[Iterable[Operation]]) -> bool:
    return any(operation.writes for step in steps for operation in step)


def _is_early(loop: Loop) -> bool:
    """True in the steps of which the later ones are copies."""
    return len(loop.steps) <= _EARLY

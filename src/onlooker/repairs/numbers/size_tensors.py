"""Sizes that a model puts into tensors and takes out again, kept as sizes while torch traces it.

``torch.div(x.size(1), 2, rounding_mode="trunc")`` is a tensor, and so is
``torch.tensor(x.size(1)) % 4``. Taken out again, to cut or to reshape, each is a number of which
torch knows nothing: it refuses to compare it, or checks at run time that it is what it was. Inside
the block such a tensor remembers which size it is, and a tensor of several sizes which ones:

    shapes = torch.as_tensor([(h, w), (h // 2, w // 2)])    [[h, w], [h // 2, w // 2]]
    shapes.prod(1)                                          [h * w, (h // 2) * (w // 2)]
    for height, width in shapes:                            h, w in the first step
    shapes[1, 0] = n                                        [[h, w], [n, w // 2]]

A quotient of sizes is a float, and remembers both until it is rounded, as in the padding of a
convolution with a step:

    frames = (length - kernel) / stride + 1                 (length - kernel + stride, stride)
    torch.ceil(frames).to(torch.int64)                      -(-(length - kernel + stride) // stride)

A float of 32 bits rounds a quotient as the ints say up to 2**23 only, so the sizes are bounded by that.
Where a trace needs the number, ``stride`` may be a buffer of the model: it counts as its number, and the
program checks it.

Another float has no such memory: ``float(torch.tensor(h / w).log2().round())`` is unknown, and where an
operator wants a plain number of it, torch takes that of the example and checks nothing. Asked to,
the block gives the number itself, and the program checks at run time that a call has it too.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_impls.py, where
``item()`` of a tensor gives its ``item_memo``. It may go when torch keeps the size itself;
``test_a_size_goes_through_a_tensor`` of ``tests/repairs/test_size_tensors.py`` fails then without it
no more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch

from ...pytrees.nodes import is_size
from ...torch_internals.fake_tensors import FakeTensor, unset_fake_temporarily
from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.sizes import (
    expression_of,
    free_unbacked_symbols,
    statically_known_true,
)
from ..repair import Attempt, Repair, Retry
from ..trace_mode import Reader
from .by_values import BY_VALUES, UncheckedBranchError
from .range_tensors import LIST_TAKERS, RangeTensors

__all__ = [
    "BUFFER_NUMBERS",
    "FLOATS_DECIDE",
    "SIZE_TENSORS",
    "SizeTensors",
    "has_known_sizes",
    "holds_ints",
    "numbers_in_buffers",
]

#: an array of ints and of torch.SymInt
Sizes = numpy.ndarray[Any, Any]
_MAKERS = frozenset({torch.tensor, torch.as_tensor, torch.scalar_tensor})
_SAME = frozenset({"to", "long", "int", "clone", "detach", "contiguous", "cpu"})
_SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "radd": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "mul": operator.mul,
    "rmul": operator.mul,
    "multiply": operator.mul,
    "rsub": lambda left, right: right - left,
}
#: these are alike for what is not negative, be it rounded towards zero or down
_QUOTIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "div": operator.floordiv,
    "divide": operator.floordiv,
    "floor_divide": operator.floordiv,
    "floordiv": operator.floordiv,
    "fmod": operator.mod,
    "remainder": operator.mod,
    "mod": operator.mod,
}


#: these make numbers of those along a dimension, or of all
_ALONG: dict[str, Callable[..., Any]] = {
    "prod": numpy.prod,
    "sum": numpy.sum,
    "cumsum": numpy.cumsum,
}
#: these make tensors that are written to afterwards
_BLANKS = frozenset({torch.empty, torch.zeros, torch.Tensor.new_empty, torch.Tensor.new_zeros})
_APART = frozenset({torch.unbind, torch.Tensor.unbind})
_READS = frozenset({torch.Tensor.item, torch.Tensor.__float__})
#: functions that take arrays of NumPy
_TAKES_ARRAYS = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__, *LIST_TAKERS})
#: what torch says where an operator of a library is given a float that it does not know
_NO_FLOAT = "but instead found type 'SymFloat'"
#: the attribute of a tensor without dimensions that is computed of sizes alone
_OF_SIZES = "_onlooker_of_sizes"
#: the attribute of a tensor with dimensions that has the sizes which it holds, and its version
_SIZES = "_onlooker_sizes"
#: larger tensors and lists hold no sizes
_MOST_SIZES = 64
#: the attribute of a tensor without dimensions that is a quotient of sizes: both, and its version
_QUOTIENT = "_onlooker_quotient"
#: the attribute of one to which a number was added: a second one would be a third rounding
_SHIFTED = "_onlooker_shifted"
#: up to this numerator a float rounds a quotient as the ints say, and up to this number more or less
_EXACT = {torch.float32: 1 << 23, torch.float64: 1 << 50}
_MOST_ADDED = 8
_ROUNDED: dict[str, Callable[[Any, int], Any]] = {
    "ceil": lambda over, under: -(-over // under),
    "floor": lambda over, under: over // under,
}
#: the attribute of a buffer whose number the program checks, and its version
_NUMBER = "_onlooker_number"


class SizeTensors(Reader):
    """Inside the block, the integers of a trace that are computed of sizes alone are these sizes
    when taken out.

    ``floats_decide`` makes the floats that are computed of sizes alone numbers, with a check in the
    program, in a trace that decides by values. ``ranges`` are the lists that stand for a ``range``,
    ``buffers`` the buffers that count as the numbers beside them. ``meets_unknown`` is True after a size was
    computed with a number that is not known.
    """

    def __init__(
        self,
        floats_decide: bool = False,
        ranges: RangeTensors | None = None,
        buffers: Iterable[tuple[Any, int]] = (),
    ) -> None:
        self.floats_decide = floats_decide
        self.ranges = RangeTensors() if ranges is None else ranges
        self.meets_unknown = False
        for buffer, number in buffers:
            if holds_ints(buffer) and not buffer.is_inference():
                setattr(buffer, _NUMBER, (number, buffer._version))

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Remembers with a result the size that it is."""
        if func in _TAKES_ARRAYS:
            args = tuple(map(_with_tensors, args))
        if func is torch.as_tensor and args and _has_sizes(args[0]):
            func = torch.tensor  # the other one makes them numbers
        if func is torch.Tensor.new_tensor and _has_sizes(args[1:]):
            own = {"dtype": args[0].dtype, "device": args[0].device}
            func, args, kwargs = torch.tensor, args[1:], {**own, **kwargs}
        if func in LIST_TAKERS and args:
            numbers = self.ranges.tensor(args[0], kwargs)
            if numbers is not None:
                return numbers
        if func is torch.Tensor.__getitem__ and (chosen := self.ranges.chosen(args[1])) is not None:
            args = args[0], chosen
        if self.floats_decide and func in _READS and _is_of_sizes(args[0]):
            return _checked_number(args[0])
        written = None
        if func is torch.Tensor.__setitem__ and _SIZES in vars(args[0]):
            written = _sizes_after(*args)
        result = func(*args, **kwargs)
        if written is not None:
            _remember(args[0], written)
        if self.floats_decide and type(result) is FakeTensor and result.ndim == 0:
            setattr(result, _OF_SIZES, _comes_of_sizes(func, (*args, *kwargs.values())))
        _remember_quotient(result, func, args, kwargs)
        if func in _APART:
            _remember_rows(result, args, kwargs)
        elif holds_ints(result):
            is_blank = func in _BLANKS and result.ndim
            _remember(result, _zeros_as(result) if is_blank else _computed(func, args, kwargs))
            has_size = any(isinstance(value, torch.SymInt) for value in args)
            self.meets_unknown |= has_size and not result.ndim and result.item_memo is None
        return result


def has_known_sizes(tensor: torch.Tensor) -> bool:
    """True for a tensor whose items are sizes, or plain numbers: each is this number when taken out."""
    return _SIZES in vars(tensor) and _sizes_of(tensor) is not None


def _with_tensors(value: Any) -> Any:
    """A tensor in the place of an array with numbers of a trace, also in a tuple or a list; another value as it is."""
    if type(value) in (tuple, list):
        return type(value)(map(_with_tensors, value))
    is_array = isinstance(value, numpy.ndarray) and value.dtype == object
    is_of_trace = is_array and all(map(is_size, value.flat))
    return torch.tensor(value.tolist()) if is_of_trace else value


def _has_sizes(value: Any) -> bool:
    """True for a size, or a list that has one."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_sizes, value))
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _is_of_sizes(tensor: Any) -> bool:
    """True for a float in a tensor that is computed of sizes alone, and has a value."""
    has_value = getattr(tensor, "real_tensor", None) is not None
    return has_value and tensor.is_floating_point() and vars(tensor).get(_OF_SIZES, False)


def _comes_of_sizes(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """True where a function puts a size into a tensor, or computes with such tensors alone."""
    if func in _MAKERS:
        return isinstance(args[0], (torch.SymInt, torch.SymFloat))
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(vars(tensor).get(_OF_SIZES, False) for tensor in tensors)


def _checked_number(tensor: Any) -> float:
    """The number in a tensor of the example; the branch makes the program check it."""
    number = float(tensor.real_tensor)
    same = tensor == number if number == number else tensor != tensor
    if not same:
        raise AssertionError("a tensor differs from its value in a trace")
    return number


def holds_ints(value: Any) -> bool:
    """True for a tensor of a trace with ints that sizes fit into."""
    return type(value) is FakeTensor and value.dtype in (torch.int64, torch.int32)


def _remember(tensor: Any, sizes: Sizes | None) -> None:
    """Makes the sizes what a tensor gives when they are taken out."""
    if sizes is None or tensor.constant is not None:  # torch itself knows the values of this one
        return
    if not tensor.ndim:
        tensor.item_memo = sizes.item()
    elif not tensor.is_inference():  # torch counts no writes to those
        setattr(tensor, _SIZES, (sizes, tensor._version))


def _remember_rows(rows: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Makes each row of a tensor, taken apart, give its sizes."""
    # of a tensor that remembers nothing nothing is asked: that would be a function more in the trace
    sizes = _sizes_of(args[0]) if _SIZES in vars(args[0]) else None
    if sizes is not None and args[1:] in ((), (0,)) and not kwargs:
        for row, own in zip(rows, sizes, strict=True):
            _remember(row, _array(own))


def _zeros_as(tensor: torch.Tensor) -> Sizes | None:
    """Zeros in the shape of a tensor that is made to be written to; None for a large one."""
    shape = tuple(tensor.shape)
    is_small = all(type(size) is int for size in shape) and tensor.numel() <= _MOST_SIZES
    return numpy.zeros(shape, dtype=object) if is_small else None


def _sizes_after(tensor: torch.Tensor, index: Any, value: Any) -> Sizes | None:
    """The sizes in a tensor after a size was written at an index."""
    sizes, size = _sizes_of(tensor), _sizes_of(value)
    if sizes is None or size is None or size.ndim or not _is_plain_index(index):
        return None
    after: Sizes = sizes.copy()
    after[index] = size.item()
    return after


def _computed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sizes | None:
    """The sizes that a function gives, None where they are not known."""
    if func is torch.cat and len(args) == 1 and not kwargs:
        parts = [_sizes_of(part) for part in args[0]]
        known = [part for part in parts if part is not None]
        return numpy.concatenate(known) if len(known) == len(parts) else None
    if func is torch.arange and all(type(bound) is int for bound in args) and "end" not in kwargs:
        numbers = range(*args)
        return numpy.array(numbers, dtype=object) if len(numbers) <= _MOST_SIZES else None
    name = getattr(func, "__name__", "").strip("_")
    left = _sizes_of(args[0]) if args else None
    if left is None and name in _SAME and args:
        left = _whole(args[0])
    if left is None or "alpha" in kwargs or "out" in kwargs:
        return None
    if func in _MAKERS or name in _SAME or (func is torch.stack and len(args) == 1 and not kwargs):
        return left
    if name in _ALONG:
        dims = (*args[1:], *kwargs.values())
        is_known = kwargs.keys() <= {"dim"} and _is_dim(dims)
        return _array(_ALONG[name](left, *dims)) if is_known else None
    if func is torch.Tensor.__getitem__:
        return _array(left[args[1]]) if _is_plain_index(args[1]) else None
    right = _sizes_of(args[1]) if len(args) == 2 else None
    if right is None:
        return None
    if name.startswith("r") and name[1:] in _QUOTIENTS:
        name, left, right = name[1:], right, left
    return _joined(name, left, right)


def _remember_quotient(
    result: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Keeps of which sizes a float of a trace is the quotient."""
    is_float = type(result) is FakeTensor and not result.ndim and result.dtype in _EXACT
    if not is_float or kwargs or result.device.type != "cpu" or result.is_inference():
        return
    quotient = _quotient_after(getattr(func, "__name__", "").strip("_"), args, _EXACT[result.dtype])
    if quotient is not None:
        setattr(result, _QUOTIENT, (*quotient, result._version))
        setattr(result, _SHIFTED, _quotient_of(args[0]) is not None)


def _quotient_after(name: str, args: tuple[Any, ...], most: int) -> tuple[Any, int] | None:
    """The sizes of which a function gives the quotient; None for another function."""
    known = _quotient_of(args[0]) if args else None
    if name in _ROUNDED and known is not None and len(args) == 1:
        over, under = known
        if not (over + _MOST_ADDED * under < most and over > -most):
            return None
        return _ROUNDED[name](over, under), 1
    if len(args) != 2:
        return None
    if known is not None and name in ("add", "radd", "sub", "subtract"):
        added, (over, under) = args[1], known
        is_first = under == 1 or not vars(args[0]).get(_SHIFTED, False)
        if not is_first or added not in range(-_MOST_ADDED, _MOST_ADDED + 1):
            return None
        return over + (int(added) if name.endswith("add") else -int(added)) * under, under
    if name not in ("div", "divide", "truediv", "true_divide"):
        return None
    pair = [_sizes_of(value) for value in args]
    if any(sizes is None or sizes.ndim for sizes in pair):
        return None
    over, under = (sizes.item() for sizes in pair if sizes is not None)
    if free_unbacked_symbols(expression_of(over)) or type(under) is not int:
        return None
    return (over, under) if 0 < under < most >> 8 else None


def _quotient_of(value: Any) -> tuple[Any, int] | None:
    """The sizes of which a float of a trace is the quotient; None where they are not known."""
    if type(value) is not FakeTensor or _QUOTIENT not in vars(value):
        return None
    over, under, version = vars(value)[_QUOTIENT]
    return (over, under) if version == value._version else None


def _whole(value: Any) -> Sizes | None:
    """The size that a rounded quotient is; None for any other value."""
    over, under = _quotient_of(value) or (None, 0)
    return _array(over) if under == 1 else None


def _joined(name: str, left: Sizes, right: Sizes) -> Sizes | None:
    if name in _SUMS:
        return _array(_SUMS[name](left, right))
    if name in _QUOTIENTS and _all_known(left, 0) and _all_known(right, 1):
        return _array(_QUOTIENTS[name](left, right))
    return None


def _all_known(sizes: Sizes, least: int) -> bool:
    """True where no size is less than a number."""
    return all(statically_known_true(size >= least) for size in sizes.flat)


def _is_dim(args: tuple[Any, ...]) -> bool:
    """True for one dimension, and for none."""
    return not args or (len(args) == 1 and type(args[0]) is int)


def _is_plain_index(index: Any) -> bool:
    """True for an index that takes the same elements whatever the sizes are."""
    parts = index if isinstance(index, tuple) else (index,)
    ends = [part for part in parts if not isinstance(part, slice)]
    for part in parts:
        if isinstance(part, slice):
            ends += [part.start, part.stop, part.step]
    return all(end is None or end is Ellipsis or type(end) is int for end in ends)


def _array(value: Any) -> Sizes:
    """The sizes as an array, also where there is one alone."""
    if isinstance(value, numpy.ndarray):
        return value
    array = numpy.empty((), dtype=object)
    array[()] = value
    return array


def _sizes_of(value: Any) -> Sizes | None:
    """The sizes that a number, a list or a tensor is, None where they are not known."""
    if is_size(value):
        return _array(value)
    if isinstance(value, (list, tuple)):
        parts = [_sizes_of(part) for part in value[:_MOST_SIZES]]
        known = [part for part in parts if part is not None]
        is_known = len(known) == len(value) and len({part.shape for part in known}) == 1
        return numpy.stack(known) if is_known else None
    if not holds_ints(value):
        return None
    if value.constant is not None and value.constant.numel() <= _MOST_SIZES:
        with unset_fake_temporarily(), WithoutFunctions():  # in inference mode too
            return numpy.array(value.constant.tolist(), dtype=object)
    if value.ndim:
        sizes, version = vars(value).get(_SIZES, (None, None))
        return None if sizes is None or version != value._version else sizes
    number, version = vars(value).get(_NUMBER, (None, None))
    if number is not None and version == value._version:
        torch._check(value.item() == number)  # type: ignore[no-untyped-call]
        return _array(number)
    is_known = isinstance(value.item_memo, (int, torch.SymInt))
    return _array(value.item_memo) if is_known else None


def numbers_in_buffers(model: Any) -> dict[str, int]:
    """The ints that the buffers of a model without dimensions hold, by their names."""
    buffers = model.named_buffers() if isinstance(model, torch.nn.Module) else ()
    return {
        name: int(buffer)
        for name, buffer in buffers
        if not buffer.ndim and buffer.dtype in (torch.int64, torch.int32) and not buffer.is_meta
    }


def _needs_numbers(attempt: Attempt) -> Retry | None:
    wants_number = isinstance(attempt.error, UncheckedBranchError) or _NO_FLOAT in attempt.message
    if BY_VALUES not in attempt.request.on or not wants_number:
        return None
    note = f"a float that is computed of sizes in a tensor is that of the example: {attempt.error}"
    return attempt.wants(FLOATS_DECIDE, note)


def _met_number_of_buffer(attempt: Attempt) -> Retry | None:
    reader = attempt.reader(SizeTensors)
    if reader is None or not reader.meets_unknown or not attempt.depends_on_values:
        return None
    return attempt.wants(BUFFER_NUMBERS)


SIZE_TENSORS = Repair(
    "sizes in tensors",
    "``torch.tensor(x.size(1)) % 4`` is a size that torch forgets: taken out again, it is a number of which"
    " nothing is known. The tensor remembers which size it is, and one of several sizes, such as the heights"
    " and widths of some levels of features, which ones. ``torch.as_tensor`` and ``new_tensor`` take sizes as"
    " ``torch.tensor`` does.",
    until="tests/repairs/test_size_tensors.py::test_a_size_goes_through_a_tensor",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_impls.py",
    always=True,
)
FLOATS_DECIDE = Repair(
    "floats of sizes",
    "An operator that wants a plain number of a float that tensors of sizes hold gets that of the example,"
    " and nothing checks it. The program checks at run time that a call has the same number.",
    until="tests/repairs/test_size_tensors.py::test_sizes_that_floats_decide_and_branches_on_values",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_impls.py",
    retry=_needs_numbers,
)
BUFFER_NUMBERS = Repair(
    "numbers in buffers",
    "A buffer without dimensions that holds an int, such as the step of a convolution, is a value of which a"
    " trace knows nothing, and so are the sizes that are computed with it. It counts as its number, and the"
    " program checks at run time that it still is.",
    until="tests/repairs/test_size_tensors.py::test_the_padding_of_a_step_in_a_buffer_follows_the_length",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_impls.py",
    retry=_met_number_of_buffer,
)

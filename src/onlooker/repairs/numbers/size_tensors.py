"""Sizes that a model puts into tensors and takes out again, kept as sizes while torch traces it.

``torch.div(x.size(1), 2, rounding_mode="trunc")`` is a tensor, and so is
``torch.tensor(x.size(1)) % 4``. Taken out again, to cut or to reshape, each is a number of which
torch knows nothing: it refuses to compare it, or checks at run time that it is what it was. Inside
the block such a tensor remembers which size it is.

A float has no such memory: ``float(torch.tensor(h / w).log2().round())`` is unknown, and where an
operator wants a plain number of it, torch takes that of the example and checks nothing. Asked to,
the block gives the number itself, and the program checks at run time that a call has it too.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_impls.py, where
``item()`` of a tensor gives its ``item_memo``. It may go when torch keeps the size itself;
``test_a_size_goes_through_a_tensor`` of ``tests/repairs/test_size_tensors.py`` fails then without it
no more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from ...pytrees.nodes import is_size
from ...torch_internals.fake_tensors import FakeTensor
from ...torch_internals.sizes import statically_known_true
from ..repair import Attempt, Repair, Retry
from ..trace_mode import Reader
from .by_values import BY_VALUES, UncheckedBranchError
from .range_tensors import LIST_TAKERS, RangeTensors

__all__ = ["FLOATS_DECIDE", "SIZE_TENSORS", "SizeTensors"]

Size = int | torch.SymInt
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


_READS = frozenset({torch.Tensor.item, torch.Tensor.__float__})
#: what torch says where an operator of a library is given a float that it does not know
_NO_FLOAT = "but instead found type 'SymFloat'"
#: the attribute of a tensor without dimensions that is computed of sizes alone
_OF_SIZES = "_onlooker_of_sizes"


class SizeTensors(Reader):
    """Inside the block, the integers of a trace that are computed of sizes alone are these sizes
    when taken out.

    ``floats_decide`` makes the floats that are computed of sizes alone numbers, with a check in the
    program, in a trace that decides by values. ``ranges`` are the lists that stand for a ``range``.
    """

    def __init__(self, floats_decide: bool = False, ranges: RangeTensors | None = None) -> None:
        self.floats_decide = floats_decide
        self.ranges = RangeTensors() if ranges is None else ranges

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Remembers with a result the size that it is."""
        if func is torch.as_tensor and args and isinstance(args[0], (torch.SymInt, torch.SymFloat)):
            func = torch.tensor  # the other one makes it a number
        if func in LIST_TAKERS and args:
            numbers = self.ranges.tensor(args[0], kwargs)
            if numbers is not None:
                return numbers
        if self.floats_decide and func in _READS and _is_of_sizes(args[0]):
            return _checked_number(args[0])
        result = func(*args, **kwargs)
        if self.floats_decide and type(result) is FakeTensor and result.ndim == 0:
            setattr(result, _OF_SIZES, _comes_of_sizes(func, (*args, *kwargs.values())))
        if (
            type(result) is FakeTensor
            and result.ndim == 0
            and result.dtype in (torch.int64, torch.int32)
        ):
            size = _computed(func, args, kwargs)
            if isinstance(size, torch.SymInt):
                result.item_memo = size
        return result


def _is_of_sizes(tensor: Any) -> bool:
    """True for a float in a tensor that is computed of sizes alone, and has a value."""
    has_value = getattr(tensor, "real_tensor", None) is not None
    return has_value and tensor.is_floating_point() and getattr(tensor, _OF_SIZES, False)


def _comes_of_sizes(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """True where a function puts a size into a tensor, or computes with such tensors alone."""
    if func in _MAKERS:
        return isinstance(args[0], (torch.SymInt, torch.SymFloat))
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(getattr(tensor, _OF_SIZES, False) for tensor in tensors)


def _checked_number(tensor: Any) -> float:
    """The number in a tensor of the example; the branch makes the program check it."""
    number = float(tensor.real_tensor)
    same = tensor == number if number == number else tensor != tensor
    if not same:
        raise AssertionError("a tensor differs from its value in a trace")
    return number


def _computed(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Size | None:
    """The size that a function gives, None where it is not known."""
    name = getattr(func, "__name__", "").strip("_")
    left = _size_of(args[0]) if args else None
    if left is None or "alpha" in kwargs or "out" in kwargs:
        return None
    if func in _MAKERS or name in _SAME:
        return left
    right = _size_of(args[1]) if len(args) == 2 else None
    if right is None:
        return None
    if name.startswith("r") and name[1:] in _QUOTIENTS:
        name, left, right = name[1:], right, left
    return _joined(name, left, right)


def _joined(name: str, left: Size, right: Size) -> Size | None:
    if name in _SUMS:
        return _SUMS[name](left, right)  # type: ignore[no-any-return]
    if name in _QUOTIENTS and statically_known_true(left >= 0) and statically_known_true(right > 0):
        return _QUOTIENTS[name](left, right)  # type: ignore[no-any-return]
    return None


def _size_of(value: Any) -> Size | None:
    """The size that a number or a tensor is."""
    if is_size(value):
        return value
    if type(value) is not FakeTensor or value.ndim or value.dtype not in (torch.int64, torch.int32):
        return None
    if value.constant is not None:
        return int(value.constant)
    return value.item_memo if isinstance(value.item_memo, (int, torch.SymInt)) else None


def _needs_numbers(attempt: Attempt) -> Retry | None:
    wants_number = isinstance(attempt.error, UncheckedBranchError) or _NO_FLOAT in attempt.message
    if BY_VALUES not in attempt.request.on or not wants_number:
        return None
    note = f"a float that is computed of sizes in a tensor is that of the example: {attempt.error}"
    return attempt.wants(FLOATS_DECIDE, note)


SIZE_TENSORS = Repair(
    "sizes in tensors",
    "``torch.tensor(x.size(1)) % 4`` is a size that torch forgets: taken out again, it is a number of which"
    " nothing is known. The tensor remembers which size it is.",
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

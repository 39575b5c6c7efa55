"""Floats of Python as inputs of a graph: tensors of float64 without dimensions, for a program takes
no float.

In a trace the model gets the number that the tensor holds, ``tensor.item()``. torch knows only that
it is a float of Python, and not its value: ``x * t``, ``torch.full((2,), t)`` and ``torch.lerp(x,
y, t)`` have the dtype and the value that they have for a float, since the exported graph hands the
number to the same operators. Python code that decides by the value (``if t > 0.5``,
``range(int(t))``, ``math.exp(t)``, a key of a dict) ends the trace with an error.

A tensor instead of the number would do other things: a tensor of ints times a tensor of float64 is
float64, and times a float it is float32.

torch computes with such numbers as with real ones, by the rules of algebra: ``t * 0`` and ``t - t`` are 0 for
NaN and infinite numbers too, ``(t + 1e30) - 1e30`` is ``t``, and ``t == t`` is true. Where it has simplified
more than it may, the number is computed by tensors of float64 instead, which round as Python does.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch

from ...core.plan import Plan
from ...model_source.frames import is_code_of_model
from ...patches.swap import swapped
from ..repair import Repair, Setup
from .size_ints import Float, builtins_swapped

__all__ = ["FLOAT_TENSORS", "floats_stay_numbers", "with_float_tensors"]


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
#: operators of Python whose result torch may simplify, and what computes them with tensors
_OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv")},
    **{name: getattr(operator, name) for name in _COMPARISONS},
}
_REFLECTED = ("add", "sub", "mul", "truediv")
#: symbols of torch that stand for floats
_OF_FLOATS = ("zuf", "zf")


@contextlib.contextmanager
def floats_are_rounded() -> Iterator[None]:
    """Inside the block numbers that torch reads from tensors of floats are computed as Python does."""
    with contextlib.ExitStack() as stack:
        for name, compute in _OPERATORS.items():
            stack.enter_context(swapped(torch.SymFloat, f"__{name}__", _rounded(name, compute)))
        for name in _REFLECTED:
            rounded = _rounded(f"r{name}", _with_sides_swapped(_OPERATORS[name]))
            stack.enter_context(swapped(torch.SymFloat, f"__r{name}__", rounded))
        stack.enter_context(
            swapped(torch.SymFloat, "__bool__", _is_not_zero(torch.SymFloat.__bool__))
        )
        yield


def _is_not_zero(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """What ``if t:`` asks of a number: a comparison with 0, of one that was read from a tensor."""

    def is_not_zero(value: Any) -> bool:
        symbols = _expression(value).free_symbols
        is_read = any(str(symbol).startswith(_OF_FLOATS) for symbol in symbols)
        return bool(value != 0) if is_read else original(value)

    return is_not_zero


def _with_sides_swapped(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: compute(right, left)


def _rounded(name: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    original = getattr(torch.SymFloat, f"__{name}__")

    def rounded(left: Any, right: Any) -> Any:
        result = original(left, right)
        is_of_model = is_code_of_model(sys._getframe(1).f_code.co_filename)
        if result is NotImplemented or not is_of_model:
            return result
        if not _is_simplified(name, result, left, right):
            return result
        sides = [torch.scalar_tensor(one, dtype=torch.float64) for one in (left, right)]
        if name.endswith("truediv"):
            divisor = sides[name == "truediv"]
            torch.ops.aten._assert_async.msg(divisor != 0, "float division by zero")
        return compute(*sides).item()

    return rounded


def _is_simplified(name: str, result: Any, left: Any, right: Any) -> bool:
    """True for a sum that is none of its two sides, for another result that has lost a symbol of them, and for a
    comparison of sides with a symbol in common; one side is a number that was read from a tensor.
    """
    one, other, found = map(_expression, (left, right, result))
    symbols = one.free_symbols | other.free_symbols
    if not any(str(symbol).startswith(_OF_FLOATS) for symbol in symbols):
        return False
    if found.free_symbols != symbols:
        return True
    if name in ("add", "radd"):
        return _terms(found.args) != _terms((one, other))
    if name in ("sub", "rsub"):
        one, other = (one, -other) if name == "sub" else (-one, other)
        return _terms(found.args) != _terms((one, other))
    return name in _COMPARISONS and not one.free_symbols.isdisjoint(other.free_symbols)


def _terms(terms: Iterable[Any]) -> set[Any]:
    """The terms of a sum: ``1`` and ``1.0`` are one number."""
    return {float(term) if term.is_number else term for term in terms}


def _expression(value: Any) -> Any:
    is_symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return value.node.expr if is_symbolic else sympy.sympify(value)


@contextlib.contextmanager
def floats_stay_numbers(model: Any, plan: Plan) -> Iterator[None]:
    """Swaps ``float`` in the files of a model, where a plan has a float as an input.

    There ``isinstance(t, float)`` is true in the trace as it is outside, and ``float(t)`` is ``t``.
    A file that has a ``float`` of its own keeps it.
    """
    model = model if any(leaf.is_float for leaf in plan.inputs) else None
    with builtins_swapped(model, {"float": Float}):
        yield


def with_float_tensors(inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs of a graph with a tensor for every float.

    >>> with_float_tensors([0.1, 2])
    [tensor(0.1000, dtype=torch.float64), 2]
    """
    if not any(issubclass(kind, float) for kind in set(map(type, inputs))):
        return inputs
    return [
        torch.tensor(float(v), dtype=torch.float64) if isinstance(v, float) else v for v in inputs
    ]


@contextlib.contextmanager
def _block(setup: Setup) -> Iterator[None]:
    with floats_stay_numbers(setup.model, setup.plan), floats_are_rounded():
        yield


FLOAT_TENSORS = Repair(
    "floats as inputs",
    "A program takes no float of Python. It takes a tensor of float64, and the model gets the"
    " number in it; in the files of the model ``float`` leaves it as it is.",
    until="tests/graphs/test_float_inputs.py",
    always=True,
    block=_block,
)

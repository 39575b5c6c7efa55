"""Numbers that the steps of a loop read from tensors: how long a part is, how high an image.

``for h, w in grid.tolist()`` gives each step two numbers, which are values. A rolled loop has a symbol of
torch for each number of a step, and a name for it that is the same in all steps: the operation of the step
that gives it. So ``torch.arange(h // 2)`` is the same operation in each step, with a :class:`StepSize` of the
formula ``#1 // 2``. The ``scan`` reads the numbers anew in its step.

    start = 0
    for length in lengths.tolist():           #0: a row of lengths, #1: its number
        part = x[start : start + length]      x[total : total + #1]
        start += length                       the total grows by #1

``start`` is a total: what it grows by is the same formula of the numbers of each step. The step reads it as a row of a
tensor too: of the sums of all steps before.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean

from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.sizes import (
    FloorDiv,
    Mod,
    PythonMod,
    PythonReferenceAnalysis,
    ValueRanges,
    bound_sympy,
    int_oo,
    size_of,
    sympy_interp,
)

__all__ = ["NumberOrigin", "StepNumbers", "StepSize", "Total", "demanded"]


@dataclass(frozen=True, slots=True)
class NumberOrigin:
    """What a number of a step is: the value that an operation reads, the size ``dim`` of its result, or
    a ``total``.
    """

    operation: int = -1
    leaf: int = 0
    dim: int | None = None
    total: str = ""

    @property
    def symbol(self) -> sympy.Symbol:
        """The name of the number in all steps."""
        dim = "" if self.dim is None else f".{self.dim}"
        name = f"{self.total} so far" if self.total else f"#{self.operation}.{self.leaf}{dim}"
        return sympy.Symbol(name, integer=True)


@dataclass(frozen=True, slots=True)
class StepSize:
    """A size, or a condition, that is computed from numbers of the step; ``sizes`` are those from outside
    that are in it, by their symbols.
    """

    expression: str
    origins: tuple[NumberOrigin, ...]
    formula: Any = field(compare=False)
    sizes: Mapping[Any, Any] = field(compare=False)

    def value(self, number: Callable[[NumberOrigin], Any], size: Callable[[Any], Any]) -> Any:
        """The value of the formula, where ``number`` gives those of a step, and ``size`` those from outside."""
        known = {origin.symbol: number(origin) for origin in self.origins}
        known |= {symbol: size(symbol) for symbol in self.sizes}
        return sympy_interp(_Formulas, known, self.formula)


class _Formulas(PythonReferenceAnalysis):
    """Computes formulas of sizes by functions that torch can save."""

    @staticmethod
    def sym_sum(args: Sequence[Any]) -> Any:
        """A sum: ``torch.sym_sum`` is in no file."""
        return functools.reduce(operator.add, args)


@dataclass(slots=True)
class Total:
    """A size that grows in each step: what it begins with, the :class:`StepSize` that it grows by, and the
    function that computes what it is in the ``end``.
    """

    begin: Any
    growth: Any = None
    end: Callable[[], Any] | None = None


def demanded(condition: Any) -> None:
    """Demands a condition on numbers of a step, as the model does."""
    torch._check(condition)  # type: ignore[no-untyped-call]


def _by_quotient(number: Any, divisor: Any) -> Any:
    """The remainder of a division by its quotient, whose bounds tell more: of ``n - n % 4`` that it is not negative."""
    return number - divisor * FloorDiv(number, divisor)


class StepNumbers:
    """The symbols of the numbers of the steps of one loop, made in ``environment``.

    Steps 3 and later have the symbols of the step two before: they do the same.
    """

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self._origins: dict[Any, NumberOrigin] = {}
        self._steps: dict[Any, int] = {}
        self._made: dict[tuple[NumberOrigin, int], torch.SymInt] = {}
        self._first = environment.unbacked_symint_counter
        #: the totals, by their names
        self.totals: dict[str, Total] = {}

    def __bool__(self) -> bool:
        """True where the steps read a number."""
        return bool(self._origins)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._origins)

    def number(self, origin: NumberOrigin, step: int) -> torch.SymInt:
        """The number of a step."""
        key = origin, (step if step < 3 else 2 - step % 2)
        if key not in self._made:
            with self.environment.ignore_fresh_unbacked_symbols():
                self._made[key] = self.environment.create_unbacked_symint()
        made = self._made[key]
        self._knows(made.node._expr, origin, step)
        return made

    def sees(self, tensors: Iterable[torch.Tensor], operation: int, step: int) -> None:
        """Keeps the sizes of results that are symbols of their own: those that values say."""
        with WithoutFunctions():  # the model reads none of these sizes
            shapes = [tensor.shape for tensor in tensors]
        for leaf, shape in enumerate(shapes):
            for dim, size in enumerate(shape):
                symbol = size.node.expr if isinstance(size, torch.SymInt) else None
                if symbol is None or not symbol.is_Symbol or not self._is_new(symbol):
                    continue
                if self._origins.get(symbol) in (None, NumberOrigin(operation, leaf, dim)):
                    self._knows(symbol, NumberOrigin(operation, leaf, dim), step)

    def _knows(self, symbol: Any, origin: NumberOrigin, step: int) -> None:
        self._origins[symbol], self._steps[symbol] = origin, step

    def _is_new(self, symbol: Any) -> bool:
        name = str(symbol)
        return name[0] == "u" and name[1:].isdigit() and int(name[1:]) >= self._first

    def has_numbers(self, expression: Any) -> bool:
        """True for an expression with a symbol that is not from before the loop."""
        return any(map(self._is_new, getattr(expression, "free_symbols", ())))

    def total(self, name: str, step: int) -> torch.SymInt:
        """A total before a step."""
        return self.number(NumberOrigin(total=name), step)

    def formula_of(self, expression: Any, step: int, *, plain: bool = False) -> StepSize | None:
        """An expression with the names of the numbers that are in it; None where there is none, unless a
        ``plain`` one is wanted too.

        :raises LookupError: for a number of another step
        """
        new = sorted(filter(self._is_new, expression.free_symbols), key=str)
        if not new and not plain:
            return None
        for symbol in new:
            if self._steps.get(symbol) != step:
                raise LookupError("a step reads a number of another step")
        origins = sorted((self._origins[symbol] for symbol in new), key=lambda one: str(one.symbol))
        formula = expression.xreplace({s: self._origins[s].symbol for s in new})
        outer = expression.free_symbols.difference(new)
        sizes = {symbol: size_of(symbol, self.environment) for symbol in sorted(outer, key=str)}
        return StepSize(str(formula), tuple(origins), formula, sizes)

    def assumed(self, expression: Any, leasts: Mapping[Any, int]) -> bool | None:
        """The answer to a question that holds for all numbers of 2 and more, as torch assumes it of sizes, or from
        their ``leasts`` on; None where there is none. A total is any number: it may begin with 0.
        """
        symbols = expression.free_symbols
        read = [s for s in symbols if s in self._origins and not self._origins[s].total]
        if not read or not isinstance(expression, Boolean):
            return None
        known = self.environment.var_to_range
        expression = expression.xreplace(
            {one: _by_quotient(*one.args) for one in expression.atoms(Mod, PythonMod)}
        )
        ranges = {s: known[s] for s in symbols if s in known}
        if expression.is_Boolean and not expression.free_symbols:
            return bool(expression)
        ranges |= {symbol: ValueRanges(leasts.get(symbol, 2), int_oo) for symbol in read}
        found = bound_sympy(expression, ranges)
        return bool(found.lower) if found.is_singleton() else None

    def conditions(self) -> Iterator[Any]:
        """The conditions that torch has noted of numbers of steps."""
        for symbol in self._origins:
            for asserted in self.environment.deferred_runtime_asserts.get(symbol, ()):
                yield asserted.expr

    def forget_conditions(self) -> None:
        """The conditions are those of the steps of a scan, which has them again."""
        for symbol in self._origins:
            self.environment.deferred_runtime_asserts.pop(symbol, None)

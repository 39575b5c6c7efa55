"""The contract of a graph as a function of its inputs, compiled once; and the reasons when a
call breaks it.

For inputs ``x`` and ``mask`` of shape (batch, sequence) and a graph that needs ``sequence > 24`` the function is::

    def check(_inputs):
      v0 = _inputs[0].shape[0]
      v1 = _inputs[0].shape[1]
      if not (v0 >= 1): return False
      if not (v1 >= 1): return False
      if _inputs[0].shape != (v0, v1,): return False
      if _inputs[1].shape != (v0, v1,): return False
      return bool((v1 > 24))

It only says yes or no. A call that it refuses is looked at once more, axis by axis, for the reasons: a mask of
another length is "mask.shape[1]: expected sequence, got 7 with sequence = 6 in x.shape[1]".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.contract import Constraint, Contract, Origin
from ..core.plan import LeafPlan, Plan, symbol_names
from ..core.sizes.expression import Expression, Sizes
from ..core.sizes.floor import written
from ..core.sizes.formula import FUNCTIONS, read_formula, renamed
from ..core.spec import Axis
from ..core.traffic import Violation, ViolationKind
from .places import Spelling, places_of, spelled_axis

__all__ = ["Checker"]


class Checker:
    """Checks the inputs of a graph, in the order of its plan, against plan and contract.

    Inputs are anything with a ``shape``, and ints. One pass reads the size of each symbol, compares
    every axis with its expression, each symbol with its range and step, and then the constraints of
    the contract.
    """

    def __init__(self, plan: Plan, contract: Contract) -> None:
        self.plan: Plan = plan
        self.contract: Contract = contract
        self._axes: list[tuple[int, Axis, Expression]] = []
        for position, leaf in enumerate(plan.inputs):
            self._axes += [(position, axis, expression) for axis, expression in leaf.axes]
        self._places = {
            name: (position, axis.dim)
            for position, axis, expression in reversed(self._axes)
            if expression.is_symbol
            for name in (str(expression),)
        }
        self._holds = _compiled(plan, contract)
        self._needs: dict[Constraint, tuple[str, tuple[str, ...]]] = {}

    def __call__(self, inputs: Sequence[Any]) -> bool:
        """True when the inputs are in the contract."""
        try:
            return self._holds(inputs)
        except (ArithmeticError, ValueError):  # a region has no answer: another one may have
            return len(self.contract.regions) > 1 and self._is_in_a_region(inputs)
        except (IndexError, TypeError):  # another rank
            return False

    def _is_in_a_region(self, inputs: Sequence[Any]) -> bool:
        """True when the inputs are in the contract, asked region by region."""
        try:
            return not any(self.violations(inputs))
        except (ArithmeticError, ValueError):  # the expression of an axis has no answer
            return False

    def violations(self, inputs: Sequence[Any]) -> Iterator[Violation]:
        """Yields the violations of the inputs: ranks, then constant sizes, relations, ranges,
        steps, constraints.
        """
        wrong_rank = list(self._ranks(inputs))
        if wrong_rank:
            yield from wrong_rank
            return
        sizes = self._sizes(inputs)
        outside = [*self._of_axes(inputs, sizes), *self._of_symbols(sizes)]
        yield from outside
        if not outside:
            yield from (
                self._of_constraint(constraint, sizes)
                for constraint in self.contract.failing(sizes)
            )

    def _ranks(self, inputs: Sequence[Any]) -> Iterator[Violation]:
        for leaf, value in zip(self.plan.inputs, inputs, strict=True):
            if leaf.is_tensor and len(value.shape) != len(leaf.shape):
                got = f"a tensor of {len(value.shape)} dimensions"
                yield Violation(ViolationKind.TYPE, str(leaf.path), kind_of(leaf), got)

    def _sizes(self, inputs: Sequence[Any]) -> Sizes:
        scope = {"__builtins__": {}, "_inputs": inputs}
        places = places_of(self.plan, _spelled(self.plan))
        return {name: int(eval(text, scope)) for name, text in places.items()}

    def _of_axes(self, inputs: Sequence[Any], sizes: Sizes) -> Iterator[Violation]:
        for position, axis, expression in self._axes:
            value = inputs[position]
            size = int(value if axis.dim is None else value.shape[axis.dim])
            wanted = expression.evaluate(sizes)
            if size == wanted:
                continue
            if expression.is_constant:
                yield Violation(ViolationKind.SIZE, str(axis), str(wanted), str(size))
            else:
                where = ", ".join(
                    f"{name} = {sizes[name]} in {self._where(name)}" for name in expression.symbols
                )
                yield Violation(
                    ViolationKind.RELATION, str(axis), str(expression), f"{size} with {where}"
                )

    def _where(self, name: str) -> str:
        position, dim = self._places.get(name, (0, None))
        return str(Axis(self.plan.inputs[position].path, dim))

    def _of_symbols(self, sizes: Sizes) -> Iterator[Violation]:
        for symbol in self.plan.symbols:
            size = sizes[symbol.name]
            if not symbol.allows(size):
                is_bound = bool(symbol.limit) and size > symbol.low
                if size < symbol.low:  # 0 is in the range, also where an experiment alone found it
                    symbol = replace(symbol, zero_by_trial=False)
                yield Violation(
                    ViolationKind.BOUND if is_bound else ViolationKind.RANGE,
                    self._where(symbol.name),
                    f"{symbol.name}, {symbol.range}",
                    str(size),
                )
            if size % symbol.step:
                expected = f"{symbol.name} in steps of {symbol.step}"
                yield Violation(ViolationKind.STEP, self._where(symbol.name), expected, str(size))

    def _of_constraint(self, constraint: Constraint, sizes: Sizes) -> Violation:
        if constraint not in self._needs:
            self._needs[constraint] = self._need(constraint)
        needed, names = self._needs[constraint]
        got = ", ".join(f"{self._where(name)} = {sizes[name]}" for name in names)
        kind = ViolationKind.BOUND if constraint.origin is Origin.BOUND else ViolationKind.CONDITION
        return Violation(kind, "this graph", needed, got)

    def _need(self, constraint: Constraint) -> tuple[str, tuple[str, ...]]:
        """The constraint in the sizes of inputs, with the line of the model; and its symbols."""
        asked: dict[str, None] = {}

        def place(name: str) -> str:
            asked[name] = None
            return self._where(name)

        needed = renamed(read_formula(constraint.formula, symbol_names(self.plan)), place)
        return f"{needed}{constraint.because}", tuple(asked)


def kind_of(leaf: LeafPlan) -> str:
    """A tensor of a plan in words: ``float32[batch, 3]``."""
    return f"{leaf.dtype.removeprefix('torch.')}[{', '.join(map(str, leaf.shape))}]"


def _spelled(plan: Plan) -> Spelling:
    return spelled_axis({leaf.path: f"_inputs[{n}]" for n, leaf in enumerate(plan.inputs)})


def _compiled(plan: Plan, contract: Contract) -> Callable[[Sequence[Any]], bool]:
    """A Python function of the inputs, which raises an IndexError or a TypeError for inputs of another rank, and
    an ArithmeticError or a ValueError where a condition has no answer.

    Every name in its source is made here, and every formula has passed :func:`read_formula`.
    """
    variables = {symbol.name: f"v{number}" for number, symbol in enumerate(plan.symbols)}
    lines = ["def check(_inputs):"]
    for name, text in places_of(plan, _spelled(plan)).items():
        lines.append(f"  {variables[name]} = {text}")
    for symbol in plan.symbols:
        condition = " and ".join(symbol.conditions(variables[symbol.name]))
        if condition:
            lines.append(f"  if not ({condition}): return False")
    for position, leaf in enumerate(plan.inputs):
        wanted = [_source_of(expression, variables) for expression in leaf.shape]
        if leaf.is_tensor:
            lines.append(
                f"  if _inputs[{position}].shape != ({', '.join(wanted)}{',' if wanted else ''}):"
                " return False"
            )
        elif leaf.value is not None:
            lines.append(
                f"  if _inputs[{position}] != {_source_of(leaf.value, variables)}: return False"
            )
    names = list(variables)
    regions = [
        " and ".join(
            f"({renamed(read_formula(c.formula, names), variables.__getitem__)})"
            for c in region.constraints
        )
        or "True"
        for region in contract.regions
    ]
    lines.append(f"  return bool({' or '.join(regions) or 'False'})")
    space: dict[str, Any] = {"__builtins__": {}, "math": math, **FUNCTIONS}
    exec("\n".join(lines), space)
    function: Callable[[Sequence[Any]], bool] = space["check"]
    return function


def _source_of(expression: Expression, variables: Mapping[str, str]) -> str:
    """The source of an expression of a plan: sums, products, ``//`` and ``min`` are Python as
    they are written.
    """
    return written(expression.renamed(variables).value)

"""A run of a model in which the sizes of a call are symbols: what it demands of them."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import sympy
import torch

from ..core.errors import UsageError
from ..core.path import Path
from ..core.sizes.expression import Expression
from ..core.spec import Axis
from ..infer.relations import Column
from ..infer.samples import Demand, Demands
from ..materialise.arguments import Calls, leaf_values
from ..observing.samples import Sample
from ..proofs.path_condition import written
from ..repairs.numbers.size_functions import functions_of_sizes, math_of_sizes
from ..repairs.numbers.size_ints import ints_stay_sizes
from ..torch_internals.fake_tensors import FakeTensorMode
from ..torch_internals.sizes import (
    ConstantSource,
    FloorDiv,
    Mod,
    PythonMod,
    ShapeEnv,
    expression_of,
    symbolic_shapes,
)
from ..torch_internals.tracing import enable_python_dispatcher, functorch_config
from .lab import Lab, SpentError
from .without_floats import without_values

__all__ = ["demands_of"]

logger = logging.getLogger(__name__)
#: choices of sizes at which both sides of an equation are compared
_CHOICES = 4


def demands_of(calls: Calls, sample: Sample, columns: Sequence[Column], lab: Lab) -> Demands:
    """What a run of the model on the sizes of a call asks of them.

    The tensors of the run have no values. Where the model asks for one, it runs once more with values
    beside; what then still ends the run ends the demands that are found. They hold for the way through the
    model that this call takes.

    :raises SpentError: when the budget has ended
    """
    for with_values in (False, True):
        is_whole = False
        with functorch_config.patch(fake_tensor_propagate_real_tensors=with_values):
            run = _SymbolicRun(columns)
            try:
                with lab.private_run(why="a run on symbols"), without_values(run.mode):
                    leaves = leaf_values(sample).items()
                    values = {path: run.symbolic(path, value) for path, value in leaves}
                    run.join()
                    with _sizes_stay_symbols(lab.model):
                        lab(calls.arguments_of(values))
                    is_whole = True
            except SpentError:
                raise
            except Exception as error:
                logger.debug("the run on symbols ended: %s: %s", type(error).__name__, error)
        if is_whole:
            break
    return run.demands(is_whole=is_whole)


@contextlib.contextmanager
def _sizes_stay_symbols(model: Any) -> Iterator[None]:
    """Inside the block functions of Python that the files of a model call make no numbers of sizes, and
    operators in C++ neither.
    """
    with (
        enable_python_dispatcher(),
        functions_of_sizes(model, as_keys=True, ints_stay=True),
        math_of_sizes(),
        ints_stay_sizes(model, ()),
    ):
        yield


def _quotients(sides: tuple[Any, Any]) -> list[Any]:
    """The quotients by numbers in both sides of an equation, and the remainders."""
    parts = (part for side in sides for part in side.atoms(FloorDiv, Mod, PythonMod))
    return [part for part in parts if part.args[1].is_Integer]


def _ties_sizes(sides: tuple[Any, Any]) -> bool:
    """False for an equation that holds for all sizes that its numbers divide: ``h*w // 4 == (h//2)*(w//2)``."""
    step = math.lcm(*(int(part.args[1]) for part in _quotients(sides)))
    symbols = sorted({symbol for side in sides for symbol in side.free_symbols}, key=str)
    for offset in range(_CHOICES):
        sizes = {
            s: sympy.Integer(step * sympy.prime(offset + i + 2)) for i, s in enumerate(symbols)
        }
        if sides[0].xreplace(sizes) != sides[1].xreplace(sizes):
            return True
    return False


class _SymbolicRun:
    """The symbols of torch for the sizes of classes of axes, and what was found to hold of them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.environment = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.environment, allow_non_fake_inputs=True)
        self._columns = columns
        self._axes = {axis for column in columns for axis in column.axes}
        self._sizes: dict[Axis, Any] = {}

    def symbolic(self, path: Path, value: Any) -> Any:
        """The leaf of a call, without values and with symbols for its sizes in classes."""
        if isinstance(value, torch.Tensor):
            axes = [Axis(path, dim) for dim in range(value.dim())]
            kinds = symbolic_shapes.DimDynamic
            context: Any = symbolic_shapes.StatelessSymbolicContext(
                dynamic_sizes=[
                    kinds.DYNAMIC if axis in self._axes else kinds.STATIC for axis in axes
                ]
            )
            source = ConstantSource(f"leaf_{len(self._sizes)}")
            fake = self.mode.from_tensor(value, symbolic_context=context, source=source)
            self._sizes.update(zip(axes, fake.shape, strict=True))
            return fake
        axis = Axis(path, None)
        if type(value) is int and axis in self._axes:
            source = ConstantSource(f"leaf_{len(self._sizes)}")
            symbol = self.environment.create_symbol(
                value,
                source=source,
                dynamic_dim=symbolic_shapes.DimDynamic.DYNAMIC,
                constraint_dim=None,
            )
            self._sizes[axis] = self.environment.create_symintnode(symbol, hint=value)
            return self._sizes[axis]
        return value

    def join(self) -> None:
        """Makes the axes of each class equal."""
        for column in self._columns:
            found = [self._sizes[axis] for axis in column.axes if axis in self._sizes]
            for size in found[1:]:
                bool(size == found[0])

    def demands(self, *, is_whole: bool) -> Demands:
        """What follows for the classes from what was asked; ``is_whole`` says that the run came to its end."""
        firsts = {
            column.name: next((axis for axis in column.axes if axis in self._sizes), None)
            for column in self._columns
        }
        axes = {name: axis for name, axis in firsts.items() if axis is not None}
        found = {name: self._now(axis) for name, axis in axes.items()}
        symbols: dict[Any, str] = {}
        for name, expression in found.items():
            if expression.is_Symbol:
                symbols.setdefault(expression, name)
        equations = list(self._equations())
        asked = [
            (symbols[one], other)
            for sides in equations
            for one, other in (sides, sides[::-1])
            if one in symbols and one not in other.free_symbols
        ]
        demands = (
            self._demand(axes[name], expression, symbols, axes)
            for name, expression in (*found.items(), *asked)
            if expression.free_symbols and symbols.get(expression) != name
        )
        divided = {
            axes[symbols[symbol]]
            for sides in equations
            for part in _quotients(sides)
            for symbol in part.args[0].free_symbols
            if symbol in symbols
        }
        return Demands(
            tuple(demand for demand in demands if demand is not None),
            frozenset(divided),
            ties_none=is_whole
            and len(symbols) == len(found)
            and not any(map(_ties_sizes, equations)),
        )

    def _now(self, axis: Axis) -> Any:
        """The expression that the size of an axis has come to be."""
        return self._replaced(sympy.sympify(expression_of(self._sizes[axis], as_made=True)))

    def _replaced(self, expression: Any) -> Any:
        """An expression with what torch has put in the place of its symbols."""
        while not self._places.keys().isdisjoint(expression.free_symbols):
            expression = expression.xreplace(self._places)
        return expression

    @cached_property
    def _places(self) -> dict[Any, Any]:
        """What torch has put in the place of symbols when the run ended, but for numbers: one of these may
        come from an operator that takes no symbol.
        """
        found = {s: sympy.sympify(other) for s, other in self.environment.replacements.items()}
        return {symbol: other for symbol, other in found.items() if not other.is_number}

    def _equations(self) -> Iterator[tuple[Any, Any]]:
        """Both sides of what was asked to be equal, and of which torch did not put one in the place of the
        other.
        """
        for guard in self.environment.guards:
            condition = self._replaced(guard.expr)
            if isinstance(condition, sympy.Eq):
                yield condition.args

    def _demand(
        self, axis: Axis, expression: Any, symbols: Mapping[Any, str], axes: Mapping[str, Axis]
    ) -> Demand | None:
        """None for an expression of something else, or that no plan may hold."""
        if not symbols.keys() >= expression.free_symbols:
            return None
        text = written(expression.xreplace({s: sympy.Symbol(n) for s, n in symbols.items()}))
        try:
            return Demand(axis, Expression.parse(text), axes)
        except UsageError:
            return None

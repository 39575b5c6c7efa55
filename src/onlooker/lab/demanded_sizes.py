"""A run of a model in which the sizes of a call are symbols: what it demands of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from ..core.errors import UsageError
from ..core.path import Path
from ..core.sizes.expression import Expression
from ..core.spec import Axis
from ..infer.relations import Column
from ..infer.samples import Demand
from ..materialise.arguments import Calls, leaf_values
from ..observing.samples import Sample
from ..proofs.path_condition import written
from ..torch_internals.fake_tensors import FakeTensorMode
from ..torch_internals.sizes import ConstantSource, ShapeEnv, expression_of, symbolic_shapes
from ..torch_internals.tracing import functorch_config
from .lab import Lab, SpentError
from .without_floats import without_values

__all__ = ["demands_of"]

logger = logging.getLogger(__name__)


def demands_of(
    calls: Calls, sample: Sample, columns: Sequence[Column], lab: Lab
) -> tuple[tuple[Demand, ...], bool]:
    """The relations between classes of axes that a run of the model on the sizes of a call asks for, and
    True where there are no others: the run came to its end, and each class kept its symbol.

    The tensors of the run have no values. Where the model asks for one, it runs once more with values
    beside; what then still ends the run ends the demands that are found. They hold for the way through the
    model that this call takes.

    :raises SpentError: when the budget has ended
    """
    found = tuple[Demand, ...]()
    for with_values in (False, True):
        run = _SymbolicRun(columns)
        with functorch_config.patch(fake_tensor_propagate_real_tensors=with_values):
            mode = FakeTensorMode(shape_env=run.environment, allow_non_fake_inputs=True)
        values = leaf_values(sample)
        try:
            with lab.private_run(why="a run on symbols"), without_values(mode):
                values = {path: run.symbolic(path, value, mode) for path, value in values.items()}
                run.join()
                lab(calls.arguments_of(values))
        except SpentError:
            raise
        except Exception as error:
            logger.debug("the run on symbols ended: %s: %s", type(error).__name__, error)
            found = run.demands()
        else:
            return run.demands(), run.keeps_symbols()
    return found, False


class _SymbolicRun:
    """The symbols of torch for the sizes of classes of axes, and what was found to hold of them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self.environment = ShapeEnv(duck_shape=False)
        self._columns = columns
        self._axes = {axis for column in columns for axis in column.axes}
        self._sizes: dict[Axis, Any] = {}

    def symbolic(self, path: Path, value: Any, mode: FakeTensorMode) -> Any:
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
            fake = mode.from_tensor(value, symbolic_context=context, source=source)
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

    def keeps_symbols(self) -> bool:
        """True where nothing made a number of a class or an expression of others."""
        return all(self._now(axis).is_Symbol for axis in self._axes if axis in self._sizes)

    def _now(self, axis: Axis) -> Any:
        """The expression that the size of an axis has come to be."""
        return self.environment.replace(sympy.sympify(expression_of(self._sizes[axis])))

    def demands(self) -> tuple[Demand, ...]:
        """What follows for the classes from what was asked."""
        firsts = {
            column.name: next((axis for axis in column.axes if axis in self._sizes), None)
            for column in self._columns
        }
        axes = {name: axis for name, axis in firsts.items() if axis is not None}
        symbols: dict[Any, str] = {}
        found: dict[str, Any] = {}
        for name, axis in axes.items():
            expression = self._now(axis)
            if expression.is_Symbol:
                symbols.setdefault(expression, name)
            found[name] = expression
        asked = [(symbols[one], other) for one, other in self._equations() if one in symbols]
        demands = (
            self._demand(axes[name], expression, symbols, axes)
            for name, expression in (*found.items(), *asked)
            if expression.free_symbols and symbols.get(expression) != name
        )
        return tuple(demand for demand in demands if demand is not None)

    def _equations(self) -> Iterator[tuple[Any, Any]]:
        """What a symbol was asked to be, where torch did not put that in its place."""
        for guard in self.environment.guards:
            condition = self.environment.replace(guard.expr)
            if isinstance(condition, sympy.Eq):
                for one, other in (condition.args, condition.args[::-1]):
                    if one.is_Symbol and one not in other.free_symbols:
                        yield one, other

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

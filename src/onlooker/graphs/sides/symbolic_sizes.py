"""Symbols of torch for the sizes that a model reads from plain tensors.

A run of a model on plain tensors stands for one choice of sizes. Where each size that its Python reads
is a symbol, what Python decides by it is known as a condition on sizes (:mod:`.side_runs`)::

    x.shape == (3, 5)      x.shape[1] is a symbol s with the value 5
    if x.shape[1] > 64:    not taken, and s <= 64 is noted
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import sympy
import torch

from ...core.contract import Constraint, Origin
from ...core.errors import ExportError
from ...core.plan import Plan
from ...core.sizes.expression import Sizes
from ...model_source.frames import frame_of_model
from ...model_source.lines import line_of
from ...proofs.decisions import Decision
from ...proofs.path_condition import in_sizes, symbol_of, value_at, written
from ...pytrees.nodes import SYMBOLIC
from ...repairs.numbers.range_tensors import LIST_TAKERS, RangeTensors
from ...repairs.trace_mode import Reader
from ...torch_internals.sizes import SIZE_READS, ConstantSource, ShapeEnv, symbolic_shapes
from ..thresholds import numbers_of_pieces, sizes_at

__all__ = [
    "NotedFloat",
    "SymbolicSizes",
    "TooLargeError",
    "WayDiffersError",
    "WayRefusesError",
    "plain_of",
]

#: functions of torch on symbols, such as ``torch.sym_float``
_OF_SYMBOLS = frozenset(value for name, value in vars(torch).items() if name.startswith("sym_"))
_OF_ONE_SIZE = frozenset(
    {torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement, torch.numel}
)
#: functions that give the values of a tensor to Python by no operator, and the most elements that each is noted to read
_READING = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__})
_MOST_READ = 64
_INDEXING = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
#: functions by which Python learns a size in another form: the bytes of a tensor, how many numbers are not 0
_TELLING_OTHERWISE = frozenset(
    {
        torch.Tensor.nbytes.__get__,  # type: ignore[attr-defined]
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor.__dlpack__,
        torch.Tensor.__sizeof__,
        torch.Tensor._nnz,
        torch.Tensor.sparse_dim,
        torch.Tensor.to_sparse,
    }
)


class WayDiffersError(Exception):
    """A way of a call differs from the graph; never seen by a user."""


class WayRefusesError(WayDiffersError):
    """A way of a call that the model refuses; whether the graph does so is not known."""


class TooLargeError(WayDiffersError):
    """Sizes at which no run is made."""


class NotedFloat(float):
    """A float that is an argument: Python may compute with it, and ``lines`` are those that decide by it."""

    lines: set[str]

    @classmethod
    def of(cls, value: float, lines: set[str]) -> NotedFloat:
        """The float, which notes the lines that decide by it."""
        made = cls(value)
        made.lines = lines
        return made


def _noting(name: str, *, is_decision: bool) -> Callable[..., Any]:
    of_float = getattr(float, name)

    def method(own: NotedFloat, *others: Any) -> Any:
        result = of_float(own, *others)
        if is_decision:
            frame = frame_of_model()
            own.lines.add(line_of(frame) if frame is not None else "")
        return NotedFloat.of(result, own.lines) if type(result) is float else result

    return method


_DECIDING = ("lt", "le", "gt", "ge", "eq", "ne", "bool", "hash", "int", "floordiv", "mod", "round")
_COMPUTING = (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "neg",
    "abs",
    "pow",
)
for _name in (*_DECIDING, *_COMPUTING):
    setattr(NotedFloat, f"__{_name}__", _noting(f"__{_name}__", is_decision=_name in _DECIDING))


class SymbolicSizes(Reader):
    """Gives symbols of torch for the sizes that the Python of a model reads from plain tensors, and
    numbers to the functions of torch.

    A size is known by its number: the sizes of a run are unlike those that the model has anyway.
    """

    functions = None

    def __init__(
        self, plan: Plan, sizes: Sizes, expressions: Iterable[Any], constants: Collection[int]
    ) -> None:
        self._environment = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self._axes: dict[tuple[str, int | None], Any] = {}
        self.constants = constants
        #: lists of the numbers of a range that become tensors, of which nothing is decided
        self.ranges = RangeTensors()
        #: sizes that have no symbol
        self.fixed = {n: size for n, size in sizes.items() if size < 2 or size in constants}
        known: dict[Any, Any] = {}
        for symbol in plan.symbols:
            value, expression = sizes[symbol.name], symbol_of(symbol)
            self._axes[symbol.name, None] = expression
            known[expression] = self._new(symbol.name, value)
        self._symbols = known
        #: the lines that decide by floats that are arguments
        self.lines_of_floats: set[str] = set()
        self._known: dict[int, Any] = {}
        #: sizes that are computed of those of the plan: also where a constant of the model is as large
        self._computed: dict[int, Any] = {}
        numbers = {expression: sympy.Integer(sizes[str(expression)]) for expression in known}
        for expression in expressions:
            value = value_at(expression, numbers)
            if (
                value is not None
                and value.is_Integer
                and expression.free_symbols
                and expression.free_symbols <= known.keys()
            ):
                found = expression.xreplace(known)
                self._known.setdefault(int(value), found)
                names = map(str, expression.free_symbols)
                if not expression.is_Symbol and self.fixed.keys().isdisjoint(names):
                    self._computed.setdefault(int(value), found)
        #: tensors that were made of plain numbers, and those that were computed of sizes
        self.plain_tensors: list[torch.Tensor] = []
        self.tensors_of_sizes: list[torch.Tensor] = []
        #: the sizes at which what is computed of sizes, and given to functions, may begin another piece
        self.pieces: set[int] = set()
        #: True once a function of torch raised an error, which the model may have caught, told a size in bytes, or took
        #: a slice of an axis whose size is none of the plan
        self.is_unknown = False
        self._are_numbers = False

    @contextlib.contextmanager
    def as_numbers(self) -> Iterator[None]:
        """Inside the block all sizes are plain numbers."""
        self._are_numbers = True
        try:
            yield
        finally:
            self._are_numbers = False

    def _new(self, name: str, value: int) -> Any:
        source = ConstantSource(f"L['{name}']")
        kind = symbolic_shapes.DimDynamic.DYNAMIC
        return self._environment.create_symbol(
            value,
            source=source,
            dynamic_dim=kind,
            constraint_dim=None,
            do_not_specialize_zero_one=True,
        )

    def explains(self, number: int) -> bool:
        """True for a number that is one of the sizes of the run, or beside one."""
        return any(
            n in self._known or n in self.constants for n in (number - 1, number, number + 1)
        )

    def on_call(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Runs a function on plain numbers, and returns its result; a symbol for a size that it
        reads. A function of torch on symbols gets the symbols.
        """
        if func in _OF_SYMBOLS:
            return func(*args, **kwargs)
        if func in _INDEXING:
            ends = (one.node.expr for one in _symbols_in(args[1]))
            self.pieces |= {sizes_at(n) for end in ends for n in end.atoms(sympy.Integer)} - {0}
            self._decide_slices(*args[:2])
            self.ranges.chosen(args[1])  # a list that stands for a range
        if func in _READING:
            _read_each(args[0])
        is_range = func in LIST_TAKERS and bool(args) and self.ranges.takes(args[0], kwargs)
        try:
            result = func(*plain_of(args), **plain_of(kwargs))
        except Exception:
            self.is_unknown = True
            raise
        self.is_unknown |= func in _TELLING_OTHERWISE
        symbols = list(_symbols_in((args, kwargs)))
        self.note_pieces(symbols)
        if is_range or symbols:
            self.tensors_of_sizes += _tensors_in(result) or _tensors_in(args)  # x[0] = size
        elif func in LIST_TAKERS and args and _is_plain(args[0]):
            self.plain_tensors.append(result)
        if self._are_numbers or func not in SIZE_READS or isinstance(args[0], torch.nn.Parameter):
            return result
        if isinstance(result, torch.Size):
            return torch.Size([self._symbol(size) for size in result])
        return self._symbol(result) if func in _OF_ONE_SIZE else result

    def note_pieces(self, values: Iterable[Any]) -> None:
        """Notes at which sizes the symbols among some values may begin another piece."""
        for value in values:
            if isinstance(value, SYMBOLIC):
                self.pieces |= numbers_of_pieces(value.node.expr)

    def _decide_slices(self, tensor: torch.Tensor, index: Any) -> None:
        """Decides whether the slices of an index end within their axes: what takes all of an axis is no
        operator at all, so that nothing else tells the number in ``x[:, :64]``.
        """
        for size, part in _slices_in(tensor, index):
            for end in (part.start, part.stop):
                if type(end) is not int or abs(end) < 2:
                    continue
                if size in self._known:
                    bool(self._symbol(size) > abs(end))
                self.is_unknown |= size > 1 and size not in (*self._known, *self.constants)

    def number(self, name: str, value: int) -> Any:
        """The symbol of an int that is an argument, by the name of its symbol in the plan."""
        found = next((own for one, own in self._symbols.items() if str(one) == name), None)
        return value if found is None else self._environment.create_symintnode(found, hint=value)

    def _symbol(self, size: int) -> Any:
        if size < 2 or size in self.constants:
            found = self._computed.get(size)
            if found is None:
                return size
            return self._environment.create_symintnode(found, hint=size)
        if size not in self._known:
            self._known[size] = self._new(f"{size} of something else", size)
        return self._environment.create_symintnode(self._known[size], hint=size)

    def conditions(self, decisions: Iterable[Decision]) -> tuple[Constraint, ...]:
        """The decisions of Python in the run, as conditions on the sizes of the plan.

        :raises WayDiffersError: for a decision about another number
        """
        found: dict[str, Constraint] = {}
        for condition, decision in self.decided(decisions):
            formula = written(condition)
            found.setdefault(formula, Constraint(formula, Origin.MODEL, decision.line))
        found.pop("True", None)
        return tuple(found.values())

    def decided(self, decisions: Iterable[Decision]) -> Iterator[tuple[Any, Decision]]:
        """Yields the decisions of Python, each with its condition on the sizes of the plan.

        :raises WayDiffersError: for a decision about another number
        """
        for decision in decisions:
            try:
                yield in_sizes(decision, self._axes), decision
            except ExportError as error:
                raise WayDiffersError(f"it decides by another size at {decision.line}") from error

    def in_plan(self, size: Any) -> Any:
        """A size that the Python of the model read, in the symbols of the plan; None for another one."""
        if not isinstance(size, torch.SymInt):
            return sympy.Integer(size)
        of_plan = {own: expression for expression, own in self._symbols.items()}
        expression = size.node.expr
        is_known = expression.free_symbols <= of_plan.keys()
        return expression.xreplace(of_plan) if is_known else None


def _read_each(tensor: torch.Tensor) -> None:
    """Reads elements of a tensor by the operator that other readings are, which is recorded."""
    for element in tensor.detach().reshape(-1)[:_MOST_READ].unbind():
        element.item()


def _slices_in(tensor: torch.Tensor, index: Any) -> Iterator[tuple[int, slice]]:
    """Yields the slices of an index, each with the size of the axis that it is about."""
    parts = index if isinstance(index, tuple) else (index,)
    dim, n_rest = 0, tensor.ndim - sum(map(_n_axes, parts))
    for part in parts:
        if isinstance(part, slice) and 0 <= dim < tensor.ndim:
            yield tensor.shape[dim], part
        dim += n_rest if part is Ellipsis else _n_axes(part)


def _n_axes(part: Any) -> int:
    """The number of axes that a part of an index is about: a mask is about as many as it has."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    is_mask = str(getattr(part, "dtype", "")).endswith("bool")
    return int(part.ndim) if is_mask else 1


def _symbols_in(value: Any) -> Iterator[Any]:
    """Yields the symbols among the arguments of a function."""
    if isinstance(value, slice):
        value = value.start, value.stop, value.step
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _symbols_in(item)
    elif isinstance(value, SYMBOLIC):
        yield value


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors_in(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def _is_plain(value: Any) -> bool:
    """True for a number, or for a list of numbers."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, float)


def plain_of(value: Any) -> Any:
    """The value with numbers in the place of symbols; a condition is decided."""
    if isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value.node.hint
    if isinstance(value, torch.SymBool):
        return bool(value)
    if isinstance(value, slice):
        return slice(*map(plain_of, (value.start, value.stop, value.step)))
    if type(value) is dict:
        return {key: plain_of(item) for key, item in value.items()}
    if type(value) in (list, tuple, torch.Size):
        return type(value)(map(plain_of, value))
    return value

"""Ints that take few values over the sizes: ``int(math.log2(n))``, ``n.bit_length()``, ``TABLE[n]``.

Python wants a plain int where a function of C, an index or a key is given a size. torch gives it
that of the example, and the graph holds for that one size. But the model computes no more with the
size than the expression says: ``int(math.log2(n))`` is 5 for an ``n`` of 40, and for each of 32 to
63. So the expression around the size is computed for the sizes next to that of the example, as
long as its value stays, and the trace decides ``n >= 32`` and ``n <= 63`` instead of ``n == 40``.

The expression is read in the source, at the instruction that asks. It counts where it has nothing
but constants, one size, arithmetic, tables of plain values, and functions of Python that have no
effects. Any other size becomes a constant of the graph, as ever.

``math.ceil(n)`` of an int is ``n``: torch rounds it, and loses the node of the graph that it belongs to.

``n & 1`` is ``n % 2``, ``n | 1`` is ``n + 1 - n % 2``, ``~n`` is ``-n - 1``, ``n >> 1`` is ``n // 2``,
and ``divmod`` is a quotient and a remainder: torch has no ``divmod`` and no ``~`` for sizes, and no
guard can be written of operators on bits.

``int(n // 2)`` and ``float(n // 2)`` have another value for every other size. They are no question
of this repair, but of the one that keeps ints of sizes symbolic, until that was tried.

``math.log(n)`` and its like, of which no other size has the same value, are computed by an operator
of torch when the program runs. A model that decides by such a number is traced with that of the
example again.

sympy has one greatest of three sizes for ``max(max(a, b), c)``, and torch writes the function that it
takes for it into the program, which no program may have; two functions of two sizes stand there.

A size is no key of a dict for torch, which some code needs to notice (einops takes another way
then). So sizes are keys only in a trace that is asked for again because of that error.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py, ``SymInt.bit_length``,
which names the relaxed guard, and ``SymInt.__hash__``.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

import numpy
import torch

from ...model_source.frames import attribute_at_rest, is_code_of_model, looked_up
from ...model_source.lines import is_of_python, line_of
from ...model_source.source_tests import expressions_around
from ...observing.attribute_reads import class_of
from ...patches.swap import swapped
from ...torch_internals.fake_tensors import FakeTensor
from ...torch_internals.modes import WithoutFunctions
from ...torch_internals.sizes import free_unbacked_symbols
from ...torch_internals.tracing import proxy_tensor
from ..repair import Attempt, Repair, Retry
from .repeated_lists import SizedList
from .size_ints import SIZE_INTS, builtins_swapped, plain_of, type_in

__all__ = [
    "SIZE_FUNCTIONS",
    "SIZE_KEYS",
    "SIZE_MATH",
    "functions_of_sizes",
    "math_of_sizes",
    "sizes_are_ints",
]

#: the package of this file
_OURS = __name__.partition(".")[0]
#: what torch says where a size is a key
UNHASHABLE = "unhashable type: non-nested SymInt"
#: the most sizes at which an expression is computed, on either side of the example
_MOST_SIZES = 1 << 14
_FUNCTIONS = frozenset(
    {*(value for name, value in vars(math).items() if callable(value)), *(int, float, bool, round)}
    | {abs, min, max, divmod, pow, len}
)
_METHODS = frozenset({"bit_length", "bit_count", "get", "index", "count"})
_PLAIN = (int, float, bool, str, type(None))
_ARITHMETIC = (
    *(ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop, ast.Constant),
    *(ast.Subscript, ast.Call, ast.Load, ast.Tuple, ast.List, ast.Set, ast.BoolOp, ast.boolop),
    ast.IfExp,
)
_SIZE = "_size"
#: functions of ``math`` that have another value for each size, and the operators of torch
_OF_MATH: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "sqrt",
        "log",
        "log2",
        "log10",
        "log1p",
        "exp",
        "expm1",
        "sin",
        "cos",
        "tan",
        "tanh",
        "atan",
    )
}
#: the names of these functions in NumPy, where they are others
_OF_NUMPY = {"atan": "arctan"}
#: where these functions give a number: Python makes an error elsewhere, and torch an infinite number
_DOMAINS: Mapping[str, Callable[[Any], Any]] = {
    **{name: lambda number: number > 0 for name in ("log", "log2", "log10")},
    **{name: lambda number: number < 700 for name in ("exp", "expm1")},
    "log1p": lambda number: number > -1,
    "sqrt": lambda number: number >= 0,
}
#: what stands for functions of ``math``, and the lines that called them in the last trace
_STAND_INS: dict[Any, Callable[..., float]] = {}
_computed_lines: list[str] = []
#: the symbols of torch for the numbers that were computed in the last trace
_computed_symbols: set[Any] = set()
_PLAIN_KINDS: Mapping[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
#: operators on bits, by both sides and the bits that both have
_OF_COMMON_BITS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "and": lambda _left, _right, common: common,
    "or": lambda left, right, common: left + right - common,
    "xor": lambda left, right, common: left + right - 2 * common,
}


@contextlib.contextmanager
def functions_of_sizes(model: Any, *, as_keys: bool, ints_stay: bool) -> Iterator[None]:
    """Inside the block a size that the code of a model makes a plain int of is decided about by the
    sizes that give the same result; with ``as_keys`` it is a key of dicts, sets and caches too.
    Without ``ints_stay`` the size in ``int(size)`` becomes a constant. In the files of ``model`` a
    size is an int for ``isinstance`` and ``type``, and a tensor of a trace is a tensor for ``type``.
    """
    symbolic: Any = torch.SymInt
    of_torch = symbolic.__index__

    def index(size: torch.SymInt) -> int:
        frame = sys._getframe(1)
        is_asked = _is_of_model(frame) and (ints_stay or not _is_converted(frame))
        number: int = _number(size, frame) if is_asked else of_torch(size)
        return number

    def bit_length(size: torch.SymInt) -> int:
        frame = sys._getframe(1)
        number: int = _number(size, frame) if _is_of_model(frame) else of_torch(size)
        return number.bit_length()

    def key(size: torch.SymInt) -> int:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__", "").partition(".")[0] == _OURS:
            return hash(size.node.hint)  # we look at what a model left in its tables
        if not _is_of_model(frame):
            raise TypeError(UNHASHABLE)
        return hash(_number(size, frame, is_key=True))

    methods: dict[str, Callable[..., Any]] = {
        "__index__": index,
        "__int__": index,
        "bit_length": bit_length,
        "__divmod__": lambda size, other: (size // other, size % other),
        "__rdivmod__": lambda size, other: (other // size, other % size),
        "__invert__": lambda size: -size - 1,
        "__deepcopy__": lambda size, memo: size,
        **dict.fromkeys(("__ceil__", "__floor__", "__trunc__"), lambda size: size),
        **{
            f"__{side}{name}__": _of_bits(getattr(symbolic, f"__{side}{name}__"), of_common)
            for name, of_common in _OF_COMMON_BITS.items()
            for side in ("", "r")
        },
        "__rshift__": _shift(symbolic.__rshift__, lambda size, factor: size // factor),
        "__lshift__": _shift(symbolic.__lshift__, lambda size, factor: size * factor),
    }
    if as_keys:
        methods["__hash__"] = key
    of_numpy: dict[str, Callable[..., Any]] = {
        _OF_NUMPY.get(name, name): _method(getattr(math, name)) for name in _OF_MATH
    }
    of_numpy |= {"rint": _method(round), "astype": _as_type, "item": lambda number: number}
    of_answers = {
        "__index__": lambda answer: int(bool(answer)),
        "__float__": lambda answer: float(bool(answer)),
    }
    with contextlib.ExitStack() as stack:
        for owner, own in (
            (torch.SymInt, of_numpy | methods),
            (torch.SymFloat, of_numpy),
            (torch.SymBool, of_answers),
        ):
            for name, method in own.items():
                stack.enter_context(swapped(owner, name, method))
        stack.enter_context(sizes_are_ints(model))
        stack.enter_context(swapped(numpy, "arange", _of_plain_numbers(numpy.arange)))
        for name, of_two in (("minimum", torch.sym_min), ("maximum", torch.sym_max)):
            stack.enter_context(swapped(numpy, name, _OfTwo(getattr(numpy, name), of_two)))
        if hasattr(proxy_tensor, "_sym_register"):
            noted = _with_two_sizes(proxy_tensor._sym_register)
            stack.enter_context(swapped(proxy_tensor, "_sym_register", noted))
        yield


@contextlib.contextmanager
def sizes_are_ints(model: Any, *, files: Iterable[ModuleType] | None = None) -> Iterator[None]:
    """Inside the block ``isinstance`` and ``type`` answer for a symbolic size as for an int; ``files`` are those
    of the model, where the caller knows them.
    """
    kinds = {"isinstance": _isinstance, "type": _Type}
    with (
        builtins_swapped(model, kinds, files=files),
        # a layer that is made with sizes: nn.Unflatten(2, (height, width))
        swapped(torch.nn.modules.flatten, "isinstance", _isinstance),
    ):
        yield


def _as_type(number: Any, dtype: Any) -> Any:
    """A number as another one of a dtype of NumPy, which it would be after ``np.ceil``."""
    kind = numpy.dtype(dtype).kind
    if kind in "iu":
        return torch.sym_int(number)  # type: ignore[no-untyped-call]
    if kind == "f":
        return torch.sym_float(number)  # type: ignore[no-untyped-call]
    return numpy.asarray(number.node.pytype(number)).astype(dtype)[()]


def _method(function: Callable[[Any], float]) -> Callable[[Any], float]:
    """The function as a method of its argument: one in C is none by itself."""
    return lambda number: function(number)


def _of_plain_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy that would make an array of objects of a size: the size becomes a number."""

    @functools.wraps(function)
    def of_numbers(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, torch.SymInt) for value in args):
            args = tuple(int(one) if isinstance(one, torch.SymInt) else one for one in args)
        return function(*args, **kwargs)

    return of_numbers


class _OfTwo:
    """A function of NumPy, which of a size and an int decides nothing."""

    def __init__(self, of_numpy: Any, of_sizes: Callable[[Any, Any], Any]) -> None:
        self._of_numpy, self._of_sizes = of_numpy, of_sizes

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of either function."""
        kinds = [type(value) for value in args]
        is_of_sizes = len(kinds) == 2 and torch.SymInt in kinds and {*kinds} <= {torch.SymInt, int}
        of_two = self._of_sizes if is_of_sizes and not kwargs else self._of_numpy
        return of_two(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_numpy, name)


def _with_two_sizes(register: Callable[..., None]) -> Callable[..., None]:
    """The function by which torch notes how a size was computed, with maxima and minima of two."""
    of_any = {
        getattr(proxy_tensor, f"_nary_sym_{name}", None): getattr(torch, f"sym_{name}")
        for name in ("max", "min")
    }

    def noted(tracer: Any, function: Any, sizes: tuple[Any, ...], size: Any) -> None:
        of_two = of_any.get(function)
        if of_two is not None and len(sizes) > 1:
            function, sizes = of_two, (functools.reduce(of_two, sizes[:-1]), sizes[-1])
        register(tracer, function, sizes, size)

    return noted


class _OfTypes(type):
    """``isinstance`` answers as for ``type``."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type)


class _Type(metaclass=_OfTypes):
    """``type``, which of a symbolic number, and of a tensor of a trace, is the type outside of it."""

    def __new__(cls, value: Any, *bases_and_names: Any, **options: Any) -> Any:
        kind = class_of(type(value))
        if bases_and_names:
            return type(value, *bases_and_names, **options)
        if issubclass(kind, SizedList):
            return kind.stands_for
        if kind is FakeTensor:
            return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
        return type_in(sys._getframe(1).f_globals, _PLAIN_KINDS.get(kind, kind))


def _isinstance(value: Any, kinds: Any) -> bool:
    """``isinstance``, which answers for a symbolic number, and for a list of values, as outside of a trace."""
    if isinstance(value, SizedList):
        return issubclass(value.stands_for, kinds)
    plain = _PLAIN_KINDS.get(type(value))
    return isinstance(value, kinds) or (plain is not None and issubclass(plain, kinds))


def _of_bits(
    of_torch: Callable[[Any, Any], Any], of_common: Callable[[Any, Any, Any], Any]
) -> Callable[[Any, Any], Any]:
    """An operator on bits, by the bits that both sides have; of two sizes by the sizes that give the
    same result.
    """

    def combined(size: Any, other: Any) -> Any:
        frame = sys._getframe(1)
        if type(other) is int and other >= 0:
            return of_common(size, other, _common_bits(size, other))
        if not _is_of_model(frame) or not isinstance(other, (int, torch.SymInt)):
            return of_torch(size, other)
        left = _number(size, frame)
        right = _number(other, frame) if isinstance(other, torch.SymInt) else other
        return of_common(left, right, left & right)

    return combined


def _common_bits(size: Any, mask: int) -> Any:
    """``size & mask`` for a mask of at least 0: a remainder for each run of bits in it.

    >>> all(_common_bits(size, mask) == size & mask for size in range(40) for mask in range(40))
    True
    """
    # a mask of 0b1100110 has the runs 0b110 and 0b1100000: ``size & 0b110`` is what is left of size // 2 by 4,
    # times 2; each round takes the lowest run off the mask
    common: Any = 0
    while mask:
        lowest = mask & -mask
        above = (mask + lowest) & -(mask + lowest)
        common += size // lowest % (above // lowest) * lowest
        mask &= -above
    return common


def _shift(
    of_torch: Callable[[Any, Any], Any], by_factor: Callable[[Any, int], Any]
) -> Callable[[Any, Any], Any]:
    """A shift by a plain number of bits as the product, or the division, that it is."""

    def shifted(size: Any, bits: Any) -> Any:
        is_plain = type(bits) is int and bits >= 0
        return by_factor(size, 1 << bits) if is_plain else of_torch(size, bits)

    return shifted


def _is_converted(frame: FrameType) -> bool:
    """True where a frame asks for the number in ``int(size)`` or ``float(size)``."""
    asking = next(iter(expressions_around(frame.f_code, frame.f_lasti)), None)
    if not isinstance(asking, ast.Call) or not isinstance(asking.func, ast.Name):
        return False
    with contextlib.suppress(LookupError):
        return looked_up(asking.func.id, frame) in (int, float)
    return False


def _is_of_model(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return is_code_of_model(file) and not is_of_python(file)


def _number(size: torch.SymInt, frame: FrameType, *, is_key: bool = False) -> int:
    """The size of the example, after a decision for all sizes to which the model does the same.

    Few sizes are keys of a table that is asked for one, so that other sizes are another side.
    """
    alike = _sizes_alike(size, frame)
    if _is_bound(alike):
        return int(size.node.hint)
    if is_key and alike is not None:
        argument, least, _ = alike
        bool(argument == least)
    number: int = size.node.guard_int("", 0)
    return number


#: a size, with the least and the greatest one to which the model does the same
_Alike = tuple[torch.SymInt, int, int]


def _is_bound(alike: _Alike | None) -> bool:
    """True after the decision that a size is one of those to which the model does the same; False,
    without a decision, where the size is alone.
    """
    if alike is None:
        return False
    argument, least, greatest = alike
    if least == greatest:
        return False
    for is_alike in (argument >= least, argument <= greatest):
        bool(is_alike)  # a decision of the trace, which is true of the example
    return True


def _sizes_alike(size: Any, frame: FrameType) -> _Alike | None:
    """The size that an expression around ``size`` hangs on, with the least and the greatest one to which
    the model does the same; None where no such expression is known.
    """
    known = _expressions_at(frame) if isinstance(size.node.hint, int) else []
    choices = [(one.size, *one.alike()) for one in known if one.size is not None]
    return max(choices, key=lambda choice: choice[2] - choice[1], default=None)


@contextlib.contextmanager
def math_of_sizes() -> Iterator[None]:
    """Inside the block functions of ``math`` that the code of a model calls with a size are operators
    of torch, where no other size has the same value. NumPy calls a method of the size of the same name.
    """
    _computed_lines.clear()
    _computed_symbols.clear()
    with contextlib.ExitStack() as stack:
        for name, of_torch in _OF_MATH.items():
            of_python = getattr(math, name)
            computed = _computed(of_python, of_torch)
            _STAND_INS[computed] = of_python
            stack.callback(_STAND_INS.pop, computed)
            stack.enter_context(swapped(math, name, computed))
            for kind in (torch.SymInt, torch.SymFloat):
                stack.enter_context(swapped(kind, _OF_NUMPY.get(name, name), computed))
        yield


def _computed(
    of_python: Callable[..., float], of_torch: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., Any]:
    """A function of ``math`` that computes with a symbolic number by an operator of torch."""

    def function(number: Any, *base: Any) -> Any:
        frame = sys._getframe(1)
        unbacked = (
            free_unbacked_symbols(number.node.expr)
            if type(number) in (torch.SymInt, torch.SymFloat)
            else None
        )
        is_symbolic = unbacked is not None and _computed_symbols.issuperset(unbacked)
        if (
            not is_symbolic
            or not _is_of_model(frame)
            or any(type(one) not in (int, float) for one in base)
        ):
            return of_python(number, *base)
        if isinstance(number, torch.SymInt) and _is_bound(_sizes_alike(number, frame)):
            return of_python(int(number.node.hint), *base)
        if (
            not unbacked
            and of_python.__name__ in _DOMAINS
            and not _DOMAINS[of_python.__name__](number)
        ):
            return of_python(number, *base)
        _computed_lines.append(line_of(frame))
        tensor = torch.ops.aten.scalar_tensor.default(number, dtype=torch.float64)
        value: Any = of_torch(tensor).item()
        _computed_symbols.update(free_unbacked_symbols(value.node.expr))
        return value / of_python(*base) if base else value

    return function


def _gives_up_math(attempt: Attempt) -> Retry | None:
    if (
        not _computed_lines
        or not attempt.depends_on_values
        or not SIZE_MATH.is_part_of(attempt.request)
    ):
        return None
    if any("float(" in line for line in _computed_lines):
        retry = attempt.wants(SIZE_INTS, SIZE_INTS.note)
        if retry is not None:
            return retry
    again = f"the model decides by a number of {_computed_lines[0]}, which is that of the example"
    return Retry(attempt.request.without_repair(SIZE_MATH), again)


def _alike(value_of: Callable[[int], Any], example: int) -> tuple[int, int]:
    """The least and the greatest size around the example with the value of the example.

    >>> _alike(int.bit_length, 40), _alike([1, 2, 2, 2, 3].__getitem__, 2)
    ((32, 63), (1, 3))
    """
    wanted = _outcome(value_of, example)
    least = greatest = example
    while least > 0 and example - least < _MOST_SIZES and _outcome(value_of, least - 1) == wanted:
        least -= 1
    while greatest - example < _MOST_SIZES and _outcome(value_of, greatest + 1) == wanted:
        greatest += 1
    return least, greatest


def _outcome(value_of: Callable[[int], Any], size: int) -> Any:
    """Returns the value of an expression for a size, as text: ``1``, ``1.0`` and ``True`` are three
    values. An error is unlike all others.
    """
    try:
        return repr(value_of(size))
    except Exception as error:
        return error


class _Expression:
    """An expression of a frame that computes with one size and plain values.

    :raises _NotPlainError: where it has more than that
    """

    def __init__(self, node: ast.expr, frame: FrameType) -> None:
        self.size: torch.SymInt | None = None
        self._frame = frame
        self._constants: dict[str, Any] = {}
        if isinstance(node, (ast.Slice, ast.Starred)):  # parts of an expression alone
            raise _NotPlainError
        copied = ast.parse(ast.unparse(node), mode="eval").body
        written = ast.Expression(_ExpressionReader(self).visit(copied))
        self._code = compile(ast.fix_missing_locations(written), "<sizes>", "eval")

    def alike(self) -> tuple[int, int]:
        """The least and the greatest size to which the expression gives what it gives in the
        example.
        """
        assert self.size is not None
        return _alike(self.value_of, self.size.node.hint)

    def value_of(self, size: int) -> Any:
        """The value of the expression for a size."""
        return eval(self._code, {"__builtins__": {}, **self._constants, _SIZE: size})

    def placed(self, value: Any, *, is_function: bool = False) -> ast.expr:
        """The name under which the expression has a value.

        :raises _NotPlainError: for a value that is not plain, and for a second size
        """
        if isinstance(value, torch.SymInt):
            if self.size is not None and self.size.node.expr != value.node.expr:
                raise _NotPlainError
            if not isinstance(value.node.hint, int):
                raise _NotPlainError
            self.size = value
            return ast.Name(_SIZE, ast.Load())
        value = plain_of(_STAND_INS.get(value, value) if is_function else value)
        is_known = any(value is f for f in _FUNCTIONS) if is_function else _is_plain(value)
        if not is_known:
            raise _NotPlainError
        name = f"_value{len(self._constants)}"
        self._constants[name] = value
        return ast.Name(name, ast.Load())

    def looked_up(self, node: ast.expr) -> Any:
        """Returns the value of a name, an attribute or a size of a tensor; no code of the model
        runs.

        :raises _NotPlainError, LookupError: where that is not known
        """
        if isinstance(node, ast.Name):
            return looked_up(node.id, self._frame)
        if isinstance(node, ast.Attribute):
            return _attribute(self.looked_up(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            shape, dim = self.looked_up(node.value), _int_of(node.slice)
            if node.value.attr == "shape" and dim is not None:
                return shape[dim]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = self.looked_up(node.func.value)
            dim = _int_of(node.args[0]) if len(node.args) == 1 else None
            if isinstance(owner, torch.Tensor) and node.func.attr == "size" and dim is not None:
                return _attribute(owner, "shape")[dim]
        raise _NotPlainError


class _ExpressionReader(ast.NodeTransformer):
    """Puts the values of a frame into an expression."""

    def __init__(self, expression: _Expression) -> None:
        self._expression = expression

    def visit(self, node: ast.AST) -> Any:
        """The expression with values in the place of names.

        :raises _NotPlainError: where it has more than plain values and one size
        """
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
            with contextlib.suppress(_NotPlainError, LookupError):
                return self._expression.placed(self._expression.looked_up(node))
        if not isinstance(node, _ARITHMETIC):
            raise _NotPlainError
        if isinstance(node, ast.Call):
            arguments = [self.visit(argument) for argument in node.args]
            if node.keywords:
                raise _NotPlainError
            return ast.Call(self._function(node.func), arguments, [])
        return super().generic_visit(node)

    def _function(self, node: ast.expr) -> ast.expr:
        with contextlib.suppress(_NotPlainError, LookupError):
            return self._expression.placed(self._expression.looked_up(node), is_function=True)
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            return ast.Attribute(self.visit(node.value), node.attr, ast.Load())
        raise _NotPlainError


class _NotPlainError(Exception):
    """An expression has more than plain values and one size."""


def _is_plain(value: Any) -> bool:
    """True for a plain value, and for a table of them."""
    if type(value) in (list, tuple, range, set, frozenset):
        return all(type(item) in _PLAIN for item in value)
    if type(value) is dict:
        return all(type(item) in _PLAIN for pair in value.items() for item in pair)
    return type(value) in _PLAIN


def _attribute(owner: Any, name: str) -> Any:
    """An attribute that is kept as it is, and the shape of a tensor.

    :raises LookupError: for any other one, which code of the model may compute
    """
    if isinstance(owner, torch.Tensor) and name == "shape":
        with WithoutFunctions():
            return owner.shape
    return attribute_at_rest(owner, name)


def _int_of(node: ast.expr) -> int | None:
    signed = node.operand if isinstance(node, ast.UnaryOp) else node
    value = ast.literal_eval(node) if isinstance(signed, ast.Constant) else None
    return value if type(value) is int else None


def _expressions_at(frame: FrameType) -> list[_Expression]:
    """The expressions with one size around the instruction that a frame runs, the innermost first.

    Each of them has all that is made of the plain int. A larger one may give one value for more
    sizes, as ``int(math.log2(n))`` does, or for fewer, as ``2 ** math.ceil(math.log2(n)) - n``.
    """
    found: list[_Expression] = []
    for node in expressions_around(frame.f_code, frame.f_lasti):
        try:
            found.append(_Expression(node, frame))
        except _NotPlainError:
            break
    return found


SIZE_MATH = Repair(
    "math of sizes",
    "``math.log(n)`` makes the size of the example a constant. It is computed by ``torch.log`` when the"
    " program runs, unless the model decides by it.",
    until="tests/repairs/test_size_functions.py::test_numbers_made_from_sizes_are_one_graph_for_all_sizes",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py",
    always=True,
    failed=_gives_up_math,
    block=lambda setup: math_of_sizes(),
)
SIZE_KEYS = Repair(
    "sizes as keys",
    "A symbolic size is no key of a dict, a set or a cache. Some libraries notice that and take another"
    " way, so sizes are keys only after a trace that ended because of it.",
    until="tests/repairs/test_size_functions.py::test_what_a_dict_of_the_file_remembers_is_served_for_all_sizes",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py",
    refusal=UNHASHABLE,
)
SIZE_FUNCTIONS = Repair(
    "functions of sizes",
    "``int(math.log2(n))``, ``n.bit_length()`` and ``TABLE[n]`` make the size of the example a constant."
    " The trace decides between which sizes the value stays, and is right for all of them. In the"
    " files of the model ``isinstance(size, int)`` is true, and ``type(size)`` is ``int``.",
    until="tests/repairs/test_size_functions.py::test_sizes_with_the_same_value_are_served_by_one_graph",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py",
    always=True,
    block=lambda setup: functions_of_sizes(
        setup.model,
        as_keys=SIZE_KEYS in setup.request.on,
        ints_stay=SIZE_INTS in setup.request.on or SIZE_INTS in setup.request.off,
    ),
)

"""``int(size)``, ``float(size)``, ``len(tensor)`` and ``range(size)`` in the code of a model, which
torch makes constants while it traces it.

Python wants a number of ``int()``, so torch gives that of the example and makes the size a
constant. While the block lasts, ``int`` in the files of the model's own modules is a class that
leaves a symbolic size as it is, and rounds a symbolic float towards zero; of a tensor with one
number it makes what ``item()`` gives, a symbol whose value is known when the program runs. Of
anything else it makes what ``int`` makes; ``float`` is the same for floats. ``len`` of a tensor is
its first size. Of a ``range`` with steps only the number of steps is a constant: 128 tokens and 14
are both one block of 128.

torch takes ``int`` and ``float`` for dtypes (``x.to(float)``), and no class that stands for them.
A file that uses one of them as a value, beside calling it, keeps it.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py, where
``SymInt.__int__`` guards, and ``sym_int`` does not. It may go when a trace does this itself;
``test_an_int_of_a_size`` of ``tests/repairs/test_size_tensors.py`` is then exact without it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import FrameType, FunctionType, ModuleType
from typing import Any, ClassVar

import sympy
import torch

from ...model_source.lines import short_name_of
from ...patches.swap import swapped
from ...proofs.decisions import Decision, EndedByDecisionError
from ...torch_internals.fake_tensors import FakeTensor
from ...torch_internals.sizes import (
    FloatTrueDiv,
    IntTrueDiv,
    Max,
    Min,
    PythonReferenceAnalysis,
    ToFloat,
    free_unbacked_symbols,
    statically_known_true,
    sympy_interp,
)
from ...torch_internals.tracing import UserError, get_proxy_mode
from ..repair import Attempt, Repair, Retry, TraceRequest

__all__ = [
    "NUMBERS_OF_SIZES",
    "SIZE_INTS",
    "Float",
    "RangeOfSizes",
    "asks_for_int",
    "builtins_swapped",
    "ends_a_trace",
    "files_of",
    "ints_of_floats_are_values",
    "ints_stay_sizes",
    "is_asked_at",
    "is_sized",
    "length_of",
    "plain_of",
    "specializes_int",
    "type_in",
    "wants_int_first",
]

_ASKS = re.compile(r"(?<![\w.])((int|float|len|range|divmod)\(|map\((int|float|len)\b)")
#: the names that are types, and the functions to which a class that stands for one is that type
_TYPES = frozenset({"int", "float"})
#: the names by which torch takes a dtype; a parser of options takes ``type=int``
_DTYPE_NAMES = frozenset({"dtype", None})
_TAKES_TYPES = frozenset({"isinstance", "issubclass", "map", "cast"})
_NAME_OF_TYPE = re.compile(r"\b(?:int|float)\b")
#: where such a name stands as an argument, in a list of these, or in a comparison
_IS_VALUE = re.compile(
    r"[(,\[{=]\s*(?:int|float)\s*[,)\]}]|\b(?:int|float)\s*(?:[=!]=|\b(?:is|in|not)\b)"
    r"|(?:\b(?:is|in|not)|[=!]=)\s*(?:int|float)\b"
)
#: annotations, and questions whether a value is of such a type
_IS_NO_VALUE = re.compile(
    r"\w\[[\w\s.,|\[\]\"']*\]|\b(?:isinstance|issubclass)\(\s*[\w.\[\]]+\s*,\s*(?:[\w.]+|\([\w\s.,]*\))\s*\)"
)
#: the modules of Python in which the last trace with ints of sizes had them
_swapped_in: set[str] = set()
#: from a file of the model to one that it has a function from, and so on
_MOST_HOPS = 3


class _OfTypes(type):
    """A class that stands for a type of Python is equal to it."""

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.__mro__[1]

    def __hash__(cls) -> int:
        return hash(cls.__mro__[1])


class _OfInts(_OfTypes):
    """``isinstance`` answers as outside of a trace, where a size is an int."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (builtins.int, torch.SymInt))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.int)


class _Int(int, metaclass=_OfInts):
    def __new__(cls, value: Any = 0, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, FakeTensor) and value.is_floating_point():
            value = value.to(torch.int64)  # a number of it is a size then
        value = _number_of(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return torch.sym_int(value)  # type: ignore[no-untyped-call]
        return builtins.int(value, *args, **kwargs)


class _OfFloats(_OfTypes):
    """``isinstance`` answers as outside of a trace, where a number made from a size is a float."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (builtins.float, torch.SymFloat))

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.float)


class Float(float, metaclass=_OfFloats):
    """``float``, which leaves a symbolic number symbolic."""

    def __new__(cls, value: Any = 0.0) -> Any:
        """The number as a float."""
        if hasattr(type(value), "as_float"):  # the index of a step
            return value.as_float()
        value = _number_of(value)
        if isinstance(value, (torch.SymInt, torch.SymFloat)):
            return torch.sym_float(value)  # type: ignore[no-untyped-call]
        return builtins.float(value)


for _kind, _plain in ((_Int, builtins.int), (Float, builtins.float)):
    # a model may ask for the name of a type
    _kind.__name__, _kind.__qualname__ = _plain.__name__, _plain.__qualname__
    _kind.__module__ = _plain.__module__


def _number_of(value: Any) -> Any:
    """The number that a tensor of a trace with one number has; anything else as it is."""
    is_number = isinstance(value, FakeTensor) and value.numel() == 1
    return value.item() if is_number else value


class _OfRanges(type):
    """``isinstance`` answers as for ``range``."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.range)


class RangeOfSizes(metaclass=_OfRanges):
    """``range``, of which only the number of steps is a constant; ``loop`` may give steps instead,
    from the first value, the step and the number of steps. With ``of_ints`` it is asked of plain
    ints too. ``listed`` may give a list before, for the frame of the model that asks.
    """

    of_ints: ClassVar[bool] = False
    loop: ClassVar[Callable[[Any, int, Any], Iterable[Any] | None]] = staticmethod(lambda *_: None)
    listed: ClassVar[Callable[[Any, int, Any, FrameType], list[Any] | None]] = staticmethod(
        lambda *_: None
    )

    def __new__(cls, *args: Any) -> Any:
        """The numbers of a ``range``, or what stands for them."""
        if not any(isinstance(value, torch.SymInt) for value in args):
            return cls._of_ints(builtins.range(*args))
        start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
        if _is_one_step(start, stop, step):
            return [start]
        if not isinstance(step, builtins.int) or step == 0:
            return builtins.range(*args)
        way = abs(step)
        count = ((stop - start if step > 0 else start - stop) + (way - 1)) // way
        if isinstance(count, torch.SymInt) and not count.node.expr.is_number:
            numbers = cls.listed(start, step, count, sys._getframe(1))
            if numbers is not None:
                return numbers
            steps = cls.loop(start, step, count)
            if steps is not None:
                return steps
        if step < 1:
            return builtins.range(*args)
        count = builtins.int(count)
        return [start + number * step for number in builtins.range(count)]

    @classmethod
    def _of_ints(cls, numbers: range) -> Any:
        steps = (
            cls.loop(numbers.start, numbers.step, len(numbers)) if cls.of_ints and numbers else None
        )
        return numbers if steps is None else steps


def _is_one_step(start: Any, stop: Any, step: Any) -> bool:
    """True for a ``range`` whose step is a size that reaches its end, as ``range(0, n, n)``."""
    is_size = isinstance(step, torch.SymInt)
    return is_size and statically_known_true(stop - start <= step) and bool(stop - start > 0)


def _extreme(of_python: Callable[..., Any], of_sizes: Callable[..., Any]) -> Callable[..., Any]:
    """``min`` or ``max``, which of two floats is no decision of the trace."""

    def extreme(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and is_sized(args[0]) and hasattr(args[0], "extreme"):
            return args[0].extreme(of_python.__name__)
        floats = [isinstance(value, (builtins.float, torch.SymFloat)) for value in args]
        is_symbolic = any(isinstance(value, torch.SymFloat) for value in args)
        if len(args) > 1 and not kwargs and is_symbolic and all(floats):
            return functools.reduce(of_sizes, args)
        return getattr(builtins, of_python.__name__)(*args, **kwargs)

    return extreme


def is_sized(value: Any) -> bool:
    """True for a list of which a size says how many items it has (:mod:`.repeated_lists`)."""
    return (
        isinstance(value, list)
        and getattr(type(value), "is_plain", None) is False
        and not (
            value.is_plain  # type: ignore[attr-defined]
        )
    )


def _divmod(left: Any, right: Any) -> Any:
    """``divmod``, which torch does not know for symbolic sizes."""
    if isinstance(left, torch.SymInt) or isinstance(right, torch.SymInt):
        return left // right, left % right
    return builtins.divmod(left, right)


def length_of(value: Any) -> Any:
    """``len``, which of a tensor is its first size, and of a list of as many items this size.

    Of a tensor nothing else is read, as by ``len`` itself: the sizes that a model reads are compared.
    """
    if isinstance(value, torch.Tensor):
        with contextlib.suppress(IndexError):  # no axis: Python says it
            return value.size(0)
    if is_sized(value):
        return value.number
    return builtins.len(value)


#: what stands for a name while a model is traced
_NAMES = {
    "int": _Int,
    "float": Float,
    "len": length_of,
    "range": RangeOfSizes,
    "divmod": _divmod,
    "min": _extreme(min, torch.sym_min),
    "max": _extreme(max, torch.sym_max),
}


#: those of them that give numbers of sizes, and of nothing else something that Python does not
NUMBERS_OF_SIZES = {name: _NAMES[name] for name in ("int", "float", "divmod")}


def plain_of(value: Any) -> Any:
    """The builtin of Python that a value stands for in a trace; any other value as it is."""
    value = getattr(value, "plain", value) if hasattr(type(value), "around") else value
    for name, other in _NAMES.items():
        if value is other:
            return getattr(builtins, name)
    return value


def type_in(file: Mapping[str, Any], kind: type) -> type:
    """A type of Python, or the class that stands for it in a file of a trace."""
    named = file.get(kind.__name__)
    return named if named is _Int or named is Float else kind


def asks_for_int(decisions: Iterable[Decision]) -> bool:
    """True where one of the lines that asked about a size has an ``int(...)`` or another of them."""
    return any(map(is_asked_at, (decision.line for decision in decisions)))


def is_asked_at(line: str) -> bool:
    """True for a line of code with an ``int(...)``, a ``len(...)``, a ``range(...)``.

    >>> is_asked_at("zeros(int(index.max()) + 1)"), is_asked_at("print(index)")
    (True, False)
    >>> is_asked_at("batch, length = map(int, x.shape)")
    True
    """
    return _ASKS.search(line) is not None


def specializes_int(decisions: Iterable[Decision]) -> bool:
    """True where a line with an ``int(...)`` made a number of what is computed from a size."""
    return asks_for_int(decision for decision in decisions if decision.is_number)


@contextlib.contextmanager
def ints_stay_sizes(model: Any, asking: Collection[str] = ()) -> Iterator[None]:
    """Swaps ``int`` and others in the files that define the modules of a model, and in the modules of
    Python that a trace before found ``asking``; a file that has its own keeps it.
    """
    further = (sys.modules[name] for name in asking if name in sys.modules)
    files = dict.fromkeys((*files_of(model), *further))
    _swapped_in.clear()
    _swapped_in.update(asking, (file.__name__ for file in files))
    with contextlib.ExitStack() as stack:
        stack.enter_context(builtins_swapped(model, _NAMES, keeps_compared=True, files=files))
        for name, whole in _ROUNDED.items():
            rounded = _rounded_as_sizes(getattr(torch.SymFloat, name), whole)
            stack.enter_context(swapped(torch.SymFloat, name, rounded))
        yield


#: how a quotient of ints is rounded: from its numerator and its divisor, which is greater than 0
_ROUNDED: Mapping[str, Callable[[Any, int], Any]] = {
    "__trunc__": lambda over, under: over // under if over >= 0 else None,
    "__floor__": lambda over, under: over // under,
    "__ceil__": lambda over, under: -(-over // under),
}
#: floats of 64 bits round the quotients of ints of 50 bits as the ints are rounded
_MOST_IN_QUOTIENT = 1 << 20


def _rounded_as_sizes(
    of_torch: Callable[[Any], Any], whole: Callable[[Any, int], Any]
) -> Callable[[Any], Any]:
    """``int(n / 2 + 1)`` as ``(n + 2) // 2``, which stays short where one length follows from another."""

    def rounded(number: torch.SymFloat) -> Any:
        parts = _quotient_in(number)
        size = None if parts is None else whole(*parts)
        return of_torch(number) if size is None else size

    return rounded


def _quotient_in(number: torch.SymFloat) -> tuple[torch.SymInt, int] | None:
    """The numerator and the divisor of a float that is a size by a number, plus a whole number."""
    ratio = _ratio_in(number.node.expr)
    if ratio is None:
        return None
    over, under = ratio
    if not 0 < under < _MOST_IN_QUOTIENT or over.is_number:
        return None
    if free_unbacked_symbols(over) or over.has(ToFloat, IntTrueDiv, FloatTrueDiv):
        return None
    environment = number.node.shape_env
    # symbol by symbol: a trace knows these, and not each expression of them
    known = {
        symbol: environment.create_symintnode(symbol, hint=int(environment.size_hint(symbol)))
        for symbol in over.free_symbols
    }
    return sympy_interp(PythonReferenceAnalysis, known, over), under


def _ratio_in(expression: Any) -> tuple[Any, int] | None:
    """The ints of which an expression of floats is the quotient, rounded once at most.

    ``32.0 * float(-(-n // 32)) / 2.0`` is ``(32 * -(-n // 32), 2)``.
    """
    if isinstance(expression, ToFloat):
        expression = expression.args[0]
    if expression.is_number:
        is_whole = abs(float(expression)) < _MOST_IN_QUOTIENT and float(expression).is_integer()
        return (sympy.Integer(int(expression)), 1) if is_whole else None
    if expression.is_integer:
        return expression, 1
    if not isinstance(expression, (sympy.Add, sympy.Mul, IntTrueDiv, FloatTrueDiv)):
        return None
    parts = [_ratio_in(part) for part in expression.args]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    unders = [under for _, under in known if under != 1]
    if isinstance(expression, sympy.Mul):
        return None if unders else (sympy.Mul(*(over for over, _ in known)), 1)
    if isinstance(expression, sympy.Add):
        is_exact = not unders or (
            len(unders) == 1 and all(under != 1 or over.is_number for over, under in known)
        )
        whole = unders[0] if unders else 1
        return (sum(over * (whole // under) for over, under in known), whole) if is_exact else None
    (over, _), (under, _) = known
    return None if unders or not under.is_Integer else (over, int(under))


@contextlib.contextmanager
def ints_of_floats_are_values(wanted: bool) -> Iterator[list[torch.SymInt]]:
    """Inside the block, if ``wanted``, an int is a value that torch knows nothing of, where it is made
    of a float that is more than a size times a number. Yields these values, as they come.

    ``int(h * min(64 / min(h, w), 128 / max(h, w)))`` is in no form in which torch or a proof reasons
    about it, and stands in every size that is computed of it, so that each takes seconds. As a value
    it is one symbol. What is decided by it is checked when the program runs.
    """
    values: list[torch.SymInt] = []
    with contextlib.ExitStack() as stack:
        for name in ("__trunc__", "__floor__", "__ceil__") if wanted else ():
            made = _made_a_value(getattr(torch.SymFloat, name), values)
            stack.enter_context(swapped(torch.SymFloat, name, made))
        yield values


def _made_a_value(
    rounded: Callable[[Any], Any], values: list[torch.SymInt]
) -> Callable[[Any], Any]:
    def value_of(number: Any) -> Any:
        size = rounded(number)
        is_traced = isinstance(size, torch.SymInt) and get_proxy_mode() is not None
        if not is_traced or _is_linear(number.node.expr):
            return size
        # an operator and no function of torch, so that no size is remembered with the tensor
        value = torch.ops.aten.scalar_tensor.default(size, dtype=torch.int64).item()
        values.append(value)
        return value

    return value_of


def _is_linear(expression: Any) -> bool:
    """True for a number that is computed of one size, which stands in it once and in no divisor."""
    parts = list(sympy.preorder_traversal(expression))
    symbols = [part for part in parts if part.is_Symbol]
    divisors = [part.args[1] for part in parts if isinstance(part, (IntTrueDiv, FloatTrueDiv))]
    chosen = any(isinstance(part, (Min, Max, sympy.Min, sympy.Max)) for part in parts)
    is_value = bool(free_unbacked_symbols(expression))
    divides = any(divisor.free_symbols for divisor in divisors)
    return len(symbols) < 2 and not (chosen or is_value or divides)


@contextlib.contextmanager
def builtins_swapped(
    model: Any,
    names: Mapping[str, Any],
    *,
    keeps_compared: bool = False,
    files: Iterable[ModuleType] | None = None,
) -> Iterator[None]:
    """Swaps builtins in the files that define the modules of a model, and in those that they have
    functions from.

    A file that has such a name of its own keeps it, and one that gives a type to a function keeps that
    type; ``keeps_compared`` also keeps a type that a file compares with others. ``files`` are those of
    the model, where the caller knows them.
    A function that goes on to another one has a method ``around``, which is given the one of the file.
    """
    with contextlib.ExitStack() as stack:
        for file in files_of(model) if files is None else files:
            kept: frozenset[str] = frozenset()
            if _TYPES.intersection(names):
                given, compared = _types_as_values(file)
                kept = given | compared if keeps_compared else given
            for name, value in names.items():
                before = vars(file).get(name)
                if name not in kept and before in (None, _NAMES.get(name)):
                    if hasattr(type(value), "around"):  # it goes on to what the file has
                        value = value.around(before or getattr(builtins, name))
                    stack.enter_context(swapped(file, name, value))
        yield


@functools.lru_cache(maxsize=2048)
def _types_as_values(file: ModuleType) -> tuple[frozenset[str], frozenset[str]]:
    """Returns which of ``int`` and ``float`` a file gives to functions, as in ``x.to(float)``, and which it
    compares with others, as in ``kind is int``.

    Nothing can stand for these types there: torch takes the very types for dtypes.
    """
    given: set[str] = set()
    compared: set[str] = set()
    source = _source_of(file)
    if not _may_have_types_as_values(source):
        return frozenset(), frozenset()
    with contextlib.suppress(SyntaxError), _collected_later():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and not _knows_types(node.func):
                named = [keyword.value for keyword in node.keywords if keyword.arg in _DTYPE_NAMES]
                given.update(_names_in([*node.args, *named]))
            elif isinstance(node, ast.Compare) and not _is_type(node.left):
                compared.update(_names_in([node.left, *node.comparators]))
    return frozenset(_TYPES & given), frozenset(_TYPES & compared)


def _may_have_types_as_values(source: str) -> bool:
    """False for a file in which neither type is an argument or compared: to parse all files of a model takes a
    second.
    """
    for name in _NAME_OF_TYPE.finditer(source):
        end = source.find("\n", name.end())
        begin = source.rfind("\n", 0, max(source.rfind("\n", 0, name.start()), 0)) + 1
        lines = source[begin : end if end >= 0 else None]
        if _IS_VALUE.search(_IS_NO_VALUE.sub("", lines)):
            return True
    return False


@contextlib.contextmanager
def _collected_later() -> Iterator[None]:
    """Inside the block the garbage collector does not run: it would walk the many nodes of a file again and again, and
    free none of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _names_in(values: Iterable[ast.expr]) -> Iterator[str]:
    """The names that are values, or items of these."""
    for value in values:
        items = value.elts if isinstance(value, (ast.Tuple, ast.List, ast.Set)) else [value]
        yield from (item.id for item in items if isinstance(item, ast.Name))


def _is_type(value: ast.expr) -> bool:
    """True for ``type(n)``, which gives the class that stands for a type."""
    function = value.func if isinstance(value, ast.Call) else None
    return isinstance(function, ast.Name) and function.id == "type"


def _knows_types(function: ast.expr) -> bool:
    """True for a function to which the class that stands for a type is that type."""
    return isinstance(function, ast.Name) and function.id in _TAKES_TYPES


def files_of(model: Any) -> list[ModuleType]:
    """The files of the classes of all modules, and of the functions that they call; those of torch left out."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    classes = dict.fromkeys(cls for module in modules for cls in type(module).__mro__)
    own = [
        cls for cls in classes if issubclass(cls, torch.nn.Module) and cls.__module__ in sys.modules
    ]
    names = dict.fromkeys(cls.__module__ for cls in own if _is_open(cls.__module__))
    methods = [one for cls in own for one in vars(cls).values()]
    # a script may put one into a module
    methods += [getattr(vars(one).get("forward"), "__func__", None) for one in modules]
    methods = [one for one in methods if isinstance(one, FunctionType)]
    enclosed = (one for cls in own for one in _enclosed_functions(cls))
    found = {**names, **_files_with(methods), **_files_with(enclosed)}
    last = list(found)
    for _ in range(_MOST_HOPS):
        functions = (one for name in last for one in _functions_of(sys.modules[name]))
        last = [name for name in _files_with(functions) if name not in found]
        found |= dict.fromkeys(last)
    return [sys.modules[name] for name in found]


def _files_with(functions: Iterable[FunctionType]) -> dict[str, None]:
    """The files that these functions are from."""
    files = dict.fromkeys(function.__module__ for function in functions)
    return {file: None for file in files if file in sys.modules and _is_open(file)}


def _functions_of(file: ModuleType) -> Iterator[FunctionType]:
    """The functions that a file has, or calls as those of another file."""
    for name, value in vars(file).items():
        yield from _functions_behind(name, value, file)


def _enclosed_functions(cls: type) -> Iterator[FunctionType]:
    """The functions that the methods of a class have from the function in which the class is made."""
    file = sys.modules[cls.__module__]
    for method in vars(cls).values():
        cells = getattr(method, "__closure__", None) or ()
        for name, cell in zip(method.__code__.co_freevars if cells else (), cells, strict=False):
            with contextlib.suppress(ValueError):  # of an empty one
                yield from _functions_behind(name, cell.cell_contents, file)


def _functions_behind(name: str, value: Any, file: ModuleType) -> Iterator[FunctionType]:
    """The functions that a name of a file stands for: itself, or ``geometry.centre(size)`` of another file."""
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, ModuleType) and _is_open(value.__name__):
        called = (_value_in(value, names) for names in _names_behind(name, file))
        yield from (one for one in called if isinstance(one, FunctionType))


@functools.lru_cache(maxsize=4096)
def _names_behind(name: str, file: ModuleType) -> frozenset[str]:
    """The names with dots that the code of a file has behind a name: ``.transform.centre``."""
    return frozenset(re.findall(rf"\b{name}((?:\.\w+)+)", _source_of(file)))


def _value_in(module: ModuleType, names: str) -> Any:
    """The value with dotted names in a module; None where another object than a module stands before."""
    value: Any = module
    for name in names.strip(".").split("."):
        value = vars(value).get(name) if isinstance(value, ModuleType) else None
    return value


def _source_of(file: ModuleType) -> str:
    try:
        return inspect.getsource(file)
    except (OSError, TypeError):
        return ""


def _is_open(name: str | None) -> bool:
    """True for a file that is not of torch, NumPy, Python or ours; a function that was made at run time has
    none.
    """
    if not name:
        return False
    root = name.partition(".")[0]
    own = __name__.partition(".")[0]
    return root not in ("torch", "numpy", own) and root not in sys.stdlib_module_names


def ends_a_trace(request: TraceRequest) -> Callable[[Decision], bool] | None:
    """Returns a test for decisions that make a trace useless, since it is made anew with sizes in place of
    ints; None where that was tried.
    """
    if SIZE_INTS in request.on or SIZE_INTS in request.off:
        return None
    return lambda decision: specializes_int([decision])


def wants_int_first(attempt: Attempt) -> bool:
    """True for an error about a value at a line with an ``int(...)``: read as a size, it may be none."""
    request = attempt.request
    is_untried = SIZE_INTS not in request.on and SIZE_INTS not in request.off
    return is_untried and attempt.depends_on_values and is_asked_at(attempt.place)


def _asks_for_ints(attempt: Attempt) -> Retry | None:
    request, asking = attempt.request, _modules_asking(attempt)
    if SIZE_INTS in request.on and not asking <= _swapped_in:
        return Retry(replace(request, asking=request.asking | asking))
    attempt = replace(attempt, request=replace(request, asking=request.asking | asking))
    if attempt.error is None or isinstance(attempt.error, EndedByDecisionError):
        if not specializes_int(attempt.decisions):
            return None
        reason = "a number made from a size would hold for that size alone"
        return attempt.wants(SIZE_INTS, f"{SIZE_INTS.note}: {reason}")
    if SIZE_INTS in request.on and not isinstance(attempt.error, UserError):
        again = f"int() and range() are those of Python again: {attempt.first_line}"
        return Retry(request.without_repair(SIZE_INTS), again)
    if wants_int_first(attempt) or asks_for_int(attempt.decisions):
        return attempt.wants(SIZE_INTS, f"{SIZE_INTS.note}: {attempt.first_line}")
    return None


def _modules_asking(attempt: Attempt) -> frozenset[str]:
    """The modules of Python with a line that makes a number of a size, or an int of a value: those of a
    model are known, but for what it calls by an object or a table.
    """
    lines = [one.line for one in attempt.decisions if one.is_number]
    lines += [attempt.place] if attempt.depends_on_values else []
    files = {line.partition(":")[0] for line in lines if is_asked_at(line)}
    found = (
        name
        for name, module in (list(sys.modules.items()) if files else ())
        if short_name_of(getattr(module, "__dict__", {}).get("__file__") or "") in files
        and _is_open(name)
    )
    return frozenset(found)


SIZE_INTS = Repair(
    "ints of sizes",
    "Python wants a number of ``int(size)``, so torch gives that of the example, and the graph holds for"
    " this size alone. In the files of the model ``int``, ``float``, ``len`` and ``range`` leave sizes"
    " symbolic.",
    until="upstream/torch_int_of_a_size.py",
    versions="2.13, 2.15",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/__init__.py",
    retry=_asks_for_ints,
    block=lambda setup: ints_stay_sizes(setup.model, setup.request.asking),
    note="int(), len() and range() of a size are read as sizes",
)

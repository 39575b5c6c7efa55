"""Tests of identity in the source of a model: ``q is k``, ``id(q) in known``, ``n is LIMIT``.

While torch traces, each argument is a tensor of its own and a size is no int of Python, so that such
a test is False whatever the call is. A graph of a model that compares two tensors so serves only
calls without one argument twice. Of a model that compares a number so, each size is a constant.
The tensors of a trace are of no class of the caller's, so that ``isinstance(x, Image)`` is False too:
a graph of a model that asks so serves plain tensors alone.
Comparisons with ``None``, with flags, with ``self``, and with classes and functions of the file say
nothing about arguments.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import inspect
from collections.abc import Collection, Iterator
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ..core.marks import ATTRIBUTES, CLASSES, IDENTITY
from ..core.support.kinds import is_number
from ..model_source.frames import codes_in, is_code_of_model
from ..model_source.lines import is_of_python, short_name_of
from ..model_source.source_tests import tree_of
from ..pytrees.unread import Unread

__all__ = ["compares_numbers", "marks_in_source"]

_MISSING, _SELF = object(), object()
_IS = dis.opmap["IS_OP"]
#: names by which code asks for the class of an object
_CLASS_TESTS = frozenset({"isinstance", "type", "__class__"})
#: names by which code looks through the attributes of an object
_ATTRIBUTES = frozenset(
    {"vars", "dir", "__dict__", "__dir__", "__getattribute__", "__getstate__", "__reduce__"}
    | {"__reduce_ex__", "getattr_static", "getmembers", "getmembers_static"}
)
#: how many functions of a model are read
_MOST = 4096


def marks_in_source(model: Any, method: str) -> dict[str, str]:
    """Returns the marks of tensors that a model may ask for as its source says, each with the first
    line: whether two arguments are one object, of what class one is, and which attributes it has.
    """
    functions = list(_functions_of(model, method))
    tests = (test for function in functions for test in _tests_in(function))
    found = {IDENTITY: next((line for line, values in tests if _may_be_tensors(values)), "")}
    for function in functions:
        code = function.__code__
        names = frozenset(_names_in(code))
        place = f"{short_name_of(code.co_filename)}:{code.co_firstlineno}"
        if not _ATTRIBUTES.isdisjoint(names):
            found.setdefault(ATTRIBUTES, f"{place} in {function.__name__}")
        if not _CLASS_TESTS.isdisjoint(names) and _names_class_of_tensors(function, names):
            found.setdefault(CLASSES, f"{place} in {function.__name__}")
    return {mark: line for mark, line in found.items() if line}


def _names_class_of_tensors(function: FunctionType, names: Collection[str]) -> bool:
    """True where a name in a function stands for a class of tensors, but for ``torch.Tensor``."""
    if "Parameter" in names:
        return True
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    values += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    for module in [value for value in values if isinstance(value, ModuleType)]:
        values += [vars(module).get(name) for name in names]
    classes = (value for value in values if isinstance(value, type))
    return any(one is not torch.Tensor and issubclass(one, torch.Tensor) for one in classes)


def compares_numbers(model: Any, method: str) -> bool:
    """True where a line of the model asks whether something is a certain number: no member of an Enum, which no size
    is.
    """
    tests = (test for function in _functions_of(model, method) for test in _tests_in(function))
    values = (value for _, known in tests for value in known)
    return any(is_number(value) and not isinstance(value, enum.Enum) for value in values)


def _may_be_tensors(values: list[Any]) -> bool:
    return all(value is _MISSING or isinstance(value, torch.Tensor) for value in values)


def _tests_in(function: FunctionType) -> Iterator[tuple[str, list[Any]]]:
    """Each line with ``is`` in a function of a model, and what is known of its two sides."""
    code = function.__code__
    if not _asks(code):  # most files need not be read at all
        return
    last = max((line or 0 for _, _, line in code.co_lines()), default=0)
    for node in _comparisons_in(code.co_filename):
        if code.co_firstlineno <= node.lineno <= last:
            names = {**function.__globals__, "self": _SELF}
            sides = [_known(side, names) for side in _sides_of(node)]
            place = f"{short_name_of(code.co_filename)}:{node.lineno}"
            yield f"{place}: {ast.unparse(node)}", sides


def _asks(code: CodeType) -> bool:
    """True for code with a test of identity, which may be one with None."""
    return any(_IS in one.co_code[::2] or "id" in one.co_names for one in codes_in(code))


@functools.lru_cache(maxsize=1024)
def _comparisons_in(file: str) -> tuple[ast.Compare | ast.Call, ...]:
    """The comparisons of a file by ``is`` and ``is not``, but for those with a constant such as None,
    and the calls of ``id``.
    """
    nodes = ast.walk(tree_of(file) or ast.Module([], []))
    return tuple(
        node
        for node in nodes
        if (isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)))
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "id" and node.args)
        if not any(map(_is_flag, _sides_of(node)))
    )


def _sides_of(node: ast.Compare | ast.Call) -> list[ast.expr]:
    """Returns the two sides that a test of identity compares, or whose identity it asks for."""
    return [node.left, node.comparators[0]] if isinstance(node, ast.Compare) else node.args[:1]


def _is_flag(side: ast.expr) -> bool:
    is_number = isinstance(side, ast.Constant) and type(side.value) in (int, float)
    return isinstance(side, ast.Constant) and not is_number


def _functions_of(model: Any, method: str) -> Iterator[FunctionType]:
    """The functions that a method, and the ``forward`` of each module, may call: those that their
    code names, as methods of the modules or in its file, and those that they close over.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else [model]
    owners = dict.fromkeys(cls for module in modules for cls in type(module).__mro__)
    methods: dict[str, list[Any]] = {}
    for holder in (*map(vars, owners), *(getattr(module, "__dict__", {}) for module in modules)):
        for name, value in holder.items():
            methods.setdefault(name, []).append(value)
    waiting = [*methods.get(method, ()), *methods.get("forward", ())]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        if isinstance(value, Unread):  # in the place of a generator
            continue
        function = getattr(value, "__func__", getattr(value, "fget", value))
        function = inspect.unwrap(function) if callable(function) else function
        if not isinstance(function, FunctionType) or id(function.__code__) in seen:
            continue
        seen.add(id(function.__code__))
        file = function.__code__.co_filename
        if not is_code_of_model(file) or is_of_python(file):
            continue
        yield function
        waiting += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
        for name in _names_in(function.__code__):
            waiting += methods.get(name, ())
            waiting += [function.__globals__[name]] if name in function.__globals__ else []


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _names_in(code: CodeType) -> Iterator[str]:
    """The names in the code of a function, and of those inside of it."""
    return (name for one in codes_in(code) for name in one.co_names)


def _known(side: ast.expr, names: dict[str, Any]) -> Any:
    """Returns the value of a side of a comparison, where the file alone says so."""
    if isinstance(side, ast.Constant):
        return side.value
    if isinstance(side, ast.Name):
        return names.get(side.id, _MISSING)
    if isinstance(side, ast.Attribute):
        owner = _known(side.value, names)
        if owner is type:  # of a class that is not known
            return type
        return _MISSING if owner is _MISSING else getattr(owner, side.attr, _MISSING)
    is_class = isinstance(side, ast.Call) and getattr(side.func, "id", "") in ("type", "id")
    return type if is_class else _MISSING

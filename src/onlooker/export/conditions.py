"""The conditions of an exported program on the sizes of its inputs, as text that is checked without torch.

ONNX Runtime and AOTInductor know no guards: they run what they are given, and a call that another graph should
have taken gives wrong numbers. So what guards the torch program goes along with every target. It is data,
``attention_mask.shape[1] == input_ids.shape[1] + past.shape[2]``, and can be read from a file: what is no
comparison of sizes is refused before anything is evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.errors import UsageError

__all__ = ["Run", "checker", "guarded", "is_size", "read_condition"]

#: takes the inputs of a graph in their order, and gives its outputs
Run = Callable[[Sequence[Any]], Sequence[Any]]

_FUNCTIONS = {"min": min, "max": max, "abs": abs, "float": float, "int": int, "round": round}
_OF_MATH = ("floor", "ceil", "trunc", "sqrt")
_PLAIN = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.IfExp),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_LONGEST = 10_000
_DEEPEST = 50


def read_condition(text: str, names: Sequence[str]) -> ast.expr:
    """A condition as a tree that has nothing but comparisons and arithmetic of sizes of the inputs called ``names``.

    A size is ``name.shape[dim]``, an int input ``name``.

    :raises UsageError: ``bad-condition``

    >>> ast.unparse(read_condition("x.shape[1] % 4 == 0 and n > 2", ["x", "n"]))
    'x.shape[1] % 4 == 0 and n > 2'
    >>> read_condition("open('file')", ["x"])
    Traceback (most recent call last):
    ...
    onlooker.core.errors.UsageError: "open('file')" is no condition on the sizes of inputs. [bad-condition]
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError("too long")
        tree = ast.parse(text, mode="eval").body
        _check(tree, frozenset(names), 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{text[:200]!r} is no condition on the sizes of inputs.", slug="bad-condition") from error
    return tree


def _check(node: ast.AST, names: frozenset[str], depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if is_size(node, names):
        return
    children: Sequence[ast.AST]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
        children = ()
    elif isinstance(node, ast.Call) and _is_known(node.func) and not node.keywords:
        children = node.args
    elif isinstance(node, _PLAIN):
        children = list(ast.iter_child_nodes(node))
    else:
        raise ValueError(ast.dump(node))
    for child in children:
        _check(child, names, depth + 1)


def is_size(node: ast.AST, names: frozenset[str]) -> bool:
    """True for ``name.shape[dim]``, and for the name of an input alone."""
    if isinstance(node, ast.Name):
        return node.id in names
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "shape"
        and isinstance(node.value.value, ast.Name)
        and node.value.value.id in names
    )


def _is_known(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Name) and function.value.id == "math" and function.attr in _OF_MATH
    return isinstance(function, ast.Name) and function.id in _FUNCTIONS


class _Renamed(ast.NodeTransformer):
    """Writes every size of a condition as ``rename`` says."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.rename = rename

    def visit_Call(self, node: ast.Call) -> ast.AST:  # an input may be called as a function is
        return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.rename(node.id), ast.Load())

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return ast.Name(self.rename(ast.unparse(node)), ast.Load())


def checker(conditions: Sequence[str], names: Sequence[str]) -> Callable[[Sequence[Any]], int]:
    """A function of the inputs: the position of the first condition that does not hold, -1 when all do.

    Every size is read once.

    :raises UsageError: ``bad-condition``
    """
    sizes: dict[str, str] = {}
    renamed = _Renamed(lambda size: sizes.setdefault(size, f"_{len(sizes)}"))
    checks = [
        f"  if not ({ast.unparse(renamed.visit(read_condition(text, names)))}): return {number}"
        for number, text in enumerate(conditions)
    ]
    positions = {name: position for position, name in enumerate(names)}
    reads = []
    for size, local in sizes.items():
        name, dot, rest = size.partition(".")
        reads.append(f"  {local} = _inputs[{positions[name]}]{dot}{rest}")
    space: dict[str, Any] = {"__builtins__": {}, "math": math, **_FUNCTIONS}
    exec("\n".join(["def check(_inputs):", *reads, *checks, "  return -1"]), space)
    check: Callable[[Sequence[Any]], int] = space["check"]
    return check


def guarded(run: Run, conditions: Sequence[str], spelled: Mapping[str, str]) -> Run:
    """``run``, refusing inputs for which a condition does not hold, or has no answer, by a RuntimeError that says why.

    ``spelled`` are the names of the inputs in their order, each with its path as the user knows it.

    :raises UsageError: ``bad-condition``
    """
    check = checker(conditions, list(spelled))

    def checked(inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            failed = check(inputs)
        except Exception as error:  # a damaged file asks for a fourth size, or for the shape of an int
            raise RuntimeError(f"its conditions have no answer ({type(error).__name__}: {error})") from error
        if failed >= 0:
            raise RuntimeError(_sentence(conditions[failed], spelled, inputs))
        return run(inputs)

    return checked


def _sentence(condition: str, spelled: Mapping[str, str], inputs: Sequence[Any]) -> str:
    """The condition with the paths of the user, and the sizes that came."""
    values = dict(zip(spelled, inputs, strict=True))
    came: dict[str, int] = {}

    def path_of(size: str) -> str:
        name, _, rest = size.partition(".shape")
        path = spelled[name] + size.removeprefix(name)
        came[path] = int(values[name].shape[int(rest.strip("[]"))] if rest else values[name])
        return path

    text = ast.unparse(_Renamed(path_of).visit(read_condition(condition, list(spelled))))
    return f"it needs {text}, and {', '.join(f'{path} is {size}' for path, size in came.items())}"

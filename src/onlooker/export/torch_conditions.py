"""The guards of a program of torch.export, written as :mod:`.conditions` reads them.

torch keeps what its tracer met as Python text, and what the dynamic shapes say as ranges of symbols. It checks both
only in the module that it makes itself, and only while the program has its example inputs; a range that begins at
2 it never checks. Here all of it becomes text over the names of the inputs.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
from torch.utils._sympy.printers import PythonPrinter

from ..core.errors import ExportError, UsageError
from ..core.spec import Axis
from .conditions import is_size, read_condition
from .graph import Graph
from .obtained import axes_of

__all__ = ["conditions_of"]

_MOST = 2**31


def conditions_of(graph: Graph) -> tuple[str, ...]:
    """What must hold of the sizes of the inputs of a graph of torch: constants, equalities, ranges, guards.

    Guards on strides are left out: the targets that need these texts bring an input into the layout they want.

    :raises ExportError: ``guard-not-known``
    """
    sizes = _Sizes(graph)
    found = sizes.conditions()
    for text in graph.artifact._guards_code:
        found += sizes.of_tracer(text)
    return tuple(dict.fromkeys(found))


class _Sizes:
    """The sizes of the inputs of a graph, and where each symbol of torch can be read from."""

    def __init__(self, graph: Graph) -> None:
        self.names = tuple(graph.names.values())
        self.plan = graph.plan
        self.axes = axes_of(graph.artifact, graph.plan, graph.names)
        self.ranges = graph.artifact.range_constraints
        self.texts = {axis: _spelled(axis, graph.names) for axis in self.axes}
        self.sources: dict[Any, str] = {}
        #: every size that has to be equal to one before, and that one
        self.same: dict[str, str] = {}

    def conditions(self) -> list[str]:
        """What the shapes of the inputs say."""
        found: list[str] = []
        later: list[tuple[str, Any]] = []
        for axis, size in self.axes.items():
            text = self.texts[axis]
            if not isinstance(size, sympy.Basic) or size.is_number:
                if size is not None and not self._is_planned(axis, int(size)):
                    found.append(f"{text} == {int(size)}")
            elif size in self.sources:
                self.same[text] = self.sources[size]
                found.append(f"{text} == {self.sources[size]}")
            elif isinstance(size, sympy.Symbol):
                self.sources[size] = text
                found += _range(text, self.ranges.get(size))
            else:
                later.append((text, size))
        for text, size in later:
            found += self._of_expression(text, size)
        return found

    def _is_planned(self, axis: Axis, size: int) -> bool:
        """True for a size that the plan has too: the dispatcher checks it."""
        expression = self.plan.expression(axis)
        return expression.is_constant and expression.evaluate({}) == size

    def _of_expression(self, text: str, size: Any) -> list[str]:
        """An axis of size ``a + b`` or ``4*a``; a symbol that stands on no axis alone follows from it."""
        hidden = [symbol for symbol in size.free_symbols if symbol not in self.sources]
        if not hidden:
            return [f"{text} == {self._printed(size)}"]
        factor = size.coeff(hidden[0])
        rest = sympy.expand(size - factor * hidden[0])
        if len(hidden) > 1 or rest.has(hidden[0]) or not (factor.is_Integer and factor > 0):
            return []  # the guards of the tracer say what is needed
        value = text if rest == 0 else f"({text} - {self._printed(rest)})"
        if factor == 1:
            self.sources[hidden[0]] = value
            return _range(value, self.ranges.get(hidden[0]))
        self.sources[hidden[0]] = f"({value} // {factor})"
        return [f"{value} % {factor} == 0", *_range(self.sources[hidden[0]], self.ranges.get(hidden[0]))]

    def _printed(self, expression: Any) -> str:
        symbols = {symbol: sympy.Symbol(text) for symbol, text in self.sources.items()}
        return f"({PythonPrinter().doprint(expression.xreplace(symbols))})"

    def of_tracer(self, text: str) -> list[str]:
        """``L['x'].size()[1]`` is ``x.shape[1]``; nothing for a guard on strides, and for what is said already."""
        try:
            tree = ast.parse(text.strip(), mode="eval").body
            if any(isinstance(n, ast.Attribute) and n.attr in ("stride", "storage_offset") for n in ast.walk(tree)):
                return []
            named = _Named(self.names, self.same).visit(tree)
            written = ast.unparse(named)
            read_condition(written, self.names)
        except (SyntaxError, UsageError) as error:
            raise ExportError(
                f"torch guards the program by {text!r}, which cannot be checked without torch.",
                slug="guard-not-known",
                hint="Use the program of torch itself, and report this guard.",
            ) from error
        left, equal, right = written.partition(" == ")
        return [] if equal and left == right else [written]


class _Named(ast.NodeTransformer):
    """The sources of torch's guards as names of inputs; a size that equals another one is that one."""

    def __init__(self, names: Sequence[str], same: Mapping[str, str]) -> None:
        self.names, self.same = names, same

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        found: ast.AST = node
        if isinstance(node.value, ast.Name) and node.value.id == "L" and isinstance(key, str):
            found = ast.Name(key, ast.Load())
        elif isinstance(key, int) and ast.unparse(node.value) == "L['flat_args']":
            found = ast.Name(self.names[key], ast.Load())
        elif ast.unparse(node.value).endswith(".size()"):
            tensor = self.visit(node.value.func.value)  # type: ignore[attr-defined]
            found = ast.Subscript(ast.Attribute(tensor, "shape", ast.Load()), node.slice, ast.Load())
        if is_size(found, frozenset(self.names)):
            text = ast.unparse(found)
            return ast.parse(self.same.get(text, text), mode="eval").body
        return node


def _spelled(axis: Axis, names: Mapping[Any, str]) -> str:
    return names[axis.path] if axis.dim is None else f"{names[axis.path]}.shape[{axis.dim}]"


def _range(text: str, limits: Any) -> list[str]:
    if limits is None:
        return []
    low, high = limits.lower, limits.upper
    found = [f"{text} >= {int(low)}"] if _is_int(low) and (int(low) > 0 or ".shape" not in text) else []
    return [*found, f"{text} <= {int(high)}"] if _is_int(high) and int(high) < _MOST else found


def _is_int(bound: Any) -> bool:
    return isinstance(bound, (int, sympy.Integer))

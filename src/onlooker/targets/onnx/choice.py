"""Nodes of ONNX that say by the sizes of the inputs which graph of a merged model takes a call."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...contract.places import formulas_of, spelled_axis
from ...core.errors import ExportError
from ...core.formula import read_formula
from ...trace.graph import Graph

__all__ = ["CHOSEN", "choice_by_sizes"]

#: the value that is the number of the graph that takes the call
CHOSEN = "onlooker_by_sizes"
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
}
#: the operator of a comparison, and whether its answer is turned round
_COMPARED: Mapping[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("Equal", False),
    ast.NotEq: ("Equal", True),
    ast.Lt: ("Less", False),
    ast.LtE: ("LessOrEqual", False),
    ast.Gt: ("Greater", False),
    ast.GtE: ("GreaterOrEqual", False),
}
_FUNCTIONS: Mapping[str, str] = {
    "min": "Min",
    "max": "Max",
    "abs": "Abs",
    "round": "Round",
    "floor": "Floor",
    "ceil": "Ceil",
    "sqrt": "Sqrt",
}


def choice_by_sizes(graphs: Sequence[Graph]) -> list[Any]:
    """The nodes that give :data:`CHOSEN`: the number of the first graph whose contract the sizes of
    the inputs satisfy. ONNX Runtime refuses a call that no graph takes.

    Sizes are compared as doubles, which are exact for whole numbers up to 2**53.

    :raises ExportError: ``not-mergeable`` for a condition that ONNX cannot express
    """
    made = _Nodes()
    found = made.number(len(graphs))
    for number, graph in reversed([*enumerate(graphs)]):
        found = made.add("Where", made.takes(graph), made.number(number), found)
    index = made.add("Cast", found, to=made.int64)
    numbers = made.constant(made.int64, [len(graphs)], list(range(len(graphs))))
    made.add("Gather", numbers, index, output=CHOSEN, axis=0)
    return made.nodes


@dataclass(slots=True)
class _Nodes:
    """Nodes that are added one after the other; each value has a name of its own."""

    nodes: list[Any] = field(default_factory=list)
    _known: dict[Any, str] = field(default_factory=dict)

    @property
    def int64(self) -> int:
        """The number of the type of whole numbers."""
        return _type("INT64")

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node and gives the name of its result; an equal node is there once."""
        from onnx import helper

        key = (operator, inputs, output, tuple(sorted(attributes.items())))
        if key not in self._known:
            name = output or f"onlooker_size_{len(self.nodes)}"
            self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
            self._known[key] = name
        return self._known[key]

    def constant(self, kind: int, shape: Sequence[int], values: Sequence[Any]) -> str:
        """A constant of these values."""
        from onnx import helper

        key = (kind, *shape, *values)
        if key not in self._known:
            name = f"onlooker_size_{len(self.nodes)}"
            tensor = helper.make_tensor(name, kind, shape, values)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            self._known[key] = name
        return self._known[key]

    def number(self, value: float) -> str:
        """A number, as a double."""
        return self.constant(_type("DOUBLE"), [], [float(value)])

    def truth(self, value: bool) -> str:
        """True or False."""
        return self.constant(_type("BOOL"), [], [value])

    def takes(self, graph: Graph) -> str:
        """Whether the sizes satisfy the plan and the contract of a graph."""
        labels = dict(zip(graph.names.values(), graph.labels, strict=True))
        formulas = formulas_of(graph.plan, graph.contract, spelled_axis(graph.names))
        found = self.truth(True)
        for formula in formulas:
            tree = read_formula(formula, list(labels))
            found = self.add("And", found, self.value(tree, labels))
        return found

    def value(self, tree: ast.expr, labels: Mapping[str, str]) -> str:
        """The value of a formula over the sizes of inputs.

        :raises ExportError: ``not-mergeable``
        """
        if isinstance(tree, ast.Constant) and isinstance(tree.value, (bool, int, float)):
            value = tree.value
            return self.truth(value) if isinstance(value, bool) else self.number(value)
        if isinstance(tree, ast.Name):
            return self.add("Cast", labels[tree.id], to=_type("DOUBLE"))
        if isinstance(tree, ast.Subscript):
            return self._size(tree, labels)
        if isinstance(tree, ast.BoolOp):
            operator = "And" if isinstance(tree.op, ast.And) else "Or"
            first, *rest = [self.value(part, labels) for part in tree.values]
            for other in rest:
                first = self.add(operator, first, other)
            return first
        if isinstance(tree, ast.UnaryOp):
            operator = "Not" if isinstance(tree.op, ast.Not) else "Neg"
            return self.add(operator, self.value(tree.operand, labels))
        if isinstance(tree, ast.Compare):
            return self._comparison(tree, labels)
        if isinstance(tree, ast.IfExp):
            parts = [self.value(part, labels) for part in (tree.test, tree.body, tree.orelse)]
            return self.add("Where", *parts)
        if isinstance(tree, ast.BinOp):
            return self._arithmetic(tree, labels)
        if isinstance(tree, ast.Call):
            return self._call(tree, labels)
        raise _not_expressed(tree)

    def _size(self, tree: ast.Subscript, labels: Mapping[str, str]) -> str:
        """The size of an axis: ``x.shape[1]``."""
        if not isinstance(tree.value, ast.Attribute) or not isinstance(tree.value.value, ast.Name):
            raise _not_expressed(tree)
        shape = self.add("Shape", labels[tree.value.value.id])
        dim: Any = tree.slice
        place = self.constant(self.int64, [], [dim.value])
        return self.add("Cast", self.add("Gather", shape, place, axis=0), to=_type("DOUBLE"))

    def _comparison(self, tree: ast.Compare, labels: Mapping[str, str]) -> str:
        sides = [self.value(side, labels) for side in (tree.left, *tree.comparators)]
        found = self.truth(True)
        for kind, left, right in zip(tree.ops, sides, sides[1:], strict=False):
            operator, is_turned = _COMPARED[type(kind)]
            answer = self.add(operator, left, right)
            answer = self.add("Not", answer) if is_turned else answer
            found = self.add("And", found, answer)
        return found

    def _arithmetic(self, tree: ast.BinOp, labels: Mapping[str, str]) -> str:
        left, right = self.value(tree.left, labels), self.value(tree.right, labels)
        if type(tree.op) in _BINARY:
            return self.add(_BINARY[type(tree.op)], left, right)
        quotient = self.add("Floor", self.add("Div", left, right))
        if isinstance(tree.op, ast.FloorDiv):
            return quotient
        if isinstance(tree.op, ast.Mod):  # the sign of the divisor, as in Python
            return self.add("Sub", left, self.add("Mul", quotient, right))
        raise _not_expressed(tree)

    def _call(self, tree: ast.Call, labels: Mapping[str, str]) -> str:
        values = [self.value(argument, labels) for argument in tree.args]
        function: Any = tree.func
        name = function.attr if isinstance(function, ast.Attribute) else function.id
        if name == "float" and len(values) == 1:
            return values[0]
        if name in ("int", "trunc") and len(values) == 1:  # the whole part: towards 0
            size = self.add("Floor", self.add("Abs", values[0]))
            return self.add("Mul", size, self.add("Sign", values[0]))
        if name not in _FUNCTIONS:
            raise _not_expressed(tree)
        return self.add(_FUNCTIONS[name], *values)


def _type(name: str) -> int:
    import onnx

    return int(onnx.TensorProto.DataType.Value(name))


def _not_expressed(tree: ast.expr) -> ExportError:
    return ExportError(
        f"The graphs cannot be one model: ONNX has no operators for {ast.unparse(tree)!r}, which says"
        " when a graph takes a call.",
        slug="not-mergeable",
        hint="Save a folder, which has a model for each graph: a path without a suffix.",
    )

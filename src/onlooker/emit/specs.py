"""The sizes of a graph as a ``ShapesSpec``, in which torch 2.14 and newer takes them for ``torch.compile``,
``torch.export`` and ``make_fx``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from ..core.path import Attr, Index, Path
from ..core.plan import LeafPlan, Symbol, symbol_names
from ..core.sizes.expression import Expression
from ..core.sizes.formula import symbols_in
from .traffic import Served

__all__ = ["spec_lines"]

_MODULE = "torch.fx.experimental.dynamic_spec"


def spec_lines(served: Served) -> list[str]:
    """A function that gives the ``ShapesSpec`` of a graph.

    Each symbol that is a size by itself is one variable with its bounds, as torch wants it; an axis that is
    computed from such symbols is derived from them, and the conditions of a contract that is one region are
    assumptions.
    """
    leaves = [leaf for leaf in served.plan.inputs if leaf.symbols]
    sizes = {str(size) for leaf in leaves for size in leaf.sizes}
    own = sizes.intersection(symbol_names(served.plan))
    symbols = [symbol for symbol in served.plan.symbols if symbol.name in own]
    params = _tree({leaf.path: _leaf(leaf, own) for leaf in leaves})
    return [
        "",
        "",
        "def shapes():",
        '    """For torch 2.14 and newer: torch.compile(model, dynamic_shapes=shapes())."""',
        "    import torch",
        f"    from {_MODULE} import DictSpec, IntVar, ObjectSpec, ParamsSpec",
        f"    from {_MODULE} import SeqSpec, ShapesSpec, ShapeVar, TensorSpec",
        "",
        *(f"    {symbol.name} = ShapeVar({_bounds(symbol)})" for symbol in symbols),
        "    params = {",
        *(f"        {name!r}: {text}," for name, text in params.items()),
        "    }",
        "    assumptions = [",
        *(f"        {formula}," for formula in _assumptions(served, own)),
        "    ]",
        "    return ShapesSpec(ParamsSpec(params), assumptions=assumptions)",
    ]


def _bounds(symbol: Symbol) -> str:
    high = "" if symbol.high is None else f", max={symbol.high}"
    return f"{symbol.name!r}, min={symbol.low}{high}"


def _in_torch(formula: str) -> str:
    """A formula in operators of torch, empty where it has a function that torch lacks.

    >>> _in_torch("max(n, 3, m) > 4 or 1 <= n < 3")
    '(torch.sym_max(torch.sym_max(n, 3), m) > 4) | (1 <= n) & (n < 3)'
    """
    tree = ast.parse(formula, mode="eval")
    if any(not isinstance(node, _KNOWN) for node in ast.walk(tree)):
        return ""
    names = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call)}  # type: ignore[attr-defined]
    return ast.unparse(_InTorch().visit(tree)) if names <= _FUNCTIONS.keys() else ""


#: what formulas of sizes are made of, and torch has for its variables
_KNOWN = (
    *(
        ast.Expression,
        ast.Constant,
        ast.Name,
        ast.Load,
        ast.Call,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
    ),
    *(ast.Compare, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.USub, ast.Not, ast.And),
    *(ast.Or, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE),
)
_FUNCTIONS = {"min": "torch.sym_min", "max": "torch.sym_max"}


class _InTorch(ast.NodeTransformer):
    """Replaces what Python decides at once: ``and``, ``or``, ``not``, chains, ``min`` and ``max``."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        assert isinstance(node.func, ast.Name)
        function = ast.Name(_FUNCTIONS[node.func.id])
        return reduce(lambda first, second: ast.Call(function, [first, second], []), node.args)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        operator = ast.BitOr() if isinstance(node.op, ast.Or) else ast.BitAnd()
        return _joined(operator, node.values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        is_not = isinstance(node.op, ast.Not)
        return ast.Call(ast.Name("torch.sym_not"), [node.operand], []) if is_not else node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        each = [ast.Compare(left, [operator], [right]) for left, operator, right in pairs]
        return _joined(ast.BitAnd(), each)


def _joined(operator: ast.operator, parts: Sequence[ast.expr]) -> ast.expr:
    return reduce(lambda first, second: ast.BinOp(first, operator, second), parts)


def _leaf(leaf: LeafPlan, own: Collection[str]) -> str:
    if leaf.value is not None:
        return _size(leaf.value, own) or "IntVar()"
    sizes = (_size(e, own) or "ShapeVar()" if e.symbols else "None" for e in leaf.shape)
    return f"TensorSpec([{', '.join(sizes)}])"


def _size(expression: Expression, own: Collection[str]) -> str:
    """What torch computes for a size from its own variables; empty where it cannot."""
    return _in_torch(str(expression)) if {*expression.symbols} <= {*own} else ""


def _tree(leaves: Mapping[Path, str]) -> dict[str, str]:
    """The specs of leaves in the containers that hold them, by the name of the argument."""
    arguments: dict[str, dict[tuple[Any, ...], str]] = {}
    for path, text in leaves.items():
        arguments.setdefault(path.root, {})[path.entries[1:]] = text
    return {name: _nested(own) for name, own in arguments.items()}


def _nested(leaves: Mapping[tuple[Any, ...], str]) -> str:
    if () in leaves:
        return leaves[()]
    parts: dict[Any, dict[tuple[Any, ...], str]] = {}
    for entries, text in leaves.items():
        parts.setdefault(entries[0], {})[entries[1:]] = text
    texts = {entry: _nested(own) for entry, own in parts.items()}
    first = next(iter(texts))
    if isinstance(first, Index):
        by_place = {entry.index: text for entry, text in texts.items()}
        return f"SeqSpec([{', '.join(by_place.get(n, 'None') for n in range(max(by_place) + 1))}])"
    if isinstance(first, Attr):
        return f"ObjectSpec({{{', '.join(f'{e.name!r}: {t}' for e, t in texts.items())}}})"
    return f"DictSpec({{{', '.join(f'{e.key!r}: {t}' for e, t in texts.items())}}})"


def _assumptions(served: Served, known: set[str]) -> Iterator[str]:
    """The steps of sizes, and the conditions of one region."""
    for symbol in served.plan.symbols:
        if symbol.step > 1 and symbol.name in known:
            yield f"{symbol.name} % {symbol.step} == 0"
    regions = served.contract.regions
    for constraint in regions[0].constraints if len(regions) == 1 else ():
        formula = _in_torch(constraint.formula)
        if formula and symbols_in(constraint.formula) <= known:
            yield formula

"""The sizes of a graph as a ``ShapesSpec``, in which torch 2.14 and newer takes them for ``torch.compile``,
``torch.export`` and ``make_fx``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.path import Attr, Index, Path
from ..core.plan import LeafPlan, Symbol
from ..core.sizes.expression import Expression
from .traffic import Served

__all__ = ["spec_lines"]

_MODULE = "torch.fx.experimental.dynamic_spec"


def spec_lines(served: Served) -> list[str]:
    """A function that gives the ``ShapesSpec`` of a graph.

    Each symbol is one variable with its bounds, an axis that is a sum or a product of symbols is derived from
    them, and the conditions of a contract that is one region are assumptions.
    """
    leaves = [leaf for leaf in served.plan.inputs if leaf.symbols]
    own = {symbol for leaf in leaves for e in leaf.sizes if _is_derived(e) for symbol in e.symbols}
    symbols = [symbol for symbol in served.plan.symbols if symbol.name in own]
    params = _tree({leaf.path: _leaf(leaf) for leaf in leaves})
    return [
        "",
        "",
        "def shapes():",
        '    """For torch 2.14 and newer: torch.compile(model, dynamic_shapes=shapes())."""',
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


def _is_derived(expression: Expression) -> bool:
    """True for a symbol, and for what torch computes with variables: sums and products."""
    return bool(expression.symbols) and not any(
        isinstance(node, ast.Call | ast.FloorDiv) for node in ast.walk(ast.parse(str(expression)))
    )


def _leaf(leaf: LeafPlan) -> str:
    if leaf.value is not None:
        return str(leaf.value) if _is_derived(leaf.value) else "IntVar()"
    return f"TensorSpec([{', '.join(map(_size, leaf.shape))}])"


def _size(expression: Expression) -> str:
    if not expression.symbols:
        return "None"
    return str(expression) if _is_derived(expression) else "ShapeVar()"


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
    """The steps of sizes, and comparisons of one region."""
    for symbol in served.plan.symbols:
        if symbol.step > 1 and symbol.name in known:
            yield f"{symbol.name} % {symbol.step} == 0"
    regions = served.contract.regions
    for constraint in regions[0].constraints if len(regions) == 1 else ():
        tree = ast.parse(constraint.formula, mode="eval").body
        nodes = list(ast.walk(tree))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        is_simple = isinstance(tree, ast.Compare) and len(tree.ops) == 1
        if is_simple and names <= known and not any(isinstance(node, ast.Call) for node in nodes):
            yield constraint.formula

"""The sizes of the inputs of an exported program: numbers, or symbols with ranges, read from the
program itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind

from ..core.path import Path
from ..core.plan import Plan
from ..core.sizes.expression import Expression
from ..core.spec import Axis
from ..torch_internals.sizes import expression_of
from ..torch_internals.trees import tree_leaves

__all__ = [
    "axes_of",
    "numbers_of_no_shape",
    "output_kinds",
    "read_sizes",
    "sizes_in_plan",
    "symbols_of",
]


def symbols_of(
    program: torch.export.ExportedProgram, plan: Plan, names: Mapping[Path, str]
) -> dict[Any, str]:
    """The symbols of torch that stand alone on an axis, and the expression of the plan for that
    axis.
    """
    found: dict[Any, str] = {}
    for axis, size in axes_of(program, plan, names).items():
        if isinstance(size, sympy.Symbol):
            found.setdefault(size, str(plan.expression(axis)))
    return found


def sizes_in_plan(
    program: torch.export.ExportedProgram, plan: Plan, names: Mapping[Path, str]
) -> dict[Any, Any]:
    """The symbols of torch that stand alone on an axis, as the expressions of sympy that the
    plan has there.
    """
    found: dict[Any, Any] = {}
    for axis, size in axes_of(program, plan, names).items():
        if isinstance(size, sympy.Symbol):
            found.setdefault(size, plan.expression(axis).value)
    return found


def numbers_of_no_shape(
    program: torch.export.ExportedProgram, plan: Plan, names: Mapping[Path, str]
) -> frozenset[str]:
    """The symbols of the plan that are ints of calls, and in the shape of no tensor of the program."""
    own = {
        found: name
        for found, name in symbols_of(program, plan, names).items()
        if any(name == symbol.name for symbol in plan.symbols)
    }
    values = (node.meta.get("val") for node in program.graph.nodes)
    sizes: list[Any] = [
        size
        for value in tree_leaves(list(values))
        if isinstance(value, torch.Tensor)
        for size in value.shape
    ]
    expressions = [size.node.expr for size in sizes if isinstance(size, torch.SymInt)]
    taken = frozenset().union(*(one.free_symbols for one in expressions))
    return frozenset(name for found, name in own.items() if found not in taken)


def read_sizes(
    program: torch.export.ExportedProgram, plan: Plan, names: Mapping[Path, str]
) -> tuple[dict[Axis, Expression | None], dict[str, tuple[int, int | None]]]:
    """Per axis the size that the program has there, and per expression of the plan its range."""
    known = symbols_of(program, plan, names)
    in_plan = sizes_in_plan(program, plan, names)
    sizes: dict[Axis, Expression | None] = {
        axis: Expression(sympy.sympify(size).xreplace(in_plan))
        for axis, size in axes_of(program, plan, names).items()
    }
    ranges = {}
    for symbol, text in known.items():
        limits = program.range_constraints.get(symbol)
        if limits is not None:
            ranges[text] = (
                int(limits.lower),
                int(limits.upper) if _is_finite(limits.upper) else None,
            )
    return sizes, ranges


def output_kinds(
    program: torch.export.ExportedProgram, plan: Plan, names: Mapping[Path, str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Per result of the program its dtype and its shape in the symbols of the plan.

    A size that the values of a call decide is ``?``; a number of Python has no shape.
    """
    sizes = sizes_in_plan(program, plan, names)
    results = program.graph.output_node().args[0]
    specs = zip(program.graph_signature.output_specs, results, strict=True)
    found = []
    for spec, node in specs:
        if spec.kind is not OutputKind.USER_OUTPUT:
            continue
        value = getattr(node, "meta", {}).get("val", node)
        if isinstance(value, torch.Tensor):
            shape = tuple(_in_plan(expression_of(size), sizes) for size in value.shape)
            found.append((str(value.dtype).removeprefix("torch."), shape))
        else:
            is_float = isinstance(value, (float, torch.SymFloat))
            found.append(("float" if is_float else "int", ()))
    return tuple(found)


def _in_plan(size: Any, sizes: Mapping[Any, Any]) -> str:
    """The size in symbols of the plan; ``?`` where it has others."""
    if not isinstance(size, sympy.Basic):
        return str(size)
    is_known = all(symbol in sizes for symbol in size.free_symbols)
    return str(sympy.expand(size.xreplace(dict(sizes)))) if is_known else "?"


def _is_finite(bound: Any) -> bool:
    return isinstance(bound, (int, sympy.Integer)) and int(bound) < 2**31


def axes_of(
    program: torch.export.ExportedProgram, plan: Plan, names: Mapping[Path, str]
) -> dict[Axis, Any]:
    """Per axis a number or an expression in the symbols of torch."""
    values = {
        node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"
    }
    slots = [
        getattr(s.arg, "name", "")
        for s in program.graph_signature.input_specs
        if s.kind == InputKind.USER_INPUT
    ]
    by_name = dict(zip(names.values(), slots, strict=True))
    found: dict[Axis, Any] = {}
    for leaf in plan.inputs:
        value = values.get(by_name[names[leaf.path]])
        if isinstance(value, torch.Tensor):
            found.update(
                {Axis(leaf.path, dim): expression_of(size) for dim, size in enumerate(value.shape)}
            )
        else:
            found[Axis(leaf.path, None)] = expression_of(value)
    return found

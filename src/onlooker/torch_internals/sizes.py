"""Symbolic sizes: where they are made, what they are known to be, and the expressions they are."""

from __future__ import annotations

from typing import Any

import sympy
import torch

from .needed import needed

with needed("symbolic sizes"):
    from torch._dynamo.source import ConstantSource
    from torch._prims_common import is_contiguous_or_false
    from torch.fx.experimental import _config as shape_config
    from torch.fx.experimental import sym_node, symbolic_shapes
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import (
        DimConstraints,
        GuardOnDataDependentSymNode,
        ShapeEnv,
        free_unbacked_symbols,
        statically_known_true,
    )
    from torch.utils._sympy.functions import (
        FloatTrueDiv,
        FloorDiv,
        IntTrueDiv,
        Max,
        Min,
        Mod,
        PythonMod,
        ToFloat,
        simple_floordiv_gcd,
    )
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.printers import PythonPrinter
    from torch.utils._sympy.reference import PythonReferenceAnalysis
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

__all__ = [
    "SIZE_READS",
    "ConstantSource",
    "DimConstraints",
    "FloatTrueDiv",
    "FloorDiv",
    "GuardOnDataDependentSymNode",
    "IntTrueDiv",
    "Max",
    "Min",
    "Mod",
    "PythonMod",
    "PythonPrinter",
    "PythonReferenceAnalysis",
    "ShapeEnv",
    "SymNode",
    "ToFloat",
    "ValueRanges",
    "bound_sympy",
    "expression_of",
    "free_unbacked_symbols",
    "int_oo",
    "is_contiguous_or_false",
    "is_less",
    "shape_config",
    "simple_floordiv_gcd",
    "size_of",
    "statically_known_true",
    "sym_node",
    "symbolic_shapes",
    "sympy_interp",
]

#: functions of torch that tell sizes
SIZE_READS = frozenset(
    {
        torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
        torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.ndimension,
        torch.Tensor.numel,
        torch.Tensor.nelement,
        torch.Tensor.__len__,
        torch.Tensor.stride,
        torch.Tensor.storage_offset,
        torch.Tensor.is_contiguous,
        torch.numel,
        torch.is_same_size,
        torch.Tensor.is_same_size,
    }
)


def size_of(symbol: Any, environment: Any) -> torch.SymInt:
    """The size that a symbol of an environment stands for."""
    node: Any = SymNode(symbol, environment, int, None)
    return torch.SymInt(node)  # type: ignore[no-untyped-call]


def expression_of(size: Any, *, as_made: bool = False) -> Any:
    """The expression of a symbolic size, with what torch has put in the place of its symbols unless it shall
    be ``as_made``; any other one itself.
    """
    if not isinstance(size, torch.SymInt):
        return size
    return size.node._expr if as_made else size.node.expr


def is_less(left: Any, right: Any) -> bool:
    """True where a size is known to be less than another one; ``a // 4`` is taken for at least ``(a - 3) / 4``, and
    for at most ``a / 4``.
    """
    if statically_known_true(left < right):
        return True
    difference = sympy.expand(
        sympy.sympify(expression_of(left)) - sympy.sympify(expression_of(right))
    )
    for quotient in difference.atoms(FloorDiv):
        base, divisor = quotient.args
        factor = difference.coeff(quotient)
        if not (divisor.is_Integer and divisor > 0 and factor.is_Integer):
            return False
        bound = base / divisor if factor > 0 else (base - divisor + 1) / divisor
        difference = sympy.expand(difference - factor * quotient + factor * bound)
    return bool(difference.is_number and difference < 0)

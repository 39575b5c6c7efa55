"""Random values for a leaf, as Python: the right shape, dtype and range, and nothing that was
observed.
"""

from __future__ import annotations

import math

from ..core.expression import Expression
from ..core.plan import LeafPlan
from .code_layout import Piece, bracketed, quoted

__all__ = ["shape_code", "value_code"]

_RANDOM = frozenset({"float16", "bfloat16", "float32", "float64", "complex64", "complex128"})
_INTS = frozenset({"int8", "int16", "int32", "int64", "uint8"})


def shape_code(shape: tuple[Expression, ...]) -> str:
    """A shape as a tuple of Python: ``(batch, past_sequence + sequence)``."""
    inside = ", ".join(map(str, shape))
    return f"({inside},)" if len(shape) == 1 else f"({inside})"


def value_code(leaf: LeafPlan, limits: tuple[float, float] | None) -> Piece:
    """The value of an input: a mask hides nothing, ids stay within those that were seen.

    >>> from onlooker.core.path import Name, Path
    >>> from onlooker.report.code_layout import flat
    >>> two = Expression.constant(2)
    >>> flat(value_code(LeafPlan(Path((Name("input_ids"),)), "torch.int64", "cpu", (two,)), (3, 90)))
    'torch.randint(3, 91, (2,))'
    """
    if leaf.is_float:
        return bracketed(
            "torch.tensor(", [("", _first_finite(leaf)), ("dtype=", "torch.float64")], ")"
        )
    if not leaf.is_tensor:
        return str(leaf.value)
    dtype, items = (
        leaf.dtype.removeprefix("torch."),
        list[tuple[str, Piece]]([("", shape_code(leaf.shape))]),
    )
    device: list[tuple[str, Piece]] = (
        [("device=", quoted(leaf.device))] if leaf.device not in ("", "cpu") else []
    )
    typed: list[tuple[str, Piece]] = [("dtype=", f"torch.{dtype}"), *device]
    shown = _shown(leaf, dtype, limits)
    if shown is not None:
        return bracketed(f"torch.{'ones' if shown else 'zeros'}(", [*items, *typed], ")")
    if dtype in _INTS:
        low, high = (int(limits[0]), int(limits[1])) if limits is not None else (0, 1)
        items = [("", str(low)), ("", str(high + 1)), *items]
        return bracketed("torch.randint(", [*items, *(device if dtype == "int64" else typed)], ")")
    if dtype in _RANDOM:
        return bracketed("torch.randn(", [*items, *(device if dtype == "float32" else typed)], ")")
    return bracketed("torch.zeros(", [*items, *typed], ")")


def _first_finite(leaf: LeafPlan) -> str:
    """A float that a call had."""
    values = [float(spec.value) for spec in leaf.floats if isinstance(spec.value, float)]
    return next((repr(value) for value in values if math.isfinite(value)), "0.5")


def _shown(leaf: LeafPlan, dtype: str, limits: tuple[float, float] | None) -> bool | None:
    """What hides nothing in a mask: True for ones, False for zeros, which are added to scores;
    None for no mask.
    """
    if dtype == "bool":
        return True
    if "mask" not in leaf.path.root:
        return None
    greatest = (
        limits[1] if limits is not None else 1
    )  # a score that all positions get changes nothing
    return bool(greatest) if greatest in (0, 1) else None

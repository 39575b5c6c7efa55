"""Numbers of places as expressions of sizes: those of a triangle, and those of a whole shape.

``torch.triu_indices(n, n)`` takes a number for ``n``, and so does ``x.shape.numel()`` for each size of
the shape. A triangle has ``n * (n + 1) / 2`` places, and which line a place is in is a root:

    place   0  1  2  3  4  5        of the lower triangle of 3 lines
    line    0  1  1  2  2  2        the greatest t with t * (t + 1) / 2 <= place
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from ...model_source.source_tests import expressions_around
from ...torch_internals.sizes import statically_known_true

__all__ = [
    "SizesOfShape",
    "combinations",
    "is_counted",
    "line_of_triangle",
    "tril_indices",
    "triu_indices",
]

#: an int or a SymInt: torch writes ``int`` where it takes both
Size = Any


class SizesOfShape(tuple[Size, ...]):
    """The sizes of a tensor, of which a model asks their product: ``x.shape[1:].numel()``, which
    ``torch.Size`` computes with the numbers of the example.
    """

    def __getitem__(self, key: Any) -> Any:
        return SizesOfShape(super().__getitem__(key))

    def numel(self) -> Size:
        """The product."""
        return math.prod(self)


def is_counted(frame: FrameType | None) -> bool:
    """True where a frame asks for sizes, and for nothing but the product of them or of some in a row."""
    if frame is None or "numel" not in frame.f_code.co_names:
        return False
    sizes, *others = expressions_around(frame.f_code, frame.f_lasti) or (None,)
    if others and isinstance(others[0], ast.Subscript) and isinstance(others[0].slice, ast.Slice):
        sizes, *others = others
    return (
        len(others) > 1
        and isinstance(others[0], ast.Attribute)
        and (others[0].attr, others[0].value) == ("numel", sizes)
        and isinstance(others[1], ast.Call)
    )


def _indices(is_upper: bool) -> Callable[..., Any]:
    """``torch.triu_indices`` or ``torch.tril_indices`` of a square. The lower triangle is counted from its begin,
    where line ``t`` has ``t + 1`` places, and ``t * (t + 1) / 2`` are before it; the upper one from its end.
    """

    def indices(
        row: Size,
        col: Size,
        offset: int = 0,
        *,
        dtype: torch.dtype = torch.int64,
        device: Any = None,
        **others: Any,
    ) -> Any:
        empty = offset if is_upper else -offset
        if empty < 0 or others or not statically_known_true(row == col):
            return NotImplemented
        lines = torch.sym_max(row - empty, 0)  # type: ignore[no-untyped-call]
        count = lines * (lines + 1) // 2
        place = torch.arange(count, device=device)
        if is_upper:
            place = count - 1 - place
        line = line_of_triangle(place)
        column = place - line * (line + 1) // 2
        found = [lines - 1 - line, row - 1 - column] if is_upper else [line + empty, column]
        return torch.stack(found).to(dtype)

    return indices


triu_indices, tril_indices = _indices(True), _indices(False)


def line_of_triangle(place: torch.Tensor) -> torch.Tensor:
    """The greatest ``t`` with ``t * (t + 1) / 2 <= place``. The root is exact: it is a number of float64
    where it is an int, and far from one elsewhere.
    """
    return (((8 * place + 1).to(torch.float64).sqrt() - 1) / 2).floor().to(torch.int64)


def combinations(input: torch.Tensor, r: int = 2, with_replacement: bool = False) -> Any:
    """The pairs of the items of a tensor, at the places of the upper triangle."""
    count = input.shape[0] if input.ndim else 0
    if r != 2 or not isinstance(count, torch.SymInt):
        return NotImplemented
    offset = 0 if with_replacement else 1
    first, second = torch.triu_indices(count, count, offset, device=input.device)
    return torch.stack([input[first], input[second]], 1)

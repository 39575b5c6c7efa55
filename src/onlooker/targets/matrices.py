"""Inverses, determinants and triangular systems of matrices, by operators that every converter has.

``torch.inverse`` of the matrix of a camera, ``(batch, 3, 3)``, is Gauss-Jordan elimination: the rows of
the matrix beside those of the identity, of which each step takes the row with the largest number in its
column. Of few rows the steps stand one after another in the graph; of many, or of a number that changes,
they are a ``scan`` of torch.

Where torch raises an error, as for a matrix that has no inverse, a converted program gives numbers that
are not finite.

Upstream: the table of https://github.com/pytorch/pytorch/tree/v2.13.0/torch/onnx/_internal/exporter/_torchlib.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..torch_internals.tracing import scan_op

__all__ = ["MATRICES", "is_real"]

#: the steps for more rows are a scan
_MOST_ROWS = 16
Tensor = torch.Tensor


def is_real(x: Tensor, *_: Any, **__: Any) -> bool:
    """True for matrices of floats."""
    return x.is_floating_point()


def _by_steps(
    step: Callable[..., list[Tensor]],
    begun: Tensor,
    n: Any,
    *stays: Tensor,
    backwards: bool = False,
) -> list[Tensor]:
    """Runs ``step(state, number, numbers, *stays)`` for the numbers 0 to ``n - 1``, or from the last one on. It
    gives the next state and other results, which come back stacked.
    """
    numbers = torch.arange(n, device=begun.device)
    order = numbers.flip(0) if backwards else numbers
    if type(n) is not int or not 0 < n <= _MOST_ROWS:
        return list(scan_op(step, [begun], [order], (numbers, *stays)))
    state, others = begun, list[list[Tensor]]()
    for number in range(n):
        state, *more = step(state, order.select(0, number), numbers, *stays)
        others.append(more)
    return [state, *(torch.stack(one) for one in zip(*others, strict=True))]


def _at(x: Tensor, dim: int, number: Tensor) -> Tensor:
    """The row or column of a number, with its dimension."""
    return x.index_select(dim, number.reshape(1))


def _eliminate(rows: Tensor, number: Tensor, numbers: Tensor) -> list[Tensor]:
    """One step: the row with the largest number in a column comes to its place, and is taken from the others. Gives
    that number too, and -1 where rows were swapped, else 1.
    """
    column = _at(rows, -1, number)
    size = torch.where((numbers >= number).unsqueeze(-1), column.abs(), -1.0)
    chosen = size.argmax(-2, keepdim=True)
    is_chosen, is_here = numbers.unsqueeze(-1) == chosen, (numbers == number).unsqueeze(-1)
    first = torch.where(is_chosen, rows, 0.0).sum(-2, keepdim=True)
    here = torch.where(is_here, rows, 0.0).sum(-2, keepdim=True)
    pivot = _at(first, -1, number)
    share = first / pivot
    others = torch.where(is_chosen, here, rows)
    rows = torch.where(is_here, share, others - _at(others, -1, number) * share)
    turn = torch.where(chosen == number, 1.0, -1.0).to(rows.dtype)
    return [rows.clone(), pivot.clone(), turn.clone()]


def _solved(matrix: Tensor, right: Tensor) -> Tensor:
    """The columns x of ``matrix @ x = right``."""
    n = matrix.shape[-1]
    batch = (matrix[..., :1, :1] + right[..., :1, :1]).shape[:-2]
    both = (matrix.expand(*batch, n, n), right.expand(*batch, n, right.shape[-1]))
    rows = _by_steps(_eliminate, torch.cat(both, -1), n)[0]
    return rows[..., n:].clone()


def _no_error(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[:-2], dtype=torch.int32, device=x.device)


def _unused(x: Tensor) -> tuple[Tensor, Tensor]:
    """What stands for the factors of a matrix and its pivots, which only derivatives read."""
    return x.clone(), torch.ones(x.shape[:-1], dtype=torch.int32, device=x.device)


def _inverse(x: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return _solved(x, identity), _no_error(x)


def _solution(
    matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, ...]:
    is_vector = right.dim() == matrix.dim() - 1 and right.shape == matrix.shape[:-1]
    columns = right.unsqueeze(-1) if is_vector else right
    if left:
        found = _solved(matrix, columns)
    else:
        found = _solved(matrix.mT, columns.mT).mT
    found = found.squeeze(-1) if is_vector else found
    return found.clone(), *_unused(matrix), _no_error(matrix)


def _determinant(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The determinant, its sign, and the logarithm of its size."""
    results = _by_steps(_eliminate, x.clone(), x.shape[-1])
    pivots, turns = (one.squeeze(-1).squeeze(-1) for one in results[1:])
    factors = turns * pivots
    sign = (turns * pivots.sign()).prod(0)
    size = pivots.abs().log().sum(0)
    return factors.prod(0), sign, size


def _root(x: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Cholesky's: the triangle whose product with itself is the matrix."""

    def step(known: Tensor, number: Tensor, numbers: Tensor, matrix: Tensor) -> list[Tensor]:
        row = _at(known, -2, number)
        column = _at(matrix, -1, number) - (known * row).sum(-1, keepdim=True)
        column = column / _at(column, -2, number).sqrt()
        column = torch.where((numbers >= number).unsqueeze(-1), column, 0.0)
        return [torch.where(numbers == number, column, known).clone()]

    matrix = x.mT if upper else x
    (found,) = _by_steps(step, torch.zeros_like(matrix), x.shape[-1], matrix)
    return (found.mT.clone() if upper else found), _no_error(x)


def _by_substitution(
    matrix: Tensor,
    right: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """The solution of a triangular system, a row after the other."""
    if not left:
        found = _by_substitution(matrix.mT, right.mT, upper=not upper, unitriangular=unitriangular)
        return found.mT.clone()

    def step(
        known: Tensor, number: Tensor, numbers: Tensor, matrix: Tensor, right: Tensor
    ) -> list[Tensor]:
        factors = _at(matrix, -2, number)
        is_known = numbers > number if upper else numbers < number
        row = _at(right, -2, number) - torch.where(is_known, factors, 0.0) @ known
        row = row if unitriangular else row / _at(factors, -1, number)
        return [torch.where((numbers == number).unsqueeze(-1), row, known).clone()]

    batch = (matrix[..., :1, :1] + right[..., :1, :1]).shape[:-2]
    right = right.expand(*batch, *right.shape[-2:])
    (found,) = _by_steps(
        step, torch.zeros_like(right), matrix.shape[-1], matrix, right, backwards=upper
    )
    return found


def _with_triangle(right: Tensor, triangle: Tensor, upper: bool = False) -> Tensor:
    """``cholesky_solve``: the solution of a system whose matrix is the product of a triangle with itself."""
    lower = triangle.mT if upper else triangle
    half = _by_substitution(lower, right, upper=False)
    return _by_substitution(lower.mT, half, upper=True)


def _sign_and_size(x: Tensor) -> tuple[Tensor, Tensor]:
    _, sign, size = _determinant(x)
    return sign, size


def _logarithm(x: Tensor) -> Tensor:
    """``logdet``, which is NaN for a determinant below 0."""
    _, sign, size = _determinant(x)
    return torch.where(sign < 0, torch.nan, size)


#: name of an operator -> the function of other operators that does the same for matrices of floats
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_linalg_det": lambda x: (_determinant(x)[0], *_unused(x)),
    "_linalg_slogdet": lambda x: (*_sign_and_size(x), *_unused(x)),
    "_linalg_solve_ex": _solution,
    "cholesky": lambda x, upper=False: _root(x, upper=upper)[0],
    "cholesky_solve": _with_triangle,
    "det": lambda x: _determinant(x)[0],
    "inverse": lambda x: _inverse(x)[0],
    "linalg_cholesky": lambda x, *, upper=False: _root(x, upper=upper)[0],
    "linalg_cholesky_ex": _root,
    "linalg_det": lambda x: _determinant(x)[0],
    "linalg_inv": lambda x: _inverse(x)[0],
    "linalg_inv_ex": _inverse,
    "linalg_slogdet": _sign_and_size,
    "linalg_solve": lambda x, y, *, left=True: _solution(x, y, left=left)[0],
    "linalg_solve_triangular": _by_substitution,
    "logdet": _logarithm,
    "slogdet": _sign_and_size,
}
#: the same by operator, of those that the installed torch has: later ones have no ``cholesky``
MATRICES: dict[Any, Callable[..., Any]] = {
    getattr(torch.ops.aten, name).default: function
    for name, function in _FUNCTIONS.items()
    if hasattr(torch.ops.aten, name)
}

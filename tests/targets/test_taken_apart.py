"""Operators that converters lack, in their parts: the same numbers as torch, and on each runtime."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from onlooker.targets.taken_apart import TAKEN_APART
from target_models import call, exported, rand

aten = torch.ops.aten
EXTREME = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 2.5, 1e30, 1e-30])
Y, X = torch.meshgrid(EXTREME, EXTREME, indexing="ij")
FLOATS, INTS = rand(3, 5, 4), torch.arange(60).reshape(3, 5, 4) * 7 % 11 - 5
GAPS = FLOATS.where(FLOATS < 0.5, math.nan)
ROWS = rand(3, 6).sort(-1).values
LABELS = torch.tensor([1, 4, 5])
PLACES = torch.arange(15).reshape(3, 5) * 5 % 8
LARGE = torch.tensor([-(2**53) - 1, -(2**31), -7, 0, 7, 2**31, 2**53 + 1])
GAMMA = torch.tensor([0.1, 0.5, 1.0, 1.7, 2.0, 9.3, 250.0, 1e5, math.inf, -0.3, -1.5, -7.2])
#: operator, arguments, options
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "add of masks": (aten.add.Tensor, (INTS > 0, INTS > 2), {}),
    "atan2": (aten.atan2.default, (Y, X), {}),
    "atan2 of ints": (aten.atan2.default, (INTS, INTS.flip(0)), {}),
    "avg_pool2d": (aten.avg_pool2d.default, (rand(2, 3, 7, 6), [3, 2], [2, 1], [1, 1], False, True, 5), {}),
    "amax": (aten.amax.default, (FLOATS,), {}),
    "binary_cross_entropy": (
        aten.binary_cross_entropy_with_logits.default,
        (rand(3, 6) * 100, ROWS.sigmoid(), rand(6).abs(), rand(6).abs(), 1),
        {},
    ),
    "binary_cross_entropy of each": (aten.binary_cross_entropy_with_logits.default, (ROWS, ROWS, None, None, 0), {}),
    "bincount": (aten.bincount.default, (PLACES[0], None, 9), {}),
    "bincount of nothing": (aten.bincount.default, (PLACES[0, :0],), {}),
    "bincount, weighed": (aten.bincount.default, (PLACES[0], rand(5)), {}),
    "bucketize": (aten.bucketize.Tensor, (FLOATS, ROWS[0]), {"out_int32": True}),
    "cdist": (aten._cdist_forward.default, (FLOATS, FLOATS[:, 1:3], math.inf, None), {}),
    "copysign": (aten.copysign.Tensor, (Y, X), {}),
    "copysign of ints": (aten.copysign.Tensor, (INTS, INTS.flip(0)), {}),
    "cross_entropy": (aten.cross_entropy_loss.default, (rand(4, 6, 2), rand(4, 6, 2).softmax(1), ROWS[0].abs()), {}),
    "cross_entropy, smooth": (aten.cross_entropy_loss.default, (rand(6), rand(6).softmax(0), None, 2, -100, 0.1), {}),
    "cross_entropy of labels, smooth": (
        aten.cross_entropy_loss.default,
        (rand(3, 11, 5, 4), INTS.abs(), rand(11).abs(), 1, 3, 0.2),
        {},
    ),
    "cross_entropy of each label, smooth": (aten.cross_entropy_loss.default, (rand(3, 6), LABELS, None, 0, 4, 0.1), {}),
    "cummax": (aten.cummax.default, (INTS, 1), {}),
    "cummin": (aten.cummin.default, (FLOATS, -1), {}),
    "cumprod": (aten.cumprod.default, (FLOATS, 0), {}),
    "cumprod of ints": (aten.cumprod.default, (INTS.int(), 2), {"dtype": torch.float64}),
    "digamma": (aten.digamma.default, (GAMMA,), {}),
    "div, rounded": (aten.div.Tensor_mode, (LARGE, -3), {"rounding_mode": "trunc"}),
    "div, rounded down": (aten.div.Tensor_mode, (LARGE, LARGE.flip(0) * 2 + 1), {"rounding_mode": "floor"}),
    "div of bytes, rounded": (aten.div.Tensor_mode, (LARGE.to(torch.int8) - 121, 3), {"rounding_mode": "trunc"}),
    "einsum": (
        aten.einsum.default,
        ("ij,jk,k->i", [rand(3, 2) * 1j, torch.complex(rand(2, 3), rand(3, 2).T), rand(3) + 2j]),
        {},
    ),
    "fmax": (aten.fmax.default, (GAPS, FLOATS.flip(0)), {}),
    "fmin": (aten.fmin.default, (GAPS, GAPS.flip(0)), {}),
    "hypot": (aten.hypot.default, (Y, X), {}),
    "index by a mask": (aten.index.Tensor, (FLOATS, [None, FLOATS[0] > 0]), {}),
    "index by a mask and ints": (aten.index.Tensor, (FLOATS, [LABELS[:1] - 1, FLOATS[0, :, 0] > 0]), {}),
    "index_put by a mask": (aten.index_put.default, (FLOATS, [FLOATS > 0], torch.tensor(0.5)), {}),
    "index_put by a mask of rows": (aten.index_put.default, (FLOATS, [None, FLOATS[0, :, 0] > 0], FLOATS[0, :1]), {}),
    "index_put by a mask of two axes": (
        aten.index_put.default,
        (FLOATS, [None, FLOATS[0] > 0], rand(FLOATS.shape[0], 1), True),
        {},
    ),
    "index_put by a mask of other values": (
        aten.index_put.default,
        (FLOATS, [None, FLOATS[0, :, 0] > 0], rand(int((FLOATS[0, :, 0] > 0).sum()), 1)),
        {},
    ),
    "index_reduce": (aten.index_reduce.default, (FLOATS, 1, PLACES[0, :3] % 5, FLOATS[:, :3], "prod"), {}),
    "isin": (aten.isin.Tensor_Tensor, (INTS, LABELS[:2]), {"invert": True}),
    "kthvalue": (aten.kthvalue.default, (FLOATS, 2, 1, True), {}),
    "lgamma": (aten.lgamma.default, (GAMMA,), {}),
    "log_sigmoid": (aten.log_sigmoid.default, (EXTREME * 100,), {}),
    "logaddexp": (aten.logaddexp.default, (Y, X), {}),
    "logcumsumexp": (aten.logcumsumexp.default, (FLOATS, 1), {}),
    "masked_select": (aten.masked_select.default, (FLOATS, FLOATS[0] > 0), {}),
    "median": (aten.median.default, (FLOATS,), {}),
    "median of an axis": (aten.median.dim, (FLOATS, 1), {}),
    "nanmedian": (aten.nanmedian.default, (GAPS,), {}),
    "nanmedian of an axis": (aten.nanmedian.dim, (GAPS, 1, True), {}),
    "mul by a complex number": (aten.mul.Tensor, (FLOATS, 2 - 1j), {}),
    "mul of complex numbers by one": (aten.mul.Scalar, (torch.complex(FLOATS, FLOATS.flip(0)), 1j), {}),
    "pdist": (aten.pdist.default, (FLOATS[0], 1.5), {}),
    "put": (aten.put.default, (FLOATS, PLACES[:2], rand(2, 5), True), {}),
    "scatter, added": (aten.scatter.reduce, (rand(3, 8), 1, PLACES, rand(3, 5)), {"reduce": "add"}),
    "scatter, multiplied": (aten.scatter.reduce, (rand(3, 8), 1, PLACES, rand(3, 9)), {"reduce": "multiply"}),
    "scatter_reduce": (aten.scatter_reduce.two, (rand(3, 8), 1, PLACES, rand(3, 5), "mean"), {"include_self": False}),
    "scatter_reduce of ints": (aten.scatter_reduce.two, (PLACES.repeat(1, 2), 1, PLACES, PLACES, "mean"), {}),
    "searchsorted": (aten.searchsorted.Tensor, (ROWS, FLOATS[0, :3]), {"right": True, "out_int32": True}),
    "sign of ints": (aten.sign.default, (LARGE,), {}),
    "signbit": (aten.signbit.default, (EXTREME,), {}),
    "unique": (aten._unique2.default, (INTS, True, True, True), {}),
    "unique_consecutive": (aten.unique_consecutive.default, (INTS // 4, True, True), {}),
    "unique_consecutive of nothing": (aten.unique_consecutive.default, (INTS[:0], True, True), {}),
}


def of_matrices(n: int) -> dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Operators of matrices of ``n`` rows, with their arguments and options."""
    x, y = rand(2, n, n), rand(2, n, 3)
    root = torch.linalg.cholesky(x @ x.mT + torch.eye(n))
    return {
        "an inverse": (aten.inverse.default, (x[0],), {}),
        "inverses": (aten.linalg_inv_ex.default, (x,), {}),
        "a determinant": (aten.linalg_det.default, (x,), {}),
        "a logarithm of it": (aten.logdet.default, (x,), {}),
        "its sign and size": (aten.slogdet.default, (x,), {}),
        "a system": (aten.linalg_solve.default, (x, y), {}),
        "a system of vectors": (aten.linalg_solve.default, (x, y[..., 0]), {}),
        "a system from the right": (aten.linalg_solve.default, (x, y.mT.contiguous()), {"left": False}),
        "a system for all": (aten.linalg_solve.default, (x, y[0]), {}),
        "a root": (aten.linalg_cholesky_ex.default, (root @ root.mT,), {}),
        "an upper root": (aten.linalg_cholesky.default, (root @ root.mT,), {"upper": True}),
        "a triangle": (aten.linalg_solve_triangular.default, (root, y), {"upper": False}),
        "an upper triangle": (aten.linalg_solve_triangular.default, (root.mT.contiguous(), y), {"upper": True}),
        "from the right": (
            aten.linalg_solve_triangular.default,
            (root, y.mT.contiguous()),
            {"upper": False, "left": False, "unitriangular": True},
        ),
        "with a root": (aten.cholesky_solve.default, (y, root), {}),
    }


@pytest.mark.parametrize("n", [1, 3, 20])
def test_matrices_give_what_torch_gives(n: int) -> None:
    for name, (operator, args, options) in of_matrices(n).items():
        got, wanted = TAKEN_APART[operator](*args, **options), operator(*args, **options)
        torch.testing.assert_close(
            got, wanted, rtol=1e-2, atol=1e-3, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


class EachRepeated(torch.nn.Module):
    """Each row as often as a size says: of a text, for the frames of a video."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.repeat_interleave(x.shape[1], dim=0, output_size=x.shape[0] * x.shape[1])
        return rows, x.repeat_interleave(x.shape[0], dim=-1), x[0].repeat_interleave(x.shape[0])


def test_what_is_repeated_by_a_size_is_so_in_a_runtime() -> None:
    pytest.importorskip("onnxruntime")
    model = EachRepeated()
    program = exported(model, [call(rand(2, 5, 3)), call(rand(4, 7, 3))]).to("onnx")

    assert program.verify().verified
    x = rand(3, 6, 3)
    torch.testing.assert_close(program(x), model(x))


class Cameras(torch.nn.Module):
    """Rays of points, by the inverses of matrices."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inverses = torch.linalg.inv(x + 3 * torch.eye(3))
        moved = x @ x.mT + torch.eye(3)
        return inverses @ torch.ones(3, 5), torch.linalg.cholesky(moved), torch.linalg.det(moved)


class AnySize(torch.nn.Module):
    """Systems of as many equations as the argument has rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = x @ x.mT + torch.eye(x.shape[-1])
        return torch.linalg.solve(moved, moved.softmax(-1))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize("kind", [pytest.param(Cameras, marks=pytest.mark.slow), AnySize])
def test_matrices_are_inverted_by_a_runtime(kind: type[torch.nn.Module], target: str) -> None:
    pytest.importorskip("onnxruntime" if target == "onnx" else "openvino")
    calls = [call(rand(batch, 3, 3)) for batch in (2, 4)]
    model = kind()
    program = exported(model, calls).to(target)
    for batch in (2, 3, 7):
        x = rand(batch, 3, 3)
        torch.testing.assert_close(program(x), model(x), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_parts_give_what_the_operator_gives(name: str) -> None:
    operator, args, options = CASES[name]
    got, wanted = TAKEN_APART[operator](*args, **options), operator(*args, **options)
    if name == "nanmedian of an axis":  # the place of a row without numbers may be any
        got, wanted = got[0].nan_to_num(posinf=math.nan, nan=0), wanted[0].nan_to_num(0)
    torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("operator", "args"),
    [(aten.cummax.default, (torch.ones(()), 0)), (aten.amax.default, (rand(3, 2), [1]))],
    ids=["no axis", "an axis"],
)
def test_what_converters_have_is_left_to_them(operator: Any, args: tuple[Any, ...]) -> None:
    assert TAKEN_APART[operator](*args) is NotImplemented


class Lacking(torch.nn.Module):
    """Operators that ONNX Runtime or OpenVINO lacks, or computes otherwise."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        return {
            "running": (x.cummax(1), x.cumprod(1), x.logcumsumexp(0)),
            "middle": (x.median(), x.median(1).values, x.kthvalue(2, 0).values),
            "angle": (torch.atan2(x, x.flip(0)), torch.hypot(x, x.flip(0)), x.copysign(x.flip(1)), x.signbit()),
            "found": (torch.unique(i, return_counts=True), torch.unique_consecutive(i, return_inverse=True)),
            "counts": torch.bincount(i.flatten(), minlength=9),
            "chosen": x.masked_select(x > 0),
            "means": x.new_ones(x.shape[0], 8).scatter_reduce(1, i, x, "mean", include_self=False),
            "distances": (torch.cdist(x, x.flip(0), p=1.0), torch.cdist(x, x.flip(0), p=3.0)),
            "ends": (x.amax(), x.amin()),
            "buckets": torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5])),
            "rows": x.index_reduce(0, i[:, 0] % 5, x, "amin"),
            "sums": torch.nn.functional.avg_pool2d(x[None, None], 2, divisor_override=1),
            "loss": torch.nn.functional.cross_entropy(x, x.softmax(1)),
            "scores": (torch.nn.functional.logsigmoid(x * 300), torch.logaddexp(x * 300, x)),
            "marked": (torch.isin(i, torch.tensor([1, 5])), (x > 0) + (x < -1)),
            "places": torch.div(i + 17_000_003, 3, rounding_mode="trunc"),
            "parts": torch.tensor_split(x, 3),
            "waves": torch.view_as_real(x.exp() * (x.cos() + 1j * x.sin())),
        }


# torch says so once in a process, at whichever test is the first one
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_runtime_computes_the_parts_at_any_size(target: str) -> None:
    pytest.importorskip("onnxruntime" if target == "onnx" else "openvino")
    calls = [call(rand(n, 4), torch.arange(4 * n).reshape(n, 4) * 5 % 8) for n in (5, 7)]
    program = exported(Lacking(), calls).to(target)
    assert program.verify().verified, program.report


class Chosen(torch.nn.Module):
    """Reads and writes by masks and places that are not for the first axis."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        first, both, rows, places, sums, last = (x.clone() for _ in range(6))
        is_chosen = x[0, :, 0] > 0
        first[:, is_chosen] = float("-inf")
        both[:, x[0] > 0] = x[:, 0, :1]
        rows[:, is_chosen] = rows[:, is_chosen] * 2
        places[:, i, 1:3] = x[:, :1, 1:3] * 2
        sums[i[:1] * 0, :, i[:1]] += 1
        last[..., [1, 3]] = x[..., [0, 2]]
        return first, both, rows, places, sums, last, x[:, is_chosen], x[:, x[0] > 0], x[..., i[:1], i[:1]]


@pytest.mark.parametrize("target", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_a_runtime_reads_and_writes_by_masks_and_places(target: str) -> None:
    pytest.importorskip("onnxruntime" if target == "onnx" else "openvino")
    model = Chosen()
    calls = [call(rand(b, n, 4), torch.arange(k)) for b, n, k in ((2, 5, 2), (3, 7, 3))]
    program = exported(model, calls).to(target)
    assert program.verify().verified, program.report
    x, places = rand(4, 9, 4), torch.tensor([-1, 2, 0, 3])
    torch.testing.assert_close(program(x, places), model(x, places))


class Normed(torch.nn.Module):
    """A norm in training, which writes to statistics of the caller."""

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        x, mean, spread = given
        return torch.nn.functional.batch_norm(x, mean, spread, training=True)


@pytest.mark.parametrize("target", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_batch_is_normed_by_its_own_numbers_in_training(target: str) -> None:
    """torch's converter to ONNX takes the numbers that were kept, and torch counts no write to them."""
    pytest.importorskip("onnxruntime" if target == "onnx" else "openvino")
    calls = [call(rand(n, 4), torch.zeros(4), torch.ones(4)) for n in (5, 7)]
    program = exported(Normed(), calls).to(target)
    assert program.verify().verified, program.report
    x, given, known = rand(9, 4), (torch.zeros(4), torch.ones(4)), (torch.zeros(4), torch.ones(4))
    torch.testing.assert_close(program(x, *given), Normed()(x, *known))
    torch.testing.assert_close(given, known)


class Diagonals(torch.nn.Module):
    """Diagonals that are written in place: filled, multiplied, and copied to beside the middle one."""

    def forward(self, x: torch.Tensor) -> Any:
        square = x @ x.T
        square.diagonal().fill_(0)
        planes = x[:, None] * x[:, :, None]
        planes.diagonal(1, -2, -1).mul_(2)
        planes.diagonal(-1, 1, 2).copy_(x[:, 1:])
        wide = x * 2
        wide.fill_diagonal_(1.0)
        return square, planes, wide


@pytest.mark.parametrize("target", ["onnx", "openvino"])
def test_diagonals_are_written(target: str) -> None:
    program = exported(Diagonals(), [call(rand(*shape)) for shape in ((3, 5), (4, 6))]).to(target)
    assert program.verify().verified, program.report
    x = rand(7, 4)
    torch.testing.assert_close(program(x), Diagonals()(x))

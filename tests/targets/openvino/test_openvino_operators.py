"""Operators of a graph as those that OpenVINO knows: they compute what they computed before."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from onlooker.verify.ties import lower_index_first
from target_models import Attention, call, exported, masked_calls, rand

pytest.importorskip("openvino")


class Sizes(torch.nn.Module):
    """Every operator on sizes that a graph may have."""

    def forward(self, x: torch.Tensor) -> Any:
        n, m = x.shape
        return {
            "largest": x.new_zeros((max(n, m), min(n, m))),
            "least": torch.sym_min(n, 5),
            "rest": x.new_zeros((n % 4 + 1, -m % 3 + 1)),
            "ceil": math.ceil(n / 4),
            "floor": math.floor(m / 3),
            "whole": math.trunc(m / 3),
            "quotient": x.sum() * (n / m),
            "sum": torch.sym_sum([n, m, 3]),
            "part": x.reshape(-1)[: (n * m + 7) // 8],
        }


class Joined(torch.nn.Module):
    """An empty list is joined to a tensor of another rank, as caches of transformers begin."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.tensor([]), x, x + 1], dim=-2)


@pytest.mark.parametrize("model", [Sizes(), Joined()], ids=["sizes", "joined"])
def test_a_model_gives_the_same_for_sizes_never_seen(model: torch.nn.Module) -> None:
    program = exported(model, [call(rand(4, 6)), call(rand(5, 12)), call(rand(7, 9)), call(rand(9, 3))]).to("openvino")
    assert program.verify().verified, program.report


class Unread(torch.nn.Module):
    """Nothing is computed of the inputs, or of some of them."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return y, x[None] if self.reads else torch.ones(2), z


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.slow
def test_inputs_that_nothing_reads_stay_inputs(reads: bool) -> None:
    calls = [call(rand(n, 2), rand(m), rand(m, n)) for n, m in ((3, 4), (5, 2))]
    program = exported(Unread(reads), calls).to("openvino")
    assert program.verify().verified, program.report


class Products(torch.nn.Module):
    """Products whose parts may have any size, 1 among them."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        z = x[:, :, None] @ y[:, None]
        return z, torch.einsum("bij, bkj", x, y), torch.einsum("bij,bkj->bik", x, y)


def test_a_product_is_right_where_a_size_is_one() -> None:
    calls = [call(rand(b, 1, 4), rand(b, 4, 4)) for b in (2, 3)] + [call(rand(b, 3, 4), rand(b, 4, 4)) for b in (2, 5)]
    program = exported(Products(), calls).to("openvino")
    assert program.verify().verified, program.report


@pytest.mark.parametrize("kind", [pytest.param("bool", marks=pytest.mark.slow), "minus infinity"])
def test_a_query_that_may_look_at_nothing_gives_zeros_as_in_torch(kind: str) -> None:
    program = exported(Attention(kind), masked_calls()).to("openvino")
    assert program.verify().verified, program.report


class Missing(torch.nn.Module):
    """Operators that the front end of OpenVINO lacks, or knows with some arguments only."""

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
        return {
            "trunc": (x.trunc(), x.frac()),
            "round": x.round(decimals=1),
            "product": torch.addmv(x[:, 0], x, x[0], beta=0.5, alpha=2),
            "power": x.exp2(),
            "shifts": (i << 2, i >> 1, torch.bitwise_left_shift(i, 1), torch.bitwise_right_shift(i, 2)),
            "bits": i ^ 5,
            "quotients": (torch.div(i, 3, rounding_mode="trunc"), torch.div(x, x - x[0], rounding_mode="trunc")),
            "diagonals": (x.diagonal(), x[None].diagonal(-1, 2, 1), x.trace()),
            "is infinite": ((x.exp() * 1e38).isinf(), (x / x.relu()).isfinite()),
            "size of complex numbers": torch.complex(x, x.flip(0)).abs(),
            "fewer rows": x.gather(1, i.T % 5),
            "products": (
                torch.einsum("...i,...j->...ij", x[None, None], x[None, None]),
                torch.einsum("ij,ik,i->jk", x, x, x[:, 0]),
            ),
            "rows": (
                x.index_add(0, i[0] % 2, x[: i.shape[1]], alpha=2),
                x.norm(),
                torch.linalg.cross(x[:, :3], x[:, 3:6]),
            ),
            "scattered": [
                x.new_ones(2, 9).scatter_reduce(1, i % 9, x[: i.shape[1]].T[:2], kind, include_self=own)
                for kind in ("sum", "prod", "mean", "amax", "amin")
                for own in (True, False)
            ],
            "spread": (x.var(1, correction=2), x.std(0, correction=2, keepdim=True), x.std(correction=3), x.std(1)),
        }


@pytest.mark.slow
def test_operators_that_openvino_lacks_are_taken_apart() -> None:
    calls = [call(rand(n, m), torch.arange(-n, n).reshape(2, n)) for n, m in ((5, 6), (7, 9))]
    program = exported(Missing(), calls).to("openvino")
    assert program.verify().verified, program.report


class NoRows(torch.nn.Module):
    """Has tables without rows, which OpenVINO writes in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.floats, self.ints = rand(0, 4), torch.zeros(0, 4, dtype=torch.int64)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cat([self.floats, x * 2]), torch.cat([self.ints, (x > 0).long()]), x.new_zeros(0)


def test_a_table_without_rows_is_written() -> None:
    assert exported(NoRows(), [call(rand(n, 4)) for n in (2, 3)]).to("openvino").verify().verified


class Spectra(torch.nn.Module):
    """Complex numbers between real inputs and results."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        window = torch.hann_window(8)
        frames = torch.stft(x, 8, hop_length=4, return_complex=True, window=window)
        pairs, both = torch.complex(x, y), torch.fft.fft2(y.to(torch.complex64))
        return {
            "spectrum": frames.abs(),
            "back": torch.istft(frames, 8, hop_length=4, window=window),
            "filtered": torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * 2, n=x.shape[1], norm="ortho"),
            "images": (torch.fft.ifft2(both).real, torch.fft.rfft2(x).abs(), torch.fft.irfft2(torch.fft.rfft2(x))),
            "parts": (pairs.angle(), (pairs * pairs.conj()).real, torch.view_as_real(pairs.unsqueeze(-1))),
            "sums": torch.view_as_real(pairs[:, 1:].sum(-1) + torch.polar(y.abs(), x)[:, 0]),
        }


@pytest.mark.slow
def test_complex_numbers_are_pairs_and_transforms_are_products() -> None:
    calls = [call(rand(n, m), rand(n, m) + 1) for n, m in ((2, 32), (3, 40))]
    program = exported(Spectra(), calls).to("openvino")
    assert program.verify().verified, program.report


class Bytes(torch.nn.Module):
    """Numbers of 8 bits, which go round beyond their greatest one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + 10, 3 - x, x * 2, x - x.flip(0), -x, (y + y, y - 100, y * y, y.abs()), x + y, x * 0.5


@pytest.mark.slow
def test_ints_of_8_bits_go_round_as_in_torch() -> None:
    model = Bytes()
    calls = [call(*(torch.ones(n, 4, dtype=dtype) for dtype in (torch.uint8, torch.int8))) for n in (2, 3)]
    program = exported(model, calls).to("openvino")
    assert program.verify().verified, program.report
    x = torch.tensor([[250, 255, 0, 127], [246, 1, 128, 3]], dtype=torch.uint8)
    torch.testing.assert_close(program(x, x.view(torch.int8)), model(x, x.view(torch.int8)))


class LastOnes(torch.nn.Module):
    """The last row of each sentence; a length of 0 gives the last row of all, as -1 does."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        rows = torch.arange(len(x))
        return x[rows, lengths - 1], x.index_put((rows, lengths - 1), torch.tensor(0.0))


def test_an_index_below_0_counts_from_the_end_of_its_own_axis() -> None:
    model = LastOnes()
    program = exported(model, [call(rand(n, 4, 3), torch.arange(n) + 1) for n in (2, 3)]).to("openvino")
    assert program.verify().verified, program.report
    x, lengths = rand(3, 4, 3), torch.tensor([0, 4, -2])
    torch.testing.assert_close(program(x, lengths), model(x, lengths))


class Sorted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return *x.sort(-1), *x.sort(0, True), x.argsort(descending=True)


def test_equal_elements_stay_in_their_order() -> None:
    model = Sorted()
    program = exported(model, [call(rand(n, 20)) for n in (2, 3)]).to("openvino")
    assert program.verify().verified, program.report
    x = (torch.arange(80) * 7 % 4).reshape(4, 20).float()
    with lower_index_first():
        wanted = model(x)
    torch.testing.assert_close(program(x), wanted)

"""Models that the plugin of OpenVINO for processors computes wrongly, written so that it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onlooker
from target_models import call, exported, rand

pytest.importorskip("openvino")


class BothWays(nn.Module):
    """Products with a square matrix, and with its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        return x @ self.weight, nn.functional.linear(x, self.weight)


class Batched(BothWays):
    """A matrix for each part of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        x = x[0].expand(3, -1, -1)
        return x @ self.weight, x @ self.weight.mT


class Viewed(BothWays):
    """A matrix, and the same numbers in rows of another length."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.cat([x, x + 1], -1)
        return y @ self.weight.reshape(16, 8), nn.functional.linear(y, self.weight)


class Kernel(BothWays):
    """A kernel that a convolution has, and the transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, 3, 3))

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.cat([x, x + 1], -1).mT[..., None].expand(-1, -1, -1, 4)
        return nn.functional.conv2d(x, self.weight), nn.functional.conv_transpose2d(x, self.weight)


@pytest.mark.parametrize("build", [BothWays, Batched, Viewed, Kernel])
@pytest.mark.one_in(2)
def test_a_weight_that_is_read_in_two_layouts(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    program = exported(build().eval(), [call(rand(2, 5, 8)), call(rand(3, 7, 8))]).to("openvino")
    assert program.verify().verified, program.report


class Gated(nn.Module):
    """Attention by its three operators, and a factor for each of its rows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        x = self.layer(x).tanh()
        return ((x @ x.mT).softmax(-1) @ x) * gate[..., None]


class Masked(Gated):
    """Attention with a mask: a row that sees nothing is zeros, which is decided for each row."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        mask = (gate[:, None] < gate[..., None])[:, None]
        x = self.layer(x).tanh()[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, mask)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("build", [Gated, Masked])
@pytest.mark.parametrize("size", [64, 128, 192])
def test_attention_with_a_number_for_each_row(build: Callable[[int], nn.Module], size: int) -> None:
    torch.manual_seed(0)
    calls = [call(rand(b, n, size), rand(b, n)) for b, n in ((2, 5), (3, 17))]
    program = exported(build(size), calls).to("openvino")
    assert program.verify().verified, program.report


@pytest.mark.parametrize("precision", [None, "fp16", "int8"])
def test_a_weight_in_two_layouts_is_saved(precision: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = BothWays().eval()
    program = exported(model, [call(rand(5, 8)), call(rand(7, 8))]).to("openvino", precision=precision)
    assert program.verify().verified, program.report
    program.save(tmp_path)
    x = rand(4, 8)
    for given, wanted in zip(onlooker.load(tmp_path)(x), model(x), strict=True):
        torch.testing.assert_close(given, wanted, atol=0.2 if precision else 1e-5, rtol=1e-5)


class Quotients(nn.Module):
    """Ints that are divided and rounded down, and sizes that are rounded up."""

    def forward(self, i: torch.Tensor) -> Any:
        windows = -(-i.shape[1] // 4)
        divisor = i.flip(0).abs() + 1
        return i // 3, i // -3, i.int() // divisor, torch.div(i, -divisor, rounding_mode="floor"), i.new_ones(windows)


def test_a_quotient_of_ints_is_rounded_down() -> None:
    calls = [call(torch.arange(-n, n).reshape(2, n)) for n in (6, 9)]
    program = exported(Quotients(), calls).to("openvino")
    assert program.verify().verified, program.report


class Hashed(nn.Module):
    """Ints of more digits than a float has."""

    def forward(self, i: torch.Tensor) -> Any:
        return i // 1000, i % 100, (i * 31 + 7) % -1000, i.int() // (i.flip(0).abs().int() + 1)


@pytest.mark.slow
def test_a_quotient_of_ints_has_all_digits() -> None:
    model, generator = Hashed(), torch.Generator().manual_seed(0)
    ints = torch.randint(-(2**26), 2**26, (4, 30), generator=generator)
    program = exported(model, [call(ints[:2]), call(ints[:, :9])]).to("openvino")
    assert program.verify().verified, program.report
    torch.testing.assert_close(program(ints), model(ints))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_floats_that_are_converted_there_and_back_alone_are_refused(dtype: torch.dtype) -> None:
    """The plugin writes beyond the memory of the result, and the process ends."""

    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.to(dtype).float(), x + 1

    model, observer = Rounded(), onlooker.InputObserver()
    with observer(model):
        for rows in (2, 3):
            model(torch.randn(rows, 4))
    with pytest.raises(onlooker.ExportError, match="conversions to other floats alone"):
        observer.export(to="openvino")

"""Layers of checkpoints that are quantised already, by the formulas of their formats, with random weights.

Each keeps ``matrix``, the floats ``(inputs, outputs)`` that its integers stand for, computed without packing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["BytesPerOutput", "HalvesByOutput", "WordsByInput", "WordsByOutput"]


def packed(numbers: torch.Tensor, bits: int, order: Sequence[int] | None = None) -> torch.Tensor:
    """Integers along the last axis, as many in an int32 as fit, the first one in the lowest bits."""
    count = 32 // bits
    groups = numbers.long().unflatten(-1, (-1, count))[..., list(order or range(count))]
    words = (groups << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def drawn_scales(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) * 0.02 + 0.01


class WordsByInput(torch.nn.Module):
    """GPTQ: words along the inputs, zero points one too low, and the block of each input by number."""

    def __init__(self, inputs: int, outputs: int, bits: int = 4, block: int = 32, ordered: bool = True) -> None:
        super().__init__()
        self.most, self.block = 2**bits - 1, block
        integers = torch.randint(0, self.most + 1, (inputs, outputs))
        zeros = torch.randint(1, self.most, (inputs // block, outputs))
        places = torch.arange(inputs) // block
        places = places if ordered else places[torch.randperm(inputs)]
        scales = drawn_scales(inputs // block, outputs)
        self.register_buffer("qweight", packed(integers.t(), bits).t().contiguous())
        self.register_buffer("qzeros", packed(zeros - 1, bits))
        self.register_buffer("scales", scales)
        self.register_buffer("g_idx", places.int())
        self.register_buffer("shifts", torch.arange(0, 32, bits).int(), persistent=False)
        self.bias = torch.nn.Parameter(torch.randn(outputs))
        self.matrix = scales[places] * (integers - zeros[places])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        zeros = (self.qzeros[:, :, None] >> self.shifts).to(torch.int16)
        zeros = ((zeros & self.most) + 1).reshape(self.scales.shape)
        weight = torch.bitwise_right_shift(self.qweight[:, None, :], self.shifts[:, None]).to(torch.int16)
        weight = torch.bitwise_and(weight, self.most).reshape(-1, self.scales.shape[1])
        places = self.g_idx.long()
        matrix = (self.scales[places] * (weight - zeros[places])).to(x.dtype)
        rows = torch.matmul(x.reshape(-1, x.shape[-1]), matrix)
        return rows.reshape(*x.shape[:-1], -1) + self.bias.to(x.dtype)


class WordsByOutput(torch.nn.Module):
    """AWQ: words along the outputs, in an order of its own."""

    order, inverse = [0, 2, 4, 6, 1, 3, 5, 7], [0, 4, 1, 5, 2, 6, 3, 7]

    def __init__(self, inputs: int, outputs: int, block: int = 32) -> None:
        super().__init__()
        self.block = block
        integers = torch.randint(0, 16, (inputs, outputs))
        zeros = torch.randint(0, 16, (inputs // block, outputs))
        scales = drawn_scales(inputs // block, outputs)
        self.register_buffer("qweight", packed(integers, 4, self.order))
        self.register_buffer("qzeros", packed(zeros, 4, self.order))
        self.register_buffer("scales", scales)
        blocks = torch.arange(inputs) // block
        self.matrix = (integers - zeros[blocks]) * scales[blocks]

    def unpacked(self, words: torch.Tensor) -> torch.Tensor:
        numbers = (words[:, :, None] >> torch.arange(0, 32, 4)).to(torch.int8).flatten(1)
        places = torch.arange(numbers.shape[1]).view(-1, 8)[:, self.inverse].flatten()
        return numbers[:, places] & 15

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers, zeros = self.unpacked(self.qweight), self.unpacked(self.qzeros)
        scales, zeros = (one.repeat_interleave(self.block, dim=0) for one in (self.scales, zeros))
        return torch.matmul(x, ((numbers - zeros) * scales).to(x.dtype))


class HalvesByOutput(torch.nn.Module):
    """compressed-tensors, ``pack-quantized``: a row of words for each output, written in place."""

    def __init__(self, inputs: int, outputs: int, block: int = 32) -> None:
        super().__init__()
        self.inputs, self.block = inputs, block
        integers = torch.randint(0, 16, (outputs, inputs))
        self.register_buffer("weight_packed", packed(integers, 4))
        self.weight_scale = torch.nn.Parameter(drawn_scales(outputs, inputs // block), requires_grad=False)
        self.matrix = ((integers - 8) * self.weight_scale.repeat_interleave(block, dim=1)).t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.zeros((len(self.weight_packed), self.weight_packed.shape[1] * 8), dtype=torch.int32)
        for place in range(8):
            numbers[:, place::8] = (self.weight_packed >> (4 * place)) & 15
        signed = (numbers[:, : self.inputs] - 8).to(torch.int8).unflatten(-1, (-1, self.block))
        matrix = signed.to(self.weight_scale.dtype) * self.weight_scale.unsqueeze(-1)
        return torch.nn.functional.linear(x, matrix.flatten(-2))


class BytesPerOutput(torch.nn.Module):
    """compressed-tensors, ``int-quantized``: a byte for each number, a scale for each output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        weight = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.weight_scale = torch.nn.Parameter(drawn_scales(outputs, 1) / 16, requires_grad=False)
        self.bias = torch.nn.Parameter(torch.randn(outputs))
        self.matrix = (weight * self.weight_scale).t()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.weight.to(x.dtype) * self.weight_scale, self.bias)

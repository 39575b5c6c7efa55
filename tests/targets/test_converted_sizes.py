"""Operators whose conversions keep a size of the example, or take one form of what torch takes: a converted
program gives what its model gives at sizes that nobody watched."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from onlooker import InputObserver, RejectedCallError

Calls = list[tuple[Any, ...]]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def below(high: int, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, high, (count,), generator=torch.Generator().manual_seed(seed + count)).int()


def lower(size: int) -> torch.Tensor:
    return torch.ones(size, size).tril().bool()


def images(*shapes: tuple[int, ...]) -> Calls:
    return [(rand(*shape),) for shape in shapes]


def attention(x: torch.Tensor, **options: Any) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x + 1, x - 1, **options)


def shared_heads(x: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(x, x[:, :1], x[:, -1:], is_causal=True)


def of_sizes(x: torch.Tensor) -> list[torch.Tensor]:
    length = x.shape[1]
    places = (x * 9).long()
    shifted = [torch.roll(x, length // 2, 1), torch.roll(x, (-length, 1), (0, -1))]
    powers = [x.abs() ** length, places.clamp(0, 1) ** length, length ** places.clamp(0, 2), length**x]
    return [*shifted, *powers, places % length, x % length, x * length**-0.5]


DOWN, UP = rand(4, 3, 3, 3), rand(4, 3, 3, 3) + 1


def to_its_size(x: torch.Tensor) -> torch.Tensor:
    """Every second row and column, and all of them again: at their ends are as many as an odd side wants."""
    small = functional.conv2d(x, DOWN, stride=2, padding=1)
    added = [one - (2 * part - 1) for one, part in zip(x.shape[2:], small.shape[2:], strict=True)]
    return functional.conv_transpose2d(small, UP, None, 2, 1, added)


def rows_to_their_size(x: torch.Tensor) -> torch.Tensor:
    small = functional.conv1d(x, DOWN[..., 0], stride=4)
    return functional.conv_transpose1d(small, UP[..., 1], UP[0, :, 2, 2], 4, 0, x.shape[2] - 4 * small.shape[2] + 1)


def positions(x: torch.Tensor) -> torch.Tensor:
    """Relative positions, from the furthest on the right to the furthest on the left."""
    length = x.shape[1]
    places = torch.arange(length - 1, -length, -1.0)
    table = torch.zeros(2 * length - 1, 4)
    table[:, 0::2] = torch.sin(places[:, None])
    return x.sum() + table


def speech(wave: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(64)
    frames = torch.stft(wave, 64, 16, window=window, return_complex=True)
    return torch.istft(frames * 0.5, 64, 16, window=window, length=wave.shape[-1])


def written(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    table = torch.zeros_like(x)
    table[rows] = x[columns]
    return x[rows, columns], table


def shares(x: torch.Tensor) -> tuple[Any, ...]:
    """Parts of a row: 50 times 0.58 is less than 29 in Python, and 29 in floats of 32 bits."""
    length = x.shape[1]
    return x[:, : int(length * 0.58)], x * (1 - length * 0.01), length / 7


def of_the_rest(x: torch.Tensor, ends: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Sums, products and places of all but the first, which may be none."""
    rest = x[:, 1:]
    places = torch.bucketize(torch.arange(len(x)), ends[1:].long().cumsum(0), right=True)
    return rest.sum(-1), rest.sum(-1, keepdim=True), rest.prod(-1), rest.sum((-2, -1)), places


#: name -> the function, the watched calls, a call of other sizes
OPERATORS: dict[str, tuple[Callable[..., Any], Calls, Calls]] = {
    "adaptive mean, 1 axis": (
        lambda x: functional.adaptive_avg_pool1d(x, 5),
        images((2, 3, 9), (1, 3, 14)),
        images((3, 3, 20)),
    ),
    "adaptive mean": (
        lambda x: functional.adaptive_avg_pool2d(x, (3, 2)),
        images((2, 3, 12, 12), (1, 3, 16, 20)),
        images((3, 3, 13, 17), (1, 3, 2, 1)),
    ),
    "adaptive mean, 3 axes": (
        lambda x: functional.adaptive_avg_pool3d(x, (2, 3, 4)),
        images((2, 3, 9, 11, 7), (1, 3, 14, 8, 10)),
        images((3, 3, 20, 17, 6)),
    ),
    "adaptive mean to a size": (
        lambda x, y: functional.adaptive_avg_pool2d(x, y.shape[2:]) + y,
        [(rand(2, 3, 9, 11), rand(2, 3, 4, 5)), (rand(2, 3, 14, 8), rand(2, 3, 6, 3))],
        [(rand(1, 3, 20, 17), rand(1, 3, 7, 9))],
    ),
    "adaptive mean of one image size": (
        lambda x: functional.adaptive_avg_pool2d(x[:, :, :8, :8], (4, 2)),
        images((2, 3, 9, 11), (1, 3, 14, 8)),
        images((3, 3, 20, 17)),
    ),
    "adaptive largest and its place": (
        lambda x: functional.adaptive_max_pool2d(x, (3, 2), return_indices=True),
        images((2, 3, 9, 11), (1, 3, 14, 8)),
        images((3, 3, 20, 17)),
    ),
    "adaptive largest, 3 axes": (
        lambda x: functional.adaptive_max_pool3d(x, (2, 1, 3)),
        images((2, 3, 9, 11, 7), (1, 3, 14, 8, 10)),
        images((3, 3, 20, 17, 6)),
    ),
    "attention, 3 axes": (attention, images((2, 5, 8), (3, 7, 8)), images((1, 9, 8))),
    "attention, 5 axes, causal": (
        lambda x: attention(x, is_causal=True),
        images((2, 3, 2, 5, 8), (1, 4, 2, 7, 8)),
        images((3, 2, 2, 9, 8)),
    ),
    "attention, 3 axes, a mask": (
        lambda x, mask: (attention(x, attn_mask=mask, scale=0.3), attention(x, attn_mask=mask * 2.0)),
        [(rand(2, 5, 8), lower(5)), (rand(3, 7, 8), lower(7))],
        [(rand(1, 9, 8), lower(9)), (rand(4, 3, 8), torch.zeros(3, 3).bool())],
    ),
    "attention, one head of keys": (shared_heads, images((2, 4, 5, 8), (3, 4, 7, 8)), images((1, 4, 9, 8))),
    "indices of int32": (
        written,
        [(rand(9, 5), below(5, 4), below(5, 4, 1)), (rand(12, 5), below(5, 7), below(5, 7, 1))],
        [(rand(6, 5), below(5, 3), below(5, 3, 2))],
    ),
    "numbers made of sizes": (of_sizes, images((2, 7), (3, 5)), images((1, 12), (4, 1))),
    "a guard with a float": (positions, images((2, 7), (3, 5)), images((1, 12))),
    "a spectrogram and back": (speech, images((2, 400), (3, 533)), images((1, 700))),
    "a transposed convolution to a size": (
        to_its_size,
        images((2, 3, 8, 9), (1, 3, 11, 12), (3, 3, 14, 15)),
        images((2, 3, 20, 21), (1, 3, 9, 16)),
    ),
    "a transposed convolution of rows to a size": (
        rows_to_their_size,
        images((2, 3, 16), (1, 3, 21), (2, 3, 18)),
        images((3, 3, 31), (1, 3, 12)),
    ),
    "an image twice as large": (
        lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
        images((2, 3, 10, 12), (1, 3, 8, 8)),
        images((3, 3, 20, 15)),
    ),
    "a share of a row": (
        shares,
        images((2, 10), (3, 14)),
        images((1, 50), (1, 100), (4, 7)),
    ),
    "rows behind the first": (
        of_the_rest,
        [(rand(2, 5), below(4, 3)), (rand(3, 9), below(4, 6))],
        [(rand(2, 1), below(4, 1)), (rand(1, 1), below(4, 4))],
    ),
    "a loss of the next tokens": (
        lambda x, ids: functional.cross_entropy(x[:, :-1].flatten(0, 1), ids[:, 1:].flatten().long(), reduction="sum"),
        [(rand(2, 5, 9), below(9, 10).view(2, 5)), (rand(3, 7, 9), below(9, 21).view(3, 7))],
        [(rand(2, 1, 9), below(9, 2).view(2, 1)), (rand(1, 4, 9), below(9, 4).view(1, 4))],
    ),
}
PACKAGES = {"torch": "torch", "onnx": "onnxruntime", "openvino": "openvino"}
#: OpenVINO takes the Fourier transforms of no program of torch, and computes floats in 32 bits
LACKING = {("openvino", "a spectrogram and back"), ("openvino", "a share of a row")}


def cases() -> list[Any]:
    """Every operator on every target, skipped where its package is not installed."""
    missing = {
        target: pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")
        for target, package in PACKAGES.items()
    }
    return [
        pytest.param(name, target, marks=missing[target])
        for target in PACKAGES
        for name in OPERATORS
        if (target, name) not in LACKING
    ]


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


@pytest.mark.parametrize(("name", "target"), cases())
@pytest.mark.one_in(18)
def test_sizes_that_nobody_watched_are_served(name: str, target: str) -> None:
    function, watched, unseen = OPERATORS[name]
    model, observer = Of(function), InputObserver()
    with observer(model):
        for args in watched:
            model(*args)
    program = observer.export(to=target)
    for args in unseen:
        torch.testing.assert_close(program(*args), model(*args), atol=1e-5, rtol=1e-5)
    assert program.verify().verified


@pytest.mark.one_in(8)
@pytest.mark.parametrize("opset", [18, pytest.param(23, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [name for name in OPERATORS if name.startswith("attention")])
def test_attention_of_every_form_is_converted_in_older_and_newer_opsets(name: str, opset: int) -> None:
    pytest.importorskip("onnxruntime")
    function, watched, unseen = OPERATORS[name]
    model, observer = Of(function), InputObserver()
    with observer(model):
        for args in watched:
            model(*args)
    program = observer.export()
    before = str(program.graphs[0].artifact.graph)
    converted = program.to("onnx", opset=opset)
    assert str(program.graphs[0].artifact.graph) == before
    for args in unseen:
        torch.testing.assert_close(converted(*args), model(*args), atol=1e-5, rtol=1e-5)


class Described(torch.nn.Module):
    """Says in words how long its argument is, beside the number itself."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"twice": x * 2, "length": x.shape[1], "said": f"length {x.shape[1]}"}


def test_a_number_beside_its_text_is_a_result_at_the_sizes_of_calls() -> None:
    pytest.importorskip("onnxruntime")
    model, observer = Described(), InputObserver()
    with observer(model):
        for shape in ((5, 4), (6, 3)):
            model(rand(*shape))
    program = observer.export(to="onnx")
    assert program.verify().verified
    found = program(rand(2, 3))
    assert (found["length"], found["said"]) == (3, "length 3")
    sizes = [graph.artifact.model.graph.inputs[0].shape[1] for graph in program.graphs]
    assert sorted(sizes) == [3, 4]


class OfStep(torch.nn.Module):
    """Scales its rows by an int of the call, or adds as many rows."""

    def __init__(self, *, is_size: bool) -> None:
        super().__init__()
        self.is_size = is_size

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return torch.cat([x, x.new_ones(step, x.shape[1])]) if self.is_size else x * step


@pytest.mark.parametrize(
    ("is_size", "least"), [(False, "0 and more"), (True, "1 and more")], ids=["a factor", "a size"]
)
def test_an_int_that_is_no_size_may_be_0_in_a_runtime_too(is_size: bool, least: str) -> None:
    """The last step of a schedule is 0, which is often not watched."""
    model, observer = OfStep(is_size=is_size).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for step in (999, 500, 1):
            model(rand(2, 4), step)
    program = observer.export(to="onnx")
    assert program.verify().verified
    with pytest.raises(RejectedCallError, match=f"step, {least}, the call has -1"):
        program(rand(2, 4), -1)
    if not is_size:
        torch.testing.assert_close(program(rand(3, 4), 0), model(rand(3, 4), 0))


class Longest(torch.nn.Module):
    """The mean of each row up to its own length, of rows that are cut at the longest one."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        n = int(lengths.max())
        mask = torch.arange(n) < lengths[:, None]
        return (x[:, :n] * mask).sum(1) / lengths


class Dense(torch.nn.Module):
    """The rows of each graph beside each other, padded to those of the largest graph."""

    def forward(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        count = int(graph.max()) + 1
        sizes = graph.new_zeros(count).scatter_add_(0, graph, torch.ones_like(graph))
        most, before = int(sizes.max()), sizes.cumsum(0) - sizes
        padded = x.new_zeros(count * most + 1, x.shape[1])
        padded[torch.arange(len(graph)) - before[graph] + graph * most] = x
        return padded[: count * most].view(count, most, x.shape[1])


def dense_call(*sizes: int) -> tuple[torch.Tensor, ...]:
    return rand(sum(sizes), 4), torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))


CUT = {
    "longest": (Longest(), [(rand(n, m), below(m, n) + 1) for n, m in ((2, 7), (3, 9), (4, 5))]),
    "dense": (Dense(), [dense_call(*sizes) for sizes in ((3, 4), (2, 5, 6), (1, 2, 2, 7))]),
}


@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize("name", [*CUT])
@pytest.mark.one_in(2)
def test_rows_that_end_at_a_value_are_converted(name: str, target: str) -> None:
    pytest.importorskip("onnxruntime" if target == "onnx" else target)
    model, (*watched, unseen) = CUT[name]
    observer = InputObserver()
    with observer(model):
        for call in watched:
            model(*call)
    program = observer.export(to=target)
    assert program.verify().verified, program.tally.summary
    torch.testing.assert_close(program(*unseen), model(*unseen))

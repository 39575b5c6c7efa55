"""Experiments with the model: which axes may change, which arguments were only left out, which calls share a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver, Plan


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def plans_of(model: torch.nn.Module, *calls: dict[str, Any], **options: Any) -> tuple[Plan, ...]:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for kwargs in calls:
            model(**kwargs)
    return observer.plans(**options)


def shapes(plan: Plan) -> dict[str, str]:
    return {leaf.path.code(): ", ".join(map(str, leaf.shape)) for leaf in plan.inputs}


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Convolutions(torch.nn.Module):
    """Takes images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 5, 3)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(pixel_values).relu()).mean(dim=(2, 3))


class Flattened(torch.nn.Module):
    """Takes images of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3 * 8 * 8, 2)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.linear(pixel_values.flatten(1))


class Tokens(torch.nn.Module):
    """Takes a mask that callers may leave out; heads and batch may have the same size by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(rand(32, 8))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden = self.table[input_ids]
        if attention_mask is not None:
            hidden = hidden * attention_mask.unsqueeze(-1)
        return hidden.cumsum(dim=1)


class Recurrent(torch.nn.Module):
    """The batch of the state stands second."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 5, num_layers=3, batch_first=True)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return self.lstm(x, (h, c))[0]


class Unused(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2


class Pair(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.sum(dim=0, keepdim=True) @ b


ONE_CALL = {
    "perceptron": (Perceptron, {"x": rand(1, 6)}, {"x": "batch, 6"}),
    "convolutions": (Convolutions, {"pixel_values": rand(1, 3, 12, 12)}, {"pixel_values": "batch, 3, height, width"}),
    "one size of image": (Flattened, {"pixel_values": rand(1, 3, 8, 8)}, {"pixel_values": "batch, 3, 8, 8"}),
    "a mask left out": (
        Tokens,
        {"input_ids": torch.arange(5).reshape(1, 5)},
        {"input_ids": "batch, sequence", "attention_mask": "batch, sequence"},
    ),
    "a batch that stands second": (
        Recurrent,
        {"x": rand(2, 7, 4), "h": rand(3, 2, 5), "c": rand(3, 2, 5)},
        {"x": "batch, x_dim_1, 4", "h": "3, batch, 5", "c": "3, batch, 5"},
    ),
    "two axes that change together": (
        Pair,
        {"a": rand(3, 4), "b": rand(4, 5)},
        {"a": "a_dim_0, a_dim_1", "b": "a_dim_1, b_dim_1"},
    ),
}


@pytest.mark.parametrize("name", ["perceptron", "convolutions", "one size of image", "a mask left out"])
def test_one_call_of_batch_one_gives_the_right_axes(name: str) -> None:
    make, call, expected = ONE_CALL[name]
    (plan,) = plans_of(make(), call)
    found = shapes(plan)
    if name == "convolutions":  # the sides had one size in the call; each may be its own symbol
        assert found["pixel_values"].startswith("batch, 3, ")
        assert "12" not in found["pixel_values"]
    else:
        assert found == expected


def test_a_batch_may_stand_second() -> None:
    make, call, expected = ONE_CALL["a batch that stands second"]
    (plan,) = plans_of(make(), call)
    assert shapes(plan)["h"] == expected["h"]
    assert shapes(plan)["c"] == expected["c"]


def test_a_row_that_changes_with_the_others_is_no_batch() -> None:
    (plan,) = plans_of(torch.nn.Softmax(dim=0), {"input": rand(3, 4)})
    rows = [row for symbol in plan.symbols if symbol.name == "batch" for row in symbol.evidence.rows]
    assert not [row for row in rows if "probe" in row]


def test_what_nothing_reads_stays_as_it_was() -> None:
    (plan,) = plans_of(Unused(), {"x": rand(2, 3), "y": rand(2, 7)}, static={"x": [1]})
    assert shapes(plan)["y"].endswith(", 7")


def test_a_mask_that_hides_nothing_is_not_taken() -> None:
    class Ignores(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x + 1

    (plan,) = plans_of(Ignores(), {"x": rand(2, 5)})
    assert list(shapes(plan)) == ["x"]


def test_a_mask_whose_ones_are_not_neutral_is_not_taken() -> None:
    class Shifts(torch.nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return x if mask is None else x + mask

    (plan,) = plans_of(Shifts(), {"x": rand(2, 5)})
    assert list(shapes(plan)) == ["x"]


def test_a_mask_that_was_left_out_takes_padding_in_the_program() -> None:
    model = Tokens().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(torch.arange(5).reshape(1, 5))
    program = observer.export()
    assert program.verify().verified, program.report
    ids, mask = torch.arange(12).reshape(3, 4), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]])
    torch.testing.assert_close(program(ids), model(ids))
    torch.testing.assert_close(program(ids, attention_mask=mask), model(ids, attention_mask=mask))


class Sided(torch.nn.Module):
    """Two paths of Python, by a size: no graph is right on both sides of the guard."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(dim=1) if x.shape[1] > 6 else x.flip(1)


def test_the_other_side_of_a_guard_is_a_graph_of_its_own() -> None:
    model = Sided()
    observer = InputObserver()
    with observer(model):
        for length in (4, 5, 9, 12):
            model(rand(2, length))
    program = observer.export()
    assert len(program.graphs) == 2
    assert program.verify().verified, program.report
    for length in (2, 3, 6, 7, 20):
        x = rand(3, length)
        torch.testing.assert_close(program(x), model(x))


def test_without_probes_nothing_is_asked() -> None:
    calls = 0

    class Counts(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return x * 2

    (plan,) = plans_of(Counts(), {"x": rand(2, 3)}, probe=False)
    assert shapes(plan) == {"x": "2, 3"}
    assert calls == 1


def test_the_same_recording_gives_the_same_plan() -> None:
    model = Recurrent()
    _, call, _ = ONE_CALL["a batch that stands second"]
    assert plans_of(model, call) == plans_of(model, call)

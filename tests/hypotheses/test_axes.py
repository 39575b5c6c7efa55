"""Experiments with the model: which axes may change, which arguments were only left out, which calls share a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Plan
from onlooker.core.experiment import FindingKind
from onlooker.report.report import Report


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


def test_a_row_that_changes_with_the_others_is_no_batch_and_may_have_another_size() -> None:
    (plan,) = plans_of(torch.nn.Softmax(dim=0), {"input": rand(3, 4)})
    assert any(probe.finding.kind is FindingKind.ROWS_CHANGED for probe in plan.probes)
    assert shapes(plan)["input"].split(", ")[0] == "batch"  # it may have another size all the same


def test_a_tensor_that_nothing_reads_may_have_any_size() -> None:
    (plan,) = plans_of(Unused(), {"x": rand(2, 3), "y": rand(2, 7)}, static={"x": [1]})
    assert not plan.leaf("y").shape[1].is_constant


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


# --------------------------------------------------------------------------------------- steps and least sizes


class Patches(torch.nn.Module):
    """Takes images whose sides are multiples of the patch, as vision transformers do."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patch, self.convolution = patch, torch.nn.Conv2d(3, 4, patch, stride=patch)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        if pixel_values.shape[2] % self.patch or pixel_values.shape[3] % self.patch:
            raise ValueError("the sides must be multiples of the patch")
        return self.convolution(pixel_values).cumsum(2)


class Halves(torch.nn.Module):
    """Takes an even number of columns, or of rows of the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.reshape(x.shape[0], x.shape[1] // 2, 2).unbind(2)
        return left.cumsum(1) - right


def step_of(plan: Plan, path: str, dim: int) -> int:
    (name,) = plan.leaf(path).shape[dim].symbols
    return plan.symbol(name).step


@pytest.mark.parametrize(
    ("patch", "side"), [(14, 28), (14, 42), (16, 32), (16, 64), (32, 32), (32, 64), (8, 24), (7, 28), (2, 4), (3, 9)]
)
def test_the_least_step_is_found(patch: int, side: int) -> None:
    (plan,) = plans_of(Patches(patch), {"pixel_values": rand(1, 3, side, side)})
    assert [step_of(plan, "pixel_values", dim) for dim in (2, 3)] == [patch, patch]
    assert f"pixel_values.shape[2] % {patch} == 0" in {str(relation) for relation in plan.relations}
    text = plan.explain("pixel_values", 2)
    assert f"{side + 1} is refused" in text
    assert "accepted" in text


def test_the_program_takes_multiples_of_the_patch() -> None:
    model = Patches(14)
    observer = InputObserver()
    with observer(model):
        model(rand(1, 3, 28, 28))
    program = observer.export()
    assert program.verify().verified, program.report
    for shape in ((2, 3, 14, 56), (1, 3, 70, 28)):
        torch.testing.assert_close(program(rand(*shape)), model(rand(*shape)))


@pytest.mark.parametrize("size", [2, 4, 6, 10, 64])
def test_a_step_of_two_is_found(size: int) -> None:
    (plan,) = plans_of(Halves(), {"x": rand(1, size)})
    assert step_of(plan, "x", 1) == 2


def test_a_size_that_has_no_step_gets_none() -> None:
    (plan,) = plans_of(Convolutions(), {"pixel_values": rand(1, 3, 14, 14)})
    assert [step_of(plan, "pixel_values", dim) for dim in (2, 3)] == [1, 1]
    assert [plan.symbol(plan.leaf("pixel_values").shape[dim].symbols[0]).low for dim in (2, 3)] == [5, 5]


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("size", [12, 16, 31])
def test_the_least_size_is_the_kernels(kernel: int, size: int) -> None:
    (plan,) = plans_of(torch.nn.Conv1d(2, 3, kernel), {"input": rand(1, 2, size)})
    (name,) = plan.leaf("input").shape[2].symbols
    assert plan.symbol(name).low == kernel


class Rows(torch.nn.Module):
    """Takes ``least`` rows and more."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.convolution = least, torch.nn.Conv1d(2, 3, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < self.least:
            raise ValueError("too few rows")
        return self.convolution(x)


@pytest.mark.parametrize(("least", "rows"), [(1, ", x.shape[0] = 1"), (4, "")])
def test_the_least_size_is_looked_for_with_one_row_where_the_model_takes_that(least: int, rows: str) -> None:
    (plan,) = plans_of(Rows(least), {"x": rand(4, 2, 64)})
    (name,) = plan.leaf("x").shape[2].symbols
    assert plan.symbol(name).low == 9
    assert f"(x.shape[2] = 12{rows}): accepted" in plan.explain("x", 2)


@pytest.mark.parametrize("kernel", [(9, 9), (9, 5), (5, 9), (1, 9), (9, 1)])
def test_another_side_begins_with_the_least_size_of_the_first_one(kernel: tuple[int, int]) -> None:
    (plan,) = plans_of(torch.nn.Conv2d(2, 3, kernel), {"input": rand(1, 2, 64, 64)})
    names = [plan.leaf("input").shape[dim].symbols[0] for dim in (2, 3)]
    assert [plan.symbol(name).low for name in names] == list(kernel)
    tried = [experiment for experiment in plan.probes if experiment.axes and experiment.axes[0].dim == 3]
    assert kernel[0] != kernel[1] or len(tried) <= 4  # it grows, both sizes, and what they say together


def test_a_step_is_found_where_twice_the_size_is_refused() -> None:
    class Limited(Patches):
        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            if pixel_values.shape[2] > 50 or pixel_values.shape[3] > 50:
                raise ValueError("too large")
            return super().forward(pixel_values)

    (plan,) = plans_of(Limited(16), {"pixel_values": rand(1, 3, 32, 32)})
    assert [step_of(plan, "pixel_values", dim) for dim in (2, 3)] == [16, 16]


# --------------------------------------------------------------------------------------- evidence and blind spots


def test_the_evidence_of_an_axis_has_its_probes() -> None:
    (plan,) = plans_of(Perceptron(), {"x": rand(1, 6)})
    assert "probe 0 (x.shape[0] = 2): accepted." in plan.explain("x", 0)
    refused = plan.explain("x", 1)
    assert "x.shape[1] is 6." in refused
    assert "(x.shape[1] = 7): refused, RuntimeError: " in refused


def test_a_batch_that_could_not_be_asked_about_is_a_blind_spot() -> None:
    class One(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(1, 4) @ torch.ones(4, 4)

    (plan,) = plans_of(One(), {"x": rand(1, 4)})
    (spot,) = plan.blind
    told = str(spot)
    assert told.startswith(
        "no batch: x.shape[0] was 1 in every call, and with 2, refused, RuntimeError: shape '[1, 4]'"
    )
    assert told.endswith("run the model with another number of rows")
    assert "No batch: x.shape[0] was 1" in plan.explain("x", 0)


class Masked(torch.nn.Module):
    """A mask of ones is not the same as none."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, double: bool = False) -> torch.Tensor:
        x = x.cumsum(1) if mask is None else x + mask
        return x * 2 if double else x


def reported(model: torch.nn.Module, *calls: dict[str, Any]) -> Report:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for call in calls:
            model(**call)
    program = observer.export()
    program.verify()
    return program.report


def test_what_could_not_be_settled_is_told_with_the_run_that_would() -> None:
    report = reported(Masked(), {"x": rand(1, 5), "double": True})
    text = " ".join(report.text(full=True).split())
    assert "mask was never passed, and a mask of ones changes the result: run one padded batch" in text
    assert "only double=True seen: the other value is refused, watch a call that has it" in text


def test_a_flag_that_was_seen_both_ways_is_no_blind_spot() -> None:
    report = reported(Masked(), {"x": rand(1, 5), "double": True}, {"x": rand(1, 5), "double": False})
    assert not [text for text in report.blind if "double" in text]


def test_the_time_of_each_stage_is_told() -> None:
    report = reported(Perceptron(), {"x": rand(1, 6)})
    stages = {name: (seconds, share) for name, seconds, share in report.shares}
    assert list(stages) == ["observe", "infer", "probe", "export", "verify"]
    assert all(seconds > 0 for seconds, _ in stages.values())
    assert sum(share for _, share in stages.values()) == pytest.approx(1.0)
    data = report.to_dict()
    assert [stage["stage"] for stage in data["stages"]] == list(stages)  # type: ignore[attr-defined, index]
    assert data["probes"] == report.probes > 2
    assert "runs of the model" in report.text(full=True)


# --------------------------------------------------------------------------------------- the same again

AGAIN: dict[str, tuple[Callable[[], torch.nn.Module], dict[str, Any]]] = {
    "recurrent": (Recurrent, {"x": rand(2, 7, 4), "h": rand(3, 2, 5), "c": rand(3, 2, 5)}),
    "patches": (lambda: Patches(14), {"pixel_values": rand(1, 3, 28, 28)}),
    "convolutions": (Convolutions, {"pixel_values": rand(1, 3, 12, 12)}),
    "tokens": (Tokens, {"input_ids": torch.arange(5).reshape(1, 5)}),
    "masked": (Masked, {"x": rand(1, 5), "double": True}),
}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.one_in(2)
def test_the_same_recording_gives_the_same_plan(name: str) -> None:
    make, call = AGAIN[name]
    model = make()
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        model(**call)
    first = observer.plans()
    torch.manual_seed(7)
    assert observer.plans() == first
    assert plans_of(model, call) == first


class HandsBack(torch.nn.Module):
    """Gives its memory back as it came: only the mean over its rows is read, or nothing of it."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> dict[str, torch.Tensor]:
        out = x.cumsum(1) + memory.shape[0] * 0
        return {"out": out + memory.mean(1, keepdim=True) if self.reads else out, "memory": memory}


@pytest.mark.parametrize("reads", [True, False])
def test_an_input_that_is_handed_back_may_have_any_size(reads: bool) -> None:
    observer, model = InputObserver(), HandsBack(reads)
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length), torch.randn(batch, 9))
    (plan,) = observer.plans()
    assert not plan.leaf("memory").shape[1].is_constant
    if not reads:
        assert "nothing reads" in plan.explain("memory", 1)
    program = observer.export()
    assert program.verify().verified
    x, memory = torch.randn(4, 3), torch.randn(4, 6)
    assert torch.equal(program(x, memory)["memory"], memory)


class BiasThatIsReturned(torch.nn.Module):
    """One bias for all rows, which later blocks get as it is."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x @ x.mT + bias).softmax(-1) @ x, bias


def test_a_bias_for_all_rows_is_no_batch_beside_two_rows() -> None:
    (plan,) = plans_of(BiasThatIsReturned(), {"x": rand(2, 6, 4), "bias": rand(1, 6, 6)})
    assert shapes(plan)["bias"].split(", ")[0] == "1"

"""What a model reads of a call beside sizes is bound; what it does not read is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import get_default_dtype as dtype_of_floats
from torch import is_grad_enabled, is_inference_mode_enabled, ones, rand, zeros

import onlooker
from onlooker import InputObserver, Program, RejectedCallError
from onlooker.core.marks import ATTRIBUTES, GRADIENTS, INFERENCE, MEMORY, ORDER, RECORDED, UNRECORDED

SIZES = ((2, 5), (3, 9), (4, 7))
Parts = dict[str, torch.Tensor]


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class AsksForGradients(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if x.requires_grad else x * 2


class AsksForStrides(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_contiguous() else x * 3


class AsksForANote(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if hasattr(x, "note") else x * 2


class LooksForANote(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if "note" in dir(x) else x * 2


class AsksItsWeightForANote(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * (3 if getattr(self.weight, "note", False) else 2)


class LooksUp(torch.nn.Module):
    def forward(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        return x + parts["a"] * 2 + parts.get("b", 0)


class TakesFirst(torch.nn.Module):
    def forward(self, x: torch.Tensor, parts: Parts) -> torch.Tensor:
        return x + next(iter(parts.values()))


class LooksUpNames(torch.nn.Module):
    def forward(self, x: torch.Tensor, **parts: torch.Tensor) -> torch.Tensor:
        return x + parts["a"] * 2 + parts.get("b", 0)


def exported(model: torch.nn.Module, calls: Sequence[Callable[[Any], Any]]) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for call in calls:
            call(model)
    return observer.export()


def of_images(model: torch.nn.Module) -> Program:
    return exported(model, [lambda m, size=size: m(rand(*size, 4)) for size in SIZES])


def of_dicts(model: torch.nn.Module) -> Program:
    parts = {"a": ones(4), "b": zeros(4)}
    return exported(model, [lambda m, size=size: m(rand(*size, 4), dict(parts)) for size in SIZES])


def with_note(x: torch.Tensor) -> torch.Tensor:
    """A tensor that the caller gave an attribute."""
    x.note = True  # type: ignore[attr-defined]
    return x


OTHERS = [
    with_note(rand(2, 6, 4)),
    rand(3, 6, 4)[1:],
    rand(2, 6, 4).requires_grad_(),
    rand(2, 4, 6).mT,
    rand(2, 6, 8)[..., :4],
]


def test_marks_that_nothing_reads_are_free() -> None:
    program = of_images(Plain())
    assert not program.graphs[0].marks
    for x in OTHERS:
        assert torch.equal(program(x), x * 2)


@pytest.mark.parametrize(
    ("model", "mark", "x"),
    [
        (AsksForGradients(), GRADIENTS, rand(2, 6, 4).requires_grad_()),
        (AsksForStrides(), MEMORY, rand(2, 4, 6).mT),
        (AsksForStrides(), MEMORY, rand(3, 6, 4)[1:]),
        (AsksForANote(), ATTRIBUTES, with_note(rand(2, 6, 4))),
        (LooksForANote(), ATTRIBUTES, with_note(rand(2, 6, 4))),
    ],
)
@pytest.mark.one_in(2)
def test_marks_that_are_read_are_bound_with_the_line(model: torch.nn.Module, mark: str, x: torch.Tensor) -> None:
    program = of_images(model)
    assert list(program.graphs[0].marks) == [mark]
    with pytest.raises(RejectedCallError, match=r"because of .*test_marks\.py:\d+ in forward"):
        program(x)
    assert torch.equal(program(ones(2, 6, 4)), ones(2, 6, 4) * 2)


def test_attributes_of_weights_are_those_of_the_model() -> None:
    program = of_images(AsksItsWeightForANote())
    assert not program.graphs[0].marks
    assert torch.equal(program(with_note(ones(2, 6, 4))), ones(2, 6, 4) * 2)


def test_a_mark_that_is_bound_is_no_failure_of_the_verification_and_stands_in_the_report() -> None:
    program = of_images(AsksForStrides())
    assert program.verify().verified
    assert "refused  calls with tensors that are not contiguous" in program.report.text()


def test_the_order_of_a_dict_is_free_where_nothing_reads_it() -> None:
    model = LooksUp()
    program, x = of_dicts(model), rand(2, 6, 4)
    other = {"b": zeros(4), "a": ones(4)}
    assert torch.equal(program(x, other), model(x, other))


def test_the_order_of_a_dict_is_bound_where_it_is_read(tmp_path: Any) -> None:
    program, x = of_dicts(TakesFirst()), rand(2, 6, 4)
    assert list(program.graphs[0].marks) == [ORDER]
    program.save(tmp_path / "program")
    for one in (program, onlooker.load(tmp_path / "program")):
        with pytest.raises(RejectedCallError, match="order of the watched calls"):
            one(x, {"b": zeros(4), "a": ones(4)})


def test_names_that_are_looked_up_may_come_in_any_order() -> None:
    model = LooksUpNames()
    parts = {"a": ones(4), "b": zeros(4)}
    program = exported(model, [lambda m, size=size: m(rand(*size, 4), **parts) for size in SIZES])
    x = rand(2, 6, 4)
    assert torch.equal(program(x, b=zeros(4), a=ones(4)), model(x, **parts))


def test_an_empty_list_is_not_an_absent_one() -> None:
    class Appends(torch.nn.Module):
        def forward(self, x: torch.Tensor, log: list[int] | None = None) -> torch.Tensor:
            if log is not None:
                log.append(x.shape[1])
            return x * 2

    program, log = of_images(Appends()), []
    with pytest.raises(RejectedCallError, match="log is"):
        program(rand(2, 6, 4), log)
    assert log == []


class AsksForRecording(torch.nn.Module):
    training_only = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if torch.is_grad_enabled() and self.training_only else x * 2


def test_a_recorded_call_is_checked_in_the_surroundings_that_it_had() -> None:
    program = of_images(AsksForRecording())
    assert UNRECORDED in program.graphs[0].marks
    assert torch.is_grad_enabled()
    assert program.check(program.recording).holds
    assert program.profile().unserved == 0
    assert "(watched 2, 3, 4)" in str(program.report)
    assert "\nrefused  calls that record gradients (" in str(program.report)

    model, observer = AsksForRecording(), InputObserver()
    with observer(model):
        model(rand(2, 5, 4))
    assert not program.check(observer.recording()).holds
    with torch.no_grad():
        assert not program.check(observer.recording()).holds
        assert program.check([{"x": rand(2, 5, 4)}]).holds
    assert not program.check([{"x": rand(2, 5, 4)}]).holds


class AsksForTheDtype(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.dtype == torch.get_default_dtype() else x * 3


class AsksForInference(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.is_inference_mode_enabled() else x * 3


def test_a_setting_that_the_model_asks_for_is_bound(tmp_path: Path) -> None:
    program = of_images(AsksForTheDtype())
    assert program.verify().verified
    program.save(tmp_path / "program")
    assert "torch.get_default_dtype() is not torch.float32" in str(program.report)
    for one in (program, onlooker.load(tmp_path / "program")):
        assert one(ones(2, 5, 4)).sum() == 80
        torch.set_default_dtype(torch.float64)
        try:
            with pytest.raises(
                RejectedCallError, match=r"get_default_dtype\(\) is torch.float32, because of .*float64"
            ):
                one(ones(2, 5, 4, dtype=torch.float32))
        finally:
            torch.set_default_dtype(torch.float32)


class AsksForAutocast(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.is_autocast_enabled("cpu") else x * 3


class AsksForTheDtypeOfAutocast(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        is_half = torch.is_autocast_cpu_enabled() and torch.get_autocast_dtype("cpu") == torch.float16
        return x * 2 if is_half else x * 3


class AsksInABlockOfItsOwn(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x * 2 if torch.is_autocast_enabled("cpu") else x * 3


@pytest.mark.filterwarnings("ignore:torch.is_autocast_cpu_enabled:DeprecationWarning")
@pytest.mark.parametrize("model", [AsksForAutocast(), AsksForTheDtypeOfAutocast()])
def test_a_call_in_another_autocast_is_refused_where_the_model_asks(model: torch.nn.Module, tmp_path: Path) -> None:
    program = of_images(model)
    assert program.verify().verified
    program.save(tmp_path / "program")
    for one in (program, onlooker.load(tmp_path / "program")):
        assert one(ones(2, 5, 4)).sum() == 120
        with torch.autocast("cpu", dtype=torch.float16), pytest.raises(RejectedCallError, match="autocast is off"):
            one(ones(2, 5, 4))
    plain = of_images(AsksInABlockOfItsOwn())
    with torch.autocast("cpu", dtype=torch.float16):
        assert of_images(AsksForAutocast())(ones(2, 5, 4)).sum() == 80
        assert plain(ones(2, 5, 4)).sum() == 80


def test_a_program_of_calls_in_autocast_serves_calls_outside_of_it() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        program = of_images(AsksForAutocast())
    assert program.verify().verified
    assert program(ones(2, 5, 4)).sum() == 80
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(RejectedCallError, match="bfloat16"):
        program(ones(2, 5, 4))


class AsksForThreads(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.get_num_threads()


class AsksForFlashAttention(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.backends.cuda.flash_sdp_enabled() else x * 3


def test_the_number_of_threads_and_kernels_of_attention_are_settings() -> None:
    threads, kernels = of_images(AsksForThreads()), of_images(AsksForFlashAttention())
    now = torch.get_num_threads()
    torch.set_num_threads(now + 1)
    try:
        with pytest.raises(RejectedCallError, match="get_num_threads"):
            threads(ones(2, 5, 4))
    finally:
        torch.set_num_threads(now)
    assert kernels(ones(2, 5, 4)).sum() == 80
    with (
        torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]),
        pytest.raises(RejectedCallError, match="flash_sdp_enabled"),
    ):
        kernels(ones(2, 5, 4))


def test_a_call_in_inference_mode_is_refused_where_the_model_asks() -> None:
    program = of_images(AsksForInference())
    with torch.inference_mode(), pytest.raises(RejectedCallError, match="is_inference_mode_enabled"):
        program(ones(2, 5, 4))
    plain = of_images(Plain())
    with torch.inference_mode():
        assert plain(ones(2, 5, 4)).sum() == 80


class AsksForRecordingByName(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if is_grad_enabled() else x * 2


class AsksItsResultForGradients(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * 3 if y.requires_grad else y * 2


@pytest.mark.parametrize("model", [AsksForRecordingByName(), AsksItsResultForGradients()])
@pytest.mark.parametrize("records", [True, False])
@pytest.mark.one_in(2)
def test_a_call_that_is_recorded_otherwise_than_the_watched_ones_is_refused(
    model: torch.nn.Module, records: bool, tmp_path: Path
) -> None:
    observer, x = InputObserver(), rand(2, 6, 4)
    with torch.set_grad_enabled(records), observer(model):
        for size in SIZES:
            model(rand(*size, 4))
    program = observer.export()
    assert (RECORDED if records else UNRECORDED) in program.graphs[0].marks
    assert program.verify().verified
    program.save(tmp_path / "program")
    for one in (program, onlooker.load(tmp_path / "program")):
        with torch.set_grad_enabled(records):
            assert torch.allclose(one(x), model(x), atol=1e-6)
        with torch.set_grad_enabled(not records), pytest.raises(RejectedCallError, match="because of"):
            one(x)


class AsksForTheDtypeByName(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.dtype == dtype_of_floats() else x * 3


class AsksForInferenceByName(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if is_inference_mode_enabled() else x * 2


class AsksItsResultForInference(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if (x * 1).is_inference() else x * 2


def test_a_setting_with_a_name_in_the_model_s_file_is_bound() -> None:
    program = of_images(AsksForTheDtypeByName())
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(RejectedCallError, match="get_default_dtype"):
            program(ones(2, 5, 4, dtype=torch.float32))
    finally:
        torch.set_default_dtype(torch.float32)
    assert program(ones(2, 5, 4)).sum() == 80


@pytest.mark.parametrize("model", [AsksForInferenceByName(), AsksItsResultForInference()])
def test_inference_mode_is_bound_by_whichever_way_it_is_asked_for(model: torch.nn.Module) -> None:
    program = of_images(model)
    with torch.inference_mode(), pytest.raises(RejectedCallError, match="is_inference_mode_enabled"):
        program(ones(2, 5, 4))
    assert program(ones(2, 5, 4)).sum() == 80


class AsksTorchForInference(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if torch.is_inference(x) else x * 2


class AsksTorchForNegation(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3 if torch.is_neg(x) else x * 2


@pytest.mark.parametrize(
    ("model", "mark", "x"),
    [
        (AsksTorchForInference(), INFERENCE, torch.inference_mode()(rand)(2, 6, 4)),
        (AsksTorchForNegation(), MEMORY, rand(2, 6, 4, dtype=torch.complex64).conj().imag),
    ],
)
def test_functions_of_torch_read_marks_as_methods_do(model: torch.nn.Module, mark: str, x: torch.Tensor) -> None:
    program = of_images(model)
    assert list(program.graphs[0].marks) == [mark]
    with pytest.raises(RejectedCallError, match="because of"):
        program(x)
    assert torch.equal(program(ones(2, 6, 4)), ones(2, 6, 4) * 2)


class Returns(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.contiguous(), x.sum() + y.contiguous().sum()


class Writes(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.nn.functional.relu(x.contiguous(), inplace=True).sum(1) + y.contiguous().sum()


class Gives(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        x = x.contiguous()
        x *= 2
        return x, y.contiguous() + 1


@pytest.mark.parametrize("build", [Returns, Writes, Gives])
@pytest.mark.one_in(3)
def test_contiguous_of_an_argument_that_comes_back_or_is_written_wants_a_contiguous_one(
    build: Callable[[], torch.nn.Module],
) -> None:
    """The model copies another one, and what it gives, or writes to, is not the argument."""
    model, observer = build(), InputObserver()
    with observer(model), torch.no_grad():
        for rows in (2, 3):
            model(torch.randn(rows, 4), torch.randn(rows, 4))
    program = observer.export()
    assert program.verify().verified, program.report
    x, y = torch.randn(4, 5).T, torch.randn(5, 8)[:, ::2]
    before = x.clone()
    with pytest.raises(
        RejectedCallError, match=r"this graph needs a contiguous x, because of .* x, which is not contiguous"
    ):
        program(x, y)
    assert torch.equal(x, before)
    x = x.contiguous()
    expected = model(x.clone(), y)
    torch.testing.assert_close(program(x, y), expected)

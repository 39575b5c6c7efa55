"""Calls that are made inside of ``torch.autocast``: the program gives what the pipeline got, in every mode."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, ObservationError, Recording
from onlooker.pytrees.open import open_tree


class Attends(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = self.norm(x)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(normed).chunk(3, -1))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), normed


class Convolves(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(4, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)[:, :4])


class HasOwnRegion(torch.nn.Module):
    """Computes its scores in float32, whatever stands around it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x)
        with torch.autocast("cpu", enabled=False):
            scores = self.linear(x.float()).softmax(-1)
        return {"y": y, "scores": scores}


class Branches(torch.nn.Module):
    """Needs two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * 2 if x.shape[1] > 6 else x)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "linear": lambda: torch.nn.Linear(8, 8),
    "attention": Attends,
    "convolution": Convolves,
    "a region of its own": HasOwnRegion,
    "a branch": Branches,
}
MODES = {"gradients": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
DTYPES = {"none": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def around(dtype: torch.dtype | None) -> Any:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def watched(model: Any, dtype: torch.dtype | None, mode: Any = torch.no_grad) -> InputObserver:
    observer = InputObserver()
    with observer(model), around(dtype), mode():
        model(torch.rand(2, 5, 8))
        model(torch.rand(3, 9, 8))
    return observer


def check_same(expected: Any, got: Any) -> None:
    """Bit for bit, and in the same dtype."""
    left, right = open_tree(expected), open_tree(got)
    assert left.structure == right.structure
    for one, other in zip(left.leaves, right.leaves, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.one_in(14)
def test_a_program_gives_what_the_calls_got(dtype: str, mode: str, name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    program = watched(model, DTYPES[dtype], MODES[mode]).export()
    assert program.verify().verified
    for rows, n in ((1, 4), (4, 11)):
        x = torch.rand(rows, n, 8)
        with around(DTYPES[dtype]), MODES[mode]():
            expected = model(x)
        check_same(expected, program(x))
        for other in DTYPES.values():
            with around(other), MODES[mode](), program.installed(model):
                check_same(expected, model(x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_program_in_a_folder_gives_it_too(tmp_path: Path, dtype: str) -> None:
    model = Attends()
    program = watched(model, DTYPES[dtype]).export()
    program.save(tmp_path / "program", values=True)
    loaded = onlooker.load(tmp_path / "program")
    x = torch.rand(4, 7, 8)
    with around(DTYPES[dtype]):
        expected = model(x)
    check_same(expected, loaded(x))
    assert loaded.verify(model=model).verified
    assert loaded.verify_saved().verified is False  # no unseen call was tried
    assert loaded.verify_saved().failed == 0
    assert f"torch.autocast('cpu', dtype=torch.{dtype})" in str(loaded.recording.calls[0].surroundings)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MODELS)
def test_onnx_has_the_casts(name: str) -> None:
    """ONNX Runtime computes in float16; in bfloat16 it has no kernels for the CPU."""
    model = MODELS[name]().eval()
    program = watched(model, torch.float16).export(to="onnx")
    assert program.verify().verified


def test_attention_over_masked_rows_gives_zeros_in_onnx() -> None:
    """The repair reaches into the graph of an autocast block."""

    class Masked(Attends):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])

    model, observer = Masked(), InputObserver()
    with observer(model), around(torch.float16):
        model(torch.rand(2, 5, 8), torch.ones(2, 5, dtype=torch.bool))
        model(torch.rand(3, 9, 8), torch.ones(3, 9, dtype=torch.bool))
    program = observer.export(to="onnx")
    x, nothing = torch.rand(2, 7, 8), torch.zeros(2, 7, dtype=torch.bool)
    assert torch.equal(program(x, nothing), torch.zeros(2, 2, 7, 4, dtype=torch.float16))


def test_calls_in_different_autocast_are_refused() -> None:
    model, observer = torch.nn.Linear(8, 8), InputObserver()
    with observer(model):
        model(torch.rand(2, 8))
        with around(torch.bfloat16):
            model(torch.rand(3, 8))
            model(torch.rand(4, 8))
    with pytest.raises(ObservationError) as caught:
        observer.export()
    assert caught.value.slug == "different-autocast"
    assert (
        "call 0 without autocast; calls 1, 2 inside torch.autocast('cpu', dtype=torch.bfloat16)" in caught.value.message
    )
    assert observer.infer_dynamic_shapes() == ({0: torch.export.Dim.DYNAMIC},)


def test_what_autocast_keeps_decides_nothing() -> None:
    model, observer = torch.nn.Linear(8, 8), InputObserver()
    with observer(model):
        for cache in (True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache):
                model(torch.rand(2 + cache, 8))
    assert observer.export().verify().verified


def test_runs_without_values_leave_no_casts_behind() -> None:
    """Autocast keeps the weights that it casts until its outermost block ends: this one is the user's."""
    model, observer = torch.nn.Linear(8, 8), InputObserver()
    x = torch.rand(2, 8)
    with around(torch.bfloat16):
        with observer(model):
            model(x), model(torch.rand(3, 8))
        subject = observer._lab(observer._watcher.store()).subject
        subject.try_fake({"input": x})
        subject.try_shapes({"input": x})
        observer.export()
        assert type(model(x)) is torch.Tensor


def test_calls_of_older_recordings_have_no_surroundings(tmp_path: Path) -> None:
    recording = watched(torch.nn.Linear(8, 8), torch.bfloat16).recording()
    recording.save(tmp_path / "calls.json")
    assert Recording.load(tmp_path / "calls.json") == recording
    document = json.loads((tmp_path / "calls.json").read_text())
    for call in document["value"]["calls"]:
        del call["surroundings"]
    (tmp_path / "calls.json").write_text(json.dumps(document))
    assert [call.surroundings for call in Recording.load(tmp_path / "calls.json").calls] == [None, None]


@pytest.mark.parametrize("name", ["linear", "a region of its own"])
def test_a_script_exports_inside_it(name: str) -> None:
    model = MODELS[name]()
    program = watched(model, torch.bfloat16).export()
    script = program.code()
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):' in script
    names: dict[str, Any] = {"__name__": "script"}
    exec(script, names)
    exported = names["export_main"](model).module()
    x = torch.rand(4, 7, 8)
    with around(torch.bfloat16):
        expected = open_tree(model(x)).leaves
    (parameter,) = program.recording.signature.names
    for one, other in zip(expected, open_tree(exported(**{parameter: x})).leaves, strict=True):
        check_same(one, other)


def test_the_report_names_what_stood_around_the_calls() -> None:
    observer = watched(torch.nn.Linear(8, 8), torch.bfloat16, torch.inference_mode)
    with observer(observer._watcher.model), around(torch.bfloat16):
        observer._watcher.model(torch.rand(4, 5, 8))
    inside = "inside torch.autocast('cpu', dtype=torch.bfloat16)"
    report = observer.export().report
    assert f"2 calls were made {inside} and torch.inference_mode()" in report.text(full=True)
    assert f"1 call was made {inside}, with gradients recorded" in report.text(full=True)
    assert report.to_dict()["surroundings"] == {
        f"{inside} and torch.inference_mode()": 2,
        f"{inside}, with gradients recorded": 1,
    }

"""How ONNX Runtime runs a program is the user's choice: options of sessions and providers, checked and never saved."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.core.errors import ExportError, UsageError

PARALLEL = onnxruntime.ExecutionMode.ORT_PARALLEL
BASIC = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
OPTIONS = {
    "intra_op_num_threads": 2,
    "inter_op_num_threads": 3,
    "execution_mode": PARALLEL,
    "graph_optimization_level": BASIC,
    "session.intra_op.allow_spinning": "0",
}


class Sided(torch.nn.Module):
    """Two graphs on the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y + 1 if x.shape[1] > 6 else y * 2


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model := Sided().eval()), torch.no_grad():
        for rows, steps in ((2, 3), (3, 9), (1, 4), (2, 12)):
            model(torch.randn(rows, steps, 64))
    return observer.export()


@pytest.fixture(scope="module")
def converted(program: Program) -> Program:
    return program.to("onnx")


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sessions of ONNX Runtime on files, in the order in which they are opened."""
    opened: list[Any] = []

    class Noted(onnxruntime.InferenceSession):
        def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(model, *args, **kwargs)
            if isinstance(model, str):
                opened.append(self)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Noted)
    return opened


def chosen(session: Any) -> dict[str, Any]:
    options = session.get_session_options()
    plain = {name: getattr(options, name) for name in OPTIONS if "." not in name}
    spinning = options.get_session_config_entry("session.intra_op.allow_spinning")
    return {**plain, "session.intra_op.allow_spinning": spinning}


def is_default(session: Any) -> bool:
    """True for the options of ONNX Runtime, with the threads of torch, which sleep between runs."""
    found, plain = chosen(session), onnxruntime.SessionOptions()
    expected = {name: getattr(plain, name) for name in OPTIONS if "." not in name}
    expected["intra_op_num_threads"] = torch.get_num_threads()
    return found == {**expected, "session.intra_op.allow_spinning": "0"}


def is_exact(program: Program, reference: Program) -> bool:
    calls = [torch.randn(5, 5, 64), torch.randn(4, 20, 64)]
    return all(torch.allclose(program(x), reference(x), atol=1e-5) for x in calls)


def test_options_of_sessions_reach_every_session(program: Program, sessions: list[Any]) -> None:
    made = program.to("onnx", session_options=OPTIONS, providers=["CPUExecutionProvider"])
    assert len(sessions) == len(made.graphs) == 2
    assert [chosen(session) for session in sessions] == [OPTIONS, OPTIONS]
    assert is_exact(made, program)
    assert made.verify().verified, made.report


@pytest.mark.slow
def test_a_session_has_as_many_threads_as_torch(program: Program, sessions: list[Any]) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            program.to("onnx")
            assert sessions.pop().get_session_options().intra_op_num_threads == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_an_object_of_options_is_used_as_it_is(program: Program, sessions: list[Any]) -> None:
    """Its weights are read for each session: names of weights are in the options, one object has each name once."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    made = program.to("onnx", session_options=options)
    found = [session.get_session_options() for session in sessions]
    assert [(each.intra_op_num_threads, each.log_severity_level) for each in found] == [(2, 3), (2, 3)]
    assert options.intra_op_num_threads == 2
    with pytest.raises(RuntimeError, match="does not have"):
        options.get_session_config_entry("session.disable_prepacking")
    gc.collect()
    assert is_exact(made, program)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.slow
def test_a_program_of_onnx_takes_other_options(program: Program, sessions: list[Any], merged: bool) -> None:
    made = program.to("onnx", merged=merged)
    assert all(map(is_default, sessions))
    sessions.clear()
    other = made.to("onnx", session_options=OPTIONS)
    assert other is not made
    assert sessions
    assert all(chosen(session) == OPTIONS for session in sessions)
    assert is_exact(other, program)
    assert made.to("onnx") is made


def test_verify_runs_in_sessions_of_its_own(converted: Program, sessions: list[Any]) -> None:
    tally = converted.verify(session_options={"intra_op_num_threads": 2}, providers=["CPUExecutionProvider"])
    assert tally.verified
    assert converted.tally == tally
    assert {session.get_session_options().intra_op_num_threads for session in sessions} == {2}
    used = len(sessions)
    converted.verify(trials=2)
    assert len(sessions) == used


def test_saved_programs_pin_no_threads(program: Program, sessions: list[Any], tmp_path: Path) -> None:
    program.to("onnx").save(tmp_path / "plain")
    program.to("onnx", session_options=OPTIONS).save(tmp_path / "chosen")
    names = sorted(path.name for path in (tmp_path / "plain").iterdir() if path.name != "onlooker.json")
    assert len(names) > 4
    for name in names:
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "chosen" / name).read_bytes(), name
    sessions.clear()
    onlooker.load(tmp_path / "chosen")
    assert sessions
    assert all(map(is_default, sessions))
    sessions.clear()
    again = onlooker.load(tmp_path / "chosen", session_options=OPTIONS, providers=["CPUExecutionProvider"])
    assert [chosen(session) for session in sessions] == [OPTIONS, OPTIONS]
    assert is_exact(again, program)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"threads": 2}, "SessionOptions of ONNX Runtime has no 'threads'.* intra_op_num_threads"),
        ({"add_initializer": 2}, "has no 'add_initializer'"),
        ({3: 2}, "has no 3"),
        ({"intra_op_num_threads": "two"}, "intra_op_num_threads='two', which ONNX Runtime does not take"),
        ({"intra_op_num_threads": -1}, "intra_op_num_threads=-1, which"),
        ({"execution_mode": "ORT_PARALLEL"}, "execution_mode='ORT_PARALLEL', which"),
        ({"session.intra_op.allow_spinning": 0}, "allow_spinning=0, which"),
        (4, "session_options is of the type int"),
        ([("intra_op_num_threads", 4)], "session_options is of the type list"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused(converted: Program, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=rf"{words}.*\[bad-session-options\]"):
        converted.to("onnx", session_options=value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (["CUDAExecutionProvider", "CPUExecutionProvider"], "has no provider CUDAExecutionProvider here.*CPUExec"),
        (["Nope"], "has no provider Nope here"),
        ("CPUExecutionProvider", "providers is 'CPUExecutionProvider', which"),
        ([], r"providers is \[\], which"),
        ([3], r"providers is \[3\], which"),
        ([("CPUExecutionProvider",)], "providers is .*, which"),
        ([("CPUExecutionProvider", 3)], "providers is .*, which"),
        ({"CPUExecutionProvider": {}}, "providers is .*, which"),
    ],
    ids=str,
)
def test_providers_that_are_not_there_are_refused(
    converted: Program, value: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime alone prints what it lacks, and runs on the CPU."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and "CUDA" in str(value):
        pytest.skip("it is there")
    for use in (lambda: converted.to("onnx", providers=value), lambda: converted.verify(providers=value)):
        with pytest.raises(UsageError, match=rf"{words}.*\[bad-providers\]"):
            use()
    assert not capsys.readouterr().out


def test_a_bad_value_is_refused_before_the_conversion(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the conversion began")

    monkeypatch.setattr(torch.onnx, "export", convert)
    with pytest.raises(UsageError, match="bad-session-options"):
        program.to("onnx", session_options={"threads": 2})
    with pytest.raises(UsageError, match="bad-providers"):
        program.to("onnx", providers=["Nope"])


def test_a_provider_that_does_not_start_is_an_error(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would go on without it."""

    class Without(onnxruntime.InferenceSession):
        def __init__(self, model: Any, *args: Any, providers: Any, **kwargs: Any) -> None:
            super().__init__(model, *args, providers=providers[1:], **kwargs)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["Broken", "CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Without)
    with pytest.raises(UsageError, match=r"could not start Broken, and ran on CPUExec.*\[bad-providers\]"):
        program.to("onnx", providers=["Broken", "CPUExecutionProvider"])


def test_what_a_session_refuses_names_the_options(converted: Program) -> None:
    words = r"(?s)log severity level.* session_options may be the cause.*\[onnx-refused\]"
    with pytest.raises(ExportError, match=words):
        converted.to("onnx", session_options={"log_severity_level": 99})


def test_other_targets_have_no_sessions(program: Program, tmp_path: Path) -> None:
    program.save(tmp_path / "torch")
    for use in (
        lambda: program.to("torch", providers=["CPUExecutionProvider"]),
        lambda: program.verify(providers=["CPUExecutionProvider"]),
        lambda: onlooker.load(tmp_path / "torch", providers=["CPUExecutionProvider"]),
    ):
        with pytest.raises(UsageError, match=r"'torch' has no option providers.*\[unknown-option\]"):
            use()


def test_an_option_of_torch_is_followed_by_ours(program: Program) -> None:
    with pytest.raises(UsageError, match=r"no option opset_version\. Did you mean opset\? It takes .*opset, "):
        program.to("onnx", opset_version=18)


def test_a_program_of_onnx_has_no_operators_of_its_own(converted: Program, tmp_path: Path) -> None:
    converted.save(tmp_path / "onnx")
    with pytest.raises(UsageError, match=r"'onnx' has no option operators.*\[unknown-option\]"):
        onlooker.load(tmp_path / "onnx", operators=["mine"])

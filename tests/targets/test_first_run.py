"""A fresh file is opened and run in another process first, whose death is an error, on every target."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from onlooker import ExportError, InputObserver, Program
from onlooker.targets import first_run
from onlooker.targets.aoti import target as aoti
from onlooker.targets.executorch import target as executorch
from onlooker.targets.opened_later import OpenedLater
from onlooker.targets.targets import target_of

ABORTS = "os.abort()"
#: what stands in the place of each runtime
RUNS = "for name, (packages, _) in list(RUNTIMES.items()):\n    RUNTIMES[name] = (), lambda request: EXPRESSION\n"


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    first_run._helper.end()
    yield
    first_run._helper.end()


@pytest.fixture
def runtimes_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Lets the other process do something in the place of every runtime."""

    def start(expression: str) -> None:
        text = first_run.SCRIPT.read_text()
        main = 'if __name__ == "__main__":'
        script = tmp_path / "process" / "native_process.py"
        script.parent.mkdir()
        script.write_text(text.replace(main, RUNS.replace("EXPRESSION", expression) + main))
        monkeypatch.setattr(first_run, "SCRIPT", script)

    return start


@pytest.fixture(scope="module")
def program() -> Program:
    model, observer = torch.nn.Linear(3, 2).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for size in (2, 3, 5):
            model(torch.ones(size, 3))
    return observer.export(ranges={"batch": (1, 8)})


def checked(program: Program, tmp_path: Path) -> Path:
    """Checks a file of whatever content."""
    file = tmp_path / "a.onnx"
    file.write_bytes(b"content")
    first_run.check_first_run("ONNX Runtime", program.graphs[0], file, [("x", 1)], options={}, providers=[])
    return file


def helpers() -> list[int]:
    """The living and the dead children of this process that open files."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            text = folder.joinpath("cmdline").read_text()
        except OSError:
            continue
        if parent == os.getpid() and ("native_process" in text or not text):
            found.append(int(folder.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted by /proc")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["onnx", "openvino", "aoti", "executorch"])
def test_a_death_is_an_error_on_every_target_and_the_file_is_kept(
    name: str, program: Program, runtimes_do: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in {"onnx": ["onnxruntime"], "openvino": ["openvino"]}.get(name, []):
        pytest.importorskip(package, reason="the converter")
    monkeypatch.setattr(aoti, "compile_graph", lambda _: aoti.Package(b"package", {}))
    made = executorch.convert_graphs.__globals__["Converted"](b"program", {})
    monkeypatch.setattr(executorch, "convert_graphs", lambda *_: made)
    runtimes_do(ABORTS)
    with pytest.raises(ExportError, match=r"ended the process that opened and ran \S+ \(signal 6, SIGABRT") as caught:
        target_of(name).convert(program.graphs)
    assert caught.value.slug == "runtime-died"
    assert caught.value.graph == "main"
    kept = re.search(r"kept as (\S+),", str(caught.value))
    assert kept is not None
    assert Path(kept[1]).stat().st_size
    assert kept[1].endswith(target_of(name).suffix)


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_files_run_in_the_other_process(name: str, program: Program, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(name, name), reason="the runtime")
    with caplog.at_level("DEBUG", logger="onlooker.targets.first_run"):
        program.to(name)
    assert "in another process: kept" in caplog.text


@pytest.mark.parametrize("name", ["onnx", "openvino"])
@pytest.mark.slow
def test_a_conversion_is_compared_there_and_opened_here_at_the_first_call(
    name: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(name, name), reason="the runtime")
    asked: list[bytes] = []
    ask = first_run._helper.ask_again
    monkeypatch.setattr(first_run._helper, "ask_again", lambda request: asked.append(request) or ask(request))
    converted = program.to(name)
    later = converted.graphs[0].run
    assert isinstance(later, OpenedLater)
    assert later._runner is None
    count = len(asked)
    assert count >= 3  # the watched calls, and other sizes
    folder, x = later._elsewhere[1].parent, torch.randn(7, 3)
    assert folder.exists()
    torch.testing.assert_close(converted(x), program(x))
    assert later._runner is not None
    assert not folder.exists()
    converted(x)
    assert len(asked) == count + 1  # which found it closed


@pytest.mark.parametrize("name", ["onnx", "openvino"])
def test_a_conversion_is_compared_here_where_the_other_process_has_ended(
    name: str, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(name, name), reason="the runtime")
    ask = first_run._helper.ask_again
    monkeypatch.setattr(first_run._helper, "ask_again", lambda request: first_run._helper.end() or ask(request))
    converted, x = program.to(name), torch.randn(7, 3)
    assert converted.graphs[0].run._runner is not None
    torch.testing.assert_close(converted(x), program(x))


@pytest.mark.parametrize(
    ("expression", "words"),
    [("lambda _: os.abort()", "ended its process: signal 6"), ("lambda _: 1 / 0", "ZeroDivisionError")],
)
def test_a_run_there_that_fails_is_an_error_as_a_run_here(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path, expression: str, words: str
) -> None:
    runtimes_do(expression)
    file = tmp_path / "a.onnx"
    file.write_bytes(b"content")
    about = {"options": {}, "providers": [], "keep": True}
    assert not first_run.check_first_run("ONNX Runtime", program.graphs[0], file, [("x", 1)], **about)
    with first_run.kept_open():
        assert first_run.check_first_run("ONNX Runtime", program.graphs[0], file, [("x", 1)], **about)
        with pytest.raises(RuntimeError, match=words):
            first_run.run_again("ONNX Runtime", file, [("x", 1)])
    assert first_run.run_again("ONNX Runtime", file, [("x", 1)]) is None


def test_what_the_other_process_raises_says_nothing(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path
) -> None:
    runtimes_do("1 / 0")
    assert checked(program, tmp_path).exists()


def test_what_died_printed_stands_in_the_error(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path
) -> None:
    runtimes_do("(os.write(1, b'no such kernel'), os.abort())")
    with pytest.raises(ExportError, match="it printed: no such kernel"):
        checked(program, tmp_path)


def test_a_file_that_takes_for_ever_is_an_error(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("resource", reason="Windows limits no processor time")
    runtimes_do("[None for _ in iter(int, 1)]")
    monkeypatch.setattr(first_run, "MOST_SECONDS", 1)
    with pytest.raises(ExportError, match=r"did not come to an end with a.onnx .*SIGXCPU"):
        checked(program, tmp_path)


@pytest.mark.slow
def test_a_process_that_waits_for_ever_is_an_error(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtimes_do("time.sleep(1000)")
    monkeypatch.setattr(first_run, "_MOST_ON_THE_CLOCK", 1)
    with pytest.raises(ExportError, match=r"did not come to an end with a.onnx"):
        checked(program, tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks on Windows")
def test_the_end_of_a_process_is_seen_though_a_child_of_it_lives_on(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path
) -> None:
    runtimes_do("(os.fork() or time.sleep(60)) and os.abort()")
    begun = time.monotonic()
    with pytest.raises(ExportError, match=r"ended the process"):
        checked(program, tmp_path)
    assert time.monotonic() - begun < 45


def test_a_process_that_was_ended_from_outside_blames_no_file(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path
) -> None:
    runtimes_do("os.kill(os.getpid(), 9)")
    assert checked(program, tmp_path).exists()


def test_a_death_in_a_process_that_opened_other_files_is_tried_again(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path
) -> None:
    runtimes_do("os.abort() if globals().setdefault('seen', []) else globals()['seen'].append(1)")
    for _ in range(3):
        assert checked(program, tmp_path).exists()


@needs_proc
def test_one_process_serves_all_files_and_ends_with_this_one_and_before_a_fork(
    program: Program, runtimes_do: Callable[[str], None], tmp_path: Path
) -> None:
    runtimes_do("None")
    checked(program, tmp_path)
    (first,) = helpers()
    checked(program, tmp_path)
    assert helpers() == [first]
    os.kill(first, signal.SIGKILL)
    checked(program, tmp_path)
    (second,) = helpers()
    assert second != first
    child = os.fork()
    if not child:
        os._exit(0)
    # threads of other libraries may have held a lock that this child waits for, which is no matter of this test
    limit = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < limit:
        time.sleep(0.01)
    if time.monotonic() >= limit:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert helpers() == []


@needs_proc
@pytest.mark.slow
def test_it_ends_with_a_program_that_ends(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from onlooker.targets import first_run\n"
        "first_run.get_ready('ONNX Runtime')\n"
        "print(first_run._helper._process._process.pid)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert not Path("/proc", done.stdout.strip()).exists()
    assert not done.stderr


def test_without_a_python_to_start_files_are_opened_here(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_run.spawn, "get_executable", lambda: str(tmp_path / "none"))
    assert checked(program, tmp_path).exists()


class Encoder(torch.nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=batch_first)
        self.layers = torch.nn.TransformerEncoder(layer, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(ids)).mean(1)


class Turned(torch.nn.Module):
    """A product by a matrix of a tensor of float16 whose first axis was moved."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def watched(model: torch.nn.Module, *calls: torch.Tensor) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model.eval()):
        for call in calls:
            model(call)
    return observer.export()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("batch_first", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_encoder_of_halves_is_verified(batch_first: bool) -> None:
    pytest.importorskip("onnxruntime", reason="the runtime that died")
    torch.manual_seed(0)
    model = Encoder(batch_first=batch_first)
    program = watched(model, *(torch.randint(0, 50, size) for size in ((2, 5), (3, 9), (4, 7))))
    half, ids = program.to("onnx", precision="fp16"), torch.randint(0, 50, (5, 20))
    assert half.verify(atol=1e-2).verified
    with torch.no_grad():
        torch.testing.assert_close(half(ids), model(ids), atol=1e-2, rtol=1e-2)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, weight: x.permute(1, 2, 0) @ weight,
        lambda x, weight: weight @ x.permute(1, 2, 0),
        lambda x, weight: weight @ x.transpose(0, 1),
    ],
    ids=["last", "matrix_first", "matrix_first_rows"],
)
def test_products_of_turned_halves_are_verified(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    pytest.importorskip("onnxruntime", reason="the runtime that died")
    torch.manual_seed(0)
    program = watched(Turned(function), *(torch.randn(4, size, 4) for size in (2, 3, 5)))
    assert program.to("onnx", precision="fp16").verify(atol=2e-2).verified

"""Where long work stands, told step by step; and nothing that an interrupt leaves half done."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import Step
from onlooker.core.support.progress import listening, tell
from onlooker.report.progress import _ProgressLines, shown_on


class Branching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * 2 if x.shape[0] > 6 else self.layer(x)


def watched() -> tuple[Branching, onlooker.InputObserver]:
    model, observer = Branching(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for size in (2, 3, 9):
            model(torch.ones(size, 4))
    return model, observer


def use(observer: onlooker.InputObserver, folder: Path) -> None:
    """Every piece of work that lasts."""
    program = observer.export(to="torch")
    program.verify()
    program.save(folder, values=True)
    onlooker.load(folder)


def test_every_piece_of_work_is_told_with_what_is_left(tmp_path: Path) -> None:
    _, observer = watched()
    steps: list[Step] = []
    with onlooker.progress(steps.append):
        use(observer, tmp_path / "program")
    assert [*dict.fromkeys(step.what for step in steps)] == ["probing", "tracing", "verifying", "saving", "loading"]
    verifying = [step for step in steps if step.what == "verifying"]
    assert [step.done for step in verifying] == [*range(len(verifying))]
    assert [step.left for step in verifying] == [*range(len(verifying) - 1, -1, -1)], "it comes to 0"
    assert all(step.at_most for step in steps if step.what == "probing")
    files = [step.detail for step in steps if step.what == "loading"]
    assert set(files) == {path.name for path in (tmp_path / "program").iterdir()} - {"onlooker.json"}
    steps.clear()
    observer.export()
    assert steps == [], "nobody is told after the block"


def test_a_conversion_is_told() -> None:
    pytest.importorskip("onnxscript")
    _, observer = watched()
    program, steps = observer.export(), []
    with onlooker.progress(steps.append):
        program.to("onnx")
    assert [(step.what, step.done, step.total) for step in steps] == [
        ("converting to ONNX", 0, 2),
        ("converting to ONNX", 1, 2),
    ]


def test_a_callback_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    _, observer = watched()

    def failing(step: Step) -> None:
        raise ValueError("a bug of the caller")

    with onlooker.progress(failing):
        program = observer.export()
        tally = program.verify()
    assert tally.verified, "it was not taken for a refusal of the model"
    assert "a listener of the progress has failed" in caplog.text


def test_an_interrupt_at_any_step_leaves_all_as_it_was(tmp_path: Path) -> None:
    """At every step, one after the other: model, folder, and what was registered."""
    model, observer = watched()
    folder = tmp_path / "program"
    use(observer, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    attributes, methods = dict(vars(model)), dict(vars(type(model)))
    call, random = torch.nn.Module.__call__, torch.get_rng_state()
    total: list[Step] = []
    with onlooker.progress(total.append):
        use(observer, tmp_path / "other")
    chosen = {step.what: place for place, step in enumerate(total)}
    places = sorted({0, 1, *chosen.values(), *range(0, len(total), 9)})
    for place in places:
        left = iter(range(place))

        def interrupting(step: Step, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) as caught, onlooker.progress(interrupting):
            use(observer, folder)
        if total[place].what == "verifying":
            assert "verify() with the same arguments goes on from there" in caught.value.__notes__[0]
        if total[place].what == "saving":
            assert caught.value.__notes__ == [f"{folder} is as it was before the save."]
        assert dict(vars(model)) == attributes
        assert dict(vars(type(model))) == methods
        assert torch.nn.Module.__call__ is call
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "program"], "no half of a folder"
        assert onlooker.load(folder).verify_saved().failed == 0
    assert {path.name for path in folder.iterdir()} == before.keys()


def test_a_verification_goes_on_after_an_interrupt() -> None:
    _, observer = watched()
    program, whole = observer.export(), observer.export().verify()
    told: list[int] = []

    def interrupting(step: Step) -> None:
        told.append(step.done)
        if step.done == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught, onlooker.progress(interrupting):
        program.verify()
    assert caught.value.__notes__[0].startswith("9 trials were made and are kept")
    assert program.verify() == whole


def test_a_stage_is_a_line_where_there_is_no_terminal() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = _ProgressLines(stream, lambda: now[0])
    lines.say("exporting")
    lines.log("run 54, experiment 51 of at most 512")
    for number in range(120):
        now[0] = float(number)
        lines.step(Step("verifying", number, 400, f"batch={number}"))
    said = [line[10:] for line in stream.getvalue().splitlines()]
    assert said[:2] == ["exporting", "verifying"]
    assert len(said) == 4, "two more, after 30 seconds of silence and after 60"
    assert all(line.startswith("verifying: ") for line in said[2:])


def test_a_bar_says_what_is_done_and_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with shown_on(stream) as shown, listening(shown.step):
        tell("verifying", 12, 40, "batch=[red]3")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "12/40 verifying, 28 left: batch=[red]3" in text
    with shown_on(stream) as shown:
        shown.step(Step("verifying", 12, 40))
        shown.say("saving")
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "0/? saving ..." in text, "the number of the work before is gone"
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h"), "the cursor is back"


APP = """
import time, torch
class Net(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.15)  # each word stands long enough to be drawn
        return x * 2
def build():
    net = Net()
    return net, lambda: [net(torch.ones(size, 4)) for size in (2, 3)]
"""


@pytest.mark.skipif(os.name != "posix", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("word", [pytest.param("tracing", marks=pytest.mark.slow), "verifying"])
@pytest.mark.slow
def test_ctrl_c_in_a_terminal_leaves_terminal_and_folder(word: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    out = tmp_path / "out"
    leader, follower = pty.openpty()
    source = str(Path(onlooker.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "onlooker", "export", "app.py:build", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": source, "TERM": "xterm", "COLUMNS": "100"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test in the background ignores it
    )
    os.close(follower)
    seen, is_sent, end = b"", False, time.monotonic() + 300
    while time.monotonic() < end:
        try:
            seen += os.read(leader, 65536)
        except OSError:  # the last one has closed it
            break
        if not is_sent and word.encode() in seen:
            is_sent = True
            process.send_signal(signal.SIGINT)
    os.close(leader)
    assert process.wait(timeout=60) == 130, seen.decode()
    assert b"onlooker: interrupted. out is as it was." in seen
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h"), "the cursor is back"
    assert not out.exists()

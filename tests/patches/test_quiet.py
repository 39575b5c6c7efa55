"""What torch prints of its graphs is kept for the error and the log; what others print goes where it went."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import ExportError, InputObserver
from onlooker.patches import quiet
from onlooker.patches.quiet import what_is_printed


class Branches(torch.nn.Module):
    """Cannot be exported: the value has to be a number of Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sys.stderr.write("the model speaks\n")
        return x * {2.0: 3}.get(x.sum().item(), 1)


class Counts(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[: int(mask.sum().item())] * 2


def printed_by_torch(text: str) -> None:
    """Prints as a file of torch does."""
    code = compile(f"import sys; print({text!r}, file=sys.stderr)", torch.__file__, "exec")
    exec(code, {})


def test_graphs_are_in_the_details_and_in_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, observer = Branches(), InputObserver()
    with observer(model):
        model(torch.ones(2, 1))
        model(torch.ones(3, 1))
    before = sys.stderr
    with caplog.at_level(logging.DEBUG, "onlooker.patches.quiet"), pytest.raises(ExportError) as caught:
        observer.export(probe=False)
    assert sys.stderr is before
    assert "def forward" in caught.value.details
    assert len(caught.value.details) < 21_000
    assert "def forward" in caplog.text
    shown = capsys.readouterr().err
    assert "the model speaks" in shown
    assert "def forward" not in shown


def test_an_export_that_goes_well_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    model, observer = Counts(), InputObserver()
    with observer(model):
        for n in (3, 4):
            model(torch.ones(n, 3), torch.ones(n - 1))
    capsys.readouterr()
    observer.export(probe=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("asked", [False, True])
def test_what_torch_logs_is_kept_unless_it_was_asked_for(
    asked: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LOGS", "dynamic" if asked else "")
    of_torch = logging.getLogger("torch._subclasses.fake_tensor")
    handler = logging.StreamHandler()  # sys.stderr of this test
    of_torch.addHandler(handler)
    try:
        with what_is_printed() as printed:
            of_torch.warning("a size is a constant")
            logging.getLogger("model").warning("of the model")
        of_torch.warning("after it")
    finally:
        of_torch.removeHandler(handler)
    assert ("a size is a constant" in printed.text) is not asked
    shown = capsys.readouterr().err
    assert ("a size is a constant" in shown) is asked
    assert "after it" in shown
    assert not handler.filters


class EachLength(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.mean(0) for part in x.split(lengths.tolist())])


def test_saving_and_loading_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, observer = EachLength(), InputObserver()
    with observer(model):
        for lengths in ([3, 4], [2, 5, 4]):
            model(torch.randn(sum(lengths), 4), torch.tensor(lengths))
    program = observer.export()
    monkeypatch.setenv("TORCH_LOGS", "")
    of_torch = [logging.getLogger(name) for name in ("torch._export.serde.serialize", "torch.export")]
    handler = logging.StreamHandler()  # sys.stderr of this test
    for one in of_torch:
        one.addHandler(handler)
    capsys.readouterr()
    try:
        program.save(tmp_path / "a folder")
        program.save(tmp_path / "a file.pt2")
        loaded = onlooker.load(tmp_path / "a folder")
    finally:
        for one in of_torch:
            one.removeHandler(handler)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    x, lengths = torch.randn(9, 4), torch.tensor([1, 5, 3])
    torch.testing.assert_close(loaded(x, lengths), model(x, lengths))


def test_long_prints_are_cut() -> None:
    with what_is_printed() as printed:
        for _ in range(50):
            printed_by_torch("x" * 1000)
    assert printed.text.startswith("xxx")
    assert printed.text.endswith("[50050 characters in all]")
    assert len(printed.text) < 21_000


def test_blocks_of_threads_may_overlap(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with what_is_printed():
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=other)
    with what_is_printed() as printed:
        thread.start()
        inside.wait(20)
        printed_by_torch("mine")
    printed_by_torch("nobody's")
    sys.stderr.write("ours\n")
    leave.set()
    thread.join()
    assert sys.stderr is before
    assert quiet._stand is None
    assert printed.text == "mine"
    assert capsys.readouterr().err == "ours\n"


def test_a_stream_that_was_replaced_inside_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        encoding = "mine"

        def write(self, text: str) -> int:
            return len(text)

    mine, before = Stream(), sys.stderr
    with what_is_printed():
        assert sys.stderr.encoding == before.encoding
        sys.stderr = mine  # type: ignore[assignment]
    assert sys.stderr is mine
    sys.stderr = before
    monkeypatch.setattr(sys, "stderr", None)
    with what_is_printed():
        assert sys.stderr is None


def test_the_signature_of_export_is_its_own() -> None:
    names: Any = inspect.signature(InputObserver.export).parameters
    assert {"self", "to", "budget"} <= set(names)


SCRIPT = """
import sys, warnings
import torch
from onlooker import InputObserver

class WarnsOfOne(torch.nn.Module):
    def forward(self, x):
        if x.shape[0] == 1:
            warnings.warn("one row")
        return x - x.std(0)

model, observer = WarnsOfOne(), InputObserver()
with observer(model):
    model(torch.randn(3, 4))
    model(torch.randn(5, 4))
observer.export()
print("mine", file=sys.stderr)
model(torch.randn(1, 4))
"""


def test_what_a_model_warns_of_in_experiments_is_not_written() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    before, _, after = run.stderr.partition("mine")
    assert "UserWarning" not in before
    assert "UserWarning: one row" in after

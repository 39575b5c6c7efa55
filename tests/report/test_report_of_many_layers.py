"""A model of many layers: its report, its errors and the command line say once what all layers share."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker import InputObserver, UsageError
from onlooker.cli import main
from onlooker.core.contract import Dropped
from onlooker.core.traffic import Violation, ViolationKind
from onlooker.core.verdict import Tally
from onlooker.program import Program
from onlooker.report.data import GraphReport
from onlooker.report.text import as_text, render
from onlooker.serve.route import Mismatch

LAYERS = 6


class Many(torch.nn.Module):
    """Adds what it is given of the past of each layer."""

    def forward(self, x: torch.Tensor, past: list[dict[str, torch.Tensor]]) -> list[torch.Tensor]:
        return [torch.cat([layer["keys"], x], 1) * layer["scale"] for layer in past]


def call(rows: int, length: int, past: int) -> dict[str, Any]:
    state = [{"keys": torch.randn(rows, past, 4), "scale": torch.randn(4)} for _ in range(LAYERS)]
    return {"x": torch.randn(rows, length, 4), "past": state}


@pytest.fixture(scope="module")
def observer() -> InputObserver:
    torch.manual_seed(0)
    model, observer = Many(), InputObserver()
    with observer(model):
        for sizes in ((2, 5, 3), (3, 7, 4), (4, 6, 9)):
            model(**call(*sizes))
    return observer


@pytest.fixture(scope="module")
def program(observer: InputObserver) -> Program:
    program = observer.export(probe=False)
    assert program.verify().verified
    return program


def test_equal_rows_of_a_report_are_one(program: Program) -> None:
    text, full = program.report.text(), program.report.text(full=True)
    assert text == str(program.report)
    assert text.count("past[0..5]['keys']") == 1
    assert text.count("past[0..5]['scale']") == 1
    assert "past[3]['keys']" not in text
    assert all(f"past[{layer}]['{part}']" in full for layer in range(LAYERS) for part in ("keys", "scale"))
    assert len(text.splitlines()) + 2 * LAYERS - 2 <= len(full.splitlines())
    assert len(program.report.to_dict()["graphs"][0]["axes"]) == 3 + LAYERS * 4  # type: ignore[index,call-overload]


def test_an_error_says_once_what_all_layers_are_called(program: Program) -> None:
    with pytest.raises(UsageError, match=r"It has x, past\[0\.\.5\]\['keys'\], past\[0\.\.5\]\['scale'\]\."):
        program.plans[0].leaf("past[0].keys")


def test_a_refusal_says_once_what_all_layers_do() -> None:
    violations = [Violation(ViolationKind.TYPE, f"past[{layer}]", "float32[4]", "float64[4]") for layer in range(24)]
    assert str(Mismatch(*violations)) == "past[0..23] is a float32[4], the call has float64[4]"


def test_proofs_of_one_condition_are_one_line() -> None:
    two = (
        Dropped("n != 1", "traced with n = 5", "a.py:3"),
        Dropped("n != 1", "traced with n = 7", "a.py:3"),
        Dropped("n != 0", "traced"),
    )
    graph = GraphReport("main", "torch", (), (), (), (), (), (), (), ("a note", "a note"), 0.0, (), two)
    short, full = (as_text(render("m", [graph], Tally(), "", (), full=full)) for full in (False, True))
    assert short.count("n != 1") == 1
    assert "n != 1 (a.py:3) is not needed: traced with n = 5 (and 1 more)" in short
    assert full.count("n != 1") == 2
    assert (short.count("a note"), full.count("a note")) == (1, 2)


@pytest.fixture(scope="module")
def saved(program: Program, observer: InputObserver, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("saved")
    program.save(folder / "program")
    observer.recording().save(folder / "calls.json")
    return folder / "program", folder / "calls.json"


def printed(*arguments: object) -> str:
    stdout, stderr = io.StringIO(), io.StringIO()
    assert main([*map(str, arguments)], stdout, stderr) in (0, 2), stderr.getvalue()
    return stdout.getvalue()


@pytest.mark.parametrize("which", [0, 1], ids=["program", "recording"])
def test_show_draws_layers_together_unless_it_is_asked_for_all(saved: tuple[Path, Path], which: int) -> None:
    assert "past[0..5]['keys']" in printed("show", saved[which])
    full = printed("show", saved[which], "--full")
    assert "0..5" not in full
    assert full.count("['keys']") >= LAYERS


def test_explain_names_layers_once_and_takes_what_a_report_names(saved: tuple[Path, Path]) -> None:
    text = printed("explain", saved[0], "past[0..5]['keys']", 1)
    assert text.splitlines()[1].startswith("  past[0]['keys'].shape[1] is ")
    assert len(max(text.splitlines(), key=len)) < 500
    full = printed("explain", saved[0], "past[0]['keys']", 0, "--full")
    assert "0..5" not in full


def test_check_draws_layers_together(program: Program) -> None:
    wrong = call(2, 5, 3)
    for layer in wrong["past"]:
        layer["scale"] = torch.randn(5)
    found = program.check([wrong])
    assert "past[0..5]['scale'].shape[0]" in found.text()
    assert found.text(full=True).count("['scale'].shape[0]") == LAYERS


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_report_is_as_wide_as_the_terminal(program: Program, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = program.report.text().splitlines()
    assert max(map(len, lines)) <= width
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert max(map(len, program.report.text().splitlines())) <= 118

"""``onlooker verify`` of a file that somebody else exported."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from onlooker.cli import main

sys.path.insert(0, str(Path(__file__).parents[1]))
from foreign_exports import branching_pt2

APP = """
import sys
sys.path.insert(0, {tests!r})
import torch
from foreign_exports import Branching

def build():
    model = Branching()
    draw = torch.Generator().manual_seed(1)
    def use():
        for shape in ((3, 4), (5, 6)):
            model(torch.randn(*shape, generator=draw) * 100)
    return model, use
"""


def test_a_foreign_program_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.export.save(branching_pt2(), tmp_path / "branching.pt2")
    text = APP.format(tests=str(Path(__file__).parents[1]))
    (tmp_path / "branching_app.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    out, err = io.StringIO(), io.StringIO()
    asked = ["verify", "branching.pt2", "--build", "branching_app.py:build", "--json"]
    assert main(asked, out, err) == 2, err.getvalue()
    found = json.loads(out.getvalue())
    assert not found["holds"]
    assert found["findings"][0]["where"] == "x.shape[0]"
    row = found["axes"][0]
    assert row["held"]["1"] == "1: wrong"
    assert row["held"]["unseen"].endswith("holds")


def test_a_foreign_program_needs_a_model(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    (tmp_path / "some.onnx").touch()
    assert main(["verify", str(tmp_path / "some.onnx")], out, err) == 1
    assert "no-model" in err.getvalue()

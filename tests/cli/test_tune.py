"""``onlooker tune``: the smallest program that holds a bound, from a saved one and its model."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

import onlooker
from onlooker.cli import main

APP = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = (torch.nn.Linear(64, size) for size in (64, 64, 10))
        with torch.no_grad():
            self.second.weight[:, 3] *= 60

    def forward(self, x):
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))

def build():
    net = Net().eval()
    def use():
        numbers = torch.Generator().manual_seed(1)
        for rows in (2, 3, 5, 8):
            net(torch.randn(rows, 64, generator=numbers))
    return net, use
"""


def run(*argv: str) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return main(argv, stdout, stderr), stdout.getvalue(), stderr.getvalue()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/onlooker")
    Path("uneven_app.py").write_text(APP, encoding="utf-8")
    assert run("export", "uneven_app.py:build", "--no-verify", "--out", "program", "-q")[0] == 0
    return "program"


def test_a_search_is_shown_and_saved(program: str) -> None:
    words = ("tune", program, "--build", "uneven_app.py:build", "--precisions", "int8")
    code, stdout, stderr = run(*words, "--error", "0.015", "--out", "tuned")
    assert code == 0, stderr
    assert "*  int8, 1 layer in floats" in stdout
    assert "in floats: second" in stdout
    assert "next: onlooker show tuned/program" in stdout + stderr
    loaded = onlooker.load("tuned/program")
    assert loaded.graphs[0].options == {"precision": "int8", "float_layers": "second"}
    assert loaded.report.verified
    code, stdout, _ = run(*words, "--error", "0.015", "--out", "tuned", "--json")
    assert code == 0
    assert json.loads(stdout)["best"] == 2
    code, stdout, _ = run(*words, "--error", "0.015", "--runs", "1")
    assert code == 0
    assert "no run is left" in stdout
    assert run(*words)[0] == 1
    code, _, stderr = run("tune", program, "--error", "0.1")
    assert code == 1
    assert "Give the function of the model: --build MODULE:FUNCTION. [no-model]" in stderr

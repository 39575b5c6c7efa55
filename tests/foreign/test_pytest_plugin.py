"""pytest judges exports by a fixture, and says at the end what it judged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import torch


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x.clamp(-50, 50) * 2


def export(model, **how):
    return torch.export.export(model, (torch.randn(3, 4),), **how)


CALLS = [((100 + torch.arange(4.0 * rows).view(rows, 4),), {}) for rows in (3, 5)]


def test_right(export_holds):
    model = torch.nn.Linear(4, 2)
    assert export_holds(model, export(model, dynamic_shapes={"input": {0: torch.export.Dim.DYNAMIC}}), CALLS).holds


def test_wrong(export_holds):
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("n")}
    export_holds(Scaled(), export(Scaled(), dynamic_shapes={"x": sizes}), CALLS)
"""


@pytest.mark.parametrize("more", [[], pytest.param(["--numprocesses", "1"], marks=pytest.mark.slow)])
def test_the_fixture_judges_and_the_summary_says_it(tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "test_app.py").write_text(APP)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *more, "test_app.py"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    summary = done.stdout.partition("exports judged by onlooker")[2]
    assert "test_app.py::test_right: torch.export of torch.nn.modules.linear.Linear.forward: holds" in summary
    assert "test_app.py::test_wrong: torch.export of test_app.Scaled.forward: does not hold" in summary
    assert "the model decides by" in " ".join(done.stdout.split())

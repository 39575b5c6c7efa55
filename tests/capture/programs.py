"""Programs of users, which know nothing of onlooker, and how the tests run them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from onlooker.capture.combine import Captured, read_captured
from onlooker.capture.settings import Settings

#: every program begins with this one, as app.py
NET = """
import os, sys, time, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, scale=1):
        return self.layer(x) * scale

    def other(self, x):
        return self.layer(x).sum()
"""


def environment(into: Path, **asked: object) -> dict[str, str]:
    """That of a watched program; ``asked`` are further fields of the settings."""
    clean = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "RANK")}
    return Settings(str(into), **asked).environment(clean)  # type: ignore[arg-type]


def started(folder: Path, code: str, *args: str, command: Sequence[str] = (), **asked: object) -> subprocess.Popen[str]:
    """A watched program, which runs; its code is put behind that of the model, into app.py."""
    (folder / "app.py").write_text(NET + code)
    return subprocess.Popen(
        [sys.executable, *(command or ["app.py"]), *args],
        cwd=folder,
        env=environment(folder / "seen", **asked),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(
    folder: Path, code: str, *args: str, command: Sequence[str] = (), **asked: object
) -> subprocess.CompletedProcess[str]:
    """A watched program that has ended by itself."""
    process = started(folder, code, *args, command=command, **asked)
    stdout, stderr = process.communicate(timeout=400)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def captured(folder: Path) -> Captured:
    return read_captured(folder / "seen")


def counts(folder: Path) -> Mapping[str, int]:
    """The number of calls of each entry point, in all processes."""
    return {one.name: one.n_calls for one in captured(folder).seen}

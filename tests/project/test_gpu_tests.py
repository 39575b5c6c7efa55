"""The tests of ``tests/gpu`` are left out where torch has no CUDA device, and can be collected where it has one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
COLLECT = """
import sys, torch, pytest
torch.cuda.is_available = lambda: sys.argv[1] == "there"
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests/gpu"]))
"""


def collected(device: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COLLECT, device]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=hidden)


@pytest.mark.slow
def test_they_are_left_out_without_a_device_and_it_says_why() -> None:
    result = collected("absent")
    assert result.returncode == 5, result.stdout + result.stderr
    assert "tests/gpu is left out: torch.cuda.is_available() is False" in result.stdout
    assert "test_watching" not in result.stdout


@pytest.mark.slow
def test_they_are_collected_where_there_is_one() -> None:
    result = collected("there")
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(re.findall(r"tests/gpu/(test_\w+\.py)::", result.stdout)) == {path.name for path in FILES}
    assert "left out" not in result.stdout


def test_each_prints_what_it_measured() -> None:
    for path in FILES:
        for function in re.split(r"^(?=def )", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            if function.startswith("def test_") and "pytest.raises" not in function:
                assert "print(" in function, function.partition("(")[0]

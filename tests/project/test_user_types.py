"""A type checker sees the types of onlooker in the code of a user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SAMPLE = Path(__file__).parent / "user_code.py"


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_code_of_a_user_has_no_error() -> None:
    done = checked(SAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_use_is_an_error(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import onlooker\n\nnumber: int = onlooker.InputObserver().export()\nonlooker.no_such_name\n")
    done = checked(wrong)
    assert done.returncode == 1
    assert 'has no attribute "no_such_name"' in done.stdout
    assert 'expression has type "Program", variable has type "int"' in done.stdout

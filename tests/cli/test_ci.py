"""`onlooker ci`, the action of GitHub and the hook of pre-commit: they find drift, and say at which line."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import onlooker
from onlooker.cli import main

ROOT = Path(__file__).parent.parent.parent
APP = """
import torch


class Scorer(torch.nn.Module):
    def __init__(self, drift=0.0):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.drift = drift

    def forward(self, x):
        if x.shape[1] > 64:
            raise ValueError("too long")
        return self.layer(x).squeeze(-1).mean(1) + self.drift


def build(drift=0.0):
    torch.manual_seed(0)
    model = Scorer(drift).eval()
    return model, lambda: [model(torch.randn(batch, length, 4)) for batch, length in ((2, 5), (3, 7))]


def drifted():
    return build(0.25)
"""


@pytest.fixture(scope="module", autouse=True)
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with a model, its program, and two recordings; it is the current directory."""
    place = tmp_path_factory.mktemp("repository")
    (place / "models").mkdir()
    (place / "models" / "app.py").write_text(APP)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(sys, "path", [*sys.path])
        for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
            patch.delenv(name, raising=False)
        words = ("export", "models/app.py:build", "--out", "program", "--save-recording", "calls.json")
        assert run(*words)[0] == 0
        recording = json.loads(Path("calls.json").read_text())
        text = json.dumps(recording)
        Path("longer.json").write_text(re.sub(r"\b7, 4\b", "300, 4", text))
        yield place
        sys.modules.pop("app", None)


def run(*words: str) -> tuple[int, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main(words, stdout, stderr)
    return code, stdout.getvalue() + (stderr.getvalue() if code == 1 else "")


def test_what_holds_is_said_in_two_lines() -> None:
    code, said = run(
        "ci", "program", "--recording", "calls.json", "--build", "models/app.py:build", "--out", "page.html"
    )
    assert code == 0
    assert said.splitlines()[0] == "calls: 0 of 2 calls fall outside"
    assert re.fullmatch(r"model: (\d+) of \1 checks passed", said.splitlines()[1])
    assert "<html" in Path("page.html").read_text()


def test_calls_that_fall_outside_are_shown_at_the_line_of_the_model() -> None:
    code, said = run("ci", "program", "--recording", "longer.json", "--json")
    found = json.loads(said)
    assert (code, found["holds"], found["steps"]) == (2, False, {"calls": "1 of 2 calls fall outside"})
    (fault,) = found["faults"]
    assert "300" in fault["message"]
    line = 1 + APP.splitlines().index("        if x.shape[1] > 64:")
    assert (fault["file"], fault["line"]) == (os.path.join("models", "app.py"), line), fault["message"]


def test_a_model_that_drifted_is_shown_at_its_function() -> None:
    code, said = run("ci", "program", "--build", "models/app.py:drifted")
    assert code == 2
    line = 1 + APP.splitlines().index("def drifted():")
    faults = [text for text in said.splitlines() if text.startswith(f"models/app.py:{line}: model: ")]
    assert 1 <= len(faults) <= 10


def test_an_error_is_a_fault_too() -> None:
    code, said = run("ci", "program", "--build", "models/app.py:absent", "--recording", "calls.json")
    assert code == 1
    assert "models/app.py:1: model: " in said
    assert "[bad-function]" in said
    assert "[bad-command-line]" in run("ci", "program")[1]


def step_of_action(name: str, inputs: dict[str, str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a step of the action as the runner does: expressions are replaced, bash ends at the first error."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {key: str(each.get("default", "")) for key, each in action["inputs"].items()} | inputs
    values = {f"inputs.{key}": value for key, value in given.items()} | {"github.action_path": str(ROOT)}
    (step,) = [step for step in action["runs"]["steps"] if step["name"] == name]
    variables = {
        key: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda found: values[found[1]], text) for key, text in step["env"].items()
    }
    script = Path("step.sh")
    script.write_text(step["run"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        env={**os.environ, "PATH": path, **variables, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_action_of_github_annotates_lines(tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    runner = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), "PYTHONPATH": str(ROOT / "src")}
    installed = step_of_action("Install onlooker, where it is not there yet", {}, runner)
    assert installed.stdout.startswith(f"onlooker {onlooker.__version__}")
    inputs = {"program": "program", "recording": "longer.json", "page": str(tmp_path / "p ge.html")}
    done = step_of_action("Check the program", inputs, runner)
    assert done.returncode == 2, done.stderr
    (annotation,) = [line for line in done.stdout.splitlines() if line.startswith("::error ")]
    assert re.fullmatch(r"::error file=[\w./]+,line=\d+,title=onlooker%3A calls::x\.shape\[1\] .*300.*", annotation)
    assert "1 of 2 calls fall outside" in summary.read_text()
    assert (tmp_path / "p ge.html").exists()
    done = step_of_action("Check the program", {**inputs, "recording": "calls.json"}, runner)
    assert (done.returncode, "::error" in done.stdout) == (0, False)


def test_a_text_of_a_user_is_no_command_of_a_runner() -> None:
    from onlooker.cli.work.ci import Fault

    fault = Fault("calls", "50 %\n::warning::hello", "a,b:c.py", 3)
    assert fault.command == "::error file=a%2Cb%3Ac.py,line=3,title=onlooker%3A calls::50 %25%0A::warning::hello"


def test_the_hook_of_pre_commit_runs_it() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    words = [*shlex.split(hook["entry"]), "program", "--recording", "longer.json"]
    assert words[0] == "onlooker"
    code, said = run(*words[1:])
    assert code == 2
    assert "calls: x.shape[1]" in said
    assert not hook["pass_filenames"]


def test_all_inputs_of_the_action_are_used() -> None:
    action: Any = yaml.safe_load((ROOT / "action.yml").read_text())
    text = (ROOT / "action.yml").read_text()
    assert all(f"${{{{ inputs.{name} }}}}" in text for name in action["inputs"])
    assert action["runs"]["steps"][-1]["if"] == "always()"

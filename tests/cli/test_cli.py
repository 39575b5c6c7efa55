"""The command line: what it prints where, and its exit codes."""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker.cli import COMMANDS, main
from onlooker.cli.command import to_type
from onlooker.cli.progress import progress
from onlooker.cli.work import demo
from onlooker.core.errors import ExportError
from onlooker.core.verdict import Check, Outcome, Tally

GOOD = Check("unseen", "batch=5", Outcome.EXACT)
BAD = Check("unseen", "batch=7", Outcome.DIFFERENT, difference=0.5)


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/onlooker")


def run(*argv: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code = main(argv, stdout, stderr)
    return code, stdout.getvalue(), stderr.getvalue()


class StandInReport:
    def __init__(self, tally: Tally) -> None:
        self.verified = tally.verified

    def __str__(self) -> str:
        return "the report"

    def excerpt(self, *headings: str) -> str:
        assert headings == ("graphs", "sizes", "inputs", "outputs")
        return "the report"

    def to_dict(self) -> dict[str, object]:
        return {"verdict": str(self)}


class StandInProgram:
    def __init__(self, target: str, checks: tuple[Check, ...]) -> None:
        self.target = target
        self.checks = checks
        self.report = StandInReport(Tally(checks))

    def to(self, target: str) -> StandInProgram:
        return StandInProgram(target, self.checks)

    def verify(self, *, sizes: Any) -> Tally:
        assert sizes, "the sizes of the tiny model are tried"
        return Tally(self.checks)

    def save_graphs(self, directory: Path) -> list[Path]:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"graph.{self.target}"
        file.touch()
        return [file]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the observer by one whose programs have the given checks: a command line needs no export."""

    def use(*checks: Check, error: Exception | None = None) -> None:
        class StandInObserver:
            @contextmanager
            def __call__(self, model: torch.nn.Module) -> Iterator[Any]:
                yield self

            def export(self) -> StandInProgram:
                logging.getLogger("onlooker.graphs").info("a stage\nand a page of details")
                if error is not None:
                    raise error
                return StandInProgram("torch", checks)

        monkeypatch.setattr(demo, "InputObserver", StandInObserver)

    return use


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing"], "onlooker: Argument COMMAND: invalid choice: 'nothing'"),
        (["--nothing"], "onlooker: Unrecognized arguments: --nothing"),
        (
            ["demo", "lama"],
            "onlooker: Argument NAME: invalid choice: 'lama' (choose from llama, gpt2, bert, vit). Did you mean llama?",
        ),
        (["demo", "--to", "tflite"], "onlooker: Argument --to: invalid choice: 'tflite'"),
        (["demo", "--out"], "onlooker: Argument -o/--out: expected one argument."),
    ],
)
def test_a_wrong_command_line_is_an_error_in_one_line(argv: list[str], message: str) -> None:
    code, stdout, stderr = run(*argv)
    assert (code, stdout) == (1, "")
    assert stderr.startswith(message)
    assert stderr.endswith("--help. [bad-command-line]\n")
    assert stderr.count("\n") == 1


def test_no_command_shows_the_help_and_is_an_error() -> None:
    code, stdout, stderr = run()
    assert (code, stdout) == (1, "")
    assert stderr.startswith("usage: onlooker ")


def test_help_names_every_command_and_the_exit_codes() -> None:
    code, stdout, stderr = run("--help")
    assert (code, stderr) == (0, "")
    assert all(re.search(rf"\n    {command.name}\s", stdout) for command in COMMANDS)
    assert "exit codes: 0 done and verified, 1 an error, 2 not verified" in stdout


def test_help_of_a_command() -> None:
    code, stdout, _ = run("demo", "--help")
    assert code == 0
    assert "llama, gpt2, bert, vit" in stdout
    assert "--to {torch,onnx,both}" in stdout


@pytest.mark.parametrize("command", ["demo", "export", "html"])
def test_where_a_command_writes_has_one_name(command: str) -> None:
    code, stdout, _ = run(command, "--help")
    assert code == 0
    assert re.search(r"-o, --out|-o (DIR|FILE), --out", stdout)


def test_the_list_of_commands_has_whole_sentences() -> None:
    _, stdout, _ = run("--help")
    listed = " ".join(stdout.partition("commands:")[2].partition("exit codes:")[0].split())
    names = [command.name for command in COMMANDS]
    sentences = re.split(rf" (?=(?:{'|'.join(names)}) [A-Z])", listed.removeprefix("COMMAND "))
    assert [text.split()[0] for text in sentences] == names
    assert not [text for text in sentences if not text.endswith(".")]


def test_version() -> None:
    code, stdout, _ = run("--version")
    assert code == 0
    assert stdout.startswith("onlooker ")


@pytest.mark.parametrize(
    ("checks", "code", "line"),
    [
        ((GOOD, GOOD), 0, "torch: verified, 2 of 2 checks passed, largest difference 0.0e+00"),
        ((GOOD, BAD), 2, "torch: NOT verified, 1 of 2 checks passed, largest difference 5.0e-01"),
        ((), 2, "torch: NOT verified, 0 of 0 checks passed, largest difference 0.0e+00"),
    ],
)
def test_the_verdict_and_the_exit_code(
    stand_in: Callable[..., None], checks: tuple[Check, ...], code: int, line: str
) -> None:
    stand_in(*checks)
    got, stdout, _ = run("demo", "vit", "--to", "torch")
    assert got == code
    assert stdout == (
        "vit: watched two calls: 2 images, then 3.\n\nthe report\n\n"
        f"{line}\n\nnext: onlooker demo vit --to torch --out out/vit\n"
    )


def test_the_next_command_can_be_typed_where_the_environment_is_not_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "onlooker"
    script.parent.mkdir()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    assert to_type("demo") == "python -m onlooker demo"
    script.touch()
    assert to_type("demo", "--out", "a b") == f"{script} demo --out 'a b'"
    monkeypatch.chdir(tmp_path)
    assert to_type("demo") == "bin/onlooker demo"


def test_both_targets_are_exported_and_written(stand_in: Callable[..., None], tmp_path: Path) -> None:
    stand_in(GOOD)
    code, stdout, _ = run("demo", "vit", "--out", str(tmp_path / "new"))
    assert code == 0
    assert f"wrote {tmp_path}/new/graph.torch\n" in stdout
    assert f"wrote {tmp_path}/new/graph.onnx\n" in stdout
    assert "torch: verified" in stdout
    assert "onnx: verified" in stdout
    assert stdout.endswith(f"next: onlooker demo llama --to both --out {tmp_path}/new/llama\n")


def test_the_next_model_is_written_beside_this_one(stand_in: Callable[..., None], tmp_path: Path) -> None:
    stand_in(GOOD)
    _, stdout, _ = run("demo", "bert", "--to", "torch", "--out", str(tmp_path / "bert"))
    assert stdout.endswith(f"next: onlooker demo vit --to torch --out {tmp_path}/vit\n")


def test_the_demo_in_json(stand_in: Callable[..., None]) -> None:
    stand_in(GOOD, BAD)
    code, stdout, _ = run("demo", "vit", "--to", "torch", "--json")
    assert code == 2
    assert json.loads(stdout) == {
        "command": "demo",
        "model": "vit",
        "story": "two calls: 2 images, then 3",
        "exports": [{"target": "torch", "verified": False, "files": [], "report": {"verdict": "the report"}}],
        "next": "onlooker demo vit --to torch --out out/vit",
    }


def test_an_error_in_json(stand_in: Callable[..., None]) -> None:
    stand_in(error=ExportError("It does not go.", slug="export-failed", hint="Try another."))
    code, stdout, stderr = run("demo", "vit", "--json")
    assert code == 1
    found = {"slug": "export-failed", "message": "It does not go.", "hint": "Try another."}
    assert json.loads(stdout) == {"command": "demo", "error": found}
    assert stderr.endswith("[export-failed]\n")


def test_an_error_is_one_message(stand_in: Callable[..., None]) -> None:
    stand_in(error=ExportError("It does not go.", slug="export-failed", hint="Try another."))
    code, stdout, stderr = run("demo", "vit", "--to", "torch")
    assert (code, stdout) == (1, "")
    assert stderr.endswith("\nonlooker: It does not go. Try another. [export-failed]\n")
    assert "Traceback" not in stderr


def test_a_bug_is_not_hidden(stand_in: Callable[..., None]) -> None:
    stand_in(error=ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run("demo", "vit", "--to", "torch")


def test_a_file_in_the_way_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    code, stdout, stderr = run("demo", "--out", str(tmp_path / "taken"))
    assert (code, stdout) == (1, "")
    assert "taken is a file, and the programs are written into a directory." in stderr


def test_progress_says_the_stages_of_the_library_and_leaves_no_trace(stand_in: Callable[..., None]) -> None:
    logger = logging.getLogger("onlooker")
    before = logger.level, list(logger.handlers)
    stand_in(GOOD)
    _, _, stderr = run("demo", "vit", "--to", "torch")
    said = [line.split(" s  ", maxsplit=1)[1] for line in stderr.splitlines()]
    assert said == [
        "building a tiny vit",
        "watching two calls: 2 images, then 3",
        "exporting",
        "verifying torch",
    ]
    assert (logger.level, logger.handlers) == before


def test_progress_leaves_no_trace_after_an_error() -> None:
    logger = logging.getLogger("onlooker")
    before = logger.level, list(logger.handlers)
    with pytest.raises(ZeroDivisionError), progress(io.StringIO()):
        raise ZeroDivisionError
    assert (logger.level, logger.handlers) == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_terminal_is_one_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stderr = Terminal()
    with progress(stderr) as say:
        say("exporting [to] torch")
    assert "exporting [to] torch ..." in stderr.getvalue()


@pytest.mark.parametrize(
    "argv", [("vit",), pytest.param(("llama", "--to", "torch"), marks=pytest.mark.slow)], ids=" ".join
)
def test_the_real_demo_is_verified(argv: tuple[str, ...], tmp_path: Path) -> None:
    code, stdout, stderr = run("demo", *argv, "--out", str(tmp_path))
    assert code == 0, stdout + stderr
    assert "torch: verified" in stdout
    assert list(tmp_path.glob("*.pt2"))
    if "--to" not in argv:
        assert "onnx: verified" in stdout
        assert list(tmp_path.glob("*.onnx"))


def test_python_dash_m() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "onlooker", "demo", "--model", "lama"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.endswith("[bad-command-line]\n")
    assert "Traceback" not in result.stderr

"""``onlooker ci``: a program against calls and against its model, with a line for each fault, as a runner
of continuous integration shows it.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from ...core.errors import UsageError
from ...model_source.user_function import names_a_file
from ..command import Answer, ExitCode, printing, to_type
from ..command_line import main
from ..progress import progress

__all__ = ["Fault", "run"]

_MOST_FAULTS = 10
#: a line of a file as conditions name it
_LINE = re.compile(r"([^\s(]+\.py):(\d+)")
#: folders in which no file of the user is looked for, beside hidden ones
_NOT_THEIRS = frozenset({"venv", "node_modules", "site-packages"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and the line of a file where a reader begins to look.

    >>> fault = Fault("calls", "x.shape[1] is 300", "app.py", 12)
    >>> print(fault, fault.command, sep="\\n")
    app.py:12: calls: x.shape[1] is 300
    ::error file=app.py,line=12,title=onlooker%3A calls::x.shape[1] is 300
    """

    step: str
    message: str
    file: str
    line: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.step}: {self.message}"

    @property
    def command(self) -> str:
        """The fault as a runner of GitHub reads it from the output, and shows it at the line."""
        place = {"file": self.file, "line": str(self.line), "title": f"onlooker: {self.step}"}
        listed = ",".join(f"{name}={_escaped(value, ':,')}" for name, value in place.items())
        return f"::error {listed}::{_escaped(self.message)}"


def _escaped(text: str, more: str = "") -> str:
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Runs the commands ``check``, ``verify`` and ``html``, and says at which lines they fail.

    :raises UsageError: ``bad-command-line``
    """
    if options.recording is None and options.build is None:
        raise UsageError(
            "There is nothing to check the program against.",
            slug="bad-command-line",
            hint="Give the calls with --recording, the function of the model with --build, or both.",
        )
    place = str(options.place)
    steps = dict(_steps(options))
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    with progress(stderr) as say:
        for name, words in steps.items():
            say(name)
            found[name] = _run([*words, "--json", "--quiet"], stderr)
        if options.out is not None:
            _run(["html", place, "--out", str(options.out), "--json", "--quiet"], stderr)
    faults = [
        fault for name, (_, document) in found.items() for fault in _faults(name, document, options)
    ]
    code = ExitCode(min((code for code, _ in found.values() if code), default=0))
    lines = [f"{name}: {_said(document)}" for name, (_, document) in found.items()]
    _write_summary(lines, faults)
    is_github = os.environ.get("GITHUB_ACTIONS") == "true"
    lines += [fault.command if is_github else str(fault) for fault in faults]
    failed = [words for name, words in steps.items() if found[name][0]]
    return Answer(
        code,
        printing(lines),
        lambda: {
            "holds": code == 0,
            "steps": {name: _said(document) for name, (_, document) in found.items()},
            "faults": [asdict(fault) for fault in faults],
        },
        to_type(*failed[0]) if failed else to_type("show", place),
    )


def _steps(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """The commands, by the names that are shown."""
    place = str(options.place)
    reading = [word for name in options.operators for word in ("--operators", name)]
    reading += ["--machine-code"] if options.machine_code else []
    if options.recording is not None:
        entry = ["--entry", options.entry] if options.entry else []
        yield "calls", ["check", place, str(options.recording), *entry, *reading]
    if options.build is not None:
        atol = ["--atol", f"{options.atol:g}"] if options.atol is not None else []
        yield "model", ["verify", place, "--build", options.build, *atol, *reading]


def _run(words: Sequence[str], stderr: TextIO) -> tuple[int, dict[str, Any]]:
    stdout = io.StringIO()
    code = main(words, stdout, stderr)
    document: dict[str, Any] = json.loads(stdout.getvalue() or "{}")
    return code, document


def _said(document: Mapping[str, Any]) -> str:
    """One sentence about what a command found."""
    if "error" in document:
        return str(document["error"]["message"])
    if "breaches" in document:
        total, outside = document["total"], document["outside"]
        return f"{outside} of {total} calls fall outside"
    return f"{document['passed']} of {document['total']} checks passed"


def _faults(step: str, document: Mapping[str, Any], options: argparse.Namespace) -> Iterator[Fault]:
    """The faults that a command found, the most frequent first."""
    of_step = options.recording if step == "calls" else None
    file, line = (str(of_step), 1) if of_step is not None else _place_of(options.build)
    if "error" in document:
        error = document["error"]
        yield Fault(step, f"{error['message']} {error['hint']} [{error['slug']}]", file, line)
        return
    for row in document.get("breaches", ())[:_MOST_FAULTS]:
        got = "; ".join(row["got"][:4])
        text = f"{row['where']} has to be {row['expected']}; {row['count']} calls have {got}"
        there = _line_of_model(row["expected"])
        yield Fault(step, text, *(there or (file, line)))
    for row in document.get("failed", ())[:_MOST_FAULTS]:
        yield Fault(step, f"{row['label']}: {row['note']}", file, line)


def _place_of(build: str) -> tuple[str, int]:
    """The file and the line of a function that is named by its file, or by its module here."""
    module, _, name = build.rpartition(":")
    file = Path(module if names_a_file(module) else f"{module.replace('.', '/')}.py")
    if not file.is_file():
        return str(file), 1
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return str(file), node.lineno
    return str(file), 1


def _line_of_model(expected: str) -> tuple[str, int] | None:
    """The file here and the line that a condition of the model names, as in ``because of app.py:12 in
    forward: ...``; None where it names none.
    """
    named = _LINE.search(expected)
    if named is None:
        return None
    file, number = Path(named[1]), int(named[2])
    if file.is_file() and not file.is_absolute():
        return str(file), number
    for folder, inner, files in os.walk("."):
        inner[:] = sorted(name for name in set(inner) - _NOT_THEIRS if not name.startswith("."))
        if file.name in files:
            return os.path.normpath(os.path.join(folder, file.name)), number
    return None


def _write_summary(lines: Sequence[str], faults: Sequence[Fault]) -> None:
    """Adds to the summary of a job, where a runner has one."""
    file = os.environ.get("GITHUB_STEP_SUMMARY")
    if not file:
        return
    listed = [f"- `{str(fault).replace('`', chr(39))}`" for fault in faults]
    with open(file, "a", encoding="utf-8") as summary:
        summary.write(
            "\n".join(["### onlooker", "", *(f"- {line}" for line in lines), *listed, ""])
        )

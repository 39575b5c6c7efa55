"""Runs the code cells of docs/wrong_uses.md; ``python tests/wrong_uses.py`` writes what each of them gets."""

from __future__ import annotations

import functools
import io
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import onlooker
from onlooker import OnlookerError
from onlooker.cli.command_line import main
from onlooker.zoo import tiny_model

DOCUMENT = Path(__file__).parent.parent / "docs" / "wrong_uses.md"
_ROW = re.compile(r"\| `(?P<code>.+?)` \| (?P<slug>[a-z-]*) \| (?P<text>.*) \|")


@dataclass(frozen=True)
class Row:
    """One wrong use: the code, the slug of the error that it gets, and what the error says."""

    code: str
    slug: str
    text: str


class Model(torch.nn.Module):
    """The model of the table."""

    __module__ = "app"

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, double: bool = False) -> torch.Tensor:
        z = x if y is None else x + y
        return z * (2 if double else 1)


class Command(Exception):
    """A command that ended with an error."""


def command(line: str) -> None:
    """Runs a command line, and raises what it writes to its stderr."""
    stderr = io.StringIO()
    code = main(line.split(), io.StringIO(), stderr)
    if code:
        raise Command(stderr.getvalue())


@functools.cache
def watched() -> tuple[Any, Any, Any]:
    """The model, an observer of two calls of it, and its program."""
    model, observer = Model(), onlooker.InputObserver()
    with observer(model):
        for size in (2, 3):
            model(torch.randn(size, 4), torch.randn(size, 4))
    return model, observer, observer.export()


def names(code: str, folder: Path) -> dict[str, Any]:
    """What a code cell may use."""
    model, observer, program = watched()
    (folder / "text.json").write_text("no json", encoding="utf-8")
    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("of somebody else", encoding="utf-8")
    if "saved" in code or "loaded" in code:
        program.save(folder / "saved")
    return {
        "torch": torch,
        "onlooker": onlooker,
        "InputObserver": onlooker.InputObserver,
        "Model": Model,
        "model": model,
        "observer": observer,
        "program": program,
        "plan": program.plans[0],
        "loaded": onlooker.load(folder / "saved") if "loaded" in code else None,
        "new": onlooker.InputObserver(),
        "x": torch.ones(2, 4),
        "script": torch.jit.script(torch.nn.ReLU()),
        "folder": folder,
        "tiny_model": tiny_model,
        "command": command,
    }


def outcome(code: str, folder: Path) -> tuple[str, str]:
    """The slug and the text of the error that the code gets."""
    try:
        exec(code, names(code, folder))
    except OnlookerError as error:
        return error.slug, _cell(str(error), folder)
    except Command as error:
        said = str(error).strip().splitlines()[-1]
        return re.findall(r"\[([a-z-]+)\]", said)[-1], _cell(said, folder)
    except Exception as error:
        return "", f"{type(error).__name__}: {error}".splitlines()[0].replace("|", "/")
    return "", "no error"


def _cell(text: str, folder: Path) -> str:
    """The text without its slug, places of this machine, and what other packages say in their own words."""
    said = re.sub(r"\s*\[[a-z-]+\]$", "", text.strip()).replace(str(folder), "FOLDER").removeprefix("onlooker: ")
    said = re.sub(r"(by ONNX Runtime): .*?(?= Give|$)", r"\1.", said, flags=re.DOTALL)
    said = re.sub(r"\(choose from .*?\)", "(choose from ...)", said)
    return " ".join(said.replace("|", r"\|").split())


def rows(text: str) -> Iterator[Row]:
    """The rows of all tables of the document."""
    for line in text.splitlines():
        found = _ROW.fullmatch(line)
        if found:
            yield Row(found["code"].replace(r"\|", "|"), found["slug"], found["text"])


def written(text: str) -> str:
    """The document, with what every code cell gets now."""
    lines = []
    for line in text.splitlines():
        found = _ROW.fullmatch(line)
        if found:
            with tempfile.TemporaryDirectory() as folder:
                slug, said = outcome(found["code"].replace(r"\|", "|"), Path(folder))
            line = f"| `{found['code']}` | {slug} | {said} |"
        lines.append(line)
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    after = written(DOCUMENT.read_text(encoding="utf-8"))
    DOCUMENT.write_text(after, encoding="utf-8")
    sys.exit(any(not row.slug for row in rows(after)))

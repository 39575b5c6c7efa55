"""Runs the code of pages of the documentation, and puts what it prints in its place.

``python tests/page_outputs.py docs/tutorial.md ...`` writes the outputs of pages anew; the tests run the same
and compare. In a page:

- a block of ``python`` is run, in order, after those before it; what it prints stands in the block of
  ``text`` that follows;
- one that begins with ``# name.py``, and one of ``toml`` with ``# name.toml``, is written to that file;
- ``$ onlooker ...`` in a block of ``console`` is run as a command, and its standard output stands below
  it; exit code 1, an error, is one of the page;
- seconds may be others; a line ``...`` in a block stands for any lines that are left out of the page;
- ``<!-- needs: onnx openvino -->`` names the packages without which a page is skipped;
- blocks of another kind, such as ``sh`` or ``py``, are only shown.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from onlooker.cli import main as onlooker_main

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
#: times, and their shares of a whole, which are others in each run
SECONDS = re.compile(r"\d+\.\d+ s(?: \((?:< )?\d+ %\))?")
FILE_NAME = re.compile(r"# (\w+\.(?:py|toml))\n")
NEEDS = re.compile(r"<!-- needs: (.*?) -->")


class PageError(AssertionError):
    """A page that cannot be read as the text above says."""


@dataclass
class Session:
    """The state that the blocks of one page share: a script that grows, and its names."""

    script: str = ""
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})

    def run(self, code: str) -> str:
        """Runs one block, as lines of the file page.py, and gives what it printed."""
        offset = self.script.count("\n")
        self.script += code
        file = Path("page.py").resolve()
        file.write_text(self.script, encoding="utf-8")
        linecache.checkcache(str(file))
        compiled = compile("\n" * offset + code, str(file), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, self.names)
        return without_trailing_blanks(printed.getvalue())


def needed_packages(text: str) -> list[str]:
    """The packages that a page says it needs."""
    found = NEEDS.search(text)
    return found[1].split() if found else []


def agrees(shown: str, printed: str) -> bool:
    """Whether a block of a page shows what was printed, but for times, lines of ``...``, and where lines
    are broken, since a time with more digits breaks a line elsewhere.
    """
    parts = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    pattern = ".*".join(re.escape(_compared(part)) for part in parts)
    return re.fullmatch(pattern, _compared(printed), flags=re.DOTALL) is not None


def _compared(text: str) -> str:
    return " ".join(SECONDS.sub("0 s", text).split())


def without_trailing_blanks(text: str) -> str:
    """The text without what nobody sees at the end of its lines."""
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def command_output(line: str) -> str:
    """What a command prints, as a terminal shows it."""
    words = shlex.split(line, comments=True)
    if words[0] != "onlooker":
        raise PageError(f"only onlooker is run: {line}")
    if words[1] == "run":  # becomes the program that it watches
        command = [sys.executable, "-m", "onlooker", *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout + done.stderr
    stdout, stderr = io.StringIO(), io.StringIO()
    with mock.patch("shutil.which", return_value="/usr/bin/onlooker"):  # as if it were installed
        code = onlooker_main(words[1:], stdout, stderr)
    if code == 1:
        raise PageError(f"{line}\n{stderr.getvalue()}")
    return without_trailing_blanks(stdout.getvalue())


def console_output(text: str) -> str:
    """A session of the shell with what its commands print now."""
    result = ""
    for line, shown in re.findall(r"^(\$ .*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
        printed = command_output(line.removeprefix("$ "))
        result += f"{line}\n{shown if agrees(shown, printed) else printed}"
    return result


def with_outputs(text: str) -> str:
    """The text of a page with what its code prints now; runs in the current directory."""
    session = Session()
    result = ""
    end = 0
    printed: str | None = None  # by the block before, if that was Python
    for block in BLOCK.finditer(text):
        kind, body = block[1], block[2]
        if printed and kind != "text":
            raise PageError(f"a block prints, and no block of text follows:\n{printed}")
        if kind == "text" and printed is not None and not agrees(body, printed):
            body = printed
        printed = None
        if kind == "console":
            body = console_output(body)
        elif kind in ("python", "toml"):
            named = FILE_NAME.match(body)
            if named:
                Path(named[1]).write_text(body, encoding="utf-8")
            else:
                printed = session.run(body)
        result += text[end : block.start(2)] + body
        end = block.end(2)
    if printed:
        raise PageError(f"the last block prints, and no block of text follows:\n{printed}")
    return result + text[end:]


@contextlib.contextmanager
def workshop() -> Iterator[Path]:
    """An empty folder as current directory, from which modules can be imported."""
    before = Path.cwd()
    modules = set(sys.modules)
    with tempfile.TemporaryDirectory() as parent, mock.patch.dict(os.environ, COLUMNS="120"):
        folder = os.path.join(os.path.realpath(parent), "work")
        os.mkdir(folder)
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)
            sys.path.remove(folder)
            for name in set(sys.modules) - modules:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                    del sys.modules[name]


def main(argv: Sequence[str]) -> int:
    """Writes the outputs of pages anew."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    for page in parser.parse_args(argv).pages:
        file = page.resolve()
        text = file.read_text(encoding="utf-8")
        with workshop():
            new = with_outputs(text)
        if new != text:
            file.write_text(new, encoding="utf-8")
            print(f"{page} is written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

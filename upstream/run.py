"""Runs every script of this folder with the installed packages, and says which limits are still there.

``python upstream/run.py [NAME ...]`` prints a line for each; ``python upstream/run.py --page`` writes
docs/upstream.md from them. A script prints one line that begins with "still there", "repaired" or "not run".
Exit code 1: a script ended in another way. No script uses onlooker.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "openvino", "executorch", "transformers")
VERDICTS = ("still there", "repaired", "not run")
PAGE = FOLDER.parent / "docs" / "upstream.md"
HEAD = """\
# Upstream

Limits of torch and of the runtimes that onlooker met. Each has the smallest script that shows it, with plain
torch, in the folder `upstream`. A script prints one line: *still there*, *repaired*, or *not run* where a package is
missing. When one is repaired, the part of onlooker that goes around it may go.

`python upstream/run.py` runs all of them, and so does `pytest -m slow -rA tests/project/test_upstream.py`;
`python upstream/run.py --page` writes this page. Threads are those that were found; most of these limits have none yet.

The outcomes below are of """
FIELDS = ("Where", "Fails with", "Thread", "In onlooker")


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """One limit: its first line, its text, and what its fields say."""

    name: str
    title: str
    text: str
    fields: dict[str, str]


def scripts() -> list[Script]:
    """All scripts: the branch on size 1 first, then by name."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "run")
    names.sort(key=lambda name: name != "torch_size_one_branch")
    return [read(name) for name in names]


def read(name: str) -> Script:
    """What the docstring of a script says."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    docstring = source.split('"""')[1]
    title, _, rest = docstring.partition("\n")
    fields = dict(re.findall(rf"^({'|'.join(FIELDS)}): (.+)$", rest, flags=re.MULTILINE))
    lines = [
        line
        for line in rest.splitlines()
        if not line.startswith(tuple(f"{field}:" for field in FIELDS))
    ]
    return Script(name, title, "\n".join(lines).strip(), fields)


def outcome(name: str) -> str:
    """The line in which a script says how it ended; another one where it did not."""
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(VERDICTS)]
    return (
        said[-1]
        if said
        else f"failed: {(done.stderr.strip().splitlines() or ['it prints nothing'])[-1]}"
    )


def installed() -> str:
    """The versions of the packages that the scripts are about."""
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def section(script: Script, line: str) -> str:
    """A script as a section of the page."""
    fields = "\n".join(f"- **{field}**: {script.fields[field]}" for field in FIELDS)
    code = f"```{{literalinclude}} ../upstream/{script.name}.py\n:language: python\n```"
    parts = [
        f"## {script.title.rstrip('.')}",
        script.text,
        fields,
        f"`upstream/{script.name}.py`:",
        code,
    ]
    parts.append(f"```text\n{line}\n```")
    return "\n\n".join(part for part in parts if part)


def main(arguments: list[str]) -> int:
    """Prints a line for each script, or writes the page."""
    is_page = arguments == ["--page"]
    names = [] if is_page else arguments
    print(installed())
    outcomes = {}
    for script in scripts():
        if not names or script.name in names:
            outcomes[script] = outcome(script.name)
            print(f"{script.name}: {outcomes[script]}", flush=True)
    if is_page:
        sections = [section(script, line) for script, line in outcomes.items()]
        PAGE.write_text("\n\n".join([HEAD + installed() + ".", *sections]) + "\n", encoding="utf-8")
    return 0 if all(line.startswith(VERDICTS) for line in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

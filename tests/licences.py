"""Writes docs/licences.md: what onlooker needs, what that needs, and under which licences, as the packages say it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["HEAD", "brought", "licence", "page", "pinned", "requirements"]

ROOT = Path(__file__).parent.parent
HEAD = """\
# Licences

onlooker itself is under Apache-2.0. This page is written by `python tests/licences.py` from what the installed packages
say of themselves, at the versions of constraints.txt on Linux; a test compares it with pyproject.toml. What
`onlooker[executorch]`, `onlooker[mcp]`, `onlooker[tables]` and `onlooker[opentelemetry]` bring is not listed: they are
tested in environments of their own. So is what the documentation is built with (docs/requirements.txt), which nobody
needs who uses onlooker.
"""
#: the extras that are not listed, and not pinned in constraints.txt
APART = ("all", "executorch", "mcp", "tables", "opentelemetry")
TITLES = {
    "": "Always needed",
    "transformers": "With `onlooker[transformers]`",
    "onnx": "With `onlooker[onnx]`",
    "openvino": "With `onlooker[openvino]`",
    "genai": "With `onlooker[genai]`, to run its files",
    "sentence-transformers": "With `onlooker[sentence-transformers]`, to watch its models",
    "precision": "With `onlooker[precision]`, for integers in OpenVINO",
    "cli": "With `onlooker[cli]`, for the shell",
    "dev": "To develop and test it, never by a user",
}


def requirements() -> dict[str, list[str]]:
    """The names of the direct dependencies by extra, "" for those that are always needed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: [canonicalize_name(Requirement(text).name) for text in texts]
        for extra, texts in found.items()
        if extra not in APART
    }


def brought(names: Iterable[str]) -> list[str]:
    """The names, and all that they bring on this machine, sorted; packages that are not installed bring nothing."""
    found: set[str] = set()
    below = [(name, "") for name in names]
    done: set[tuple[str, str]] = set()
    while below:
        name, extra = below.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        try:
            texts = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        for requirement in map(Requirement, texts):
            environment = {**default_environment(), "extra": extra}
            if requirement.marker is None or requirement.marker.evaluate(environment):
                child = canonicalize_name(requirement.name)
                below += [(child, one) for one in ("", *requirement.extras)]
    return sorted(found)


def pinned() -> dict[str, str]:
    """The versions of constraints.txt, by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    rows = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in rows}


def licence(name: str) -> str:
    """The licence of an installed package: its expression, or its classifiers, or the first line that it writes."""
    metadata = distribution(name).metadata
    if metadata["License-Expression"]:
        return str(metadata["License-Expression"])
    kinds = [text.rpartition(" :: ")[2] for text in metadata.get_all("Classifier", []) if text.startswith("License")]
    if kinds and kinds != ["OSI Approved"]:
        return ", ".join(kinds)
    return str(metadata["License"] or "see its page").strip().splitlines()[0]


def page() -> str:
    """The page."""
    parts, known = [HEAD], set[str]()
    for extra, names in requirements().items():
        further = [name for name in brought(names) if name not in names and name not in known]
        known |= {*names, *further}
        rows = [f"| {name} | {licence(name)} |" for name in [*names, *further]]
        parts.append(f"## {TITLES[extra]}\n\nDirectly: {', '.join(names)}.\n\n| package | licence |\n|---|---|")
        parts[-1] += "\n" + "\n".join(rows) + "\n"
    return re.sub(r" +\n", "\n", "\n".join(parts))


if __name__ == "__main__":
    (ROOT / "docs" / "licences.md").write_text(page())

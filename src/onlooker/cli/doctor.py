"""``onlooker doctor``: versions, what is installed, and what works here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import TextIO

from rich.console import Console

from .command import Answer, ExitCode, to_type
from .environment import Fact, facts

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Looks at everything."""
    found = facts()
    broken = any(fact.works is False for fact in found if fact.group == "inside of torch")
    return Answer(
        ExitCode.ERROR if broken else ExitCode.VERIFIED,
        lambda console: _show(found, console),
        lambda: _data(found),
        to_type("demo"),
    )


_MARKS = {True: "yes", False: "no", None: ""}


def _show(found: Sequence[Fact], console: Console) -> None:
    """Plain lines, which can be pasted anywhere."""
    for group, members in groupby(found, lambda fact: fact.group):
        console.print(f"{group}:")
        for fact in members:
            mark = _MARKS[fact.works]
            text = f"{mark}: {fact.text}" if fact.works is False else mark or fact.text
            console.print(f"  {fact.name:<18} {text}", soft_wrap=True)


def _data(found: Sequence[Fact]) -> dict[str, object]:
    groups: dict[str, list[dict[str, object]]] = {}
    for fact in found:
        row: dict[str, object] = {"name": fact.name, "text": fact.text, "works": fact.works}
        groups.setdefault(fact.group, []).append(row)
    return {"facts": groups}

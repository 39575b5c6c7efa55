"""``onlooker explain``: why an axis is what it is, and what an error means."""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import TYPE_CHECKING, TextIO

from ...core.errors import OnlookerError, UsageError
from ...core.messages import messages, nearest
from ..command import Answer, ExitCode, to_type

if TYPE_CHECKING:
    from rich.console import Console

    from ...program import Program

__all__ = ["run"]

_SHAPE = re.compile(r"(.+)\.shape\[(\d+)\]")


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Prints the entry of an error, or asks every graph that has the axis."""
    if options.path is None:
        return _of_error(str(options.place).strip("[]"))
    from ..saved import (
        read_program,  # here, since it needs torch, and an error is explained without
    )

    path, dim = _axis(options.path, options.dim)
    found = _explained(read_program(options), path, dim, full=options.full)

    def show(console: Console) -> None:
        for at, (name, text) in enumerate(found):
            console.file.write(f"{chr(10) if at else ''}{name}:\n")
            for line in text.splitlines():
                console.file.writelines(f"{part}\n" for part in _within(line, console))

    graphs: list[object] = [{"graph": name, "lines": text.splitlines()} for name, text in found]
    return Answer(
        ExitCode.VERIFIED,
        show,
        lambda: {"path": path, "dim": dim, "graphs": graphs},
        to_type("code", str(options.place)),
    )


def _of_error(word: str) -> Answer:
    """The entry of an error.

    :raises UsageError: ``unknown-error``
    """
    known = messages()
    if word not in known:
        near = nearest(word, known)
        guess = f"Did you mean {near}? " if near else ""
        raise UsageError(
            f"There is no error {word}, and an axis of a program is explained with its PATH.",
            slug="unknown-error",
            hint=f"{guess}Write onlooker explain call-refused, or onlooker explain program x 0.",
        )
    text = known[word]

    def show(console: Console) -> None:
        console.file.write(f"{word}\n\n{text}\n")

    return Answer(ExitCode.VERIFIED, show, lambda: {"slug": word, "text": text}, to_type("doctor"))


def _within(line: str, console: Console) -> list[str]:
    """The line, in as many as a terminal needs; whole where there is none."""
    if not console.is_terminal:
        return [f"  {line}"]
    return textwrap.wrap(
        line, console.width, initial_indent="  ", subsequent_indent="    ", break_long_words=False
    )


def _axis(text: str, dim: int | None) -> tuple[str, int | None]:
    """``x.shape[1]`` and ``x 1`` are the same axis."""
    match = _SHAPE.fullmatch(text)
    if match is None or dim is not None:
        return text, dim
    return match[1], int(match[2])


def _explained(
    program: Program, path: str, dim: int | None, *, full: bool
) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    refusal: OnlookerError | None = None
    for graph in program.graphs:
        try:
            found.append((graph.name, graph.plan.explain(path, dim, full=full)))
        except UsageError as error:
            refusal = refusal or error
    if not found and refusal is not None:
        raise refusal
    return found

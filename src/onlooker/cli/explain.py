"""``onlooker explain``: why an axis is what it is."""

from __future__ import annotations

import argparse
import re
import textwrap
from typing import TextIO

from rich.console import Console

from ..core.errors import OnlookerError, UsageError
from ..program import Program
from .command import Answer, ExitCode, to_type
from .saved import add_full, add_program, read_program

__all__ = ["Explain"]

_SHAPE = re.compile(r"(.+)\.shape\[(\d+)\]")


class Explain:
    """Says why an axis of a saved program is what it is: the calls and experiments that say so.

    PATH is written as Python, as the report has it. An int needs no DIM.
    """

    name = "explain"
    example = "explain program x 0"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser)
        add_full(parser)
        parser.add_argument(
            "path", metavar="PATH", help="an argument, or a part: past_key_values.layers[0].keys"
        )
        parser.add_argument("dim", metavar="DIM", type=int, nargs="?", help="the dimension, from 0")

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Asks every graph that has the axis."""
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
    return (match[1], int(match[2])) if match and dim is None else (text, dim)


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

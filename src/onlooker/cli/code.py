"""``onlooker code``: the script that exports a saved program again."""

from __future__ import annotations

import argparse
from typing import TextIO

from rich.console import Console

from .command import Answer, ExitCode, to_type
from .saved import add_program, read_program
from .user_function import HELP, source_of

__all__ = ["Code"]


class Code:
    """Prints a Python script that exports the model of a saved program again, without onlooker.

    The script builds arguments and dynamic shapes; the model is a function to fill in, or that of
    --model.
    """

    name = "code"
    example = "code program --model app.py:build"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        add_program(parser)
        parser.add_argument(
            "--to", choices=("torch", "onnx"), help="default: what the program was exported to"
        )
        parser.add_argument("--model", metavar="MODULE:FUNCTION", help=HELP)

    def run(self, options: argparse.Namespace, stderr: TextIO) -> Answer:
        """Writes the script; nothing is run."""
        source = source_of(options.model) if options.model else ""
        script = read_program(options).code(to=options.to, source=source)

        def show(console: Console) -> None:
            console.file.write(script)

        following = to_type(
            "verify", str(options.place), *([options.model] if options.model else [])
        )
        return Answer(ExitCode.VERIFIED, show, lambda: {"script": script}, following, pure=True)

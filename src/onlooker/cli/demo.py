"""``onlooker demo``: the whole story on a tiny model."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from .._api import InputObserver
from ..core.errors import UsageError
from ..core.verdict import Tally
from ..program import Program
from ..zoo import MODELS, TinyModel, tiny_model
from .command import ExitCode, to_type
from .progress import Say, progress

__all__ = ["Demo"]

#: what ``--to`` accepts -> the targets of the export
TARGETS = {"torch": ("torch",), "onnx": ("onnx",), "both": ("torch", "onnx")}

#: columns of a report that goes into a file or a pipe
PLAIN_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Exported:
    """A program, the sum of its checks, and the files written."""

    target: str
    program: Program
    tally: Tally
    files: tuple[Path, ...] = ()


class Demo:
    """Watches a tiny model, exports it, and proves the program on calls it never saw.

    The model has random weights and a real use (a decoder runs its own generate()); nothing is downloaded.
    """

    name = "demo"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("--model", choices=tuple(MODELS), default="llama", help="default: %(default)s")
        parser.add_argument("--to", choices=tuple(TARGETS), default="both", help="default: %(default)s")
        parser.add_argument("--out", type=Path, metavar="DIR", help="write the .pt2 and .onnx files there")

    def run(self, options: argparse.Namespace, stdout: TextIO, stderr: TextIO) -> ExitCode:
        """Watches, exports and verifies; prints the reports and the next command to type."""
        _check_directory(options.out)
        with progress(stderr) as say:
            say(f"building a tiny {options.model}")
            tiny = tiny_model(options.model)
            say(f"watching {tiny.story}")
            observer = _watch(tiny)
            say("exporting")
            program = observer.export()
            exports = [_prove(program, target, tiny, options.out, say) for target in TARGETS[options.to]]
        return _show(tiny, exports, options, stdout)


def _check_directory(directory: Path | None) -> None:
    """A file in the way is better found before the export than after."""
    if directory is not None and directory.exists() and not directory.is_dir():
        raise UsageError(
            f"{directory} is a file, and the programs are written into a directory.",
            slug="not-a-directory",
            hint="Name another place with --out.",
        )


def _watch(tiny: TinyModel) -> InputObserver:
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()
    return observer


def _prove(program: Program, target: str, tiny: TinyModel, directory: Path | None, say: Say) -> Exported:
    program = program.to(target)
    say(f"verifying {target}")
    tally = program.verify(sizes=tiny.sizes)
    if directory is None:
        return Exported(target, program, tally)
    say(f"writing into {directory}")
    return Exported(target, program, tally, tuple(program.save_graphs(directory)))


def _show(tiny: TinyModel, exports: list[Exported], options: argparse.Namespace, stdout: TextIO) -> ExitCode:
    console = Console(file=stdout, highlight=False, markup=False, width=None if stdout.isatty() else PLAIN_WIDTH)
    stdout.write(f"{tiny.name}: watched {tiny.story}.\n\n")
    for exported in exports:
        console.print(exported.program.report)
        stdout.writelines(f"wrote {file}\n" for file in exported.files)
        stdout.write("\n")
    stdout.writelines(f"{verdict(exported)}\n" for exported in exports)
    stdout.write(f"\nnext: {next_command(options)}\n")
    verified = all(exported.program.report.verified for exported in exports)
    return ExitCode.VERIFIED if verified else ExitCode.NOT_VERIFIED


def verdict(exported: Exported) -> str:
    """One line: what holds, on how many calls, and how far the outputs are from the model's."""
    word = "verified" if exported.program.report.verified else "NOT verified"
    tally = exported.tally
    checks = f"{tally.passed} of {tally.total} checks passed"
    return f"{exported.target}: {word}, {checks}, largest difference {tally.difference:.1e}"


def next_command(options: argparse.Namespace) -> str:
    """The command that goes on from here: write the files, then the next model beside them."""
    if options.out is None:
        model, directory = options.model, Path("out", options.model)
    else:
        names = list(MODELS)
        model = names[(names.index(options.model) + 1) % len(names)]
        parent = options.out.parent if options.out.name == options.model else options.out
        directory = parent / model
    return to_type("demo", "--model", model, "--to", options.to, "--out", str(directory))

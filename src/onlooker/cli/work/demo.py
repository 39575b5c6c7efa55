"""``onlooker demo``: the whole story on a tiny model."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from ...core.verdict import Tally
from ...input_observer import InputObserver
from ...program import Program
from ...zoo import MODELS, TinyModel, tiny_model
from ..command import Answer, ExitCode, to_type
from ..progress import Say, progress
from ..saved import directory_to_write

__all__ = ["run"]

#: what ``--to`` accepts -> the targets of the export
_TARGETS = {"torch": ("torch",), "onnx": ("onnx",), "both": ("torch", "onnx")}


@dataclass(frozen=True, slots=True)
class DemoExport:
    """A program, the sum of its checks, and the files written."""

    target: str
    program: Program
    tally: Tally
    files: tuple[Path, ...] = ()


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Watches, exports and verifies."""
    directory_to_write(options.out)
    name = options.tiny or getattr(options, "former_tiny", "llama")
    with progress(stderr) as say:
        say(f"building a tiny {name}")
        tiny = tiny_model(name)
        say(f"watching {tiny.story}")
        observer = _watch(tiny)
        say("exporting")
        program = observer.export()
        exports = [
            _prove(program, target, tiny, options.out, say) for target in _TARGETS[options.to]
        ]
    return _answer(tiny, exports, options)


def _watch(tiny: TinyModel) -> InputObserver:
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()
    return observer


def _prove(
    program: Program, target: str, tiny: TinyModel, directory: Path | None, say: Say
) -> DemoExport:
    program = program.to(target)
    say(f"verifying {target}")
    tally = program.verify(sizes=tiny.sizes)
    if directory is None:
        return DemoExport(target, program, tally)
    say(f"writing into {directory}")
    return DemoExport(target, program, tally, tuple(program.save_graphs(directory)))


def _answer(tiny: TinyModel, exports: list[DemoExport], options: argparse.Namespace) -> Answer:
    verified = all(exported.program.report.verified for exported in exports)

    def show(console: Console) -> None:
        console.file.write(f"{tiny.name}: watched {tiny.story}.\n\n")
        if options.full:
            for exported in exports:
                console.print(exported.program.report.tables(full=True))
        else:  # the other target has the same inputs
            console.print(exports[0].program.report.excerpt("graphs", "sizes", "inputs", "outputs"))
        console.file.write("\n")
        for exported in exports:
            console.file.write(f"{verdict(exported)}\n")
            console.file.writelines(f"wrote {file}\n" for file in exported.files)

    def data() -> dict[str, object]:
        return {
            "model": tiny.name,
            "story": tiny.story,
            "exports": [_exported_dict(e) for e in exports],
        }

    return Answer(
        ExitCode.of(verified),
        show,
        data,
        next_command(tiny.name, options),
    )


def _exported_dict(exported: DemoExport) -> dict[str, object]:
    return {
        "target": exported.target,
        "verified": exported.program.report.verified,
        "files": [str(file) for file in exported.files],
        "report": exported.program.report.to_dict(),
    }


def verdict(exported: DemoExport) -> str:
    """One line: what holds, on how many calls, and how far the outputs are from the model's."""
    tally = exported.tally
    word = tally.verdict if tally.verified else "NOT verified"
    checks = f"{tally.passed} of {tally.total} checks passed"
    return f"{exported.target}: {word}, {checks}, largest difference {tally.difference:.1e}"


def next_command(model: str, options: argparse.Namespace) -> str:
    """The command that goes on from here: write the files, then the next model beside them."""
    if options.out is None:
        directory = Path("out", model)
    else:
        names = list(MODELS)
        parent = options.out.parent if options.out.name == model else options.out
        model = names[(names.index(model) + 1) % len(names)]
        directory = parent / model
    return to_type("demo", model, "--to", options.to, "--out", str(directory))

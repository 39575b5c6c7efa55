"""The memory of a conversion, a save and a load beside the weights of the model.

    python benchmarks/footprint.py [--quick] [--json FILE]

A Llama of 0.2 B parameters in float32 with random weights is watched and exported; then it is converted, and
saved. Peaks are the kernel's high-water mark, above what the process had before the step. Each target has a
process of its own, and so has each load. A small model takes the same steps before, so that imports are left
out. Sessions and what they pack are counted, and mapped files are too. A conversion opens its file in another
process first and is compared there, whose memory stands beside; the file is opened here at the first calls.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from cost import decoder
from frame import Figure, main, seconds_of
from memory import peak_above, peak_of
from real import Use, thin, used

import onlooker

TARGETS = ("torch", "onnx", "openvino")
#: the most of each step beside the weights
MOST = {"convert": 0.5, "save": 0.1, "first calls": None, "load": 1.2}


def exported(model: Any) -> onlooker.Program:
    """The program of a model that generated a few tokens."""
    observer = onlooker.InputObserver()
    with observer(model), torch.no_grad():
        used(model, Use("", 2, 32, 4))()
    return observer.export()


def step(run: Callable[[], object]) -> tuple[int, float]:
    """The peak of a run in bytes, and its seconds of the processor."""
    with peak_above() as peak:
        seconds = seconds_of(run)
    return peak.bytes, seconds


def made(target: str, folder: Path, quick: bool) -> dict[str, Any]:
    """What a conversion and a save take; runs in a process of its own."""
    model = thin(4) if quick else decoder()
    first = thin(1)
    small, whole = _converted(exported(first), target), exported(model)
    small.save(folder / "small")
    _generated(small, first)
    weights = sum(tensor.nbytes for tensor in model.parameters())
    found: dict[str, Any] = {"weights": weights}
    programs = [whole]
    if target != "torch":
        found["convert"] = step(lambda: programs.append(_converted(whole, target)))
        found["elsewhere"] = max(map(peak_of, _children()), default=0)
    found["save"] = step(lambda: programs[-1].save(folder / "program"))
    found["first calls"] = step(lambda: _generated(programs[-1], model))
    return found


def _generated(program: onlooker.Program, model: Any) -> None:
    """Lets the model generate a few tokens with the program in its place."""
    with program.installed(model), torch.no_grad():
        used(model, Use("", 2, 32, 4))()


def _converted(program: onlooker.Program, target: str) -> onlooker.Program:
    return program if target == "torch" else program.to(target)


def _children() -> list[int]:
    lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return [int(number) for text in lists for number in text.split()]


def loaded(folder: Path) -> dict[str, Any]:
    """What a load takes; runs in a process of its own."""
    onlooker.load(folder / "small")
    return {"load": step(lambda: onlooker.load(folder / "program"))}


def in_own_process(*words: str) -> dict[str, Any]:
    """What this script finds there with these words."""
    done = subprocess.run(
        [sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def of_target(target: str, quick: bool) -> Iterator[Figure]:
    """The figures of one target."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--made", target, folder, *(["quick"] if quick else [])]
        found = {**in_own_process(*words), **in_own_process("--loaded", folder)}
    for name in (name for name in MOST if name in found):
        peak, seconds = found[name]
        note = f"{peak / 2**20:.0f} MiB, {seconds:.1f} s"
        if name == "convert":
            note += f"; {found['elsewhere'] / 2**20:.0f} MiB in the other process"
        most = None if quick else MOST[name]
        yield Figure(f"{target}: {name}, peak / weights", peak / found["weights"], "x", most, note)


def figures(quick: bool) -> Iterator[Figure]:
    """All figures; a quick run has a small model."""
    for target in TARGETS:
        yield from of_target(target, quick)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--made"]:
        print(json.dumps(made(sys.argv[2], Path(sys.argv[3]), "quick" in sys.argv[4:])))
        sys.exit()
    if sys.argv[1:2] == ["--loaded"]:
        print(json.dumps(loaded(Path(sys.argv[2]))))
        sys.exit()
    sys.exit(main(__doc__ or "", figures))

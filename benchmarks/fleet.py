"""What millions of recorded calls take to read, and how much faster two workers are than one process.

10 million calls of 50 processes are read by the commands, in processes of their own: seconds of the
processor, and the most memory that they had. Two processes are measured by the seconds of the processor
of the busier one, beside those of one process that does the work alone, so that other work on the machine
is left out: 0.59 is a speed-up of 1.7 on two free processors. The start of workers, 5 seconds, is in it,
so that the longer work has the target.

Run it where pyarrow is: .venv-engines/bin/python benchmarks fleet
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from frame import Figure, main

import onlooker
from onlooker.capture.entry_point import entry_point
from onlooker.capture.recorder import EntryRecorder
from onlooker.capture.writer import Writer

PROCESSES, CALLS, KINDS = 50, 200_000, 400
#: what the encoder and its use are written as, for the workers
MODELS = """
import torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(1000, 512)
        layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        self.layers = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.embed(ids)).mean(1)

def encoder():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Encoder().eval()

def small():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).eval()
    return model, lambda: [model(torch.randn(batch, 8)) for batch in (2, 3)]
"""


class Net(torch.nn.Module):
    """Three tensors and a list, as a decoder has."""

    def forward(self, ids: Any, mask: Any, past: Any) -> Any:
        return ids.float() * mask


def write_run(folder: Path, calls: int) -> None:
    """The files of processes that called a model so often each."""
    net = Net()
    entry, signature = entry_point(net, "forward")
    recorder = EntryRecorder(entry, signature, most_specs=4096)
    for kind in range(KINDS):
        batch, length = 1 + kind % 8, 1 + kind // 8
        past = [torch.zeros(batch, 4, kind, 8)] * 2
        ids, mask = torch.zeros(batch, length, dtype=torch.int64), torch.ones(batch, length)
        recorder.watch(Net.forward, (net, ids, mask, past), {})
    writer = Writer(str(folder))
    writer.write([recorder])
    writer.close()
    header, *lines = writer.path.read_bytes().splitlines()
    writer.path.unlink()
    known = [line for line in lines if not line.startswith(b'{"calls"')]
    draw = random.Random(0)
    runs = [[draw.randrange(KINDS), 1, draw.randrange(100, 5000)] for _ in range(calls)]
    parts = (runs[begin : begin + 1000] for begin in range(0, calls, 1000))
    known += [json.dumps({"calls": 0, "at": 1.0, "runs": part}).encode() for part in parts]
    for number in range(PROCESSES):
        told = {
            **json.loads(header),
            "uid": f"{number:012x}",
            "pid": number,
            "host": f"host{number}",
        }
        place = folder / f"host{number}.{number}.{number:012x}.jsonl"
        place.write_bytes(b"\n".join([json.dumps(told).encode(), *known, b""]))


def measured(words: list[str]) -> tuple[float, float]:
    """The seconds of the processor and the MiB of a command."""
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "onlooker", *words, "--json", "--quiet"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, words
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def reading_figures(quick: bool) -> Iterator[Figure]:
    """Tables and a report of all calls."""
    calls = CALLS // 20 if quick else CALLS
    what = f"{PROCESSES * calls / 1e6:g} million calls"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder / "seen", calls)
        tables = ["combine", str(folder / "seen"), "--parquet", "--out", str(folder / "tables")]
        for title, words in (("tables", tables), ("a report", ["report", str(folder / "seen")])):
            seconds, mib = measured(words)
            yield Figure(f"{title} of {what}", seconds, "s", 60.0, f"{KINDS} different ones")
            yield Figure(f"{title} of {what}, memory", mib, "MiB", 500.0)


def of_processor(run: Callable[[], object]) -> tuple[float, float]:
    """The seconds of the processor of this process, and of those that it started and that ended."""
    before, own = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    run()
    own, after = time.process_time() - own, resource.getrusage(resource.RUSAGE_CHILDREN)
    children = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return own, children


def verify_figures(quick: bool) -> Iterator[Figure]:
    """One verification in this process, and in this one with another one beside it."""
    import fleet_models

    model, observer = fleet_models.encoder(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 16), (3, 24), (4, 40)):
            model(torch.randint(0, 1000, (batch, length)))
    observer.export().save("program", values=True)
    for trials in (120,) if quick else (120, 600):

        def alone(trials: int = trials) -> object:
            return onlooker.load("program").verify(model=model, trials=trials)

        def beside(trials: int = trials) -> object:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                asked: dict[str, Any] = {"executor": pool, "build": "fleet_models.py:encoder"}
                return onlooker.load("program").verify(model=model, trials=trials, **asked)

        one, _ = of_processor(alone)
        own, other = of_processor(beside)
        yield Figure(
            f"verify, {trials} trials: the busier of two processes, by one alone",
            max(own, other) / one,
            "x",
            None if trials < 600 else 1 / 1.7,
            f"{one:.1f} s; {own:.1f} s here and {other:.1f} s in a worker, its start among them",
        )


def sweep_figures(quick: bool) -> Iterator[Figure]:
    """Exports of small models by one worker, and by two."""
    for count in (10,) if quick else (10, 120):
        jobs = [{"name": f"m{number}", "build": "fleet_models.py:small"} for number in range(count)]
        own, one = of_processor(
            lambda jobs=jobs: onlooker.sweep(jobs, into="one", workers=1, redo=True)
        )
        here, two = of_processor(
            lambda jobs=jobs: onlooker.sweep(jobs, into="two", workers=2, redo=True)
        )
        busier = two / 2 + one / count / 2  # one of them has the last job alone
        yield Figure(
            f"sweep, {count} exports: the busier of two workers, by one alone",
            (here + busier) / (own + one),
            "x",
            None if count < 120 else 1 / 1.7,
            f"{one:.1f} s in one worker, {two:.1f} s in two together, each with its start",
        )


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    yield from reading_figures(quick)
    with tempfile.TemporaryDirectory() as name:
        before = os.getcwd()
        os.chdir(name)
        sys.path.insert(0, name)
        os.environ["PYTHONPATH"] = os.pathsep.join([name, os.environ.get("PYTHONPATH", "")])
        Path("fleet_models.py").write_text(textwrap.dedent(MODELS))
        try:
            yield from verify_figures(quick)
            yield from sweep_figures(quick)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))

"""Tiny models of 24 architectures of transformers on every target, and beside
``transformers.exporters``: each is watched once, exported, and asked what nobody watched.

    python benchmarks/targets.py [--only NAME,...] [--ways WAY,...] [--seconds N] [--redo]
    python benchmarks/targets.py --page

A cell is one model and one way: a target of onlooker, or an exporter of transformers. Each cell is
a line in a file, ``benchmarks/rows/targets.jsonl`` unless ``--out`` says otherwise; what it has is
not measured again (``--redo`` does; the last line of a cell counts). Ways whose package is missing
are left out, so that another interpreter may add them to the same file: executorch wants an
environment of its own. ``--page`` writes ``docs/targets.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import environment  # noqa: F401  # before torch is imported
import torch
from targets_measure import MEMORY, WAYS, measure, subject_of
from targets_models import MODELS, use_of

PAGE = Path(__file__).parent.parent / "docs" / "targets.md"
ROWS = Path(__file__).parent / "rows" / "targets.jsonl"
#: the models whose planned memory is compared for several bounds
WITH_MEMORY = ("llama", "gpt2", "bert", "vit")
_PACKAGES = {
    "onnx": "onnxscript",
    "openvino": "openvino",
    "executorch": "executorch",
    "xnnpack": "executorch",
    MEMORY: "executorch",
}


def cells_of(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """``(model, way)`` -> its last row; a line that was cut off is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            found[row["model"], row["way"]] = row
    return found


def ways_here(asked: Sequence[str]) -> list[str]:
    """Those of the ways that are asked for whose package is installed."""
    names = {way: _PACKAGES.get(way.removeprefix("peer-")) for way in asked}
    return [way for way in asked if (name := names[way]) is None or _is_there(name)]


def _is_there(name: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        # executorch itself is a namespace, for which any folder of that name is taken
        return (
            importlib.util.find_spec("executorch.exir" if name == "executorch" else name)
            is not None
        )
    return False


def child(pipe: Connection, model: str, ways: Sequence[str], options: argparse.Namespace) -> None:
    """Sends ``(way, None)`` before and ``(way, row)`` after each cell; prints go to a log."""
    folder = Path(f"{options.out}.logs")
    folder.mkdir(exist_ok=True)
    log = os.open(folder / f"{model}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    limit = int(options.memory * 1024**3)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        tempfile.tempdir = scratch
        try:
            subject = subject_of(lambda: use_of(model))
            for way in ways:
                pipe.send((way, None))
                row = measure(subject, way, options.seconds)
                pipe.send((way, {"use": subject.use.story, **row}))
        except BaseException:
            traceback.print_exc()
    sys.stdout.flush()
    os._exit(0)


def run(model: str, ways: list[str], options: argparse.Namespace) -> None:
    """All cells of a model. Where its process dies, the cell says so, and another goes on."""
    context = multiprocessing.get_context("fork")
    while ways:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=child, args=(there, model, ways, options))
        process.start()
        there.close()
        current = ways[0]
        with contextlib.suppress(EOFError):
            while True:
                current, row = here.recv()
                if row is not None:
                    ways.remove(current)
                    _keep(model, current, row, options)
        process.join()
        if current in ways:
            ways.remove(current)
            _keep(model, current, {"cause": f"the process died ({process.exitcode})"}, options)


def _keep(model: str, way: str, row: dict[str, Any], options: argparse.Namespace) -> None:
    versions = {"torch": torch.__version__}
    with options.out.open("a") as file:
        file.write(json.dumps({"model": model, "way": way, **row, **versions}) + "\n")
    parts = (model, way, row.get("calls"), row.get("tokens"), row.get("cause"), row.get("seconds"))
    print(" ".join(str(part) for part in parts if part is not None)[:220], flush=True)


def main() -> int:
    """0 when all that was asked for has a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROWS, help="one line each")
    parser.add_argument("--only", default=",".join(MODELS), help="models, separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--seconds", type=int, default=240, help="of the processor for each cell")
    parser.add_argument("--memory", type=float, default=16, help="GiB of addresses for each model")
    parser.add_argument("--redo", action="store_true", help="also what the file has already")
    parser.add_argument("--page", action="store_true", help="write docs/targets.md, run nothing")
    options = parser.parse_args()
    if options.page:
        from targets_page import page_of

        PAGE.write_text(page_of(list(cells_of(options.out).values())))
        print(f"written: {PAGE}")
        return 0
    done = set() if options.redo else set(cells_of(options.out))
    ways = ways_here(options.ways.split(","))
    begin = time.monotonic()
    for model in options.only.split(","):
        wanted = [way for way in ways if way != MEMORY or model in WITH_MEMORY]
        run(model, [way for way in wanted if (model, way) not in done], options)
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

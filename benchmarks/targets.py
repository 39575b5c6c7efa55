"""Tiny models of 24 architectures of transformers on every target, and beside
``transformers.exporters``: each is watched once, exported, and asked what nobody watched.

    python benchmarks/targets.py [--only NAME,...] [--ways WAY,...] [--jobs N] [--redo]
    python benchmarks/targets.py --page

The cells of a model are a job of ``onlooker.sweep``. A cell is one model and one way: a target of
onlooker, or an exporter of transformers. Each cell is a line in a file,
``benchmarks/rows/targets.jsonl`` unless ``--out`` says otherwise; what it has is not measured again
(``--redo`` does; the last line of a cell counts). Ways whose package is missing are left out, so that
another interpreter may add them to the same file: executorch wants an environment of its own.
``--page`` writes ``docs/targets.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import environment  # noqa: F401  # before torch is imported
import torch
from targets_measure import MEMORY, WAYS, measure, subject_of
from targets_models import MODELS, use_of

from onlooker.fleet.job import jobs_of
from onlooker.fleet.sweep import completed

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


def measured(
    folder: Path,
    note: Callable[[dict[str, Any]], None],
    model: str,
    ways: Sequence[str],
    seconds: int,
    out: str,
) -> dict[str, Any]:
    """Measures the cells of a model, and appends each to the file."""
    torch.set_num_threads(1)
    note({"stage": ways[0], "measured": []})
    subject = subject_of(lambda: use_of(model))
    done: list[str] = []
    for way in ways:
        note({"stage": way, "measured": done})
        row = measure(subject, way, seconds)
        done.append(way)
        _keep(model, way, {"use": subject.use.story, **row}, Path(out))
    return {"measured": done}


def run(ways_of: dict[str, list[str]], options: argparse.Namespace) -> None:
    """All cells of some models. Where a process dies, the cell says so, and another goes on."""
    left = {model: ways for model, ways in ways_of.items() if ways}
    out = options.out.absolute()
    while left:
        given = {"seconds": options.seconds, "out": str(out)}
        described = [
            {
                "name": model,
                "run": f"{Path(__file__).absolute()}:measured",
                "arguments": {"model": model, "ways": ways, **given},
            }
            for model, ways in left.items()
        ]
        jobs = jobs_of(described, Path(f"{out}.logs"), memory=options.memory)
        for row in completed(jobs, workers=options.jobs, redo=True):
            model, done = row["name"], row.get("measured", [])
            left[model] = [way for way in left[model] if way not in done]
            if left[model]:
                died = left[model].pop(0)
                _keep(model, died, {"cause": str(row.get("message"))}, out)
        left = {model: ways for model, ways in left.items() if ways}


def _keep(model: str, way: str, row: dict[str, Any], out: Path) -> None:
    versions = {"torch": torch.__version__}
    with out.open("a") as file:
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
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
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
    wanted = {
        model: [
            way
            for way in ways
            if (way != MEMORY or model in WITH_MEMORY) and (model, way) not in done
        ]
        for model in options.only.split(",")
    }
    run(wanted, options)
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

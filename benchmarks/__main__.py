"""Runs all benchmarks, each in its own process, and writes what they found.

    python benchmarks [NAME ...] [--quick]

A full run of some or all of them writes ``benchmarks/results.json`` and ``docs/benchmarks.md``; a
quick one prints only, since its inputs are smaller.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from frame import Figure

from page import page_of

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE.parent / "docs" / "benchmarks.md"
#: in the order in which they run: the short ones first
BENCHMARKS = (
    "imports",
    "inference",
    "dispatch",
    "watching",
    "fleet",
    "pipeline",
    "export",
    "scaling",
    "images",
    "real",
    "growth",
    "footprint",
    "cost",
    "speed",
    "serving",
    "recompiles",
)


def about_machine() -> dict[str, str]:
    """What the figures depend on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "threads": "1",
    }


def run(name: str, quick: bool) -> list[Figure] | None:
    """The figures of one benchmark, printed while it runs; None when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "figures.json"
        command = [
            sys.executable,
            str(HERE / f"{name}.py"),
            "--json",
            str(found),
            *(["--quick"] if quick else []),
        ]
        environment = {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
        }
        subprocess.run(command, env={**os.environ, **environment}, check=False)
        if not found.exists():
            return None
        return [Figure.read(values) for values in json.loads(found.read_text())]


def kept() -> dict[str, Any]:
    """The results of earlier runs, for benchmarks that are not run this time."""
    return json.loads(RESULTS.read_text())["benchmarks"] if RESULTS.exists() else {}


def main() -> int:
    """0 when every benchmark ran, whatever it found."""
    parser = argparse.ArgumentParser(
        prog="benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="smaller inputs; nothing is written")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}")
    results, failed, missed = kept(), [], []
    for name in options.names or BENCHMARKS:
        print(f"\n{name}", flush=True)
        start = time.perf_counter()
        figures = run(name, options.quick)
        if figures is None:
            failed.append(name)
            continue
        missed += [f"{name}: {figure.name}" for figure in figures if figure.reached is False]
        seconds = round(time.perf_counter() - start, 1)
        print(f"({name}: {seconds:.0f} seconds)", flush=True)
        results[name] = {
            "seconds": seconds,
            "machine": about_machine(),
            "figures": [f.values() for f in figures],
        }
    print(
        "\n"
        + "\n".join([f"NOT REACHED  {name}" for name in missed] or ["Every target is reached."])
    )
    print("".join(f"FAILED       {name}\n" for name in failed), end="")
    if not options.quick:
        ordered = {name: results[name] for name in BENCHMARKS if name in results}
        RESULTS.write_text(json.dumps({"benchmarks": ordered}, indent=1) + "\n")
        PAGE.write_text(page_of(ordered))
        print(f"written: {RESULTS.name}, {PAGE.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""How long `import onlooker` takes beside `import torch`, and what it brings along.

    python benchmarks/imports.py [--quick] [--json FILE]

Pairs of fresh processes, alternating: one imports torch alone, one imports torch and then onlooker.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGET_MS = 50.0
#: heavy packages that a user may not have, or may not need
NOT_IMPORTED = ("transformers", "onnx", "onnxruntime", "onnxscript", "rich", "pandas")

_CODE = """
import time, sys
import torch
before = set(sys.modules)
start = time.perf_counter()
{imports}
print(time.perf_counter() - start)
print(" ".join(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""


def measure(imports: str) -> tuple[float, list[str]]:
    """Seconds that some imports take after torch, in a fresh process, and the packages that they bring."""
    done = subprocess.run([sys.executable, "-c", _CODE.format(imports=imports)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, packages = (done.stdout + "\n").split("\n")[:2]
    return float(seconds), packages.split()


def run(pairs: int) -> dict[str, Any]:
    """The median of the differences, in milliseconds."""
    rows: dict[str, list[float]] = {}
    brought: set[str] = set()
    for _ in range(pairs):
        base, _ = measure("pass")
        for name, imports in (
            ("import onlooker", "import onlooker"),
            ("first use", "import onlooker; onlooker.InputObserver"),
        ):
            seconds, packages = measure(imports)
            rows.setdefault(name, []).append(1000 * (seconds - base))
            if name == "import onlooker":
                brought |= set(packages)
    return {
        "import_ms": statistics.median(rows["import onlooker"]),
        "first_use_ms": statistics.median(rows["first use"]),
        "target_ms": TARGET_MS,
        "not_wanted": sorted(brought & set(NOT_IMPORTED)),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="3 pairs instead of 11")
    parser.add_argument("--json", type=Path, help="writes the figures there")
    options = parser.parse_args()
    found = run(3 if options.quick else 11)
    mark = "reached" if found["import_ms"] <= TARGET_MS and not found["not_wanted"] else "NOT REACHED"
    print(f"import onlooker, after torch   {found['import_ms']:7.1f} ms   target {TARGET_MS:.0f} ms   {mark}")
    print(f"and onlooker.InputObserver     {found['first_use_ms']:7.1f} ms")
    print(f"packages brought that are not wanted: {', '.join(found['not_wanted']) or 'none'}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

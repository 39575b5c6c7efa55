"""How long `import onlooker` takes beside `import torch`, and what it brings along.

    python benchmarks/imports.py [--quick] [--json FILE]

Pairs of fresh processes, alternating: one imports torch alone, one imports torch and then onlooker.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator

from frame import Figure, main

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
    """Seconds that some imports take after torch, in a fresh process, and the packages that they
    bring.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CODE.format(imports=imports)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    seconds, packages = (done.stdout + "\n").split("\n")[:2]
    return float(seconds), packages.split()


def figures(quick: bool) -> Iterator[Figure]:
    """The medians of the differences, and the number of packages that should not come along."""
    rows: dict[str, list[float]] = {}
    brought: set[str] = set()
    for _ in range(2 if quick else 5):
        base, _ = measure("pass")
        for name, imports in (
            ("import onlooker", "import onlooker"),
            ("first use", "import onlooker; onlooker.InputObserver"),
        ):
            seconds, packages = measure(imports)
            rows.setdefault(name, []).append(1000 * (seconds - base))
            if name == "import onlooker":
                brought |= set(packages)
    yield Figure(
        "import onlooker, after torch", statistics.median(rows["import onlooker"]), "ms", TARGET_MS
    )
    yield Figure("and onlooker.InputObserver", statistics.median(rows["first use"]), "ms")
    unwanted = sorted(brought & set(NOT_IMPORTED))
    yield Figure(
        "heavy packages that come along",
        len(unwanted),
        "",
        0,
        ", ".join(unwanted) or ", ".join(NOT_IMPORTED),
    )


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))

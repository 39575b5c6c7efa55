"""How the seconds of an export grow with the length of the watched calls, and with equal layers.

    python benchmarks/growth.py [--quick] [--json FILE]

Every export is one of a process of its own, whose seconds are those of the processor; a ratio is one of two
neighbours in one run. Beside the layers stands a bare export, written by hand, of the same model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from frame import Figure, main
from real import Use, in_own_process

LENGTHS, LAYERS = (32, 125, 500), (20, 40, 80)
MOST_BY_LENGTH, MOST_BY_LAYERS = 1.2, 3.0


def rows(uses: Mapping[str, Use], label: str, most: float | None) -> Iterator[Figure]:
    """A figure of each use, and the growth from the first to the last."""
    found = {name: in_own_process(use) for name, use in uses.items()}
    for name, values in found.items():
        bare = f"; bare {values['bare']:.1f} s" if "bare" in values else ""
        note = f"{values['graphs']:.0f} graphs{bare}"
        yield Figure(f"{label}: export, {name}", values["export"], "s", note=note)
    (first, least), *_, (last, largest) = found.items()
    note = f"bare {largest['bare'] / least['bare']:.2f} times" if "bare" in least else ""
    growth = largest["export"] / least["export"]
    yield Figure(f"{label}: export, {last} / {first}", growth, "x", most, note)


def figures(quick: bool) -> Iterator[Figure]:
    """All figures; a quick run has a small model."""
    model = "12 thin layers" if quick else "Qwen2.5-0.5B"
    lengths = {f"2x{length}": Use(model, 2, length, 4, ()) for length in LENGTHS}
    yield from rows(lengths, model, None if quick else MOST_BY_LENGTH)
    if not quick:
        layers = {
            f"{count} layers": Use(f"{count} thin layers", 2, 32, 4, ("bare",)) for count in LAYERS
        }
        yield from rows(layers, "thin Llama", MOST_BY_LAYERS)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))

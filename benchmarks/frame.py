"""What all benchmarks share: a figure beside its target, the clock, and the command line of one
script.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import math
import os
import pstats
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)  # seconds of the processor are those of all threads together

_FOLDERS = ("/onlooker/", "/benchmarks/")
_MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number, beside the most that it may be (``target``); None where none is set.

    ``profile`` says where the time goes, ``note`` what else belongs to the number.
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""
    profile: tuple[str, ...] = ()

    @property
    def reached(self) -> bool | None:
        """None without a target."""
        return None if self.target is None else self.value <= self.target

    @property
    def mark(self) -> str:
        """One or two words for a table."""
        return {None: "", True: "reached", False: "NOT REACHED"}[self.reached]

    def __str__(self) -> str:
        target = (
            ""
            if self.target is None
            else f"  target {shown(self.target):>9} {self.unit:<4} {self.mark}"
        )
        note = f"  ({self.note})" if self.note else ""
        return f"{self.name:<66} {shown(self.value):>9} {self.unit:<4}{target}{note}"

    def values(self) -> dict[str, Any]:
        """The figure for JSON."""
        return asdict(self)

    @classmethod
    def read(cls, values: dict[str, Any]) -> Figure:
        """A figure from JSON."""
        return cls(**{**values, "profile": tuple(values.get("profile", ()))})


def shown(value: float) -> str:
    """A number as people read it: three digits, or all of a large one.

    >>> shown(1.01234), shown(12345.6), shown(0.00123), shown(0.0)
    ('1.01', '12346', '0.00123', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """Appends the seconds of the processor that the block takes: what other processes do is left
    out.
    """
    found: list[float] = []
    gc.collect()
    start = time.process_time()
    try:
        yield found
    finally:
        found.append(time.process_time() - start)


def seconds_of(run: Callable[[], object]) -> float:
    """The seconds of the processor that a run takes."""
    with stopwatch() as found:
        run()
    return found[0]


def profiled(run: Callable[[], object]) -> tuple[str, ...]:
    """Where the time of a run goes: the functions of onlooker and of the benchmarks that take
    longest, and torch.
    """
    profile = cProfile.Profile()
    profile.runcall(run)
    rows: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = pstats.Stats(
        profile
    ).stats  # type: ignore[attr-defined]
    ours = [
        (cumulative, own, calls, f"{Path(file).parent.name}/{Path(file).name}:{line} {name}")
        for (file, line, name), (_, calls, own, cumulative, _) in rows.items()
        if any(folder in file for folder in _FOLDERS)
        or (name == "_export" and file.endswith("torch/export/_trace.py"))
    ]
    longest = sorted(ours, reverse=True)[:_MOST_LINES]
    return tuple(
        f"{total:7.2f} s in all, {own:6.2f} s itself, {calls:7} calls  {where}"
        for total, own, calls, where in longest
    )


def with_profile(figure: Figure, run: Callable[[], object]) -> Figure:
    """The figure, with the profile of a run where its target is not reached."""
    return replace(figure, profile=profiled(run)) if figure.reached is False else figure


def main(text: str, figures: Callable[[bool], Iterable[Figure]]) -> int:
    """The command line of one benchmark: prints its figures, and writes them where ``--json``
    says.
    """
    parser = argparse.ArgumentParser(description=text.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller inputs, fewer repetitions")
    parser.add_argument("--json", type=Path, help="writes the figures there")
    options = parser.parse_args()
    found = []
    for figure in figures(options.quick):
        found.append(figure)
        print(figure, flush=True)
        for line in figure.profile:
            print(f"    {line}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([figure.values() for figure in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit("This is what the benchmarks share: run `make bench`.")

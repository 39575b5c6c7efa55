"""The memory of this process, as the kernel counts it (Linux)."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CLEAR = Path("/proc/self/clear_refs")
#: what is written there to set the peak back to what is resident now
_PEAK = "5"


@dataclass(slots=True)
class Peak:
    """The most bytes above those at the start of a block."""

    bytes: int = 0


def resident() -> int:
    """The bytes that are resident now, after unused ones were given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _read("VmRSS")


@contextmanager
def peak_above() -> Iterator[Peak]:
    """The peak of the block, above what was resident before it."""
    base, found = resident(), Peak()
    _CLEAR.write_text(_PEAK)
    yield found
    found.bytes = _read("VmHWM") - base


def peak_of(process: int) -> int:
    """The most bytes that another process had, by its number."""
    return _read("VmHWM", str(process))


def _read(name: str, process: str = "self") -> int:
    lines = Path("/proc", process, "status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return 1024 * int(kilobytes)

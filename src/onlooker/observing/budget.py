"""The memory that the kept values may take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from ..core.errors import UsageError

__all__ = ["MemoryBudget", "free_bytes", "in_words"]

GIB = 1 << 30
#: of the memory that is free when watching begins, at most this share, and never more than this
_SHARE, _MOST = 0.25, 4 * GIB
#: what the specs of calls may take in any case: those of some ten thousand different calls
_SPECS = 1 << 24
_CGROUP = Path("/sys/fs/cgroup")


class MemoryBudget:
    """The bytes that kept values may take: ``max_bytes`` in all, or a share of what is free on each
    device.

    :raises UsageError: ``bad-max-bytes``
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        if max_bytes is not None and (
            isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0
        ):
            raise UsageError(
                f"max_bytes is {max_bytes!r}.",
                slug="bad-max-bytes",
                hint=(
                    "Give the number of bytes that kept values may take, 0 or more, or None for a"
                    " share of what is free."
                ),
            )
        self.max_bytes = max_bytes
        self._limits: dict[torch.device, int] = {}
        self.spec_bytes = 0

    @property
    def has_room_for_specs(self) -> bool:
        """True while the specs of calls take less than they may: as much as values, and never
        less than 16 MiB.
        """
        if self.spec_bytes < _SPECS:
            return True
        limit = self.max_bytes if self.max_bytes is not None else self._limit(torch.device("cpu"))
        return self.spec_bytes < limit

    def fits(self, held: Mapping[torch.device, int], needed: Mapping[torch.device, int]) -> bool:
        """True when what is needed may be added to what is held."""
        if self.max_bytes is not None:
            specs = max(0, self.spec_bytes - _SPECS)
            return sum(held.values()) + sum(needed.values()) + specs <= self.max_bytes
        return all(
            held.get(device, 0) + nbytes <= self._limit(device) for device, nbytes in needed.items()
        )

    def _limit(self, device: torch.device) -> int:
        if device not in self._limits:
            self._limits[device] = min(int(_SHARE * free_bytes(device)), _MOST)
        return self._limits[device]

    def __str__(self) -> str:
        if self.max_bytes is not None:
            return in_words(self.max_bytes)
        limits = ", ".join(
            f"{in_words(limit)} on {device}" for device, limit in self._limits.items()
        )
        return f"a quarter of what was free: {limits}"


def free_bytes(device: torch.device) -> int:
    """The memory that is free on a device: of the machine, and of the control group of the process.

    Where it cannot be found out, as much as lets a quarter of it be 1 GiB.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "meta":
        return 4 * _MOST
    known = [n for n in (_machine(), _control_group()) if n is not None]
    return min(known, default=4 * GIB)


def _machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError, IndexError):
        return None


def _control_group() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        return None if limit == "max" else max(int(limit) - used, 0)
    except (OSError, ValueError):
        return None


def in_words(nbytes: int) -> str:
    """A number of bytes as people read it.

    >>> in_words(1536), in_words(3 * 1024**3)
    ('1.5 KiB', '3 GiB')
    """
    size, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if size >= 100 else f"{size:.3g} {units[0]}"

"""Gives back the pages of a mapped file while OpenVINO reads all of it.

OpenVINO maps the file of the weights, and its compiler packs one weight after the other. Each page that
it read stays resident until the system needs memory: a model of 1 GiB is in memory twice for a while. The
pages are those of a file, are read again where they are needed, and can be given back at any time.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["pages_given_back"]

#: so many seconds lie between two times that pages are given back
_SECONDS = 0.02
#: what a process has mapped, where Linux says it
_MAPS = Path("/proc/self/maps")
#: of a file, and never written to: addresses from and to, in hexadecimal
_OF_A_FILE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r--. \S+ \S+ [1-9]\d* +/", re.MULTILINE)


@contextlib.contextmanager
def pages_given_back(model: Any) -> Iterator[None]:
    """Inside the block pages of the file in which the constants of a model stand are given back, again and
    again. The model keeps the file mapped. Nothing happens where constants are in memory.
    """
    ranges = _ranges_of(model)
    if not ranges:
        yield
        return
    done = threading.Event()
    library = ctypes.CDLL(None)

    def give_back() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(_SECONDS)
            for start, end in ranges:
                library.madvise(
                    ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED
                )

    thread = threading.Thread(target=give_back, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _ranges_of(model: Any) -> set[tuple[int, int]]:
    """The addresses of the mapped files in which constants of a model lie."""
    if not (_MAPS.exists() and hasattr(mmap, "MADV_DONTNEED")):
        return set()
    found = _OF_A_FILE.findall(_MAPS.read_text(errors="replace"))
    files = [(int(start, 16), int(end, 16)) for start, end in found]
    nodes = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    places = {node.data.__array_interface__["data"][0] for node in nodes}
    return {(start, end) for start, end in files if any(start <= place < end for place in places)}

"""Places the bytes of weights in a file that several graphs use."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from .stand_ins import bytes_of, check_bytes, written

__all__ = ["Place", "places_of", "write_weights"]

_ALIGNED = 64
_PAGE = 4096
#: so many bytes of a turned weight, or of a mapped file, are in memory at once while they are written
_PIECE = 2**24


@dataclass(frozen=True, slots=True)
class Place:
    """The place of the bytes of a weight in a file."""

    offset: int
    length: int


def places_of(arrays: Mapping[int, Any]) -> dict[int, Place]:
    """Returns the place of each array in the file, one after the other; large ones begin on a page,
    to be mapped.
    """
    places: dict[int, Place] = {}
    end = 0
    for key, array in arrays.items():
        step = _PAGE if array.nbytes >= _PAGE else _ALIGNED
        start = -(-end // step) * step
        places[key] = Place(start, array.nbytes)
        end = start + array.nbytes
    return places


def write_weights(file: BinaryIO, arrays: Mapping[int, Any], places: Mapping[int, Place]) -> None:
    """Writes the arrays at their places, or what they stand for."""
    for key, array in arrays.items():
        file.write(b"\0" * (places[key].offset - file.tell()))
        for part in _parts(written(array)):
            file.write(memoryview(bytes_of(part)))
            _give_back(array)
    file.flush()
    for key, array in arrays.items():
        check_bytes(Path(file.name), places[key].offset, array)


def _parts(array: Any) -> Iterator[Any]:
    """The array in some rows at a time, which are put in order one after the other."""
    if not array.ndim or not array.nbytes:
        yield array
        return
    rows = max(1, _PIECE * len(array) // array.nbytes)
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _give_back(array: Any) -> None:
    """Gives back the memory of an array of a mapped file, which is read again when it is needed."""
    while isinstance(array, numpy.ndarray) and not array.flags.writeable:
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)

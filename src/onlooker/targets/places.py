"""Places the bytes of weights in a file that several graphs use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .stand_ins import bytes_of, check_bytes, written

__all__ = ["Place", "places_of", "write_weights"]

_ALIGNED = 64
_PAGE = 4096


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
        file.write(memoryview(bytes_of(written(array))))
    file.flush()
    for key, array in arrays.items():
        check_bytes(Path(file.name), places[key].offset, array)

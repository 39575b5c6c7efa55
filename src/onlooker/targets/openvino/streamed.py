"""Writes models of OpenVINO whose weights are elsewhere, one weight at a time.

OpenVINO writes a model and all its constants at once. So it writes the ``.xml`` alone, and says there of each
constant where it would stand. These places are replaced by ours, in the order of the constants, and the file
of the weights is written here: what a constant stands for is read when it is its turn.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ExportError
from ..places import Place, places_of, write_weights
from .weights import bodies_of

__all__ = ["arrays_of", "write_streamed"]

#: a constant in an ``.xml``: its name, and its place
_CONSTANT = re.compile(
    r'(<layer id="\d+" name="([^"]*)" type="Const"[^>]*>\s*<data [^>]*?)offset="\d+" size="(\d+)"'
)
#: what OpenVINO says of a constant without numbers
_SIZE_OF_NOTHING = 1


def arrays_of(model: Any) -> list[Any]:
    """The numbers of all constants of a model."""
    return [constant.data for constant in _constants_of(model)]


def write_streamed(models: Sequence[Any], paths: Sequence[Path], weights: Path) -> None:
    """Writes the models, and the weights of all of them in one file, in which a weight stands once.

    :raises ExportError: ``openvino-refused``
    :raises SavedFileError: ``weights-differ``
    """
    arrays: dict[int, Any] = {}
    known: dict[tuple[Any, ...], int] = {}
    used: list[list[int]] = []
    for model in models:
        own = []
        for array in arrays_of(model):
            memory = (array.__array_interface__["data"][0], array.nbytes, array.strides)
            own.append(known.setdefault(memory, len(known)))
            arrays.setdefault(own[-1], array)
        used.append(own)
    places = places_of(arrays)
    for model, path, own in zip(models, paths, used, strict=True):
        _write_graph(model, path, [places[key] for key in own])
    with weights.open("wb") as file:
        write_weights(file, arrays, places)


def _write_graph(model: Any, path: Path, places: Sequence[Place]) -> None:
    """Writes the ``.xml`` with these places, one a constant."""
    import openvino

    openvino.serialize(model, path, os.devnull)
    text = path.read_text(encoding="utf-8")
    named = [
        (node.get_friendly_name(), node.get_byte_size() or _SIZE_OF_NOTHING)
        for node in _constants_of(model)
    ]
    written = [(html.unescape(name), int(size)) for _, name, size in _CONSTANT.findall(text)]
    if written != named:
        raise ExportError(
            f"OpenVINO wrote other constants into {path.name} than the model has.",
            slug="openvino-refused",
            hint="Convert it on a machine with memory for the weights, without --low-memory.",
        )
    left = iter(places)

    def placed(found: re.Match[str]) -> str:
        place = next(left)
        start = place.offset if place.length else 0
        return f'{found[1]}offset="{start}" size="{found[3]}"'

    path.write_text(_CONSTANT.sub(placed, text), encoding="utf-8")


def _constants_of(model: Any) -> Iterator[Any]:
    """The constants of a model and of what is inside of it, in the order of the file."""
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Constant":
            yield node
        for body in bodies_of(node):
            yield from _constants_of(body)

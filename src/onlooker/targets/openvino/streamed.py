"""Writes models of OpenVINO, one weight at a time: it is read when it is its turn, wherever it is.

OpenVINO writes a model and all its constants at once. So it writes the ``.xml`` alone, and says there of each
constant where it would stand. These places are replaced by ours, in the order of the constants, and the file
of the weights is written here: what a constant stands for is read when it is its turn.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import ExportError
from ..places import Place, places_of, write_weights
from ..stand_ins import bytes_of, is_stand_in
from .weights import bodies_of

__all__ = ["arrays_of", "write_streamed"]

#: a constant in an ``.xml``: its name, and its place
_CONSTANT = re.compile(
    r'(<layer id="\d+" name="([^"]*)" type="Const"[^>]*>\s*<data [^>]*?)offset="\d+" size="(\d+)"'
)
#: what OpenVINO says of most constants without numbers; of others it says 0
_SIZE_OF_NOTHING = 1
#: equal weights of one model that are larger are one piece of memory already
_SMALL = 2**20
#: what OpenVINO knows of a constant that it has read, and writes into no file
_NOT_WRITTEN = frozenset({"WeightlessCacheAttribute_0"})


def arrays_of(model: Any) -> list[Any]:
    """The numbers of all constants of a model."""
    return [constant.data for constant in _constants_of(model)]


def write_streamed(models: Sequence[Any], paths: Sequence[Path], weights: Path) -> None:
    """Writes the models, and the weights of all of them in one file, in which a weight stands once.

    :raises ExportError: ``openvino-refused``
    :raises SavedFileError: ``weights-differ``
    """
    arrays: dict[int, Any] = {}
    by_memory: dict[tuple[Any, ...], int] = {}
    by_content: dict[tuple[Any, ...], int] = {}
    empty: list[Any] = []
    used: list[list[int]] = []
    for model in models:
        without, own_arrays = _without_numbers(model)
        own = []
        for array in own_arrays:
            memory = (array.__array_interface__["data"][0], array.nbytes, array.strides)
            if memory not in by_memory:
                is_read = len(models) > 1 or array.nbytes < _SMALL
                content = memory if is_stand_in(array) or not is_read else _digest(array)
                by_memory[memory] = by_content.setdefault(content, len(by_content))
                arrays.setdefault(by_memory[memory], array)
            own.append(by_memory[memory])
        empty.append(without)
        used.append(own)
    places = places_of(arrays)
    for model, path, own in zip(empty, paths, used, strict=True):
        _write_graph(model, path, [places[key] for key in own])
    with weights.open("wb") as file:
        write_weights(file, arrays, places)


def _without_numbers(model: Any) -> tuple[Any, list[Any]]:
    """A copy of the model whose large constants are memory that nobody has touched, and the arrays of the
    constants in the order of the copy: OpenVINO reads all numbers to write a graph without them.
    """
    import openvino

    copy, arrays = model.clone(), {}
    for node in [*_constants_of(copy)]:
        arrays[node.get_name()] = node.data
        is_plain = _NOT_WRITTEN.issuperset(dict(node.get_rt_info()))
        if node.get_byte_size() < _SMALL or not is_plain:
            continue
        untouched = openvino.Tensor(node.get_element_type(), node.get_shape())
        constant = openvino.op.Constant(untouched, shared_memory=True)
        constant.set_friendly_name(node.get_friendly_name())
        constant.output(0).get_tensor().set_names(node.output(0).get_names())
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(constant.output(0))
        arrays[constant.get_name()] = node.data
    return copy, [arrays[node.get_name()] for node in _constants_of(copy)]


def _digest(array: Any) -> tuple[Any, ...]:
    return array.nbytes, hashlib.sha256(bytes_of(array)).digest()


def _write_graph(model: Any, path: Path, places: Sequence[Place]) -> None:
    """Writes the ``.xml`` with these places, one a constant."""
    import openvino

    openvino.serialize(model, path, os.devnull)
    text = path.read_text(encoding="utf-8")
    named = [
        (node.get_friendly_name(), node.get_byte_size() or _SIZE_OF_NOTHING)
        for node in _constants_of(model)
    ]
    written = [
        (html.unescape(name), int(size) or _SIZE_OF_NOTHING)
        for _, name, size in _CONSTANT.findall(text)
    ]
    if written != named:
        raise ExportError(
            f"OpenVINO wrote other constants into {path.name} than the model has.",
            slug="openvino-refused",
            hint="Please report it with the model; to='onnx' and to='torch' need no OpenVINO.",
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

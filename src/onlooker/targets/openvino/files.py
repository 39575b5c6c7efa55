"""Models of OpenVINO as files: an ``.xml`` a graph, and the weights beside it.

An ``.xml`` says of each weight where it stands in a file of weights, and OpenVINO reads any pair of
the two: ``core.read_model("main_2.xml", "weights.bin")``. So several graphs can use one such file.
"""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from ...disk.text import damaged
from ..places import Place, places_of, write_weights

__all__ = ["WEIGHTS", "read_models", "weights_of", "write_models"]

#: the file with the weights of all graphs, where there are several
WEIGHTS = "weights.bin"
#: the bytes that a model may make of its constants, also where its files have far fewer
_MOST_COMPUTED = 2**28
#: and how many times what is written
_GROWTH = 4
#: what OpenVINO writes of a weight, in this order
_PLACE = re.compile(r'offset="(\d+)" size="(\d+)"')


def write_models(models: Sequence[Any], paths: Sequence[Path]) -> list[Path]:
    """Writes the models, each weight as it is, and gives the paths of all files."""
    import openvino

    if len(models) == 1:
        openvino.save_model(models[0], paths[0], compress_to_fp16=False)
        return [paths[0], paths[0].with_suffix(".bin")]
    with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
        written = [Path(folder, path.name) for path in paths]
        for model, path in zip(models, written, strict=True):
            openvino.save_model(model, path, compress_to_fp16=False)
        weights = paths[0].parent / WEIGHTS
        _merge(written, paths, weights)
    return [*paths, weights]


def _merge(written: Sequence[Path], paths: Sequence[Path], weights: Path) -> None:
    """Writes the models again with places in one file, in which equal weights are one."""
    arrays: dict[int, Any] = {}
    by_content: dict[tuple[int, bytes], int] = {}
    keys: list[dict[Place, int]] = []
    texts = [path.read_text(encoding="utf-8") for path in written]
    for path, text in zip(written, texts, strict=True):
        content = _mapped(path.with_suffix(".bin"))
        own: dict[Place, int] = {}
        for place in {Place(int(start), int(size)) for start, size in _PLACE.findall(text)}:
            array = content[place.offset : place.offset + place.length]
            key = by_content.setdefault(
                (place.length, hashlib.sha256(array).digest()), len(by_content)
            )
            own[place] = key
            arrays.setdefault(key, array)
        keys.append(own)
    places = places_of(arrays)
    for path, text, own in zip(paths, texts, keys, strict=True):

        def moved(found: re.Match[str], own: dict[Place, int] = own) -> str:
            place = places[own[Place(int(found[1]), int(found[2]))]]
            return f'offset="{place.offset}" size="{place.length}"'

        path.write_text(_PLACE.sub(moved, text), encoding="utf-8")
    with weights.open("wb") as file:
        write_weights(file, arrays, places)


def _mapped(path: Path) -> Any:
    """The bytes of a file, which is mapped and not read."""
    if not path.stat().st_size:
        return numpy.empty(0, dtype=numpy.uint8)
    return numpy.memmap(path, dtype=numpy.uint8, mode="r")


def read_models(paths: Sequence[Path]) -> list[Any]:
    """Models from one folder, which somebody else may have made.

    :raises SavedFileError: ``file-damaged``
    """
    return [_read(path, weights_of(path, len(paths))) for path in paths]


def weights_of(path: Path, count: int) -> Path:
    """The file with the weights of a model, which is one of so many in its folder."""
    return path.parent / WEIGHTS if count > 1 else path.with_suffix(".bin")


def _read(path: Path, weights: Path) -> Any:
    import openvino

    try:
        model = openvino.Core().read_model(path, weights)
        computed = _computed_bytes(model)
        limit = max(_MOST_COMPUTED, _GROWTH * (path.stat().st_size + weights.stat().st_size))
    except Exception as error:
        said = " ".join(str(error).split())[-300:]
        raise damaged(path.name, f"it is no model of OpenVINO ({said})") from error
    if computed > limit:
        raise damaged(path.name, f"its constants alone make {computed} bytes")
    return model


def _computed_bytes(model: Any) -> int:
    """The bytes of all results that depend on constants alone: they are computed when a model is
    compiled, and a file of some kilobytes can ask for any number of them.
    """
    total = 0
    known: set[str] = set()
    for node in model.get_ordered_ops():
        total += sum(_computed_bytes(body) for body in _bodies(node))
        sources = [port.get_node().get_name() for port in node.input_values()]
        if node.get_type_name() == "Constant":
            known.add(node.get_name())
        elif sources and known.issuperset(sources):
            known.add(node.get_name())
            total += sum(_bytes_of(port) for port in node.outputs())
    return total


def _bodies(node: Any) -> list[Any]:
    """The models inside of a branch or a loop."""
    if node.get_type_name() == "If":
        return [node.get_then_body(), node.get_else_body()]
    return [node.get_function()] if hasattr(node, "get_function") else []


def _bytes_of(port: Any) -> int:
    shape = port.get_partial_shape()
    if not shape.is_static:
        return 0
    return int(math.prod(shape.to_shape()) * max(1, port.get_element_type().bitwidth // 8))

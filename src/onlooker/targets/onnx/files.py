"""Models of ONNX as files: one a graph, and one with the weights that several graphs use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...core.errors import SavedFileError
from ...disk.text import damaged
from ..places import places_of, write_weights
from ..stand_ins import weights_are_elsewhere
from .runtime.bounds import check_bounds
from .weights import (
    WEIGHTS,
    attach,
    check_places,
    external_proto,
    external_weights,
    mapped,
)

__all__ = ["read_models", "write_models"]


def write_models(
    models: Sequence[Any], paths: Sequence[Path], largest: int, *, weights: str = WEIGHTS
) -> list[Path]:
    """Writes the models, and beside them, in a file called ``weights``, the weights that they share
    or that make one larger than ``largest`` bytes.

    Gives the paths of all files.
    """
    arrays = external_weights(models, 0 if weights_are_elsewhere() else largest)
    places = places_of(arrays)
    for model, path in zip(models, paths, strict=True):
        path.write_bytes(external_proto(model, places, weights).SerializeToString())
    if not arrays:
        return list(paths)
    beside = paths[0].parent / weights
    with beside.open("wb") as file:
        write_weights(file, arrays, places)
    return [*paths, beside]


def read_models(paths: Sequence[Path]) -> list[Any]:
    """Models of onnx_ir from one folder; weights that lie outside are parts of one mapped file.

    :raises SavedFileError: ``file-damaged``
    """
    whole = mapped(paths[0].parent / WEIGHTS)
    return [_read(path, whole) for path in paths]


def _read(path: Path, whole: Any) -> Any:
    import onnx
    import onnx_ir

    try:
        proto = onnx.load_model(str(path), load_external_data=False)
        check_places(proto)
        check_bounds(proto, path.name)
        model = onnx_ir.serde.deserialize_model(proto)
        attach(model, whole)
    except SavedFileError:
        raise
    except Exception as error:
        raise damaged(
            path.name, f"it is no model of ONNX ({type(error).__name__}: {error})"
        ) from error
    return model

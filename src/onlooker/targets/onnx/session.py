"""A session of ONNX Runtime on a model in a file, whose outside weights are the memory that is
there already.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from ...core.errors import ExportError
from .bounds import NOT_FOLDED

__all__ = ["open_session"]


def open_session(
    path: Path, weights: Mapping[str, Any], *, prepack: bool, folds: bool = True
) -> tuple[Any, tuple[Any, ...]]:
    """A session on the CPU, and what has to live as long as it does.

    ``weights`` are tensors of onnx_ir by name, in place of what the file says of them: they are
    used where they are, by all sessions. With ``prepack`` each session makes itself a copy that is
    laid out for speed. Unless it ``folds``, nothing that depends on constants alone is computed
    here: a foreign model may ask for any amount.

    :raises ExportError: ``onnx-refused`` with the message of ONNX Runtime
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # an error is raised, and need not be printed too
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    values = {name: _value(tensor) for name, tensor in weights.items()}
    for name, value in values.items():
        options.add_initializer(name, value)
    try:
        without = [] if folds else list(NOT_FOLDED)
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=without
        )
    except Exception as error:
        raise ExportError(
            f"ONNX Runtime does not take {path.name}: {type(error).__name__}: {error}",
            slug="onnx-refused",
            hint="Another opset or another dtype may do; to='torch' needs no ONNX Runtime.",
        ) from error
    return session, (options, values)


def _value(tensor: Any) -> Any:
    """The array as a value of ONNX Runtime, without a copy."""
    import onnxruntime

    array = tensor.raw
    if array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = numpy.dtype(f"uint{8 * array.dtype.itemsize}")  # numpy has no bfloat16 and no float8
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        array.view(bits), tensor.dtype.value
    )

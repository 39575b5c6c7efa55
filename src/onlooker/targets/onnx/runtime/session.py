"""A session of ONNX Runtime on a model in a file, whose outside weights are the memory that is
there already.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from ....core.errors import ExportError, UsageError
from .bounds import NOT_FOLDED
from .settings import SessionSettings

__all__ = ["Session", "open_session", "started"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """An open session, and what has to live as long as it does.

    Where ONNX Runtime has no kernels for an operator of the model, ``inner`` is None and
    ``blocked`` is what it says.
    """

    inner: Any = None
    alive: tuple[Any, ...] = ()
    blocked: str = ""


def open_session(
    path: Path,
    weights: Mapping[str, Any],
    *,
    prepack: bool,
    folds: bool,
    settings: SessionSettings,
) -> Session:
    """A session with these settings.

    With ``prepack`` the session makes itself a copy of the weights that is laid out for speed, and
    gives back each weight of the file that it has copied. Else ``weights``, tensors of onnx_ir by
    name, are used where they are, by all sessions, in place of what the file says of them. Where
    ``settings`` have a SessionOptions of the user, it packs. Unless it ``folds``, nothing that
    depends on constants alone is computed here: a foreign model may ask for any amount.

    :raises ExportError: ``onnx-refused`` with the message of ONNX Runtime
    :raises UsageError: ``bad-session-options``, ``bad-providers``
    """
    options = settings.new_options()
    values: dict[str, Any] = {}
    if not settings.is_users and not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
        values = {name: _value(tensor) for name, tensor in weights.items()}
        for name, value in values.items():
            options.add_initializer(name, value)
    try:
        session, blocked = started(
            str(path), settings, options, disabled_optimizers=[] if folds else list(NOT_FOLDED)
        )
    except UsageError:
        raise
    except Exception as error:
        hint = "Another opset or another dtype may do; to='torch' needs no ONNX Runtime."
        if settings.options:
            hint = f"The session_options may be the cause. {hint}"
        logger.debug("%s", path.name, exc_info=error)
        raise ExportError(
            f"ONNX Runtime does not take {path.name}: {type(error).__name__}: {error}",
            slug="onnx-refused",
            hint=hint,
        ) from None
    return Session(session, (options, values), blocked)


def started(
    model: str | bytes, settings: SessionSettings, options: Any, **others: Any
) -> tuple[Any, str]:
    """A session of ONNX Runtime; None where there are no kernels for an operator, with what it
    says.

    Every provider that was asked for takes part: ONNX Runtime alone would print what it lacks, and
    go on without it.

    :raises UsageError: ``bad-providers``
    """
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelsError

    try:
        session = onnxruntime.InferenceSession(
            model, options, providers=list(settings.providers), enable_fallback=0, **others
        )
    except NoKernelsError as error:
        return None, f"{', '.join(settings.names)}: {str(error).rpartition(' : ')[2].strip()}"
    missing = sorted(set(settings.names) - set(session.get_providers()))
    if missing:
        raise UsageError(
            f"ONNX Runtime could not start {', '.join(missing)}, and ran on"
            f" {', '.join(session.get_providers())} instead.",
            slug="bad-providers",
            hint="Look whether the libraries of the device are installed, or leave the provider out.",
        )
    return session, ""


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

"""Which kind of export a file is, and how it is opened."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ArgumentKindError, UsageError
from ..targets.onnx.model import is_onnx
from .aoti import open_aoti
from .executorch import open_executorch
from .exported import Exported
from .exported_model import component_of, is_exported_model
from .onnx import open_onnx
from .openvino import is_openvino, open_openvino
from .torch_program import open_program, read_program

__all__ = ["is_foreign", "open_exported"]

_SUFFIXES = (".onnx", ".pt2", ".xml", ".pte")


def is_foreign(path: Path) -> bool:
    """True for a file, or a folder of transformers, that :func:`open_exported` may open."""
    return path.suffix in _SUFFIXES or is_exported_model(path)


def open_exported(
    exported: Any, *, component: str | None = None, machine_code: bool = False
) -> Exported:
    """An export of any maker: a path, or an object of its library.

    ``component`` is that of a folder of transformers, or the method of a ``.pte``. A package of
    AOTInductor is machine code, and runs with ``machine_code`` alone.

    :raises UsageError: ``model-not-loaded``, ``no-such-component``, ``machine-code``
    :raises ArgumentKindError: ``not-a-model``
    :raises MissingPackageError: ``missing-package``
    """
    if isinstance(exported, Exported):
        return exported
    if isinstance(exported, torch.export.ExportedProgram):
        return open_program(exported)
    if is_openvino(exported):
        return open_openvino(exported)
    if not isinstance(exported, (str, os.PathLike)):
        if is_onnx(exported):
            return open_onnx(exported)
        raise ArgumentKindError(
            f"A {type(exported).__name__} is no export that can be run.",
            slug="not-a-model",
            hint="Give a path, a program of torch.export or torch.onnx, or a model of OpenVINO.",
        )
    path = Path(exported)
    if is_exported_model(path):
        path = component_of(path, component)
    if not path.is_file():
        raise UsageError(
            f"There is no file {path}.",
            slug="model-not-loaded",
            hint=f"Give a file that ends in {', '.join(_SUFFIXES)}, or a folder of transformers.",
        )
    return _of_file(path, component, machine_code)


def _of_file(path: Path, component: str | None, machine_code: bool) -> Exported:
    if path.suffix == ".xml":
        return open_openvino(path)
    if path.suffix == ".pte":
        return open_executorch(path, component or "forward")
    if path.suffix == ".pt2":
        if not _is_machine_code(path):
            return open_program(read_program(path))
        if not machine_code:
            raise UsageError(
                f"{path} is machine code that AOTInductor compiled.",
                slug="machine-code",
                hint="Allow it with machine_code=True, or --machine-code, if you trust its maker.",
            )
        return open_aoti(path)
    return open_onnx(path)


def _is_machine_code(path: Path) -> bool:
    """True for a package of AOTInductor, which ends in ``.pt2`` as programs do."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/aotinductor/" in f"/{name}" for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False

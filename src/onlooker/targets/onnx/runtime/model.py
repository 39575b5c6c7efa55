"""An ONNX model, from a file or from memory, run by ONNX Runtime."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import torch

from ....core.errors import MissingPackageError, OnlookerError, UsageError
from ....core.sizes.expression import Expression

__all__ = ["OnnxModel", "is_onnx", "onnx_source"]

#: the sizes that a model declares of one input or output: numbers, names, or expressions as text
DeclaredShape = tuple[int | str | None, ...]
#: the name, the type and the sizes
Declared = tuple[str, str, DeclaredShape]

_BFLOAT16 = 16  # the number of this type in ONNX
_LARGEST = 2**31 - 2**20  # a protobuf message cannot be larger; the rest is for its frame
_NUMBERS = {
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(bool)": torch.bool,
}


def is_onnx(model: Any) -> bool:
    """True for a path, a ModelProto, or an object that holds one."""
    return isinstance(model, (str, os.PathLike)) or _proto_of(model) is not None


def _proto_of(model: Any) -> Any:
    """The ModelProto of what an exporter gives; None for anything else."""
    for candidate in (model, getattr(model, "proto", None)):
        if hasattr(candidate, "SerializeToString") and hasattr(candidate, "graph"):
            return candidate
    if isinstance(model, torch.onnx.ONNXProgram):
        return model.model_proto
    if type(model).__module__.startswith("onnx_ir"):
        return importlib.import_module("onnx_ir").to_proto(model)
    return None


def onnx_source(model: Any) -> Any:
    """The path of a model, or its ModelProto, for what :func:`is_onnx` is true for."""
    return model if isinstance(model, (str, os.PathLike)) else _proto_of(model)


class OnnxModel:
    """A session of ONNX Runtime on the CPU, with tensors of torch on both sides.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package`` without onnxruntime
    """

    def __init__(self, model: Any) -> None:
        self._session = _session(model)
        self.declared_inputs: list[Declared] = [
            _declared(value) for value in self._session.get_inputs()
        ]
        self.declared_outputs: list[Declared] = [
            _declared(value) for value in self._session.get_outputs()
        ]
        self.types: dict[str, str] = {name: kind for name, kind, _ in self.declared_inputs}
        self.shapes: dict[str, DeclaredShape] = {
            name: shape for name, _, shape in self.declared_inputs
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs."""
        return tuple(self.types)

    def ones(self, name: str, sizes: Mapping[str, int]) -> torch.Tensor | None:
        """Ones for an input whose sizes follow from the named ``sizes`` of other inputs; None
        where they do not.
        """
        try:
            shape = [
                n if isinstance(n, int) else Expression.parse(n or "").evaluate(sizes)
                for n in self.shapes[name]
            ]
        except (OnlookerError, TypeError):
            return None
        return torch.ones(shape, dtype=_NUMBERS.get(self.types[name]))

    def run(self, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs, None where the model gives none."""
        values = {name: self._to_ort(name, value) for name, value in feeds.items()}
        return [_to_torch(value) for value in self._session.run_with_ort_values(None, values)]

    def _to_ort(self, name: str, value: Any) -> Any:
        cls = importlib.import_module("onnxruntime").OrtValue
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(value, dtype=_NUMBERS.get(self.types[name]))
        value = value.detach().cpu().contiguous()
        if value.dtype is torch.bfloat16:  # numpy has no such type
            return cls.ortvalue_from_numpy_with_onnx_type(
                value.view(torch.uint16).numpy(), _BFLOAT16
            )
        return cls.ortvalue_from_numpy(value.numpy())


def _declared(value: Any) -> Declared:
    return value.name, value.type, tuple(value.shape)


def _to_torch(value: Any) -> Any:
    if value is None or not value.has_value():
        return None
    if value.data_type() == "tensor(bfloat16)":
        return torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack())
    return torch.from_numpy(value.numpy())


def _session(model: Any) -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise MissingPackageError(
            "An ONNX model is run by onnxruntime, which cannot be imported.",
            slug="missing-package",
            hint="Install it with: pip install 'onlooker[onnx]'.",
        ) from error
    options = runtime.SessionOptions()
    options.log_severity_level = 4  # an error is raised, and need not be printed too
    with tempfile.TemporaryDirectory() as folder:
        try:
            source = _source(model, FilePath(folder))
            return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            name = (
                f"The file {os.fspath(model)}"
                if isinstance(model, (str, os.PathLike))
                else "The model"
            )
            raise UsageError(
                f"{name} cannot be loaded by ONNX Runtime: {type(error).__name__}: {error}",
                slug="model-not-loaded",
                hint="Give the path of an .onnx file, a ModelProto, or what an exporter gave.",
            ) from error


def _source(model: Any, folder: FilePath) -> Any:
    """The source of a session: a path, or the bytes of the model."""
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    proto = _proto_of(model)
    if proto.ByteSize() < _LARGEST:
        return proto.SerializeToString()
    path = folder / "model.onnx"
    importlib.import_module("onnx").save_model(
        proto, str(path), save_as_external_data=True, location="weights"
    )
    return str(path)

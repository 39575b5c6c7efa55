"""ONNX models, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..targets.onnx.model import OnnxModel, onnx_source
from .exported import Declared, Exported, Port, dtype_named, tensor_for
from .onnx_contents import contents_of_onnx

__all__ = ["open_onnx"]


def open_onnx(model: Any) -> Exported:
    """A path, a ModelProto, or what an exporter to ONNX gives.

    :raises UsageError: ``model-not-loaded``
    :raises MissingPackageError: ``missing-package``
    """
    loaded = OnnxModel(model)
    inputs = tuple(_port(*value) for value in loaded.declared_inputs)
    outputs = tuple(_port(*value) for value in loaded.declared_outputs)
    ports = {port.name: port for port in inputs}

    def run(given: Mapping[str, Any]) -> Sequence[Any]:
        return loaded.run({name: tensor_for(value, ports[name]) for name, value in given.items()})

    contents = contents_of_onnx(onnx_source(model))
    return Exported("onnx", inputs, outputs, run, contents=contents)


def _port(name: str, kind: str, shape: Sequence[int | str | None]) -> Port:
    return Port(name, dtype_named(kind), tuple(map(_declared, shape)))


def _declared(size: int | str | None) -> Declared:
    return Declared("", size, size) if isinstance(size, int) else Declared(size or "")

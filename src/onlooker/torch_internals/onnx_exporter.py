"""The exporter of torch to ONNX, which needs onnxscript: imported where a graph is converted."""

from __future__ import annotations

from .needed import needed

with needed("ONNX"):
    from torch.onnx._internal.exporter import _core as exporter
    from torch.onnx._internal.exporter._building import OpRecorder

__all__ = ["OpRecorder", "exporter"]

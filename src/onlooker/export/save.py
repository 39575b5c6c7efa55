"""Writes the graphs of a program as files."""

from __future__ import annotations

from pathlib import Path

import torch

from ..trace.graph import Graph

__all__ = ["save_graph"]


def save_graph(graph: Graph, folder: Path) -> Path:
    """Writes one graph and gives its path: ``main.pt2`` by torch.export.save, ``main.onnx`` for ONNX."""
    if graph.target == "onnx":
        path = folder / f"{graph.name}.onnx"
        graph.artifact.save(path)
        return path
    path = folder / f"{graph.name}.pt2"
    torch.export.save(graph.artifact, path)
    return path

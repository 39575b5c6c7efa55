"""Writes the graphs of a program as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import torch

from ..torch_internals.serialized import with_sizes_written
from ..trace.graph import Graph

__all__ = ["save_graph"]


def save_graph(graph: Graph, path: Path) -> Path:
    """Writes one graph of torch by torch.export.save, and gives its path."""
    program: Any = graph.artifact
    with open(path, "wb") as file, with_sizes_written(program):
        kept = _ErrorKeepingFile(file)
        torch.export.save(program, kept)  # type: ignore[arg-type]
        if kept.error is not None:
            raise kept.error
    return path


class _ErrorKeepingFile:
    """A file for torch to write to, which keeps the first error of the system for later.

    An exception inside of the writer of torch ends the process: it comes out of a destructor in
    C++.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        """Writes the data, unless something has failed before."""
        if self.error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """The file is flushed when it is closed."""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Goes nowhere: torch reads nothing of what it wrote."""
        return 0

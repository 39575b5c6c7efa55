"""Files that a runtime opens here when somebody calls their graph, and not before.

A conversion writes its files into a folder of its own, and compares them with what they were made of in the
other process, which has opened them first (:mod:`onlooker.targets.first_run`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.support.locks import lock_of
from ..trace.graph import Graph, Runner
from .first_run import run_again
from .names import names_of
from .results import as_the_model_gives

__all__ = ["OpenedLater", "OwnFolder"]


class OwnFolder:
    """A new folder, which is removed when nobody refers to this object any more."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="onlooker-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:  # and not a fork of it
        shutil.rmtree(path, ignore_errors=True)


class OpenedLater:
    """Runs the file of a graph in the other process while that keeps it open, and from then on here, by the
    runner that ``opens`` gives. ``reads`` gives the outputs of the graph among those of the file.
    """

    def __init__(
        self,
        runtime: str,
        graph: Graph,
        path: Path,
        *,
        folder: OwnFolder,
        opens: Callable[[], Runner],
        reads: Callable[[list[Any]], list[Any]],
    ) -> None:
        self._lock = lock_of(self)
        self._elsewhere = runtime, path, names_of(graph).inputs
        self._outputs = graph.outputs
        self._folder: OwnFolder | None = folder
        self._opens, self._reads = opens, reads
        self._runner: Runner | None = None

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of the graph, as :func:`as_the_model_gives` has them."""
        if self._runner is None:
            runtime, path, labels = self._elsewhere
            given = run_again(runtime, path, zip(labels, inputs, strict=True))
            if given is not None:
                kinds = self._outputs.are_ints, self._outputs.are_floats
                return as_the_model_gives(lambda _: self._reads(given), *kinds)(inputs)
        return self._opened()(inputs)

    def _opened(self) -> Runner:
        with self._lock:
            if self._runner is None:
                self._runner = self._opens()
                self._folder = None
            return self._runner

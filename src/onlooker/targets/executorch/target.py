"""The target ExecuTorch: all graphs as methods of one ``.pte``, which plans its memory for the
greatest sizes.
"""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import MissingPackageError, UsageError
from ...core.precision import is_calibrated
from ...core.support.progress import tell
from ...disk.files import read_file
from ...hypotheses.ranges import check_bounded
from ...trace.graph import Graph
from ..first_run import check_first_run, example_inputs, get_ready
from ..inputs import laid
from ..integers.reduced import INTEGERS, reduced_graphs
from ..target import REDUCED, Calibration
from .convert import check_backend, convert_graphs
from .run import Pte, open_pte

__all__ = ["Executorch"]

logger = logging.getLogger(__name__)
_FILE = "program.pte"
_RUNTIME = "ExecuTorch"


class Executorch:
    """Programs of ExecuTorch, run by its runtime for Python on the CPU.

    ``backend`` is ``"portable"``, or ``"xnnpack"``. The greatest sizes are those of the plans.
    """

    name = "executorch"
    suffix = ".pte"
    options: tuple[str, ...] = (*REDUCED, "backend")
    reading: tuple[str, ...] = ()
    precisions: tuple[str, ...] = INTEGERS
    needs_bounds = True
    rolls_numbers = False

    def require(self) -> None:
        """Passes when executorch is installed.

        :raises MissingPackageError: ``missing-package``
        """
        try:
            # executorch itself is a namespace, for which any folder of that name is taken
            is_there = importlib.util.find_spec("executorch.exir") is not None
        except ModuleNotFoundError:
            is_there = False
        if not is_there:
            raise MissingPackageError(
                "An export to ExecuTorch needs executorch.",
                slug="missing-package",
                hint="Install it with: pip install 'onlooker[executorch]'.",
            )

    def convert(
        self,
        graphs: Sequence[Graph],
        *,
        backend: str = "portable",
        precision: str | None = None,
        calibration: Calibration | None = None,
        **_: Any,
    ) -> list[Graph]:
        """Returns the same plans as methods of one program.

        :raises ExportError: ``executorch-refused`` with the message of the converter;
            ``torch-not-quantised``
        :raises UsageError: ``bad-backend``, ``bad-variant``; ``bounds-needed``
        """
        check_backend(backend)
        _check_static(backend, precision)
        start = time.perf_counter()
        check_bounded([graph.plan for graph in graphs], {}, self.name)
        graphs = reduced_graphs(graphs, precision, calibration)
        logger.info("converting %d graphs to ExecuTorch", len(graphs))
        tell("converting to ExecuTorch", 0, 1)
        get_ready(_RUNTIME)
        converted = convert_graphs(graphs, backend)
        _check_first_run(graphs, converted.content)
        pte = Pte(converted.content)
        runs = open_pte(pte, graphs, _FILE)
        seconds = (time.perf_counter() - start) / len(graphs)
        return [
            replace(
                graph,
                run=run,
                artifact=pte,
                target=self.name,
                seconds=graph.seconds + seconds,
                example=(),
                notes=(*graph.notes, _memory(graph, converted.memory[graph.name])),
            )
            for graph, run in zip(graphs, runs, strict=True)
        ]

    def write(self, graphs: Sequence[Graph], folder: Path) -> list[str]:
        """One ``program.pte`` with a method for each graph; what several use is there once."""
        (folder / _FILE).write_bytes(graphs[0].artifact.content)
        return [_FILE]

    def write_file(self, graphs: Sequence[Graph], path: Path) -> list[str]:
        """The ``.pte``, which has a method for each graph."""
        path.write_bytes(graphs[0].artifact.content)
        return [path.name]

    def read(self, graphs: Sequence[Graph], folder: Path, **_: Any) -> list[Graph]:
        """The graphs with the methods of their names.

        :raises SavedFileError: ``file-damaged``
        :raises ExportError: ``executorch-refused`` where the runtime lacks an operator
        """
        pte = Pte(read_file(folder / _FILE))
        runs = open_pte(pte, graphs, _FILE)
        return [
            replace(graph, run=run, artifact=pte, example=())
            for graph, run in zip(graphs, runs, strict=True)
        ]


def _check_static(backend: str, precision: str | None) -> None:
    """Passes for all but rounded activations on XNNPACK.

    Its kernels want the result of a product rounded as well, and compute something else where a product
    gives floats (ExecuTorch 1.5).

    :raises UsageError: ``bad-variant``
    """
    if backend == "xnnpack" and is_calibrated(precision):
        others = [name for name in INTEGERS if not is_calibrated(name)]
        raise UsageError(
            f"The backend 'xnnpack' of ExecuTorch has no precision {precision!r}.",
            slug="bad-variant",
            hint=f"It has {', '.join(others)}; backend='portable' has {precision} too.",
        )


def _check_first_run(graphs: Sequence[Graph], content: bytes) -> None:
    """Passes where the runtime survives each method of a program.

    :raises ExportError: ``runtime-died``
    """
    with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, _FILE)
        path.write_bytes(content)
        for graph in graphs:
            inputs = [laid(value, "", None) for value in example_inputs(graph)]
            pairs = zip(graph.labels, inputs, strict=True)
            check_first_run(_RUNTIME, graph, path, pairs, method=graph.name)


def _memory(graph: Graph, nbytes: int) -> str:
    """The note about the memory that is planned."""
    bounds = ", ".join(f"{symbol.name} up to {symbol.high}" for symbol in graph.plan.symbols)
    where = f" for {bounds}" if bounds else ""
    return f"{nbytes:,} bytes of memory are planned{where}, beside the weights"

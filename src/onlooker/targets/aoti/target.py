"""The target AOTInductor: each graph compiled to machine code for this kind of machine, weights
in one file.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import MissingPackageError, UnsupportedError
from ...core.progress import tell
from ...disk.text import damaged
from ...trace.graph import Graph
from ..first_run import check_first_run, example_inputs, get_ready
from ..inputs import laid
from ..refused import of_graph
from ..target import file_name
from ..weights import read_tensors, write_tensors
from .compile import Package, compile_graph, layouts_in
from .run import open_package

__all__ = ["Aoti"]

logger = logging.getLogger(__name__)
_RUNTIME = "AOTInductor"
_WEIGHTS = "weights.safetensors"


class Aoti:
    """Packages of AOTInductor. A package is machine code: load only what you would run."""

    name = "aoti"
    suffix = ".aoti.pt2"
    options: tuple[str, ...] = ()
    reading: tuple[str, ...] = ()
    needs_bounds = False

    def require(self) -> None:
        """Passes when there is a C++ compiler; ``CXX`` names another one than g++.

        :raises MissingPackageError: ``no-compiler``
        """
        from ...torch_internals.compiled import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:
            raise MissingPackageError(
                f"AOTInductor compiles C++, and no compiler works here ({error}).",
                slug="no-compiler",
                hint=(
                    "Install g++ 10 or newer (apt-get install g++), or name a compiler by the"
                    " variable CXX."
                ),
            ) from error

    def convert(self, graphs: Sequence[Graph], **_: Any) -> list[Graph]:
        """The same regimes, compiled; the weights stay those of the programs of torch, which are
        not copied.

        :raises ExportError: ``aoti-refused`` with the message of the compiler
        """
        made = []
        get_ready(_RUNTIME)
        with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
            for number, graph in enumerate(graphs):
                start = time.perf_counter()
                logger.info("compiling %s", graph.name)
                tell("compiling", number, len(graphs), graph.name)
                package = compile_graph(graph)
                path = Path(folder, file_name(graph, self))
                path.write_bytes(package.content)
                self._check_first_run(graph, package, path)
                with of_graph(graph):
                    run = open_package(graph, package, path)
                seconds = graph.seconds + time.perf_counter() - start
                made.append(
                    replace(
                        graph,
                        run=run,
                        artifact=package,
                        target=self.name,
                        seconds=seconds,
                        example=(),
                    )
                )
        return made

    def _check_first_run(self, graph: Graph, package: Package, path: Path) -> None:
        """Passes where this process would survive the package of a graph.

        :raises ExportError: ``runtime-died``
        """
        layouts = layouts_in(graph)
        devices = [leaf.device.partition(":")[0] or "cpu" for leaf in graph.plan.inputs]
        values = zip(example_inputs(graph), devices, layouts, strict=True)
        inputs = [laid(value, "", order) for value, _, order in values]
        check_first_run(
            _RUNTIME,
            graph,
            path,
            zip(graph.labels, inputs, strict=True),
            device=next(iter(devices), "cpu"),
            weights=[
                (
                    name,
                    str(weight.dtype).removeprefix("torch."),
                    tuple(weight.shape),
                    tuple(weight.stride()),
                    str(weight.device),
                )
                for name, weight in package.weights.items()
            ],
        )

    def write(self, graphs: Sequence[Graph], folder: Path) -> list[str]:
        """One package a graph, and ``weights.safetensors`` with what they all use, each weight
        once.
        """
        names = [file_name(graph, self) for graph in graphs]
        for graph, name in zip(graphs, names, strict=True):
            (folder / name).write_bytes(graph.artifact.content)
        write_tensors({graph.name: graph.artifact.weights for graph in graphs}, folder / _WEIGHTS)
        return [*names, _WEIGHTS]

    def write_file(self, graphs: Sequence[Graph], path: Path) -> list[str]:
        """Nothing: the weights of a package are a file of their own.

        :raises UnsupportedError: ``no-single-file``
        """
        raise UnsupportedError(
            f"{path.name} cannot hold a program of AOTInductor, whose weights are a second file.",
            slug="no-single-file",
            hint="Save a folder: a path without a suffix.",
        )

    def read(self, graphs: Sequence[Graph], folder: Path, **_: Any) -> list[Graph]:
        """The graphs with their packages, which are loaded into this process as machine code.

        :raises SavedFileError: ``file-damaged``, ``another-machine``
        :raises ExportError: ``aoti-refused``
        """
        tables = read_tensors(folder / _WEIGHTS)
        read = []
        for graph in graphs:
            path = folder / file_name(graph, self)
            if graph.name not in tables:
                raise damaged(_WEIGHTS, f"it has no weights of {graph.name}")
            package = Package(path.read_bytes(), tables[graph.name])
            read.append(
                replace(graph, run=open_package(graph, package, path), artifact=package, example=())
            )
        return read

"""The target AOTInductor: each graph compiled to machine code for this kind of machine, weights
in one file.
"""

from __future__ import annotations

import json
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import ExportError, MissingPackageError, SavedFileError, UnsupportedError
from ...disk.text import damaged
from ...trace.graph import Graph
from ..first_run import check_first_run, example_inputs, get_ready
from ..inputs import laid
from ..integers.reduced import INTEGERS, reduced_graphs
from ..refused import of_graph
from ..results import Runner, as_the_model_gives
from ..target import REDUCED, Calibration, file_name, one_by_one
from ..weights import read_tensors, write_tensors
from .compile import LAYOUTS, Package, compile_graph, layouts_in

__all__ = ["Aoti", "open_package"]


# Runs a package of AOTInductor, which trusts what it is given: every input is brought into the
# form it expects.
def open_package(graph: Graph, package: Package, path: Path) -> Runner:
    """A function of the inputs of ``graph`` that runs the package at ``path`` with the weights of
    ``package``.

    The package is machine code, and runs as such.

    :raises SavedFileError: ``file-damaged``, ``another-machine``
    :raises ExportError: ``aoti-refused`` when it cannot be loaded
    """
    from ...torch_internals.compiled import aoti_load_package

    about = _about(path)
    _check_machine(about, path.name)
    try:
        model = aoti_load_package(str(path))
        missing = [name for name in model.get_constant_fqns() if name not in package.weights]
        if missing:
            raise damaged(path.name, f"there are no weights for {', '.join(missing[:3])}")
        weights = {name: package.weights[name] for name in model.get_constant_fqns()}
        if weights:
            model.load_constants(weights, check_full_update=True, user_managed=True)
    except RuntimeError as error:
        raise ExportError(
            f"{path.name} cannot be loaded by AOTInductor: {str(error)[:500]}",
            slug="aoti-refused",
            hint="Compile it again on this machine: program.to('aoti').",
        ) from None
    try:
        return _runner(model, graph, json.loads(about[LAYOUTS]), weights)
    except (KeyError, ValueError, TypeError) as error:
        raise damaged(
            path.name, f"it does not say how its inputs have to lie in memory ({error!r})"
        ) from error


def _about(path: Path) -> dict[str, str]:
    """The metadata of a package, read before anything of it is loaded.

    :raises SavedFileError: ``file-damaged``
    """
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith("wrapper_metadata.json")]
            found = json.loads(archive.read(name))
    except (zipfile.BadZipFile, OSError, ValueError, RecursionError) as error:
        raise damaged(path.name, f"it is no package of AOTInductor ({error})") from error
    if not isinstance(found, dict):
        raise damaged(path.name, "its metadata is no table")
    return found


def _check_machine(about: dict[str, str], where: str) -> None:
    """Passes on a machine that has the instructions which the package was compiled for.

    :raises SavedFileError: ``another-machine``
    """
    from ...torch_internals.compiled import get_device_information

    for key, own in get_device_information(about.get("AOTI_DEVICE_KEY", "cpu")).items():
        needed = str(about.get(key, own))
        if not set(needed.split()) <= set(str(own).split()):
            raise SavedFileError(
                f"{where} was compiled for a machine with {needed}, this one has"
                f" {own or 'none of it'}.",
                slug="another-machine",
                hint="Compile it on this machine: load the torch program and call to('aoti').",
            )


def _runner(model: Any, graph: Graph, layouts: Sequence[Any], alive: Any) -> Runner:
    """The model as a function; ``alive`` are the weights, which it does not hold itself."""
    leaves = graph.plan.inputs
    devices = [leaf.device.partition(":")[0] for leaf in leaves]
    orders = [None if o is None or o == list(range(len(o))) else tuple(o) for o in layouts]
    if len(orders) != len(leaves):
        raise ValueError(f"{len(orders)} inputs for {len(leaves)}")
    boxed_run = model.loader.boxed_run

    def start(inputs: Sequence[Any], _alive: Any = alive) -> list[Any]:
        return list(boxed_run([laid(*item) for item in zip(inputs, devices, orders, strict=True)]))

    return as_the_model_gives(start, graph.outputs.are_ints, graph.outputs.are_floats)


_RUNTIME = "AOTInductor"
_WEIGHTS = "weights.safetensors"


class Aoti:
    """Packages of AOTInductor. A package is machine code: load only what you would run."""

    name = "aoti"
    suffix = ".aoti.pt2"
    options: tuple[str, ...] = REDUCED
    reading: tuple[str, ...] = ()
    precisions: tuple[str, ...] = INTEGERS
    needs_bounds = False
    rolls_numbers = False

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

    def convert(
        self,
        graphs: Sequence[Graph],
        *,
        precision: str | None = None,
        calibration: Calibration | None = None,
        **_: Any,
    ) -> list[Graph]:
        """The same plans, compiled; the weights stay those of the programs of torch, which are
        not copied.

        :raises ExportError: ``aoti-refused`` with the message of the compiler;
            ``torch-not-quantised``
        """
        graphs = reduced_graphs(graphs, precision, calibration)
        made = []
        get_ready(_RUNTIME)
        with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
            for graph in one_by_one(graphs, "compiling"):
                start = time.perf_counter()
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

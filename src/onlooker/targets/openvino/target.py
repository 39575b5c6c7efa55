"""The target OpenVINO: a model in two files, ``.xml`` and ``.bin``, with readable names, ranges and
plan inside, run by OpenVINO.
"""

from __future__ import annotations

import contextlib
import logging
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...core.errors import ExportError
from ...core.support.packages import require_packages
from ...disk.text import damaged
from ...trace.graph import Graph, Runner
from ..first_run import check_first_run, example_inputs, get_ready
from ..names import Names, names_of
from ..native_process import pages_given_back
from ..opened_later import OpenedLater, OwnFolder
from ..refused import last_words, of_graph
from ..stand_ins import check_found, not_run, weights_are_elsewhere
from ..target import REDUCED, Calibration, file_name, one_by_one, only_graph
from .convert import ASSERTED, convert_graph
from .run import asserted, openvino_runner
from .settings import SETTINGS, DeviceSettings, settings_of
from .shapes import exported_sizes_of
from .states import State, check_stateful, keep_states, states_of
from .streamed import arrays_of, write_streamed
from .weights import bodies_of, require_nncf, with_precision

__all__ = ["OpenVino"]

logger = logging.getLogger(__name__)


# Models of OpenVINO as files: an ``.xml`` a graph, and the weights beside it.
#
# An ``.xml`` says of each weight where it stands in a file of weights, and OpenVINO reads any pair of
# the two: ``core.read_model("main_2.xml", "weights.bin")``. So several graphs can use one such file.
#: the file with the weights of all graphs, where there are several
WEIGHTS = "weights.bin"
#: the bytes that a model may make of its constants, also where its files have far fewer
_MOST_COMPUTED = 2**28
#: and how many times what is written: a weight of 4 bits is three arrays of float32 on its way
_GROWTH = 32


def write_models(models: Sequence[Any], paths: Sequence[Path], *, half: bool = False) -> list[Path]:
    """Writes the models, each weight as it is or in ``half`` precision, and gives the paths of all
    files.
    """
    weights = weights_of(paths[0], len(paths))
    with contextlib.ExitStack() as stack:
        if half and not weights_are_elsewhere():
            models = [stack.enter_context(_in_half_precision(model)) for model in models]
        for model in models:
            stack.enter_context(pages_given_back(model))
        write_streamed(models, paths, weights)
    return [*paths, weights]


@contextlib.contextmanager
def _in_half_precision(model: Any) -> Iterator[Any]:
    """The model with weights of float16, which are in a file and not in memory."""
    import openvino

    with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "half.xml")
        openvino.save_model(model, path, compress_to_fp16=True)
        yield openvino.Core().read_model(path)


def read_models(paths: Sequence[Path]) -> list[Any]:
    """Models from one folder, which somebody else may have made.

    :raises SavedFileError: ``file-damaged``
    """
    return [_read(path, weights_of(path, len(paths))) for path in paths]


def weights_of(path: Path, count: int) -> Path:
    """The file with the weights of a model, which is one of so many in its folder."""
    return path.parent / WEIGHTS if count > 1 else path.with_suffix(".bin")


def _read(path: Path, weights: Path) -> Any:
    import openvino

    try:
        model = openvino.Core().read_model(path, weights)
        computed = _computed_bytes(model)
        limit = max(_MOST_COMPUTED, _GROWTH * (path.stat().st_size + weights.stat().st_size))
    except Exception as error:
        said = last_words(error, 300)
        raise damaged(path.name, f"it is no model of OpenVINO ({said})") from error
    if computed > limit:
        raise damaged(path.name, f"its constants alone make {computed} bytes")
    return model


def _computed_bytes(model: Any) -> int:
    """The bytes of all results that depend on constants alone: they are computed when a model is
    compiled, and a file of some kilobytes can ask for any number of them.
    """
    total = 0
    known: set[str] = set()
    for node in model.get_ordered_ops():
        total += sum(_computed_bytes(body) for body in bodies_of(node))
        sources = [port.get_node().get_name() for port in node.input_values()]
        if node.get_type_name() == "Constant":
            known.add(node.get_name())
        elif sources and known.issuperset(sources):
            known.add(node.get_name())
            total += sum(_bytes_of(port) for port in node.outputs())
    return total


def _bytes_of(port: Any) -> int:
    shape = port.get_partial_shape()
    if not shape.is_static:
        return 0
    return int(math.prod(shape.to_shape()) * max(1, port.get_element_type().bitwidth // 8))


_RUNTIME = "OpenVINO"


class OpenVino:
    """Models of OpenVINO, one a graph. ``device`` and ``config`` say how they are run here, and are
    not saved. With ``stateful`` the model keeps its cache inside from one call to the next, and
    ``precision`` makes its weights smaller.
    """

    name = "openvino"
    suffix = ".xml"
    options: tuple[str, ...] = (*REDUCED, *SETTINGS, "stateful")
    reading: tuple[str, ...] = SETTINGS
    precisions: tuple[str, ...] = ("fp16", "int8", "int4", "int8-static")
    needs_bounds = False
    rolls_numbers = False

    def require(self) -> None:
        """Passes when openvino can be imported.

        :raises MissingPackageError: ``missing-package``
        """
        require_packages("openvino", purpose="An export to OpenVINO", extra="openvino")

    def convert(
        self,
        graphs: Sequence[Graph],
        *,
        device: Any = None,
        config: Any = None,
        stateful: bool = False,
        precision: str | None = None,
        calibration: Calibration | None = None,
        **_: Any,
    ) -> list[Graph]:
        """Returns the same plans as models of OpenVINO, already written to files once, and read
        from there.

        :raises ExportError: ``openvino-refused`` with the message of the converter or of the
            device; ``openvino-not-stateful``, ``openvino-not-quantised``
        :raises UsageError: ``bad-openvino-options``
        :raises MissingPackageError: ``missing-package`` for integers without NNCF
        """
        is_integer = precision in ("int8", "int4", "int8-static")
        if is_integer:
            require_nncf()
        settings = settings_of(device, config)
        if stateful:
            check_stateful(graphs)
        get_ready(_RUNTIME)
        models, made = [], []
        for graph in one_by_one(graphs, "converting to OpenVINO"):
            start = time.perf_counter()
            model = convert_graph(graph)
            if precision is not None and is_integer:
                calls = (calibration or {}).get(graph.name, ())
                model = with_precision(model, precision, graph, calls)
            if stateful:
                keep_states(model, graph)
            models.append(model)
            seconds = graph.seconds + time.perf_counter() - start
            made.append(replace(graph, target=self.name, seconds=seconds))
        if weights_are_elsewhere():
            return [_unopened(*pair) for pair in zip(made, models, strict=True)]
        folder = OwnFolder()
        paths = [folder.path / file_name(graph, self) for graph in graphs]
        write_models(models, paths, half=precision == "fp16")
        kept = [
            check_first_run(
                _RUNTIME,
                graph,
                path,
                zip(names_of(graph).inputs, example_inputs(graph), strict=True),
                keep=not stateful,
                weights=str(weights_of(path, len(paths))),
                device=settings.device,
                properties=settings.properties,
            )
            for graph, path in zip(graphs, paths, strict=True)
        ]
        return self._read(made, folder.path, settings, folder if all(kept) else None)

    def write(self, graphs: Sequence[Graph], folder: Path) -> list[str]:
        """One ``.xml`` a graph. The weights of a single graph are in the ``.bin`` of its name, those
        of several in ``weights.bin``, where what is equal is once.
        """
        paths = [folder / file_name(graph, self) for graph in graphs]
        models = [graph.artifact for graph in graphs]
        return [path.name for path in write_models(models, paths)]

    def write_file(self, graphs: Sequence[Graph], path: Path) -> list[str]:
        """The ``.xml``, and the ``.bin`` with its weights beside it.

        :raises UnsupportedError: ``several-graphs``
        """
        return [file.name for file in write_models([only_graph(graphs, path).artifact], [path])]

    def read(
        self,
        graphs: Sequence[Graph],
        folder: Path,
        device: Any = None,
        config: Any = None,
        **_: Any,
    ) -> list[Graph]:
        """The graphs with compiled models; the exported sizes are read from the models, which somebody
        else may have made.

        :raises SavedFileError: ``file-damaged``
        :raises ExportError: ``openvino-refused``
        :raises UsageError: ``bad-openvino-options``
        :raises MissingPackageError: ``missing-package``
        """
        self.require()
        return self._read(graphs, folder, settings_of(device, config))

    def _read(
        self,
        graphs: Sequence[Graph],
        folder: Path,
        settings: DeviceSettings,
        later: OwnFolder | None = None,
    ) -> list[Graph]:
        """The graphs of a folder; their models are compiled ``later`` where the other process has them."""
        paths = [folder / file_name(graph, self) for graph in graphs]
        models = read_models(paths)
        loaded = []
        for graph, model, path in zip(graphs, models, paths, strict=True):
            with of_graph(graph):
                loaded.append(_loaded(graph, model, path, settings, later))
        return loaded


def _unopened(graph: Graph, model: Any) -> Graph:
    """The graph with a model whose weights are not in memory.

    :raises ExportError: ``weights-computed``
    """
    check_found(arrays_of(model), graph.name)
    sizes = exported_sizes_of(graph, list(model.inputs))
    return replace(graph, run=not_run, artifact=model, exported_sizes=sizes, example=())


def _loaded(
    graph: Graph, model: Any, path: Path, settings: DeviceSettings, later: OwnFolder | None
) -> Graph:
    """The graph with the model compiled: now, or when it is called."""
    names, where = names_of(graph), path.name
    states = _states_in(model, graph, where)
    _check_outputs(model, names, states, where)
    ports = {name: port for port in model.inputs for name in port.get_names()}
    unknown = sorted(set(ports) - set(names.inputs))
    if unknown:
        raise damaged(where, f"it has an input {unknown[0][:80]!r}, and its plan has not")
    outputs, count = graph.outputs, len(names.outputs)

    def opens() -> Runner:
        with of_graph(graph):
            compiled = _compiled(model, where, settings)
        kinds = outputs.are_ints, outputs.are_floats
        return openvino_runner(compiled, names.inputs, count, *kinds, states)

    if later is None:
        run: Runner = opens()
    else:
        reads = partial(asserted, count=count)
        run = OpenedLater(_RUNTIME, graph, path, folder=later, opens=opens, reads=reads)
    ports |= {names.inputs[state.input]: _variable(model, state) for state in states}
    sizes = exported_sizes_of(graph, [ports.get(name) for name in names.inputs])
    keeps = tuple(dict.fromkeys(graph.plan.inputs[state.input].path.root for state in states))
    return replace(graph, run=run, artifact=model, exported_sizes=sizes, example=(), keeps=keeps)


def _variable(model: Any, state: State) -> Any:
    """The value that reads a state in a model: its sizes are those of the state."""
    reads = (node for node in model.get_ops() if node.get_type_name() == "ReadValue")
    return next(node.output(0) for node in reads if node.get_variable_id() == state.name)


def _states_in(model: Any, graph: Graph, where: str) -> tuple[State, ...]:
    """The states of a model, which are those of its plan, or none."""
    found = {variable.get_info().variable_id for variable in model.get_variables()}
    states = states_of(graph) if found else ()
    if found != {state.name for state in states}:
        raise damaged(where, "its states are not the caches of its plan")
    return states


def _check_outputs(model: Any, names: Names, states: Sequence[State], where: str) -> None:
    found = [sorted(port.get_names()) for port in model.outputs]
    kept = {state.output for state in states}
    wanted = [[name] for at, name in enumerate(names.outputs) if at not in kept]
    if found not in (wanted, [*wanted, [ASSERTED]]):
        raise damaged(where, "its outputs are not those of its plan")


def _compiled(model: Any, where: str, settings: DeviceSettings) -> Any:
    import openvino

    try:
        with pages_given_back(model):
            return openvino.Core().compile_model(model, settings.device, settings.properties)
    except Exception as error:
        logger.debug("%s", where, exc_info=error)
        raise ExportError(
            f"OpenVINO does not run {where} on {settings.device}: {last_words(error)}",
            slug="openvino-refused",
            hint="Another device may: device='GPU'; to='torch' needs no OpenVINO.",
        ) from None

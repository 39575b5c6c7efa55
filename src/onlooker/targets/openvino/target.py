"""The target OpenVINO: a model in two files, ``.xml`` and ``.bin``, with readable names, ranges and
plan inside, run by OpenVINO.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.errors import ExportError
from ...core.progress import tell
from ...disk.text import damaged
from ...trace.graph import Graph
from ..first_run import check_first_run, example_inputs, get_ready
from ..names import Names, names_of
from ..packages import require_packages
from ..refused import of_graph
from ..target import file_name, only_graph
from .convert import ASSERTED, convert_graph
from .files import read_models, weights_of, write_models
from .run import openvino_runner
from .settings import SETTINGS, Settings, settings_of
from .shapes import obtained_of
from .states import State, check_stateful, keep_states, states_of

__all__ = ["OpenVino"]

logger = logging.getLogger(__name__)
_RUNTIME = "OpenVINO"


class OpenVino:
    """Models of OpenVINO, one a graph. ``device`` and ``config`` say how they are run here, and are
    not saved. With ``stateful`` the model keeps its cache inside from one call to the next.
    """

    name = "openvino"
    suffix = ".xml"
    options: tuple[str, ...] = (*SETTINGS, "stateful")
    reading: tuple[str, ...] = SETTINGS
    needs_bounds = False

    def require(self) -> None:
        """Passes when openvino can be imported.

        :raises MissingPackageError: ``missing-package``
        """
        require_packages("openvino", target="OpenVINO", extra="openvino")

    def convert(
        self,
        graphs: Sequence[Graph],
        *,
        device: Any = None,
        config: Any = None,
        stateful: bool = False,
        **_: Any,
    ) -> list[Graph]:
        """The same regimes as models of OpenVINO, already written to files once, and read from
        there.

        :raises ExportError: ``openvino-refused`` with the message of the converter or of the
            device; ``openvino-not-stateful``
        :raises UsageError: ``bad-openvino-options``
        """
        settings = settings_of(device, config)
        if stateful:
            check_stateful(graphs)
        get_ready(_RUNTIME)
        models, made = [], []
        for number, graph in enumerate(graphs):
            start = time.perf_counter()
            logger.info("converting %s to OpenVINO", graph.name)
            tell("converting to OpenVINO", number, len(graphs), graph.name)
            models.append(convert_graph(graph))
            if stateful:
                keep_states(models[-1], graph)
            seconds = graph.seconds + time.perf_counter() - start
            made.append(replace(graph, target=self.name, seconds=seconds))
        with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
            paths = [Path(folder, file_name(graph, self)) for graph in graphs]
            write_models(models, paths)
            for graph, path in zip(graphs, paths, strict=True):
                check_first_run(
                    _RUNTIME,
                    graph,
                    path,
                    zip(names_of(graph).inputs, example_inputs(graph), strict=True),
                    weights=str(weights_of(path, len(paths))),
                    device=settings.device,
                    properties=settings.properties,
                )
            return self._read(made, Path(folder), settings)

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
        """The graphs with compiled models; what was obtained is read from the models, which somebody
        else may have made.

        :raises SavedFileError: ``file-damaged``
        :raises ExportError: ``openvino-refused``
        :raises UsageError: ``bad-openvino-options``
        :raises MissingPackageError: ``missing-package``
        """
        self.require()
        return self._read(graphs, folder, settings_of(device, config))

    def _read(self, graphs: Sequence[Graph], folder: Path, settings: Settings) -> list[Graph]:
        paths = [folder / file_name(graph, self) for graph in graphs]
        models = read_models(paths)
        loaded = []
        for graph, model, path in zip(graphs, models, paths, strict=True):
            with of_graph(graph):
                loaded.append(_loaded(graph, model, path.name, settings))
        return loaded


def _loaded(graph: Graph, model: Any, where: str, settings: Settings) -> Graph:
    """The graph with the model compiled."""
    names = names_of(graph)
    states = _states_in(model, graph, where)
    _check_outputs(model, names, states, where)
    ports = {name: port for port in model.inputs for name in port.get_names()}
    unknown = sorted(set(ports) - set(names.inputs))
    if unknown:
        raise damaged(where, f"it has an input {unknown[0][:80]!r}, and its plan has not")
    outputs = graph.outputs
    run = openvino_runner(
        _compiled(model, where, settings),
        names.inputs,
        len(names.outputs),
        outputs.are_ints,
        outputs.are_floats,
        states,
    )
    ports |= {names.inputs[state.input]: _variable(model, state) for state in states}
    obtained = obtained_of(graph, [ports.get(name) for name in names.inputs])
    keeps = tuple(dict.fromkeys(graph.plan.inputs[state.input].path.root for state in states))
    return replace(graph, run=run, artifact=model, obtained=obtained, example=(), keeps=keeps)


def _variable(model: Any, state: State) -> Any:
    """What reads a state in a model: its sizes are those of the state."""
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


def _compiled(model: Any, where: str, settings: Settings) -> Any:
    import openvino

    try:
        return openvino.Core().compile_model(model, settings.device, settings.properties)
    except Exception as error:
        logger.debug("%s", where, exc_info=error)
        raise ExportError(
            f"OpenVINO does not run {where} on {settings.device}:"
            f" {' '.join(str(error).split())[-500:]}",
            slug="openvino-refused",
            hint="Another device may: device='GPU'; to='torch' needs no OpenVINO.",
        ) from None

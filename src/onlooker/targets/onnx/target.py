"""The target ONNX: models with readable names, guards and plan inside, run by ONNX Runtime, on the
CPU unless other providers are given.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...core.sizes.expression import Expression
from ...core.spec import Axis
from ...core.support.packages import require_packages
from ...disk.text import damaged
from ...model_source.lines import place_of_stack
from ...trace.graph import Graph, Runner
from ..first_run import check_first_run, example_inputs, get_ready
from ..names import Names, names_of
from ..opened_later import OpenedLater, OwnFolder
from ..refused import of_graph
from ..stand_ins import check_found, not_run, weights_are_elsewhere
from ..target import REDUCED, Calibration, file_name, one_by_one
from .about import write_about
from .convert import check_opset, convert_graph
from .files import read_models, write_models
from .merge import MERGED, SELECTOR, merged_model, models_of
from .names import name_model
from .runtime.kernels import no_kernels, warn_of_kernels
from .runtime.run import ort_runner
from .runtime.session import Session, open_session
from .runtime.settings import DEFAULT, SETTINGS, SessionSettings, settings_of
from .served.in_place import InPlace, in_place_runner, kept_in_place
from .served.variants import FUSED_OPSET, VARIANT, Variant, made_variant, variant_of
from .weights import MOST_IN_ONE_FILE, MOST_INSIDE, lent_tensors, share

__all__ = ["Onnx"]

logger = logging.getLogger(__name__)
_RUNTIME = "ONNX Runtime"
#: in a folder that only this process sees, weights are outside from here on: sessions then share
#: them
_SMALL = 2**20


class Onnx:
    """Models of ONNX: one a graph, or with ``merged=True`` one for all. ``opset`` is the version
    of the operators. ``precision``, ``fuse`` and ``in_place_cache`` ask for a variant that is made
    to be served.

    ``session_options`` and ``providers`` say how ONNX Runtime runs them here, and are not saved.
    """

    name = "onnx"
    suffix = ".onnx"
    options: tuple[str, ...] = (*REDUCED, "opset", "merged", *VARIANT, *SETTINGS)
    reading: tuple[str, ...] = SETTINGS
    precisions: tuple[str, ...] = ("fp16", "bf16", "int8", "int4", "int8-static")
    needs_bounds = False
    rolls_numbers = True

    def require(self) -> None:
        """Passes when onnx, onnxscript and onnxruntime can be imported.

        :raises MissingPackageError: ``missing-package``
        """
        require_packages(
            "onnx", "onnxscript", "onnxruntime", purpose="An export to ONNX", extra="onnx"
        )

    def convert(
        self,
        graphs: Sequence[Graph],
        *,
        opset: int | None = None,
        merged: bool = False,
        precision: str | None = None,
        calibration: Calibration | None = None,
        fuse: Any = None,
        in_place_cache: Any = False,
        session_options: Any = None,
        providers: Any = None,
        **_: Any,
    ) -> list[Graph]:
        """Returns the same plans as models of ONNX, already written to files once, and read from
        there.

        Models that ONNX Runtime has no kernels for are converted all the same: a warning,
        ``no-kernels``, says so before, and a note of each graph afterwards.

        :raises ExportError: ``onnx-refused`` with the message of the converter or of ONNX Runtime,
            ``not-mergeable``, ``onnx-not-quantised``, ``onnx-cache-not-in-place``, ``runtime-died``
        :raises UsageError: ``bad-opset``, ``bad-variant``, ``bad-session-options``, ``bad-providers``
        """
        check_opset(opset)
        settings = settings_of(session_options, providers)
        variant = variant_of(precision, fuse, in_place_cache, opset=opset, merged=merged)
        get_ready(_RUNTIME)
        warn_of_kernels(graphs, settings)
        models, converted = [], []
        for graph in one_by_one(graphs, "converting to ONNX"):
            start = time.perf_counter()
            calls = (calibration or {}).get(graph.name, ())
            model, made = _model(graph, opset, variant, calls)
            seconds = graph.seconds + time.perf_counter() - start
            models.append(model)
            converted.append(replace(made, target=self.name, seconds=seconds))
        if weights_are_elsewhere():
            pairs = zip(converted, models, strict=True)
            return [_unopened(graph, model) for graph, model in pairs]
        share(models)
        folder = OwnFolder()
        if merged and len(graphs) > 1:
            write_models(
                [merged_model(models, converted)],
                [folder.path / MERGED],
                _SMALL,
            )
        else:
            write_models(models, [folder.path / file_name(graph, self) for graph in graphs], _SMALL)
        keep = len(graphs) == 1 and not variant.in_place_cache and not settings.is_users
        kept = [
            self._check_first_run(graph, number, folder.path, settings, keep)
            for number, graph in enumerate(graphs)
        ]
        if all(kept):
            path = folder.path / file_name(graphs[0], self)
            return [_opened_later(converted[0], path, folder, settings)]
        read = self._read(converted, folder.path, folds=True, settings=settings)
        return [_noted(graph) for graph in read]

    def _check_first_run(
        self, graph: Graph, number: int, folder: Path, settings: SessionSettings, keep: bool
    ) -> bool:
        """Passes where ONNX Runtime survives the file of a graph. True where the other process keeps it
        open.

        :raises ExportError: ``runtime-died``
        """
        path = folder / file_name(graph, self)
        inputs = [*zip(names_of(graph).inputs, example_inputs(graph), strict=True)]
        if (folder / MERGED).exists():
            path = folder / MERGED
            inputs.append((SELECTOR, number))
        return check_first_run(
            _RUNTIME,
            graph,
            path,
            inputs,
            keep=keep,
            outputs=list(names_of(graph).outputs) if keep else None,
            options=settings.picklable_options,
            providers=settings.providers,
        )

    def write(self, graphs: Sequence[Graph], folder: Path) -> list[str]:
        """One ``.onnx`` a graph; what several use, and all weights of a model with more than 16 MiB
        of them, is in ``weights.bin``.
        """
        by_name = {file_name(graph, self): graph.artifact.model for graph in graphs}
        if len(graphs) > 1 and len({id(model) for model in by_name.values()}) == 1:
            by_name = {MERGED: graphs[0].artifact.model}
        models = list(by_name.values())
        share(models)
        return [
            path.name
            for path in write_models(models, [folder / name for name in by_name], MOST_INSIDE)
        ]

    def write_file(self, graphs: Sequence[Graph], path: Path) -> list[str]:
        """One ``.onnx`` with its weights inside; from 2 GB on, which no message of protobuf can have,
        they stand beside it in ``NAME.onnx.data``. Several graphs are merged.

        :raises ExportError: ``not-mergeable``
        """
        models = models_of(graphs)
        share(models)
        if len(models) > 1:
            models = [merged_model(models, graphs)]
        weights = f"{path.name}.data"
        files = write_models(models, [path], MOST_IN_ONE_FILE, weights=weights)
        if len(files) > 1:
            logger.info("%s: the weights are too large for it, and stand in %s", path.name, weights)
        return [file.name for file in files]

    def read(
        self,
        graphs: Sequence[Graph],
        folder: Path,
        session_options: Any = None,
        providers: Any = None,
        **_: Any,
    ) -> list[Graph]:
        """The graphs with sessions; the exported sizes are read from the models, which somebody else
        may have made.

        :raises SavedFileError: ``file-damaged``
        :raises ExportError: ``onnx-refused``
        :raises UsageError: ``bad-session-options``, ``bad-providers``
        :raises MissingPackageError: ``missing-package``
        """
        self.require()
        settings = settings_of(session_options, providers)
        return self._read(graphs, folder, folds=False, settings=settings)

    def _read(
        self,
        graphs: Sequence[Graph],
        folder: Path,
        *,
        folds: bool,
        settings: SessionSettings = DEFAULT,
    ) -> list[Graph]:
        is_merged = (folder / MERGED).exists()
        paths = (
            [folder / MERGED]
            if is_merged
            else [folder / file_name(graph, self) for graph in graphs]
        )
        # a copy for each graph, laid out for speed, would hold every weight once more
        models = read_models(paths)
        prepack = len(graphs) == 1
        if is_merged:
            whole = _opened(models[0], paths[0], prepack, folds, settings)
            return [_loaded(graph, whole, number) for number, graph in enumerate(graphs)]
        opened = []
        for graph, model, path in zip(graphs, models, paths, strict=True):
            with of_graph(graph, partial(_line_in, model)):
                opened.append(_opened(model, path, prepack, folds, settings))
        return [_loaded(graph, file, None) for graph, file in zip(graphs, opened, strict=True)]


def _model(
    graph: Graph, opset: int | None, variant: Variant, calls: Sequence[Sequence[Any]]
) -> tuple[Any, Graph]:
    """The converted model, with its names, and with what is known of it inside; and the graph, with
    what the variant changes.
    """
    asked = opset or (FUSED_OPSET if variant.fuse else None)
    model = convert_graph(graph, asked, shapes=bool(variant.fuse)).model
    name_model(model, graph, names_of(graph))
    check_found(_arrays_of(model), graph.name)
    made = graph
    if not variant.is_plain:
        model, made = made_variant(model, graph, variant, calls)
    write_about(model, made)
    return model, made


def _arrays_of(model: Any) -> Iterator[Any]:
    """The numbers of a model."""
    for value in model.graph.initializers.values():
        if value.const_value is not None and value.const_value.dtype.name != "STRING":
            yield value.const_value.numpy()


def _unopened(graph: Graph, model: Any) -> Graph:
    """A graph that is written and not run: its weights are not in memory."""
    return _with_model(graph, not_run, torch.onnx.ONNXProgram(model, None))


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model, and the session that runs it."""

    model: torch.onnx.ONNXProgram
    where: str
    session: Session


def _opened(
    model: Any, path: Path, prepack: bool, folds: bool, settings: SessionSettings
) -> _Opened:
    session = open_session(
        path, lent_tensors(model), prepack=prepack, folds=folds, settings=settings
    )
    return _Opened(torch.onnx.ONNXProgram(model, None), path.name, session)


def _opened_later(graph: Graph, path: Path, folder: OwnFolder, settings: SessionSettings) -> Graph:
    """A graph that is compared in the other process, and opened here when it is called."""
    (model,) = read_models([path])

    def opens() -> Runner:
        with of_graph(graph, partial(_line_in, model)):
            return _loaded(graph, _opened(model, path, True, True, settings), None).run

    run = OpenedLater(_RUNTIME, graph, path, folder=folder, opens=opens, reads=list)
    return _with_model(graph, run, torch.onnx.ONNXProgram(model, None))


def _with_model(graph: Graph, run: Runner, model: torch.onnx.ONNXProgram) -> Graph:
    shapes = {str(value.name): _shape(value) for value in model.model.graph.inputs}
    sizes = _exported_sizes(shapes, graph, names_of(graph))
    return replace(graph, run=run, artifact=model, exported_sizes=sizes, example=())


def _line_in(model: Any, text: str) -> str:
    """The line of the model that made the node of ONNX that a message names."""
    for node in model.graph:
        if node.name and re.search(rf"\b{re.escape(node.name)}\b", text):
            place = place_of_stack(node.metadata_props.get("pkg.torch.onnx.stack_trace", ""))
            if place:
                return f" ({node.op_type}, at {place})"
    return ""


def _loaded(graph: Graph, opened: _Opened, number: int | None) -> Graph:
    """The graph with a run of the session; ``number`` chooses it in a merged model that does not
    choose by sizes.
    """
    names = names_of(graph)
    values = {str(value.name): value for value in opened.model.model.graph.inputs}
    missing = [name for name in names.inputs if name not in values] if number is not None else []
    if missing:
        raise damaged(opened.where, f"the model has no input {', '.join(missing)}")
    others = (
        {}
        if number is None
        else {name: v for name, v in values.items() if name not in names.inputs}
    )
    rest = [
        torch.tensor(number) if name == SELECTOR else _nothing(value)
        for name, value in others.items()
    ]
    kept = kept_in_place(opened.model.model, names, opened.where)
    start = _runner(graph, opened.session, [*names.inputs, *others], names, kept)

    def run(inputs: Sequence[Any], _alive: Any = opened) -> Sequence[Any]:
        return start([*inputs, *rest])

    return replace(_with_model(graph, run, opened.model), blocked=opened.session.blocked)


def _runner(
    graph: Graph, session: Session, labels: Sequence[str], names: Names, kept: InPlace | None
) -> Runner:
    if session.inner is None:
        name, reason = graph.name, session.blocked

        def refuse(inputs: Sequence[Any]) -> Sequence[Any]:
            raise no_kernels(name, reason)

        return refuse
    outputs = graph.outputs
    if kept is not None:
        return in_place_runner(session.inner, labels, names, graph.plan, kept, outputs)
    return ort_runner(
        session.inner,
        labels,
        names.outputs,
        outputs.are_ints,
        outputs.are_floats,
        outputs.are_complex,
    )


def _noted(graph: Graph) -> Graph:
    """The graph, with a note where it does not run: the folder it is saved in tells it too."""
    if not graph.blocked:
        return graph
    note = f"converted where ONNX Runtime does not run it ({graph.blocked})"
    return replace(graph, notes=(*graph.notes, note))


def _shape(value: Any) -> list[Any]:
    """The sizes of an input of a model: numbers, names, or None."""
    sizes = [] if value.shape is None else list(value.shape)
    return [size if isinstance(size, int) else size.value for size in sizes]


def _nothing(value: Any) -> torch.Tensor:
    """A value for an input that a graph does not have: as little as the type allows."""
    from onnx_ir.tensor_adapters import to_torch_dtype

    shape = [size if isinstance(size, int) else 0 for size in _shape(value)]
    return torch.zeros(shape, dtype=to_torch_dtype(value.dtype))


def _exported_sizes(
    shapes: Mapping[str, Sequence[Any]], graph: Graph, names: Names
) -> dict[Axis, Expression | None]:
    """Per axis what the inputs of the model say."""
    found: dict[Axis, Expression | None] = {}
    for leaf, name in zip(graph.plan.inputs, names.inputs, strict=True):
        if name not in shapes:
            found |= {Axis(leaf.path, dim): None for dim in range(len(leaf.shape))}
            continue
        for dim, size in enumerate(shapes[name]):
            found[Axis(leaf.path, dim)] = Expression.of_text(str(size))
        if leaf.value is not None:
            found[Axis(leaf.path, None)] = leaf.value
    return found

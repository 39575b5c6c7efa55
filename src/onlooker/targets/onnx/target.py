"""The target ONNX: models with readable names, guards and plan inside, run by ONNX Runtime on
the CPU.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ...core.codec_text import damaged
from ...core.errors import MissingPackageError
from ...core.spec import Axis
from ...trace.graph import Graph
from ..target import file_name
from .about import write_about
from .convert import check_opset, convert_graph
from .files import read_models, write_models
from .merge import MERGED, SELECTOR, merged_model
from .names import Names, name_model, names_of
from .run import ort_runner
from .session import open_session
from .weights import MOST_INSIDE, lent_tensors, share

__all__ = ["Onnx", "to_onnx"]

logger = logging.getLogger(__name__)
_NAMES = (
    "bool",
    "float16",
    "bfloat16",
    "float",
    "double",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
)
_DTYPES: dict[str, torch.dtype] = {f"tensor({name})": getattr(torch, name) for name in _NAMES}
#: in a folder that only this process sees, weights are outside from here on: sessions then share
#: them
_SMALL = 2**20


class Onnx:
    """Models of ONNX: one a graph, or with ``merged=True`` one for all. ``opset`` is the version
    of the operators.
    """

    name = "onnx"
    suffix = ".onnx"
    options: tuple[str, ...] = ("opset", "merged")

    def require(self) -> None:
        """Passes when onnx, onnxscript and onnxruntime can be imported.

        :raises MissingPackageError: ``missing-package``
        """
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not _is_there(name)]
        if missing:
            raise MissingPackageError(
                f"An export to ONNX needs {', '.join(missing)}.",
                slug="missing-package",
                hint="Install it with: pip install 'onlooker[onnx]'.",
            )

    def convert(
        self, graphs: Sequence[Graph], *, opset: int | None = None, merged: bool = False, **_: Any
    ) -> list[Graph]:
        """The same regimes as models of ONNX, already written to files once, and read from there.

        :raises ExportError: ``onnx-refused`` with the message of the converter or of ONNX Runtime,
            ``not-mergeable``
        :raises UsageError: ``bad-opset``
        """
        check_opset(opset)
        models, seconds = [], []
        for graph in graphs:
            start = time.perf_counter()
            logger.info("converting %s to ONNX", graph.name)
            models.append(_model(graph, opset))
            seconds.append(graph.seconds + time.perf_counter() - start)
        share(models)
        converted = [
            replace(g, target=self.name, seconds=s) for g, s in zip(graphs, seconds, strict=True)
        ]
        with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
            if merged and len(graphs) > 1:
                write_models(
                    [merged_model(models, [graph.name for graph in graphs])],
                    [Path(folder, MERGED)],
                    _SMALL,
                )
            else:
                write_models(
                    models, [Path(folder, file_name(graph, self)) for graph in graphs], _SMALL
                )
            return self._read(converted, Path(folder), folds=True)

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

    def read(self, graphs: Sequence[Graph], folder: Path) -> list[Graph]:
        """The graphs with sessions; what was obtained is read from the models, which somebody else
        may have made.

        :raises SavedFileError: ``file-damaged``
        :raises ExportError: ``onnx-refused``
        :raises MissingPackageError: ``missing-package``
        """
        self.require()
        return self._read(graphs, folder, folds=False)

    def _read(self, graphs: Sequence[Graph], folder: Path, *, folds: bool) -> list[Graph]:
        is_merged = (folder / MERGED).exists()
        paths = (
            [folder / MERGED]
            if is_merged
            else [folder / file_name(graph, self) for graph in graphs]
        )
        # a copy for each graph, laid out for speed, would hold every weight once more
        models = read_models(paths)
        prepack = len(graphs) == 1
        opened = [_opened(m, path, prepack, folds) for m, path in zip(models, paths, strict=True)]
        if is_merged:
            return [_loaded(graph, opened[0], number) for number, graph in enumerate(graphs)]
        return [_loaded(graph, file, None) for graph, file in zip(graphs, opened, strict=True)]


def to_onnx(graph: Graph, *, opset: int | None = None) -> Graph:
    """One graph of torch as a model of ONNX; as :meth:`Onnx.convert`."""
    target = Onnx()
    target.require()
    return target.convert([graph], opset=opset)[0]


def _is_there(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _model(graph: Graph, opset: int | None) -> Any:
    """The converted model, with its names, and with what is known of it inside."""
    model = convert_graph(graph, opset).model
    name_model(model, graph, names_of(graph))
    write_about(model, graph)
    return model


@dataclass(frozen=True, slots=True)
class _Opened:
    """A model, the session that runs it, and what has to live as long as that."""

    model: torch.onnx.ONNXProgram
    where: str
    session: Any
    alive: Any


def _opened(model: Any, path: Path, prepack: bool, folds: bool) -> _Opened:
    session, alive = open_session(path, lent_tensors(model), prepack=prepack, folds=folds)
    return _Opened(torch.onnx.ONNXProgram(model, None), path.name, session, alive)


def _loaded(graph: Graph, opened: _Opened, number: int | None) -> Graph:
    """The graph with a run of the session; ``number`` chooses it in a merged model."""
    names = names_of(graph)
    values = {value.name: value for value in opened.session.get_inputs()}
    missing = [name for name in names.inputs if name not in values] if number is not None else []
    if missing or (number is not None and SELECTOR not in values):
        raise damaged(opened.where, f"the model has no input {', '.join(missing) or SELECTOR}")
    others = (
        {}
        if number is None
        else {name: v for name, v in values.items() if name not in names.inputs}
    )
    rest = [
        torch.tensor(number) if name == SELECTOR else _nothing(value)
        for name, value in others.items()
    ]
    outputs = graph.outputs
    start = ort_runner(
        opened.session,
        [*names.inputs, *others],
        names.outputs,
        outputs.are_ints,
        outputs.are_floats,
    )

    def run(inputs: Sequence[Any], _alive: Any = opened) -> Sequence[Any]:
        return start([*inputs, *rest])

    shapes = {name: value.shape for name, value in values.items()}
    return replace(
        graph, run=run, artifact=opened.model, obtained=_obtained(shapes, graph, names), example=()
    )


def _nothing(value: Any) -> torch.Tensor:
    """What is given for an input that a graph does not have: as little as the type allows."""
    shape = [size if isinstance(size, int) else 0 for size in value.shape]
    return torch.zeros(shape, dtype=_DTYPES[value.type])


def _obtained(shapes: Mapping[str, Sequence[Any]], graph: Graph, names: Names) -> dict[str, str]:
    """Per axis what the inputs of the model say."""
    found: dict[str, str] = {}
    for leaf, name in zip(graph.plan.inputs, names.inputs, strict=True):
        if name not in shapes:
            found |= {str(Axis(leaf.path, dim)): "unused" for dim in range(len(leaf.shape))}
            continue
        found |= {str(Axis(leaf.path, dim)): str(size) for dim, size in enumerate(shapes[name])}
        if leaf.value is not None:
            found[str(Axis(leaf.path, None))] = str(leaf.value)
    return found

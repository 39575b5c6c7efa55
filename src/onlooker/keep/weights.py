"""The weights of a program that are an argument of its graphs: one safetensors file for all blocks, or
one for each adapter.

Beside the graphs of ONNX, each adapter also stands in the format of ONNX Runtime, whose ``LoraAdapter``
gives its matrices to any session: no onlooker is needed there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.path import Key
from ..disk.text import damaged
from ..observing.wrapping.adapted_model import NO_ADAPTER
from ..serve.weights import ProgramWeights
from ..targets.target import file_name
from ..targets.targets import target_of
from ..targets.weights import read_tensors, write_tensors
from ..trace.graph import Graph

__all__ = [
    "WeightsRecord",
    "read_weights",
    "weights_record",
    "write_adapters",
    "write_genai_adapters",
    "write_weights",
]

#: the file with the weights of all blocks
_BLOCKS_FILE = "blocks.safetensors"


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """Weights without their tensors: the argument of the graphs, the names of the blocks or adapters,
    and the file of each.
    """

    argument: str
    names: tuple[str, ...]
    files: tuple[str, ...]


def weights_record(weights: ProgramWeights) -> WeightsRecord:
    """The record of the weights of a program."""
    return WeightsRecord(weights.argument, tuple(weights.sets), _files(weights))


def _files(weights: ProgramWeights) -> tuple[str, ...]:
    if not weights.are_adapters:
        return (_BLOCKS_FILE,) * len(weights.sets)
    return tuple(f"{_stem(place, name)}.safetensors" for place, name in enumerate(weights.sets))


def _stem(place: int, name: str) -> str:
    """The name of the file of an adapter: its own, where that can be one."""
    is_plain = name.isascii() and name.replace("-", "_").isidentifier()
    return f"adapter_{name}" if is_plain else f"adapter_{place}"


def write_weights(weights: ProgramWeights, folder: Path) -> list[str]:
    """Writes all weights and gives the names of the files.

    :raises UnsupportedError: ``tensor-not-saved``
    """
    by_file: dict[str, dict[str, Any]] = {}
    for (name, own), file in zip(weights.sets.items(), _files(weights), strict=True):
        by_file.setdefault(file, {})[name] = own
    for file, tables in by_file.items():
        write_tensors(tables, folder / file)
    return list(by_file)


def write_adapters(weights: ProgramWeights, graphs: Sequence[Graph], folder: Path) -> list[str]:
    """Writes each adapter of a program of ONNX for ONNX Runtime, and gives the names of the files.

    A session takes the matrices of an adapter for inputs that have a default. The copies of the files
    of graphs that are called ``*.adapters.onnx`` have that of no adapter; the files themselves want all
    inputs.
    """
    if not weights.are_adapters or graphs[0].target != "onnx":
        return []
    files: list[str] = []
    for graph in graphs:
        files.append(f"{graph.name}.adapters.onnx")
        _write_defaults(
            weights, graph, folder / file_name(graph, target_of("onnx")), folder / files[-1]
        )
    return [*files, *_write_each(weights, graphs, folder)]


def write_genai_adapters(weights: ProgramWeights, graph: Graph, path: Path) -> None:
    """Writes each adapter beside the model of ONNX Runtime GenAI at ``path``, which has no adapter by
    default from now on.
    """
    _write_defaults(weights, graph, path, path)
    _write_each(weights, [graph], path.parent)


def _write_defaults(weights: ProgramWeights, graph: Graph, source: Path, path: Path) -> None:
    """Writes the file of a graph with the matrices of no adapter as defaults."""
    import onnx  # the target needs it

    model = onnx.load(source, load_external_data=False)
    for name, label in _labels(weights, graph).items():
        default = weights.sets[NO_ADAPTER][name].cpu().numpy()
        model.graph.initializer.append(onnx.numpy_helper.from_array(default, label))
    onnx.save(model, path)


def _write_each(weights: ProgramWeights, graphs: Sequence[Graph], folder: Path) -> list[str]:
    """Writes a file for each adapter, in the format of ONNX Runtime."""
    from onnxruntime import AdapterFormat, OrtValue  # the target needs it

    labels: dict[str, str] = {}
    for graph in graphs:
        labels |= _labels(weights, graph)
    files: list[str] = []
    for place, (name, matrices) in enumerate(weights.sets.items()):
        adapter = AdapterFormat()
        adapter.set_parameters(
            {
                label: OrtValue.ortvalue_from_numpy(matrices[key].cpu().numpy())
                for key, label in labels.items()
            }
        )
        files.append(f"{_stem(place, name)}.onnx_adapter")
        adapter.export_adapter(str(folder / files[-1]))
    return files


def _labels(weights: ProgramWeights, graph: Graph) -> dict[str, str]:
    """What the inputs of a graph that are weights are called in its file, by the names of the weights."""
    found: dict[str, str] = {}
    for leaf, label in zip(graph.plan.inputs, graph.labels, strict=True):
        last = leaf.path.entries[-1]
        if leaf.path.root == weights.argument and isinstance(last, Key):
            found[last.key] = label
    return found


def read_weights(record: WeightsRecord, folder: Path, where: str) -> ProgramWeights:
    """The weights of a record.

    :raises SavedFileError: ``file-damaged``
    """
    tables: dict[str, Any] = {}
    for file in dict.fromkeys(record.files):
        tables |= read_tensors(folder / file)
    if {*tables} != {*record.names}:
        raise damaged(where, "its blocks or adapters are not those that have weights")
    return ProgramWeights(record.argument, {name: tables[name] for name in record.names})

"""The target of torch.export itself: one ``.pt2`` a graph, and the weights of all of them in one
file.

A ``.pt2`` is a zip. torch would unpickle what it finds there, without limits (weights of derived
classes, objects, sample inputs), so that a foreign one could run any code. Ours have no pickle: the
graph as JSON, and in place of each weight a tensor of its shape that is one zero in memory.
``torch.export.load`` reads them, with zeros. Here only the JSON is taken out, checked
(:mod:`.check`), and given to torch with the weights of ``weights.safetensors``.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import typing
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ...core.errors import OnlookerError, UnsupportedError
from ...disk.files import read_file
from ...disk.text import MOST_BYTES, damaged, read_json, write_json
from ...patches.swap import swapped
from ...torch_internals.operators import know_quantised_operators
from ...torch_internals.serialized import (
    PT2ArchiveWriter,
    schema,
    serialize,
    serialize_without_tensors,
    with_sizes_written,
)
from ...torch_internals.serialized import serialize as serde
from ...torch_internals.sizes import symbolic_shapes
from ...torch_internals.tracing import dynamo_config, lazy_graph_module
from ...trace.graph import Graph
from ...trace.torch_run import runner_of
from ..integers.reduced import INTEGERS, reduced_graphs
from ..save import save_graph
from ..target import REDUCED, Calibration, file_name, only_graph
from ..weights import read_tensors, write_tensors
from .check import check_program, scrubbed

__all__ = ["WEIGHTS", "TorchFiles", "quick_reading"]


# Reads an exported program in a third of the time, and programs that torch writes and then refuses.
#
# torch parses the same few texts again for every tensor of a graph: inside the block two functions of
# its deserialiser remember what they gave, the type hints of a class of the format, and the expression
# of a size. A size made from values that the graph checks to be a number has no symbol any more when
# the graph was read, and torch (2.13) asks where the symbol comes from: inside the block such symbols
# are not asked for. All is put back when the block ends.
#
# Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_export/serde/serialize.py
@contextlib.contextmanager
def quick_reading() -> Iterator[None]:
    """Inside the block torch reads exported programs quickly."""
    hints: dict[Any, dict[str, Any]] = {}
    parse = serialize.GraphModuleDeserializer._parse_sym_expr

    def hints_of(cls: Any, globalns: Any = None, **options: Any) -> dict[str, Any]:
        if cls not in hints:
            hints[cls] = typing.get_type_hints(cls, globalns=globalns, **options)
        return hints[cls]

    @functools.wraps(parse)
    def parse_once(self: Any, text: Any, hint: Any = None) -> Any:
        key = (type(text), text, hint)
        known = self.__dict__.setdefault("_onlooker_parsed", {})
        if key not in known:
            known[key] = parse(self, text, hint)
        return known[key]

    find = symbolic_shapes._free_unbacked_symbols_with_path

    @functools.wraps(find)
    def find_unreplaced(value: Any, path: Any, **options: Any) -> Any:
        found = find(value, path, **options)
        shapes, pending = options.get("shape_env"), options.get("pending")
        if shapes is not None and pending is not None:
            pending.difference_update(shapes.replacements)
        return found

    module = SimpleNamespace(**{**vars(typing), "get_type_hints": hints_of})
    with (
        swapped(serialize, "typing", module),
        swapped(serialize.GraphModuleDeserializer, "_parse_sym_expr", parse_once),
        swapped(symbolic_shapes, "_free_unbacked_symbols_with_path", find_unreplaced),
        dynamo_config.patch(fake_tensor_cache_enabled=False),
        lazy_graph_module._use_lazy_graph_module(True),
    ):
        yield


#: the file with the weights of all graphs
WEIGHTS = "weights.safetensors"
_MODEL = "models/model.json"


class TorchFiles:
    """Programs of torch.export."""

    name = "torch"
    suffix = ".pt2"
    options: tuple[str, ...] = REDUCED
    reading: tuple[str, ...] = ("operators",)
    precisions: tuple[str, ...] = INTEGERS
    needs_bounds = False
    rolls_numbers = True

    def require(self) -> None:
        """Passes: torch is there."""

    def convert(
        self,
        graphs: Sequence[Graph],
        *,
        precision: str | None = None,
        calibration: Calibration | None = None,
        **_: Any,
    ) -> list[Graph]:
        """The graphs as they are, or with smaller weights.

        :raises ExportError: ``torch-not-quantised``
        """
        return reduced_graphs(graphs, precision, calibration)

    def write(self, graphs: Sequence[Graph], folder: Path) -> list[str]:
        """One file a graph, and one with the weights.

        :raises UnsupportedError: ``program-not-saved``, ``tensor-not-saved``
        """
        names = [file_name(graph, self) for graph in graphs]
        for graph, name in zip(graphs, names, strict=True):
            (folder / name).write_bytes(_archive(graph, name))
        write_tensors(
            {
                graph.name: {**graph.artifact.state_dict, **graph.artifact.constants}
                for graph in graphs
            },
            folder / WEIGHTS,
        )
        return [*names, WEIGHTS]

    def write_file(self, graphs: Sequence[Graph], path: Path) -> list[str]:
        """The ``.pt2`` that ``torch.export.load`` reads, weights inside.

        :raises UnsupportedError: ``several-graphs``
        """
        save_graph(only_graph(graphs, path), path)
        return [path.name]

    def read(
        self, graphs: Sequence[Graph], folder: Path, operators: Collection[str] = (), **_: Any
    ) -> list[Graph]:
        """The graphs again; ``operators`` are namespaces of operators beyond those of torch that
        they may call.

        :raises SavedFileError: ``file-damaged``, ``device-missing``
        """
        tensors = read_tensors(folder / WEIGHTS)
        return [
            _read(graph, folder / file_name(graph, self), tensors, operators) for graph in graphs
        ]


def _archive(graph: Graph, name: str) -> bytes:
    """The ``.pt2``: the graph, without sample inputs, lines of source and weights."""
    program = graph.artifact
    try:
        with with_sizes_written(program):
            artifact = serialize_without_tensors(program)
    except Exception as error:
        raise _not_saved(name, error) from error
    document = scrubbed(json.loads(artifact.exported_program))
    try:
        check_program(document, name, _namespaces(document))
    except OnlookerError as error:
        raise _not_saved(name, error.message) from error
    buffer = io.BytesIO()
    with PT2ArchiveWriter(buffer) as writer:
        kinds: dict[Any, str] = {}
        for folder, kind, tensors in (
            ("data/weights", "weight", program.state_dict),
            ("data/constants", "tensor", program.constants),
        ):
            label = "weights" if kind == "weight" else "constants"
            config = _zeros(writer, folder, kind, tensors, kinds)
            writer.write_bytes(f"{folder}/model_{label}_config.json", config)
        writer.write_bytes(_MODEL, write_json(document))
        writer.write_bytes("data/sample_inputs/model.pt", b"")
    return buffer.getvalue()


def _not_saved(name: str, reason: object) -> UnsupportedError:
    said = str(reason).strip().splitlines() or [""]
    more = (
        f" ({said[-1][:200]})" if len(said) > 1 else ""
    )  # torch puts a whole traceback between the two
    return UnsupportedError(
        f"{name} cannot be saved: {said[0][:300]}{more}",
        slug="program-not-saved",
        hint="Keep the program in memory, or export it to 'onnx', and report this.",
    )


def _namespaces(document: Any) -> set[str]:
    """The namespaces of the operators: any of them can be saved, a reader says which ones it
    calls.
    """
    if isinstance(document, dict):
        found = {str(document.get("target", ""))} | {str(document.get("as_operator", ""))}
        own = {text.split(".")[2] for text in found if text.startswith("torch.ops.")}
        return own.union(*map(_namespaces, document.values()))
    return set().union(*map(_namespaces, document)) if isinstance(document, list) else set()


def _zeros(
    writer: Any, folder: str, kind: str, tensors: Mapping[str, Any], kinds: dict[Any, str]
) -> bytes:
    """A tensor of one zero in place of each weight, as torch lists them."""
    config = {}
    for name, tensor in tensors.items():
        key = (folder, tensor.dtype, tensor.device)
        if key not in kinds:
            kinds[key] = f"{kind}_{len(kinds)}"
            writer.write_bytes(f"{folder}/{kinds[key]}", bytes(tensor.element_size()))
        zero = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        meta = serde.serialize_tensor_meta(zero.requires_grad_(tensor.requires_grad))
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        config[name] = schema.PayloadMeta(kinds[key], is_parameter, False, meta)
    plain: Any = serde._dataclass_to_dict(schema.PayloadConfig(config))  # type: ignore[no-untyped-call]
    return write_json(plain)


def _read(
    graph: Graph, path: Path, tensors: Mapping[str, Mapping[str, torch.Tensor]], operators: Any
) -> Graph:
    where = str(path)
    document = read_json(_model_in(path), where)
    check_program(document, where, operators)
    given = tensors.get(graph.name)
    if given is None:
        raise damaged(where, f"{WEIGHTS} has no weights of {graph.name}")
    program = _deserialised(graph, document, given, where)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return replace(
                graph, artifact=program, run=runner_of(program, tuple(graph.names.values()))
            )
    except Exception as error:
        raise damaged(where, f"it makes no module ({_first_line(error)})") from error


def _model_in(path: Path) -> bytes:
    """The JSON of the graph, read from the zip without torch."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(path))) as archive:
            found = [
                info for info in archive.infolist() if info.filename.partition("/")[2] == _MODEL
            ]
            if (
                len(found) != 1
                or found[0].file_size > MOST_BYTES
                or found[0].compress_type != zipfile.ZIP_STORED
            ):
                raise damaged(str(path), f"it has not one {_MODEL}")
            return archive.read(found[0])
    except (
        zipfile.BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
        KeyError,
    ) as error:
        if isinstance(error, OnlookerError):
            raise
        raise damaged(str(path), f"it is no zip ({str(error)[:200]})") from error


def _deserialised(
    graph: Graph, document: Any, given: Mapping[str, torch.Tensor], where: str
) -> Any:
    """The program that torch makes of the checked document."""
    specs = document.get("graph_module", {}).get("signature", {}).get("input_specs", [])
    state, constants = _sorted_out(specs, given, where)
    # torch checks its guards only where it finds inputs, and asks these for nothing but their names
    example = ((), dict.fromkeys(graph.names.values(), 0))
    if "quantized_decomposed" in _namespaces(document):
        know_quantised_operators()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            artifact = serde.SerializedArtifact(write_json(document), state, constants, example)  # type: ignore[arg-type]
            with quick_reading():
                program = serde.deserialize(artifact)
    except Exception as error:
        raise damaged(where, f"torch makes no program of it ({_first_line(error)})") from error
    outputs = len(program.graph_signature.user_outputs)
    inputs = list(program.call_spec.in_spec.unflatten(program.graph_signature.user_inputs)[1])
    if inputs != list(graph.names.values()) or outputs != sum(graph.outputs.dynamic):
        raise damaged(where, f"its inputs and outputs are not those of the plan of {graph.name}")
    return program


def _sorted_out(
    specs: Any, given: Mapping[str, torch.Tensor], where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tensors that torch keeps in the state, and those that it keeps as constants."""
    state: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    try:
        for spec in specs:
            ((kind, content),) = spec.items()
            if kind == "parameter":
                state[content["parameter_name"]] = given[content["parameter_name"]]
            elif kind == "buffer":
                table = state if content["persistent"] else constants
                table[content["buffer_name"]] = given[content["buffer_name"]]
            elif kind == "tensor_constant":
                constants[content["tensor_constant_name"]] = given[content["tensor_constant_name"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise damaged(where, f"a weight that it names is not in {WEIGHTS} ({error})") from error
    return state, constants


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]

"""What other quantisers make of the same float files, judged as programs of onlooker are.

ONNX Runtime and NNCF are given the float file of onlooker with their own defaults, and where they calibrate, the
calls that onlooker calibrates on. The quantisers of ``transformers.exporters``, optimum and Olive call the same
functions. torchao changes the model, which is watched and exported afterwards. optimum runs in the environment of
``make test-readers``, and Olive in that whose Python ``OLIVE`` names.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir
import torch

from onlooker import Program
from onlooker.core.precision import is_calibrated
from onlooker.targets.names import names_of
from onlooker.targets.target import read_again
from onlooker.targets.targets import target_of
from onlooker.trace.graph import Graph
from onlooker.verify.calibration import CALIBRATION, calibration_calls

Feeds = list[dict[str, Any]]
#: the Python of the environment of ``make test-readers``
READERS = os.environ.get(
    "READERS", str(Path(__file__).parent.parent / ".venv-readers" / "bin" / "python")
)
#: the Python of an environment with olive-ai
OLIVE = os.environ.get("OLIVE", "python-with-olive")
OF_OLIVE = """
import sys
from olive.workflows import run
run({
    "input_model": {"type": "ONNXModel", "model_path": sys.argv[1]},
    "passes": {"chosen": {"type": "OnnxDynamicQuantization"}},
    "output_dir": sys.argv[2],
})
"""
OPTIMUM = """
import sys
import optimum.utils.import_utils as known
known._diffusers_available = False  # that of another environment, which wants another hub
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoQuantizationConfig
quantizer = ORTQuantizer.from_pretrained(sys.argv[1], file_name="float.onnx")
quantizer.quantize(save_dir=sys.argv[2], quantization_config=AutoQuantizationConfig.avx2(is_static=False))
"""


class Peer(NamedTuple):
    """A quantiser: the target of its files, the precision that it is judged as, and what it makes of a model."""

    target: str
    precision: str
    make: Callable[[Any, Feeds], Any]


def _of_files(make: Callable[[str, str, Feeds], Any]) -> Callable[[Any, Feeds], Any]:
    """A quantiser from file to file, as a function of models of ONNX."""

    def made(program: Any, feeds: Feeds) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            before, after = str(Path(folder, "float.onnx")), str(Path(folder, "small.onnx"))
            onnx_ir.save(program.model, before)
            make(before, after, feeds)
            model = onnx_ir.load(after)
            onnx_ir.external_data.load_to_model(model)
        return torch.onnx.ONNXProgram(model, None)

    return made


def _dynamic(before: str, after: str, feeds: Feeds) -> None:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    model = onnx.load(before)
    del model.graph.value_info[:]  # it stumbles over the shapes of weights that it transposes
    onnx.save(model, before)
    quantize_dynamic(before, after)


def _blocks(before: str, after: str, feeds: Feeds) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(before), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(after)


def _static(before: str, after: str, feeds: Feeds) -> None:
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        rest = iter(feeds)

        def get_next(self) -> Any:
            return next(self.rest, None)

    quantize_static(before, after, Reader())


def _optimum(before: str, after: str, feeds: Feeds) -> None:
    folder = Path(before).parent
    words = [READERS, "-c", OPTIMUM, str(folder), str(folder / "optimum")]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(words, check=True, capture_output=True, env=plain)
    (made,) = (folder / "optimum").glob("*.onnx")
    made.rename(after)


def _olive(before: str, after: str, feeds: Feeds) -> None:
    folder = Path(before).parent
    words = [OLIVE, "-c", OF_OLIVE, before, str(folder / "olive")]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(words, check=True, capture_output=True, env=plain, cwd=folder)
    (folder / "olive" / "model.onnx").rename(after)


def _nncf_weights(model: Any, feeds: Feeds) -> Any:
    import nncf

    return nncf.compress_weights(model.clone())


def _nncf_blocks(model: Any, feeds: Feeds) -> Any:
    import nncf

    return nncf.compress_weights(
        model.clone(), mode=nncf.CompressWeightsMode.INT4_SYM, group_size=32
    )


def _nncf_static(model: Any, feeds: Feeds) -> Any:
    import nncf

    return nncf.quantize(model.clone(), nncf.Dataset(feeds))


PEERS = {
    "onnxruntime, dynamic": Peer("onnx", "int8", _of_files(_dynamic)),
    "onnxruntime, blocks": Peer("onnx", "int4", _of_files(_blocks)),
    "onnxruntime, static": Peer("onnx", "int8-static", _of_files(_static)),
    "optimum, dynamic": Peer("onnx", "int8", _of_files(_optimum)),
    "Olive, dynamic": Peer("onnx", "int8", _of_files(_olive)),
    "NNCF": Peer("openvino", "int8", _nncf_weights),
    "NNCF, blocks": Peer("openvino", "int4", _nncf_blocks),
    "NNCF, static": Peer("openvino", "int8-static", _nncf_static),
}


TORCHAO = "torchao"


def as_reduced(plain: Program, graphs: Sequence[Graph], precision: str, calls: str = "") -> Program:
    """A program of other graphs that is judged by its distances beside the model."""
    noted = {"precision": precision} | ({CALIBRATION: calls} if calls else {})
    made = [replace(graph, options={**graph.options, **noted}) for graph in graphs]
    return Program(plain._program.with_graphs(made))


def of_peer(plain: Program, peer: Peer) -> Program:
    """The float program of a target with the models that a peer makes of its own."""
    graphs, inputs, words = plain.graphs, {}, ""
    if is_calibrated(peer.precision):
        calls = calibration_calls(plain._program, graphs)
        inputs, words = dict(calls.inputs), calls.label
    made = [
        replace(
            graph, artifact=peer.make(graph.artifact, _feeds(graph, inputs.get(graph.name, ())))
        )
        for graph in graphs
    ]
    return as_reduced(plain, read_again(target_of(peer.target), made), peer.precision, words)


def _feeds(graph: Graph, calls: Sequence[Sequence[Any]]) -> Feeds:
    """The arrays of some calls, by the names of the inputs of a model."""
    model = graph.artifact
    ports = model.model.graph.inputs if hasattr(model, "model") else model.inputs
    known = {
        name
        for port in ports
        for name in ([port.name] if hasattr(port, "name") else port.get_names())
    }
    names = names_of(graph).inputs
    return [
        {
            name: torch.as_tensor(value).numpy()
            for name, value in zip(names, inputs, strict=True)
            if name in known
        }
        for inputs in calls
    ]


def of_torchao(precision: str) -> Callable[[torch.nn.Module], None]:
    """A function that makes the weights of a model integers by torchao."""
    from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    blocks = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))
    config = Int8WeightOnlyConfig() if precision == "int8" else blocks
    return lambda model: quantize_(model, config)

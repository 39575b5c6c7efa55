"""The process in which fresh files of a runtime are opened and run first.

:mod:`onlooker.targets.first_run` starts this file as a program of its own. It imports nothing of
onlooker, and torch only for the runtimes that need it: ONNX Runtime is ready after a tenth of a
second, torch after two.

It reads pickled values, one after the other: the places where packages are, then requests. It
answers a request with ``opening`` when the runtime is imported, and ``done`` or ``raised`` at its end.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

#: an input: its name, dtype, shape and strides, and its bytes in the order of its dimensions
Input = tuple[str, str, tuple[int, ...], "tuple[int, ...] | None", bytes]
#: numbers of onnx.TensorProto for dtypes that numpy lacks
_ONNX_TYPES = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
_OPENVINO_TYPES = {"bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2"}


def _array(dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    """An array of numpy; of integers as wide as the elements where numpy lacks the dtype."""
    import numpy

    bits = {"bfloat16": "uint16"}.get(dtype, "uint8" if dtype.startswith("float8") else dtype)
    return numpy.frombuffer(content, dtype=bits).reshape(shape)


def run_onnxruntime(request: Mapping[str, Any]) -> None:
    """Opens a model of ONNX, and runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    for key, value in request["options"].items():
        if "." in key:
            options.add_session_config_entry(key, value)
        else:
            setattr(options, key, value)
    session = onnxruntime.InferenceSession(
        request["path"], options, providers=request["providers"], enable_fallback=0
    )
    given: dict[str, Any] = {}
    for name, dtype, shape, _, content in request["inputs"]:
        array = _array(dtype, shape, content)
        if dtype in _ONNX_TYPES:
            number = _ONNX_TYPES[dtype]
            given[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
        else:
            given[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    known = [value.name for value in session.get_inputs()]
    used = {name: value for name, value in given.items() if name in known}
    session.run_with_ort_values([value.name for value in session.get_outputs()], used)


def run_openvino(request: Mapping[str, Any]) -> None:
    """Compiles a model of OpenVINO, and runs it."""
    import openvino

    core = openvino.Core()
    model = core.read_model(request["path"], request["weights"])
    compiled = core.compile_model(model, request["device"], request["properties"])
    run = compiled.create_infer_request()
    ports = {name: port for port in compiled.inputs for name in port.get_names()}
    for name, dtype, shape, _, content in request["inputs"]:
        if name not in ports:
            continue
        array = _array(dtype, shape, content)
        if dtype in _OPENVINO_TYPES:
            kind = getattr(openvino.Type, _OPENVINO_TYPES[dtype])
            tensor = openvino.Tensor(array, openvino.Shape(shape), kind)
        else:
            tensor = openvino.Tensor(array)
        run.set_tensor(ports[name], tensor)
    run.infer()


def _tensor(entry: Input) -> Any:
    """An input as a tensor of torch, with its strides."""
    import torch

    _, dtype, shape, strides, content = entry
    kind = getattr(torch, dtype)
    if content:
        flat = torch.frombuffer(bytearray(content), dtype=kind)
    else:
        flat = torch.empty(0, dtype=kind)
    tensor = flat.reshape(shape)
    return (
        tensor if strides is None else torch.empty_strided(shape, strides, dtype=kind).copy_(tensor)
    )


def run_aotinductor(request: Mapping[str, Any]) -> None:
    """Loads a package of AOTInductor, and runs it with zeros for its weights."""
    import torch

    model = torch._inductor.aoti_load_package(request["path"])
    weights = {
        name: torch.empty_strided(
            shape, strides, dtype=getattr(torch, dtype), device=device
        ).zero_()
        for name, dtype, shape, strides, device in request["weights"]
        if name in model.get_constant_fqns()
    }
    if weights:
        model.load_constants(weights, check_full_update=True, user_managed=True)
    inputs = [_tensor(one).to(request["device"]) for one in request["inputs"]]
    with torch.no_grad():
        model.loader.boxed_run(inputs)


def run_executorch(request: Mapping[str, Any]) -> None:
    """Loads a method of a program of ExecuTorch, and runs it."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(request["path"])
    method = program.load_method(request["method"])
    method.execute([_tensor(one) for one in request["inputs"]])


RUNTIMES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], None]]] = {
    "ONNX Runtime": (("numpy", "onnxruntime"), run_onnxruntime),
    "OpenVINO": (("numpy", "openvino"), run_openvino),
    "AOTInductor": (("torch", "torch._inductor"), run_aotinductor),
    "ExecuTorch": (("torch", "executorch.runtime"), run_executorch),
}


def limit(seconds: int) -> None:
    """Ends this process with SIGXCPU after so many further seconds of processor time; nothing on
    Windows.
    """
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = int(time.process_time()) + seconds
    if hard == resource.RLIM_INFINITY or soft < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until there are no more."""

    def answer(text: str) -> None:
        answers.write(text.encode() + b"\n")
        answers.flush()

    sys.path[:] = pickle.load(requests)
    answer("ready")
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        packages, run = RUNTIMES[request["runtime"]]
        try:
            for package in packages:
                __import__(package)
        except Exception as error:
            if "path" in request:
                answer(f"raised {type(error).__name__}")
            continue
        if "path" not in request:
            continue
        limit(request["seconds"])
        answer("opening")
        try:
            run(request)
        except Exception as error:
            answer(f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            answer("done")


def main() -> None:
    """Serves the process that started this one. What native code prints goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()

"""The process in which fresh files of a runtime are opened and run first.

:mod:`onlooker.targets.first_run` starts this file as a program of its own. It imports nothing of
onlooker, and torch only for the runtimes that need it: ONNX Runtime is ready after a tenth of a
second, torch after two.

It reads pickled values, one after the other: the places where packages are, then requests. It
answers a request with ``opening`` when the runtime is imported, and ``done`` or ``raised`` at its end.

A file that the request asks it to keep stays open: then the answer is ``kept``. What is opened so is run
again for each request with other inputs, and the answer is ``gives`` with the length of the pickled results,
which follow. A request without anything closes all files.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import pickle
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
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
#: so many seconds lie between two times that pages of weights are given back
_SECONDS = 0.005
#: what a process has mapped, where Linux says it
_MAPS = Path("/proc/self/maps")
#: of a file, and never written to: addresses from and to, in hexadecimal
_OF_A_FILE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r--. \S+ \S+ [1-9]\d* +/", re.MULTILINE)
#: the types of outputs that numpy has, in the words of each runtime
_INTEGERS = ("8", "16", "32", "64")
_PLAIN_ONNX = {
    "tensor(bool)",
    *(f"tensor({name})" for name in ("float16", "float", "double")),
    *(f"tensor({name}{bits})" for name in ("int", "uint") for bits in _INTEGERS),
}
_PLAIN_OPENVINO = {"boolean", "f16", "f32", "f64", *(a + b for a in "iu" for b in _INTEGERS)}
#: an output: its dtype, its shape and its bytes
Output = tuple[str, tuple[int, ...], bytes]
#: runs what is open on other inputs
Run = Callable[["Sequence[Input]"], "list[Output]"]


def _array(dtype: str, shape: tuple[int, ...], content: bytes) -> Any:
    """An array of numpy; of integers as wide as the elements where numpy lacks the dtype."""
    import numpy

    bits = {"bfloat16": "uint16"}.get(dtype, "uint8" if dtype.startswith("float8") else dtype)
    return numpy.frombuffer(content, dtype=bits).reshape(shape)


def _output(array: Any) -> Output:
    return array.dtype.name, array.shape, array.tobytes()


def run_onnxruntime(request: Mapping[str, Any]) -> Run | None:
    """Opens a model of ONNX, and runs it; what runs it again, where numpy has the types of its outputs."""
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
    known = [value.name for value in session.get_inputs()]
    names = request.get("outputs") or [value.name for value in session.get_outputs()]

    def run(inputs: Sequence[Input]) -> list[Any]:
        given: dict[str, Any] = {}
        for name, dtype, shape, _, content in inputs:
            array = _array(dtype, shape, content)
            if name in known and dtype in _ONNX_TYPES:
                number = _ONNX_TYPES[dtype]
                given[name] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number)
            elif name in known:
                given[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        return [*session.run_with_ort_values(names, given)]

    run(request["inputs"])
    if not _PLAIN_ONNX.issuperset(value.type for value in session.get_outputs()):
        return None
    return lambda inputs: [_output(value.numpy()) for value in run(inputs)]


@contextlib.contextmanager
def pages_given_back(model: Any) -> Iterator[None]:
    """Inside the block pages of the file in which the constants of a model of OpenVINO stand are given back,
    again and again. The model keeps the file mapped. Nothing happens where constants are in memory.

    The compiler packs one weight of the file after the other, and each page that it read would stay
    resident until the system needs memory: the model would be in memory twice.
    """
    ranges = _ranges_of(model)
    if not ranges:
        yield
        return
    done = threading.Event()
    library = ctypes.CDLL(None)

    def give_back() -> None:
        is_last = False
        while not is_last:
            is_last = done.wait(_SECONDS)
            for start, end in ranges:
                library.madvise(
                    ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED
                )

    thread = threading.Thread(target=give_back, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _ranges_of(model: Any) -> set[tuple[int, int]]:
    """The addresses of the mapped files in which constants of a model lie."""
    if not (_MAPS.exists() and hasattr(mmap, "MADV_DONTNEED")):
        return set()
    found = _OF_A_FILE.findall(_MAPS.read_text(errors="replace"))
    files = [(int(start, 16), int(end, 16)) for start, end in found]
    nodes = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    places = {node.data.__array_interface__["data"][0] for node in nodes}
    return {(start, end) for start, end in files if any(start <= place < end for place in places)}


def run_openvino(request: Mapping[str, Any]) -> Run | None:
    """Compiles a model of OpenVINO, and runs it; what runs it again, as for ONNX."""
    import openvino

    core = openvino.Core()
    model = core.read_model(request["path"], request["weights"])
    with pages_given_back(model):
        compiled = core.compile_model(model, request["device"], request["properties"])
    asked = compiled.create_infer_request()
    ports = {name: port for port in compiled.inputs for name in port.get_names()}

    def run(inputs: Sequence[Input]) -> None:
        for name, dtype, shape, _, content in inputs:
            if name not in ports:
                continue
            array = _array(dtype, shape, content)
            if dtype in _OPENVINO_TYPES:
                kind = getattr(openvino.Type, _OPENVINO_TYPES[dtype])
                tensor = openvino.Tensor(array, openvino.Shape(shape), kind)
            else:
                tensor = openvino.Tensor(array)
            asked.set_tensor(ports[name], tensor)
        asked.infer()

    def run_again(inputs: Sequence[Input]) -> list[Output]:
        run(inputs)
        return [_output(asked.get_tensor(port).data) for port in compiled.outputs]

    run(request["inputs"])
    types = (port.get_element_type().to_string() for port in compiled.outputs)
    return run_again if _PLAIN_OPENVINO.issuperset(types) else None


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


RUNTIMES: dict[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Run | None]]] = {
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
    kept: dict[str, Run] = {}

    def answer(text: str, content: bytes = b"") -> None:
        answers.write(text.encode() + b"\n" + content)
        answers.flush()

    sys.path[:] = pickle.load(requests)
    answer("ready")
    while True:
        try:
            request = pickle.load(requests)
        except EOFError:
            return
        if not request:
            kept.clear()
        elif "again" in request:
            _run_again(request, kept, answer)
        else:
            _open(request, kept, answer)


def _open(request: Mapping[str, Any], kept: dict[str, Run], answer: Callable[[str], None]) -> None:
    """Imports the runtime of a request, and opens and runs its file where it has one."""
    packages, run = RUNTIMES[request["runtime"]]
    try:
        for package in packages:
            __import__(package)
    except Exception as error:
        if "path" in request:
            answer(f"raised {type(error).__name__}")
        return
    if "path" not in request:
        return
    limit(request["seconds"])
    answer("opening")
    try:
        opened = run(request)
    except Exception as error:
        answer(f"raised {_said(error)}")
        return
    if request.get("keep") and opened is not None:
        kept[request["path"]] = opened
        answer("kept")
    else:
        answer("done")


def _run_again(
    request: Mapping[str, Any], kept: Mapping[str, Run], answer: Callable[..., None]
) -> None:
    """Runs what is open on the inputs of a request, and gives its results."""
    run = kept.get(request["again"])
    if run is None:
        answer("unknown")
        return
    limit(request["seconds"])
    answer("opening")
    try:
        content = pickle.dumps(run(request["inputs"]))
    except Exception as error:
        answer(f"raised {_said(error)}")
    else:
        answer(f"gives {len(content)}", content)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


def main() -> None:
    """Serves the process that started this one. What native code prints goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
        # a child of a runtime would keep the pipe open when this process dies, and nobody would see its end
        os.register_at_fork(after_in_child=functools.partial(os.close, answers.fileno()))
    serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()

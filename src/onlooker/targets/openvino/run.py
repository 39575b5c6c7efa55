"""Runs a compiled model of OpenVINO on tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch

from ..results import Runner, as_the_model_gives

__all__ = ["openvino_runner"]

#: by dtype of torch that numpy lacks: integers of its size, and the type of OpenVINO
_BITS = {
    torch.bfloat16: (torch.int16, "bf16"),
    torch.float8_e4m3fn: (torch.uint8, "f8e4m3"),
    torch.float8_e5m2: (torch.uint8, "f8e5m2"),
}
_BY_TYPE = {name: (bits, dtype) for dtype, (bits, name) in _BITS.items()}


def openvino_runner(
    compiled: Any,
    labels: Sequence[str],
    count: int,
    are_ints: Sequence[bool] = (),
    are_floats: Sequence[bool] = (),
) -> Runner:
    """A function of the inputs, in the order of ``labels``, that gives the first ``count`` outputs.

    Inputs which the model does not have are left out. A contiguous tensor on the CPU is shared with
    OpenVINO for the time of the run; the results are copies. A further output says whether the
    assertions of the model hold. Several threads may run it at once. A call that OpenVINO refuses,
    or for which an assertion fails, is a RuntimeError.
    """
    ports = {name: index for index, port in enumerate(compiled.inputs) for name in port.names}
    used = [(position, ports[name]) for position, name in enumerate(labels) if name in ports]
    readers = [_reader(port.get_element_type().to_string()) for port in compiled.outputs[:count]]
    is_asserting = len(compiled.outputs) > count
    idle: list[Any] = []

    def start(inputs: Sequence[Any]) -> list[Any]:
        try:
            request = idle.pop()
        except IndexError:
            request = compiled.create_infer_request()
        given = [_value(inputs[position]) for position, _ in used]  # they own what OpenVINO reads
        for (_, index), value in zip(used, given, strict=True):
            request.set_input_tensor(index, value)
        _infer(request)
        if is_asserting and not request.get_output_tensor(count).data.all():
            raise RuntimeError("an assertion of the model does not hold for this call")
        results = [reader(request.get_output_tensor(index)) for index, reader in enumerate(readers)]
        idle.append(request)
        return results

    return as_the_model_gives(start, are_ints, are_floats)


def _infer(request: Any) -> None:
    """Runs the request; the first lines of an error of OpenVINO say where in its source, the last
    ones what.
    """
    try:
        request.infer()
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith("Exception from ")]
        raise RuntimeError(" ".join(told)[:500]) from error


def _value(value: Any) -> Any:
    """The input as a tensor of OpenVINO, which shares its memory and keeps it alive."""
    import openvino

    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    tensor = tensor.detach().cpu().resolve_neg().contiguous()
    if tensor.dtype not in _BITS:
        return openvino.Tensor(tensor.numpy(), shared_memory=True)
    bits, name = _BITS[tensor.dtype]
    return openvino.Tensor(
        tensor.view(bits).numpy(), openvino.Shape(tensor.shape), getattr(openvino.Type, name)
    )


def _reader(kind: str) -> Callable[[Any], torch.Tensor]:
    """How an output of this type is read."""
    if kind not in _BY_TYPE:
        return lambda tensor: torch.from_numpy(numpy.array(tensor.data))
    bits, dtype = _BY_TYPE[kind]
    return lambda tensor: _copied(tensor.data, bits).view(dtype)


def _copied(data: Any, bits: torch.dtype) -> torch.Tensor:
    """A copy whose elements are integers: numpy has no name for what they are."""
    name = str(bits).removeprefix("torch.")
    return torch.from_numpy(numpy.array(data, order="C").view(name))

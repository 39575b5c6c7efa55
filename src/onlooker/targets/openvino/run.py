"""Runs a compiled model of OpenVINO on tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy
import torch

from ..results import Runner, as_the_model_gives, in_plain_memory
from .states import State

__all__ = ["asserted", "openvino_runner"]

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
    states: Sequence[State] = (),
) -> Runner:
    """A function of the inputs, in the order of ``labels``, that gives the first ``count`` outputs.

    ``states`` are inputs and outputs of the graph that the model keeps inside: they are set before
    the run, where any of them has elements, and else as they are before the first call of all.
    Afterwards they are read.

    Inputs which the model does not have are left out. A contiguous tensor on the CPU is shared with
    OpenVINO for the time of the run; the results are copies. A further output says whether the
    assertions of the model hold. Several threads may run it at once. A call that OpenVINO refuses,
    or for which an assertion fails, is a RuntimeError.
    """
    ports = {name: index for index, port in enumerate(compiled.inputs) for name in port.names}
    used = [(position, ports[name]) for position, name in enumerate(labels) if name in ports]
    n_ports = count - len(states)
    readers = [_reader(port.get_element_type().to_string()) for port in compiled.outputs[:n_ports]]
    is_asserting = len(compiled.outputs) > n_ports
    kept = {state.output: state.name for state in states}
    idle: list[Any] = []

    def start(inputs: Sequence[Any]) -> list[Any]:
        try:
            request = idle.pop()
        except IndexError:
            request = compiled.create_infer_request()
        given = [_value(inputs[position]) for position, _ in used]  # they own what OpenVINO reads
        for (_, index), value in zip(used, given, strict=True):
            request.set_input_tensor(index, value)
        owned = _set_states(request, {state.name: inputs[state.input] for state in states})
        _infer(request)
        del owned
        if is_asserting:
            asserted([request.get_output_tensor(n_ports).data], 0)
        results = [reader(request.get_output_tensor(index)) for index, reader in enumerate(readers)]
        results = _with_states(request, results, kept)
        idle.append(request)
        return results

    return as_the_model_gives(start, are_ints, are_floats)


def asserted(results: Sequence[Any], count: int) -> list[Any]:
    """The first results of a run; a further one says whether the assertions of the model hold.

    :raises RuntimeError: where they do not
    """
    if not all(result.all() for result in results[count:]):
        raise RuntimeError("an assertion of the model does not hold for this call")
    return list(results[:count])


def _set_states(request: Any, values: Mapping[str, torch.Tensor]) -> list[Any]:
    """Gives the states their values, by name; the tensors that OpenVINO reads in the run."""
    if not values:
        return []
    request.reset_state()
    if not any(value.numel() for value in values.values()):
        return []
    given = []
    for state in request.query_state():
        state.state = _value(values[state.name])
        given.append(state.state)
    return given


def _with_states(request: Any, results: list[Any], kept: Mapping[int, str]) -> list[Any]:
    """The results with the states among them, ``kept`` by their positions."""
    if not kept:
        return results
    states = {state.name: state.state for state in request.query_state()}
    given = iter(results)
    return [
        _reader(states[kept[at]].get_element_type().to_string())(states[kept[at]])
        if at in kept
        else next(given)
        for at in range(len(results) + len(kept))
    ]


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

    tensor = in_plain_memory(value)
    if tensor.dtype not in _BITS:
        return openvino.Tensor(tensor.numpy(), shared_memory=True)
    bits, name = _BITS[tensor.dtype]
    return openvino.Tensor(
        tensor.view(bits).numpy(), openvino.Shape(tensor.shape), getattr(openvino.Type, name)
    )


def _reader(kind: str) -> Callable[[Any], torch.Tensor]:
    """A function that reads an output of this type."""
    if kind not in _BY_TYPE:
        return lambda tensor: torch.from_numpy(numpy.array(tensor.data))
    bits, dtype = _BY_TYPE[kind]
    return lambda tensor: _copied(tensor.data, bits).view(dtype)


def _copied(data: Any, bits: torch.dtype) -> torch.Tensor:
    """A copy whose elements are integers: numpy has no name for what they are."""
    name = str(bits).removeprefix("torch.")
    return torch.from_numpy(numpy.array(data, order="C").view(name))

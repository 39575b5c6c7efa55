"""Runs a session of ONNX Runtime on tensors of torch: what lies on the CPU goes in and comes out
without a copy.

numpy shares memory with torch and with ONNX Runtime, and is the shorter way (some microseconds a
tensor less than DLPack, measured with ONNX Runtime 1.31). Dtypes that numpy lacks, bfloat16 above
all, go by DLPack. Binding inputs and outputs (``run_with_iobinding``) saves no copy on the CPU and
takes longer: 340 for 160 microseconds for a cache of 16 layers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack
from torch.utils.dlpack import to_dlpack as to_dlpack  # type: ignore[attr-defined]  # documented, not in __all__

from ...results import Runner, as_the_model_gives, in_plain_memory

__all__ = ["ort_runner"]

#: the types of ONNX that numpy has
_NUMPY = frozenset(
    f"tensor({name})"
    for name in (
        *("bool", "float16", "float", "double", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    )
)
#: what comes out as an array that torch takes: ONNX Runtime names uint64 by a type of C that torch
#: does not know
_NUMPY_OUT = _NUMPY - {"tensor(uint64)"}
#: by dtype of torch the number of the type in ONNX, where neither numpy nor DLPack has it
_FLOAT8 = {
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
}
_FLOAT8_OUT = {
    "tensor(float8e4m3fn)": torch.float8_e4m3fn,
    "tensor(float8e4m3fnuz)": torch.float8_e4m3fnuz,
    "tensor(float8e5m2)": torch.float8_e5m2,
    "tensor(float8e5m2fnuz)": torch.float8_e5m2fnuz,
}


def ort_runner(
    session: Any,
    labels: Sequence[str],
    names: Sequence[str],
    are_ints: Sequence[bool] = (),
    are_floats: Sequence[bool] = (),
    are_complex: Sequence[bool] = (),
) -> Runner:
    """A function of the inputs, in the order of ``labels``, that gives the outputs called
    ``names``.

    Inputs which the session does not have are left out. A tensor that is contiguous and lies on the
    CPU is shared with the session for the time of the run; the results are memory of ONNX Runtime
    that lives as long as they do, and no other run writes there. Where inputs lie on another
    device, the results are moved to the first one's. ``are_ints`` says which outputs are ints:
    these come as Python ints, as ints go in; ``are_floats`` the same of floats. Complex
    numbers are pairs on a last axis there, as ``are_complex`` says of outputs. A call that ONNX Runtime refuses is a
    RuntimeError.
    """
    types = {value.name: value.type for value in session.get_inputs()}
    used = [(position, label) for position, label in enumerate(labels) if label in types]
    kinds = {value.name: value.type for value in session.get_outputs()}
    plain = _NUMPY.issuperset(types.values()) and _NUMPY_OUT.issuperset(
        kinds[name] for name in names
    )
    start = _by_numpy(session, used, names) if plain else _by_dlpack(session, used, names, kinds)
    if any(are_complex):
        start = _without_pairs(start, are_complex)
    return as_the_model_gives(start, are_ints, are_floats)


def _without_pairs(start: Runner, are_complex: Sequence[bool]) -> Runner:
    """The runner, which gives complex numbers for the pairs of ONNX Runtime."""

    def run(inputs: Sequence[Any]) -> list[Any]:
        return [
            torch.view_as_complex(value) if is_complex else value
            for value, is_complex in zip(start(inputs), are_complex, strict=True)
        ]

    return run


def _by_numpy(session: Any, used: Sequence[tuple[int, str]], names: Sequence[str]) -> Runner:
    outputs, run, from_numpy = list(names), session.run, torch.from_numpy

    def start(inputs: Sequence[Any]) -> list[Any]:
        found = run(outputs, {label: _array(inputs[position]) for position, label in used})
        return [from_numpy(value) for value in found]

    return start


def _array(value: Any) -> Any:
    """The input as an array that shares its memory, where that is on the CPU."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return tensor.numpy(force=True) if not tensor.is_complex() else _pairs(tensor).numpy()


def _pairs(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.detach().cpu().resolve_conj())


def _by_dlpack(
    session: Any, used: Sequence[tuple[int, str]], names: Sequence[str], kinds: dict[str, str]
) -> Runner:
    outputs, readers = list(names), [_reader(kinds[name]) for name in names]

    def start(inputs: Sequence[Any]) -> list[Any]:
        found = session.run_with_ort_values(
            outputs, {label: _value(inputs[position]) for position, label in used}
        )
        return [reader(value) for reader, value in zip(readers, found, strict=True)]

    return start


def _value(value: Any) -> Any:
    """The input as a value of ONNX Runtime, which keeps the tensor alive."""
    from onnxruntime import OrtValue

    tensor = in_plain_memory(value)
    if tensor.is_complex():
        tensor = in_plain_memory(_pairs(tensor))
    if tensor.dtype in _FLOAT8:
        return OrtValue.ortvalue_from_numpy_with_onnx_type(
            tensor.view(torch.uint8).numpy(), _FLOAT8[tensor.dtype]
        )
    if tensor.dtype is torch.bool:  # in DLPack ONNX Runtime takes a bool for a byte
        return OrtValue.ortvalue_from_numpy(tensor.numpy())
    return OrtValue.from_dlpack(to_dlpack(tensor))


def _reader(kind: str) -> Callable[[Any], torch.Tensor]:
    """A function that reads an output of this type."""
    if kind == "tensor(bool)":
        return lambda value: from_dlpack(value.__dlpack__()).view(torch.bool)
    if kind in _FLOAT8_OUT:
        dtype = _FLOAT8_OUT[kind]
        return lambda value: _bytes_of(value).view(dtype)
    return lambda value: from_dlpack(value.__dlpack__())


def _bytes_of(value: Any) -> torch.Tensor:
    """A copy of a value on the CPU whose elements are bytes: numpy has no name for some of them."""
    shape = value.shape()
    content = bytearray(ctypes.string_at(value.data_ptr(), math.prod(shape)))
    if not content:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.frombuffer(content, dtype=torch.uint8).reshape(shape)

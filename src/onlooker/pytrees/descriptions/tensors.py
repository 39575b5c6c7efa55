"""Tensors and arrays in one word: ``T1s2x6``, ``A7r1``, ``T1s2[4.0,5.0:A4.5]``."""

from __future__ import annotations

import sys
from typing import Any

import torch

from ...torch_internals.fake_tensors import FakeTensor

__all__ = ["array_text", "element_code", "is_array", "ort_value_text", "tensor_text"]

#: element types as the ONNX format numbers them
_CODES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "str": 8,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "float4_e2m1fn": 23,
    "float4_e2m1fn_x2": 23,
    "float8_e8m0fnu": 24,
    "uint2": 25,
    "int2": 26,
}


def element_code(dtype: Any) -> int | str:
    """The number of an element type in the ONNX format; its name where ONNX has none.

    >>> element_code(torch.float32), element_code(torch.bfloat16), element_code(torch.qint8)
    (1, 16, 'qint8')
    """
    name = str(dtype).removeprefix("torch.")
    if name not in _CODES and getattr(dtype, "kind", "") in ("U", "S", "O", "T"):
        return _CODES["str"]
    return _CODES.get(name, name)


def is_array(value: Any) -> bool:
    """True for an array or a scalar of numpy, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def tensor_text(
    value: torch.Tensor, with_shape: bool, with_min_max: bool, with_device: bool
) -> str:
    """A tensor of torch: ``T``, ``F`` for a fake one, after ``C`` or ``G`` for its device.

    >>> tensor_text(torch.zeros(2, 6), True, False, False)
    'T1s2x6'
    """
    fake = isinstance(value, FakeTensor)
    device = ("C" if value.device.type == "cpu" else "G") if with_device else ""
    text = (
        f"{device}{'F' if fake else 'T'}{element_code(value.dtype)}{_size(value.shape, with_shape)}"
    )
    return text + _tensor_values(value) if with_min_max and not fake else text


def array_text(value: Any, with_shape: bool, with_min_max: bool) -> str:
    """An array of numpy, or one of its scalars as an array without dimension."""
    text = f"A{element_code(value.dtype)}{_size(value.shape, with_shape)}"
    return text + _array_values(value) if with_min_max else text


def ort_value_text(value: Any, with_shape: bool, with_min_max: bool, with_device: bool) -> str:
    """A value of ONNX Runtime, which is not read unless its extremes are asked for."""
    if not value.has_value():
        return "OV(<novalue>)"
    if not value.is_tensor():
        return "OV(NOTENSOR)"
    device = ("C" if value.device_name().lower() == "cpu" else "G") if with_device else ""
    if with_min_max:
        try:
            return f"{device}OV({array_text(value.numpy(), with_shape, True)})"
        except Exception:  # numpy has no such element type: the shape is all there is to say
            pass
    return f"{device}OV{value.element_type()}{_size(tuple(value.shape()), with_shape)}"


def _size(shape: Any, with_shape: bool) -> str:
    return f"s{'x'.join(map(str, shape))}" if with_shape else f"r{len(shape)}"


def _tensor_values(value: torch.Tensor) -> str:
    """The extremes and the mean; nothing where the values cannot be read (meta, nested, ...)."""
    try:
        flat = value.detach().reshape(-1)
        if value.dim() == 0:
            return f"={value.detach().item()}"
        if flat.numel() == 0:
            return "[empty]"
        return _values(*_readable(flat))
    except Exception:
        return ""


def _readable(flat: torch.Tensor) -> tuple[list[Any], int]:
    """``[min, max, mean]`` of what is a number, and the count of what is not."""
    if flat.is_complex():
        flat = flat.to(torch.complex128).abs()
    elif flat.is_floating_point():
        flat = flat.to(torch.float64)
    elif flat.dtype in (torch.uint16, torch.uint32):
        flat = flat.to(torch.int64)
    elif flat.dtype == torch.uint64:  # torch has no min for it
        found = [int(x) for x in flat.tolist()]
        return [min(found), max(found), sum(found) / len(found)], 0
    missing = flat.isnan()
    n_missing = int(missing.sum())
    kept = flat[~missing] if n_missing else flat
    if kept.numel() == 0:
        return [], n_missing
    return [kept.min().item(), kept.max().item(), kept.to(torch.float64).mean().item()], n_missing


def _array_values(value: Any) -> str:
    import numpy

    try:
        flat = numpy.asarray(value).ravel()
        if value.ndim == 0:
            return f"={value}"
        if flat.size == 0:
            return "[empty]"
        if flat.dtype.kind == "c":
            flat = numpy.abs(flat)
        missing = numpy.isnan(flat)
        n_missing = int(missing.sum())
        kept = flat[~missing] if n_missing else flat
        if kept.size == 0:
            return _values([], n_missing)
        return _values([kept.min(), kept.max(), kept.astype(numpy.float64).mean()], n_missing)
    except Exception:
        return ""


def _values(found: list[Any], n_missing: int) -> str:
    missing = f"N{n_missing}nans" if n_missing else ""
    return f"[{found[0]},{found[1]}:A{found[2]}{missing}]" if found else f"[{missing}]"

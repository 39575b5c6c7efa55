"""The values of a tensor in a dtype that torch computes with: several it can hold, and hardly do
anything else.
"""

from __future__ import annotations

from typing import Any

import torch

from .unusual import unusual

__all__ = [
    "altered",
    "as_dtype",
    "as_numbers",
    "as_numbers_dtype",
    "has_floats",
    "is_same",
    "large_int",
    "other_int",
]


def _of_torch(names: dict[str, torch.dtype]) -> dict[torch.dtype, torch.dtype]:
    """The dtypes of these names that this torch has."""
    known = {name: getattr(torch, name, None) for name in names}
    return {dtype: names[name] for name, dtype in known.items() if dtype is not None}


#: dtypes and a wider one that has each of their values
_WIDER = _of_torch(
    {
        **dict.fromkeys(
            ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), torch.float32
        ),
        "float8_e8m0fnu": torch.float32,
        **dict.fromkeys(("complex32", "bcomplex32"), torch.complex64),
        **dict.fromkeys(("uint16", "uint32"), torch.int64),
    }
)
#: dtypes that no other one has the values of, or that hold two numbers in a byte: they count as the
#: ints of their bits
_BITS = _of_torch(
    {
        "uint64": torch.int64,
        **dict.fromkeys(
            ("float4_e2m1fn_x2", "bits8", "bits1x8", "bits2x4", "bits4x2"), torch.uint8
        ),
        "bits16": torch.int16,
    }
)


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """The values in a dtype that computes; the tensor itself where its own does.

    No two values become one. Where torch has no dtype for the values (packed floats, uint64), it is
    the ints of their bits: those of an uint64 are its values up to 2**63.

    >>> as_numbers(torch.tensor([0.5, 2.0]).to(torch.float8_e5m2)), as_numbers(torch.ones(1).to(torch.uint16))
    (tensor([0.5000, 2.0000]), tensor([1]))
    """
    bits = _BITS.get(tensor.dtype)
    if bits is not None:
        return tensor.view(bits)
    if tensor.is_quantized:
        return tensor.dequantize()
    wider = _WIDER.get(tensor.dtype)
    return tensor if wider is None else tensor.to(wider)


def as_numbers_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of :func:`as_numbers` of a tensor of this dtype."""
    return _BITS.get(dtype) or _WIDER.get(dtype) or dtype


def as_dtype(numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this dtype of such numbers: the way back, where it rounds if it must.

    >>> as_dtype(as_numbers(torch.tensor([7]).to(torch.uint64)), torch.uint64)
    tensor([7], dtype=torch.uint64)
    """
    bits = _BITS.get(dtype)
    return numbers.to(dtype) if bits is None else numbers.to(bits).view(dtype)


def altered(tensor: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same dtype in the place of floats, near to them.

    >>> altered(torch.tensor([1.0, 2.0]))
    tensor([0.6250, 1.1250])
    """
    return as_dtype(as_numbers(tensor) * 0.5 + 0.125, tensor.dtype)


def is_same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True for two dense tensors of the same shape and values beyond doubt, found at little cost;
    NaN is in doubt.

    >>> is_same(torch.tensor([1.0]), torch.tensor([1.0])), is_same(torch.tensor([1.0]), torch.tensor([1]))
    (True, False)
    """
    if unusual(left) is not None or unusual(right) is not None:
        return False
    alike = (left.dtype, left.shape, left.device) == (right.dtype, right.shape, right.device)
    return alike and torch.equal(as_numbers(left), as_numbers(right))


def other_int(tensor: torch.Tensor, low: int, high: int) -> int | None:
    """Returns an int that is not between two others; None where there is none, or no values are at
    hand.

    >>> other_int(torch.tensor([3, -1, 9]), 0, 9)
    -1
    """
    if tensor.is_meta or not tensor.numel():
        return None
    least, greatest = (int(end) for end in tensor.aminmax())
    return least if least < low else greatest if greatest > high else None


def large_int(value: Any, power: int) -> int | None:
    """Returns an int of a tensor with 32 or 64 bits each, or an int of Python, that is not below
    ``2**power``, or below ``-2**power``; None where there is none.

    >>> large_int(torch.tensor([2**31, 5]), 31), large_int(-(2**31) - 1, 31), large_int(2.0**40, 31)
    (2147483648, -2147483649, None)
    """
    low, high = -(2**power), 2**power - 1
    if type(value) is int:
        return None if low <= value <= high else value
    if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int32, torch.int64):
        return None
    return other_int(value, low, high)


def has_floats(value: Any) -> bool:
    """True for a tensor of floats."""
    return isinstance(value, torch.Tensor) and value.is_floating_point()

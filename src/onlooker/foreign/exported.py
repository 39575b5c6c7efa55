"""An exported model of another maker: what its file declares, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..pytrees.open import dtype_of
from .contents import Contents

__all__ = ["Declared", "Exported", "Port"]

#: the dtypes of torch, by the names that ONNX Runtime and OpenVINO have for them
_DTYPES = {
    **{"int64": "int64", "int32": "int32", "int16": "int16", "int8": "int8", "uint8": "uint8"},
    **{"i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8"},
    **{"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"},
    **{"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16"},
    **{"bool": "bool", "boolean": "bool"},
}


@dataclass(frozen=True, slots=True)
class Declared:
    """The name of one axis in a file, and the sizes that the file allows.

    ``low == high`` for a size that is a constant; ``name`` is empty where the file has none.

    >>> str(Declared("", 2, 2)), str(Declared("batch")), str(Declared("s77", 2, 8))
    ('2', 'batch', 's77 in 2..8')
    """

    name: str = ""
    low: int = 0
    high: int | None = None

    @property
    def is_constant(self) -> bool:
        """True for a size that never changes."""
        return self.low == self.high

    def allows(self, size: int) -> bool:
        """True for a size that the file takes, by its own words."""
        return self.low <= size and (self.high is None or size <= self.high)

    def __str__(self) -> str:
        if self.is_constant:
            return str(self.low)
        name = self.name or "any"
        if self.high is None and self.low <= 1:
            return name
        return f"{name} in {self.low}..{'' if self.high is None else self.high}"


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a file. ``shape`` is None where the file does not tell it, ``dtype``
    is empty then.
    """

    name: str
    dtype: str = ""
    shape: tuple[Declared, ...] | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """A file that can be called: ``run`` takes a tensor for each input by its name, and gives the
    outputs in their order.

    ``kind`` is what the file is, in words; ``constants`` are inputs whose value stands in the file.
    ``contents`` says what its graph shows, and is None for a file that does not show its graph.
    """

    kind: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    run: Callable[[Mapping[str, Any]], Sequence[Any]]
    constants: tuple[str, ...] = ()
    contents: Contents | None = None

    def input(self, name: str) -> Port:
        """The input called ``name``."""
        return next(port for port in self.inputs if port.name == name)


def dtype_named(name: str) -> str:
    """A dtype as torch prints it, by the name that a runtime has for it; empty for an unknown one.

    >>> dtype_named("tensor(float)"), dtype_named("i64"), dtype_named("string")
    ('torch.float32', 'torch.int64', '')
    """
    plain = name.removeprefix("tensor(").removesuffix(")")
    return f"torch.{_DTYPES[plain]}" if plain in _DTYPES else ""


def tensor_for(value: Any, port: Port) -> torch.Tensor:
    """An input as the file declares it: a number becomes a tensor, another dtype is cast."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    tensor = tensor.detach()
    return tensor.to(dtype_of(port.dtype)) if port.dtype else tensor

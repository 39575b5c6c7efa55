"""Leaves without their values: tensors by shape, dtype and device, constants, objects."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .path import Path

__all__ = [
    "Axis",
    "AxisSizes",
    "Constant",
    "ConstantSpec",
    "OpaqueSpec",
    "Spec",
    "TensorSpec",
    "axis_sizes",
]

Constant = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor: its shape, and its dtype and device as torch prints them.

    >>> str(TensorSpec((2, 7), "torch.int64", "cpu"))
    'int64[2, 7]'
    """

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.dtype.removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class ConstantSpec:
    """A bool, int, float, str or None.

    ``1``, ``1.0`` and ``True`` are three constants.
    """

    value: Constant

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConstantSpec) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, str]:
        return type(self.value).__name__, str(self)

    @property
    def is_int(self) -> bool:
        """True for an int that is neither a bool nor a member of an Enum: such a leaf counts as an axis."""
        return isinstance(self.value, int) and not isinstance(self.value, (bool, enum.Enum))

    @property
    def is_float(self) -> bool:
        """True for a float, and for a scalar of numpy that is one: where it changes, it may be
        an input of a graph.
        """
        return isinstance(self.value, float)

    def __str__(self) -> str:
        try:
            return repr(self.value)
        except ValueError:  # an int of more digits than Python writes
            return hex(self.value) if isinstance(self.value, int) else ""


@dataclass(frozen=True, slots=True)
class OpaqueSpec:
    """An object that could not be opened: the name of its class, and a text that tells it from
    others.

    ``identity`` is equal for arguments that are the same to a model
    (:mod:`onlooker.pytrees.identity`); it is empty where nobody compares, as in the results of a
    call.
    """

    kind: str
    identity: str = ""

    def __str__(self) -> str:
        is_said = self.identity and not self.identity.startswith(("object ", "state "))
        return f"<{self.kind}: {self.identity}>" if is_said else f"<{self.kind}>"

    def beside(self, other: object) -> str:
        """This one in words, where it came instead of ``other``."""
        return f"another {self}" if str(self) == str(other) else str(self)


Spec = TensorSpec | ConstantSpec | OpaqueSpec


@dataclass(frozen=True, slots=True)
class Axis:
    """Dimension ``dim`` of the tensor at ``path``; ``dim`` is None for an int leaf.

    >>> from onlooker.core.path import Name
    >>> str(Axis(Path((Name("input_ids"),)), 1))
    'input_ids.shape[1]'
    """

    path: Path
    dim: int | None

    def __str__(self) -> str:
        return self.path.code() if self.dim is None else f"{self.path.code()}.shape[{self.dim}]"


AxisSizes = Mapping[Axis, int]


def axis_sizes(leaves: Iterable[tuple[Path, object]]) -> dict[Axis, int]:
    """The size of every axis of a call, of which the leaves are values or specs; an int is an axis
    of its own.

    >>> from onlooker.core.path import Name
    >>> n, flag = Path((Name("n"),)), Path((Name("flag"),))
    >>> axis_sizes([(n, 3), (flag, True)]) == axis_sizes([(n, ConstantSpec(3))]) == {Axis(n, None): 3}
    True
    """
    sizes: dict[Axis, int] = {}
    for path, leaf in leaves:
        # asked of the class: an object that shall not be read may stand among the values
        shape = getattr(leaf, "shape", None) if hasattr(type(leaf), "shape") else None
        number = leaf.value if isinstance(leaf, ConstantSpec) else leaf
        if shape is not None:
            sizes.update({Axis(path, dim): int(size) for dim, size in enumerate(shape)})
        elif isinstance(number, int) and not isinstance(number, bool):
            sizes[Axis(path, None)] = number
    return sizes

"""Arrays that stand for weights which are not in memory: a writer writes the weights in their place.

A model of 7 billion weights is exported with weights of one small piece of memory: each begins 64 numbers
behind the one before it, and all overlap. The address of an array says for which weight it stands. A
converter moves and turns such arrays without reading them; so the array of 11008 by 4096 at the address of
``up.weight``, with the strides of a transpose, stands for that weight transposed. Integers that are made of
a weight are an array too, of memory that nobody touches, with the function that computes them.

``written(array)`` gives what an array stands for, one at a time, which is what every writer asks. An
array that stands for nothing is given as it is, so that writers do not tell the two apart.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from ..core.errors import ExportError, SavedFileError, UnsupportedError
from ..trace.graph import Graph

__all__ = [
    "StandIns",
    "bytes_of",
    "check_bytes",
    "check_found",
    "check_weights_are_here",
    "computed",
    "computed_tensor",
    "is_stand_in",
    "not_run",
    "only_written",
    "using",
    "weights_are_elsewhere",
    "weights_computed",
    "without_numbers",
    "written",
    "written_tensor",
]

#: what is made of weights and has fewer bytes is computed at once: files keep it inside of their graphs
_AT_ONCE = 2**16
#: so many bytes of a file are compared at once
_PIECE = 2**24
#: so many numbers lie between the beginnings of tensors in one piece of memory
_STEP = 64


@dataclass(frozen=True, slots=True)
class _StandIn:
    """An array or a tensor that lives as long as this does, and what is read in its place."""

    value: Any
    nbytes: int
    read: Callable[[], Any]
    name: str


class StandIns:
    """The arrays that stand for something, by the address of their first byte."""

    def __init__(self) -> None:
        self._known: dict[int, _StandIn] = {}
        self._pools: list[torch.Tensor] = []
        #: the weights that were written, and read again from the file
        self.checked: set[str] = set()

    def pool(self, sizes: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
        """Tensors of these numbers of elements in one piece of random memory, each a step behind the
        one before it.
        """
        length = max(sizes, default=0) + _STEP * len(sizes)
        memory = torch.empty(length, dtype=dtype).normal_(0, 0.02)
        self._pools.append(memory)
        return [memory[_STEP * at : _STEP * at + size] for at, size in enumerate(sizes)]

    def add(self, value: Any, read: Callable[[], Any], name: str) -> None:
        """Lets an array or a tensor stand for what ``read`` gives: as many numbers of its dtype, which are
        the weight of this ``name``, or are computed from it.
        """
        self._known[_address_of(value)] = _StandIn(value, int(value.nbytes), read, name)

    def find(self, value: Any) -> _StandIn | None:
        """What a whole array, however it is turned, stands for."""
        known = self._known.get(_address_of(value))
        is_whole = known is not None and known.nbytes == value.nbytes == _extent_of(value)
        return known if is_whole else None

    def is_lost(self, value: Any) -> bool:
        """True for an array in the memory of the weights that is none of them."""
        if not value.nbytes or self.find(value) is not None:
            return False
        address = _address_of(value)
        return any(0 <= address - one.data_ptr() < one.nbytes for one in self._pools)

    @contextlib.contextmanager
    def numbers_forgotten(self) -> Iterator[None]:
        """Inside the block the numbers of the weights are NaN, each with bits of its own: what is computed
        from them by mistake is NaN then, and no two weights are equal.
        """
        before = [memory.clone() for memory in self._pools]
        for memory in self._pools:
            size = memory.dtype.itemsize
            bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
            mantissa = round(-math.log2(torch.finfo(memory.dtype).eps))
            top = (1 << 8 * size - 1) - (1 << mantissa - 1)  # exponent and first bit are ones
            memory.view(bits).random_(1, 1 << mantissa - 1).bitwise_or_(top)
        try:
            yield
        finally:
            for memory, numbers in zip(self._pools, before, strict=True):
                memory.copy_(numbers)


_stand_ins: ContextVar[StandIns | None] = ContextVar("stand_ins", default=None)


@contextlib.contextmanager
def using(stand_ins: StandIns) -> Iterator[None]:
    """Inside the block these stand for the weights of graphs, and no graph is run."""
    token = _stand_ins.set(stand_ins)
    try:
        yield
    finally:
        _stand_ins.reset(token)


def weights_are_elsewhere() -> bool:
    """True inside of :func:`using`."""
    return _stand_ins.get() is not None


def without_numbers() -> contextlib.AbstractContextManager[None]:
    """Inside the block the numbers that stand for weights are NaN: see :meth:`StandIns.numbers_forgotten`."""
    known = _stand_ins.get()
    return contextlib.nullcontext() if known is None else known.numbers_forgotten()


def only_written(graphs: Sequence[Graph]) -> list[Graph]:
    """The graphs, which nobody can run while their weights are elsewhere."""
    return [replace(graph, run=not_run) if weights_are_elsewhere() else graph for graph in graphs]


def check_weights_are_here(graphs: Sequence[Graph], *, streamed: bool = False) -> None:
    """Passes for graphs whose weights are in memory; for those that are written weight by weight also
    where they are in the folder of :func:`using`.

    :raises UnsupportedError: ``weights-elsewhere``
    """
    is_there = streamed and weights_are_elsewhere()
    if not is_there and any(graph.run is not_run for graph in graphs):
        not_run(())


def not_run(inputs: Sequence[Any]) -> Sequence[Any]:
    """Stands for the runner of a graph whose weights are elsewhere.

    :raises UnsupportedError: ``weights-elsewhere``
    """
    raise UnsupportedError(
        "The weights of this graph are not in memory: it is written into a folder, and not run.",
        slug="weights-elsewhere",
        hint="Save it inside of the block, as a folder, and load that: onlooker.load(folder).",
    )


def is_stand_in(value: Any) -> bool:
    """True for an array or a tensor that stands for something else."""
    known = _stand_ins.get()
    return known is not None and known.find(value) is not None


def written(array: Any) -> Any:
    """What is written in the place of an array: the array itself, unless it stands for another one."""
    known = _stand_ins.get()
    found = None if known is None else known.find(array)
    if found is None:
        return array
    bits = numpy.dtype(f"uint{8 * array.dtype.itemsize}")
    numbers = bytes_of(found.read()).view(bits)
    turned = numpy.lib.stride_tricks.as_strided(
        numbers, array.shape, array.strides, writeable=False
    )
    return turned.view(array.dtype)


def written_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What is written in the place of a tensor: as :func:`written`."""
    known = _stand_ins.get()
    found = None if known is None else known.find(tensor)
    if found is None:
        return tensor.detach().cpu()
    numbers = torch.from_numpy(bytes_of(found.read())).view(tensor.dtype)
    return numbers.as_strided(tensor.shape, tensor.stride())


def check_bytes(path: Path, offset: int, value: Any) -> None:
    """Passes where a file has at this place what an array or a tensor stands for, which is read anew.

    :raises SavedFileError: ``weights-differ``
    """
    known = _stand_ins.get()
    found = None if known is None else known.find(value)
    if known is None or found is None:
        return
    anew = bytes_of(written_tensor(value) if isinstance(value, torch.Tensor) else written(value))
    if not _has_bytes(path, offset, anew):
        raise SavedFileError(
            f"{path} does not have the bytes of {found.name}.",
            slug="weights-differ",
            hint="Nothing may change the folder of the model meanwhile. Convert it again.",
        )
    known.checked.add(found.name)


def _has_bytes(path: Path, offset: int, wanted: Any) -> bool:
    """True for a file that has these bytes at this place."""
    with path.open("rb") as file:
        file.seek(offset)
        pieces = (wanted[at : at + _PIECE] for at in range(0, wanted.nbytes, _PIECE))
        return all(file.read(piece.nbytes) == piece.data for piece in pieces)


def bytes_of(value: Any) -> Any:
    """The bytes of an array or a tensor in the order of its numbers, without a copy where they stand so."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)


def computed(array: Any, shape: Sequence[int], dtype: Any, function: Callable[[Any], Any]) -> Any:
    """``function(array)``, of this shape and dtype: computed when it is written, where the array stands
    for a weight.
    """
    known = _stand_ins.get()
    nbytes = math.prod(shape) * numpy.dtype(dtype).itemsize
    found = None if known is None else known.find(array)
    if known is None or found is None or nbytes < _AT_ONCE:
        return function(written(array))
    untouched = numpy.zeros(shape, dtype)
    known.add(untouched, lambda: function(written(array)), found.name)
    return untouched


def computed_tensor(
    tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """``function(tensor)``: computed when it is written, where the tensor stands for a weight."""
    known = _stand_ins.get()
    found = None if known is None else known.find(tensor)
    if known is None or found is None:
        return function(tensor)
    made = function(tensor.to("meta"))
    if made.nbytes < _AT_ONCE:
        return function(written_tensor(tensor))
    untouched = torch.from_numpy(numpy.zeros(made.nbytes, numpy.uint8))
    whole = untouched.view(made.dtype).view(made.shape)
    known.add(whole, lambda: function(written_tensor(tensor)), found.name)
    return whole


def check_found(arrays: Iterable[Any], where: str) -> None:
    """Passes where all arrays of a converted graph stand for whole weights, or are not made of weights.

    :raises ExportError: ``weights-computed``
    """
    known = _stand_ins.get()
    if known is None:
        return
    for array in arrays:
        if not known.is_lost(array) and (known.find(array) is not None or not _has_nan(array)):
            continue
        raise weights_computed(
            f"{where} has numbers that were computed from weights, in the shape {tuple(array.shape)}"
        )


def weights_computed(what: str) -> ExportError:
    """The error of a conversion that did not leave the weights as they are."""
    return ExportError(
        f"{what}: the converter computed with weights, which were not in memory.",
        slug="weights-computed",
        hint="Convert it on a machine with memory for the weights, without --low-memory.",
    )


def _has_nan(array: Any) -> bool:
    is_float = isinstance(array, numpy.ndarray) and array.dtype.kind in "fV"
    return is_float and bool(numpy.isnan(array.astype(numpy.float32)).any())


def _extent_of(value: Any) -> int:
    """The bytes from the first number of an array or a tensor to the end of its last one."""
    size = value.dtype.itemsize
    unit = size if isinstance(value, torch.Tensor) else 1
    strides = value.stride() if isinstance(value, torch.Tensor) else value.strides
    steps = ((n - 1) * step * unit for n, step in zip(value.shape, strides, strict=True))
    return int(size + sum(steps)) if value.nbytes else 0


def _address_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return int(value.__array_interface__["data"][0])

"""The weights of the models of one program: equal ones are one piece of memory, and one place in
one file.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from ...disk.text import damaged
from ..places import Place
from ..stand_ins import is_stand_in

__all__ = [
    "MOST_INSIDE",
    "MOST_IN_ONE_FILE",
    "WEIGHTS",
    "attach",
    "check_places",
    "external_proto",
    "external_weights",
    "large_tensors",
    "lent_tensors",
    "mapped",
    "share",
]

#: the file with the weights that several graphs use, beside the graphs
WEIGHTS = "weights.bin"
#: smaller ones stay inside the model
SMALLEST = 1024
#: a model with more bytes of weights keeps them beside it: they are written and read without a copy
MOST_INSIDE = 2**24
#: the bytes of weights that stay inside of a model that is to be one file: a message of protobuf has
#: less than 2**31 bytes, operators and small tensors among them
MOST_IN_ONE_FILE = 2**31 - 2**26
#: the operators that ONNX Runtime moves no Transpose past
_LENT_TO = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "LSTM", "GRU", "RNN"})


def share(models: Sequence[Any]) -> None:
    """Lets every large weight be one piece of memory, wherever an equal one stands in these
    models. A weight that a converter turned stays a view of the memory of the model.
    """
    import onnx_ir

    by_memory: dict[tuple[Any, ...], Any] = {}
    by_content: dict[tuple[Any, ...], Any] = {}
    alive: list[Any] = []
    for model in models:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < SMALLEST or not _is_plain(tensor):
                continue
            given = tensor.numpy()
            array = given.reshape(tuple(tensor.shape.numpy()))
            kind = (str(tensor.dtype), array.shape)
            memory = (*kind, given.ctypes.data, given.strides)
            if memory not in by_memory:
                is_read = len(models) > 1 and not is_stand_in(array)
                content = (*kind, _digest(array)) if is_read else memory
                by_memory[memory] = by_content.setdefault(content, array)
                alive.append(given)  # so that no other weight comes to stand at its address
            value.const_value = onnx_ir.Tensor(
                by_memory[memory], dtype=tensor.dtype, name=value.name
            )


def _is_plain(tensor: Any) -> bool:
    """True for numbers of whole bytes."""
    return tensor.dtype.name != "STRING" and float(tensor.dtype.itemsize).is_integer()


def _digest(array: Any) -> bytes:
    return hashlib.sha256(array.reshape(-1).view(numpy.uint8)).digest()


def external_weights(models: Sequence[Any], largest: int) -> dict[int, Any]:
    """The arrays that are kept outside of the models, by identity: those that several share, and
    all of a large one.
    """
    arrays: dict[int, Any] = {}
    users: Counter[int] = Counter()
    large: set[int] = set()
    for model in models:
        own = {id(tensor.raw): tensor.raw for tensor in large_tensors(model).values()}
        arrays |= own
        users.update(own.keys())
        if sum(array.nbytes for array in own.values()) > largest:
            large |= set(own)
    return {key: array for key, array in arrays.items() if users[key] > 1 or key in large}


def large_tensors(model: Any) -> dict[str, Any]:
    """The weights, by name, that are arrays worth a place of their own."""
    found = {name: value.const_value for name, value in model.graph.initializers.items()}
    return {
        name: tensor
        for name, tensor in found.items()
        if isinstance(getattr(tensor, "raw", None), numpy.ndarray)
        and tensor.nbytes >= SMALLEST
        and _is_plain(tensor)
    }


def lent_tensors(model: Any) -> dict[str, Any]:
    """The large weights that a session may use where they are, by name.

    ONNX Runtime (1.31) moves a Transpose past what stands beside it, such as the Add of an
    embedding of places, turns the weight in the model that it has read, and then takes the given
    weight, which is not turned: the result is wrong, or refused. So only weights are given that
    nothing but these operators uses: no Transpose goes past them.
    """
    return {
        name: tensor
        for name, tensor in large_tensors(model).items()
        if {usage.node.op_type for usage in model.graph.initializers[name].uses()} <= _LENT_TO
    }


def external_proto(model: Any, places: Mapping[int, Place], file: str = WEIGHTS) -> Any:
    """The model as a message in which the weights at ``places`` only say where in ``file`` they
    are.
    """
    import onnx_ir

    kept = {}
    for name, value in model.graph.initializers.items():
        place = places.get(id(getattr(value.const_value, "raw", None)))
        if place is not None:
            kept[name] = value.const_value
            value.const_value = onnx_ir.ExternalTensor(
                file,
                place.offset,
                place.length,
                value.const_value.dtype,
                shape=value.const_value.shape,
                name=name,
            )
    try:
        return onnx_ir.serde.serialize_model(model)
    finally:
        for name, tensor in kept.items():
            model.graph.initializers[name].const_value = tensor


def check_places(proto: Any) -> None:
    """Passes when only the weights of the graph itself stand outside of the model: what a branch, a
    function or an attribute says of a place would be read by ONNX Runtime, wherever it leads.

    :raises SavedFileError: ``file-damaged``
    """
    inner = [child for name, child in _messages(proto) if name != "graph"]
    inner += [child for name, child in _messages(proto.graph) if name != "initializer"]
    for tensor in _tensors(inner):
        if tensor.external_data or tensor.data_location == tensor.EXTERNAL:
            raise damaged(
                WEIGHTS, f"the tensor {tensor.name[:80]!r} must not stand outside of the model"
            )


def _tensors(messages: Iterable[Any]) -> Iterator[Any]:
    below = list(messages)
    while below:
        message = below.pop()
        if message.DESCRIPTOR.name == "TensorProto":
            yield message
        else:
            below += [child for _, child in _messages(message)]


def _messages(message: Any) -> Iterator[tuple[str, Any]]:
    """The messages that a message of protobuf holds, each with the name of its field."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for child in [value] if hasattr(value, "DESCRIPTOR") else value:
                yield field.name, child


def mapped(path: Path) -> Any:
    """The bytes of the file with the weights, which is mapped and not read; none where there is
    no such file.
    """
    return (
        numpy.memmap(path, dtype=numpy.uint8, mode="r")
        if path.exists()
        else numpy.empty(0, dtype=numpy.uint8)
    )


def attach(model: Any, whole: Any) -> None:
    """Lets the outside weights of a model that was read be parts of ``whole``.

    :raises SavedFileError: ``file-damaged`` when one lies outside of it
    """
    import onnx_ir

    for value in model.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, onnx_ir.ExternalTensor):
            value.const_value = onnx_ir.Tensor(
                _part(whole, tensor), dtype=tensor.dtype, name=value.name
            )


def _part(whole: Any, tensor: Any) -> Any:
    offset, length = tensor.offset or 0, tensor.nbytes
    if (
        tensor.location != WEIGHTS
        or tensor.length not in (None, length)
        or not 0 <= offset <= len(whole) - length
    ):
        raise damaged(WEIGHTS, f"the weight {tensor.name} is not {length} bytes from {offset} on")
    return (
        whole[offset : offset + length]
        .view(tensor.dtype.numpy())
        .reshape(tuple(tensor.shape.numpy()))
    )

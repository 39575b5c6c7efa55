"""The tensors of all graphs of a program in one safetensors file: what shares memory is stored
once.

Every piece of memory is one entry of the file: under its own name, dtype and shape when one tensor
covers it, else as bytes. The head of the file says for each graph which tensor stands where, so
that views, tied weights and dtypes that safetensors does not have come back as they were. Loading
reads each entry once, into memory aligned as that of the model was: a kernel that is given other
addresses may round in another way.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..core.errors import SavedFileError, UnsupportedError
from ..disk.codec import read_document, write_document
from ..disk.text import damaged, read_json, write_json
from .safetensors_files import DTYPES, write_safetensors
from .stand_ins import is_stand_in

__all__ = ["TensorPlace", "read_tensors", "write_tensors"]

Tables = Mapping[str, Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a tensor in a file: ``offset`` bytes into an entry, with its shape and strides."""

    entry: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    device: str = "cpu"
    is_parameter: bool = False
    requires_grad: bool = False


@dataclass(slots=True)
class _WeightMemory:
    """A piece of memory, from address ``low`` to ``high``, and the tensors in it."""

    low: int
    high: int
    tensors: list[tuple[str, str, torch.Tensor]]


def write_tensors(tables: Tables, path: Path) -> None:
    """Writes the tensors of each table, by their names, into one file.

    :raises UnsupportedError: ``tensor-not-saved`` for a sparse or quantised tensor, or one of a
        derived class
    """
    entries: dict[str, torch.Tensor] = {}
    places: dict[str, dict[str, TensorPlace]] = {table: {} for table in tables}
    for memory in _memories(tables):
        name = memory.tensors[0][1]
        entry = name if name not in entries else f"{name}#{len(entries)}"
        entries[entry] = _content(memory)
        for table, name, tensor in memory.tensors:
            places[table][name] = _place(entry, tensor, memory.low)
    head = write_document("weights", Mapping[str, Mapping[str, TensorPlace]], places)
    write_safetensors(entries, path, {"onlooker": write_json(head).decode()})


def _memories(tables: Tables) -> list[_WeightMemory]:
    """The pieces of memory that the tensors cover: those that overlap are one piece.

    They stand in the order of their first tensors in the tables, and not in that of addresses,
    which differs from one run to the next.
    """
    pieces = []
    order: dict[tuple[str, str], int] = {}
    for table, tensors in tables.items():
        for name, tensor in tensors.items():
            _check(name, tensor)
            low, high = _span(tensor)
            pieces.append((str(tensor.device), low, high, (table, name, tensor)))
            order[table, name] = len(order)
    found: list[_WeightMemory] = []
    device = ""
    for where, low, high, row in sorted(pieces, key=lambda piece: (piece[0], piece[1], -piece[2])):
        is_inside = found and where == device and low < found[-1].high
        if is_inside and (not is_stand_in(row[2]) or low == found[-1].low):
            found[-1].high = max(found[-1].high, high)
            found[-1].tensors.append(row)
        else:
            found.append(_WeightMemory(low, high, [row]))
        device = where
    for memory in found:
        memory.tensors.sort(key=lambda row: order[row[0], row[1]])
    return sorted(found, key=lambda memory: order[memory.tensors[0][0], memory.tensors[0][1]])


def _check(name: str, tensor: Any) -> None:
    plain = isinstance(tensor, torch.Tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.layout is not torch.strided or tensor.is_quantized or _is_lazy(tensor):
        raise UnsupportedError(
            f"{name} is a {_kind(tensor)} and cannot be written into a file.",
            slug="tensor-not-saved",
            hint="Only plain dense tensors are kept: convert it before the model is watched.",
        )


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg() or tensor.is_nested


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{type(value).__name__} ({value.layout}, {value.dtype}, {value.device})"


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte of a tensor, and the one after the last."""
    size, first = tensor.element_size(), tensor.data_ptr()
    if not tensor.numel():
        return first, first
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * size


def _content(memory: _WeightMemory) -> torch.Tensor:
    """The memory under the shape of a tensor that covers it, or as bytes."""
    for _, _, tensor in memory.tensors:
        covers = _span(tensor) == (memory.low, memory.high)
        if covers and tensor.is_contiguous() and tensor.dtype in DTYPES:
            return tensor.detach()  # dtypes that safetensors does not have are stored as bytes
    storage = memory.tensors[0][2].untyped_storage()
    raw = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    start = memory.low - storage.data_ptr()
    part: torch.Tensor = raw[start : start + memory.high - memory.low].detach()
    return part


def _place(entry: str, tensor: torch.Tensor, low: int) -> TensorPlace:
    return TensorPlace(
        entry,
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.data_ptr() - low,
        str(tensor.device),
        isinstance(tensor, torch.nn.Parameter),
        tensor.requires_grad,
    )


def read_tensors(path: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The tables that :func:`write_tensors` wrote; tensors that shared memory share it again.

    :raises SavedFileError: ``file-damaged``, ``device-missing``
    """
    where = str(path)
    try:
        head, memories = _read(path)
    except (
        SafetensorError,
        OSError,
        ValueError,
        RuntimeError,
        TypeError,
        KeyError,
        OverflowError,
    ) as error:
        raise damaged(where, f"it is no safetensors file ({str(error)[:200]})") from error
    document = read_json(head.encode(), where)
    tables = read_document(document, "weights", Mapping[str, Mapping[str, TensorPlace]], where)
    moved: dict[tuple[str, str], torch.Tensor] = {}
    return {
        table: {
            name: _tensor(memories, moved, place, f"{where} at {name}")
            for name, place in places.items()
        }
        for table, places in tables.items()
    }


def _read(path: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """The head, and the bytes of each entry.

    The library checks the file: its entries follow each other without a gap, and end with it.
    """
    with safe_open(path, framework="pt") as file:
        head = (file.metadata() or {}).get("onlooker", "")
        sizes = {name: _bytes_of(file.get_slice(name)) for name in file.offset_keys()}
    found = {}
    with open(path, "rb") as content:
        content.seek(8 + int.from_bytes(content.read(8), "little"))
        for name, size in sizes.items():
            found[name] = memory = torch.empty(size, dtype=torch.uint8)
            if (
                content.readinto((ctypes.c_ubyte * size).from_address(memory.data_ptr() or 1))
                != size
            ):
                raise ValueError(f"{name} is not complete")
    return head, found


def _bytes_of(entry: Any) -> int:
    """The size of an entry: the dtypes of safetensors end with their number of bits, but for the
    oldest.
    """
    bits = re.fullmatch(r"[A-Z]+(\d+)(_.*)?", entry.get_dtype())
    shape: list[int] = entry.get_shape()
    return math.prod(shape) * (int(bits[1]) // 8 if bits else 1)


def _tensor(
    memories: Mapping[str, torch.Tensor],
    moved: dict[tuple[str, str], torch.Tensor],
    place: TensorPlace,
    where: str,
) -> torch.Tensor:
    memory = memories.get(place.entry)
    dtype = vars(torch).get(place.dtype)
    if memory is None or not isinstance(dtype, torch.dtype):
        raise damaged(where, f"there is no entry {place.entry[:80]!r} of {place.dtype[:80]}")
    _check_bounds(place, dtype, memory.numel(), where)
    key = (place.entry, place.device)
    if key not in moved:
        moved[key] = _on_device(memory, place.device, where)
    try:
        found = _view(moved[key], dtype, place)
    except RuntimeError as error:
        raise damaged(where, f"it is no tensor ({str(error)[:200]})") from error
    if not place.is_parameter:
        return found.requires_grad_(place.requires_grad and dtype.is_floating_point)
    return torch.nn.Parameter(
        found, place.requires_grad and (dtype.is_floating_point or dtype.is_complex)
    )


def _check_bounds(place: TensorPlace, dtype: torch.dtype, size: int, where: str) -> None:
    numbers = (*place.shape, *place.strides, place.offset)
    ranks = len(place.shape) == len(place.strides) <= 64
    if not ranks or any(n < 0 or n >= 1 << 62 for n in numbers):
        raise damaged(where, "its shape and strides are no layout")
    empty = 0 in place.shape
    last = (
        -1 if empty else sum((n - 1) * s for n, s in zip(place.shape, place.strides, strict=True))
    )
    if place.offset % dtype.itemsize or (
        not empty and place.offset + (last + 1) * dtype.itemsize > size
    ):
        raise damaged(where, f"it does not fit into the {size} bytes of {place.entry[:80]}")


def _on_device(memory: torch.Tensor, device: str, where: str) -> torch.Tensor:
    try:
        return memory if device == "cpu" else memory.to(torch.device(device))
    except (RuntimeError, AssertionError, ValueError, NotImplementedError) as error:
        raise SavedFileError(
            f"{where} was on {device[:80]!r}, which is not here: {error}.",
            slug="device-missing",
            hint=(
                "Load it on a machine that has the device, or export from a model that is on the"
                " CPU."
            ),
        ) from error


def _view(memory: torch.Tensor, dtype: torch.dtype, place: TensorPlace) -> torch.Tensor:
    if 0 in place.shape:
        return torch.empty_strided(place.shape, place.strides, dtype=dtype, device=memory.device)
    whole = memory[: memory.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return whole.as_strided(
        place.shape, place.strides, whole.storage_offset() + place.offset // dtype.itemsize
    )

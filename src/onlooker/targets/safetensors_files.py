"""Files of safetensors that are written and read tensor by tensor, with no more than one in memory.

A file is the length of its head in 8 bytes, the head in JSON, and the bytes of the tensors, one behind the
other. The library (safetensors 0.8) makes a copy of all tensors before it writes, and maps a whole file to
read it, so that every page that was read stays in the memory of the process.
https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import SavedFileError
from ..disk.text import damaged
from .stand_ins import bytes_of, check_bytes, written_tensor

__all__ = ["DTYPES", "Checkpoint", "write_safetensors"]

#: the dtypes of the format; the names are those of files
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_BY_NAME = {name: dtype for dtype, name in DTYPES.items()}
_LONGEST_HEAD = 100 * 2**20
_INDEX, _ONE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor in a file: its bytes begin at ``offset``."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """How many bytes it has there."""
        return math.prod(self.shape) * self.dtype.itemsize


class Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors of a folder that transformers saved, by name: one file, or several with an index.

    A tensor is read when it is asked for, and not kept.

    :raises SavedFileError: ``file-missing``, ``file-damaged``
    """

    def __init__(self, folder: Path) -> None:
        index = folder / _INDEX
        names = [_ONE]
        if index.exists():
            names = sorted(set(_json(index.read_bytes(), index).get("weight_map", {}).values()))
        self._entries: dict[str, _Entry] = {}
        for name in names:
            if Path(name).name != name:
                raise damaged(str(index), f"{name[:80]!r} is not the name of a file")
            self._entries |= _entries_of(folder / name)

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        found = torch.empty(entry.shape, dtype=entry.dtype)
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            if file.readinto(memoryview(bytes_of(found))) != entry.nbytes:
                raise damaged(str(entry.path), f"{name} is not complete")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def spec(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and the shape of a tensor, which is not read."""
        return self._entries[name].dtype, self._entries[name].shape

    def nbytes(self, name: str) -> int:
        """The bytes of a tensor in its file."""
        return self._entries[name].nbytes


def _entries_of(path: Path) -> dict[str, _Entry]:
    where = str(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            head = file.read(min(length, _LONGEST_HEAD))
    except FileNotFoundError as error:
        raise SavedFileError(
            f"There is no file {path}.",
            slug="file-missing",
            hint=f"Give a folder with {_ONE}, or with {_INDEX} and the files that it names.",
        ) from error
    except OSError as error:
        raise damaged(where, str(error)) from error
    found = {}
    for name, row in _json(head, path).items():
        if name == "__metadata__":
            continue
        try:
            begin, end = row["data_offsets"]
            shape = tuple(int(n) for n in row["shape"])
            entry = _Entry(path, _BY_NAME[row["dtype"]], shape, 8 + length + begin)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(where, f"{name[:80]!r} has no place ({error!r})") from error
        if end - begin != entry.nbytes or begin < 0 or entry.offset + entry.nbytes > size:
            raise damaged(where, f"{name[:80]!r} does not fit into its place")
        found[name] = entry
    return found


def _json(text: bytes, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise damaged(str(path), f"its head is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise damaged(str(path), "its head is no table")
    return found


def write_safetensors(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str]
) -> None:
    """Writes the tensors, or what they stand for, one after the other.

    Large dtypes come first, so that every tensor is aligned; then they are in the order of their names.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    head: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets: dict[str, int] = {}
    end = 0
    for name in order:
        tensor = tensors[name]
        offsets[name] = end
        end += tensor.nbytes
        row = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        head[name] = {**row, "data_offsets": [offsets[name], end]}
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(memoryview(bytes_of(written_tensor(tensors[name]))))
    for name in order:
        check_bytes(path, 8 + len(text) + offsets[name], tensors[name])

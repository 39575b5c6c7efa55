"""The weights of the blocks of a program: one safetensors file for all of them, beside the graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..disk.text import damaged
from ..serve.weights import BlockWeights
from ..targets.weights import read_tensors, write_tensors

__all__ = ["BLOCKS_FILE", "WeightsRecord", "read_weights", "weights_record", "write_weights"]

#: the file with the weights of all blocks
BLOCKS_FILE = "blocks.safetensors"


@dataclass(frozen=True, slots=True)
class WeightsRecord:
    """The weights of blocks without their tensors: the argument of the graphs, and the names of the
    blocks.
    """

    argument: str
    blocks: tuple[str, ...]


def weights_record(weights: BlockWeights) -> WeightsRecord:
    """The record of the weights of blocks."""
    return WeightsRecord(weights.argument, tuple(weights.sets))


def write_weights(weights: BlockWeights, folder: Path) -> list[str]:
    """Writes the weights of all blocks and gives the names of the files.

    :raises UnsupportedError: ``tensor-not-saved``
    """
    write_tensors(weights.sets, folder / BLOCKS_FILE)
    return [BLOCKS_FILE]


def read_weights(record: WeightsRecord, folder: Path, where: str) -> BlockWeights:
    """The weights of a record.

    :raises SavedFileError: ``file-damaged``
    """
    tables = read_tensors(folder / BLOCKS_FILE)
    if {*tables} != {*record.blocks}:
        raise damaged(where, "its blocks are not those that have weights")
    return BlockWeights(record.argument, {name: tables[name] for name in record.blocks})

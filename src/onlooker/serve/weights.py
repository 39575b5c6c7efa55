"""Weights that are an argument of the graphs of a program, of each block that runs on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.errors import UsageError
from ..observing.wrapping.shared_block import SharedBlock, weights_of

__all__ = ["BlockWeights", "block_weights", "blocks_to_serve", "shared_of"]


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """The weights of equal blocks: ``argument`` is the argument of the graphs that has them, ``sets``
    are those of each block, by its name and by theirs.
    """

    argument: str
    sets: Mapping[str, Mapping[str, torch.Tensor]]


def block_weights(shared: Any) -> BlockWeights | None:
    """The weights of the blocks of a module, in their memory; None for any other model."""
    if not isinstance(shared, SharedBlock):
        return None
    sets = {name: weights_of(block) for name, block in shared.blocks.items()}
    return BlockWeights(shared.argument, sets)


def blocks_to_serve(
    weights: BlockWeights, watched: Any, blocks: Any = None
) -> Iterator[tuple[torch.nn.Module, Mapping[str, torch.Tensor]]]:
    """Gives each block that runs on the program, with its weights: those that were ``watched``, or
    those of the given list, by their places in it.

    :raises UsageError: ``no-such-block``
    """
    if blocks is None:
        named = dict(watched.blocks)
    else:
        named = {str(place): block for place, block in enumerate(_listed(blocks))}
    missing = [name for name in weights.sets if name not in named]
    if missing:
        raise UsageError(
            f"The program has weights for block {missing[0]}, and there is no such block.",
            slug="no-such-block",
            hint="Give all blocks, as they were watched: program.installed(model.layers).",
        )
    for name, own in weights.sets.items():
        yield named[name], own


def shared_of(blocks: Any) -> SharedBlock:
    """A block, or the first one of several, as the module that was exported."""
    return SharedBlock({"0": _listed(blocks)[0]})


def _listed(blocks: Any) -> Sequence[torch.nn.Module]:
    return list(blocks) if isinstance(blocks, (list, torch.nn.ModuleList)) else [blocks]

"""Weights that are an argument of the graphs of a program: those of equal blocks, or of adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..observing.wrapping.adapted_model import NO_ADAPTER, AdaptedModel, has_adapters
from ..observing.wrapping.lifted_weights import LiftedWeights
from ..observing.wrapping.shared_block import shared_blocks

__all__ = ["ProgramWeights", "lifted_of", "program_weights"]


@dataclass(frozen=True, slots=True)
class ProgramWeights:
    """The weights of equal blocks, or of adapters: ``argument`` is the argument of the graphs that has
    them, ``sets`` are those of each block or adapter, by its name and by theirs.
    """

    argument: str
    sets: Mapping[str, Mapping[str, torch.Tensor]]

    @property
    def are_adapters(self) -> bool:
        """True for adapters, which have a set for a call without any."""
        return NO_ADAPTER in self.sets


def program_weights(model: Any) -> ProgramWeights | None:
    """The weights of a module that has them as an argument; None for any other model."""
    if not isinstance(model, LiftedWeights):
        return None
    return ProgramWeights(model.argument, model.sets())


def lifted_of(given: Any, weights: ProgramWeights) -> LiftedWeights:
    """What a user has in the place of what was watched, as a module whose weights are an argument: a
    model with adapters, a list of blocks, or one block. Of a list it is the blocks that are equal to the
    first one that has ``weights``.
    """
    if has_adapters(given):
        return AdaptedModel(given)
    is_list = isinstance(given, (list, torch.nn.ModuleList))
    groups = shared_blocks(list(given) if is_list else [given])
    first = next(iter(weights.sets))
    return next((group for group in groups if first in group.blocks), groups[0])

"""Random weights and inputs from generators of their own: the global random state never moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

__all__ = ["image_batch", "padding_mask", "random_ids", "randomised"]

#: ids below are kept for padding and special tokens
FIRST_ID = 3


def randomised(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """The model that ``build`` makes, in eval mode, its matrices drawn again.

    The usual initialisation (standard deviation 0.02) makes a tiny model almost deaf to its mask
    and its cache: a wrong program would pass any tolerance. Matrices get ``fan_in ** -0.5``,
    embeddings 0.5.
    """
    with torch.random.fork_rng(devices=[]):
        model = build().eval()
    generator = torch.Generator().manual_seed(1234)
    done: set[int] = set()  # tied weights are drawn once
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
            if parameter.ndim >= 2 and id(parameter) not in done:
                done.add(id(parameter))
                deviation = _deviation(module, parameter)
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * deviation)
    return model


def _deviation(module: torch.nn.Module, weight: torch.Tensor) -> float:
    if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
        fan_in = weight[0].numel()
    elif type(module).__name__ == "Conv1D":  # of transformers: (inputs, outputs)
        fan_in = weight.shape[0]
    else:  # embeddings, class tokens
        return 0.5
    return 1 / math.sqrt(fan_in)


def random_ids(batch: int, length: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    """Token ids: int64 of shape (batch, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_ID, vocabulary, (batch, length), generator=generator)


def image_batch(batch: int, size: int, seed: int) -> torch.Tensor:
    """Images: float32 of shape (batch, 3, size, size)."""
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


def padding_mask(padding: Sequence[int], length: int, *, left: bool) -> torch.Tensor:
    """A mask that hides ``padding[i]`` tokens of row ``i``: int64 of shape (len(padding), length).

    >>> padding_mask((1, 0), 3, left=True).tolist()
    [[0, 1, 1], [1, 1, 1]]
    """
    position = torch.arange(length).expand(len(padding), length)
    hidden = torch.tensor(padding).unsqueeze(1)
    shown = position >= hidden if left else position < length - hidden
    return shown.to(torch.int64)

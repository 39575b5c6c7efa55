"""Helpers of models that are no modules and no functions of their files: a class, and a table of functions."""

from __future__ import annotations

import torch


class Anchors:
    """The places of a grid, and how often each is named."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        width, height = int(x.shape[1] * 2 / 3), int(x.shape[0])
        return torch.arange(width * height).reshape(height, width)

    def counts(self, index: torch.Tensor) -> torch.Tensor:
        """How often each number is in an index, up to the greatest one."""
        return torch.zeros(int(index.max()) + 1).index_add(0, index, torch.ones(len(index)))


TABLE = {"sum": lambda x: x.new_zeros(tuple(int(size) for size in x.shape)) + x.sum()}

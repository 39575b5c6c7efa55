"""The result of a call before axes of it changed, and how the result of a changed call differs from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...core.call import Values
from ...core.path import Path
from ...core.structure import Result
from ...lab.judge import computed_outputs
from ...pytrees.comparisons.agree import agreement

__all__ = ["ResultBefore"]

#: the tolerance for the rows of a batch, which other kernels may compute when there are more of
#: them
_ROWS_ATOL = 1e-4


class ResultBefore:
    """The ``result`` of a call with the values ``base``; outputs that are inputs passed through are not
    judged.
    """

    def __init__(self, base: Values, result: Result) -> None:
        self.result = result
        self._paths = list(result.structure.paths())
        self._computed_outputs = computed_outputs(base.values(), result.leaves)

    def _tensor_outputs(self, got: Result) -> Iterator[tuple[Path, torch.Tensor, torch.Tensor]]:
        """The outputs with dimensions, each before and after the change."""
        for (path, old), new in zip(self.result.items(), got.leaves, strict=True):
            if isinstance(old, torch.Tensor) and old.ndim:
                yield path, old, new

    def grown(self, got: Result, size: int) -> list[tuple[Path, torch.Tensor, torch.Tensor]]:
        """The outputs that got more rows, before and after; else those of which each row of the
        batch has several.
        """
        one_each, several_each = [], []
        for path, old, new in self._tensor_outputs(got):
            n_rows = old.shape[0]
            if new.shape[0] <= n_rows:
                continue
            if n_rows == size:
                one_each.append((path, old, new))
            elif size and n_rows % size == 0:
                several_each.append((path, old, new))
        return one_each or several_each

    def has_rows_of(self, got: Result, size: int) -> bool:
        """True when some output got more rows, and what was there before is as before.

        A table of all rows against all others grows along both dimensions.
        """
        grown = self.grown(got, size)
        if not grown:
            return False
        paths = [path for path, _, _ in grown]
        before = [old for _, old, _ in grown]
        after = []
        for _, old, new in grown:
            same_region = tuple(slice(0, n) for n in old.shape)
            after.append(new[same_region])
        return agreement(paths, before, after, atol=_ROWS_ATOL).holds

    def differs(self, got: Result) -> bool:
        """True when an output that the model computes is another one."""
        paths = [self._paths[number] for number in self._computed_outputs]
        before = self._computed(self.result)
        after = self._computed(got)
        return not agreement(paths, before, after, atol=0.0).holds

    def has_other_shapes(self, got: Result) -> bool:
        """True when an output that the model computes has another shape: all that fake tensors
        tell.
        """
        before = [getattr(leaf, "shape", leaf) for leaf in self._computed(self.result)]
        after = [getattr(leaf, "shape", leaf) for leaf in self._computed(got)]
        return bool(before != after)

    def _computed(self, result: Result) -> list[Any]:
        """The outputs that are no inputs passed through."""
        return [result.leaves[number] for number in self._computed_outputs]

"""A call that is padded to larger sizes, and its result cut back to its own.

Padding stands at the end of each axis. Tensors repeat their last slice, which is valid for ids, positions
and numbers alike; a mask ends in a value that hides, so that the model does not read the padding::

    ids    [[5, 6, 7]]    ->  [[5, 6, 7, 7, 7]]        scores of shape (1, 5, 64)
    mask   [[1, 1, 1]]    ->  [[1, 1, 1, 0, 0]]        ->  scores[:, :3]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Values
from ..core.path import Path
from ..core.plan import LeafPlan
from ..core.sizes.expression import Sizes
from ..core.sizes.formula import evaluated
from ..core.structure import Tree
from ..materialise.arguments import Calls
from ..trace.graph import Graph

__all__ = ["Padder", "hiding_values", "masks_of"]

#: the least number of each dtype of floats
_LEAST = {
    str(dtype): torch.finfo(dtype).min
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
}


@dataclass(frozen=True, slots=True)
class Padder:
    """Pads the calls of one graph. ``masks`` are the inputs that hide positions along their last
    dimension, each with the number that hides.
    """

    graph: Graph
    masks: Mapping[Path, float]

    def padded(self, values: Values, top: Sizes, *, halved: bool = False) -> Values:
        """The values of a call, padded to the sizes of ``top``.

        The padding of a tensor repeats its last slice. With ``halved`` a trial gets other padding: the first
        slice, whose floats are divided by 2.
        """
        return {
            leaf.path: self._longer(leaf, values[leaf.path], top, halved)
            for leaf in self.graph.plan.leaves
        }

    def _longer(self, leaf: LeafPlan, value: Any, top: Sizes, halved: bool) -> Any:
        if leaf.value is not None:
            return leaf.value.evaluate(top)
        if not isinstance(value, torch.Tensor):
            return value
        hides = self.masks.get(leaf.path)
        for dim, expression in enumerate(leaf.shape):
            hidden = hides if dim == value.ndim - 1 else None
            value = _longer(value, dim, expression.evaluate(top), hidden, halved)
        return value

    def cut(self, result: Tree[Any], sizes: Sizes, top: Sizes) -> Tree[Any] | None:
        """The result of a padded call without what was added; None for a result of another form than
        that of the graph.
        """
        outputs = self.graph.outputs
        if result.structure != outputs.structure:
            return None
        leaves = list(result.leaves)
        places = [place for place, changes in enumerate(outputs.dynamic) if changes]
        for place, (_, shape) in zip(places, outputs.kinds, strict=True):
            leaves[place] = _cut(leaves[place], shape, sizes, top)
        return Tree(result.structure, tuple(leaves))


def _longer(
    value: torch.Tensor, dim: int, size: int, hidden: float | None, halved: bool
) -> torch.Tensor:
    have = value.shape[dim]
    if have >= size:
        return value
    shape = list(value.shape)
    shape[dim] = size - have
    if hidden is not None or have == 0:
        added = value.new_full(shape, hidden or 0)
    else:
        added = value.narrow(dim, 0 if halved else have - 1, 1).expand(shape)
        added = added / 2 if halved and value.is_floating_point() else added
    return torch.cat([value, added], dim)


def _cut(value: Any, shape: Sequence[str], sizes: Sizes, top: Sizes) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    for dim, formula in enumerate(shape):
        wanted = evaluated(formula, sizes)
        if wanted != evaluated(formula, top):
            value = value.narrow(dim, 0, wanted)
    return value


def masks_of(calls: Calls) -> list[LeafPlan]:
    """The inputs that may hide positions: masks, and what may be left out as ones are neutral."""
    return [
        leaf
        for leaf in calls.plan.inputs
        if leaf.is_tensor
        and leaf.shape
        and (
            calls.domains.of(leaf.path).is_mask
            or (leaf.fill is not None and leaf.fill.kind == "ones")
        )
    ]


def hiding_values(masks: Sequence[LeafPlan]) -> list[dict[Path, float]]:
    """The ways in which masks may hide, the usual one first: by 0, by 1 (as ``key_padding_mask`` does), by
    the least float, which is added to scores.
    """
    if not masks:
        return [{}]
    ways: list[dict[Path, float]] = [{leaf.path: number for leaf in masks} for number in (0.0, 1.0)]
    floats = [leaf for leaf in masks if leaf.dtype in _LEAST]
    if floats:
        ways.append({leaf.path: _LEAST.get(leaf.dtype, 0.0) for leaf in masks})
    return ways

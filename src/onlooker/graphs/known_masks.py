"""Masks that sizes alone decide, once an argument that calls may leave out has its fill.

A model that leaves out a mask of ones does not compute with it, and no comparison of operators finds
the two graphs equal::

    with a mask       scaled_dot_product_attention(q, k, v, and(arange(n) >= 0, expand(mask)))
    without one       scaled_dot_product_attention(q, k, v)

With ones in its place the mask depends on sizes alone: it is evaluated at some of them, without the
model. One that hides nothing is none, and two masks with the same values are one; so it is with what is
added to scores, or multiplied with them. What is left is compared operator by operator, which is a proof
for all values of a call, but for the sign of a zero.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..core.path import Path
from ..core.sizes.expression import Sizes
from ..materialise.arguments import fill_of
from ..proofs.exported_sizes import sizes_in_plan
from ..proofs.numbering import digest
from ..proofs.path_condition import proofs_of
from ..proofs.same_graph import Comparison
from ..proofs.same_run import hides_nothing
from ..proofs.size_program import MOST_ELEMENTS, SizeProgram
from ..pytrees.nodes import SYMBOLIC
from ..trace.graph import Graph

__all__ = ["are_same_with_known_masks"]

logger = logging.getLogger(__name__)
_aten = torch.ops.aten
_ATTENTION = _aten.scaled_dot_product_attention.default


@dataclass(frozen=True, slots=True)
class _Mask:
    """What is known of a mask: a digest of its values at some sizes, and whether it hides nothing."""

    digest: str
    hides_nothing: bool


#: the places of a mask among the arguments of operators, and of the argument that is left where it hides nothing
_PLACES: dict[Any, tuple[tuple[int, int], ...]] = {
    _ATTENTION: ((3, 0),),
    _aten.add.Tensor: ((1, 0), (0, 1)),
    _aten.mul.Tensor: ((1, 0), (0, 1)),
    _aten.masked_fill.Scalar: ((1, 0),),
    _aten.where.self: ((0, 1),),
}
_HIDES_NOTHING: dict[Any, Callable[[torch.Tensor], bool]] = {
    _ATTENTION: hides_nothing,
    _aten.add.Tensor: lambda bias: not bias.any(),
    _aten.mul.Tensor: lambda factor: bool((factor == 1).all()),
    _aten.masked_fill.Scalar: lambda mask: not mask.any(),
    _aten.where.self: lambda mask: bool(mask.all()),
}


def are_same_with_known_masks(first: Graph, second: Graph, choices: Sequence[Sizes]) -> bool:
    """True where two graphs run the same operators, their masks being the same at some sizes. The
    second one lacks some inputs of the first one, which has their fills.
    """
    plan = first.plan
    shared = {leaf.path for leaf in second.plan.inputs}
    left_out = {
        place: [expression.value for expression in leaf.shape]
        for place, leaf in enumerate(plan.inputs)
        if leaf.path not in shared
    }
    of_plan = sizes_in_plan(second.artifact, second.plan, second.names)
    try:
        with _known_masks(first, shared, choices), _known_masks(second, shared, choices):
            comparison = Comparison(second.artifact, of_plan, proofs_of(second.plan, []))
            found = comparison.difference_of(first.artifact, left_out)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    logger.debug("%s, with the values of masks: %s", plan.name, found or "the same graph")
    return not found


@contextlib.contextmanager
def _known_masks(graph: Graph, given: Collection[Path], choices: Sequence[Sizes]) -> Iterator[None]:
    """Inside the block operators have the digest of the values of a mask in its place, and those whose
    mask hides nothing have none: they copy what they are given, where that has their shape and dtype.
    """
    fills = {
        leaf.path: partial(fill_of, leaf) for leaf in graph.plan.inputs if leaf.path not in given
    }
    masks = _Masks(SizeProgram(graph.artifact, graph.plan, graph.names, fills), choices)
    before: list[tuple[torch.fx.Node, Any, Any]] = []
    try:
        for node in list(graph.artifact.graph.nodes):
            found = masks.without(node)
            if found is not None:
                before.append((node, node.target, node.args))
                node.target, node.args = found
        yield
    finally:
        for node, target, args in before:
            node.target, node.args = target, args


class _Masks:
    """The masks of a graph at some sizes."""

    def __init__(self, sizes: SizeProgram, choices: Sequence[Sizes]) -> None:
        self._sizes, self._choices = sizes, choices
        self._known: dict[Any, _Mask | None] = {}

    def without(self, node: torch.fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
        """The operator and the arguments that stand for those of a node with a mask; None for other nodes."""
        places = () if self._sizes.knows(node) else _PLACES.get(node.target, ())
        for place, other in places:
            mask: Any = node.args[place] if len(node.args) > place else None
            if self._sizes.knows(mask) and _changes(mask):
                found = self._mask(node, mask)
                return None if found is None else _without(node, place, node.args[other], found)
        return None

    def _mask(self, node: torch.fx.Node, mask: torch.fx.Node) -> _Mask | None:
        """A mask, as large as the numbers that it hides; None where that would be too many."""
        key = node.target, mask, *map(str, self._symbolic_shape(node))
        if key not in self._known:
            self._known[key] = self._evaluated(node, mask)
        return self._known[key]

    def _evaluated(self, node: torch.fx.Node, mask: torch.fx.Node) -> _Mask | None:
        found: list[torch.Tensor] = []
        for choice in self._choices:
            shape = [self._sizes.number(size, choice) for size in self._symbolic_shape(node)]
            values = None if None in shape else self._sizes.values([mask], choice)
            if values is None or math.prod(shape) > MOST_ELEMENTS:
                return None
            found.append(values[0].expand(shape).clone(memory_format=torch.contiguous_format))
        return _Mask(" ".join(map(digest, found)), all(map(_HIDES_NOTHING[node.target], found)))

    def _symbolic_shape(self, node: torch.fx.Node) -> list[Any]:
        """The shape of what a mask hides: the scores of attention, or what an operator gives."""
        if node.target is not _ATTENTION:
            return list(node.meta["val"].shape)
        queries, keys = (one.meta["val"].shape for one in node.args[:2])  # type: ignore[union-attr]
        return [*queries[:-1], keys[-2]]


def _changes(tensor: Any) -> bool:
    """True for a tensor that has other shapes at other sizes, as a weight has not."""
    value = tensor.meta.get("val")
    return isinstance(value, torch.Tensor) and any(
        isinstance(size, SYMBOLIC) for size in value.shape
    )


def _without(
    node: torch.fx.Node, place: int, kept: Any, mask: _Mask
) -> tuple[Any, tuple[Any, ...]] | None:
    """The operator and the arguments of a node with what is known of its mask."""
    before, after = node.args[:place], node.args[place + 1 :]
    if node.target is _ATTENTION:
        args = (*before, None if mask.hides_nothing else mask.digest, *after)
        return node.target, args if any(args[place:]) else args[:place]
    if node.kwargs:  # a factor of what is added
        return None
    if mask.hides_nothing and _is_alike(kept, node):
        return _aten.clone.default, (kept,)
    return node.target, (*before, mask.digest, *after)


def _is_alike(kept: Any, node: torch.fx.Node) -> bool:
    """True where an argument has the dtype and the shape of what a node gives."""
    one = kept.meta["val"] if isinstance(kept, torch.fx.Node) else None
    other = node.meta["val"]
    if not isinstance(one, torch.Tensor) or one.dtype != other.dtype:
        return False
    return list(map(str, one.shape)) == list(map(str, other.shape))

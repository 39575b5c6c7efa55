"""Masks of attention that sizes alone decide, once an argument that calls may leave out has its fill.

A model that leaves out a mask of ones does not compute with it, and no comparison of operators finds
the two graphs equal::

    with a mask       scaled_dot_product_attention(q, k, v, and(arange(n) >= 0, expand(mask)))
    without one       scaled_dot_product_attention(q, k, v)

With ones in its place the mask depends on sizes alone: it is evaluated at some of them, without the
model. One that hides nothing is none, and two masks with the same values are one. What is left is
compared operator by operator, which is a proof for all values of a call.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
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
from ..proofs.size_program import SizeProgram
from ..trace.graph import Graph

__all__ = ["are_same_with_known_masks"]

logger = logging.getLogger(__name__)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
#: the place of the mask among the arguments of attention
_MASK = 3


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
    """Inside the block attention has the digest of the values of a mask in its place, or nothing for
    one that hides nothing.
    """
    fills = {
        leaf.path: partial(fill_of, leaf) for leaf in graph.plan.inputs if leaf.path not in given
    }
    sizes = SizeProgram(graph.artifact, graph.plan, graph.names, fills)
    before: list[tuple[torch.fx.Node, Any]] = []
    try:
        for node in graph.artifact.graph.find_nodes(op="call_function", target=_ATTENTION):
            mask = node.args[_MASK] if len(node.args) > _MASK else None
            if not isinstance(mask, torch.fx.Node) or not sizes.knows(mask):
                continue
            found = [_of_scores(sizes, node, choice) for choice in choices]
            stand_in = None if all(map(hides_nothing, found)) else " ".join(map(digest, found))
            before.append((node, node.args))
            args = (*node.args[:_MASK], stand_in, *node.args[_MASK + 1 :])
            node.args = args if any(args[_MASK:]) else args[:_MASK]
        yield
    finally:
        for node, args in before:
            node.args = args


def _of_scores(sizes: SizeProgram, node: torch.fx.Node, choice: Sizes) -> torch.Tensor:
    """The mask of attention at some sizes, as large as the scores.

    :raises ValueError: where that would be too many numbers
    """
    queries, keys, _, mask = node.args[: _MASK + 1]
    values = sizes.values([mask], choice)  # type: ignore[list-item]  # knows() has seen it
    of_queries, of_keys = (
        sizes.shape(one, choice) for one in (queries, keys) if isinstance(one, torch.fx.Node)
    )
    if values is None or of_queries is None or of_keys is None:
        raise ValueError(f"the mask of {node.name} is too large at {choice}")
    mask_of_scores: torch.Tensor = values[0].expand(*of_queries[:-1], of_keys[-2])
    return mask_of_scores.contiguous()

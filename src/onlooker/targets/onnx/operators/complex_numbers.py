"""Operators on complex numbers that torch's converter knows for real ones only, as operators on
pairs of these.

Why: rotary embeddings of some models multiply by complex numbers, and give them an axis before. The
converter writes a complex number as a last axis of two; for an axis that is added, chosen or
expanded it has no function there, though what it has for real numbers would do.
``custom_translation_table`` takes functions for real numbers only.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_compat.py,
at "Support complex inputs". It may go when the converter has these functions;
``tests/targets/test_onnx_operators.py`` says so.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from ....torch_internals.graph_modules import modules_of

__all__ = ["complex_numbers_as_pairs"]


def _before_the_pair(dim: int, *rest: Any) -> tuple[Any, ...]:
    """The dimension among those of the numbers, where the pairs have one more at the end."""
    return (dim if dim >= 0 else dim - 1, *rest)


def _with_the_pair(size: list[Any], *rest: Any) -> tuple[Any, ...]:
    return ([*size, 2], *rest)


#: operator -> its arguments after the tensor, for the pairs
_ON_PAIRS: dict[Any, Callable[..., tuple[Any, ...]]] = {
    torch.ops.aten.unsqueeze.default: _before_the_pair,
    torch.ops.aten.select.int: _before_the_pair,
    torch.ops.aten.expand.default: _with_the_pair,
}


@contextlib.contextmanager
def complex_numbers_as_pairs(program: torch.export.ExportedProgram) -> Iterator[int]:
    """Inside the block these operators of ``program`` work on the pairs. Yields how many were
    changed.

    On exit the graph is what it was. The change does not alter what the program computes in torch.
    """
    modules = modules_of(program)
    added: list[tuple[Node, list[Node]]] = []
    try:
        for module, target in itertools.product(modules, _ON_PAIRS):
            for node in list(module.graph.find_nodes(op="call_function", target=target)):
                if node.args[0].meta["val"].is_complex() and not node.kwargs:
                    added.append((node, _insert(module.graph, node)))
        for module in modules:
            module.recompile()
        yield len(added)
    finally:
        for node, new in reversed(added):
            new[-1].replace_all_uses_with(node)
            for made in reversed(new):
                made.graph.erase_node(made)
        for module in modules:
            module.recompile()


def _insert(graph: torch.fx.Graph, node: Node) -> list[Node]:
    """``view_as_complex(operator(view_as_real(x)))`` after the node, which nothing uses then."""
    new: list[Node] = []

    def add(target: Any, *args: Any) -> Node:
        with graph.inserting_after(new[-1] if new else node):
            made = graph.call_function(target, args)
        values = torch.fx.map_arg(args, lambda given: given.meta["val"])
        with node.meta["val"].fake_mode:
            made.meta |= {"val": target(*values), "stack_trace": node.meta.get("stack_trace")}
        new.append(made)
        return made

    value, *rest = node.args
    pairs = add(torch.ops.aten.view_as_real.default, value)
    changed = add(node.target, pairs, *_ON_PAIRS[node.target](*rest))
    node.replace_all_uses_with(add(torch.ops.aten.view_as_complex.default, changed))
    return new

"""The format of ``.pt2`` files, which is written and read here without pickles."""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from .graph_modules import changed_graphs, modules_of
from .needed import needed

with needed("files of programs"):
    from torch._export.serde import schema, serialize
    from torch._export.serde.serialize import _SYM_OPS as SYM_OPS
    from torch.export.pt2_archive._package import PT2ArchiveWriter

__all__ = [
    "SYM_OPS",
    "PT2ArchiveWriter",
    "schema",
    "serialize",
    "serialize_without_tensors",
    "with_sizes_written",
]

_LEFT_OUT = ("serialize_state_dict", "serialize_constants", "serialize_example_inputs")


def serialize_without_tensors(program: torch.export.ExportedProgram) -> Any:
    """Returns the program as torch serializes it, without weights, constants and example inputs.

    torch 2.10 cannot leave them out: it pickles them in memory, and nobody reads that.
    """
    known = inspect.signature(serialize.serialize).parameters
    left_out: Any = {name: False for name in _LEFT_OUT if name in known}
    return serialize.serialize(program, **left_out)


@contextlib.contextmanager
def with_sizes_written(program: torch.export.ExportedProgram) -> Iterator[None]:
    """Inside the block ``math.ceil``, ``math.floor`` and ``round`` of a quotient of sizes are ``math.trunc`` and
    comparisons in the graphs of a program: the files of torch have no other function that makes a float an int.
    """
    is_rounding = any(
        node.target in _ROUNDINGS for module in modules_of(program) for node in module.graph.nodes
    )
    with changed_graphs(program, _write_sizes) if is_rounding else contextlib.nullcontext():
        yield


def _write_sizes(graph: Graph) -> None:
    for node in list(graph.nodes):
        rounded = _ROUNDINGS.get(node.target) if node.op == "call_function" else None
        if rounded is None or not isinstance(_size(node.args[0]), torch.SymFloat):
            continue
        if any(digits is not None for digits in node.args[1:]):
            continue
        with graph.inserting_before(node):
            written = rounded(_Written(graph), node.args[0])
        written.meta.update(node.meta)
        node.replace_all_uses_with(written)
        graph.erase_node(node)


def _size(value: Any) -> Any:
    """What a node stands for, a number as it is."""
    return value.meta.get("val") if isinstance(value, Node) else value


class _Written:
    """Writes functions of sizes into a graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __call__(self, function: Callable[..., Any], *given: Any) -> Node:
        node = self._graph.call_function(function, given)
        node.meta["val"] = function(*map(_size, given))
        return node


def _ceil(write: _Written, size: Node) -> Node:
    whole = write(math.trunc, size)
    is_less = write(operator.lt, whole, size)
    return write(torch.sym_ite, is_less, write(operator.add, whole, 1), whole)


def _floor(write: _Written, size: Node) -> Node:
    whole = write(math.trunc, size)
    is_more = write(operator.gt, whole, size)
    return write(torch.sym_ite, is_more, write(operator.sub, whole, 1), whole)


def _round(write: _Written, size: Node) -> Node:
    """The nearest int, of two the even one: what is left of a float above its floor is no rounded number."""
    whole = _floor(write, size)
    left = write(operator.sub, size, whole)
    is_odd = write(operator.eq, write(operator.mod, whole, 2), 1)
    is_next = write(operator.and_, write(operator.eq, left, 0.5), is_odd)
    is_up = write(operator.or_, write(operator.gt, left, 0.5), is_next)
    return write(torch.sym_ite, is_up, write(operator.add, whole, 1), whole)


_ROUNDINGS: dict[Any, Callable[[_Written, Node], Node]] = {
    math.ceil: _ceil,
    math.floor: _floor,
    round: _round,
}

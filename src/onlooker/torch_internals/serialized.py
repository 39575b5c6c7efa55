"""The format of ``.pt2`` files, which is written and read here without pickles."""

from __future__ import annotations

import contextlib
import inspect
import keyword
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from .graph_modules import called, changed_graphs, nodes_of, written_anew
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
    And ``uniform_`` has its bounds: a file without an argument that is called ``from`` cannot be read.
    """
    is_changed = any(
        node.target in _ROUNDINGS or _place_of_keyword(node) for node in nodes_of(program)
    )
    changes = (_write_sizes, _write_bounds)
    with changed_graphs(program, *changes) if is_changed else contextlib.nullcontext():
        yield


def _write_bounds(graph: Graph) -> None:
    """Gives operators the arguments up to one whose name is a keyword of Python."""
    for node in graph.nodes:
        if place := _place_of_keyword(node):
            left = node.target._schema.arguments[len(node.args) : place]
            node.args = (*node.args, *(one.default_value for one in left))


def _place_of_keyword(node: Node) -> int:
    """How many arguments of an operator stand up to one that is called as a keyword of Python is, and that is left
    out; 0 where there is none.
    """
    schema = getattr(node.target, "_schema", None)
    names = [] if schema is None else [one.name for one in schema.arguments]
    places = [place for place, name in enumerate(names, 1) if keyword.iskeyword(name)]
    return max((place for place in places if place > len(node.args)), default=0)


def _write_sizes(graph: Graph) -> None:
    """Replaces each rounding of a symbolic float in a graph."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _ROUNDINGS:
            continue
        size, *digits = node.args
        is_symbolic = isinstance(size, Node) and isinstance(size.meta.get("val"), torch.SymFloat)
        if is_symbolic and not any(one is not None for one in digits):
            written_anew(graph, node, _rounded)


def _rounded(graph: Graph, node: Node) -> Node:
    made = _ROUNDINGS[node.target](graph, node.args[0])
    made.meta.update(node.meta)
    return made


def _ceil(graph: Graph, size: Any) -> Node:
    whole = called(graph, math.trunc, size)
    is_less = called(graph, operator.lt, whole, size)
    return called(graph, torch.sym_ite, is_less, called(graph, operator.add, whole, 1), whole)


def _floor(graph: Graph, size: Any) -> Node:
    whole = called(graph, math.trunc, size)
    is_more = called(graph, operator.gt, whole, size)
    return called(graph, torch.sym_ite, is_more, called(graph, operator.sub, whole, 1), whole)


def _round(graph: Graph, size: Any) -> Node:
    """The nearest int, of two the even one: a float less its floor is computed without rounding."""
    whole = _floor(graph, size)
    left = called(graph, operator.sub, size, whole)
    is_odd = called(graph, operator.eq, called(graph, operator.mod, whole, 2), 1)
    is_half = called(graph, operator.eq, left, 0.5)
    is_next = called(graph, operator.and_, is_half, is_odd)
    is_up = called(graph, operator.or_, called(graph, operator.gt, left, 0.5), is_next)
    return called(graph, torch.sym_ite, is_up, called(graph, operator.add, whole, 1), whole)


_ROUNDINGS: dict[Any, Callable[[Graph, Any], Node]] = {
    math.ceil: _ceil,
    math.floor: _floor,
    round: _round,
}

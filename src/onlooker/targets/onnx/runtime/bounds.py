"""The sizes that ONNX Runtime would make of a foreign model before its first run, bounded before a
session is made.

Making a session expands every call of a function, computes what depends on constants alone, and
fills sparse weights. A file of some kilobytes can so ask for any amount of time and memory:
functions that call each other twice double with each of them. The size of a plain file, and the
time of a call, are the caller's own matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....disk.text import damaged

__all__ = ["NOT_FOLDED", "check_bounds", "graphs_inside"]

#: the optimizers of ONNX Runtime that compute constants while a session is made
NOT_FOLDED = ("ConstantFolding", "ConstantFoldingDQ")
#: nodes, and bytes, that a model may have when its functions are expanded, also where the file has
#: far fewer
_NODES, _BYTES = 4096, 1 << 24
#: and how many times what is written
_GROWTH = 4


def check_bounds(proto: Any, where: str) -> None:
    """Passes for a model that is not much larger than its file when its functions are expanded.

    :raises SavedFileError: ``file-damaged``
    """
    functions = {_key(function): function for function in proto.functions}
    if len(functions) != len(proto.functions):
        raise damaged(where, "two of its functions have one name")
    written = _Expanded(sum(1 for _ in _nodes(proto.graph)), proto.graph.ByteSize())
    for function in functions.values():
        written += _Expanded(sum(1 for _ in _nodes(function)), function.ByteSize())
    limit = _Expanded(max(_NODES, _GROWTH * written.nodes), max(_BYTES, _GROWTH * written.nbytes))
    whole = _KnownSizes(functions, limit, where).of(proto.graph)
    if whole.nodes > limit.nodes or whole.nbytes > limit.nbytes:
        raise damaged(
            where, f"its functions make {whole.nodes} nodes and {whole.nbytes} bytes of it"
        )
    for holder in (proto.graph, *functions.values()):
        if any(_is_sparse(part) for part in (holder, *_inner_graphs(holder))):
            raise damaged(where, "it has a sparse weight, which onlooker does not write")


class _Expanded:
    """The size of a graph when all calls of functions are expanded."""

    def __init__(self, nodes: int, nbytes: int) -> None:
        self.nodes, self.nbytes = nodes, nbytes

    def __add__(self, other: _Expanded) -> _Expanded:
        return _Expanded(self.nodes + other.nodes, self.nbytes + other.nbytes)


class _KnownSizes:
    """The expanded sizes of functions, each found once."""

    def __init__(self, functions: dict[Any, Any], limit: _Expanded, where: str) -> None:
        self._functions, self._limit, self._where = functions, limit, where
        self._known: dict[Any, _Expanded] = {}
        self._above: list[Any] = []

    def of(self, holder: Any) -> _Expanded:
        """The size of a graph or of a function."""
        total = _Expanded(0, holder.ByteSize())
        for node in _nodes(holder):
            total += _Expanded(1, 0)
            key = (node.domain, node.op_type, getattr(node, "overload", ""))
            if key in self._functions:
                total += self._of_function(key)
        # more digits say nothing, and would grow with each function
        return _Expanded(
            min(total.nodes, 2 * self._limit.nodes), min(total.nbytes, 2 * self._limit.nbytes)
        )

    def _of_function(self, key: Any) -> _Expanded:
        if key in self._above or len(self._above) > len(self._functions):
            raise damaged(self._where, f"the function {key[1][:80]!r} calls itself")
        if key not in self._known:
            self._above.append(key)
            self._known[key] = self.of(self._functions[key])
            self._above.pop()
        return self._known[key]


def _key(function: Any) -> tuple[str, str, str]:
    return function.domain, function.name, getattr(function, "overload", "")


def _nodes(holder: Any) -> Iterator[Any]:
    """The nodes of a graph or of a function, and those of the graphs inside of them."""
    yield from holder.node
    for graph in _inner_graphs(holder):
        yield from graph.node


def _inner_graphs(holder: Any) -> Iterator[Any]:
    below = list(holder.node)
    while below:
        for graph in graphs_inside(below.pop()):
            yield graph
            below += graph.node


def graphs_inside(node: Any) -> Iterator[Any]:
    """The graphs among the attributes of a node of protobuf: the branches of an ``If``, the body of a loop."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _is_sparse(holder: Any) -> bool:
    if len(getattr(holder, "sparse_initializer", ())):
        return True
    attributes = (attribute for node in holder.node for attribute in node.attribute)
    return any(a.HasField("sparse_tensor") or len(a.sparse_tensors) for a in attributes)

"""Marks graphs of other runtimes with the values that they do not treat as torch does.

``amax`` of torch gives NaN where one number is NaN; ONNX Runtime and OpenVINO leave it out, as IEEE
754 allows, and so do their ``Relu``, ``Clip``, ``ArgMax`` and pools. A graph for them takes no NaN,
unless NaN is what the model is about: it asks for it (``isnan``, ``nan_to_num``), or watched calls
had some. Then it is tried beside infinite numbers, and a graph that is wrong with either takes none.

An id that is no row of a table is an error of torch. ONNX Runtime takes the last row for -1, and
OpenVINO takes zeros for any such id. So a graph for them takes the ids that are rows, where an
argument goes into a table as it is::

    def forward(self, ids):              # ids of 0 to 9, for a table of 10 rows
        return self.table(ids)

OpenVINO computes ints of 64 bits in 32: of ``3_000_000_000 // 7`` it gives -306783378. It compares and adds up ints as
floats, of 24 bits: 16777216 is 16777217. A graph for it takes ints below 2**24, and below 2**31 where watched calls
had larger ones, as seconds since 1970. Trials tell whether it computes what is larger than 2**24 as the model does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..core.marks import FINITE, NUMBERS, SINGLE, ids_in, ids_mark, ints_mark
from ..core.runtimes import RUNTIMES
from ..observing.store import Sample
from ..proofs.operators import MOVES
from ..pytrees.numbers import large_int
from ..torch_internals.graph_modules import placeholders_of
from ..trace.graph import Graph

__all__ = ["bound_to_values", "not_finite"]

#: ints below these powers of 2 are exact: in the floats of OpenVINO, and in its ints
_POWERS = (24, 31)
#: operators that read or write rows of their first argument, along a dimension, at the ids in their third one
_AT_IDS = frozenset({"index_select", "gather", "scatter", "scatter_add", "scatter_reduce"})
_AT_IDS |= {"index_add", "index_copy", "index_fill", "index_reduce"}
_ASKS = ("isnan", "isfinite", "isinf", "isposinf", "isneginf", "nan_to_num", "nansum", "nanmean")


def bound_to_values(
    converted: Sequence[Graph], graphs: Iterable[Graph], samples: Sequence[Sample]
) -> list[Graph]:
    """The converted graphs, marked where they take no NaN, and with the ids that they take;
    ``graphs`` are those of torch.
    """
    sources = {graph.name: graph for graph in graphs}
    has_nan = any(map(_has_nan, samples))
    power = next((one for one in _POWERS if not any(_has_large(s, one) for s in samples)), None)
    found = []
    for one in converted:
        source = sources.get(one.name)
        if not has_nan and not (source is not None and _asks_for_nan(source)):
            one = _marked(one, NUMBERS)
        if source is not None and RUNTIMES[one.target].takes_other_ids:
            ids = dict.fromkeys(_marks_of_ids(source), f"the runtime of {one.target}")
            one = replace(one, marks={**one.marks, **ids})
        if RUNTIMES[one.target].narrows_numbers:
            ints = [ints_mark(power)] if power and _takes_ints(one) else []
            floats = [SINGLE] if any(leaf.is_float for leaf in one.plan.inputs) else []
            narrow = dict.fromkeys((*ints, *floats), f"the runtime of {one.target}")
            one = replace(one, marks={**one.marks, **narrow})
        found.append(one)
    return found


def not_finite(graph: Graph, samples: Sequence[Sample]) -> Graph:
    """A converted graph, marked so that it takes neither NaN nor infinite numbers, unless watched calls
    had NaN.
    """
    return graph if any(map(_has_nan, samples)) else _marked(graph, NUMBERS, FINITE)


def _marked(graph: Graph, *marks: str) -> Graph:
    if not RUNTIMES[graph.target].leaves_out_nan:
        return graph
    own = dict.fromkeys(marks, f"the runtime of {graph.target}")
    return replace(graph, marks={**graph.marks, **own})


def _has_nan(sample: Sample) -> bool:
    return any(bool(floats.isnan().any()) for floats in sample.floats())


def _takes_ints(graph: Graph) -> bool:
    """True for a graph with an input of ints that goes into no table of its own."""
    tables = {path for path, _, _ in ids_in(graph.marks)}
    return any(
        leaf.value is not None
        or (leaf.dtype in ("torch.int32", "torch.int64") and str(leaf.path) not in tables)
        for leaf in graph.plan.inputs
    )


def _has_large(sample: Sample, power: int) -> bool:
    return any(large_int(leaf, power) is not None for leaf in sample.inputs.leaves)


def _asks_for_nan(graph: Graph) -> bool:
    nodes = graph.artifact.graph.nodes
    return not {_operator(node) for node in nodes}.isdisjoint(_ASKS)


def _operator(node: torch.fx.Node) -> str:
    """The name of the operator of torch that a node calls; empty for other nodes."""
    schema = getattr(node.target, "_schema", None)
    return str(getattr(schema, "name", "")).removeprefix("aten::")


def _marks_of_ids(graph: Graph) -> Iterator[str]:
    """Yields a mark for each input whose elements all are rows of tables of known lengths."""
    nodes = placeholders_of(graph.artifact)
    for path, name in graph.names.items():
        node = nodes.get(name)
        bounds = [] if node is None or not _holds_ids(node) else list(_bounds_of(node))
        if bounds:
            lows, highs = zip(*bounds, strict=True)
            yield ids_mark(str(path), max(lows), min(highs))


def _holds_ids(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in (torch.int32, torch.int64)


def _bounds_of(ids: torch.fx.Node) -> Iterator[tuple[int, int]]:
    """Yields the least and the greatest id of each table that a tensor of ids goes into, also after a number was added
    to the ids.
    """
    for user in ids.users:
        name = _operator(user)
        args: Any = user.args
        if name in MOVES:
            yield from _bounds_of(user)
        elif name in ("add", "sub") and args[0] is ids and type(args[1]) is int and not user.kwargs:
            added = args[1] if name == "add" else -args[1]
            yield from ((low - added, high - added) for low, high in _bounds_of(user))
        elif name == "one_hot":
            classes = args[1] if len(args) > 1 else -1  # as many as the greatest id says
            if type(classes) is int and classes > 0:
                yield 0, classes - 1
        else:
            yield from _bounds_of_rows(name, args, ids)


def _bounds_of_rows(name: str, args: Any, ids: torch.fx.Node) -> Iterator[tuple[int, int]]:
    """Yields the least and the greatest row of a tensor that an operator reads, or writes, at some ids, where their
    number is fixed.
    """
    table, dim, least = None, 0, 0
    if name == "embedding" and args[1] is ids:
        table = args[0]
    elif name in _AT_IDS and args[2] is ids:
        table, dim = args[0], args[1]
    elif name in ("index", "index_put") and ids in args[1]:
        table, dim, least = args[0], args[1].index(ids), -1
    rows = table.meta["val"].shape[dim] if isinstance(table, torch.fx.Node) else None
    if isinstance(rows, int):
        yield least * rows, rows - 1

"""Upper bounds of sizes, where ExecuTorch reads them: in the ranges that torch keeps of its symbols.

Without a bound ExecuTorch plans its memory for the sizes of the example, and refuses larger ones
when it runs. Upstream: https://github.com/pytorch/executorch/issues/20834,
``exir/sym_util.py``, ``eval_upper_bound``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._sympy.value_ranges import ValueRanges

from ...core.expression import Expression
from ...trace.graph import Graph
from ...trace.obtained import sizes_in_plan
from ..ranges import greatest

__all__ = ["bounds_in_torch"]


@contextlib.contextmanager
def bounds_in_torch(graphs: Sequence[Graph]) -> Iterator[None]:
    """Inside the block torch knows the greatest value of each symbol of the programs of ``graphs``,
    whose plans have bounds. Afterwards the programs are as they were.

    A size that is an expression of others needs nothing: ExecuTorch computes its bound from theirs.
    """
    with contextlib.ExitStack() as stack:
        for graph in graphs:
            stack.enter_context(_bounded(graph))
        yield


@contextlib.contextmanager
def _bounded(graph: Graph) -> Iterator[None]:
    environment = _environment(graph.artifact)
    if environment is None:
        yield
        return
    ranges = environment.var_to_range
    before = dict(ranges)
    symbols = {symbol.name: symbol for symbol in graph.plan.symbols}
    for symbol, size in sizes_in_plan(graph.artifact, graph.plan, graph.names).items():
        if symbol in ranges and size.free_symbols:
            bound = greatest(Expression(size), symbols)
            lower = ranges[symbol].lower
            ranges[symbol] = ValueRanges(lower, max(bound, int(lower)))
    environment._version_counter += 1  # what was decided with the other ranges is decided anew
    try:
        yield
    finally:
        ranges.update(before)
        environment._version_counter += 1
        environment.pending_fresh_unbacked_symbols.clear()


def _environment(program: torch.export.ExportedProgram) -> Any:
    """What torch knows of the sizes of a program; None where all are numbers."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    modes = (getattr(value, "fake_mode", None) for value in values)
    mode = next((mode for mode in modes if mode is not None), None)
    return None if mode is None else mode.shape_env

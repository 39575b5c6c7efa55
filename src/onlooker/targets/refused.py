"""Graphs that a target cannot convert: one error that says which sizes, which line of the model and
what to do, and the graphs that are left without them.

An example: a model sorts short texts, and has an operator that ONNX lacks for long ones. The graph
``main (sequence <= 24)`` is converted, and ``main_2 (sequence > 24)`` is not. Where all watched calls
were short, the program of ONNX is ``main`` alone, with a note; else the conversion fails.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.fx import Graph as FxGraph

from ..core.errors import ExportError
from ..core.plan import Range
from ..core.sizes.formula import bounds_in
from ..model_source.lines import place_of_node
from ..trace.graph import Graph
from .target import Target

__all__ = ["convert_or_leave_out", "last_words", "of_graph", "operator_in", "refused_graph"]

logger = logging.getLogger(__name__)
#: how many conditions of a graph stand in an error
_MOST_CONDITIONS = 3
_OPERATOR = re.compile(r"\b\w+\.\w+(?:\.\w+)?\b")


def last_words(error: Exception, most: int = 500) -> str:
    """The end of the message of another library, in one line."""
    return " ".join(str(error).split())[-most:]


def refused_graph(
    graph: Graph, error: ExportError, cause: BaseException | None = None
) -> ExportError:
    """The error of a target about a graph, which says ``cannot be ...``, with the name and the sizes
    of the graph before, and what to do.

    What other libraries said with the ``cause`` goes into the log.
    """
    logger.debug("%s %s", graph.name, error.message, exc_info=cause)
    error.graph = graph.name
    error.restate(f"{_described(graph)} {error.message}", _hint(graph))
    return error


@contextlib.contextmanager
def of_graph(graph: Graph, text_of_line: Callable[[str], str] = lambda _: "") -> Iterator[None]:
    """An export error of the block names the graph and its sizes; ``text_of_line`` finds the line of
    the model in what it says.
    """
    try:
        yield
    except ExportError as error:
        if not error.graph:
            error.graph = graph.name
            error.message += text_of_line(error.message)
            error.happened_at(_described(graph))
        raise


def _described(graph: Graph) -> str:
    """The name of a graph, with the conditions on its sizes where it has some."""
    regions = graph.contract.regions
    conditions = [c.formula for c in regions[0].constraints] if regions else []
    if not conditions:
        return graph.name
    shown = " and ".join(conditions[:_MOST_CONDITIONS])
    more = len(conditions) > _MOST_CONDITIONS or len(regions) > 1
    return f"{graph.name} ({shown}{' and more conditions' if more else ''})"


def _hint(graph: Graph) -> str:
    """The hint of the error: another operator, another target, or only sizes of other graphs."""
    hint = (
        "Write this line of the model with other operators. The torch program of the same plan may"
        " hold: export with to='torch'."
    )
    other = _sizes_of_others(graph)
    return (
        f"{hint} If no call needs these sizes, leave them out: ranges={other}." if other else hint
    )


def _sizes_of_others(graph: Graph) -> dict[str, Range]:
    """The ranges beyond a graph that ends at one size; nothing where it does not."""
    conditions = [c.formula for region in graph.contract.regions for c in region.constraints]
    bounds = bounds_in(conditions[0]) if len(conditions) == 1 else None
    if bounds is None:
        return {}
    name, low, high = bounds
    return {name: (None, low - 1) if low is not None else ((high or 0) + 1, None)}


def operator_in(text: str, graph: FxGraph) -> str:
    """The first operator of a graph that a message names, with the line of the model that calls it:
    ``(aten.sort.default, at model.py:12 in forward: ...)``; empty where the message names none.
    """
    named = set(_OPERATOR.findall(text))
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_function" and (name in named or name.rpartition(".")[0] in named):
            place = place_of_node(node)
            return f" ({name}, at {place})" if place else f" ({name})"
    return ""


def convert_or_leave_out(
    target: Target,
    graphs: Sequence[Graph],
    options: Mapping[str, Any],
    serves: Callable[[Sequence[Graph]], bool],
) -> tuple[list[Graph], list[str]]:
    """The graphs that a target converts, and for each of the others what it says of it.

    Graphs are left out only where the rest ``serves`` all watched calls.

    :raises ExportError: what the target says of a graph that a watched call needs
    """
    kept, left_out = list(graphs), list[str]()
    while True:
        try:
            return target.convert(kept, **options), left_out
        except ExportError as error:
            refusals = _refusals(target, kept, options, error)
            rest = [graph for graph in kept if graph.name not in refusals]
            if not refusals or not rest or not serves(rest):
                raise
            logger.debug("left out: %s", ", ".join(refusals))
            kept = rest
            left_out += refusals.values()


def _refusals(
    target: Target, graphs: Sequence[Graph], options: Mapping[str, Any], error: ExportError
) -> dict[str, str]:
    """The graphs that an error is about, with what it says of each; nothing where it is about none.

    A target that converts all graphs at once may not say which one it refuses: each is converted
    alone.
    """
    if error.graph or error.slug != f"{target.name}-refused" or len(graphs) == 1:
        is_known = any(graph.name == error.graph for graph in graphs)
        return {error.graph: error.message} if is_known else {}
    found: dict[str, str] = {}
    for graph in graphs:
        try:
            target.convert([graph], **options)
        except ExportError as own:
            found[graph.name] = own.message
    return found

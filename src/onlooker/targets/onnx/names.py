"""Readable names in a model of ONNX: inputs, outputs, axes, weights; the same for two exports of
one plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...proofs.exported_sizes import symbols_of
from ...trace.graph import Graph
from ..names import Names

__all__ = ["name_model", "order_inputs"]

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


def name_model(model: Any, graph: Graph, names: Names) -> None:
    """Names the inputs, outputs and axes of a converted model, and its weights as the model's
    own.
    """
    _name_values(model.graph, names, _inputs_of(model.graph, graph, names))
    symbols = {
        str(s): text for s, text in symbols_of(graph.artifact, graph.plan, graph.names).items()
    }
    _rename_axes(model, symbols)
    _name_axes(model.graph, graph)
    for value in list(model.graph.initializers.values()):
        own = str(value.name).removeprefix("watched.")
        if own != value.name and own not in _taken(model.graph):
            value.name = own


def order_inputs(model: Any, names: Sequence[str]) -> None:
    """Puts the inputs of a model into the order of ``names``; others follow."""
    places = {name: place for place, name in enumerate(names)}
    inputs = model.graph.inputs
    wanted = sorted(inputs, key=lambda value: places.get(str(value.name), len(places)))
    inputs.clear()
    inputs.extend(wanted)


def _name_axes(converted: Any, graph: Graph) -> None:
    """Gives axes the names that the user has for them, and axes of outputs that the converter left
    open the sizes of the trace.
    """
    import onnx_ir

    kinds = graph.outputs.kinds
    shapes: list[Sequence[str] | None] = [None] * len(converted.inputs)
    if len(kinds) == len(converted.outputs):
        shapes += [shape for _, shape in kinds]
    for value, traced in zip([*converted.inputs, *converted.outputs], shapes, strict=False):
        given = graph.axis_names.get(str(value.name), {})
        sizes = _sizes(value.shape, traced)
        if sizes is None:
            continue
        for dim, name in given.items():
            sizes[dim] = name
        value.shape = onnx_ir.Shape(sizes)


def _sizes(shape: Any, traced: Sequence[str] | None) -> list[int | str | None] | None:
    """The sizes of a value as its shape has them, else as they were ``traced``; None where nobody
    knows how many there are.
    """
    if shape is None:
        own: list[int | str | None] | None = None if traced is None else [None] * len(traced)
    else:
        own = [size if isinstance(size, int) else _number(size.value) for size in shape]
    if own is None or traced is None or len(traced) != len(own):
        return own
    for dim, text in enumerate(traced):
        if own[dim] is None and text != "?":
            own[dim] = _number(text)
    return own


def _number(size: str | None) -> int | str | None:
    """A size, which is a number where the condition of a graph makes it one."""
    return int(size) if size is not None and size.isdigit() else size


def _inputs_of(converted: Any, graph: Graph, names: Names) -> list[str]:
    """The names of the inputs that the converter keeps: an int that is a number in the graph is
    no input.
    """
    if len(converted.inputs) == len(names.inputs):
        return list(names.inputs)
    pairs = zip(graph.plan.inputs, names.inputs, strict=True)
    return [name for leaf, name in pairs if leaf.value is None or leaf.value.symbols]


def _name_values(graph: Any, names: Names, inputs: Sequence[str]) -> None:
    """Gives the names of inputs and outputs; whatever else has one of them is called otherwise
    first.
    """
    wanted = {*names.inputs, *names.outputs}
    taken = _taken(graph) | wanted
    for value in _values(graph):
        if value.name in wanted:
            value.name = _free(value.name, taken)
            taken.add(value.name)
    for value, name in zip([*graph.inputs, *graph.outputs], [*inputs, *names.outputs], strict=True):
        value.name = name


def _free(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_inner_{number}" in taken:
        number += 1
    return f"{name}_inner_{number}"


def _taken(graph: Any) -> set[str]:
    return {str(value.name) for value in _values(graph)}


def _values(graph: Any) -> Iterator[Any]:
    """Every value of the graph and of the graphs inside its nodes, each once."""
    seen: set[int] = set()
    for value in _all_values(graph):
        if id(value) not in seen:
            seen.add(id(value))
            yield value


def _all_values(graph: Any) -> Iterator[Any]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph.all_nodes():
        yield from node.outputs
    for inner in graph.subgraphs():
        yield from inner.inputs
        yield from inner.initializers.values()


def _rename_axes(model: Any, names: Mapping[str, str]) -> None:
    """Calls every symbolic axis of the model as the plan does: ``s33 + s70`` is
    ``past_sequence + sequence``.
    """
    import onnx_ir

    def renamed(text: str | None) -> str | None:
        return text and _SYMBOL.sub(lambda found: names.get(found.group(), found.group()), text)

    for value in _values(model.graph):
        if value.shape is not None:  # made anew: results may share a shape that cannot be changed
            value.shape = onnx_ir.Shape(
                [size if isinstance(size, int) else renamed(size.value) for size in value.shape]
            )

"""A cache as the state of a model of OpenVINO: neither an input nor an output, it stays inside from
one call to the next.

The transformation MakeStateful of OpenVINO pairs an input with an output. It leaves open what a
state is before the first call: each one gets the value that the plan has for a call without the
cache, zeros of the sizes of that call, along an axis of no elements.

Upstream: https://docs.openvino.ai/2026/openvino-workflow/running-inference/inference-request/stateful-models.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import ExportError
from ...core.plan import LeafPlan, Plan
from ...core.sizes.expression import Expression
from ...trace.graph import Graph
from ..names import names_of
from ..refused import last_words

__all__ = ["State", "check_stateful", "keep_states", "states_of"]


@dataclass(frozen=True, slots=True)
class State:
    """One tensor of a cache: the positions of its input in the plan, and of its output among the
    results of the graph; ``name`` is that of the variable of OpenVINO.
    """

    input: int
    output: int
    name: str


def states_of(graph: Graph) -> tuple[State, ...]:
    """The tensors that stand at the same place inside of an argument and of a result, as those of a
    cache do: ``past_key_values.layers[0].keys``.
    """
    names, outputs = names_of(graph), graph.outputs
    paths = [
        path.entries
        for path, is_given in zip(outputs.structure.paths(), outputs.dynamic, strict=True)
        if is_given
    ]
    found = []
    for position, leaf in enumerate(graph.plan.inputs):
        inner = leaf.path.entries[1:]
        ends = [at for at, path in enumerate(paths) if inner and path[-len(inner) :] == inner]
        if len(ends) == 1:
            name = f"{names.inputs[position]}{names.outputs[ends[0]]}"
            found.append(State(position, ends[0], name))
    return tuple(found)


def check_stateful(graphs: Sequence[Graph]) -> None:
    """Passes for a program of one graph: no model reads the states of another one.

    :raises ExportError: ``openvino-not-stateful``
    """
    if len(graphs) > 1:
        raise _refused(
            graphs[0],
            f"the program has {len(graphs)} graphs, and each would have a cache of its own",
        )


def keep_states(model: Any, graph: Graph) -> None:
    """Makes the cache of a graph a state of its model, in place.

    :raises ExportError: ``openvino-not-stateful`` with the reason
    """
    states = states_of(graph)
    if not states:
        raise _refused(graph, "it neither takes nor gives a cache")
    _check_complete(graph, states)
    names = names_of(graph)
    kept = {names.inputs[state.input] for state in states}
    others = {
        leaf: port
        for leaf, name in zip(graph.plan.inputs, names.inputs, strict=True)
        for port in model.inputs
        if name not in kept and name in port.get_names()
    }
    first = {
        state.name: _first_shape(graph, graph.plan.inputs[state.input], others) for state in states
    }
    try:
        _make_stateful(model, {names.inputs[s.input]: names.outputs[s.output] for s in states})
        _give_first_values(model, first)
    except RuntimeError as error:
        raise _refused(graph, last_words(error)) from error


def _check_complete(graph: Graph, states: Sequence[State]) -> None:
    """Passes where all leaves of the caches are states: a cache that is taken apart is none."""
    roots = {graph.plan.inputs[state.input].path.root for state in states}
    positions = {state.input for state in states}
    for position, leaf in enumerate(graph.plan.inputs):
        if leaf.path.root not in roots:
            continue
        if not leaf.is_tensor:
            raise _refused(graph, f"{leaf.path} is a number, and OpenVINO keeps tensors alone")
        if position not in positions:
            raise _refused(graph, f"{leaf.path} is not among the results")
        if leaf.fill is None or leaf.fill.kind not in ("empty", "zeros"):
            raise _refused(graph, f"{leaf.path} has no value before the first call")


#: a size before the first call: a number, or an input and a dimension of it
_Source = int | tuple[Any, int]


def _first_shape(graph: Graph, leaf: LeafPlan, others: Mapping[LeafPlan, Any]) -> list[_Source]:
    """The sources of the sizes of a state before the first call."""
    shape: list[_Source] = []
    for dim, expression in enumerate(leaf.shape):
        if leaf.empty_dim == dim:
            shape.append(0)
        elif expression.is_constant:
            shape.append(expression.evaluate({}))
        else:
            shape.append(_source(graph, leaf, expression, others))
    return shape


def _source(
    graph: Graph, leaf: LeafPlan, expression: Expression, others: Mapping[LeafPlan, Any]
) -> _Source:
    for other, port in others.items():
        for dim, size in enumerate(other.shape):
            if size == expression:
                return port, dim
    if expression.is_symbol and _is_open(graph.plan, expression):
        return 0
    raise _refused(graph, f"no other argument tells {expression}, a size of {leaf.path}")


def _is_open(plan: Plan, expression: Expression) -> bool:
    """True for a symbol that may be 0: that of what was there before."""
    return plan.symbol(expression.symbols[0]).low == 0


def _make_stateful(model: Any, pairs: Mapping[str, str]) -> None:
    """OpenVINO allows a variable no range of sizes: sizes that change are open."""
    from openvino import PartialShape
    from openvino._offline_transformations import apply_make_stateful_transformation

    shapes = {}
    for port in model.inputs:
        shape = port.get_partial_shape()
        if port.get_names() & set(pairs):
            shape = PartialShape([size if size.is_static else -1 for size in shape])
        shapes[port.get_any_name()] = shape
    model.reshape(shapes)
    apply_make_stateful_transformation(model, dict(pairs))


def _give_first_values(model: Any, shapes: Mapping[str, Sequence[_Source]]) -> None:
    from openvino import opset13

    for node in model.get_ops():
        if node.get_type_name() != "ReadValue":
            continue
        sizes = []
        for source in shapes[node.get_variable_id()]:
            if isinstance(source, int):
                sizes.append(opset13.constant([source], dtype="int64"))
                continue
            port, dim = source
            shape = opset13.shape_of(port, output_type="i64")
            at, axis = opset13.constant([dim]), opset13.constant(0)
            sizes.append(opset13.gather(shape, at, axis))
        zero = opset13.constant(0, dtype=node.get_output_element_type(0).to_dtype())
        node.set_arguments([opset13.broadcast(zero, opset13.concat(sizes, 0))])
    model.validate_nodes_and_infer_types()


def _refused(graph: Graph, reason: str) -> ExportError:
    return ExportError(
        f"{graph.name} cannot keep its cache inside of a model of OpenVINO: {reason}.",
        slug="openvino-not-stateful",
        hint="Without stateful=True the cache is an argument and a result: to('openvino').",
    )

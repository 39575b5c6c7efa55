"""Several models of ONNX as one: an ``If`` on the number of the graph, which the sizes of the inputs
say, or an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import ExportError
from ...trace.graph import Graph
from ..places import places_of
from .choice import CHOSEN, choice_by_sizes
from .weights import external_proto, large_tensors

__all__ = ["MERGED", "SELECTOR", "merged_model"]

#: the file of all graphs
MERGED = "merged.onnx"
#: the input that says by its number which graph is run
SELECTOR = "onlooker_graph"


def merged_model(models: Sequence[Any], graphs: Sequence[Graph]) -> Any:
    """One model of onnx_ir for several, whose shared weights are there once.

    Where all graphs have the same inputs and constants, the model looks at their sizes, and runs the first graph
    whose contract holds. Else it has the inputs of all of them: those that a graph does not have may
    be anything, empty tensors for example, and ``onlooker_graph`` is the number of the graph. Inputs
    of one name must be of one dtype and number of dimensions, and all graphs must give the same
    outputs.

    :raises ExportError: ``not-mergeable``
    """
    import onnx_ir

    tensors = {
        id(tensor.raw): tensor for model in models for tensor in large_tensors(model).values()
    }
    places = places_of({key: tensor.raw for key, tensor in tensors.items()})
    protos = [external_proto(model, places) for model in models]
    _check_alike(protos, [graph.name for graph in graphs])
    merged = onnx_ir.serde.deserialize_model(_merge(protos, graphs))
    by_offset = {place.offset: tensors[key] for key, place in places.items()}
    for value in merged.graph.initializers.values():
        if isinstance(value.const_value, onnx_ir.ExternalTensor):
            tensor = by_offset[value.const_value.offset or 0]
            value.const_value = onnx_ir.Tensor(tensor.raw, dtype=tensor.dtype, name=value.name)
    return merged


def _check_alike(protos: Sequence[Any], graph_names: Sequence[str]) -> None:
    """Passes when the graphs can have one set of inputs and of outputs.

    :raises ExportError: ``not-mergeable``
    """
    seen: dict[str, tuple[str, Any]] = {}
    for proto, graph in zip(protos, graph_names, strict=True):
        for value in proto.graph.input:
            tensor = value.type.tensor_type
            kind = (tensor.elem_type, len(tensor.shape.dim))
            first, other = seen.setdefault(value.name, (graph, kind))
            if other != kind:
                raise _not_mergeable(
                    f"{first} and {graph} take {value.name} in another dtype or number of"
                    " dimensions"
                )
    outputs = [
        [(value.name, value.type.tensor_type.elem_type) for value in proto.graph.output]
        for proto in protos
    ]
    for graph, given in zip(graph_names, outputs, strict=True):
        if given != outputs[0]:
            raise _not_mergeable(f"{graph_names[0]} and {graph} give other outputs")


def _not_mergeable(reason: str) -> ExportError:
    return ExportError(
        f"The graphs cannot be one model: {reason}.",
        slug="not-mergeable",
        hint=(
            "Leave merged=True out: there is a model for each graph then, and weights are shared"
            " all the same."
        ),
    )


def _merge(protos: Sequence[Any], graphs: Sequence[Graph]) -> Any:
    import onnx
    from onnx import helper

    graph_names = [graph.name for graph in graphs]
    outer: dict[str, Any] = {}
    branches = [_branch(proto, number, outer) for number, proto in enumerate(protos)]
    outputs = [value.name for value in protos[0].graph.output]
    selector = helper.make_tensor_value_info(SELECTOR, onnx.TensorProto.INT64, [])
    ends = [_widest([proto.graph.output[i] for proto in protos]) for i in range(len(outputs))]
    inputs = _inputs(protos)
    if _have_same_inputs(protos) and all(graph.form == graphs[0].form for graph in graphs):
        nodes = [*choice_by_sizes(graphs), *_choice(branches, 0, outputs, CHOSEN)]
    else:
        nodes = _choice(branches, 0, outputs, SELECTOR)
        inputs.append(selector)
    graph = helper.make_graph(nodes, "merged", inputs, ends, list(outer.values()))
    model = helper.make_model(
        graph, opset_imports=protos[0].opset_import, ir_version=protos[0].ir_version
    )
    model.producer_name, model.producer_version = (
        protos[0].producer_name,
        protos[0].producer_version,
    )
    for proto, name in zip(protos, graph_names, strict=True):
        known = {
            entry.key: entry.value
            for entry in proto.metadata_props
            if entry.key.startswith("onlooker.")
        }
        about = {
            f"onlooker.{name}.{key.removeprefix('onlooker.')}": value
            for key, value in known.items()
        }
        helper.set_model_props(model, {**{e.key: e.value for e in model.metadata_props}, **about})
    return model


def _have_same_inputs(protos: Sequence[Any]) -> bool:
    """True where every graph has the inputs of the first one."""
    names = [{value.name for value in proto.graph.input} for proto in protos]
    return all(own == names[0] for own in names)


def _branch(proto: Any, number: int, outer: dict[str, Any]) -> Any:
    """The graph as a branch without inputs; its large weights go to ``outer``, each once."""
    from onnx import compose

    prefix = f"graph_{number}_"
    graph = compose.add_prefix(proto, prefix, rename_inputs=False, rename_functions=False).graph
    renamed: dict[str, str] = {}
    kept = []
    for weight in graph.initializer:
        own = weight.name.removeprefix(prefix)
        offset = next(
            (entry.value for entry in weight.external_data if entry.key == "offset"), None
        )
        if offset is None:
            renamed[own] = (
                weight.name
            )  # the body of a loop still says it: add_prefix renames there results only
            kept.append(weight)
            continue
        same = next((name for name, w in outer.items() if _offset(w) == offset), None)
        name = own if same is None else same
        while same is None and name in outer:
            name += "_"
        renamed[own] = renamed[weight.name] = name
        if same is None:
            weight.name = name
            outer[name] = weight
    for node in _nodes(graph):
        node.input[:] = [renamed.get(name, name) for name in node.input]
    del graph.input[:]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return graph


def _offset(weight: Any) -> str:
    return next(str(entry.value) for entry in weight.external_data if entry.key == "offset")


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(inner)


def _choice(
    branches: Sequence[Any], number: int, outputs: Sequence[str], selector: str
) -> list[Any]:
    """The nodes that run branch ``number`` where the value ``selector`` is it, and choose among the
    others elsewhere.
    """
    import onnx
    from onnx import helper

    if number == len(branches) - 2:
        other = branches[-1]
    else:
        inner = [f"choice_{number + 1}_{name}" for name in outputs]
        ends = [helper.make_empty_tensor_value_info(name) for name in inner]
        for end, value in zip(ends, branches[number].output, strict=True):
            end.type.tensor_type.elem_type = value.type.tensor_type.elem_type
        other = helper.make_graph(
            _choice(branches, number + 1, inner, selector), f"choice_{number + 1}", [], ends
        )
    this, condition = f"onlooker_number_{number}", f"onlooker_is_{number}"
    constant = helper.make_tensor(this, onnx.TensorProto.INT64, [], [number])
    return [
        helper.make_node("Constant", [], [this], value=constant),
        helper.make_node("Equal", [selector, this], [condition]),
        helper.make_node(
            "If", [condition], outputs, then_branch=branches[number], else_branch=other
        ),
    ]


def _inputs(protos: Sequence[Any]) -> list[Any]:
    found: dict[str, list[Any]] = {}
    for proto in protos:
        for value in proto.graph.input:
            found.setdefault(value.name, []).append(value)
    return [_widest(values) for values in found.values()]


def _widest(values: Sequence[Any]) -> Any:
    """One description for all: an axis on which they disagree has a name of its own."""
    made = type(values[0])()
    made.CopyFrom(values[0])
    for dim, size in enumerate(made.type.tensor_type.shape.dim):
        others = [value.type.tensor_type.shape.dim for value in values]
        if any(len(other) <= dim or other[dim] != others[0][dim] for other in others):
            size.dim_param = f"{made.name}_dim_{dim}"
    return made

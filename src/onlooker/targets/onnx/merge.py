"""Several models of ONNX as one: an ``If`` on the number of the graph, which the sizes of the inputs
say, or an input.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...contract.places import formulas_of, spelled_axis
from ...core.errors import ExportError
from ...core.sizes.formula import read_formula
from ...trace.graph import Graph
from ..places import places_of
from .runtime.bounds import graphs_inside
from .weights import external_proto, large_tensors

__all__ = ["MERGED", "SELECTOR", "merged_model", "models_of"]


# Nodes of ONNX that say by the sizes of the inputs which graph of a merged model takes a call.
#: the value that is the number of the graph that takes the call
CHOSEN = "onlooker_by_sizes"
_BINARY: Mapping[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
}
#: the operator of a comparison, and whether its answer is turned round
_COMPARED: Mapping[type[ast.cmpop], tuple[str, bool]] = {
    ast.Eq: ("Equal", False),
    ast.NotEq: ("Equal", True),
    ast.Lt: ("Less", False),
    ast.LtE: ("LessOrEqual", False),
    ast.Gt: ("Greater", False),
    ast.GtE: ("GreaterOrEqual", False),
}
_FUNCTIONS: Mapping[str, str] = {
    "min": "Min",
    "max": "Max",
    "abs": "Abs",
    "round": "Round",
    "floor": "Floor",
    "ceil": "Ceil",
    "sqrt": "Sqrt",
}


def choice_by_sizes(graphs: Sequence[Graph]) -> list[Any]:
    """The nodes that give :data:`CHOSEN`: the number of the first graph whose contract the sizes of
    the inputs satisfy. ONNX Runtime refuses a call that no graph takes.

    Sizes are compared as doubles, which are exact for whole numbers up to 2**53.

    :raises ExportError: ``not-mergeable`` for a condition that ONNX cannot express
    """
    made = _Nodes()
    found = made.number(len(graphs))
    for number, graph in reversed([*enumerate(graphs)]):
        found = made.add("Where", made.takes(graph), made.number(number), found)
    index = made.add("Cast", found, to=made.int64)
    numbers = made.constant(made.int64, [len(graphs)], list(range(len(graphs))))
    made.add("Gather", numbers, index, output=CHOSEN, axis=0)
    return made.nodes


@dataclass(slots=True)
class _Nodes:
    """Nodes that are added one after the other; each value has a name of its own."""

    nodes: list[Any] = field(default_factory=list)
    _known: dict[Any, str] = field(default_factory=dict)

    @property
    def int64(self) -> int:
        """The number of the type of whole numbers."""
        return _type("INT64")

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node and gives the name of its result; an equal node is there once."""
        from onnx import helper

        key = (operator, inputs, output, tuple(sorted(attributes.items())))
        if key not in self._known:
            name = output or f"onlooker_size_{len(self.nodes)}"
            self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
            self._known[key] = name
        return self._known[key]

    def constant(self, kind: int, shape: Sequence[int], values: Sequence[Any]) -> str:
        """A constant of these values."""
        from onnx import helper

        key = (kind, *shape, *values)
        if key not in self._known:
            name = f"onlooker_size_{len(self.nodes)}"
            tensor = helper.make_tensor(name, kind, shape, values)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            self._known[key] = name
        return self._known[key]

    def number(self, value: float) -> str:
        """A number, as a double."""
        return self.constant(_type("DOUBLE"), [], [float(value)])

    def truth(self, value: bool) -> str:
        """True or False."""
        return self.constant(_type("BOOL"), [], [value])

    def takes(self, graph: Graph) -> str:
        """The name of a value that is True where the sizes satisfy the plan and contract of a graph."""
        labels = dict(zip(graph.names.values(), graph.labels, strict=True))
        formulas = formulas_of(graph.plan, graph.contract, spelled_axis(graph.names))
        found = self.truth(True)
        for formula in formulas:
            tree = read_formula(formula, list(labels))
            found = self.add("And", found, self.value(tree, labels))
        return found

    def value(self, tree: ast.expr, labels: Mapping[str, str]) -> str:
        """The value of a formula over the sizes of inputs.

        :raises ExportError: ``not-mergeable``
        """
        if isinstance(tree, ast.Constant) and isinstance(tree.value, (bool, int, float)):
            value = tree.value
            return self.truth(value) if isinstance(value, bool) else self.number(value)
        if isinstance(tree, ast.Name):
            return self.add("Cast", labels[tree.id], to=_type("DOUBLE"))
        if isinstance(tree, ast.Subscript):
            return self._size(tree, labels)
        if isinstance(tree, ast.BoolOp):
            operator = "And" if isinstance(tree.op, ast.And) else "Or"
            first, *rest = [self.value(part, labels) for part in tree.values]
            for other in rest:
                first = self.add(operator, first, other)
            return first
        if isinstance(tree, ast.UnaryOp):
            operator = "Not" if isinstance(tree.op, ast.Not) else "Neg"
            return self.add(operator, self.value(tree.operand, labels))
        if isinstance(tree, ast.Compare):
            return self._comparison(tree, labels)
        if isinstance(tree, ast.IfExp):
            parts = [self.value(part, labels) for part in (tree.test, tree.body, tree.orelse)]
            return self.add("Where", *parts)
        if isinstance(tree, ast.BinOp):
            return self._arithmetic(tree, labels)
        if isinstance(tree, ast.Call):
            return self._call(tree, labels)
        raise _not_expressed(tree)

    def _size(self, tree: ast.Subscript, labels: Mapping[str, str]) -> str:
        """The size of an axis: ``x.shape[1]``."""
        if not isinstance(tree.value, ast.Attribute) or not isinstance(tree.value.value, ast.Name):
            raise _not_expressed(tree)
        shape = self.add("Shape", labels[tree.value.value.id])
        dim: Any = tree.slice
        place = self.constant(self.int64, [], [dim.value])
        return self.add("Cast", self.add("Gather", shape, place, axis=0), to=_type("DOUBLE"))

    def _comparison(self, tree: ast.Compare, labels: Mapping[str, str]) -> str:
        sides = [self.value(side, labels) for side in (tree.left, *tree.comparators)]
        found = self.truth(True)
        for kind, left, right in zip(tree.ops, sides, sides[1:], strict=False):
            operator, is_turned = _COMPARED[type(kind)]
            answer = self.add(operator, left, right)
            answer = self.add("Not", answer) if is_turned else answer
            found = self.add("And", found, answer)
        return found

    def _arithmetic(self, tree: ast.BinOp, labels: Mapping[str, str]) -> str:
        left, right = self.value(tree.left, labels), self.value(tree.right, labels)
        if type(tree.op) in _BINARY:
            return self.add(_BINARY[type(tree.op)], left, right)
        quotient = self.add("Floor", self.add("Div", left, right))
        if isinstance(tree.op, ast.FloorDiv):
            return quotient
        if isinstance(tree.op, ast.Mod):  # the sign of the divisor, as in Python
            return self.add("Sub", left, self.add("Mul", quotient, right))
        raise _not_expressed(tree)

    def _call(self, tree: ast.Call, labels: Mapping[str, str]) -> str:
        values = [self.value(argument, labels) for argument in tree.args]
        function: Any = tree.func
        name = function.attr if isinstance(function, ast.Attribute) else function.id
        if name == "float" and len(values) == 1:
            return values[0]
        if name in ("int", "trunc") and len(values) == 1:  # the whole part: towards 0
            size = self.add("Floor", self.add("Abs", values[0]))
            return self.add("Mul", size, self.add("Sign", values[0]))
        if name not in _FUNCTIONS:
            raise _not_expressed(tree)
        return self.add(_FUNCTIONS[name], *values)


def _type(name: str) -> int:
    import onnx

    return int(onnx.TensorProto.DataType.Value(name))


def _not_expressed(tree: ast.expr) -> ExportError:
    return ExportError(
        f"The graphs cannot be one model: ONNX has no operators for {ast.unparse(tree)!r}, which says"
        " when a graph takes a call.",
        slug="not-mergeable",
        hint="Save a folder, which has a model for each graph: a path without a suffix.",
    )


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


def models_of(graphs: Sequence[Graph]) -> list[Any]:
    """The models of some graphs, each once: several graphs may be one model."""
    return list({id(graph.artifact.model): graph.artifact.model for graph in graphs}.values())


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for inner in graphs_inside(node):
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

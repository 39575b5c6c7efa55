"""Weights of a class of tensors, as torchao makes them, taken apart to the plain tensors that they hold.

A weight of such a class is one parameter of a trace, from which the graph reads the integers and the
scales by name. No file has room for its class, and no other target knows it. So each plain tensor becomes
a weight of its own::

    p_up_weight: Int8Tensor                       b_up_weight_qdata: int8, b_up_weight_scale: float32
    access(p_up_weight, "qdata") -> t -> mm  ->   b_up_weight_qdata -> t -> mm

Operators that came with the class, and that are made of operators of torch, are replaced by these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, Node

from ..torch_internals.fake_tensors import is_tensor_of_tensors
from ..torch_internals.operators import OpOverload, access_inner_tensor
from ..torch_internals.tracing import proxy_tensor

__all__ = ["take_weights_apart"]

#: the operators of torch itself
_OF_TORCH = ("aten", "prims", "prim", "higher_order", "quantized_decomposed")


def take_weights_apart(program: torch.export.ExportedProgram) -> None:
    """Makes weights of each plain tensor that a weight holds, in place; a weight that the graph also
    reads as a whole stays.
    """
    taken_apart = False
    for spec in list(program.graph_signature.input_specs):
        is_weight = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        value = program.state_dict.get(str(spec.target)) if is_weight else None
        if value is not None and is_tensor_of_tensors(value):
            taken_apart = _take_apart(program, spec, value) or taken_apart
    if taken_apart:
        _replace_operators(program.graph_module.graph)
        program.graph_module.graph.eliminate_dead_code()
        program.graph_module.recompile()


def _take_apart(program: torch.export.ExportedProgram, spec: InputSpec, value: Any) -> bool:
    """Makes weights of the tensors that the graph reads of one; they stand where it stood. False where
    the graph reads the weight itself.
    """
    specs = program.graph_signature.input_specs
    graph = program.graph_module.graph
    node = next(one for one in graph.find_nodes(op="placeholder") if one.name == spec.arg.name)
    readers = [user for user in node.users if user.target is access_inner_tensor]
    if len(readers) < len(node.users):
        return False
    made: dict[str, Node] = {}
    for reader in readers:
        attribute = str(reader.args[1])
        if attribute not in made:
            full = f"{spec.target}_{attribute}"
            with graph.inserting_before(node):
                made[attribute] = graph.placeholder(f"b_{full.replace('.', '_')}")
            made[attribute].meta["val"] = reader.meta["val"]
            argument = TensorArgument(made[attribute].name)
            added = InputSpec(InputKind.BUFFER, argument, full, persistent=True)
            specs.insert(specs.index(spec), added)
            program.state_dict[full] = getattr(value, attribute)
        reader.replace_all_uses_with(made[attribute])
        graph.erase_node(reader)
    graph.erase_node(node)
    specs.remove(spec)
    del program.state_dict[str(spec.target)]
    return True


def _replace_operators(graph: Graph) -> None:
    """Replaces operators of other packages by the operators of torch that they are made of."""
    for node in list(graph.nodes):
        operator = node.target
        if not isinstance(operator, OpOverload) or operator.namespace in _OF_TORCH:
            continue
        if not operator._can_decompose() or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        parts = _parts_of(node)
        values = dict(zip(parts.find_nodes(op="placeholder"), node.all_input_nodes, strict=True))
        with graph.inserting_before(node):
            made: Any = graph.graph_copy(parts, values)
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made)
        graph.erase_node(node)


def _parts_of(node: Node) -> Graph:
    """The graph of the operators that one is made of, whose inputs are those of the node."""
    inputs = node.all_input_nodes
    operator: Any = node.target

    def run(*given: Any) -> Any:
        known = dict(zip(inputs, given, strict=True))
        args = torch.fx.map_arg(node.args, known.get)
        kwargs = torch.fx.map_arg(node.kwargs, known.get)
        return operator.decompose(*args, **kwargs)

    values = [one.meta["val"] for one in inputs]
    parts: Graph = proxy_tensor.make_fx(run)(*values).graph
    return parts

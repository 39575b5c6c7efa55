"""Loops in OpenVINO: its front end has no rule for ``scan``, and its ``TensorIterator`` computes what a scan does.

While a graph is converted, the results of a scan are inputs, and what it is given are outputs; its body is
converted by itself. Afterwards a TensorIterator stands between them::

    begun  -> state of the body       -> the state after the last step
    x[n, ..] -> a row [1, ..] a step  -> the results of all steps, [n, ..]
    stays  -> the same in each step

Each assertion of a step is one more result, with a row for each step: all rows have to be true.

https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs/infrastructure/tensor-iterator-1.html
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..asserted import asserted_in

__all__ = ["TakenScan", "take_scans"]


@dataclass(frozen=True, slots=True)
class TakenScan:
    """A scan that was taken out of a graph: its body, what it is given, and the inputs that stand for its
    ``results``, by their places; ``held`` are the conditions in the body that have to be true in each step.
    """

    body: GraphModule
    begun: Sequence[Any]
    rows: Sequence[Any]
    stays: Sequence[Any]
    results: dict[int, Node]
    held: Sequence[Node]

    @property
    def given(self) -> list[Any]:
        """All that the scan is given, in the order of the inputs of its body."""
        return [*self.begun, *self.rows, *self.stays]

    def results_of(
        self, ports: Sequence[Any], inputs: list[Any], outputs: Sequence[Any]
    ) -> dict[Node, Any]:
        """The outputs of a TensorIterator that is given some outputs of OpenVINO, by the inputs that stand for
        them, and by the conditions of the body; ``inputs`` and ``outputs`` are those of the body, with the conditions.
        """
        import openvino
        from openvino import opset13

        n_begun, n_read = len(self.begun), len(self.begun) + len(self.rows)
        rows = [
            opset13.unsqueeze(port, opset13.constant([0])).output(0) for port in outputs[n_begun:]
        ]
        states = [_of_its_own(port) for port in outputs[:n_begun]]
        results = [opset13.result(port) for port in (*states, *rows)]
        for number in range(n_begun, n_read):
            inputs[number] = _of_a_row(inputs[number])
        iterator = opset13.tensor_iterator()
        iterator.set_body(openvino.Model(results, inputs, "step"))
        for number, (parameter, port) in enumerate(zip(inputs, ports, strict=True)):
            if number < n_begun:
                iterator.set_merged_input(parameter, port, results[number].output(0))
            elif number < n_read:
                iterator.set_sliced_input(parameter, port, 0, 1, 1, -1, 0)
            else:
                iterator.set_invariant_input(parameter, port)
        made = [
            iterator.get_iter_value(result.output(0), -1)
            if place < n_begun
            else iterator.get_concatenated_slices(result.output(0), 0, 1, 1, -1, 0)
            for place, result in enumerate(results)
        ]
        held = made[len(made) - len(self.held) :]
        axes = opset13.constant([0])
        return {
            **{node: made[place] for place, node in self.results.items()},
            **{
                node: opset13.reduce_logical_and(port, axes).output(0)
                for node, port in zip(self.held, held, strict=True)
            },
        }


#: nodes whose results are the memory that they are given
_VIEWS = frozenset({"Squeeze", "Unsqueeze", "Reshape", "Identity"})


def _of_its_own(port: Any) -> Any:
    """A state that is computed: one that a step was given, as its row or as another state, has memory in which the
    next step finds its own row, or another state, before it reads this one.
    """
    from openvino import Type, opset13

    node = port.get_node()
    while node.get_type_name() in _VIEWS:
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Parameter":
        return port
    same = opset13.logical_or if port.get_element_type() == Type.boolean else opset13.maximum
    return same(port, port).output(0)


def _of_a_row(parameter: Any) -> Any:
    """An input for one row, of which the body reads the row itself."""
    from openvino import PartialShape, opset13

    shape = parameter.get_partial_shape()
    made = opset13.parameter(PartialShape([1, *shape]), parameter.get_element_type())
    parameter.output(0).replace(opset13.squeeze(made, opset13.constant([0])).output(0))
    return made


def take_scans(module: GraphModule) -> list[TakenScan]:
    """Makes inputs of the results of the scans of a graph, in the order in which they run."""
    found: list[TakenScan] = []
    scan = torch.ops.higher_order.scan
    first = next(iter(module.graph.nodes))
    for node in list(module.graph.find_nodes(op="call_function", target=scan)):
        body: Any = module.get_submodule(str(node.args[0].target))
        results: dict[int, Node] = {}
        for part in list(node.users):
            if part.target is not operator.getitem:
                break
            with module.graph.inserting_before(first):
                made = module.graph.placeholder(f"onlooker_scan_{len(found)}_{part.args[1]}")
            made.meta = dict(part.meta)
            results[part.args[1]] = made
            part.replace_all_uses_with(made)
            module.graph.erase_node(part)
        _, begun, rows, *stays = node.args
        held = asserted_in(body.graph)
        found.append(TakenScan(body, begun, rows, stays[0] if stays else (), results, held))
        module.graph.erase_node(node)
    return found

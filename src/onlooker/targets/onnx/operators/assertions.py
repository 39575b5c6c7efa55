"""The assertions of an exported graph about values, kept in its model of ONNX.

Why: a graph of torch has the side of a branch that its example took, and asserts that each call takes
it too. torch's converter drops the assertions: the model of ONNX would answer the calls of the other
side with wrong numbers.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_fx_passes.py,
``remove_assertion_nodes``. It may go when the converter has assertions of its own;
``tests/targets/test_onnx_assertions.py`` says so.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from ....patches.swap import swapped
from ....torch_internals.graph_modules import copied_module, with_module
from ...asserted import asserted_in

__all__ = ["assertions_kept", "name_assertions", "with_result_to_check"]


def with_result_to_check(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program; where it asserts something of values and gives nothing back but inputs, with a copy of
    one of them as a result, which can depend on the assertions.
    """
    (output,) = program.graph.find_nodes(op="output")
    results = output.all_input_nodes
    if not results or any(one.op == "call_function" for one in results):
        return program
    if not asserted_in(program.graph):
        return program
    module = copied_module(program)
    (output,) = module.graph.find_nodes(op="output")
    result = min(output.all_input_nodes, key=_rank)
    is_tensor = isinstance(result.meta["val"], torch.Tensor)
    with module.graph.inserting_before(output):
        copied = (
            module.graph.call_function(torch.ops.aten.clone.default, (result,))
            if is_tensor
            else module.graph.call_function(operator.mul, (result, 1))
        )
    copied.meta = dict(result.meta)
    output.replace_input_with(result, copied)
    specs = [
        replace(spec, arg=replace(spec.arg, name=copied.name))
        if getattr(spec.arg, "name", None) == result.name
        else spec
        for spec in program.graph_signature.output_specs
    ]
    return with_module(program, module, outputs=specs)


@contextlib.contextmanager
def assertions_kept() -> Iterator[list[str]]:
    """Inside the block torch's converter keeps assertions, as results of
    :func:`~onlooker.targets.onnx.operators.asserted.asserted`.

    Yields a list to which the names of these results are added. Where the converter does not drop
    assertions in the function that is known, nothing changes.
    """
    from torch.onnx._internal.exporter import _fx_passes

    remove = getattr(_fx_passes, "remove_assertion_nodes", None)
    names: list[str] = []
    if remove is None:
        yield names
        return

    def kept(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        names.extend(_tied(module.graph))
        return remove(module)  # type: ignore[no-any-return]

    with swapped(_fx_passes, "remove_assertion_nodes", kept):
        yield names


def name_assertions(model: Any, names: Collection[str], decided: Sequence[str]) -> None:
    """Gives the nodes of these results a name that an error of ONNX Runtime then says, with the lines
    of the model that ``decided`` by values.
    """
    told = f": it decides by values at {'; at '.join(decided)}" if decided else ""
    for value in model.graph.outputs:
        if value.name in names and value.producer() is not None:
            value.producer().name = f"assertion_of_the_model{told}"


def _tied(graph: Graph) -> Iterator[str]:
    """Makes one result of a graph depend on all its assertions, that with the fewest axes; gives its
    name.
    """
    conditions = asserted_in(graph)
    from .asserted import asserted

    (output,) = graph.find_nodes(op="output")
    results = [value for value in output.all_input_nodes if value.op == "call_function"]
    if not conditions or not results:
        return
    result = min(results, key=_rank)
    with graph.inserting_before(output):
        checked = graph.call_function(asserted, (result, *conditions))
    checked.meta = dict(result.meta)
    output.replace_input_with(result, checked)
    name = result.name  # the signature of the program names its outputs so
    result._rename(f"{name}_unchecked")
    checked.name = name
    yield name


def _rank(node: Node) -> int:
    """The axes of a tensor; an int is taken where there is no tensor."""
    value = node.meta.get("val")
    return value.dim() if isinstance(value, torch.Tensor) else 2**31

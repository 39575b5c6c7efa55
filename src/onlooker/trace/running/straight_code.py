"""Writes a graph of torch as one Python function, in which little stands beside the operators.

torch writes a graph as a function too. There every weight is looked up by its path in each call, an
operator is looked up by four names and is called with a parser of schemas, and a cast to the dtype
that a tensor already has is a call like any other. For one token of a decoder, whose tensors are
small, this takes a tenth of the time of the step. ``y = (x.to(torch.float32) * weight,)`` becomes::

    def run(inputs):
      v0, = inputs
      v1 = v0 if v0.dtype is c0 else c1(v0, c0)
      del v0
      v2 = c3(v1, c2)
      return (v2,)

where ``c2`` is the weight and ``c3`` is ``torch.mul``, which reads its arguments in less time than
``torch.ops.aten.mul.Tensor``, and calls the same operator. Nothing here depends on what the tensors
of the trace were: the dtypes are looked at in each call.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from ...proofs.operators import attribute_of

__all__ = ["straight_code"]

_aten = torch.ops.aten

#: the functions of torch that call an operator with the arguments that it has in a graph
_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.neg.default: torch.neg,
    _aten.rsqrt.default: torch.rsqrt,
    _aten.pow.Tensor_Scalar: torch.pow,
    _aten.mean.dim: torch.mean,
    _aten.relu.default: torch.relu,
    _aten.tanh.default: torch.tanh,
    _aten.sigmoid.default: torch.sigmoid,
    _aten.softmax.int: torch.softmax,
    _aten.matmul.default: torch.matmul,
    _aten.layer_norm.default: torch.layer_norm,
    _aten.dropout.default: torch.dropout,
    _aten.cat.default: torch.cat,
    _aten.transpose.int: torch.transpose,
    _aten.permute.default: torch.permute,
    _aten.unsqueeze.default: torch.unsqueeze,
    _aten.reshape.default: torch.reshape,
    _aten.view.default: torch.Tensor.view,
    _aten.expand.default: torch.Tensor.expand,
    _aten.to.dtype: torch.Tensor.to,
    _aten.linear.default: functional.linear,
    _aten.silu.default: functional.silu,
    _aten.gelu.default: functional.gelu,
    _aten.scaled_dot_product_attention.default: functional.scaled_dot_product_attention,
}
#: what stands in the text of the function as it is
_PLAIN = (bool, int, type(None))


def straight_code(graph: Graph, module: torch.nn.Module) -> Callable[[Sequence[Any]], Any] | None:
    """Returns a function of the inputs, in the order of the placeholders, that computes the outputs
    of a graph; None for a graph with nodes that call methods or modules.
    """
    kinds = {node.op for node in graph.nodes}
    if not kinds <= {"placeholder", "get_attr", "call_function", "output"}:
        return None
    writer = _Writer(module)
    lines = ["def run(inputs):", *(f"  {line}" for line in writer.lines(graph))]
    space = writer.constants
    exec(compile("\n".join(lines), "<graph>", "exec"), space)
    made: Callable[[Sequence[Any]], Any] = space.pop("run")
    return made


class _Writer:
    """Writes the nodes of a graph; ``constants`` are the values that the text names."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.constants: dict[str, Any] = {"__builtins__": builtins}
        self._module = module
        self._names: dict[Node, str] = {}
        self._known: dict[int, str] = {}

    def lines(self, graph: Graph) -> Iterator[str]:
        """Yields the lines of the function; a value is forgotten where it was used last."""
        inputs = graph.find_nodes(op="placeholder")
        for number, node in enumerate(node for node in graph.nodes if node.op != "get_attr"):
            self._names[node] = f"v{number}"
        if inputs:
            yield f"{', '.join(self._names[node] for node in inputs)}, = inputs"
        last = _last_uses(graph)
        for node in graph.nodes:
            if node.op == "get_attr":
                self._names[node] = self._constant(attribute_of(self._module, node.target))
            elif node.op == "output":
                yield f"return {self._text(node.args[0])}"
            elif node.op == "call_function":
                yield self._call(node)
            done = [self._names[one] for one in last.get(node, ()) if one.op != "get_attr"]
            if done and node.op != "output":
                yield f"del {', '.join(done)}"

    def _call(self, node: Node) -> str:
        """The line of one operator."""
        given = [self._text(value) for value in node.args]
        named = {name: self._text(value) for name, value in node.kwargs.items()}
        function = self._constant(_function_of(node))
        keywords = [f"{name}={text}" for name, text in named.items()]
        call = f"{function}({', '.join([*given, *keywords])})"
        if node.target is _aten.to.dtype and len(given) == 2 and not named:
            tensor, dtype = given
            call = f"{tensor} if {tensor}.dtype is {dtype} else {call}"
        if node.target is _aten._assert_tensor_metadata.default and len(given) == 1:
            holds = [f"{given[0]}.{name} == {text}" for name, text in named.items()]
            call = f"None if {' and '.join(holds) or True} else {call}"
        return f"{self._names[node]} = {call}"

    def _text(self, value: Any) -> str:
        """The text of an argument."""
        if isinstance(value, Node):
            return self._names[value]
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, tuple):
            return f"({''.join(f'{self._text(one)}, ' for one in value)})"
        if isinstance(value, list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, slice):
            return f"slice({', '.join(map(self._text, (value.start, value.stop, value.step)))})"
        if isinstance(value, Mapping):
            items = (f"{key!r}: {self._text(one)}" for key, one in value.items())
            return f"{{{', '.join(items)}}}"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        """The name of a value that stands beside the text; the same object has one."""
        if id(value) not in self._known:
            name = self._known[id(value)] = f"c{len(self._known)}"
            self.constants[name] = value
        return self._known[id(value)]


def _function_of(node: Node) -> Any:
    """Returns the function of torch for an operator; the operator itself where it has an order of
    memory by place, which functions of torch take by name alone.
    """
    if any(isinstance(value, torch.memory_format) for value in node.args):
        return node.target
    return _FUNCTIONS.get(node.target, node.target)


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """The values that no node reads after this one; one that is never read belongs to itself."""
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        for read in (node, *node.all_input_nodes):
            last[read] = node
    found: dict[Node, list[Node]] = {}
    for read, node in last.items():
        found.setdefault(node, []).append(read)
    return found

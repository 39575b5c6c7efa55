"""The part of an exported graph that depends on sizes alone, as a program of its own.

``positions = arange(past, past + n) + 2`` needs no input of the model but two sizes: it can be
evaluated for any choice of them, without the model. A node is size-only if all its inputs are:
sizes, weights, buffers and constants are known::

    n = sym_size(ids, 1)            a size of an input            known
    p = arange(past, past + n)      made of sizes                 known
    e = embedding(positions, p)     a weight, and rows by p       known
    h = embedding(words, ids)       rows by the values of ids     unknown
    z = zeros_like(h)               the shape of h alone          known
    z += h                          the values of h               unknown
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from ..core.path import Path
from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..torch_internals.graph_modules import nodes_reached
from ..torch_internals.operators import HigherOrderOperator, OpOverload
from .exported_sizes import sizes_in_plan
from .operators import facts_of, written_by

__all__ = ["MOST_ELEMENTS", "SizeProgram"]

#: the most elements of all tensors that one evaluation makes
MOST_ELEMENTS = 2**22
_CONSTANTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
#: operators that take a shape, a dtype and a device of a tensor, and none of its values
_OF_SHAPES = frozenset(
    {
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
    }
)
#: operators on a graph that is run as it stands
_BLOCKS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})


class SizeProgram:
    """Evaluates what depends on sizes alone; ``sizes`` are always those of the symbols of the plan.

    Inputs with ``fills`` are known too: what stands at some sizes for an argument that calls leave out.
    """

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        plan: Plan,
        names: Mapping[Path, str],
        fills: Mapping[Path, Callable[[Sizes], torch.Tensor]] | None = None,
    ) -> None:
        self._of_plan = sizes_in_plan(program, plan, names)
        self._constants = _constants_of(program)
        slots = [
            str(getattr(spec.arg, "name", ""))
            for spec in program.graph_signature.input_specs
            if spec.kind == InputKind.USER_INPUT
        ]
        self._arguments = dict(zip(slots, map(str, names), strict=False))
        by_path = dict(zip(names, slots, strict=False))
        self._fills = {by_path[path]: fill for path, fill in (fills or {}).items()}
        self._instead: dict[Node, Node] = {}
        self.nodes: list[Node] = list(self._flattened(program.graph_module))
        self._written = {node for each in self.nodes for node in self._written_by(each)}
        self._known: set[Node] = set()
        for node in self.nodes:
            if self._is_known(node):
                self._known.add(node)

    def _flattened(self, module: torch.fx.GraphModule) -> Iterator[Node]:
        """The nodes in their order, with those of blocks of autocast in the place of the block."""
        for node in module.graph.nodes:
            block = _block_of(node)
            if block is None:
                yield node
                continue
            inner, operands = block
            inputs = inner.graph.find_nodes(op="placeholder")
            for placeholder, operand in zip(inputs, operands, strict=False):
                if isinstance(operand, Node):
                    self._instead[placeholder] = operand
            yield from self._flattened(inner)
            results = inner.graph.output_node().args[0]
            for user in node.users:
                if user.target is operator.getitem and isinstance(results, (tuple, list)):
                    result = results[user.args[1]]
                    if isinstance(result, Node):
                        self._instead[user] = result

    def _own(self, node: Node) -> Node:
        """The node that gives the value of another one."""
        while node in self._instead:
            node = self._instead[node]
        return node

    def _written_by(self, node: Node) -> Iterator[Node]:
        """The nodes whose values an operator changes in place, and those that they may be parts of."""
        for target in written_by(node) if not _writes_to_fresh(node) else ():
            value: Node | None = target
            while value is not None:
                yield self._own(value)
                value = next(iter(self._own(value).all_input_nodes), None)

    def _is_known(self, node: Node) -> bool:
        if node in self._instead:
            return self._own(node) in self._known
        if _is_size(node):
            return self.number(node, None) is not None
        if node in self._written:
            return False
        if node.op == "placeholder" or node.op == "get_attr":
            return node.name in self._constants or node.name in self._fills
        if node.op != "call_function":
            return False
        inputs = [self._own(one) for one in node.all_input_nodes]
        if _reads_shape(node):
            inputs = inputs[1:]
        facts = facts_of(node.target)
        is_plain = isinstance(node.target, OpOverload) and not facts.draws
        is_plain = is_plain and (not facts.written or _writes_to_fresh(node))
        return (is_plain or node.target is operator.getitem) and all(
            one in self._known for one in inputs
        )

    # -- what nodes are

    def knows(self, node: Any) -> bool:
        """True for a node that depends on sizes alone."""
        return isinstance(node, Node) and self._own(node) in self._known

    def symbols_of(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """The symbols of the plan on which the values of nodes depend."""
        found: set[str] = set()
        for node in self._ancestors(nodes):
            for size in _sizes_of(node):
                expression = self.in_plan(size)
                if expression is not None:
                    found |= {symbol.name for symbol in expression.free_symbols}
        return tuple(sorted(found))

    def source(self, tensor: Any, operators: Collection[str]) -> Node | None:
        """The tensor that another one is made of by some operators alone."""
        while isinstance(tensor, Node):
            node = self._own(tensor)
            if not isinstance(node.target, OpOverload) or node.target._opname not in operators:
                return node
            tensor = node.args[0]
        return None

    def name(self, node: Node | None) -> str:
        """The name of a weight, a buffer or an argument of the model; empty for other tensors."""
        if node is None:
            return ""
        if node.name in self._constants:
            return self._constants[node.name][0]
        return self._arguments.get(node.name, "")

    def in_plan(self, size: Any) -> Any:
        """A size of a node as an expression of the plan; None where it hangs on values."""
        size = size.meta.get("val") if isinstance(size, Node) else size
        if isinstance(size, int):
            return sympy.Integer(size)
        if not isinstance(size, torch.SymInt):
            return None
        expression = size.node.expr
        if not expression.free_symbols <= self._of_plan.keys():
            return None
        return expression.xreplace(self._of_plan)

    def number(self, node: Any, sizes: Sizes | None) -> Any:
        """Returns the value of a symbolic number at some sizes, or without them: whether it is one
        of sizes; None where it is not.
        """
        value = node.meta.get("val") if isinstance(node, Node) else node
        if not isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            return value
        expression = value.node.expr
        if not expression.free_symbols <= self._of_plan.keys():
            return None
        if sizes is None:
            return 0
        numbers = {
            symbol: own.xreplace({s: sympy.Integer(sizes[s.name]) for s in own.free_symbols})
            for symbol, own in self._of_plan.items()
            if symbol in expression.free_symbols
        }
        kind = {torch.SymInt: int, torch.SymBool: bool, torch.SymFloat: float}[type(value)]
        return kind(expression.xreplace(numbers))

    def shape(self, node: Node, sizes: Sizes) -> tuple[int, ...] | None:
        """The shape of a tensor at some sizes; None where it hangs on values."""
        tensor = self._own(node).meta.get("val")
        if not isinstance(tensor, torch.Tensor):
            return None
        found = [self.number(size, sizes) for size in tensor.shape]
        return None if None in found else tuple(found)

    # -- evaluation

    def values(self, nodes: Sequence[Node], sizes: Sizes) -> list[Any] | None:
        """The values of size-only nodes at some sizes; None where that would be too many numbers.

        :raises Exception: what an operator says to such sizes
        """
        steps = self._ancestors(nodes)
        if sum(self._n_elements(node, sizes) for node in steps) > MOST_ELEMENTS:
            return None
        known: dict[Node, Any] = {}
        with torch.no_grad():
            for node in steps:
                known[node] = self._value(node, sizes, known)
        return [known[self._own(node)] for node in nodes]

    def _ancestors(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes that some nodes are computed from, and they themselves, in their order."""

        def made_of(node: Node) -> list[Node]:
            inputs = [] if _is_size(node) else list(map(self._own, node.all_input_nodes))
            return inputs[1:] if _reads_shape(node) else inputs

        needed = nodes_reached(map(self._own, nodes), made_of)
        return [node for node in self.nodes if node in needed]

    def _n_elements(self, node: Node, sizes: Sizes) -> int:
        if node.name in self._constants:
            return 0
        return math.prod(self.shape(node, sizes) or ())

    def _value(self, node: Node, sizes: Sizes, known: Mapping[Node, Any]) -> Any:
        if _is_size(node):
            return self.number(node, sizes)
        if node.name in self._constants:
            return self._constants[node.name][1]
        if node.name in self._fills:
            return self._fills[node.name](sizes)
        shaped = node.args[0] if _reads_shape(node) else None

        def value_of(one: Node) -> Any:
            if one is shaped and self._own(one) not in known:
                return self._stand_in(self._own(one), sizes)
            return known[self._own(one)]

        args = torch.fx.node.map_arg(node.args, value_of)
        kwargs = torch.fx.node.map_arg(node.kwargs, value_of)
        target: Any = node.target
        return target(*args, **kwargs)

    def _stand_in(self, node: Node, sizes: Sizes) -> torch.Tensor:
        """A tensor of the shape of a node, whose values say nothing."""
        like = node.meta["val"]
        one = torch.zeros((), dtype=like.dtype, device=like.device)
        return one.expand(self.shape(node, sizes) or ())


def _is_size(node: Node) -> bool:
    """True for a node that is a number, or a symbolic one."""
    kinds = (torch.SymInt, torch.SymBool, torch.SymFloat, int, float, bool)
    return isinstance(node.meta.get("val"), kinds)


def _writes_to_fresh(node: Node) -> bool:
    """True for an operator that writes to a new tensor which nothing else reads: ``p += 2`` of
    ``p = arange(n)`` is another value of ``p`` alone.
    """
    first = node.args[0] if node.args else None
    if not isinstance(first, Node) or facts_of(node.target).written != (0,):
        return False
    if list(first.users) != [node] or not isinstance(first.target, OpOverload):
        return False
    facts = facts_of(first.target)
    return not facts.shared or (bool(facts.written) and _writes_to_fresh(first))


def _reads_shape(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._opname in _OF_SHAPES


def _sizes_of(node: Node) -> tuple[Any, ...]:
    """The sizes that stand in a node: its own, and those of the tensor whose shape it takes."""
    if _is_size(node):
        return (node,)
    if _reads_shape(node) and isinstance(node.args[0], Node):
        return tuple(getattr(node.args[0].meta.get("val"), "shape", ()))
    return ()


def _block_of(node: Node) -> tuple[torch.fx.GraphModule, tuple[Any, ...]] | None:
    """The graph of a block of autocast and its operands."""
    target = node.target
    if not isinstance(target, HigherOrderOperator) or str(target) not in _BLOCKS:
        return None
    owner = node.graph.owning_module
    for place, argument in enumerate(node.args):
        if owner is not None and isinstance(argument, Node) and argument.op == "get_attr":
            inner = owner.get_submodule(str(argument.target))
            if isinstance(inner, torch.fx.GraphModule):
                return inner, tuple(node.args[place + 1 :])
    return None


def _constants_of(program: torch.export.ExportedProgram) -> dict[str, tuple[str, torch.Tensor]]:
    """Per placeholder of a weight, a buffer that no call changes, or a constant: its name in the model,
    and the tensor.
    """
    changed = set(program.graph_signature.buffers_to_mutate.values())
    found: dict[str, tuple[str, torch.Tensor]] = {}
    for spec in program.graph_signature.input_specs:
        target = spec.target or ""
        if spec.kind not in _CONSTANTS or target in changed:
            continue
        tensor = program.state_dict.get(target, program.constants.get(target))
        if isinstance(tensor, torch.Tensor):
            found[str(getattr(spec.arg, "name", ""))] = target.removeprefix("watched."), tensor
    return found

"""Reads tables and numbers of a program of torch.export."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..core.support.kinds import is_number
from ..torch_internals.graph_modules import input_names
from ..torch_internals.operators import HigherOrderOperator, OpOverload
from .contents import Act, Contents, OperatorStep, contents_of

__all__ = ["contents_of_program"]

#: constants of more elements are tables or weights, and no numbers to compare with
_MOST_ELEMENTS = 16
#: operators that give the elements of a tensor, all or some of them, in another order or shape
_SHAPING = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "slice", "select"),
        *("squeeze", "unsqueeze", "expand", "expand_as", "repeat", "permute", "transpose", "t"),
        *("cat", "stack", "clone", "detach", "detach_", "alias", "contiguous", "to", "_to_copy"),
        *("flip", "roll", "narrow", "split", "chunk", "unbind", "split_with_sizes"),
        *("lift_fresh_copy", "copy", "tile"),
    }
)
#: operators that compare, bound, divide or cut: their numbers are those at which something changes
_COMPARING = frozenset(
    {
        *("eq", "ne", "gt", "ge", "lt", "le", "maximum", "minimum", "clamp", "clamp_min"),
        *("clamp_max", "remainder", "fmod", "floor_divide", "div", "arange"),
        *("bitwise_right_shift",),
    }
)
_OF_PYTHON = {
    *(operator.eq, operator.ne, operator.gt, operator.ge, operator.lt, operator.le),
    *(operator.mod, operator.floordiv, torch.sym_min, torch.sym_max),
}
#: by the name of a lookup the places of the table, the dimension (or None) and the index
_LOOKUPS: Mapping[str, tuple[int, int | None, int]] = {
    "embedding": (0, None, 1),
    "embedding_bag": (0, None, 1),
    "_embedding_bag": (0, None, 1),
    "index_select": (0, 1, 2),
    "gather": (0, 1, 2),
}
#: operators that make a tensor of sizes and numbers alone
_MAKING = frozenset(
    {
        *("arange", "full", "ones", "zeros", "ones_like", "zeros_like", "full_like", "empty"),
    }
)


def contents_of_program(program: torch.export.ExportedProgram) -> Contents:
    """The tables that inputs of the program index, by the names of its placeholders, and the numbers
    that it compares sizes with.
    """
    specs = program.graph_signature.input_specs
    inputs = input_names(program)
    held = {**program.state_dict, **program.constants}
    known = {
        spec.arg.name: held[spec.target]
        for spec in specs
        if spec.target in held and isinstance(held[spec.target], torch.Tensor)
    }
    return contents_of(_TorchReader(known).steps(program.graph_module, ""), inputs)


class _TorchReader:
    """Gives the nodes of a graph and of all graphs inside of it as steps."""

    def __init__(self, known: Mapping[str, torch.Tensor]) -> None:
        self._known = known

    def steps(self, module: GraphModule, prefix: str) -> Iterator[OperatorStep]:
        """The steps of one graph; ``prefix`` stands before the names of an inner one."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                continue
            if isinstance(node.target, HigherOrderOperator):
                yield from self._inner(node, module, prefix)
            elif node.op == "call_function":
                yield from self._of_function(node, prefix)

    def _inner(self, node: Node, module: GraphModule, prefix: str) -> Iterator[OperatorStep]:
        """The steps of the graphs that an operator runs, whose inputs may be any of its operands."""
        operands = tuple(prefix + one.name for one in node.all_input_nodes if one.op != "get_attr")
        for number, one in enumerate(node.all_input_nodes):
            inner = getattr(module, str(one.target), None) if one.op == "get_attr" else None
            if not isinstance(inner, GraphModule):
                continue
            own = f"{prefix}{node.name}.{number}."
            names = [own + each.name for each in inner.graph.find_nodes(op="placeholder")]
            yield OperatorStep(Act.HAND_ON, operands, tuple(names))
            yield from self.steps(inner, own)

    def _of_function(self, node: Node, prefix: str) -> Iterator[OperatorStep]:
        inputs = tuple(
            prefix + one.name for one in node.all_input_nodes if self._constant(one) is None
        )
        outputs = (prefix + node.name,)
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
            numbers = self._numbers(node) if node.target in _OF_PYTHON else ()
            yield OperatorStep(Act.COUNT, inputs, outputs, numbers, are_ints=True)
            return
        if not isinstance(node.target, OpOverload):
            yield OperatorStep(Act.HAND_ON, inputs, outputs)
            return
        name = node.target._opname
        yield from self._lookups(node, name, prefix)
        hands_on = name in _SHAPING or torch.Tag.pointwise in node.target.tags
        act = Act.HAND_ON if hands_on and _is_int(value) else Act.OTHER
        act = Act.COUNT if name in _MAKING else act
        beside = [one.meta.get("val") for one in node.all_input_nodes]
        are_ints = bool(beside) and all(
            _is_int(one) or isinstance(one, (torch.SymInt, torch.SymFloat)) for one in beside
        )
        numbers = self._numbers(node) if name in _COMPARING else _cuts(node)
        yield OperatorStep(act, inputs, outputs, numbers, are_ints or name in ("arange", "slice"))

    def _lookups(self, node: Node, name: str, prefix: str) -> Iterator[OperatorStep]:
        """A step for each index that an operator takes rows of a table by."""
        found: list[tuple[Any, int, Any]] = []
        if name in _LOOKUPS and len(node.args) > _LOOKUPS[name][2]:
            table, dim, index = _LOOKUPS[name]
            along: Any = 0 if dim is None else node.args[dim]
            found = [(node.args[table], along, node.args[index])]
        if name == "index" and isinstance(node.args[1], Sequence):
            found = [(node.args[0], dim, index) for dim, index in enumerate(node.args[1])]
        for table, dim, index in found:
            tensor = table.meta.get("val") if isinstance(table, Node) else None
            if not isinstance(tensor, torch.Tensor) or not isinstance(index, Node):
                continue
            rows = tensor.shape[dim] if tensor.ndim else 1
            if isinstance(rows, int):
                yield OperatorStep(Act.LOOK_UP, (prefix + index.name,), (), rows=rows)

    def _constant(self, node: Node) -> torch.Tensor | None:
        """The tensor of a small constant, also behind operators that hand it on; else None."""
        while isinstance(node.target, OpOverload) and node.target._opname in _SHAPING and node.args:
            first = node.args[0]
            if not isinstance(first, Node):
                return None
            node = first
        constant = self._known.get(node.name) if node.op == "placeholder" else None
        return None if constant is None or constant.numel() > _MOST_ELEMENTS else constant

    def _numbers(self, node: Node) -> tuple[float, ...]:
        """The numbers among the arguments of an operator, those of small constants included."""
        found: list[float] = []
        for one in (*node.args, *node.kwargs.values()):
            constant = self._constant(one) if isinstance(one, Node) else None
            if is_number(one):
                found.append(one)
            elif constant is not None and not constant.is_complex():
                found += constant.reshape(-1).tolist()
        return tuple(number for number in found if number == number)


def _cuts(node: Node) -> tuple[float, ...]:
    """The numbers where a slice of a dimension that changes begins and ends."""
    if not isinstance(node.target, OpOverload) or node.target._opname != "slice":
        return ()
    tensor = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    dim = node.args[1] if len(node.args) > 1 else 0
    if not isinstance(tensor, torch.Tensor) or not isinstance(dim, int):
        return ()
    if isinstance(tensor.shape[dim], int):
        return ()
    return tuple(float(number) for number in node.args[2:4] if isinstance(number, int))


def _is_int(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.dtype is torch.bool:
        return False
    return not value.is_floating_point() and not value.is_complex()

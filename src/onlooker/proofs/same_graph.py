"""Are two exported graphs of one model the same computation, for all calls that the second one
stands for?

The first graph was traced on one side of a condition, the second one on the other side. Every value
of the second graph gets a number (:mod:`onlooker.proofs.numbering`). Then the first graph is read with
the inputs of the second one. Each of its values must have been computed in the second graph too, or be
one that changes nothing there. Sizes are compared as expressions of the second trace. Equal graphs give
equal results for all values of their inputs, so this is a proof where trials are none.

What a graph does beside giving results is compared as well: what it writes to its inputs, what it
asserts, and what random numbers it draws, in their order (:mod:`onlooker.proofs.operators`). Where it is
unknown whether two values share their memory, the comparison gives up rather than guess::

    a = x + 1            a has memory of its own
    b = a.view(-1)       the memory of a, for certain
    c = a.reshape(4)     the memory of a, or a copy
    b.add_(1)            a and b have new numbers from here on, and what c holds is unknown
    d = c * 2            the two graphs count as different, since this reads c
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanAtom, BooleanFunction
from torch.export.graph_signature import InputKind

from ..pytrees.nodes import SYMBOLIC
from ..torch_internals.graph_modules import nodes_reached
from ..torch_internals.operators import OpOverload
from ..torch_internals.sizes import FloorDiv, IntTrueDiv, PythonMod
from .numbering import Numbered, Numbering, computed, content_of, digest, frozen, normal
from .operators import (
    asserts,
    attribute_of,
    draws,
    facts_of,
    flat,
    has_effects,
    is_cast_to_another,
    is_view,
    shared_by,
    written_by,
)
from .size_proofs import SizeProofs

__all__ = ["Comparison"]

_aten = torch.ops.aten


class _GraphsDifferError(Exception):
    """The place at which two graphs part."""


class Comparison:
    """One graph, numbered once, with which other graphs of the same model and inputs are compared.

    Sizes that are symbols in another graph may be numbers in this one. ``sizes`` are the symbols of this
    one as expressions of the plan, and ``proofs`` say which of them are equal for its calls.
    """

    def __init__(
        self, second: torch.export.ExportedProgram, sizes: Mapping[Any, Any], proofs: SizeProofs
    ) -> None:
        self._second: _Second | None = None
        self._reason = ""
        try:
            self._second = _Second(second, sizes, proofs)
        except _GraphsDifferError as different:
            self._reason = str(different)

    def difference_of(
        self,
        first: torch.export.ExportedProgram,
        left_out: Mapping[int, Sequence[Any]] | None = None,
    ) -> str:
        """Compares the first graph with the second one for calls of that one: returns where they
        differ; empty where they do not.

        Inputs that the second one lacks are ``left_out``: their positions, each with a shape in sizes
        of the plan. Where the first one reads their values, the two differ.
        """
        if self._second is None:
            return self._reason
        try:
            return _First(first, self._second, left_out or {}).difference()
        except _GraphsDifferError as different:
            return str(different)


class _Walk:
    """The values of a graph, one node after the other; what numbers and sizes are is for the two
    classes below.

    A value in memory that a node writes to has another number from there on. Nodes share memory for
    certain where one is a view of the other; where an operator copies only if it must, they may
    share it, and a value that may have been written to is unknown.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        #: the inputs that the other graph lacks
        self.left_out: Mapping[int, Sequence[Any]] = {}
        self.of_node: dict[torch.fx.Node, Any] = {}
        self.inputs: dict[Any, torch.fx.Node] = {}
        self.outputs: list[Any] = []
        #: what the graph asserts; an assertion that holds for all calls is left out
        self.asserted: set[Any] = set()
        #: how many nodes draw random numbers
        self.n_draws = 0
        self._memory: dict[torch.fx.Node, _Memory] = {}
        #: the nodes whose memory is a memory, or may be a part of it
        self._in_memory: dict[_Memory, list[torch.fx.Node]] = {}

    def _walk(self) -> None:
        keys = _placeholder_keys(self.program, self.left_out)
        needed = _needed(self.program)
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self.inputs[keys[node.name]] = node
                self.of_node[node] = self._input(keys[node.name], node.meta["val"])
                self._note_memory(node, _Memory())
            elif node.op == "output":
                self.outputs = [self._argument(item) for item in flat(node.args[0])]
            elif node.op == "get_attr":
                held = attribute_of(self.program.graph_module, node.target)
                self.of_node[node] = ("module", content_of(held))
            elif node in needed:
                self.of_node[node] = self._result(node)

    def _input(self, key: Any, value: Any) -> Any:
        raise NotImplementedError

    def _size(self, node: torch.fx.Node) -> Any:
        raise NotImplementedError

    def _number(self, key: Any, node: torch.fx.Node) -> Numbered:
        raise NotImplementedError

    def _always(self, condition: Any) -> bool:
        raise NotImplementedError

    def _argument(self, value: Any) -> Any:
        return torch.fx.node.map_arg(value, self._of)

    def _arguments_of(self, node: torch.fx.Node) -> tuple[Any, Any]:
        """Returns the positional and the keyword arguments of a node, as values of this walk."""
        return self._argument(node.args), self._argument(dict(node.kwargs))

    def _of(self, node: torch.fx.Node) -> Any:
        if self.of_node[node] is _UNKNOWN:
            raise _GraphsDifferError(f"{node.name} may share memory that is written to")
        return self.of_node[node]

    def _result(self, node: torch.fx.Node) -> Any:
        if _gives_size(node):
            return self._size(node)
        args, kwargs = self._arguments_of(node)
        if asserts(node):
            self._assert(node.target, args, kwargs)
        key = computed(node.target, args, kwargs)
        self._note_memory(node, self._memory_of(node))
        if isinstance(key, Numbered):
            return key
        if draws(node):
            key = (*key, self.n_draws)
            self.n_draws += 1
        if isinstance(node.target, OpOverload) and asserts(node):
            return None
        result = self._number(key, node)
        # the numbers of the arguments are those from before the write, and so the key is made before it
        written = written_by(node)
        for place, target in enumerate(written):
            self._write((*key, "written", place), target)
        return self.of_node[written[0]] if facts_of(node.target).gives_written else result

    def _assert(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes an assertion; its message, which names symbols of one trace, is left out."""
        values = [value for value in args if not isinstance(value, str)]
        if len(values) == 1 and not kwargs and self._always(values[0]):
            return
        others = {name: value for name, value in kwargs.items() if not isinstance(value, str)}
        self.asserted.add((str(target), frozen(values), frozen(others)))

    def _memory_of(self, node: torch.fx.Node) -> _Memory:
        """The memory of a result: of an argument, possibly of an argument, or new."""
        shared = [other for other in shared_by(node) if other in self._memory]
        if not shared or is_cast_to_another(node):
            return _Memory()
        memory = self._memory[shared[0]]
        return (
            memory
            if is_view(node) and len(shared) == 1
            else _Memory(tuple(self._memory[one] for one in shared))
        )

    def _note_memory(self, node: torch.fx.Node, memory: _Memory) -> None:
        self._memory[node] = memory
        for ancestor in memory.ancestors:
            self._in_memory.setdefault(ancestor, []).append(node)

    def _write(self, key: Any, target: torch.fx.Node) -> None:
        memory = self._memory[target]
        for node in self._sharing(memory):
            value = self.of_node.get(node)
            if self._memory[node] is not memory:
                self.of_node[node] = _UNKNOWN
            elif isinstance(value, Numbered):
                self.of_node[node] = self._number((*key, value.number), node)

    def _sharing(self, memory: _Memory) -> Iterable[torch.fx.Node]:
        """Returns the nodes that may have the same memory, each once."""
        found = [self._in_memory[ancestor] for ancestor in memory.ancestors]
        return dict.fromkeys(itertools.chain.from_iterable(found))


class _Memory:
    """The memory of some nodes; ``parents`` are memories that it may be a part of.

    Two of them may be the same memory where they share one of their ``ancestors``, which are
    themselves, their parents, and those of these.
    """

    def __init__(self, parents: tuple[_Memory, ...] = ()) -> None:
        of_parents = (parent.ancestors for parent in parents)
        self.ancestors: frozenset[_Memory] = frozenset({self}).union(*of_parents)


_UNKNOWN, _LEFT_OUT = object(), "left out"


class _Second(_Walk):
    """The second graph: every value gets a number by what computes it."""

    def __init__(
        self, program: torch.export.ExportedProgram, sizes: Mapping[Any, Any], proofs: SizeProofs
    ) -> None:
        super().__init__(program)
        self._sizes, self._proofs = sizes, proofs
        self.numbering = Numbering()
        self.values: dict[int, Any] = {}
        self._of_number: dict[int, Numbered] = {}
        #: ``item()`` of a value, and what torch has for the number: a symbol, or a condition on one
        self.read: dict[Any, Any] = {}
        self._symbols_read: set[Any] = set()
        self.given: dict[Any, Any] = {}
        self._walk()

    def size(self, value: Any) -> Any:
        """A symbolic number as an expression of the plan; a number as it is."""
        if isinstance(value, SYMBOLIC):
            value = value.node.expr
        if isinstance(value, sympy.Basic):
            value = value.xreplace(self._sizes)
            is_number = not isinstance(value, (Relational, BooleanFunction, BooleanAtom))
            if is_number and value.free_symbols.isdisjoint(self._symbols_read):
                value = self._proofs.same(value)
        return int(value) if isinstance(value, sympy.Integer) else value

    def known(self, key: Any) -> Numbered | None:
        """The value that a key stands for; None for one that the graph does not compute."""
        found = self.numbering.known(key)
        return None if found is None else self._with_shape(found)

    def _with_shape(self, number: int) -> Numbered:
        """The value with a number, whose shape is read once: a write renumbers all that share the
        memory.
        """
        if number not in self._of_number:
            value = self.values[number]
            dtype = getattr(value, "dtype", None)
            self._of_number[number] = Numbered(number, self._shape(value), dtype)
        return self._of_number[number]

    def _shape(self, value: Any) -> tuple[Any, ...]:
        return tuple(map(self.size, value.shape)) if isinstance(value, torch.Tensor) else ()

    def _input(self, key: Any, value: Any) -> Any:
        self.given[key] = value
        return self._numbered(key, value) if isinstance(value, torch.Tensor) else self.size(value)

    def _size(self, node: torch.fx.Node) -> Any:
        """A size as torch has it in the trace; what is computed from ``item()`` is computed anew,
        since torch writes 1 for ``u0`` wherever the graph asserts ``u0 == 1``.
        """
        value = node.meta["val"]
        if node.target is _aten.item.default:
            number = getattr(getattr(value, "node", None), "_expr", None)
            if isinstance(number, sympy.Basic):
                self._symbols_read |= number.free_symbols
                return self.read.setdefault(normal(self._argument(node.args[0])), number)
        if any(self._hangs_on_values(other) for other in node.all_input_nodes):
            args, kwargs = self._arguments_of(node)
            try:
                return self.size(_on_expressions(node.target, args, kwargs))
            except _GraphsDifferError:
                if isinstance(value, (bool, torch.SymBool)):
                    raise
        return self.size(value)

    def _hangs_on_values(self, node: torch.fx.Node) -> bool:
        value = self.of_node[node]
        is_expression = isinstance(value, sympy.Basic)
        return is_expression and not value.free_symbols.isdisjoint(self._symbols_read)

    def _always(self, condition: Any) -> bool:
        return self.always(condition)

    def always(self, condition: Any) -> bool:
        """True for a condition that is proven for all calls; False where that is unknown."""
        if isinstance(condition, (bool, BooleanAtom)):
            return bool(condition)
        is_condition = isinstance(condition, (Relational, BooleanFunction))
        return is_condition and self._proofs.always(condition)

    def _number(self, key: Any, node: torch.fx.Node) -> Numbered:
        return self._numbered(key, node.meta.get("val"))

    def _numbered(self, key: Any, value: Any) -> Numbered:
        found = self.numbering.of(key)
        self.values.setdefault(found, value)
        return self._with_shape(found)


class _First(_Walk):
    """The first graph, read with the inputs of the second one."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        second: _Second,
        left_out: Mapping[int, Sequence[Any]],
    ) -> None:
        super().__init__(program)
        self.second, self.left_out = second, left_out

    def difference(self) -> str:
        """Returns where the graphs part; empty where they give the same.

        :raises _GraphsDifferError: where a value is not computed in the second graph
        """
        self._walk()
        expected = self.second.outputs
        if len(self.outputs) != len(expected):
            return f"{len(self.outputs)} outputs, and {len(expected)}"
        for position, (one, other) in enumerate(zip(self.outputs, expected, strict=True)):
            if normal(one) != normal(other):
                return f"output {position} is computed in another way"
        if self.asserted != self.second.asserted:
            return "something else is asserted"
        if self.n_draws != self.second.n_draws:
            return "more random numbers are drawn on one side"
        shared = ((key, node) for key, node in self.inputs.items() if key[0] is not _LEFT_OUT)
        for key, node in shared:
            if normal(self._of(node)) != normal(self.second._of(self.second.inputs[key])):
                return f"the input {key[-1]} is written to in another way"
        return ""

    def _input(self, key: Any, value: Any) -> Any:
        if key[0] is _LEFT_OUT:
            shape = tuple(map(self.second.size, self.left_out[key[1]]))
            return Numbered(-1 - key[1], shape, value.dtype)
        given = self.second.given.get(key)
        if given is None or isinstance(given, torch.Tensor):
            return self._number(key, None)
        return self.second.size(given)

    def _number(self, key: Any, node: torch.fx.Node | None) -> Numbered:
        found = self.second.known(key)
        if found is None:
            name = node.name if node is not None else key[-1]
            raise _GraphsDifferError(f"{name} is not computed on the other side")
        return found

    def _size(self, node: torch.fx.Node) -> Any:
        """A size: of a tensor as the second graph has it, or computed from such sizes."""
        args, kwargs = self._arguments_of(node)
        if node.target is _aten.sym_size.int:
            tensor, dim = args
            return tensor.shape[dim]
        if node.target is _aten.sym_numel.default:
            return self.second.size(sympy.Mul(*args[0].shape))
        if node.target is _aten.item.default and normal(args[0]) in self.second.read:
            return self.second.read[normal(args[0])]
        if node.target in (_aten.sym_stride.int, _aten.sym_storage_offset.default) or any(
            isinstance(item, Numbered) for item in flat((args, kwargs))
        ):
            raise _GraphsDifferError(f"{node.name} is read from a tensor")
        return self.second.size(_on_expressions(node.target, args, kwargs))

    def _always(self, condition: Any) -> bool:
        return self.second.always(condition)


def _gives_size(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (*SYMBOLIC, int, float, bool))


def _on_expressions(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Arithmetic of sizes, on expressions instead of numbers of torch."""
    if kwargs:
        raise _GraphsDifferError(f"{target} takes sizes by name")
    exact: dict[Any, Callable[..., Any]] = {
        operator.add: sympy.Add,  # of any number: torch writes a product of several sizes as one call
        operator.sub: operator.sub,
        operator.mul: sympy.Mul,
        operator.neg: operator.neg,
        operator.floordiv: FloorDiv,
        operator.mod: PythonMod,
        operator.truediv: IntTrueDiv,
        operator.pow: operator.pow,
        torch.sym_max: sympy.Max,
        torch.sym_min: sympy.Min,
        torch.sym_not: sympy.Not,
        torch.sym_ite: _either,
        operator.and_: sympy.And,
        operator.or_: sympy.Or,
        operator.eq: sympy.Eq,
        operator.ne: sympy.Ne,
        operator.lt: sympy.Lt,
        operator.le: sympy.Le,
        operator.gt: sympy.Gt,
        operator.ge: sympy.Ge,
    }
    if all(isinstance(item, (int, float)) for item in args):
        return target(*args)
    if target not in exact:
        raise _GraphsDifferError(f"{target} of sizes is not compared")
    return exact[target](*map(sympy.sympify, args))


def _either(condition: Any, first: Any, second: Any) -> Any:
    """The number that a condition chooses: ``item()`` of a bool is 1 where its symbol is 1."""
    if isinstance(condition, sympy.Eq) and (condition.rhs, first, second) == (1, 1, 0):
        return condition.lhs
    return sympy.Piecewise((first, condition), (second, True))


def _needed(program: torch.export.ExportedProgram) -> set[torch.fx.Node]:
    """The nodes that the outputs are computed from, and all that write, assert or draw random
    numbers, with what these are computed from.
    """
    first = [node for node in program.graph.nodes if node.op == "output" or has_effects(node)]
    return nodes_reached(first, lambda node: node.all_input_nodes)


def _placeholder_keys(
    program: torch.export.ExportedProgram, left_out: Collection[int]
) -> dict[str, Any]:
    """Per placeholder what it is: an input by its position among those that are not left out, a weight
    by its name, a constant by its content.
    """
    keys: dict[str, Any] = {}
    position = n_inputs = 0
    for spec in program.graph_signature.input_specs:
        name = getattr(spec.arg, "name", "")
        if spec.kind is InputKind.USER_INPUT:
            is_there = n_inputs not in left_out
            keys[name] = ("input", position) if is_there else (_LEFT_OUT, n_inputs)
            position += is_there
            n_inputs += 1
        elif spec.kind is InputKind.CONSTANT_TENSOR and spec.target in program.constants:
            keys[name] = ("constant", digest(program.constants[spec.target]))
        else:
            keys[name] = (str(spec.kind), spec.target)
    return keys

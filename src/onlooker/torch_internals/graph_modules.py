"""The graphs of an exported program: a block of autocast, and a branch of ``torch.cond``, is a graph of its
own.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import InputKind, InputSpec, OutputSpec
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from .fake_tensors import mode_of
from .sizes import ConstantSource, ShapeEnv, symbolic_shapes
from .tracing import enable_python_dispatcher

__all__ = [
    "add_up_sums",
    "called",
    "changed_graphs",
    "copied_module",
    "input_names",
    "modules_of",
    "nodes_of",
    "nodes_reached",
    "note_users",
    "placeholders_of",
    "replace_for_others",
    "with_module",
    "with_open_axes",
    "with_shapes_of",
]


def copied_module(program: torch.export.ExportedProgram) -> GraphModule:
    """A copy of the outer graph of a program, to be changed; it shares inner graphs and weights."""
    module = GraphModule(program.graph_module, _copied(program.graph))
    module.meta.update(program.graph_module.meta)
    return module


def _copied(graph: Graph) -> Graph:
    copied = copy.deepcopy(graph)
    for node, known in zip(copied.nodes, graph.nodes, strict=True):
        node.name = known.name  # a copy calls an input of the name "input" another name
    return copied


@contextlib.contextmanager
def changed_graphs(
    program: torch.export.ExportedProgram, *changes: Callable[[Graph], None]
) -> Iterator[None]:
    """Inside the block each graph of a program is a copy that the functions have changed, one after the
    other; afterwards it is what it was.
    """
    before = [(module, module.graph) for module in modules_of(program)]
    try:
        for module, graph in before:
            copied = _copied(graph)
            for change in changes:
                change(copied)
            module.graph = copied
        yield
    finally:
        for module, graph in before:
            module.graph = graph


def note_users(graph: Graph) -> None:
    """Notes each node with the nodes that it reads.

    torch forgets some where a region of autocast ends: nothing that reads such a node could be removed.
    """
    for node in graph.nodes:
        for read in node.all_input_nodes:
            read.users.setdefault(node)


def add_up_sums(graph: Graph) -> None:
    """Writes ``torch.sym_sum([a, b, c])`` as ``a + b + c``, which torch can save, and converters know."""
    for node in graph.find_nodes(op="call_function", target=torch.sym_sum):
        terms: Any = node.args if len(node.args) > 1 else node.args[0]
        total = terms[0]
        with graph.inserting_before(node):
            for term in terms[1:]:
                total = graph.call_function(operator.add, (total, term))
                total.meta = dict(node.meta)
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def called(graph: Graph, operator: Any, *args: Any, **kwargs: Any) -> Node:
    """A call of an operator, added where a graph is being changed, with the fake tensor of its result."""
    node = graph.call_function(operator, args, kwargs)
    values = map_arg(args, lambda one: one.meta["val"])
    mode = mode_of(node.all_input_nodes or graph.nodes) or contextlib.nullcontext()
    with mode, enable_python_dispatcher():  # as in a trace: kernels of C++ take no symbols
        node.meta["val"] = operator(*values, **kwargs)
    return node


def written_anew(graph: Graph, node: Node, write: Callable[[Graph, Node], Node]) -> None:
    """Puts the nodes that a function writes in the place of a node; each says the line of the model of that node, and
    the one that stands for it has its name, by which a signature may know it.
    """
    before, name = node.prev, node.name
    with graph.inserting_before(node):
        written = write(graph, node)
    made, is_new = node.prev, False
    while made is not before:
        made.meta["stack_trace"] = node.meta.get("stack_trace")
        is_new |= made is written
        made = made.prev
    node.replace_all_uses_with(written)
    graph.erase_node(node)
    if is_new:
        written.name = name


def with_module(
    program: torch.export.ExportedProgram,
    module: GraphModule,
    *,
    inputs: Sequence[InputSpec] | None = None,
    outputs: Sequence[OutputSpec] | None = None,
    **changed: Any,
) -> torch.export.ExportedProgram:
    """Another program with a changed copy of the graph of one, and with ``inputs`` and ``outputs`` in the
    signature where they differ; ``changed`` is ``state_dict``, for instance.
    """
    module.graph.lint()
    module.recompile()
    known = program.graph_signature
    signature = type(known)(
        list(known.input_specs if inputs is None else inputs),
        list(known.output_specs if outputs is None else outputs),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch copies its tree specs by a deprecated way
        return program._update(module, signature, **changed)


def with_shapes_of(
    program: torch.export.ExportedProgram, other: torch.export.ExportedProgram
) -> torch.export.ExportedProgram | None:
    """A program whose tensors have the shapes that they have for the inputs of another trace of the same model;
    None where these inputs are others, or tell nothing of them.
    """
    inputs, mode = placeholders_of(other), mode_of(nodes_of(other))
    are_alike = list(inputs) == list(placeholders_of(program))
    if not are_alike or mode is None or any(map(_has_own_sizes, nodes_of(program))):
        return None
    values = [node.meta["val"] for node in inputs.values()]
    return _of_inputs(program, mode, values, other.range_constraints)


def _of_inputs(
    program: torch.export.ExportedProgram,
    mode: Any,
    values: Sequence[Any],
    ranges: Mapping[Any, Any],
) -> torch.export.ExportedProgram:
    """The program with the shapes that its tensors have for these fake inputs, whose symbols have the ranges."""
    module = copied_module(program)
    with enable_python_dispatcher():  # as in a trace: kernels of C++ take no symbols
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*values)
    made = with_module(program, module)
    made._range_constraints = dict(ranges)
    return made


def with_open_axes(
    program: torch.export.ExportedProgram, axes: Mapping[str, Mapping[int, str]]
) -> torch.export.ExportedProgram | None:
    """A program in which some axes of its inputs, which are numbers, have a symbol each: ``axes`` are the names of
    the symbols, by the name of the input and the dimension. None where the graph is for the numbers alone.
    """
    nodes = [*nodes_of(program)]
    mode = mode_of(nodes)
    if mode is None or mode.shape_env is None or any(map(_has_own_sizes, nodes)):
        return None
    symbols: dict[str, Any] = {}
    values = []
    for name, node in placeholders_of(program).items():
        value: Any = node.meta["val"]
        if name in axes:
            shape = list(value.shape)
            for dim, symbol in axes[name].items():
                if symbol not in symbols:
                    symbols[symbol] = _new_size(mode.shape_env, symbol, int(shape[dim]))
                shape[dim] = symbols[symbol]
            order = sorted(range(value.ndim), key=lambda dim: (-value.stride(dim), dim))
            with mode:
                value = torch.empty_permuted(shape, order, dtype=value.dtype, device=value.device)
        values.append(value)
    made = _of_inputs(program, mode, values, program.range_constraints)
    found = {mode.shape_env.replace(size.node.expr) for size in symbols.values()}
    if len(found) < len(symbols) or not all(one.is_symbol for one in found):
        return None
    made._range_constraints.update((one, mode.shape_env.var_to_range[one]) for one in found)
    return made


def _new_size(environment: ShapeEnv, name: str, size: int) -> Any:
    """A size with a symbol of its own, which was a number in a trace."""
    source = ConstantSource(name)
    symbol = environment.create_symbol(size, source, dynamic_dim=symbolic_shapes.DimDynamic.DYNAMIC)
    return environment.create_symintnode(symbol, hint=size, source=source)


def _has_own_sizes(node: Node) -> bool:
    """True for an operator whose result has sizes that no input has, and one that runs a graph of its own."""
    return bool(node.meta.get("unbacked_bindings")) or node.op == "get_attr"


def modules_of(program: torch.export.ExportedProgram) -> list[GraphModule]:
    """The modules of all graphs, the outer one first."""
    return [one for one in program.graph_module.modules() if isinstance(one, GraphModule)]


def input_names(program: torch.export.ExportedProgram) -> list[str]:
    """The names of the inputs that calls give, in their order."""
    specs = program.graph_signature.input_specs
    return [spec.arg.name for spec in specs if spec.kind is InputKind.USER_INPUT]


def replace_for_others(node: Node, made: Node) -> None:
    """Lets all that read a node read another one, which is made of it."""
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def placeholders_of(program: torch.export.ExportedProgram) -> dict[str, Node]:
    """The inputs of the outer graph by their names; weights are among them."""
    return {node.name: node for node in program.graph.find_nodes(op="placeholder")}


def nodes_of(program: torch.export.ExportedProgram) -> Iterator[Node]:
    """The nodes of all graphs."""
    for module in modules_of(program):
        yield from module.graph.nodes


def nodes_reached(nodes: Iterable[Node], next_of: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """The nodes, and all that are reached from them by ``next_of``."""
    found: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += next_of(node)
    return found

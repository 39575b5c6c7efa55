"""Converts exported graphs to one program of ExecuTorch, a method for each."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ...core.errors import ExportError, UsageError
from ...core.precision import is_calibrated
from ...core.sizes.expression import Expression
from ...hypotheses.ranges import greatest
from ...model_source.lines import place_of_node
from ...patches.swap import swapped
from ...proofs.exported_sizes import sizes_in_plan
from ...torch_internals.fake_tensors import mode_of
from ...torch_internals.graph_modules import copied_module, with_module
from ...torch_internals.sizes import ValueRanges
from ...trace.graph import Graph
from ...trace.torch_run import without_guards
from ..asserted import assertions_in
from ..inputs import fake_inputs, layout_of, with_tensors_for_ints
from ..refused import refused_graph
from ..taken_apart import TAKEN_APART, take_apart

__all__ = [
    "BACKENDS",
    "Converted",
    "check_backend",
    "convert_graphs",
    "layouts_kept",
    "refused",
    "without_warnings",
]

logger = logging.getLogger(__name__)


# Upper bounds of sizes, where ExecuTorch reads them: in the ranges that torch keeps of its symbols.
#
# Without a bound ExecuTorch plans its memory for the sizes of the example, and refuses larger ones
# when it runs. Upstream: https://github.com/pytorch/executorch/issues/20834,
# ``exir/sym_util.py``, ``eval_upper_bound``.
@contextlib.contextmanager
def bounds_in_torch(graphs: Sequence[Graph]) -> Iterator[list[str]]:
    """Inside the block torch knows the greatest value of each symbol of the programs of ``graphs``,
    whose plans have bounds. Afterwards the programs are as they were.

    A size that is an expression of others needs nothing: ExecuTorch computes its bound from theirs.
    Yields a list of the sizes that were made numbers meanwhile, complete when the block has ended.
    """
    from executorch.exir.verification import verifier

    fixed_sizes: list[str] = []
    environments = [_environment(graph.artifact) for graph in graphs]
    check = verifier._check_tensor_args_matching_op_allowed_dtype
    with contextlib.ExitStack() as stack:
        for graph, environment in zip(graphs, environments, strict=True):
            if environment is not None:
                stack.enter_context(_bounded(graph, environment, fixed_sizes))
        unguarded = _unguarded(check, [each for each in environments if each is not None])
        stack.enter_context(swapped(verifier, check.__name__, unguarded))
        yield fixed_sizes


@contextlib.contextmanager
def _bounded(graph: Graph, environment: Any, fixed_sizes: list[str]) -> Iterator[None]:
    ranges, replacements = environment.var_to_range, environment.replacements
    before, replaced = dict(ranges), dict(replacements)
    symbols = {symbol.name: symbol for symbol in graph.plan.symbols}
    sizes = sizes_in_plan(graph.artifact, graph.plan, graph.names)
    planned = {}
    for symbol, size in sizes.items():
        if symbol in ranges and size.free_symbols:
            least = int(ranges[symbol].lower)
            # with one value left it would be a number, and smaller sizes would not be taken
            most = max(greatest(Expression(size), symbols), least + 1)
            planned[symbol] = ValueRanges(least, most)
    ranges.update(planned)
    environment._version_counter += 1  # what was decided with the other ranges is decided anew
    refine = environment._refine_ranges

    def refined(expression: Any) -> None:
        """Notes a number, and no smaller bound: torch chooses between its own kernels for convolutions
        by ``batch < 16``, and ExecuTorch would plan memory for a batch of 15.
        """
        refine(expression)
        ranges.update({s: b for s, b in planned.items() if not ranges[s].is_singleton()})

    try:
        with swapped(environment, "_refine_ranges", refined):
            yield
    finally:
        fixed_sizes += [
            f"{size} = {replacements[symbol]}"
            for symbol, size in sizes.items()
            if symbol in replacements and symbol not in replaced and replacements[symbol].is_number
        ]
        ranges.update(before)
        replacements.clear()
        replacements.update(replaced)
        environment._version_counter += 1
        environment.pending_fresh_unbacked_symbols.clear()


def _unguarded(check: Callable[[Any], None], environments: Sequence[Any]) -> Callable[[Any], None]:
    """The check of ExecuTorch without the guards that it leaves in torch.

    For an operator that gives a list of tensors it takes the first tensor for the list, and its
    length, which is the batch, becomes a number. Upstream: ``exir/verification/arg_validator.py``,
    ``call_function`` (executorch 1.5).
    """

    def checked(module: Any) -> None:
        with contextlib.ExitStack() as stack:
            for environment in environments:
                stack.enter_context(environment.suppress_guards())
            check(module)

    return checked


def _environment(program: torch.export.ExportedProgram) -> Any:
    """The sizes that torch knows of a program; None where all are numbers."""
    mode = mode_of(program.graph.nodes)
    return None if mode is None else mode.shape_env


# Results of attention keep the layout in memory that they had in the trace.
#
# ``scaled_dot_product_attention`` gives a result laid out as its query, and a model may view it as rows
# without a copy, as GPT-2 does. torch decomposes the operator to one whose result always has the
# layout of ``nn.MultiheadAttention``, steps outside of rows: such a view then fails.
#
# Upstream: ``scaled_dot_product_flash_attention_for_cpu`` in
# https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_decomp/decompositions.py. It may go when that
# function gives the layout of the query; ``tests/targets/executorch/test_attention.py`` says so.
_ATEN = torch.ops.aten
#: what gives another view of a tensor, where it can
_MOVES = (_ATEN.transpose.int, _ATEN.permute.default, _ATEN.reshape.default)


def layouts_kept(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with a copy into the layout of the trace behind every attention whose result is
    viewed; the program itself where there is none.
    """
    found = [node.name for node in _attentions(program.graph) if _is_viewed(node)]
    if not found:
        return program
    module = copied_module(program)
    for node in _attentions(module.graph):
        if node.name in found:
            _lay_out(module.graph, node)
    return with_module(program, module)


def _attentions(graph: torch.fx.Graph) -> list[Node]:
    target = _ATEN.scaled_dot_product_attention.default
    return list(graph.find_nodes(op="call_function", target=target))


def _is_viewed(node: Node) -> bool:
    """True where a view reads the result, or the result with its dimensions in another order."""
    return any(
        user.target is _ATEN.view.default or (user.target in _MOVES and _is_viewed(user))
        for user in node.users
    )


def _lay_out(graph: torch.fx.Graph, node: Node) -> None:
    """Copies the result of a node into the layout that its fake tensor has."""
    value = node.meta["val"]
    order = layout_of(value)
    if order is None:
        return
    inverse = sorted(range(len(order)), key=order.__getitem__)
    with graph.inserting_after(node):
        outer = graph.call_function(_ATEN.permute.default, (node, order))
    with graph.inserting_after(outer):
        kind: dict[str, Any] = {"memory_format": torch.contiguous_format}
        copied = graph.call_function(_ATEN.clone.default, (outer,), kind)
    with graph.inserting_after(copied):
        back = graph.call_function(_ATEN.permute.default, (copied, inverse))
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not outer)
    for made in (outer, copied, back):
        made.meta = dict(node.meta)
    outer.meta["val"] = copied.meta["val"] = value.permute(order)


def _rest(x: torch.Tensor, y: Any) -> Any:
    """``remainder`` of ints, which has the sign of the divisor: the kernel takes that of the number."""
    if x.dtype.is_floating_point or not isinstance(y, (torch.Tensor, int)):
        return NotImplemented
    return x - torch.div(x, y, rounding_mode="floor") * y


def _sorted(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """``sort``: an element comes behind those that are less, and behind equal ones that stood before it."""
    if not x.dim():
        return NotImplemented
    rows = x.movedim(dim, -1)
    places = torch.arange(rows.shape[-1], device=x.device)
    mine, other = rows[..., :, None], rows[..., None, :]
    is_less = other > mine if descending else other < mine
    ranks = (is_less | ((other == mine) & (places < places[:, None]))).sum(-1)
    order = torch.zeros_like(ranks).scatter(-1, ranks, places.expand(ranks.shape))
    return rows.gather(-1, order).movedim(-1, dim), order.movedim(-1, dim)


def _order(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """``argsort``"""
    return _sorted(x, dim, descending)[1] if x.dim() else NotImplemented


#: of the operators that converters lack those that ExecuTorch has kernels for
_KERNELS = (
    _ATEN._cdist_forward.default,
    _ATEN.atan2.default,
    _ATEN.cdist.default,
    _ATEN.masked_select.default,
)
#: of the operators that converters lack those that ExecuTorch lacks too, and its own
_TAKEN_APART: dict[Any, Callable[..., Any]] = {
    **{
        operator: function for operator, function in TAKEN_APART.items() if operator not in _KERNELS
    },
    _ATEN.argsort.default: _order,
    _ATEN.remainder.Scalar: _rest,
    _ATEN.remainder.Tensor: _rest,
    _ATEN.sort.default: _sorted,
}


#: who computes: kernels of ExecuTorch, or XNNPACK where it has an operator
BACKENDS = ("portable", "xnnpack")

#: functions of sizes that ExecuTorch computes, and that the check of its converter does not know
_OF_SIZES = (
    torch.sym_float,
    torch.sym_int,
    torch.sym_ite,
    torch.sym_max,
    torch.sym_min,
    torch.sym_not,
)


@dataclass(frozen=True, slots=True)
class Converted:
    """The content of a ``.pte``, and by method the bytes that it plans to use beside its weights."""

    content: bytes
    memory: Mapping[str, int]


def check_backend(backend: Any) -> None:
    """Passes for a backend that graphs can be converted for.

    :raises UsageError: ``bad-backend``
    """
    if backend not in BACKENDS:
        raise UsageError(
            f"backend={backend!r} cannot be converted for.",
            slug="bad-backend",
            hint=f"The backends of ExecuTorch that onlooker knows are {', '.join(BACKENDS)}.",
        )


def convert_graphs(graphs: Sequence[Graph], backend: str) -> Converted:
    """All graphs of torch as methods of one program, each weight once; their plans have upper
    bounds.

    :raises ExportError: ``executorch-refused`` with the message of the converter
    """
    for graph in graphs:
        _check_assertions(graph)
        _check_layouts(graph)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(without_warnings())
            stack.enter_context(torch.no_grad())
            for graph in graphs:
                stack.enter_context(without_guards(graph.artifact))
            fixed_sizes = stack.enter_context(bounds_in_torch(graphs))
            programs = {
                graph.name: layouts_kept(
                    with_tensors_for_ints(take_apart(graph.artifact, _TAKEN_APART))
                )
                for graph in graphs
            }
            from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

            if any(is_calibrated(graph.options.get("precision")) for graph in graphs):
                import executorch.kernels.quantized  # noqa: F401  (registers operators with results given)

            lowered = to_edge_transform_and_lower(
                programs,
                partitioner=_partitioner(backend),
                compile_config=EdgeCompileConfig(_core_aten_ops_exception_list=list(_OF_SIZES)),
            )
            written = [
                graph.labels[at]
                for graph in graphs
                for at in _written(lowered.exported_program(graph.name))
            ]
            made = lowered.to_executorch()
            memory = {
                plan.name: sum(plan.non_const_buffer_sizes)
                for plan in made.executorch_program.execution_plan
            }
            content = bytes(made.buffer)
    except Exception as error:
        raise refused(graphs, _reason(error), error) from None
    if fixed_sizes:
        raise refused(graphs, f"its converter makes a size a number: {', '.join(fixed_sizes)}")
    if written:
        raise refused(
            graphs,
            f"it writes to the tensors {', '.join(written)} of a call in place, and its methods give"
            " such a tensor beside their results",
        )
    return Converted(content, memory)


def _written(program: torch.export.ExportedProgram) -> list[int]:
    """The inputs that a program writes to, by their places."""
    signature = program.graph_signature
    written = set(signature.user_inputs_to_mutate.values())
    return [at for at, name in enumerate(signature.user_inputs) if name in written]


def _partitioner(backend: str) -> list[Any] | None:
    if backend == "portable":
        return None
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return [XnnpackPartitioner()]


def _check_assertions(graph: Graph) -> None:
    """Passes where nothing hangs on values: ExecuTorch would answer calls of the other side of a
    branch with the numbers of this one.

    :raises ExportError: ``executorch-refused``
    """
    for node in assertions_in(graph.artifact.graph):
        place = place_of_node(node)
        raise refused(
            [graph],
            f"it asserts something of values ({node.target}{f', at {place}' if place else ''}),"
            " and ExecuTorch drops assertions",
        )


def _check_layouts(graph: Graph) -> None:
    """Passes where all inputs lie in memory as their dimensions say: calls are brought into this
    form.

    :raises ExportError: ``executorch-refused``
    """
    for path, value in fake_inputs(graph):
        if isinstance(value, torch.Tensor) and layout_of(value) != list(range(value.ndim)):
            raise refused([graph], f"{path} was exported in memory that is not contiguous")


def refused(
    graphs: Sequence[Graph], reason: str, cause: BaseException | None = None
) -> ExportError:
    """The error for graphs that ExecuTorch does not take."""
    error = ExportError(
        f"cannot be converted to ExecuTorch: {reason}",
        slug="executorch-refused",
        hint="The torch program of the same plan may hold: export with to='torch'.",
    )
    if len(graphs) == 1:
        return refused_graph(graphs[0], error, cause)
    logger.debug("%s", error.message, exc_info=cause)
    names = ", ".join(graph.name for graph in graphs)
    error.restate(f"{names} {error.message}", error.hint)
    return error


def _reason(error: BaseException) -> str:
    """The class and the first lines of the error at the bottom, and the operator where it
    stopped.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = f"{type(error).__name__}: {' '.join(lines[:4])[:500]}".rstrip(": ")
    node = _node_of(error)
    if node is None:
        return said
    place = place_of_node(node)
    return f"{said} ({node.target}{f', at {place}' if place else ''})"


def _node_of(error: BaseException) -> Node | None:
    """The node of the graph that the converter worked on: the innermost frame that has one."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("node", "n"):
            value = frame.f_locals.get(name)
            if isinstance(value, Node) and value.op == "call_function":
                found = value
    return found


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Without the warnings and the log lines of ExecuTorch, and of what it imports: they tell of
    absent packages.
    """
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

"""Converts exported graphs to one program of ExecuTorch, a method for each."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ...core.errors import ExportError, UsageError
from ...model_source.lines import place_of_node
from ...trace.graph import Graph
from ...trace.torch_run import without_guards
from ..asserted import assertions_in
from ..inputs import fake_inputs, layout_of, with_tensors_for_ints
from ..refused import refused_graph
from .attention import layouts_kept
from .bounds import bounds_in_torch

__all__ = [
    "BACKENDS",
    "Converted",
    "check_backend",
    "convert_graphs",
    "refused",
    "without_warnings",
]

logger = logging.getLogger(__name__)
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
            baked = stack.enter_context(bounds_in_torch(graphs))
            programs = {
                graph.name: layouts_kept(with_tensors_for_ints(graph.artifact)) for graph in graphs
            }
            from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

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
    if baked:
        raise refused(graphs, f"its converter makes a size a number: {', '.join(baked)}")
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

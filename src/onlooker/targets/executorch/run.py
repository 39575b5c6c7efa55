"""Runs the methods of a program of ExecuTorch on tensors of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.support.locks import lock_of
from ...disk.text import damaged
from ...patches.quiet import Printed, what_is_printed
from ...trace.graph import Graph
from ..inputs import laid
from ..results import Runner, as_the_model_gives
from .convert import refused, without_warnings

__all__ = ["Pte", "load_pte", "open_pte"]


class Pte:
    """A program of ExecuTorch: the content of its file, and the runtime's view of it.

    Its methods use one memory, so one of them runs at a time.
    """

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.program: Any = None
        self._lock = lock_of(self)

    def run(self, method: Any, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a method, in memory of their own.

        :raises RuntimeError: where the runtime refuses the inputs, with what it says
        """
        with self._lock, what_is_printed() as printed:
            try:
                return list(method.execute(inputs))
            except RuntimeError as error:
                raise RuntimeError(_told(error, printed)) from error


def open_pte(pte: Pte, graphs: Sequence[Graph], where: str) -> list[Runner]:
    """A function of the inputs for each graph, which runs the method of its name.

    :raises SavedFileError: ``file-damaged`` where the program is none, or has other methods
    :raises ExportError: ``executorch-refused`` where the runtime lacks an operator
    """
    load_pte(pte, where)
    return [_opened(pte, graph, where) for graph in graphs]


def load_pte(pte: Pte, where: str) -> None:
    """Gives a program the runtime's view of it.

    :raises SavedFileError: ``file-damaged`` where it is none
    """
    with without_warnings():
        from executorch.runtime import Runtime
    with what_is_printed() as printed:
        try:
            pte.program = Runtime.get().load_program(pte.content)
        except RuntimeError as error:
            reason = f"it is no program of ExecuTorch ({_told(error, printed)})"
            raise damaged(where, reason) from error


def _opened(pte: Pte, graph: Graph, where: str) -> Runner:
    if graph.name not in pte.program.method_names:
        raise damaged(where, f"it has no method {graph.name}")
    with what_is_printed() as printed:
        try:
            method = pte.program.load_method(graph.name)
        except RuntimeError as error:
            raise refused([graph], _told(error, printed), error) from None
    about = method.metadata
    given, results = about.num_inputs(), about.num_outputs()
    if given != len(graph.plan.inputs) or results != len(graph.outputs.names):
        raise damaged(where, f"its inputs and outputs are not those of the plan of {graph.name}")
    return _runner(pte, method, graph)


def _told(error: Exception, printed: Printed) -> str:
    """The error of the runtime, and the first lines of its log without the places in C++."""
    lines = [line.partition("] ")[2] or line for line in printed.text.splitlines()]
    return f"{error} ({'; '.join(lines[:3])[:500]})" if lines else str(error)


def _runner(pte: Pte, method: Any, graph: Graph) -> Runner:
    """The method as a function; a size that the plan does not allow never comes here."""

    def start(inputs: Sequence[Any]) -> list[Any]:
        return pte.run(method, [laid(value, "", None).cpu() for value in inputs])

    return as_the_model_gives(start, graph.outputs.are_ints, graph.outputs.are_floats)

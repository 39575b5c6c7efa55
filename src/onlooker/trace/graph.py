"""One exported graph, and how a call of the model becomes a call of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Values
from ..core.contents import GraphContents
from ..core.errors import UnsupportedError
from ..core.structure import Tree
from ..observing.store import copy_leaves
from ..observing.surroundings import outside_autocast
from ..pytrees.comparisons.agree import Agreement, agreement
from ..repairs.numbers.float_tensors import with_float_tensors
from ..torch_internals.modes import is_any_autocast_enabled

__all__ = ["Graph", "Runner", "check_graphs", "no_graph"]

#: runs a graph: its inputs in their order to the leaves that it gives
Runner = Callable[[Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(GraphContents):
    """A graph with what runs it.

    ``run`` takes the inputs in the order of the plan and gives the named outputs; it checks nothing
    itself. ``artifact`` is what the target made, ``example`` are the inputs of the export.
    ``blocked`` says why the runtime of the target cannot run the graph in this process, and is empty
    where it can. ``keeps`` are the arguments, caches, that the files of the graph keep inside from
    call to call.
    """

    run: Runner
    artifact: Any
    example: tuple[Any, ...] = ()
    blocked: str = ""
    keeps: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The name, the target and the number of inputs: an artifact may print thousands of lines."""
        return f"<Graph {self.name} of {self.target}: {len(self.plan.inputs)} inputs>"

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """All leaves of the result for inputs in the order of the plan; a float may be one of
        Python.

        Autocast of the caller is off meanwhile: the casts of the watched calls are in the graph, and
        a second cast would give other results than those that were verified.
        """
        if is_any_autocast_enabled():
            with outside_autocast():
                return self(inputs)
        with torch.no_grad():
            results = self.run(with_float_tensors(inputs))
            return self.outputs.leaves(self._with_inputs(results, inputs))

    def _with_inputs(self, results: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        """The results, with the inputs that the model writes to and returns: a runtime other than torch has
        written to no input.
        """
        if not self.outputs.written:
            return results
        found = list(results)
        for place, number in self.outputs.written:
            if found[place] is not inputs[number]:
                inputs[number].copy_(found[place])
                found[place] = inputs[number]
        return found

    def compared(self, values: Values, expected: Tree[Any], *, atol: float = 1e-5) -> Agreement:
        """Compares the result for the values of a call with that of the model: returns the
        difference.

        :raises Exception: what the graph raises
        """
        got = self(copy_leaves(tuple(values[leaf.path] for leaf in self.plan.inputs)))
        return agreement(expected.structure.paths(), expected.leaves, got, atol=atol)


def no_graph(inputs: Sequence[Any]) -> Sequence[Any]:
    """Stands for the runner of a graph of a contract; a program of its own replaces it.

    :raises UnsupportedError: ``no-graphs``
    """
    raise _no_graphs()


def _no_graphs() -> UnsupportedError:
    return UnsupportedError(
        "This is the contract of a program, which has no graphs.",
        slug="no-graphs",
        hint="Load the program itself; the contract checks calls, and explains its sizes.",
    )


def check_graphs(graphs: Sequence[Graph]) -> None:
    """Passes for graphs that can be run.

    :raises UnsupportedError: ``no-graphs``
    """
    if any(graph.run is no_graph for graph in graphs):
        raise _no_graphs()

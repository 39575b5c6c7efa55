"""An export of another maker in the place of a graph: which input is which argument, and which
output is which part of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Values
from ..core.contract import Contract
from ..core.errors import UsageError
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..targets.onnx.runtime.feeds import match_inputs, plain_name, spellings
from ..trace.graph import Graph, Runner
from .exported import Exported

__all__ = ["Fitted", "fit", "stand_in"]

#: by position the output that a leaf of the result is; None for one that the file lacks
Order = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """An export beside one graph of the model. ``inputs`` has the argument of each input,
    ``order`` the output of each tensor of the result.
    """

    exported: Exported
    graph: Graph
    inputs: Mapping[str, Path]
    order: Order

    @property
    def results(self) -> tuple[Path, ...]:
        """The paths of the tensors of the result that the file has to give."""
        return tuple(path for path, _ in _tensors(self.graph))

    @property
    def unread(self) -> tuple[LeafPlan, ...]:
        """The arguments that are no input of the file."""
        read = set(self.inputs.values())
        return tuple(leaf for leaf in self.graph.plan.inputs if leaf.path not in read)


def fit(exported: Exported, graph: Graph) -> Fitted:
    """Finds for each input of an export the argument of the calls of one graph that it takes.

    :raises UsageError: ``inputs-do-not-match``
    """
    names = [port.name for port in exported.inputs]
    examples = {leaf.path: _example(leaf) for leaf in graph.plan.inputs}
    try:
        inputs = match_inputs(names, examples)
    except UsageError:
        inputs = _with_constants(names, graph.plan, examples)
    wanted = [path for path, _ in _tensors(graph)]
    labels = [label for _, label in _tensors(graph)]
    return Fitted(exported, graph, inputs, _order(exported, wanted, labels))


def _with_constants(names: Sequence[str], plan: Plan, examples: Values) -> dict[str, Path]:
    """The leaf of each input, where the file takes arguments too that were the same in all calls."""
    constants = {
        leaf.path: leaf.constant.value for leaf in plan.leaves if leaf.constant is not None
    }
    return match_inputs(names, {**examples, **constants})


def _example(leaf: LeafPlan) -> Any:
    if leaf.is_tensor:
        return torch.empty(0)
    return 1.0 if leaf.is_float else 1


def _tensors(graph: Graph) -> Iterator[tuple[Path, str]]:
    """The path and the label of each tensor of the result that the graph computes."""
    outputs = graph.outputs
    for position, (path, label) in enumerate(
        zip(outputs.structure.paths(), outputs.labels, strict=True)
    ):
        if outputs.dynamic[position] and position not in outputs.numbers:
            yield path, label


def _order(exported: Exported, wanted: Sequence[Path], labels: Sequence[str]) -> Order:
    """By names as far as they go; then the rest in its order, where it is as many."""
    names = [plain_name(port.name) for port in exported.outputs]
    found: dict[int, int] = {}
    for position, (path, label) in enumerate(zip(wanted, labels, strict=True)):
        spelled = {plain_name(label), *spellings(path)}
        places = [place for place, name in enumerate(names) if name in spelled]
        if len(places) == 1 and places[0] not in found.values():
            found[position] = places[0]
    if not names:  # the file does not tell its outputs
        return tuple(range(len(wanted)))
    left = [place for place in range(len(names)) if place not in found.values()]
    rest = [position for position in range(len(wanted)) if position not in found]
    found |= dict(zip(rest, left, strict=False))
    return tuple(found.get(position) for position in range(len(wanted)))


def stand_in(fitted: Fitted) -> Graph:
    """The export as the graph of the same plan, without a contract: what the file refuses, it
    refuses itself.
    """
    graph = fitted.graph
    kind = "torch" if fitted.exported.kind == "torch.export" else fitted.exported.kind
    return replace(graph, run=_runner(fitted), artifact=None, target=kind, contract=Contract())


def _runner(fitted: Fitted) -> Runner:
    graph, exported = fitted.graph, fitted.exported
    paths = [leaf.path for leaf in graph.plan.inputs]
    constants = {leaf.path: leaf.constant for leaf in graph.plan.leaves if leaf.constant}
    numbers = any(graph.outputs.are_ints) or any(graph.outputs.are_floats)

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        values = dict(zip(paths, inputs, strict=True))
        given = {
            name: values[path] if path in values else constants[path].value
            for name, path in fitted.inputs.items()
        }
        results = list(exported.run(given))
        tensors = [
            results[place] if place is not None and place < len(results) else None
            for place in fitted.order
        ]
        if not numbers:
            return tensors
        # ints and floats of the result are no outputs of most files: they are those of the graph
        kept = iter(tensors)
        own = graph.run(inputs)
        kinds = zip(own, graph.outputs.are_ints, graph.outputs.are_floats, strict=True)
        return [value if is_int or is_float else next(kept) for value, is_int, is_float in kinds]

    return run

"""A model of ONNX as the readers of other makers take it: its inputs and outputs are called as they
say, and its weights lie where they look for them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....contract.checker import Checker
from ....core.plan import LeafPlan
from ....trace.graph import Graph
from ...names import names_of
from ..files import write_models
from ..merge import SELECTOR, merged_model, models_of
from ..weights import MOST_IN_ONE_FILE, share

__all__ = [
    "HandedOver",
    "Sized",
    "handed_over",
    "longest_served",
    "plain_names",
    "why_refused",
]

#: every length up to this is tried, then the powers of two and what is beside them
_ALL_UP_TO = 64


class HandedOver:
    """The one model of some graphs, as a copy whose inputs and outputs have plain names."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    def inputs(self) -> list[str]:
        """The names of its inputs."""
        return [str(value.name) for value in self.model.graph.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of its outputs."""
        return [str(value.name) for value in self.model.graph.outputs]

    @property
    def takes_a_choice(self) -> bool:
        """True where an input says which of several graphs is run."""
        return SELECTOR in self.inputs

    def keep_outputs(self, names: Mapping[str, str]) -> None:
        """Calls outputs by other names, and leaves out those that have none."""
        from onnx_ir.passes.common import RemoveUnusedNodesPass

        kept = [value for value in self.model.graph.outputs if str(value.name) in names]
        self.model.graph.outputs.clear()
        self.model.graph.outputs.extend(kept)
        _rename(kept, names)
        RemoveUnusedNodesPass()(self.model)

    def name_first_axes(self, name: str) -> None:
        """Calls the size that the first axes of the inputs share ``name``, wherever it stands in the
        shapes of inputs and outputs.
        """
        import onnx_ir

        ports = [*self.model.graph.inputs, *self.model.graph.outputs]
        shapes = [list(value.shape) for value in self.model.graph.inputs if value.shape]
        first = {str(shape[0]) for shape in shapes if not isinstance(shape[0], int)}
        if len(first) != 1:
            return
        (own,) = first
        for value in ports:
            if value.shape is not None:
                sizes = [name if str(size) == own else size for size in value.shape]
                value.shape = onnx_ir.Shape(sizes)

    def write(self, path: Path) -> list[str]:
        """Writes the model, and gives the names of its files. From 2 GB on its weights stand beside it,
        in ``NAME.onnx_data``, where optimum and transformers.js look for them.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        files = write_models([self.model], [path], MOST_IN_ONE_FILE, weights=f"{path.name}_data")
        return [file.name for file in files]


def handed_over(graphs: Sequence[Graph]) -> HandedOver:
    """The model of graphs of ONNX, several of them merged, whose inputs and outputs are called without
    the containers that all of them stand in. An output that only gives an input back is left out.

    :raises ExportError: ``not-mergeable``
    """
    models = models_of(graphs)
    share(models)
    model = merged_model(models, graphs) if len(models) > 1 else models[0].clone()
    made = HandedOver(model)
    given = {id(value) for value in model.graph.inputs}
    own = [str(value.name) for value in model.graph.outputs if not _gives_back(value, given)]
    _rename(model.graph.inputs, plain_names(made.inputs))
    made.keep_outputs(plain_names(own))
    for node in model.graph.all_nodes():
        node.metadata_props.clear()  # lines of the model, which only onlooker reads
    return made


def _gives_back(value: Any, given: set[int]) -> bool:
    """True for an output that is an input, or a copy of one."""
    node = value.producer()
    while node is not None and node.op_type == "Identity":
        value = node.inputs[0]
        node = value.producer()
    return id(value) in given


def _rename(values: Sequence[Any], names: Mapping[str, str]) -> None:
    for value in values:
        value.name = names[str(value.name)]


def plain_names(names: Sequence[str]) -> dict[str, str]:
    """The names without the containers that all of them stand in.

    >>> plain_names(["input.data.input_ids", "input.data.attention_mask"])
    {'input.data.input_ids': 'input_ids', 'input.data.attention_mask': 'attention_mask'}
    >>> plain_names(["input_ids", "past.0.key"])
    {'input_ids': 'input_ids', 'past.0.key': 'past.0.key'}
    """
    containers = [name.split(".")[:-1] for name in names]
    shared = 0
    for steps in zip(*containers, strict=False):
        if len(set(steps)) > 1:
            break
        shared += 1
    return {name: ".".join(name.split(".")[shared:]) for name in names}


@dataclass(frozen=True, slots=True)
class Sized:
    """Stands in for a tensor where only its shape is read."""

    shape: tuple[int, ...]


def why_refused(
    graphs: Sequence[Graph], shape_of: Callable[[str, LeafPlan], tuple[int, ...]]
) -> str:
    """Empty where one of the graphs is proven for a call; ``shape_of`` gives the shape of an input by
    its plain name. Else why the first graph does not take the call.
    """
    refusals = []
    for graph in graphs:
        names = names_of(graph).inputs
        plain = plain_names(names)
        sized = [
            Sized(shape_of(plain[name], leaf))
            for name, leaf in zip(names, graph.plan.inputs, strict=True)
        ]
        checker = Checker(graph.plan, graph.contract)
        if checker(sized):
            return ""
        refusals += [str(violation) for violation in checker.violations(sized)]
    return refusals[0] if refusals else "it has no graph"


def longest_served(serves: Callable[[int], bool], wanted: int, least: int = 1) -> int:
    """The greatest length, at most ``wanted``, up to which every length that is tried is served,
    beginning with ``least``; 0 where this one is not.

    >>> longest_served(lambda length: length <= 100, 4096)
    100
    """
    lengths = list(range(least, _ALL_UP_TO + 1))
    power = 2 * _ALL_UP_TO
    while power < wanted:
        lengths += [power - 1, power, power + 1]
        power *= 2
    lengths = sorted({*(n for n in lengths if n <= wanted), wanted})
    served = 0
    for length in lengths:
        if not serves(length):
            between = range(served + 1, length if served else 0)
            served += bisect.bisect_left(between, True, key=lambda n: not serves(n))
            break
        served = length
    return served if served >= least else 0

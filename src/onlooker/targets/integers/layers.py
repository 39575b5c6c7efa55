"""The layers whose weights become integers, and those that are left in floats.

A layer is called by the path of its module, ``blocks.0.up`` for the weight ``blocks.0.up.weight``. A weight
is one for all targets: a converted model has it as the trace has it, or transposed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch.export.graph_signature import InputKind

from ...core.errors import UsageError
from ...torch_internals.graph_modules import placeholders_of
from ...trace.graph import Graph
from .editing import axis_of_outputs

__all__ = [
    "FLOAT_LAYERS",
    "check_float_layers",
    "float_layers_of",
    "float_weights_of",
    "is_in",
    "is_one_of",
    "layer_of",
    "weights_of_products",
]

#: the option of a graph that names the layers in floats
FLOAT_LAYERS = "float_layers"
_BETWEEN = ", "
_MOST_LISTED = 8


def weights_of_products(program: torch.export.ExportedProgram) -> dict[str, int]:
    """By name, the floats that products alone read, all along one axis of outputs: that axis.

    A weight that something else reads too, as an embedding does that is tied to the scores, stays as
    it is.
    """
    nodes = placeholders_of(program)
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.PARAMETER and spec.kind is not InputKind.BUFFER:
            continue
        node = nodes[spec.arg.name]
        value = program.state_dict.get(str(spec.target))
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        axes = {axis_of_outputs(node, user) for user in node.users}
        if value.ndim >= 2 and value.numel() and len(axes) == 1 and None not in axes:
            found[str(spec.target)] = next(axis for axis in axes if axis is not None)
    return found


def layer_of(weight: str) -> str:
    """The name of the layer of a weight.

    >>> layer_of("watched.blocks.0.up.weight"), layer_of("watched.matrix")
    ('blocks.0.up', 'matrix')
    """
    return weight.removeprefix("watched.").removesuffix(".weight")


def check_float_layers(graphs: Sequence[Graph], layers: Any) -> dict[str, str]:
    """The option of graphs that leaves these layers in floats; a layer stands for all in it.

    :raises UsageError: ``no-such-layer``
    """
    known = {layer_of(name) for graph in graphs for name in weights_of_products(graph.artifact)}
    is_list = isinstance(layers, Iterable) and not isinstance(layers, (str, bytes, Mapping))
    names: list[Any] = list(layers) if is_list else [layers]
    for name in names:
        if not isinstance(name, str) or not any(is_in(one, [name]) for one in known):
            more = f" and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
            raise UsageError(
                f"float_layers has {name!r}, and no layer of that name has weights that become"
                " integers.",
                slug="no-such-layer",
                hint=f"There are {', '.join(sorted(known)[:_MOST_LISTED]) or 'none'}{more}.",
            )
    return {FLOAT_LAYERS: _BETWEEN.join(names)} if names else {}


def float_layers_of(graph: Graph) -> tuple[str, ...]:
    """The layers of a graph that are left in floats."""
    return tuple(name for name in graph.options.get(FLOAT_LAYERS, "").split(_BETWEEN) if name)


def float_weights_of(graph: Graph) -> dict[str, torch.Tensor]:
    """The weights of a graph of torch that are left in floats, by their names."""
    layers = float_layers_of(graph)
    if not layers:
        return {}
    names = [name for name in weights_of_products(graph.artifact) if is_in(layer_of(name), layers)]
    return {name: graph.artifact.state_dict[name].detach() for name in names}


def is_in(layer: str, layers: Iterable[str]) -> bool:
    """True where one of the layers is this one, or holds it."""
    return any(layer == name or layer.startswith(f"{name}.") for name in layers)


def is_one_of(numbers: Any, weights: Iterable[torch.Tensor]) -> bool:
    """True where an array of numpy holds the numbers of a weight, or its transpose."""
    for weight in weights:
        whole = weight.float().cpu().numpy()
        forms = (whole, whole.T) if whole.ndim == 2 else (whole,)
        if any(one.shape == numbers.shape and numpy.array_equal(one, numbers) for one in forms):
            return True
    return False

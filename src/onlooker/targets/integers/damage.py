"""How much each layer hurts where it is rounded: one run in floats, in which every product runs once more
with rounded numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...core.precision import precision_named
from ...trace.graph import Graph
from .editing import PRODUCTS
from .layers import layer_of, weights_of_products
from .reduced import rounded_weight, run_on_calls

__all__ = ["damage_of_layers"]


def damage_of_layers(
    graph: Graph, precision: str, calls: Sequence[Sequence[Any]]
) -> dict[str, float]:
    """How far the result of each layer is from that in floats where this layer alone is rounded: the
    mean error relative to the spread, over the inputs of some calls. The layers stand in the order of
    the graph.
    """
    module = graph.artifact.module(check_guards=False)
    gauge = _Gauge(module, precision, weights_of_products(graph.artifact))
    run_on_calls(gauge, graph, calls)
    return {layer: sum(found) / len(found) for layer, found in gauge.damages.items()}


class _Gauge(torch.fx.Interpreter):
    """Runs a graph in floats, and each product once more with rounded numbers."""

    def __init__(self, module: GraphModule, precision: str, axes: Mapping[str, int]) -> None:
        super().__init__(module)
        self._kind, self._axes = precision_named(precision), axes
        self.damages: dict[str, list[float]] = {}

    def run_node(self, n: Node) -> Any:
        """The value of a node, in floats."""
        result = super().run_node(n)
        target: Any = n.target
        if n.op != "call_function" or target not in PRODUCTS:
            return result
        at = PRODUCTS[target][0]
        weight = n.args[at]
        name = str(weight.target) if isinstance(weight, Node) and weight.op == "get_attr" else ""
        if name in self._axes and isinstance(result, torch.Tensor) and result.numel() > 1:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            given = list(args)
            given[at] = self._rounded(given[at], self._axes[name])
            if self._kind.is_calibrated:
                given[at - 1] = _between_bounds(given[at - 1])
            error = (target(*given, **kwargs) - result).abs().mean()
            spread = result.std().clamp(min=1e-12)
            self.damages.setdefault(layer_of(name), []).append(float(error / spread))
        return result

    def _rounded(self, weight: torch.Tensor, axis: int) -> torch.Tensor:
        bits = self._kind.bits if weight.ndim == 2 else 8
        return rounded_weight(weight.detach(), axis, bits)


def _between_bounds(value: Any) -> Any:
    """An activation as integers of 8 bits between its least and its greatest number."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    low, high = value.min().clamp(max=0), value.max().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    return (value / scale).round() * scale

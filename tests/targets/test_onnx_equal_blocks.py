"""The converter of torch decomposes the operators of equal blocks once, into the same operators."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onlooker import InputObserver
from onlooker.patches.swap import swapped
from onlooker.targets.onnx import convert
from onlooker.torch_internals.fake_tensors import FakeTensorMode
from onlooker.trace.graph import Graph

pytest.importorskip("onnxscript")


class Block(nn.Module):
    """Operators that are decomposed, views, a mask of constants, and several results."""

    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.line(self.norm(x)).unflatten(2, (2, 12)).transpose(1, 2).chunk(3, -1)
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = (query @ key.mT).masked_fill(hidden, -1e9).softmax(-1)
        return x + nn.functional.gelu((weights @ value).transpose(1, 2).flatten(2))


def graph_of(count: int) -> Graph:
    """The graph of a model with so many equal blocks."""
    model, observer = nn.Sequential(*(Block() for _ in range(count))).eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5, 8))
        model(torch.randn(3, 7, 8))
    (graph,) = observer.export().graphs
    return graph


def operators(graph: Graph) -> list[tuple[Any, ...]]:
    """The operators of the converted graph, with the types and shapes of their results."""
    model = convert.convert_graph(graph, None).model
    return [
        (node.op_type, len(node.inputs), *((str(one.type), str(one.shape)) for one in node.outputs))
        for node in model.graph
    ]


def test_a_conversion_is_the_same_as_without_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(3)
    found = operators(graph)
    monkeypatch.setattr(convert, "conversion_repeats", contextlib.nullcontext)
    assert found == operators(graph)


@pytest.mark.slow
def test_further_blocks_are_computed_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = graph_of(1), graph_of(3)

    def further() -> int:
        return computed(graphs[1]) - computed(graphs[0])

    remembered = further()
    monkeypatch.setattr(convert, "conversion_repeats", contextlib.nullcontext)
    assert remembered < further() / 2


def computed(graph: Graph) -> int:
    """Counts the operators whose shapes torch computes while it converts a graph."""
    found = 0
    dispatch = FakeTensorMode._dispatch_impl

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        found += 1
        return dispatch(*args, **kwargs)

    with swapped(FakeTensorMode, "_dispatch_impl", counted):
        convert.convert_graph(graph, None)
    return found

"""The programs that mutation tests damage: five models, each watched, exported and verified once per process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from onlooker import InputObserver
from onlooker.lab.lab import Lab
from onlooker.program import Program
from onlooker.pytrees.open import open_arguments
from onlooker.trace.graph import Graph
from onlooker.zoo import tiny_model

Run = Callable[[Sequence[Any]], Sequence[Any]]


class Perceptron(torch.nn.Module):
    """Two inputs of one shape; results in floats, ints and bools, one of them a copy of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.norm, self.dropout = torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.1)
        torch.nn.init.normal_(self.norm.running_mean, std=0.1)
        torch.nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.norm(torch.tanh(self.first(left)) + self.second(right) ** 2)
        scores = self.dropout(hidden) - hidden.mean(dim=-1, keepdim=True)
        return {"scores": scores, "best": scores.argmax(-1), "positive": scores > 0, "left": left.clone()}


class Convolution(torch.nn.Module):
    """Images of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 5)
        torch.nn.init.normal_(self.norm.running_mean, std=0.1)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.second(torch.relu(self.norm(self.first(pixels))))
        return self.head(hidden.mean(dim=(2, 3))), hidden


class Masked(torch.nn.Module):
    """Ids with a mask that may be left out, and a flag that makes two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = torch.nn.Embedding(20, 6), torch.nn.Linear(6, 6)
        self.register_buffer("scale", torch.rand(6) + 0.5)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, doubled: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.ones_like(ids) if mask is None else mask
        hidden = self.head(self.table(ids) * self.scale).sin() * mask.unsqueeze(-1)
        mean = hidden.sum(dim=1, keepdim=True) / mask.sum(dim=1).clamp(min=1)[:, None, None]
        return (hidden - mean) * (2 if doubled else 1), mask.sum(dim=1)


def _watched(name: str) -> Program:
    torch.manual_seed(0)
    observer = InputObserver()
    if name in ("encoder", "decoder"):
        tiny = tiny_model({"encoder": "bert", "decoder": "llama"}[name])
        with observer(tiny.model):
            tiny.watch()
        return observer.export()
    model = {"perceptron": Perceptron, "convolution": Convolution, "masked": Masked}[name]().eval()
    with observer(model), torch.no_grad():
        for batch, size in ((2, 6), (3, 7)):
            if name == "perceptron":
                model(torch.randn(batch, 6), torch.randn(batch, 6))
            elif name == "convolution":
                model(torch.randn(batch, 3, size, size + 2))
            else:
                ids, mask = torch.randint(0, 20, (batch, size)), torch.ones(batch, size, dtype=torch.int64)
                mask[0, :2] = 0
                model(ids, mask)
                model(ids + 0)
                model(ids, mask, doubled=True)
    return observer.export()


class Remembering:
    """The model, asked once for each call: its answers do not depend on what a program does."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.stages, self.runs, self.unknown = lab, lab.stages, lab.runs, ()
        self.keeper, self.changed = lab.subject.keeper, lab.subject.changed
        self.answers: dict[Any, Any] = {}

    def try_out(self, arguments: dict[str, Any], copies: dict[str, Any] | None = None) -> Any:
        tree = open_arguments(arguments)
        key = (tree.structure, tuple(map(_key, tree.leaves)))
        if key not in self.answers:
            self.answers[key] = self.lab.subject.try_out(arguments, copies)
        return self.answers[key]

    @property
    def subject(self) -> Remembering:
        return self

    @property
    def model(self) -> Any:
        return self.lab.model

    @property
    def watched(self) -> Any:
        return self.lab.subject.watched

    @property
    def kept(self) -> Any:
        return self.lab.kept

    def with_new_twin(self) -> Remembering:
        return self

    def untouched(self) -> Any:
        return self.lab.untouched()

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return self.lab(arguments)


def _key(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return str(leaf.dtype), tuple(leaf.shape), leaf.stride(), bytes(leaf.detach().contiguous().view(-1).numpy().data)


def _remembered(graph: Graph) -> Graph:
    """The graph, run once for each call: most damages are before or behind it."""
    results: dict[Any, Any] = {}

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        key = tuple(map(_key, inputs))
        if key not in results:
            results[key] = graph.run(inputs)
        return [value.clone() for value in results[key]]

    return replace(graph, run=run)


@functools.cache
def program_of(name: str) -> Program:
    """The program of a model, as it is before damage."""
    made = _watched(name)
    graphs = [_remembered(graph) for graph in made.graphs]
    return Program(made._program.beside(made.recording, made._program.samples, Remembering(made._program.lab), graphs))


def damaged(name: str, change: Callable[[Graph], Graph]) -> Program:
    """The program of a model with all its graphs changed."""
    program = program_of(name)
    graphs = [change(graph) for graph in program.graphs]
    return Program(program._program.with_graphs(graphs))


def rerun(wrap: Callable[[Graph, Run], Run]) -> Callable[[Graph], Graph]:
    """A change of what runs a graph."""
    return lambda graph: replace(graph, run=wrap(graph, graph.run))

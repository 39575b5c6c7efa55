"""Verification finds damage: a program that was right is damaged, and must not be verified any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from onlooker import InputObserver, RejectedCallError
from onlooker.core.path import Name, Path
from onlooker.core.verdict import Outcome
from onlooker.program import Program
from onlooker.pytrees.comparisons.agree import agreement, leaf_difference
from onlooker.trace.graph import Graph

Run = Callable[[Sequence[Any]], Sequence[Any]]


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(32, 8, generator=generator))
        self.weight = torch.nn.Parameter(torch.randn(8, 8, generator=generator))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.table[input_ids] @ self.weight
        return {"hidden": hidden * attention_mask.unsqueeze(-1), "lengths": attention_mask.sum(dim=1)}


@pytest.fixture(scope="module")
def program() -> Program:
    model = Encoder().eval()
    observer = InputObserver()
    with observer(model):
        for batch, length in ((2, 6), (3, 7)):
            ids = torch.arange(batch * length).reshape(batch, length)
            mask = torch.ones(batch, length, dtype=torch.int64)
            mask[0, :2] = 0
            model(ids, mask)
    return observer.export()


def damaged(program: Program, wrap: Callable[[Run], Run]) -> Program:
    graphs: list[Graph] = [replace(graph, run=wrap(graph.run)) for graph in program.graphs]
    return Program(program._program.with_graphs(graphs))


def outputs_by(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Callable[[Run], Run]:
    return lambda run: lambda inputs: change(list(run(inputs)))


def inputs_by(change: Callable[[list[torch.Tensor]], list[torch.Tensor]]) -> Callable[[Run], Run]:
    return lambda run: lambda inputs: run(change(list(inputs)))


def narrowed(run: Run) -> Run:
    def refuse(inputs: Sequence[Any]) -> Sequence[Any]:
        if inputs[0].shape[0] == 1:
            raise AssertionError("Guard failed: input_ids.size()[0] >= 2")
        return run(inputs)

    return refuse


DAMAGES: dict[str, Callable[[Run], Run]] = {
    "scaled": outputs_by(lambda out: [out[0] * 1.001, out[1]]),
    "one element": outputs_by(lambda out: [out[0].index_fill(2, torch.tensor([3]), 0.5), out[1]]),
    "NaN": outputs_by(lambda out: [out[0] * float("nan"), out[1]]),
    "infinite": outputs_by(lambda out: [out[0] / 0.0, out[1]]),
    "another dtype": outputs_by(lambda out: [out[0].double(), out[1]]),
    "an int off by one": outputs_by(lambda out: [out[0], out[1] + 1]),
    "a row too many": outputs_by(lambda out: [torch.cat([out[0], out[0][:1]]), out[1]]),
    "the first row everywhere": outputs_by(lambda out: [out[0][:1].expand_as(out[0]), out[1]]),
    "rows reversed": outputs_by(lambda out: [out[0].flip(0), out[1]]),
    "an extra dimension": outputs_by(lambda out: [out[0].unsqueeze(0), out[1]]),
    "the mask ignored": inputs_by(lambda inp: [inp[0], torch.ones_like(inp[1])]),
    "the ids ignored": inputs_by(lambda inp: [torch.zeros_like(inp[0]), inp[1]]),
    "one size refused": narrowed,
}


def test_the_program_is_verified(program: Program) -> None:
    tally = program.verify()
    assert tally.verified
    assert {check.kind for check in tally.checks} == {"observed", "unseen"}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_program_is_not_verified(program: Program, name: str) -> None:
    tally = damaged(program, DAMAGES[name]).verify()
    assert not tally.verified
    assert tally.failed > 0


def test_sizes_that_the_user_names_are_tried(program: Program) -> None:
    labels = [check.label for check in program.verify(sizes=[{"batch": 17, "sequence": 9}]).checks]
    assert "batch=17, sequence=9" in labels


def test_a_refusal_and_a_difference_are_told_apart(program: Program) -> None:
    outcomes = {check.outcome for check in damaged(program, narrowed).verify().checks}
    assert outcomes == {Outcome.EXACT, Outcome.REJECTED}


NAN = float("nan")


@pytest.mark.parametrize(
    ("expected", "got", "difference"),
    [
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), 0.0),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, NAN]), float("inf")),
        (torch.tensor([float("inf")]), torch.tensor([float("inf")]), 0.0),
        (torch.tensor([float("inf")]), torch.tensor([-float("inf")]), float("inf")),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.zeros(0, 3), torch.zeros(0, 3), 0.0),
        (torch.zeros(2), torch.zeros(3), float("inf")),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), float("inf")),
        (torch.tensor([1 + 1j]), torch.tensor([1 + 1j]), 0.0),
        (3, torch.tensor(3), 0.0),
        (3, 4, float("inf")),
        (True, 1, float("inf")),
        (None, None, 0.0),
        (torch.zeros(1), None, float("inf")),
    ],
)
def test_the_difference_of_two_leaves(expected: Any, got: Any, difference: float) -> None:
    assert leaf_difference(expected, got) == difference


def test_a_number_of_outputs_that_differs_is_said() -> None:
    found = agreement([Path((Name("a"),))], [torch.zeros(1)], [])
    assert not found.holds
    assert "0 outputs where the model gives 1" in found.note


class Writes(torch.nn.Module):
    """Changes an argument in place, and returns something else; for large batches alone if it is asked."""

    def __init__(self, least=0):
        super().__init__()
        self.least = least

    def forward(self, x, total):
        if x.shape[0] > self.least:
            total.add_(x.sum())
        return x * 2


class Keeps(Writes):
    """Puts another tensor into a container of the caller, which it does not return."""

    def forward(self, x, cache):
        if x.shape[0] > self.least:
            cache["rows"] = torch.cat([cache["rows"], x], 1)
        return x.sum(1)


class Updates(Writes):
    """Updates a cache of transformers, which it does not return."""

    def forward(self, x, cache):
        if x.shape[0] > self.least:
            cache.update(x[:, None], x[:, None], 0)
        return x.sum(1)


def watched_steps(model, begun, tokens):
    """The program of two texts, each of three calls with one object of the caller."""
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for batch in (2, 3):
            held = begun(batch)
            for length in (3, 1, 1):
                model(tokens(batch, length), held)
    return observer.export()


@pytest.mark.parametrize(
    ("model", "begun", "tokens", "target"),
    [
        pytest.param(Writes, lambda batch: torch.zeros(1), torch.ones, "onnx", marks=pytest.mark.slow),
        (Keeps, lambda batch: {"rows": torch.zeros(batch, 0)}, torch.ones, "torch"),
        (Updates, lambda batch: transformers.DynamicCache(), lambda *size: torch.ones(*size, 4), "torch"),
    ],
    ids=["a tensor in ONNX", "a dict", "a cache"],
)
@pytest.mark.one_in(2)
def test_what_the_model_leaves_behind_in_its_arguments_is_part_of_it(model, begun, tokens, target):
    program = watched_steps(model(), begun, tokens)
    assert program.verify().verified, program.tally.summary
    assert program.to(target).verify().verified
    # no watched call changes it, so that no graph gives it
    program = watched_steps(model(least=3), begun, tokens)
    if target != "torch":
        # a program of torch writes to the argument as the model does, and the side that writes is refused
        assert program.verify().verified
        assert program.to(target).verify().verified
        return
    tally = program.verify()
    if model is Keeps:  # the program refuses the side that changes the argument
        assert tally.verified, tally.summary
        with pytest.raises(RejectedCallError, match=r"self\.least"):
            program(tokens(4, 3), begun(4))
        return
    assert not tally.verified
    assert any("the model changes the argument" in check.note for check in tally.checks), tally.summary


def test_arguments_are_compared_in_inference_mode_too():
    program = watched_steps(Writes(), lambda batch: torch.zeros(1), torch.ones)
    with torch.inference_mode():
        assert program.verify().verified

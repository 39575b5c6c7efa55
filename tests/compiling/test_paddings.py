"""Calls of a compiled model are padded to few sizes, and only where that gives the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, UnsupportedError, UsageError
from onlooker.program import Program

LENGTHS = ((1, 3), (2, 5), (2, 9), (3, 12), (4, 12), (3, 7))


class Attention(torch.nn.Module):
    """Attention over (batch, length) ids, in which a mask of the same shape hides positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(20, 8)
        self.out = torch.nn.Linear(8, 5)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.table(ids)
        scores = hidden @ hidden.transpose(1, 2)
        scores = scores.masked_fill(mask[:, None, :] == 0, torch.finfo(scores.dtype).min)
        scores = self.out(torch.softmax(scores, -1) @ hidden)
        return {"scores": scores, "first": scores[:, 0]}


class Hidden(Attention):
    """The same, where True hides, as in torch's key_padding_mask."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().forward(ids, ~mask)


class Causal(torch.nn.Module):
    """Sums of what came before: what stands behind a place is never read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, 1)


class Mean(torch.nn.Module):
    """A mean over positions reads the padding."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(1, keepdim=True)


class Lengths(torch.nn.Module):
    """Divides by the number of positions, which no content of the padding shows."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask / x.shape[1]


class Convolution(torch.nn.Module):
    """The last places of a convolution see zeros of its own behind the end, and padding in their place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x[:, None], torch.ones(1, 1, 3), padding=1)[:, 0]


class Twice(torch.nn.Module):
    """A result that is twice as long as the call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat_interleave(2, 1)


class Running(torch.nn.Module):
    """A call that writes to its argument."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


def ids_and_mask(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - 1 :] = 0
    return torch.randint(0, 20, (batch, length)), mask


def numbers(batch: int, length: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, length),)


def program_of(model: torch.nn.Module, call: Callable[[int, int], Any], **options: Any) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for batch, length in LENGTHS:
            model(*call(batch, length))
    return observer.export(**options)


@pytest.mark.parametrize("hides", [False, True])
def test_calls_of_all_sizes_compile_as_often_as_there_are_sizes(hides: bool) -> None:
    def call(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        ids, mask = ids_and_mask(batch, length)
        return ids, mask == 0 if hides else mask

    model = Hidden() if hides else Attention()
    program = program_of(model, call)
    paddings = program.paddings(waste=0.5)
    (graph,) = paddings.graphs
    assert set(graph.padded) == set(graph.names)
    assert paddings.wasted <= 0.5
    assert len(graph.buckets) < len(LENGTHS)
    compiled_graphs = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        compiled_graphs.append(module)
        return module.forward

    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, dynamic=False)
    used = set()
    with paddings.installed(compiled), torch.no_grad():
        for batch, length in (*LENGTHS, (1, 4), (2, 8), (4, 10)):
            arguments = call(batch, length)
            bucket = graph.bucket(tuple({"batch": batch}.get(name, length) for name in graph.names))
            used.add(bucket)
            expected, got = model(*arguments), compiled(*arguments)
            assert list(got) == list(expected)
            for name in expected:
                torch.testing.assert_close(got[name], expected[name])
    assert None not in used
    assert len(compiled_graphs) == len(used)
    arguments = call(1, 2)
    torch.testing.assert_close(compiled(*arguments), model(*arguments))
    assert len(compiled_graphs) == len(used) + 1  # as it was: not padded


@pytest.mark.parametrize("model", [Causal(), Twice()], ids=lambda model: type(model).__name__)
def test_a_model_that_never_reads_the_padding_needs_no_mask(model: torch.nn.Module) -> None:
    paddings = program_of(model, numbers).paddings(waste=0.9)
    (graph,) = paddings.graphs
    assert len(graph.buckets) == 1
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with paddings.installed(compiled):
        x = torch.randn(2, 4)
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("model", [Mean(), Convolution()], ids=lambda model: type(model).__name__)
def test_a_symbol_whose_padding_is_read_stays(model: torch.nn.Module) -> None:
    (graph,) = program_of(model, numbers).paddings(waste=0.5).graphs
    (fixed,) = graph.fixed
    assert len(graph.padded) == 1
    lengths = {bucket.sizes[graph.names.index(fixed[0])] for bucket in graph.buckets}
    assert lengths == {length for _, length in LENGTHS}


def test_a_division_by_the_length_is_found() -> None:
    program = program_of(Lengths(), lambda *sizes: (*numbers(*sizes), ids_and_mask(*sizes)[1]))
    (graph,) = program.paddings().graphs
    ((_, why),) = graph.fixed
    assert "other results" in why


def test_a_call_that_writes_is_not_padded() -> None:
    with pytest.raises(UnsupportedError, match="padding-not-exact"):
        program_of(Running(), numbers).paddings()


def test_a_call_that_is_too_large_runs_as_it_is() -> None:
    model = Causal()
    paddings = program_of(model, numbers).paddings()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    with paddings.installed(compiled):
        assert compiled(torch.ones(2, 40)).shape == (2, 40)
        with pytest.raises(Exception, match=r"missing|argument"):
            compiled()


@pytest.mark.parametrize("waste", [1, -0.1, "0.2"])
def test_a_waste_is_a_share(waste: Any) -> None:
    with pytest.raises(UsageError, match="bad-waste"):
        program_of(Causal(), numbers).paddings(waste=waste)


def test_nothing_is_wasted_where_nothing_may_be() -> None:
    paddings = program_of(Causal(), numbers).paddings(waste=0)
    assert paddings.wasted == 0
    (graph,) = paddings.graphs
    assert len(graph.buckets) == len(LENGTHS)
    assert paddings.data()["graphs"][0]["padded"] == list(graph.padded)


def test_a_loaded_program_without_values_says_so(tmp_path: Any) -> None:
    program_of(Causal(), numbers).save(tmp_path / "program")
    with pytest.raises(onlooker.ObservationError, match="no-values"):
        onlooker.load(tmp_path / "program").paddings()

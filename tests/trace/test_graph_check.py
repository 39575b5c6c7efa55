"""A model that takes another way in a trace, where a mask hides nothing: no graph is made of two functions."""

from __future__ import annotations

import pytest
import torch

from onlooker import ExportError, InputObserver


class Leaves(torch.nn.Module):
    """A mask that hides nothing is left out, except in a trace; with a mask, sums run from the left."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right = right

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and bool(mask.all()):
            return x.cumsum(1) if self.right else x.sum(1, keepdim=True).expand_as(x)
        return (x * mask[..., None]).cumsum(1)


class LeavesOfFakes(Leaves):
    """It asks for the class of its mask, where other models ask for a trace."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not isinstance(mask, torch._subclasses.FakeTensor) and bool(mask.all()):
            return x.sum(1, keepdim=True).expand_as(x)
        return (x * mask[..., None]).cumsum(1)


def watched(model: torch.nn.Module, *padding: int) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for length in (6, 9):
            mask = torch.ones(2, length, dtype=torch.int64)
            for row, pads in enumerate(padding):
                mask[row, :pads] = 0
            model(torch.randn(2, length, 3), mask)
    return observer


@pytest.mark.parametrize("kind", [Leaves, LeavesOfFakes])
@pytest.mark.parametrize("padding", [(2, 0), (0, 0)])
@pytest.mark.one_in(4)
def test_a_model_that_is_another_function_in_a_trace_is_traced_as_it_is_called(
    padding: tuple[int, int], kind: type[Leaves]
) -> None:
    model = kind(right=False)
    program = watched(model, *padding).export()
    assert any("is_exporting()` was made to return False" in note for graph in program.graphs for note in graph.notes)
    x, mask = torch.randn(3, 7, 3), torch.ones(3, 7, dtype=torch.int64)
    padded = mask.clone()
    padded[2, :3] = 0
    for asked in (padded, mask, mask[:1], padded[2:]):  # one of both sides was watched
        rows = x[: len(asked)]
        torch.testing.assert_close(program(rows, asked), model(rows, asked))
    assert program.verify(trials=30).verified


class LeavesWithOption(Leaves):
    """It has an option that changes nothing."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor, use_cache: bool = False) -> torch.Tensor:
        return super().forward(x, mask)


@pytest.mark.slow
def test_an_option_may_be_left_out_on_each_side_of_a_mask() -> None:
    model, observer = LeavesWithOption(right=False), InputObserver()
    with observer(model), torch.no_grad():
        for length in (6, 9):
            model(torch.randn(2, length, 3), torch.ones(2, length, dtype=torch.int64), use_cache=True)
    program = observer.export()
    x, mask = torch.randn(3, 7, 3), torch.ones(3, 7, dtype=torch.int64)
    padded = mask.clone()
    padded[2, :3] = 0
    for asked in (padded, mask):
        torch.testing.assert_close(program(x, asked), model(x, asked))
    assert program.verify(trials=60).verified


class Stubborn(torch.nn.Module):
    """Finds out that it is traced by the kind of a size."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if x.shape[1].__class__ is int and bool(mask.all()):
            return x.sum(1, keepdim=True).expand_as(x)
        return (x * mask[..., None]).cumsum(1)


def test_a_model_that_finds_out_has_no_graph() -> None:
    with pytest.raises(ExportError, match="computes something else while it is traced") as caught:
        watched(Stubborn(), 2, 0).export()
    assert caught.value.slug == "mask-decides"


@pytest.mark.parametrize("padding", [(2, 0), (0, 0)])
def test_a_mask_that_is_left_out_because_it_hides_nothing_is_no_other_function(padding: tuple[int, int]) -> None:
    model = Leaves(right=True)
    program = watched(model, *padding).export()
    assert len(program.graphs) == 1
    assert program.verify().verified


class MasksInTraces(torch.nn.Module):
    """With cached states the encoder's are not read; a trace makes a mask of their length all the same."""

    def forward(
        self, x: torch.Tensor, states: torch.Tensor, cached: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys = states @ states.new_ones(4, 4) if cached is None else cached
        mask = torch.ones(states.shape[0], 1, states.shape[1]) if torch.compiler.is_exporting() else None
        scores = x @ keys.transpose(1, 2)
        scores = scores if mask is None else scores * mask
        return scores.softmax(-1) @ keys, keys


@pytest.mark.slow
def test_a_trace_that_refuses_sizes_of_the_model_is_made_as_a_call() -> None:
    torch.manual_seed(0)
    model, observer = MasksInTraces(), InputObserver()
    with observer(model), torch.no_grad():
        states = torch.randn(2, 7, 4)
        _, keys = model(torch.randn(2, 5, 4), states)
        for _ in range(2):
            model(torch.randn(2, 1, 4), states, keys)
    program = observer.export()
    assert program.verify().verified
    x, states = torch.randn(3, 2, 4), torch.randn(3, 9, 4)
    expected, keys = model(x, states)
    torch.testing.assert_close(program(x, states)[0], expected)
    torch.testing.assert_close(program(x[:, :1], states, keys)[0], model(x[:, :1], states, keys)[0])

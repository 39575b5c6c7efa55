"""Equal blocks in a row: found by structure alone, left out of experiments, and put back."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver
from onlooker.lab import repeated_blocks
from onlooker.lab.repeated_blocks import equal_blocks_of
from unreached import Unreached

#: how many blocks each run of a model had
RUNS = Unreached()


class Block(torch.nn.Module):
    """A block that counts its place, and may be told to differ."""

    def __init__(self, place: int, *, width: int = 4, kind: str = "full", halves: bool = False):
        super().__init__()
        self.place, self.kind, self.halves = place, kind, halves
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x, mask=None):
        y = x + torch.tanh(self.linear(x))
        if mask is not None:
            y = y * mask[..., None]
        return y[:, ::2] if self.halves else y


class Stack(torch.nn.Module):
    """Blocks one after the other."""

    def __init__(self, blocks):
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)

    def forward(self, x, mask: torch.Tensor | None = None):
        RUNS.append(len(self.blocks))
        for block in self.blocks:
            x = block(x, mask)
        return x


@pytest.fixture
def small_models(monkeypatch):
    """Blocks of small models are left out too."""
    monkeypatch.setattr(repeated_blocks, "_LEAST_PARAMETERS", 0)


def names_left_out(model):
    return [names for _, names in equal_blocks_of(model).left_out]


def test_equal_blocks_are_left_out_but_for_two(small_models):
    assert names_left_out(Stack(Block(place) for place in range(6))) == [("2", "3", "4", "5")]


def test_a_small_model_runs_whole():
    assert not equal_blocks_of(Stack(Block(place) for place in range(6)))


def test_a_plain_callable_has_no_blocks(small_models):
    assert not equal_blocks_of(lambda x: x)


@pytest.mark.parametrize(
    "other",
    [
        Block(3, width=5),
        Block(3, kind="sliding"),
        Block(7),
        torch.nn.Linear(4, 4),
        torch.nn.Sequential(Block(3)),
    ],
    ids=["width", "attribute", "count", "class", "depth"],
)
def test_a_block_that_differs_ends_a_run_of_equal_ones(small_models, other):
    blocks = [*(Block(place) for place in range(3)), other, *(Block(p) for p in range(4, 12))]
    assert names_left_out(Stack(blocks)) == [("2",), tuple(str(place) for place in range(6, 12))]


def test_alternating_blocks_are_kept(small_models):
    kinds = ["full", "sliding"] * 4
    assert not equal_blocks_of(Stack(Block(place, kind=kind) for place, kind in enumerate(kinds)))


def test_one_block_that_is_used_many_times_is_kept(small_models):
    block = Block(0)
    assert not equal_blocks_of(Stack([block] * 8))


def test_few_repeated_parameters_are_not_worth_it(small_models):
    model = torch.nn.Sequential(Stack(Block(place) for place in range(6)), torch.nn.Linear(99, 99))
    assert not equal_blocks_of(model)


def exported(model):
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 5, 4))
        model(torch.randn(3, 8, 4))
    RUNS.clear()
    return observer.export()


def test_experiments_run_two_blocks_and_the_model_stays_as_it_is(small_models):
    model = Stack(Block(place) for place in range(6)).eval()
    before = list(model.blocks.named_children())
    program = exported(model)
    assert {2, 6} == set(RUNS)
    assert list(model.blocks.named_children()) == before
    assert not any(block._forward_hooks for block in model.blocks)
    x, mask = torch.randn(4, 7, 4), torch.ones(4, 7)
    mask[1, 3:] = 0
    assert torch.equal(program(x), model(x))
    assert program.verify().verified


def test_blocks_that_change_a_shape_all_run(small_models):
    model = Stack(Block(place, halves=True) for place in range(4)).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(2, 64, 4))
        model(torch.randn(3, 48, 4))
    RUNS.clear()
    program = observer.export()
    assert RUNS.count(2) == 1
    x = torch.randn(1, 80, 4)
    assert torch.equal(program(x), model(x))


def test_a_model_that_needs_all_blocks_runs_whole(small_models):
    class Indexed(Stack):
        def forward(self, x, mask: torch.Tensor | None = None):
            RUNS.append(len(self.blocks))
            for place in range(6):
                x = self.blocks[place](x, mask)
            return x

    model = Indexed(Block(place) for place in range(6)).eval()
    program = exported(model)
    assert RUNS.count(2) == 1
    x = torch.randn(4, 7, 4)
    assert torch.equal(program(x), model(x))


def test_the_same_plan_is_found_with_two_blocks_and_with_all(monkeypatch):
    torch.manual_seed(0)
    model = Stack(Block(place) for place in range(6)).eval()
    whole = exported(model)
    monkeypatch.setattr(repeated_blocks, "_LEAST_PARAMETERS", 0)
    short = exported(model)
    assert 2 in RUNS
    assert [str(leaf) for leaf in short.plans[0].leaves] == [str(leaf) for leaf in whole.plans[0].leaves]


class LateMask(Block):
    """A block that reads the mask only far from the first one."""

    def forward(self, x, mask=None):
        return super().forward(x, mask if self.place > 2 else None)


@pytest.mark.slow
def test_sizes_that_only_later_blocks_relate_are_found_on_the_whole_model(small_models):
    model, observer = Stack(LateMask(place) for place in range(6)).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for shape in ((2, 600), (3, 900)):
            model(torch.randn(*shape, 4), torch.ones(shape))
    RUNS.clear()
    program = observer.export()
    assert {2, 6} == set(RUNS)
    assert program.verify().verified
    x, mask = torch.randn(4, 7, 4), torch.ones(4, 7)
    mask[1, 3:] = 0
    assert torch.equal(program(x, mask), model(x, mask))


class LongBlock(Block):
    """From the third block on, more than 30 rows are computed in another order."""

    def forward(self, x, mask=None):
        y = super().forward(x, mask)
        return y.flip(1).cumsum(1) if self.place > 1 and x.shape[1] > 30 else y.cumsum(1)


def test_the_sizes_of_a_trace_are_chosen_with_two_blocks_and_proven_by_the_whole(
    small_models,
):
    model = Stack(LongBlock(place) for place in range(5)).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for length in (400, 513):
            model(torch.randn(2, length, 4), torch.ones(2, length))
    program = observer.export()
    for rows, length in ((1, 400), (2, 31), (3, 100), (3, 30), (1, 1)):
        x, mask = torch.randn(rows, length, 4), torch.ones(rows, length)
        with torch.no_grad():
            torch.testing.assert_close(program(x, mask), model(x, mask), atol=1e-3, rtol=1e-3)
    assert program.verify().verified
    assert len(program.graphs) == 2

"""Lengths that never were 0 are not made 0 beside smaller tensors."""

from __future__ import annotations

import torch

from onlooker import InputObserver
from onlooker.core.path import Name, Path
from onlooker.core.spec import Axis
from onlooker.materialise.domain import Domain, Grids, clamped_to_domain
from onlooker.materialise.facts import Fact

TIME = Axis(Path((Name("features"),)), 2)


def test_lengths_stay_between_1_and_the_size_of_their_axis() -> None:
    lengths = Domain(frozenset({Fact.INTS}), 40, 40, at_most=(TIME,))
    for size in (1, 3, 4, 39):
        found = clamped_to_domain(torch.tensor([40, 40]), lengths, {TIME: size})
        assert 1 <= int(found.min()) <= int(found.max()) <= size
    assert clamped_to_domain(torch.tensor([40, 40]), lengths, {TIME: 0}).tolist() == [0, 0]


def test_indices_into_an_axis_begin_at_0() -> None:
    indices = Domain(frozenset({Fact.INTS}), 5, 7, below=(TIME,))
    assert clamped_to_domain(torch.tensor([6, 7]), indices, {TIME: 3}).tolist() == [0, 1]


class Sums(torch.nn.Module):
    def forward(self, patches: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return patches.sum(0) + grid.prod(1).sum()


def test_rows_of_several_widths_are_no_grids() -> None:
    model, observer = Sums(), InputObserver()
    with observer(model):
        for grid in (torch.tensor([[2, 3]]), torch.tensor([[1, 2, 4]])):
            model(torch.rand(int(grid.prod()), 4), grid)
    assert observer.export().verify().verified


def test_grids_have_the_area_that_is_asked_and_sides_in_their_steps() -> None:
    patches = Axis(Path((Name("patches"),)), 0)
    grids = Grids(patches, 1, (1, 2, 4))
    for number, area in ((1, 8), (2, 16), (3, 80), (5, 1000)):
        found = grids.with_area(torch.tensor([[1, 2, 4]] * number), area)
        assert int(found.prod(1).sum()) == area
        assert (found % torch.tensor([1, 2, 4])).sum() == 0
        assert int(found.min()) > 0
    kept = torch.tensor([[2, 4, 4], [1, 2, 8]])
    assert grids.with_area(kept, 48) is kept
    for area in (9, 8):  # no multiple of the steps, and too little for two grids
        assert grids.with_area(kept, area) is kept


class Parts(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.mean(0) for part in x.split(lengths.tolist())])


def test_lengths_that_count_by_chance_add_up_to_the_rows() -> None:
    model, observer = Parts(), InputObserver()
    with observer(model):
        for lengths in ([3, 4], [2, 3, 4]):
            model(torch.randn(sum(lengths), 4), torch.tensor(lengths))
    program = observer.export()
    assert program.verify().verified
    x, lengths = torch.randn(9, 4), torch.tensor([1, 5, 1, 2])
    torch.testing.assert_close(program(x, lengths), model(x, lengths))

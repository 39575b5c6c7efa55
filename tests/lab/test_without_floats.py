"""Runs in which floats have no values decide and refuse as runs with values do, as far as ints go."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from onlooker import InputObserver
from onlooker.lab.lab import Lab
from onlooker.lab.remembering_mode import RememberingMode
from onlooker.lab.without_floats import without_float_values, without_its_floats
from onlooker.torch_internals.fake_tensors import FakeTensorMode, is_fake

TABLE = torch.randn(6, 4)


def shown(x: Tensor, ids: Tensor) -> Tensor:
    return x + TABLE[ids]


def embedded(x: Tensor, ids: Tensor) -> Tensor:
    return x + nn.functional.embedding(ids, x)


def decided(x: Tensor, ids: Tensor) -> Tensor:
    return x.sum(0) if bool((ids > 2).any()) else x


def decided_by_floats(x: Tensor, ids: Tensor) -> Tensor:
    return x.sum(0) if bool((x > 2).any()) else x


def written(x: Tensor, ids: Tensor) -> Tensor:
    ids[0] = x.argmax()
    return x[ids]


@pytest.mark.parametrize(
    ("function", "ids", "error"),
    [
        (shown, [0, 5, 1], None),
        (shown, [0, 6, 1], IndexError),
        (embedded, [0, 2, 1], None),
        (embedded, [0, 3, 1], IndexError),
        (decided, [0, 1, 2], None),
        (decided, [0, 1, 3], None),
        (decided_by_floats, [0, 1, 2], Exception),
        (written, [0, 1, 2], Exception),
    ],
)
def test_ints_decide_and_refuse_as_they_do_with_values(
    function: Callable[[Tensor, Tensor], Tensor], ids: list[int], error: type[Exception] | None
) -> None:
    x, given = torch.randn(3, 4), torch.tensor(ids)
    if error is not None:
        with without_float_values() as mode, pytest.raises(error):
            function(without_its_floats(mode, x), without_its_floats(mode, given))
    else:
        with without_float_values() as mode:
            got = function(without_its_floats(mode, x), without_its_floats(mode, given))
        assert is_fake(got)
        assert got.shape == function(x, given).shape
    assert given.tolist() == ids


class Reads(nn.Module):
    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.reads, self.layer = reads, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x.relu() if self.reads and bool((x > 1e6).any()) else x


@pytest.mark.parametrize("reads", [False, True])
def test_a_dear_run_for_shapes_has_floats_only_where_the_model_reads_them(
    monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    observer = InputObserver()
    with observer(model := Reads(reads)):
        model(torch.rand(2, 4))
    lab: Lab = observer._lab(observer._watcher.store(None))
    arguments = {"x": torch.rand(5, 4)}
    assert not is_fake(lab.run_for_shapes({"x": torch.rand(3, 4)}, why="a little work").leaves[0])
    monkeypatch.setattr(Lab, "is_dear", lambda *_: True)
    found = lab.run_for_shapes(arguments, why="a lot of work").leaves[0]
    assert found.shape == (5, 4)
    assert is_fake(found) is not reads
    assert not is_fake(lab.run(arguments, why="its values", memo=True).leaves[0])


def test_a_run_without_values_treats_constants_as_torch_does() -> None:
    """torch computes with constants, keeps new ones, and refuses to change the sizes of weights."""
    scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)
    for mode in (FakeTensorMode(allow_non_fake_inputs=True), RememberingMode()):
        with mode:
            assert (scale * 3.0).item() == 6.0
            assert torch.tensor(3).item() == 3
            with pytest.raises(AssertionError, match="metadata mutating"):
                scale.unsqueeze_(0)

"""A forward that converts its own modules to what they are already."""

import pytest
import torch
from torch import nn

from onlooker import InputObserver
from onlooker.repairs.unchanged_modules import unchanged_modules_stay


class Converts(nn.Module):
    """A router of mixtures of experts: it computes in the dtype that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.router = self.router.to(x.dtype)
        return self.router(x).softmax(-1)


def test_a_conversion_that_changes_nothing_is_refused_by_torch() -> None:
    with pytest.raises(RuntimeError, match="Couldn't swap"):
        torch.export.export(Converts(), (torch.randn(2, 4),), strict=False)


def test_a_conversion_that_changes_nothing_is_exported() -> None:
    model, observer = Converts(), InputObserver()
    with observer(model):
        model(torch.randn(2, 4))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(5, 4)
    torch.testing.assert_close(program(x), model(x))
    assert "to" in vars(nn.Module)


@pytest.mark.parametrize(
    ("arguments", "stays"),
    [
        ((torch.float32,), True),
        (("cpu",), True),
        ((torch.device("cpu"), torch.float32), True),
        ((torch.ones(1),), True),
        ((torch.float64,), False),
        (("meta",), False),
        ((torch.ones(1, dtype=torch.float16),), False),
    ],
    ids=str,
)
def test_a_conversion_that_changes_something_is_made(arguments: tuple[object, ...], stays: bool) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = module[0].weight.data_ptr()
    dtype, device = nn.Linear(2, 2).to(*arguments).weight.dtype, nn.Linear(2, 2).to(*arguments).weight.device
    with unchanged_modules_stay():
        assert module.to(*arguments) is module
    assert (module[0].weight.dtype, module[0].weight.device) == (dtype, device)
    assert module[1].num_batches_tracked.dtype == torch.int64
    assert (module[0].weight.data_ptr() == before) is stays


def test_a_wrong_conversion_gets_the_error_of_torch() -> None:
    with unchanged_modules_stay(), pytest.raises(TypeError):
        nn.Linear(2, 2).to(torch.int64)

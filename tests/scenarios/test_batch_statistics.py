"""Statistics of batches stay as they were: torch does not count the writes of a batch norm to them."""

from __future__ import annotations

import pytest
import torch

import onlooker


class Normed(torch.nn.Module):
    """A module of torch keeps the statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))


class ByHand(torch.nn.Module):
    """The model keeps them itself, as buffers or as mere attributes, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.spread = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(self.linear(x), self.mean, self.spread, training=True)


def held(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    attributes = {name: value for name, value in vars(model).items() if isinstance(value, torch.Tensor)}
    return {name: value.clone() for name, value in {**model.state_dict(), **attributes}.items()}


@pytest.mark.filterwarnings("ignore::onlooker.OnlookerWarning")
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("cls", [Normed, ByHand])
@pytest.mark.one_in(2)
def test_experiments_and_trials_leave_them_as_they_were(cls: type[torch.nn.Module], trains: bool) -> None:
    model, observer = cls().train(trains), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch in (8, 5, 3):
            model(torch.randn(batch, 4))
    before = held(model)
    program = observer.export()
    program.verify()
    observer.recompiles()
    assert before.keys() == held(model).keys()
    for name, value in held(model).items():
        assert torch.equal(value, before[name]), name

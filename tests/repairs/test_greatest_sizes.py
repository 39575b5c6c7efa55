"""Features at the places of marked rows: their number is a multiple of a size, for every width."""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.repairs.numbers.greatest_sizes import greatest_sizes_fit

AUTO = torch.export.Dim.AUTO
WIDTHS = (3, 48, 64, 100, 257, 1000, 4096)


class Placed(torch.nn.Module):
    """Puts rows of features at the places that ids mark, and checks that there are as many."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(50, width)

    def forward(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(ids)
        mask = (ids == 1)[..., None].expand_as(embedded)
        torch._check(embedded[mask].numel() == features.numel())
        return embedded.masked_scatter(mask, features)


def call(width: int, batch: int, length: int, images: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(2, 50, (batch, length))
    ids[:, :images] = 1
    return ids, torch.randn(batch * images, width)


def test_torch_ends_the_trace_without_the_repair() -> None:
    shapes = ({0: AUTO, 1: AUTO}, {0: AUTO})
    with pytest.raises(AssertionError, match="not a subset"):
        torch.export.export(Placed(64), call(64, 2, 7, 3), dynamic_shapes=shapes)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.one_in(2)
def test_a_number_of_values_is_a_multiple_of_a_size(width: int) -> None:
    model, shapes = Placed(width), ({0: AUTO, 1: AUTO}, {0: AUTO})
    with greatest_sizes_fit():
        program = torch.export.export(model, call(width, 2, 7, 3), dynamic_shapes=shapes).module()
    for asked in (call(width, 3, 9, 4), call(width, 2, 2, 1)):
        torch.testing.assert_close(program(*asked), model(*asked))
    ids, features = call(width, 3, 9, 4)
    with pytest.raises(RuntimeError):
        program(ids, features[:-1])


class AtLeast(Placed):
    """Refuses fewer than two features by itself."""

    def forward(self, ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        torch._check(features.shape[0] >= 2, lambda: "too few")
        return super().forward(ids, features)


@pytest.mark.parametrize("width", [3, 48, 64])
def test_a_watched_model_takes_other_numbers_of_features(width: int) -> None:
    model = Placed(width)
    program = watched(model, width)
    assert len(program.graphs) == 1
    for asked in (call(width, 4, 11, 5), call(width, 2, 5, 2), call(width, 1, 3, 1)):
        torch.testing.assert_close(program(*asked), model(*asked))
    ids, features = call(width, 4, 11, 5)
    with pytest.raises(RejectedCallError):
        program(ids, features[:-1])
    assert program.verify(trials=40).verified


def test_what_a_model_refuses_by_itself_is_refused() -> None:
    model = AtLeast(64)
    program, asked = watched(model, 64), call(64, 2, 5, 2)
    torch.testing.assert_close(program(*asked), model(*asked))
    with pytest.raises(RejectedCallError):
        program(*call(64, 1, 5, 1))


def watched(model: Placed, width: int) -> Program:
    torch.manual_seed(0)
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model(*call(width, 2, 7, 3))
        model(*call(width, 3, 9, 4))
    return observer.export()

"""A result that differs by the choice among equal scores alone is right."""

from __future__ import annotations

import pytest
import torch

import onlooker
from onlooker.verify.ties import lower_index_first


class Best(torch.nn.Module):
    """The boxes of the best scores, which are 1 everywhere for large inputs."""

    def __init__(self, rolled: int = 0) -> None:
        super().__init__()
        self.rolled = rolled

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores, places = x.sigmoid().topk(3)
        return scores, (x + torch.arange(x.shape[-1])).gather(1, places)


def test_the_lower_index_is_first_inside_the_block() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]])
    with lower_index_first() as ordered:
        assert torch.topk(x, 2).indices.tolist() == [[1, 2]]
        assert x.topk(3, largest=False).values.tolist() == [[1.0, 2.0, 3.0]]
        assert x.sort(descending=True).indices.tolist() == [[1, 2, 4, 3, 0]]
        assert torch.argsort(x).tolist() == [[0, 3, 1, 2, 4]]
    assert ordered.calls == 4


def test_equal_scores_in_the_order_of_the_runtime_are_right() -> None:
    pytest.importorskip("onnxruntime")
    program = onlooker.export(Best(), torch.randn(2, 300), to="onnx")
    assert program.report.verified, program.report
    assert "with extreme values" in program.tally.summary


def test_other_places_than_those_of_equal_scores_are_wrong() -> None:
    model = Best()
    program = onlooker.export(model, torch.randn(2, 300))
    model.forward = lambda x: tuple(value + 1 for value in Best().forward(x))  # type: ignore[method-assign]
    assert not program.verify(model=model).verified

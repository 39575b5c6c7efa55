"""Natural uses of models, by what their ``forward`` takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from onlooker import UnsupportedError
from onlooker.zoo.uses import OTHER, PADDED, natural_use


class Reader(torch.nn.Module):
    """Reads texts and nothing else."""

    config = SimpleNamespace(vocab_size=50, get_text_config=lambda: SimpleNamespace(vocab_size=50))

    def __init__(self, longest: int = 100) -> None:
        super().__init__()
        self.longest = longest
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:
        if input_ids.shape[1] > self.longest:
            raise ValueError("the text is too long")
        self.shapes.append(tuple(input_ids.shape))
        return input_ids * attention_mask


def test_two_uses_differ_in_every_size_and_one_is_padded() -> None:
    model = Reader()
    use = natural_use(model)
    assert (use.story, use.generates) == ("call with input_ids", False)
    assert model.shapes == [(2, 10), (1, 13)]
    assert use.inputs(model, PADDED)["attention_mask"].sum(1).tolist() == [7, 10]
    assert use.inputs(model, OTHER)["attention_mask"].all()


def test_a_use_must_be_taken_in_every_size() -> None:
    with pytest.raises(UnsupportedError, match="call with input_ids: ValueError: the text is too long") as refused:
        natural_use(Reader(longest=12))
    assert refused.value.slug == "no-natural-use"

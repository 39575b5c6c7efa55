"""Sizes that a call may have unequal and a trace may not: those that were equal in all calls are equal in its
example.
"""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, RejectedCallError


class Reads(torch.nn.Module):
    """Kept keys are read with a mask of the source's length where the model is traced or told of padding, as
    decoders with the keys of an encoder do.
    """

    def forward(
        self, query: torch.Tensor, source: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        scores = query @ keys.transpose(1, 2)
        if torch.compiler.is_exporting():
            scores = scores + scores.new_zeros(1, 1, source.shape[1])
        if torch.compiler.is_exporting() or not bool(mask.all()):
            query = query * mask[..., None]
        return scores.softmax(-1) @ keys + query


def call(batch: int, length: int, keys: int, source: int, pads: int = 0) -> tuple[torch.Tensor, ...]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, :pads] = 0
    return torch.randn(batch, length, 4), torch.randn(batch, source, 4), torch.randn(batch, keys, 4), mask


@pytest.mark.parametrize("pads", [0, 2])
def test_a_model_that_wants_equal_sizes_in_a_trace_alone_takes_calls_with_padding(pads: int) -> None:
    model, observer = Reads(), InputObserver()
    with observer(model), torch.no_grad():
        model(*call(2, 5, 7, 7, pads))
        model(*call(3, 6, 9, 9))
    program = observer.export()
    assert program.verify(trials=60).verified
    for asked in (call(4, 8, 11, 11, 3), call(1, 3, 6, 6), call(5, 7, 2, 2, 1)):
        torch.testing.assert_close(program(*asked), model(*asked))
    with pytest.raises(RejectedCallError, match="keys"):
        program(*call(2, 5, 7, 6))

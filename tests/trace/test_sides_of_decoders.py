"""Sizes beside the watched ones at which a decoder goes another way in a trace than in a call."""

from __future__ import annotations

import pytest
import torch
from transformers import MoonshineConfig, MoonshineForConditionalGeneration

from onlooker import InputObserver


@pytest.mark.slow
def test_a_side_that_no_equal_sizes_repair_is_given_up() -> None:
    """Kept keys of another length than the source: the mask fits in a call alone, where a value decides about it.

    Without the sizes that calls had equal a graph of one side of that value is made, which is not proven.
    """
    config = MoonshineConfig(
        vocab_size=99,
        hidden_size=16,
        intermediate_size=32,
        encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1,
        encoder_num_attention_heads=2,
        decoder_num_attention_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model, observer = MoonshineForConditionalGeneration(config).eval(), InputObserver()
    with observer(model.model.decoder), torch.no_grad():
        for rows, samples in ((2, 2000), (1, 2900)):
            mask = torch.ones(rows, samples, dtype=torch.int64)
            model.generate(torch.randn(rows, samples), attention_mask=mask, max_new_tokens=4, do_sample=False)
    program = observer.export()
    assert len(program.graphs) == 2
    assert program.verify(trials=30).verified

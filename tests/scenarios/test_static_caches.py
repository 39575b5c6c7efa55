"""``generate()`` makes a static cache for the length of each prompt: its length is a size like others."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from onlooker import InputObserver

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1}


def generate(model: LlamaForCausalLM, batch: int, length: int) -> torch.Tensor:
    ids = torch.randint(2, 50, (batch, length), generator=torch.Generator().manual_seed(length))
    made: torch.Tensor = model.generate(
        input_ids=ids,
        max_new_tokens=3,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        cache_implementation="static",
        disable_compile=True,
    )
    return made


@pytest.mark.slow
def test_a_static_cache_may_have_another_length() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=50, num_hidden_layers=1, max_position_embeddings=64, **SIZES)
    model, observer = LlamaForCausalLM(config).eval(), InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            generate(model, batch, length)
    program = observer.export()
    assert program.verify().verified, program.report
    for batch, length in ((1, 9), (4, 3)):
        expected = generate(model, batch, length)
        with program.installed(model):
            assert torch.equal(generate(model, batch, length), expected)

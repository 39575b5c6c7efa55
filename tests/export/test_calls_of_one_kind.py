"""A decoder that takes one token at a time beside its prompt: further graphs look at all calls."""

from __future__ import annotations

import torch
import transformers

from onlooker import InputObserver


def test_a_decoder_of_n_grams_decodes_further_than_it_was_watched() -> None:
    torch.manual_seed(0)
    config = transformers.ProphetNetConfig(
        vocab_size=64, hidden_size=16, num_encoder_layers=2, num_decoder_layers=2, num_encoder_attention_heads=2,
        num_decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        is_decoder=True, is_encoder_decoder=False, add_cross_attention=False,
    )  # fmt: skip
    model = transformers.ProphetNetForCausalLM(config).eval()
    ids = torch.randint(4, 64, (2, 10))
    observer = InputObserver()
    with observer(model), torch.no_grad():
        model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    program = observer.export()
    longer = torch.randint(4, 64, (3, 7))
    with torch.no_grad():
        expected = model.generate(longer, max_new_tokens=9, min_new_tokens=9, do_sample=False)
        with program.installed():
            got = model.generate(longer, max_new_tokens=9, min_new_tokens=9, do_sample=False)
    assert torch.equal(got, expected)

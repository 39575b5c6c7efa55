"""Decoders with a growing cache, used through their own ``generate()``."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import torch

from .draw import padding_mask, random_ids, randomised
from .model import TinyModel, load_transformers

__all__ = ["gpt2", "llama"]

VOCABULARY = 256
POSITIONS = 128

#: prompts and steps of one token and of several, with an empty and with a long past
SIZES = tuple(
    {"batch": batch, "sequence": sequence, "past_sequence": past}
    for batch, sequence, past in product((1, 3, 5), (1, 7), (0, 30))
)


def llama() -> TinyModel:
    """A stock ``LlamaForCausalLM``: 2 layers, hidden size 32, 4 heads sharing 2 key-value heads."""
    transformers = load_transformers()
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return _decoder("llama", transformers.LlamaForCausalLM, config)


def gpt2() -> TinyModel:
    """A stock ``GPT2LMHeadModel``: 2 layers, hidden size 32, 4 heads, learned positions."""
    transformers = load_transformers()
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=POSITIONS,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    return _decoder("gpt2", transformers.GPT2LMHeadModel, config)


def _decoder(name: str, model_class: Any, config: Any) -> TinyModel:
    model = randomised(partial(model_class, config))
    story = "one left-padded generate() of batch 2: a prompt of 10 tokens, then 4 new ones"
    return TinyModel(name, model, story, partial(_generate, model), SIZES)


def _generate(model: Any) -> None:
    mask = padding_mask((3, 0), 10, left=True)
    ids = random_ids(2, 10, VOCABULARY).masked_fill(mask == 0, 0)
    with torch.no_grad():
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )

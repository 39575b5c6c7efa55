"""Models that are called once: a text encoder and an image classifier."""

from __future__ import annotations

from functools import partial

import torch

from .draw import image_batch, padding_mask, random_ids, randomised
from .model import TinyModel, load_transformers

__all__ = ["bert", "vit"]

VOCABULARY = 256
IMAGE_SIZE = 32


def bert() -> TinyModel:
    """A stock ``BertModel``: 2 layers, hidden size 32, 4 heads."""
    transformers = load_transformers()
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=0,
    )
    model = randomised(partial(transformers.BertModel, config))
    story = "two calls with ids and a right-padded mask: 2 texts of 7 tokens, then 3 of 10"
    return TinyModel(
        "bert",
        model,
        story,
        partial(_encode, model),
        ({"batch": 1, "sequence": 1}, {"batch": 5, "sequence": 30}),
    )


def _encode(model: torch.nn.Module) -> None:
    for padding, length in (((0, 2), 7), ((4, 0, 1), 10)):
        mask = padding_mask(padding, length, left=False)
        ids = random_ids(len(padding), length, VOCABULARY, seed=length).masked_fill(mask == 0, 0)
        with torch.no_grad():
            model(input_ids=ids, attention_mask=mask)


def vit() -> TinyModel:
    """A stock ``ViTForImageClassification``: 2 layers, hidden size 32, images 32 x 32, patches 8
    x 8.
    """
    transformers = load_transformers()
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=8,
        num_labels=5,
    )
    model = randomised(partial(transformers.ViTForImageClassification, config))
    return TinyModel(
        "vit",
        model,
        "two calls: 2 images, then 3",
        partial(_classify, model),
        ({"batch": 1}, {"batch": 5}),
    )


def _classify(model: torch.nn.Module) -> None:
    for batch in (2, 3):
        with torch.no_grad():
            model(pixel_values=image_batch(batch, IMAGE_SIZE, seed=batch))

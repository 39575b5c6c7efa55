"""Images, and texts with an image in each row, as the configuration of a model wants them."""

from __future__ import annotations

from typing import Any

import torch

from .model import parameters_of
from .sizes import BATCH, InputSizes, Made, random_tokens

__all__ = ["image_inputs", "image_text_inputs"]

#: the side of an image where the configuration says nothing
PIXELS = 64
#: patches a side, for models that take images as lists of patches
PATCHES = 4


def image_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """``pixel_values``: (batch, channels, height, width)."""
    vision = getattr(model.config, "vision_config", None) or model.config
    side = getattr(vision, "image_size", None) or PIXELS
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(vision, "num_channels", 3)
    pixels = torch.randn(sizes.batch_size, channels, height, width, generator=generator)
    return {"pixel_values": pixels}, {"pixel_values": {0: BATCH}}


def image_text_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """A text with one image in each row: its tokens stand first, where the model marks them in
    the text.
    """
    images, shapes = _images_of_texts(model, sizes, generator)
    ids = random_tokens(model.config, generator, sizes.batch_size, sizes.sequence_length)
    token = getattr(model.config, "image_token_id", None) or getattr(
        model.config, "image_token_index", None
    )
    is_image = torch.zeros_like(ids)
    if token is not None:
        marks = torch.full((sizes.batch_size, _tokens_per_image(model, images, sizes)), token)
        ids = torch.cat([ids[:, :1], marks, ids[:, 1:]], dim=1)
        is_image = torch.eq(ids, token)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "mm_token_type_ids" in parameters_of(model):
        inputs["mm_token_type_ids"] = is_image.to(torch.int32)
    texts = {name: {0: BATCH, 1: "sequence_length"} for name in inputs}
    return {**inputs, **images}, {**texts, **shapes}


def _images_of_texts(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    parameters, batch = parameters_of(model), sizes.batch_size
    if "image_grid_thw" in parameters:  # patches of all images in one list
        vision = model.config.vision_config
        features = (
            getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
        )
        pixels = torch.randn(batch * PATCHES**2, features, generator=generator)
        grid = torch.tensor([[1, PATCHES, PATCHES]] * batch)
        return {"pixel_values": pixels, "image_grid_thw": grid}, {
            "pixel_values": {0: "patches"},
            "image_grid_thw": {0: BATCH},
        }
    images, shapes = image_inputs(model, sizes, generator)
    if "pixel_attention_mask" in parameters:  # (batch, images, channels, height, width)
        return {"pixel_values": images["pixel_values"].unsqueeze(1)}, shapes
    return images, shapes


def _tokens_per_image(model: Any, images: dict[str, Any], sizes: InputSizes) -> int:
    """Asked of the model: what it makes of the images, in rows."""
    with torch.no_grad():
        output = model.get_image_features(**images)
    features = getattr(output, "pooler_output", output)
    rows = features if isinstance(features, (list, tuple)) else [features]
    return int(sum(tensor.numel() // tensor.shape[-1] for tensor in rows)) // sizes.batch_size

"""Inputs of models that see or hear, and of those that read as well."""

from __future__ import annotations

from typing import Any

import torch

from .sizes import BATCH, InputSizes, Made, random_tokens
from .text import encoder_inputs, parameters_of, seq2seq_inputs

__all__ = [
    "audio_inputs",
    "image_inputs",
    "image_text_inputs",
    "mask_inputs",
    "similarity_inputs",
    "speech_inputs",
]

#: the side of an image where the configuration says nothing
PIXELS = 64
#: patches a side, for models that take images as lists of patches
PATCHES = 4
SAMPLES_PER_TOKEN = 100


def image_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """``pixel_values``: (batch, channels, height, width)."""
    vision = getattr(model.config, "vision_config", None) or model.config
    side = getattr(vision, "image_size", None) or PIXELS
    height, width = (side, side) if isinstance(side, int) else side
    channels = getattr(vision, "num_channels", 3)
    pixels = torch.randn(sizes.batch_size, channels, height, width, generator=generator)
    return {"pixel_values": pixels}, {"pixel_values": {0: BATCH}}


def mask_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """An image, and two points in it: ``input_points`` (batch, 1, 2, 2)."""
    inputs, shapes = image_inputs(model, sizes, generator)
    side = inputs["pixel_values"].shape[-1]
    inputs["input_points"] = torch.rand(sizes.batch_size, 1, 2, 2, generator=generator) * side
    return inputs, {**shapes, "input_points": {0: BATCH}}


def similarity_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """As many texts as images: ``input_ids``, ``attention_mask``, ``pixel_values``."""
    texts, text_shapes = encoder_inputs(model, sizes, generator)
    images, image_shapes = image_inputs(model, sizes, generator)
    return {**texts, **images}, {**text_shapes, **image_shapes}


def audio_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """``input_values``: samples (batch, samples), or a spectrogram of the size that the model
    wants.
    """
    config, name = model.config, model.main_input_name
    frames = getattr(config, "max_length", None)
    if getattr(config, "num_mel_bins", None) and frames:
        values = torch.randn(sizes.batch_size, frames, config.num_mel_bins, generator=generator)
        return {name: values}, {name: {0: BATCH}}
    samples = SAMPLES_PER_TOKEN * sizes.sequence_length
    values = torch.randn(sizes.batch_size, samples, generator=generator)
    return {name: values}, {name: {0: BATCH, 1: "samples"}}


def speech_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """Sound that became text so far: the encoder of the sound has run."""
    config = model.config
    frames = 2 * config.max_source_positions
    features = torch.randn(sizes.batch_size, config.num_mel_bins, frames, generator=generator)
    inputs, shapes = seq2seq_inputs(model, {model.main_input_name: features}, sizes, generator)
    return inputs, _static_source(shapes)


def _static_source(shapes: dict[str, Any]) -> dict[str, Any]:
    """The source has one length only."""
    cache = shapes["past_key_values"]
    crossed = [{0: BATCH} if isinstance(shape, dict) and shape else shape for shape in cache[1]]
    return {**shapes, "encoder_outputs": [{0: BATCH}], "past_key_values": [cache[0], crossed]}


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

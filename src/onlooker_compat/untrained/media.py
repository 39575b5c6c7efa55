"""Inputs of models that see or hear, and of those that read as well."""

from __future__ import annotations

from typing import Any

import torch

from onlooker.zoo.images import image_inputs
from onlooker.zoo.sizes import BATCH, InputSizes, Made

from .text import encoder_inputs, seq2seq_inputs

__all__ = [
    "audio_inputs",
    "mask_inputs",
    "similarity_inputs",
    "speech_inputs",
]

SAMPLES_PER_TOKEN = 100


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

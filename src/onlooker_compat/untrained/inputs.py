"""Inputs for a model and a task."""

from __future__ import annotations

from typing import Any

import torch

from onlooker.zoo.images import image_inputs, image_text_inputs
from onlooker.zoo.model import parameters_of
from onlooker.zoo.sizes import InputSizes, Made

from .media import (
    audio_inputs,
    mask_inputs,
    similarity_inputs,
    speech_inputs,
)
from .text import decoder_inputs, encoder_inputs, seq2seq_inputs

__all__ = ["has_cache", "make_inputs"]

_BY_TASK = {
    "text-generation": decoder_inputs,
    "image-text-to-text": image_text_inputs,
    "zero-shot-image-classification": similarity_inputs,
    "mask-generation": mask_inputs,
}
_BY_MAIN_INPUT = {"input_ids": encoder_inputs, "pixel_values": image_inputs}


def make_inputs(model: Any, task: str, sizes: InputSizes, seed: int = 0) -> Made:
    """Random inputs, the same for the same seed and sizes, and their dynamic shapes; the global
    state stays.
    """
    generator = torch.Generator().manual_seed(seed)
    if _has_encoder(model, task):
        if task == "text2text-generation":
            source, _ = encoder_inputs(
                model, sizes.of(sequence_length=sizes.encoder_length), generator
            )
            return seq2seq_inputs(model, source, sizes, generator)
        return speech_inputs(model, sizes, generator)
    build = _BY_TASK.get(task) or _BY_MAIN_INPUT.get(model.main_input_name, audio_inputs)
    inputs, shapes = build(model, sizes, generator)
    if task == "zero-shot-image-classification" and "attention_mask" not in parameters_of(model):
        inputs.pop("attention_mask"), shapes.pop("attention_mask")
    return inputs, shapes


def has_cache(model: Any, task: str) -> bool:
    """True when the inputs have a cache, which may be empty as well."""
    return task == "text-generation" or _has_encoder(model, task)


def _has_encoder(model: Any, task: str) -> bool:
    return task in ("text2text-generation", "automatic-speech-recognition") and bool(
        model.config.is_encoder_decoder
    )

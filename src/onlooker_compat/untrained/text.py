"""Inputs of models that read text: decoders with a cache, encoders, encoder-decoder models."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from onlooker.zoo.model import parameters_of
from onlooker.zoo.sizes import BATCH, InputSizes, Made, random_tokens

from .caches import cache_name, cache_shapes, emptied, is_static, new_cache

__all__ = ["decoder_inputs", "encoder_inputs", "seq2seq_inputs"]

#: tokens that fill a cache which is emptied afterwards
_SOME_TOKENS = 2


def encoder_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """``input_ids``, ``attention_mask`` and, where they exist, ``token_type_ids``: (batch,
    sequence).
    """
    shape = (sizes.batch_size, sizes.sequence_length)
    inputs = {
        "input_ids": random_tokens(model.config, generator, *shape),
        "attention_mask": _ones(*shape),
    }
    if "token_type_ids" in parameters_of(model) and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.zeros(shape, dtype=torch.int64)
    return inputs, {name: {0: BATCH, 1: "sequence_length"} for name in inputs}


def decoder_inputs(model: Any, sizes: InputSizes, generator: torch.Generator) -> Made:
    """New tokens after the tokens that a cache holds.

    With a static cache: ``input_ids`` (batch, new), a boolean ``attention_mask`` (batch, 1, new,
    room), and ``cache_position`` (new) where ``forward`` takes it. Otherwise ``attention_mask``
    (batch, past + new) and ``position_ids`` (batch, new).
    """
    batch, past, new = sizes.batch_size, sizes.sequence_length, sizes.sequence_length2
    name = cache_name(parameters_of(model))
    cache = _filled(model, sizes, generator, name)
    inputs: dict[str, Any] = {"input_ids": random_tokens(model.config, generator, batch, new)}
    shapes: dict[str, Any] = {"input_ids": {0: BATCH, 1: "seq_length"}}
    build = _static_places if is_static(sizes) else _places
    for key, (value, shape) in build(
        batch, past, new, max(sizes.max_cache_len, past + new)
    ).items():
        # the states of a linear attention have no tokens that could be hidden
        if _takes(model, key) and not (key == "attention_mask" and name == "cache_params"):
            inputs[key], shapes[key] = value, shape
    inputs[name], shapes[name] = cache, cache_shapes(cache)
    return inputs, shapes


def _places(
    batch: int, past: int, new: int, room: int
) -> dict[str, tuple[torch.Tensor, dict[int, Any]]]:
    """Name -> (value, shape) of what tells tokens apart with a cache that grows."""
    position = torch.arange(past, past + new).expand(batch, new).clone()
    return {
        "attention_mask": (_ones(batch, past + new), {0: BATCH, 1: "cache+seq"}),
        "position_ids": (position, {0: BATCH, 1: "seq_length"}),
    }


def _static_places(
    batch: int, past: int, new: int, room: int
) -> dict[str, tuple[torch.Tensor, dict[int, Any]]]:
    """Returns mask and positions for a cache that has room for ``room`` tokens."""
    position = torch.arange(past, past + new)
    shown = torch.arange(room) <= position[:, None]
    return {
        "attention_mask": (shown.expand(batch, 1, new, room).clone(), {0: BATCH, 2: "seq"}),
        "cache_position": (position, {0: "seq"}),
    }


def _filled(model: Any, sizes: InputSizes, generator: torch.Generator, name: str) -> Any:
    """The cache after ``sequence_length`` random tokens went through the model."""
    ids = random_tokens(
        model.config, generator, sizes.batch_size, sizes.sequence_length or _SOME_TOKENS
    )
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True, **{name: new_cache(model, sizes)})
    return output[name] if sizes.sequence_length else emptied(output[name], new_cache(model, sizes))


def seq2seq_inputs(
    model: Any, source: dict[str, torch.Tensor], sizes: InputSizes, generator: torch.Generator
) -> Made:
    """Returns the inputs that ``generate()`` passes after some steps: the encoder has run, its
    output and both caches are given.

    :param source: the inputs of the encoder; its mask is passed on
    """
    batch, past, new = sizes.batch_size, sizes.sequence_length, sizes.sequence_length2
    with torch.no_grad():
        encoded = model.get_encoder()(**source)
    source_tokens = encoded[0].shape[1]
    mask = {name: value for name, value in source.items() if name == "attention_mask"}
    ids = random_tokens(model.config, generator, batch, past or _SOME_TOKENS)
    cache = new_cache(model, sizes, encoder_tokens=source_tokens)
    with torch.no_grad():
        output = model(
            encoder_outputs=encoded,
            decoder_input_ids=ids,
            past_key_values=cache,
            use_cache=True,
            **mask,
        )
    cache = output.past_key_values
    if not past:
        cache = emptied(cache, new_cache(model, sizes, encoder_tokens=source_tokens))
    inputs = {
        "decoder_input_ids": random_tokens(model.config, generator, batch, new),
        **mask,
        "encoder_outputs": encoded,
        "past_key_values": cache,
    }
    shapes = {
        "decoder_input_ids": {0: BATCH, 1: "seq_length"},
        **{name: {0: BATCH, 1: "encoder_length"} for name in mask},
        "encoder_outputs": [{0: BATCH, 1: "encoder_length"}],
        "past_key_values": cache_shapes(cache),
    }
    return inputs, shapes


def _takes(model: Any, name: str) -> bool:
    """True for a parameter of ``forward``; ``cache_position`` may be one of its ``**kwargs``,
    too.
    """
    known = parameters_of(model)
    any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values())
    return name in known or (name == "cache_position" and any_name)


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)

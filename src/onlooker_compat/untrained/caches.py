"""Caches as the model itself fills them, and their dynamic shapes."""

from __future__ import annotations

from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.pytrees.caches import cache_utils, flatten_cache_with_keys
from onlooker.pytrees.layers import is_cache
from onlooker.zoo.sizes import BATCH, InputSizes

__all__ = ["cache_name", "cache_shapes", "emptied", "is_static", "new_cache"]

#: names of older releases whose layers follow from the configuration today
_STATIC = ("StaticCache", "SlidingWindowCache", "HybridCache", "HybridChunkedCache")
_DYNAMIC = ("DynamicCache", "MambaCache", "EncoderDecoderCache")


def is_static(sizes: InputSizes) -> bool:
    """True when a cache of a fixed size is asked for.

    :raises UsageError: ``no-such-cache``
    """
    if sizes.cls_cache not in _STATIC + _DYNAMIC:
        raise UsageError(
            f"There is no cache {sizes.cls_cache!r} to be made.",
            slug="no-such-cache",
            hint=f"Give cls_cache one of: {', '.join(_STATIC + _DYNAMIC)}.",
        )
    return sizes.cls_cache in _STATIC


def cache_name(output: Any) -> str:
    """The name under which an output, or the parameters of a forward, has its cache."""
    return "cache_params" if "cache_params" in output else "past_key_values"


def new_cache(model: Any, sizes: InputSizes, *, encoder_tokens: int | None = None) -> Any:
    """An empty cache with the layers that the configuration of the model has.

    :param encoder_tokens: the length of the source, for a model with an encoder
    """
    utils, config = cache_utils(), model.config
    if is_static(sizes):
        room = max(sizes.max_cache_len, sizes.sequence_length + sizes.sequence_length2)
        cache = utils.StaticCache(config=config, max_cache_len=room)
        if encoder_tokens is None:
            return cache
        return utils.EncoderDecoderCache(
            cache, utils.StaticCache(config=config, max_cache_len=encoder_tokens)
        )
    cache = utils.DynamicCache(config=config)
    return (
        cache
        if encoder_tokens is None
        else utils.EncoderDecoderCache(cache, utils.DynamicCache(config=config))
    )


def emptied(cache: Any, fresh: Any) -> Any:
    """The cache without its tokens: tensors of length 0 where they grow, zeros where they do not.

    :param fresh: the same cache, new: given instead where there are layers of other kinds, such as
        the states of a linear attention, which then wait for their first tokens
    """
    utils = cache_utils()
    if isinstance(cache, utils.EncoderDecoderCache):  # the source stays: its tokens are no past
        return utils.EncoderDecoderCache(
            emptied(cache.self_attention_cache, fresh.self_attention_cache),
            cache.cross_attention_cache,
        )
    if all(isinstance(layer, utils.StaticLayer) for layer in cache.layers):
        cache.reset()
        return cache
    if not all(
        type(x) in (utils.DynamicLayer, utils.DynamicSlidingWindowLayer) for x in cache.layers
    ):
        return fresh
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[..., :0, :].clone(), layer.values[..., :0, :].clone()
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = 0
    return cache


def cache_shapes(cache: Any, length: str = "cache_length", *, nested: bool = False) -> list[Any]:
    """The dynamic shapes of the leaves of a cache, in the flat form that ``torch.export`` takes.

    The cache of a decoder that is static has the older form ``[[keys, ...], [values, ...]]``:
    nothing but its batch may change, and its counters have no shape. Whatever of onlooker reads
    shapes takes both.

    :param cache: a cache of transformers, filled
    :param length: the name of the number of tokens in it
    :param nested: True for one of the two caches of an encoder-decoder model
    """
    if isinstance(cache, cache_utils().StaticCache) and not nested:
        return [[{0: BATCH} for _ in cache.layers] for _ in ("keys", "values")]
    children, _ = flatten_cache_with_keys(cache)
    static = any(
        isinstance(layer, cache_utils().StaticLayer) for layer in getattr(cache, "layers", ())
    )
    shapes: list[Any] = []
    for position, (key, leaf) in enumerate(children):
        if is_cache(leaf):
            shapes.append(
                cache_shapes(leaf, length if position == 0 else "encoder_length", nested=True)
            )
        elif not isinstance(leaf, torch.Tensor):
            shapes.append(torch.export.Dim.DYNAMIC)  # a counter
        elif str(key).startswith(("['key_", "['value_")) and not static:
            shapes.append({0: BATCH, 2: length})
        else:
            shapes.append({0: BATCH} if leaf.dim() else {})
    return shapes

"""Caches of transformers made from tensors, and read back as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.core.support.kinds import check_kind
from onlooker.pytrees.caches import cache_utils
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.layers import is_cache

__all__ = ["CacheKeyValue", "make_dynamic_cache", "make_encoder_decoder_cache", "make_static_cache"]

Pair = tuple[Any, Any]
Layers = str | type | Sequence[str | type] | None


def make_dynamic_cache(
    key_value_pairs: Sequence[torch.Tensor] | Sequence[Pair],
    cls_layers: Layers = None,
    cls_kwargs: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
) -> Any:
    """A ``DynamicCache`` that holds these keys and values, not copies of them.

    :param key_value_pairs: one ``(keys, values)`` per layer, or a flat list
        ``[keys, values, keys, ...]``; a tensor is of shape ``(batch, heads, tokens, head size)``;
        ``(None, None)`` is a layer which waits for its first tokens
    :param cls_layers: the class of the layers, or one per layer, or their names in
        ``transformers.cache_utils``; ``DynamicLayer`` by default
    :param cls_kwargs: the arguments of the class of the layers, or one dict per layer; the window
        of a sliding layer is by default the smallest one that keeps all tokens
    :return: the cache; a sliding layer keeps the last ``sliding_window - 1`` tokens, as it does in
        a model
    :raises UsageError: ``cache-layers`` for pairs, classes or arguments that do not go together
    :raises MissingPackageError: ``missing-package`` without transformers

    >>> from onlooker.pytrees.descriptions.describe import string_type
    >>> cache = make_dynamic_cache([(torch.zeros(2, 1, 30, 96), torch.zeros(2, 1, 30, 96))])
    >>> string_type(cache, with_shape=True)
    'DynamicCache(key_cache=#1[T1s2x1x30x96], value_cache=#1[T1s2x1x30x96])'
    """
    utils, pairs = cache_utils(), _pairs(key_value_pairs)
    classes = _classes(cls_layers, len(pairs), utils.DynamicLayer)
    kwargs = _one_per_layer(cls_kwargs or {}, dict, len(pairs), "arguments")
    cache = utils.DynamicCache()
    cache.layers = [_dynamic_layer(*args) for args in zip(classes, kwargs, pairs, strict=True)]
    if any(cls is not utils.DynamicLayer for cls in classes):
        cache.layer_class_to_replicate = None
    return cache


def make_static_cache(
    key_value_pairs: Sequence[torch.Tensor] | Sequence[Pair],
    max_cache_len: int | None = None,
    cls_layers: Layers = None,
) -> Any:
    """A ``StaticCache`` that holds copies of these keys and values, filled up with zeros.

    :param key_value_pairs: one ``(keys, values)`` per layer, or a flat list
        ``[keys, values, keys, ...]``; a tensor is of shape ``(batch, heads, tokens, head size)``
    :param max_cache_len: the number of tokens to make room for; by default the largest one given
    :param cls_layers: the class of the layers, or one per layer, or their names in
        ``transformers.cache_utils``; ``StaticLayer`` by default
    :return: the cache, with tensors of shape ``(batch, heads, max_cache_len, head size)``
    :raises UsageError: ``cache-layers`` for pairs and classes that do not go together,
        ``static-cache-size`` when the tokens do not fit
    :raises MissingPackageError: ``missing-package`` without transformers

    >>> cache = make_static_cache([(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))], max_cache_len=8)
    >>> tuple(cache.layers[0].keys.shape), int(cache.layers[0].cumulative_length)
    ((1, 2, 8, 4), 3)
    """
    utils, pairs = cache_utils(), _pairs(key_value_pairs)
    tokens = [keys.shape[-2] for keys, _ in pairs if keys is not None]
    room = max(tokens, default=0) if max_cache_len is None else max_cache_len
    if any(tensor is not None and tensor.dim() != 4 for pair in pairs for tensor in pair):
        raise UsageError(
            "A static cache takes tensors of 4 dimensions: batch, heads, tokens, head size.",
            slug="cache-layers",
        )
    if max(tokens, default=0) > room:
        raise UsageError(
            f"{max(tokens)} tokens do not fit into a static cache for {room}.",
            slug="static-cache-size",
            hint="Give a larger max_cache_len, or none.",
        )
    classes = _classes(cls_layers, len(pairs), utils.StaticLayer)
    layers = [_static_layer(cls, room, *pair) for cls, pair in zip(classes, pairs, strict=True)]
    cache = utils.StaticCache.__new__(
        utils.StaticCache
    )  # its __init__ wants the configuration of a model
    utils.Cache.__init__(cache, layers=layers)
    return cache


def make_encoder_decoder_cache(self_attention_cache: Any, cross_attention_cache: Any) -> Any:
    """An ``EncoderDecoderCache`` of two caches, which it does not copy.

    :raises UsageError: ``cache-layers`` when one of them is not a cache of transformers
    :raises MissingPackageError: ``missing-package`` without transformers

    >>> pair = (torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> cache = make_encoder_decoder_cache(make_dynamic_cache([pair]), make_dynamic_cache([pair]))
    >>> cache.is_updated
    {0: True}
    """
    for cache in (self_attention_cache, cross_attention_cache):
        if not is_cache(cache):
            raise UsageError(
                f"An encoder-decoder cache is made of two caches, not of a {type(cache).__name__}.",
                slug="cache-layers",
            )
    return cache_utils().EncoderDecoderCache(self_attention_cache, cross_attention_cache)


class CacheKeyValue:
    """The keys and the values of a cache as two lists, whatever the class of the cache.

    :param cache: a cache of transformers, an object with lists ``key_cache`` and ``value_cache``,
        pairs or a flat list ``[keys, values, keys, ...]``, or None
    :param cls_layers: the class of the layers, or one per layer, when ``cache`` does not tell

    ``key_cache`` and ``value_cache`` hold one tensor per layer (None where a layer waits for its
    first tokens), ``cls_layers`` one class per layer, or None when unknown.

    >>> key_value = CacheKeyValue([torch.zeros(1), torch.ones(1), torch.zeros(1), torch.ones(1)])
    >>> key_value.n_layers, len(key_value), [tensor.item() for tensor in key_value.key_cache]
    (2, 4, [0.0, 0.0])
    """

    key_cache: list[Any] | None
    value_cache: list[Any] | None
    cls_layers: list[Any] | None

    def __init__(self, cache: Any = None, cls_layers: Layers = None) -> None:
        known: list[Any] | None = None
        self._layers: list[Any] | None = None
        pairs: list[Pair] = []
        if isinstance(cache, (list, tuple)):
            pairs = _pairs(cache)
        elif isinstance(getattr(cache, "layers", None), list):
            self._layers = list(cache.layers)
            pairs = [(getattr(x, "keys", None), getattr(x, "values", None)) for x in self._layers]
            known = [type(layer) for layer in self._layers]
        elif hasattr(cache, "key_cache") and hasattr(cache, "value_cache"):
            pairs = list(zip(cache.key_cache or (), cache.value_cache or (), strict=True))
            self._layers, known = (
                getattr(cache, "_layers", None),
                getattr(cache, "cls_layers", None),
            )
        elif cache is not None:
            raise UsageError(
                f"The keys and values of a {type(cache).__name__} are not known.",
                slug="cache-layers",
                hint="Give a cache with layers, or its keys and values as a list.",
            )
        self.key_cache = None if cache is None else [keys for keys, _ in pairs]
        self.value_cache = None if cache is None else [values for _, values in pairs]
        self.cls_layers = known if cls_layers is None else _classes(cls_layers, len(pairs))

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.key_cache or ())

    def __len__(self) -> int:
        return 2 * self.n_layers

    def aslist(self) -> list[Any]:
        """``[keys, values, keys, ...]``, layer by layer."""
        pairs = zip(self.key_cache or (), self.value_cache or (), strict=True)
        return [tensor for pair in pairs for tensor in pair]

    def make_dynamic_cache(self) -> Any:
        """A ``DynamicCache`` of these keys and values; a layer of another kind becomes a
        ``DynamicLayer``.

        :raises MissingPackageError: ``missing-package`` without transformers
        """
        plain = cache_utils().DynamicLayer
        classes = self.cls_layers or [plain] * self.n_layers
        seen = [vars(layer) for layer in self._layers or []] or [{}] * self.n_layers
        windows = [attributes.get("sliding_window") for attributes in seen]
        cache = make_dynamic_cache(
            self.aslist(),
            [cls if issubclass(cls, plain) else plain for cls in classes],
            [{} if window is None else {"sliding_window": window} for window in windows],
        )
        for attributes, layer in zip(seen, cache.layers, strict=True):
            if "cumulative_length" in attributes and "cumulative_length" in vars(layer):
                layer.cumulative_length = attributes["cumulative_length"]
        return cache


def _pairs(tensors: Sequence[Any]) -> list[Pair]:
    """``(keys, values)`` per layer, from pairs or from a flat list."""
    check_kind(
        tensors,
        Iterable,
        "key_value_pairs",
        "one pair of keys and values per layer, or a flat list of them",
    )
    items = list(tensors)
    if all(isinstance(item, (list, tuple)) and len(item) == 2 for item in items):
        pairs = [(keys, values) for keys, values in items]
    elif any(isinstance(item, (list, tuple)) for item in items) or len(items) % 2:
        raise UsageError(
            f"The keys and values of a cache come as pairs or as a flat list, not as {len(items)}"
            " items.",
            slug="cache-layers",
        )
    else:
        pairs = list(zip(items[::2], items[1::2], strict=True))
    for layer, pair in enumerate(pairs):
        if any(half is not None for half in pair) and not all(
            isinstance(half, torch.Tensor) for half in pair
        ):
            raise UsageError(
                f"The keys and values of layer {layer} are {string_type(pair)}.",
                slug="cache-layers",
                hint="Give two tensors, or (None, None) for a layer without tokens.",
            )
    return pairs


def _one_per_layer(given: Any, one: type | tuple[type, ...], count: int, what: str) -> list[Any]:
    many = [given] * count if isinstance(given, one) else list(given)
    if len(many) != count:
        raise UsageError(
            f"A cache of {count} layers was given {len(many)} {what}: one per layer, or one for"
            " all.",
            slug="cache-layers",
        )
    return many


def _classes(given: Layers, count: int, default: type | None = None) -> list[Any]:
    many = _one_per_layer(default if given is None else given, (str, type), count, "classes")
    return [_named_class(cls) for cls in many]


def _named_class(cls: str | type) -> Any:
    if not isinstance(cls, str):
        return cls
    found = getattr(cache_utils(), cls, None)
    if not isinstance(found, type):
        raise UsageError(f"transformers has no class of layers {cls!r}.", slug="cache-layers")
    return found


def _dynamic_layer(cls: Any, kwargs: dict[str, Any], pair: Pair) -> Any:
    utils, (keys, values) = cache_utils(), pair
    slides = issubclass(cls, utils.DynamicSlidingWindowLayer)
    if slides and "sliding_window" not in kwargs:
        kwargs = {**kwargs, "sliding_window": 1 if keys is None else keys.shape[-2] + 1}
    layer = cls(**kwargs)
    if keys is None:
        return layer
    if cls not in (utils.DynamicLayer, utils.DynamicSlidingWindowLayer):
        if not hasattr(layer, "update"):
            raise UsageError(
                f"A {cls.__name__} does not keep keys and values.", slug="cache-layers"
            )
        layer.update(keys, values)
        return layer
    layer.dtype, layer.device = keys.dtype, keys.device
    layer.keys, layer.values, layer.is_initialized = keys, values, True
    if slides:
        first = (
            1 - layer.sliding_window
        )  # what update() keeps, see DynamicSlidingWindowLayer in transformers
        layer.keys, layer.values = keys[..., first:, :], values[..., first:, :]
        layer.cumulative_length = keys.shape[-2]
    return layer


def _static_layer(cls: Any, room: int, keys: Any, values: Any) -> Any:
    layer = cls(max_cache_len=room, sliding_window=room)
    if keys is not None:
        layer.update(keys.detach(), values.detach())
    return layer

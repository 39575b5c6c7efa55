"""Caches made from tensors, and read back as tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, cache_utils

from onlooker.core.errors import MissingPackageError, UsageError
from onlooker.pytrees.descriptions.describe import string_type
from onlooker_compat.trees.compare import max_diff
from onlooker_compat.trees.make import (
    CacheKeyValue,
    make_dynamic_cache,
    make_encoder_decoder_cache,
    make_static_cache,
)

Pair = tuple[torch.Tensor, torch.Tensor]


def pair(tokens: int = 6, batch: int = 4) -> Pair:
    return torch.randn(batch, 5, tokens, 7), torch.randn(batch, 5, tokens, 7)


def flat(pairs: list[Pair]) -> list[torch.Tensor]:
    return [tensor for both in pairs for tensor in both]


@pytest.mark.parametrize("how", [list, tuple, flat])
def test_a_dynamic_cache_holds_the_tensors_given(how: Any) -> None:
    pairs = [pair(), pair()]
    cache = make_dynamic_cache(how(pairs))
    assert type(cache) is cache_utils.DynamicCache
    assert [type(layer) for layer in cache.layers] == [cache_utils.DynamicLayer] * 2
    assert [layer.keys is k and layer.values is v for layer, (k, v) in zip(cache.layers, pairs, strict=True)]
    assert cache.get_seq_length() == 6


def test_a_dynamic_cache_is_as_transformers_makes_it() -> None:
    pairs = [pair(), pair()]
    made, theirs = make_dynamic_cache(pairs), cache_utils.DynamicCache()
    for i, (keys, values) in enumerate(pairs):
        theirs.update(keys, values, i)
    for ours, other in zip(made.layers, theirs.layers, strict=True):
        assert set(vars(ours)) == set(vars(other))
        assert (ours.dtype, ours.device, ours.is_initialized) == (other.dtype, other.device, True)
    step = pair(1)
    for cache in (made, theirs):
        cache.update(*step, 0)
        cache.update(*step, 2)
    assert max_diff(theirs, made)["abs"] == 0


def test_no_layers() -> None:
    cache = make_dynamic_cache([])
    assert len(cache.layers) == 0
    cache.update(*pair(), 0)
    assert len(cache.layers) == 1


def test_a_layer_without_tokens() -> None:
    cache = make_dynamic_cache([(None, None), pair()])
    assert [layer.is_initialized for layer in cache.layers] == [False, True]
    cache.update(*pair(3), 0)
    assert cache.get_seq_length(0) == 3


MIXED = ["DynamicLayer", cache_utils.DynamicSlidingWindowLayer]


def test_two_classes_of_layers() -> None:
    cache = make_dynamic_cache([pair(), pair()], cls_layers=MIXED)
    shown = "T1s4x5x6x7, T1s4x5x6x7"
    assert (
        string_type(cache, with_shape=True)
        == f"DynamicCache(DynamicLayer({shown}), DynamicSlidingWindowLayer({shown}))"
    )
    assert cache.layers[1].sliding_window == 7
    assert cache.layers[1].cumulative_length == 6


@pytest.mark.parametrize("window", [2, 4, 6, 7, 12])
def test_a_sliding_layer_keeps_what_a_model_would_keep(window: int) -> None:
    both = pair()
    cache = make_dynamic_cache([both], "DynamicSlidingWindowLayer", {"sliding_window": window})
    theirs = cache_utils.DynamicSlidingWindowLayer(window)
    theirs.update(*both)
    made = cache.layers[0]
    assert set(vars(made)) == set(vars(theirs))
    assert made.cumulative_length == theirs.cumulative_length
    assert torch.equal(made.keys, theirs.keys)
    assert torch.equal(made.values, theirs.values)
    assert made.get_mask_sizes(1) == theirs.get_mask_sizes(1)


def test_arguments_of_the_layers() -> None:
    cache = make_dynamic_cache([pair(), pair()], MIXED, [{}, {"sliding_window": 12}])
    assert cache.layers[1].sliding_window == 12
    assert cache.layer_class_to_replicate is None


def test_layers_which_need_their_own_update() -> None:
    cache = make_dynamic_cache([pair()], "Fp8QuantizedLayer")
    assert cache.layers[0].cumulative_length == 6


def test_a_model_runs_on_a_made_cache() -> None:
    config = LlamaConfig(
        vocab_size=31, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        whole = model(ids).logits[:, -1]
        past = model(ids[:, :-1]).past_key_values
        cache = CacheKeyValue(past).make_dynamic_cache()
        assert max_diff(whole, model(ids[:, -1:], past_key_values=cache).logits[:, -1])["abs"] < 1e-5


def test_a_model_with_a_sliding_window_runs_on_a_made_cache() -> None:
    sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = MistralConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, sliding_window=4)
    model = MistralForCausalLM(config).eval()
    ids = torch.arange(9).reshape(1, 9)
    with torch.no_grad():
        whole = model(ids).logits[:, -1]
        past = model(ids[:, :-1], past_key_values=cache_utils.DynamicCache(config=config)).past_key_values
        cache = CacheKeyValue(past).make_dynamic_cache()
        assert cache.layers[0].cumulative_length == 8
        assert cache.layers[0].keys.shape[2] == 3
        assert max_diff(whole, model(ids[:, -1:], past_key_values=cache).logits[:, -1])["abs"] < 1e-5


@pytest.mark.parametrize(
    ("pairs", "classes", "kwargs", "text"),
    [
        ([pair()[0]], None, None, "come as pairs or as a flat list, not as 1 items"),
        ([pair(), pair()[0]], None, None, "come as pairs or as a flat list"),
        ([pair()], ["DynamicLayer"] * 2, None, "of 1 layers was given 2 classes"),
        ([pair()], None, [{}, {}], "of 1 layers was given 2 arguments"),
        ([pair()], "NoLayer", None, "no class of layers 'NoLayer'"),
        ([pair()], "LinearAttentionLayer", None, "LinearAttentionLayer does not keep keys and values"),
    ],
)
def test_what_does_not_go_together(pairs: Any, classes: Any, kwargs: Any, text: str) -> None:
    with pytest.raises(UsageError, match=rf"{text}.*\[cache-layers\]"):
        make_dynamic_cache(pairs, classes, kwargs)


def test_a_static_cache_is_filled_up_with_zeros() -> None:
    keys, values = pair()
    cache = make_static_cache([(keys, values)] * 3, max_cache_len=15)
    wide = "#3[T1s4x5x15x7,T1s4x5x15x7,T1s4x5x15x7]"
    assert string_type(cache, with_shape=True) == f"StaticCache(key_cache={wide}, value_cache={wide})"
    layer = cache.layers[0]
    assert torch.equal(layer.keys[:, :, :6], keys)
    assert torch.equal(layer.values[:, :, :6], values)
    assert not layer.keys[:, :, 6:].any()
    assert int(layer.cumulative_length) == 6
    assert cache.get_max_length() == 15


def test_the_size_of_a_static_cache_is_the_longest_by_default() -> None:
    cache = make_static_cache(flat([pair(3), pair(5)]))
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(4, 5, 5, 7)] * 2
    assert [int(layer.cumulative_length) for layer in cache.layers] == [3, 5]


def test_a_static_cache_does_not_share_the_tensors_given() -> None:
    keys, values = pair()
    before = keys.clone()
    cache = make_static_cache([(keys, values)], max_cache_len=9)
    cache.update(*pair(1), 0)
    cache.layers[0].keys.zero_()
    assert torch.equal(keys, before)


def test_sliding_static_layers() -> None:
    cache = make_static_cache([pair()], 9, cls_layers="StaticSlidingWindowLayer")
    assert type(cache.layers[0]) is cache_utils.StaticSlidingWindowLayer
    assert cache.layers[0].cumulative_length_int == 6


def test_a_static_layer_without_tokens() -> None:
    cache = make_static_cache([(None, None)], max_cache_len=4)
    assert not cache.layers[0].is_initialized


def test_too_many_tokens() -> None:
    with pytest.raises(UsageError, match=r"6 tokens do not fit into a static cache for 4\. .*\[static-cache-size\]"):
        make_static_cache([pair()], max_cache_len=4)


def test_static_caches_have_four_dimensions() -> None:
    with pytest.raises(UsageError, match=r"4 dimensions.*\[cache-layers\]"):
        make_static_cache([(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))])


def test_an_encoder_decoder_cache() -> None:
    mine, cross = make_dynamic_cache([pair(2)]), make_dynamic_cache([pair(3)])
    cache = make_encoder_decoder_cache(mine, cross)
    assert type(cache) is cache_utils.EncoderDecoderCache
    assert cache.self_attention_cache is mine
    assert cache.cross_attention_cache is cross
    assert cache.is_updated == {0: True}
    assert make_encoder_decoder_cache(cache_utils.DynamicCache(), cache_utils.DynamicCache()).is_updated == {}


def test_an_encoder_decoder_cache_is_made_of_caches() -> None:
    with pytest.raises(UsageError, match=r"two caches, not of a list\. Give keys and values"):
        make_encoder_decoder_cache(make_dynamic_cache([]), [])


def sources() -> Iterator[tuple[str, Any, list[type] | None]]:
    pairs = [(torch.full((1, 2, 3, 4), 1.0 * i), torch.full((1, 2, 3, 4), i + 0.5)) for i in range(2)]
    cache = make_dynamic_cache(pairs)
    dynamic = [cache_utils.DynamicLayer] * 2
    yield "pairs", pairs, None
    yield "flat", flat(pairs), None
    yield "cache", cache, dynamic
    yield "static", make_static_cache(pairs), [cache_utils.StaticLayer] * 2
    yield "again", CacheKeyValue(cache), dynamic


@pytest.mark.parametrize(("source", "classes"), [row[1:] for row in sources()], ids=[row[0] for row in sources()])
def test_keys_and_values_of_any_cache(source: Any, classes: Any) -> None:
    found = CacheKeyValue(source)
    assert found.n_layers == 2
    assert len(found) == 4
    assert found.cls_layers == classes
    assert found.key_cache is not None
    assert found.value_cache is not None
    assert [float(x[0, 0, 0, 0]) for x in found.key_cache] == [0.0, 1.0]
    assert [float(x[0, 0, 0, 0]) for x in found.aslist()] == [0.0, 0.5, 1.0, 1.5]
    again = found.make_dynamic_cache()
    assert type(again) is cache_utils.DynamicCache
    assert max_diff(found.aslist(), again)["abs"] == 0


def test_keys_and_values_of_nothing() -> None:
    found = CacheKeyValue(None)
    assert (found.key_cache, found.value_cache, found.cls_layers) == (None, None, None)
    assert (found.n_layers, len(found), found.aslist()) == (0, 0, [])
    assert len(found.make_dynamic_cache().layers) == 0


def test_keys_and_values_with_classes_given() -> None:
    found = CacheKeyValue([pair(), pair()], cls_layers=["DynamicLayer", "DynamicSlidingWindowLayer"])
    assert [type(x).__name__ for x in found.make_dynamic_cache().layers] == [
        "DynamicLayer",
        "DynamicSlidingWindowLayer",
    ]


def test_keys_and_values_of_an_object_of_somebody_else() -> None:
    class Old:
        key_cache = (torch.zeros(1),)
        value_cache = (torch.ones(1),)

    assert [float(x) for x in CacheKeyValue(Old()).aslist()] == [0.0, 1.0]


def test_keys_and_values_of_something_else() -> None:
    with pytest.raises(UsageError, match=r"keys and values of a int are not known.*\[cache-layers\]"):
        CacheKeyValue(3)


@pytest.mark.parametrize("call", [make_dynamic_cache, make_static_cache])
def test_transformers_is_missing(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    with pytest.raises(MissingPackageError, match=r"transformers.*pip install.*\[missing-package\]"):
        call([pair()])

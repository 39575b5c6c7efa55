"""Caches as nodes of torch's pytrees: round trips, exports, and registrations that leave no trace."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.fx._pytree as fx_pytree
import torch.utils._pytree as torch_pytree
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, cache_utils
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from onlooker.core.errors import UnsupportedError, UsageError
from onlooker.pytrees.caches import flatten_cache, unflatten_cache
from onlooker.pytrees.context import CacheContext
from onlooker.pytrees.deepcopy import torch_deepcopy
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.registry import (
    register_class_flattening,
    register_flattening_functions,
    unregister_class_flattening,
)
from onlooker_compat.trees.compare import max_diff
from onlooker_compat.trees.make import make_dynamic_cache, make_encoder_decoder_cache, make_static_cache

DYNAMIC = torch.export.Dim.DYNAMIC
Pair = tuple[torch.Tensor, torch.Tensor]


def pair(tokens: int = 5, batch: int = 2) -> Pair:
    return torch.randn(batch, 3, tokens, 4), torch.randn(batch, 3, tokens, 4)


def tables() -> dict[str, Any]:
    """Every table where torch keeps what is registered."""
    return {
        "nodes": dict(torch_pytree.SUPPORTED_NODES),
        "types": dict(torch_pytree.SUPPORTED_SERIALIZED_TYPES),
        "names": dict(torch_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE),
        "constants": set(torch_pytree.CONSTANT_NODES),
        "pending": list(torch_pytree._cxx_pytree_pending_imports),
        "fx": dict(fx_pytree.SUPPORTED_NODES),
        "fx exact": dict(fx_pytree.SUPPORTED_NODES_EXACT_MATCH),
    }


@pytest.fixture(autouse=True)
def _no_trace() -> Iterator[None]:
    before = tables()
    yield
    assert tables() == before


# ------------------------------------------------------------------------------------------- caches to try


def linear(states: int = 2) -> Any:
    layer = cache_utils.LinearAttentionLayer(number_of_states=states)
    layer.update_conv_state(torch.randn(1, 3, 4))
    layer.update_recurrent_state(torch.randn(1, 3, 4))
    return layer


def hybrid() -> Any:
    layer = cache_utils.LinearAttentionAndSlidingWindowAttentionLayer(sliding_window=4)
    layer.update_conv_state(torch.randn(1, 3, 4))
    layer.update(*pair())
    return layer


def updated(layer: Any, times: int = 1) -> Any:
    for _ in range(times):
        layer.update(*pair())
    return layer


def indexed() -> Any:
    layer = updated(cache_utils.DynamicIndexedLayer())
    layer.update_indexer(torch.randn(2, 5, 4))
    return layer


class Own:
    """A layer of somebody else, derived from nothing."""

    def __init__(self) -> None:
        self.keys, self.values = pair()
        self.memory = [torch.randn(2), "text"]


LAYERS: dict[str, Any] = {
    "own": Own,
    "dynamic": lambda: updated(cache_utils.DynamicLayer()),
    "dynamic waiting": cache_utils.DynamicLayer,
    "sliding": lambda: updated(cache_utils.DynamicSlidingWindowLayer(7)),
    "sliding full": lambda: updated(cache_utils.DynamicSlidingWindowLayer(4)),
    "sliding waiting": lambda: cache_utils.DynamicSlidingWindowLayer(4),
    "static": lambda: updated(cache_utils.StaticLayer(9)),
    "static waiting": lambda: cache_utils.StaticLayer(9),
    "static sliding": lambda: updated(cache_utils.StaticSlidingWindowLayer(9, 6)),
    "linear": linear,
    "linear waiting": cache_utils.LinearAttentionLayer,
    "hybrid": hybrid,
    "indexed": indexed,
    "quantized": lambda: updated(cache_utils.Fp8QuantizedLayer(), 2),
    "dummy": cache_utils.DummyLayer,
}
CONFIG = LlamaConfig(num_hidden_layers=2)

CACHES: dict[str, Any] = {
    "dynamic": make_dynamic_cache([pair(), pair()]),
    "empty": cache_utils.DynamicCache(),
    "waiting": cache_utils.DynamicCache(config=CONFIG),
    "mixed": make_dynamic_cache([pair(), pair()], cls_layers=["DynamicLayer", "DynamicSlidingWindowLayer"]),
    "static": make_static_cache([pair(), pair()], max_cache_len=9),
    "static waiting": cache_utils.StaticCache(config=CONFIG, max_cache_len=9),
    "encoder decoder": make_encoder_decoder_cache(make_dynamic_cache([pair()]), make_dynamic_cache([pair()])),
    "encoder decoder empty": make_encoder_decoder_cache(cache_utils.DynamicCache(), cache_utils.DynamicCache()),
    "mtp": cache_utils.MtpCache([pair()]),
    "dflash": cache_utils.DFlashCache([pair()]),
    **{f"layer {name}": cache_utils.Cache(layers=[make(), make()]) for name, make in LAYERS.items()},
}


def attributes(cache: Any) -> dict[str, Any]:
    """All that a cache holds; whether it may append plain layers to plain layers makes no difference."""
    found = dict(vars(cache))
    if isinstance(cache, cache_utils.EncoderDecoderCache):
        return {name: attributes(x) if isinstance(x, cache_utils.Cache) else x for name, x in found.items()}
    found["layers"] = [(type(layer), shown(vars(layer))) for layer in cache.layers]
    if cache.layers and all(type(layer) is cache_utils.DynamicLayer for layer in cache.layers):
        del found["layer_class_to_replicate"]
    return found


def shown(value: Any, name: str = "") -> Any:
    if isinstance(value, torch.Tensor):
        return ("window", value.item()) if name == "_sliding_window_tensor" else id(value)
    if isinstance(value, dict):
        return {key: shown(child, key) for key, child in value.items()}
    return [shown(child) for child in value] if isinstance(value, (list, tuple)) else value


def check_round_trip(cache: Any) -> None:
    leaves, structure = torch_pytree.tree_flatten(cache)
    again = torch_pytree.tree_unflatten(leaves, structure)
    assert type(again) is type(cache)
    assert attributes(again) == attributes(cache)
    leaves_again, structure_again = torch_pytree.tree_flatten(again)
    assert all(a is b for a, b in zip(leaves, leaves_again, strict=True))
    assert structure_again == structure
    assert hash(structure_again) == hash(structure)
    assert torch_pytree.treespec_loads(torch_pytree.treespec_dumps(structure)) == structure
    for keys, leaf in torch_pytree.tree_leaves_with_path({"past": cache}):
        assert torch_pytree.key_get({"past": cache}, keys) is leaf


@pytest.mark.parametrize("name", CACHES)
def test_round_trips(name: str) -> None:
    with register_flattening_functions():
        check_round_trip(CACHES[name])
        check_round_trip(CACHES[name])


@given(st.lists(st.sampled_from(sorted(LAYERS)), max_size=4), st.booleans())
def test_round_trips_of_random_caches(names: list[str], twice: bool) -> None:
    cache = cache_utils.Cache(layers=[LAYERS[name]() for name in names])
    if twice:
        cache = make_encoder_decoder_cache(cache, make_dynamic_cache([pair()] * len(names)))
    with register_flattening_functions():
        check_round_trip(cache)


@pytest.mark.parametrize("name", [name for name in CACHES if name not in ("layer quantized", "layer own")])
def test_a_mapped_cache_has_the_same_structure(name: str) -> None:
    with register_flattening_functions():
        structure = torch_pytree.tree_structure(CACHES[name])
        for function in (id, str, lambda leaf: object()):
            assert torch_pytree.tree_structure(torch_pytree.tree_map(function, CACHES[name])) == structure


class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of torch."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", CACHES)
def test_nothing_is_computed(name: str) -> None:
    with register_flattening_functions(), Count() as count:
        leaves, structure = torch_pytree.tree_flatten(CACHES[name])
        torch_pytree.tree_unflatten(leaves, structure)
    assert count.names == []


CONTEXTS: list[tuple[str, list[str]]] = [
    ("dynamic", ["key_0", "value_0", "key_1", "value_1"]),
    ("empty", []),
    ("static", ["key_0", "value_0", "cumulative_length_0", "key_1", "value_1", "cumulative_length_1"]),
    ("encoder decoder", ["self_attention_cache", "cross_attention_cache"]),
    ("mtp", ["key_0", "value_0"]),
]


@pytest.mark.parametrize(("name", "context"), CONTEXTS)
def test_the_context_of_plain_layers_is_their_names(name: str, context: list[str]) -> None:
    leaves, found = flatten_cache(CACHES[name])
    assert found == context
    assert len(leaves) == len(context)


NAMES: list[tuple[str, tuple[str, ...]]] = [
    ("waiting", ()),
    ("mixed", ("key_0", "value_0", "key_1", "value_1", "cumulative_length_1")),
    ("static waiting", ("cumulative_length_0", "cumulative_length_1")),
    ("layer sliding waiting", ()),
    ("layer linear waiting", ()),
    ("layer dummy", ()),
    (
        "layer linear",
        ("conv_states_0_0", "recurrent_states_0_0", "conv_states_1_0", "recurrent_states_1_0"),
    ),
]


@pytest.mark.parametrize(("name", "names"), NAMES)
def test_the_names_of_the_leaves(name: str, names: tuple[str, ...]) -> None:
    leaves, context = flatten_cache(CACHES[name])
    assert isinstance(context, CacheContext)
    assert context.names == names
    assert len(leaves) == len(names)


def test_two_ways_to_the_same_cache_have_one_structure() -> None:
    theirs = cache_utils.DynamicCache()
    theirs.update(*pair(), 0)
    configured = cache_utils.DynamicCache(config=LlamaConfig(num_hidden_layers=1))
    configured.update(*pair(), 0)
    with register_flattening_functions():
        structures = {torch_pytree.tree_structure(x) for x in (theirs, configured, make_dynamic_cache([pair()]))}
    assert len(structures) == 1


def test_structures_that_differ() -> None:
    def sliding(window: int) -> Any:
        return make_dynamic_cache([pair()], "DynamicSlidingWindowLayer", {"sliding_window": window})

    first = make_encoder_decoder_cache(make_dynamic_cache([pair()]), make_dynamic_cache([pair()]))
    flipped = torch_deepcopy(first)
    flipped.is_updated[0] = False
    caches = [sliding(3), sliding(4), make_dynamic_cache([pair()]), first, flipped]
    with register_flattening_functions():
        structures = [torch_pytree.tree_structure(cache) for cache in caches]
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])


def test_the_window_tensor_is_a_real_one() -> None:
    cache = make_dynamic_cache([(None, None)], "DynamicSlidingWindowLayer", {"sliding_window": 6})
    again = unflatten_cache(*flatten_cache(cache))
    again.update(*pair(3), 0)
    assert again.layers[0].cumulative_length == 3
    assert next(iter(again))[2].item() == 6


def test_paths() -> None:
    with register_flattening_functions():
        leaves = torch_pytree.tree_leaves_with_path({"past": CACHES["mixed"], "both": CACHES["encoder decoder"]})
    assert [torch_pytree.keystr(keys) for keys, _ in leaves[:5]] == [
        "['past']['key_0']",
        "['past']['value_0']",
        "['past']['key_1']",
        "['past']['value_1']",
        "['past']['cumulative_length_1']",
    ]
    assert torch_pytree.keystr(leaves[5][0]) == "['both']['self_attention_cache']['key_0']"


def test_what_json_cannot_hold() -> None:
    cache = torch_deepcopy(CACHES["dynamic"])
    cache.layers[0].config = CONFIG
    with register_flattening_functions():
        leaves, structure = torch_pytree.tree_flatten(cache)
        assert torch_pytree.tree_unflatten(leaves, structure).layers[0].config is CONFIG
        with pytest.raises(UnsupportedError, match=r"holds a .*LlamaConfig, which cannot.*\[context-not-saved\]"):
            torch_pytree.treespec_dumps(structure)


def test_a_written_structure_is_readable() -> None:
    with register_flattening_functions():
        _, (name, context, _) = (
            1,
            json.loads(torch_pytree.treespec_dumps(torch_pytree.tree_structure(CACHES["dynamic"])))[1].values(),
        )
    assert name == "transformers.cache_utils.DynamicCache"
    assert context == ["key_0", "value_0", "key_1", "value_1"]


# ------------------------------------------------------------------------------------------- registrations


def is_open(cache: Any = CACHES["dynamic"]) -> bool:
    return not torch_pytree.tree_structure(cache).is_leaf()


def test_the_block_gives_a_function_that_returns_its_inputs() -> None:
    with register_flattening_functions(patch_transformers=True) as change:
        inputs = {"x": 1}
        assert change(inputs) is inputs


@pytest.mark.parametrize("asked", [False, None, 0, "", "none", "FALSE"])
def test_nothing_is_asked_for(asked: Any) -> None:
    before = tables()
    with register_flattening_functions(patch_transformers=asked):
        assert tables() == before


@pytest.mark.parametrize("asked", [True, 1, "all", "YOBX_PATCH"])
def test_caches_are_asked_for(asked: Any) -> None:
    assert not is_open()
    with register_flattening_functions(patch_transformers=asked):
        assert all(map(is_open, CACHES.values()))
    assert not is_open()


def test_the_body_raises() -> None:
    before = tables()
    with pytest.raises(KeyError), register_flattening_functions():
        raise KeyError
    assert tables() == before


def test_blocks_in_blocks() -> None:
    with register_flattening_functions():
        inside = tables()
        with register_flattening_functions():
            assert tables() == inside
        assert tables() == inside
        assert is_open()
    assert not is_open()


def test_blocks_that_end_in_another_order() -> None:
    first, second = register_flattening_functions(), register_flattening_functions()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_open()
    second.__exit__(None, None, None)
    assert not is_open()


def test_what_others_registered_stays() -> None:
    with contextlib.ExitStack() as stack:
        flatten: Any = lambda cache: ([1], None)  # noqa: E731
        name = "somebody.DynamicCache"
        torch_pytree.register_pytree_node(cache_utils.DynamicCache, flatten, lambda x, _: x, serialized_type_name=name)
        stack.callback(unregister_class_flattening, cache_utils.DynamicCache)
        with register_flattening_functions():
            assert torch_pytree.tree_leaves(CACHES["dynamic"]) == [1]
            assert is_open(CACHES["static"])
        assert torch_pytree.tree_leaves(CACHES["dynamic"]) == [1]
        assert not is_open(CACHES["static"])


def test_what_others_took_out_or_put_in_meanwhile_stays() -> None:
    with register_flattening_functions():
        unregister_class_flattening(cache_utils.DynamicCache)
        assert not is_open()
    with register_flattening_functions():
        unregister_class_flattening(cache_utils.DynamicCache)
        torch_pytree.register_pytree_node(
            cache_utils.DynamicCache, lambda cache: ([1], None), lambda x, _: x, serialized_type_name="somebody"
        )
    assert torch_pytree.tree_leaves(CACHES["dynamic"]) == [1]
    unregister_class_flattening(cache_utils.DynamicCache)


def test_transformers_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "transformers.cache_utils", None)
    before = tables()
    with register_flattening_functions():
        assert tables() == before


def test_outputs_of_transformers() -> None:
    output = CausalLMOutputWithPast(logits=torch.zeros(2), past_key_values=CACHES["dynamic"])
    with register_flattening_functions():
        leaves, structure = torch_pytree.tree_flatten([output, BaseModelOutput(last_hidden_state=torch.ones(1))])
        assert len(leaves) == 6
        again = torch_pytree.tree_unflatten(leaves, structure)[0]
        assert type(again) is CausalLMOutputWithPast
        assert again.past_key_values.layers[1].values is CACHES["dynamic"].layers[1].values


def test_an_output_that_somebody_took_out() -> None:
    node = torch_pytree.SUPPORTED_NODES[BaseModelOutput]
    unregister_class_flattening(BaseModelOutput)
    output = BaseModelOutput(last_hidden_state=torch.ones(1))
    try:
        with register_flattening_functions():
            leaves, structure = torch_pytree.tree_flatten(output)
            assert leaves == [output.last_hidden_state]
            assert type(torch_pytree.tree_unflatten(leaves, structure)) is BaseModelOutput
            assert torch_pytree.treespec_loads(torch_pytree.treespec_dumps(structure)) == structure
        assert BaseModelOutput not in torch_pytree.SUPPORTED_NODES
    finally:
        torch_pytree.register_pytree_node(
            BaseModelOutput,
            node.flatten_fn,
            node.unflatten_fn,
            serialized_type_name="transformers.modeling_outputs.BaseModelOutput",
            flatten_with_keys_fn=node.flatten_with_keys_fn,
        )


class Two:
    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


def flatten_two(two: Two) -> tuple[list[Any], Any]:
    return [two.a, two.b], None


def flatten_two_with_keys(two: Two) -> tuple[list[tuple[Any, Any]], Any]:
    return [(torch_pytree.GetAttrKey("a"), two.a), (torch_pytree.GetAttrKey("b"), two.b)], None


def unflatten_two(values: Any, context: Any) -> Two:
    return Two(*values)


def lost(values: Any, context: Any) -> Two:
    return Two(None, None)


def register_two(unflatten: Any = unflatten_two, **kwargs: Any) -> bool:
    return register_class_flattening(Two, flatten_two, unflatten, flatten_two_with_keys, **kwargs)


def test_any_class_can_be_registered() -> None:
    assert register_two(f_check=lambda: Two(1, [2]))
    try:
        assert not register_two()
        assert torch_pytree.tree_map(lambda x: x + 1, Two(1, [2])).b == [3]
        (keys, leaf), *_ = torch_pytree.tree_leaves_with_path(Two(1, 2))
        assert (torch_pytree.keystr(keys), leaf) == (".a", 1)
    finally:
        unregister_class_flattening(Two)
    assert torch_pytree.tree_structure(Two(1, 2)).is_leaf()


def test_a_check_that_fails_registers_nothing() -> None:
    with pytest.raises(UsageError, match=r"A Two is not the same.*\[flattening-check\]"):
        register_two(lost, f_check=lambda: Two(1, 2))
    assert Two not in torch_pytree.SUPPORTED_NODES
    with pytest.raises(ZeroDivisionError):
        register_two(f_check=lambda: 1 / 0)
    assert Two not in torch_pytree.SUPPORTED_NODES


def test_a_class_that_is_not_registered() -> None:
    with pytest.raises(UsageError, match=r"test_registry\.Two is not registered .*\[class-not-registered\]"):
        unregister_class_flattening(Two)


def test_two_classes_of_one_name() -> None:
    one = type("Same", (), {})
    other = type("Same", (), {})
    functions: Any = (lambda x: ([], None), lambda x, _: None, lambda x: ([], None))
    register_class_flattening(one, *functions)
    inside = tables()
    register_class_flattening(other, *functions)
    unregister_class_flattening(other)
    assert tables() == inside
    unregister_class_flattening(one)


@pytest.mark.slow
def test_the_pytrees_in_cpp() -> None:
    code = """
import torch.utils._pytree as python
from onlooker_compat.trees.make import make_dynamic_cache
from onlooker.pytrees.registry import register_flattening_functions
import torch, transformers.cache_utils
cache = make_dynamic_cache([torch.zeros(1, 2, 3, 4)] * 2)
before = list(python._cxx_pytree_pending_imports)
with register_flattening_functions():
    assert len(python._cxx_pytree_pending_imports) > len(before)
assert python._cxx_pytree_pending_imports == before
with register_flattening_functions():
    import torch.utils._cxx_pytree as cpp
    assert len(cpp.tree_leaves(cache)) == 2
assert len(cpp.tree_leaves(cache)) == 1
with register_flattening_functions():
    assert len(cpp.tree_leaves(cache)) == 2
assert len(cpp.tree_leaves(cache)) == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------------------------- exports


class Step(torch.nn.Module):
    """Appends to every layer of a cache, and gives the cache back."""

    def forward(self, x: torch.Tensor, past: Any) -> Any:
        cache = past.self_attention_cache if isinstance(past, cache_utils.EncoderDecoderCache) else past
        total = x.sum()
        for index in range(len(cache.layers)):
            keys, values = cache.update(x, x + 1, index)
            total = total + keys.sum() + values.sum()
        return total, past


TOKENS = {2: DYNAMIC}
SIZES = {"keys": TOKENS, "values": TOKENS}


def sliding(tokens: int) -> Any:
    return make_dynamic_cache([pair(tokens)], "DynamicSlidingWindowLayer", {"sliding_window": 12})


def many(tokens: int) -> Any:
    return make_dynamic_cache([pair(tokens) for _ in range(12)])


def two_caches(tokens: int) -> Any:
    return make_encoder_decoder_cache(make_dynamic_cache([pair(tokens)]), make_dynamic_cache([pair(tokens)]))


EXPORTS: dict[str, tuple[Any, Any, Any]] = {
    "many layers": (many(5), many(7), [TOKENS] * 24),
    "sliding": (sliding(5), sliding(7), [TOKENS, TOKENS, DYNAMIC]),
    "static": (make_static_cache([pair(5)], 9), make_static_cache([pair(3)], 12), [TOKENS, TOKENS, {}]),
    "encoder decoder": (two_caches(5), two_caches(7), [[TOKENS, TOKENS], [TOKENS, TOKENS]]),
}


@pytest.mark.parametrize("by_name", [False, True], ids=["positional", "by name"])
@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.one_in(2)
def test_exports(name: str, by_name: bool) -> None:
    seen, other, shapes = EXPORTS[name]
    x = torch.randn(2, 3, 1, 4)

    def arguments(cache: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        copy = torch_deepcopy(cache)
        return ((), {"x": x, "past": copy}) if by_name else ((x, copy), {})

    args, kwargs = arguments(seen)
    with register_flattening_functions():
        program = torch.export.export(Step(), args, kwargs, dynamic_shapes={"x": {}, "past": shapes}, strict=False)
        assert not program.constants
        args, kwargs = arguments(other)
        expected = Step()(*args, **kwargs)
        args, kwargs = arguments(other)
        got = program.module()(*args, **kwargs)
        assert string_type(got, with_shape=True) == string_type(expected, with_shape=True)
        assert max_diff(expected, got)["abs"] < 1e-4
        inputs = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    assert inputs[1].startswith("past_self_attention_cache_key_0" if name == "encoder decoder" else "past_key_0")


@pytest.mark.parametrize("name", ["sliding", "static"])
def test_a_program_is_saved_and_loaded(name: str) -> None:
    seen, other, shapes = EXPORTS[name]
    x, file = torch.randn(2, 3, 1, 4), io.BytesIO()
    with register_flattening_functions():
        program = torch.export.export(Step(), (x, torch_deepcopy(seen)), dynamic_shapes=({}, shapes), strict=False)
        program.example_inputs = None  # they would be pickled, and torch warns about each class it does not know
        torch.export.save(program, file)
    file.seek(0)
    with register_flattening_functions():
        loaded = torch.export.load(file)
        expected = Step()(x, torch_deepcopy(other))
        got = loaded.module()(x, torch_deepcopy(other))
        assert max_diff(expected, got)["abs"] < 1e-4
        assert type(got[1].layers[0]) is type(other.layers[0])


@pytest.mark.parametrize("config", [CONFIG, MistralConfig(num_hidden_layers=2, sliding_window=6)])
def test_a_cache_that_waits_is_exported(config: Any) -> None:
    x = torch.randn(2, 3, 4, 4)
    with register_flattening_functions():
        program = torch.export.export(
            Step(),
            (x, cache_utils.DynamicCache(config=config)),
            dynamic_shapes=({2: DYNAMIC}, []),
            strict=False,
        )
        got = program.module()(x[:, :, :3], cache_utils.DynamicCache(config=config))
        expected = Step()(x[:, :, :3], cache_utils.DynamicCache(config=config))
        assert max_diff(expected, got)["abs"] < 1e-4
        again = Step()(x, got[1])[1]
        assert max_diff(Step()(x, expected[1])[1], again)["abs"] < 1e-4


def test_a_language_model_is_exported() -> None:
    sizes = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()

    def inputs(batch: int, tokens: int, past: int) -> dict[str, Any]:
        cache = make_dynamic_cache([torch.randn(batch, 1, past, 8) for _ in range(4)])
        return {
            "input_ids": torch.randint(0, 31, (batch, tokens)),
            "attention_mask": torch.ones(batch, past + tokens, dtype=torch.int64),
            "past_key_values": cache,
        }

    batch, tokens, past = (torch.export.Dim(name) for name in ("batch", "seq", "past"))
    total = torch.export.Dim("total", min=4)  # torch asks for it: both sizes that it is the sum of begin at 2
    shapes = {
        "input_ids": {0: batch, 1: tokens},
        "attention_mask": {0: batch, 1: total},
        "past_key_values": [{0: batch, 2: past}] * 4,
    }
    with register_flattening_functions(), torch.no_grad():
        program = torch.export.export(model, (), inputs(2, 3, 5), dynamic_shapes=shapes, strict=False)
        for size in ((3, 4, 7), (1, 1, 6)):
            given_inputs = inputs(*size)
            expected = model(**torch_deepcopy(given_inputs))
            got = program.module()(**torch_deepcopy(given_inputs))
            assert type(got) is type(expected)
            assert max_diff(expected, got)["abs"] < 1e-5

"""Any value opened down to its leaves, and closed again: the same value, and no tensor made."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as torch_pytree
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, MistralConfig, cache_utils
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast
from transformers.tokenization_utils_base import BatchEncoding

from onlooker import make_dynamic_cache
from onlooker.core.errors import ObservationError
from onlooker.core.path import Name
from onlooker.core.spec import ConstantSpec, OpaqueSpec, TensorSpec
from onlooker.core.structure import Structure
from onlooker.pytrees.open import close_tree, map_tensors, open_arguments, open_tree, spec_of
from onlooker_compat.trees.make import make_encoder_decoder_cache, make_static_cache

Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Plain:
    first: Any
    second: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: Any
    second: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    first: Any
    second: Any = None


class Thing:
    """A plain object: opened because it holds a tensor."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first = first
        self.second = second
        self.weight = torch.ones(1)


class CountTensors(TorchDispatchMode):
    """Counts what is computed or made inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def same(left: Any, right: Any) -> bool:
    """True for equal containers that hold the very same tensors."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "__dict__") and not isinstance(left, torch.Tensor):
        return same(vars(left), vars(right))
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    return left is right or (not isinstance(left, torch.Tensor) and left == right)


# any container

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, "text", ""]),
    st.builds(lambda n: torch.zeros(n), st.integers(0, 3)),
)
KEYS = st.one_of(st.sampled_from(["a", "b", "a.b", ""]), st.integers(0, 3))


def containers(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(children, children)
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.dictionaries(KEYS, children, max_size=3),
        st.dictionaries(KEYS, children, max_size=3).map(OrderedDict),
        *(pairs.map(lambda pair, cls=cls: cls(*pair)) for cls in (Pair, Plain, Frozen, Slotted, Thing)),
        st.builds(lambda t, rest: BaseModelOutput(t, hidden_states=rest), st.just(torch.zeros(2)), pairs),
    )


VALUES = st.recursive(LEAVES, containers, max_leaves=8)


@given(VALUES)
def test_what_is_closed_is_what_was_opened(value: Any) -> None:
    tree = open_tree(value)
    with CountTensors() as counted:
        again = close_tree(tree.structure, tree.leaves)
    assert same(value, again)
    assert counted.calls == []


@given(VALUES)
def test_opening_twice_gives_the_same_structure(value: Any) -> None:
    tree = open_tree(value)
    again = open_tree(close_tree(tree.structure, tree.leaves))
    assert again.structure == tree.structure
    assert hash(again.structure) == hash(tree.structure)
    assert all(a is b for a, b in zip(tree.leaves, again.leaves, strict=True))
    assert len(tree.leaves) == tree.structure.n_leaves == len(list(tree.structure.paths()))


@given(VALUES)
def test_every_path_can_be_followed_to_its_leaf(value: Any) -> None:
    tree = open_arguments({"x": value})
    for path, leaf in tree.items():
        assert path.root == "x"
        assert path.follow({"x": value}) is leaf
        found = eval(path.code(), {}, {"x": value})
        assert found is leaf


@given(VALUES)
def test_a_leaf_is_a_tensor_a_constant_or_opaque(value: Any) -> None:
    for leaf in open_tree(value).leaves:
        spec = spec_of(leaf)
        assert isinstance(spec, TensorSpec) is isinstance(leaf, torch.Tensor)
        assert isinstance(spec, ConstantSpec) is (leaf is None or isinstance(leaf, (bool, int, float, str)))


@given(VALUES)
def test_tensors_are_mapped_and_nothing_else_changes(value: Any) -> None:
    mapped = map_tensors(lambda tensor: tensor + 1, value)
    for old, new in zip(open_tree(value).leaves, open_tree(mapped).leaves, strict=True):
        if isinstance(old, torch.Tensor):
            assert torch.equal(old + 1, new)
        else:
            assert old is new


def test_a_tensor_at_two_places_stays_one_tensor() -> None:
    tensor = torch.zeros(2)
    mapped = map_tensors(torch.clone, {"a": tensor, "b": [tensor]})
    assert mapped["a"] is mapped["b"][0] is not tensor


CODES = [
    ([torch.zeros(1), (1, 2)], ["x[0]", "x[1][0]", "x[1][1]"]),
    ({"a": 1, 2: {"b.c": 3}}, ["x['a']", "x[2]['b.c']"]),
    (Pair(1, [2]), ["x.first", "x.second[0]"]),
    (torch.Size([1, 2]), ["x[0]", "x[1]"]),
    (slice(1, 2), ["x.start", "x.stop", "x.step"]),
    (Frozen(1, Slotted(2, 3)), ["x.first", "x.second.first", "x.second.second"]),
    (Thing(1, {"a": 2}), ["x.first", "x.second['a']", "x.weight"]),
    (BaseModelOutput(torch.zeros(1), hidden_states=(torch.zeros(1),)), ["x.last_hidden_state", "x.hidden_states[0]"]),
    ([], []),
    (None, ["x"]),
]


@pytest.mark.parametrize("value", [torch.Size([1, 2]), slice(1, 2), slice(None, 3, 2)])
def test_shapes_and_slices_are_built_again(value: Any) -> None:
    tree = open_tree({"x": value})
    built = close_tree(tree.structure, tree.leaves)["x"]
    assert built == value
    assert type(built) is type(value)


@pytest.mark.parametrize(("value", "codes"), CODES)
def test_paths_print_as_python(value: Any, codes: list[str]) -> None:
    assert [path.code() for path in open_arguments({"x": value}).structure.paths()] == codes


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        torch.nn.ReLU(),
        torch.float32,
        torch.device("cpu"),
        Thing,
        b"bytes",
        {1, 2},
        range(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_opened_is_one_leaf(value: Any) -> None:
    tree = open_tree([value])
    assert tree.leaves == (value,)
    assert isinstance(spec_of(value), OpaqueSpec)
    assert close_tree(tree.structure, tree.leaves)[0] is value


class Flagged(Plain):
    """A dataclass with an attribute that is no field."""

    def __init__(self, first: Any) -> None:
        super().__init__(first)
        self.extra = "kept"


@pytest.mark.parametrize(
    "value",
    [
        Plain(torch.zeros(1)),
        Flagged(torch.zeros(1)),
        BatchEncoding({"input_ids": torch.zeros(1), "n": 2}),
        defaultdict(list, {"a": torch.zeros(1)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_others_keep_all_they_have(value: Any) -> None:
    tree = open_tree(value)
    again = close_tree(tree.structure, tree.leaves)
    assert same(value, again)
    assert again is not value
    if isinstance(value, defaultdict):
        assert again.default_factory is list


def test_another_flag_is_another_structure() -> None:
    one, two = Thing(torch.zeros(1), len), Thing(torch.zeros(1), max)
    assert open_tree(one).structure != open_tree(two).structure
    assert open_tree(one).structure == open_tree(Thing(torch.zeros(5), len)).structure


def test_a_structure_without_its_class_cannot_be_closed() -> None:
    structure = Structure("lib.Thing", (Name("x"),), (Structure(),))
    with pytest.raises(ObservationError) as caught:
        close_tree(structure, (1,))
    assert str(caught.value) == (
        "A lib.Thing cannot be built: this structure was read from a file. "
        "Watch the model again in this process. [structure-without-class]"
    )


# hostile objects


class Hostile:
    """Raises wherever it can."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("do not touch")

    __eq__ = __repr__ = __str__ = __len__ = __bool__ = __iter__ = __getitem__ = __getattr__ = _raise
    __hash__ = _raise  # type: ignore[assignment]


@pytest.mark.parametrize("attributes", [{}, {"x": 1}, {"x": torch.zeros(1)}], ids=["empty", "int", "tensor"])
def test_an_object_that_raises_does_not_break_opening(attributes: dict[str, Any]) -> None:
    value = Hostile(**attributes)
    tree = open_tree({"a": [value, torch.zeros(2)]})
    again = close_tree(tree.structure, tree.leaves)
    assert vars(again["a"][0]) == attributes
    assert isinstance(again["a"][1], torch.Tensor)
    hash(tree.structure)


def test_an_object_that_raises_does_not_break_what_holds_it() -> None:
    value = Thing(torch.zeros(1), Hostile())
    tree = open_tree(value)
    assert close_tree(tree.structure, tree.leaves).second is value.second
    assert tree.structure == open_tree(value).structure


def recursive_list() -> Any:
    value: list[Any] = [torch.zeros(1)]
    value.append(value)
    return value


def recursive_dict() -> Any:
    value: dict[str, Any] = {"a": torch.zeros(1)}
    value["self"] = {"again": value}
    return value


def recursive_object() -> Any:
    value = Thing(1, 2)
    value.first = value
    return value


def two_objects() -> Any:
    value = Thing(1, 2)
    value.first = Thing(value, [value])
    return value


@pytest.mark.parametrize("make", [recursive_list, recursive_dict, recursive_object, two_objects])
def test_what_holds_itself_is_opened_once(make: Callable[[], Any]) -> None:
    value = make()
    tree = open_tree(value)
    again = close_tree(tree.structure, tree.leaves)
    assert any(leaf is value for leaf in tree.leaves) or again.first is again
    assert len(tree.leaves) <= 5
    assert any(isinstance(leaf, torch.Tensor) for leaf in tree.leaves)
    assert type(close_tree(tree.structure, tree.leaves)) is type(value)


def test_what_is_very_deep_is_opened_as_far_as_it_goes() -> None:
    value: Any = torch.zeros(1)
    for _ in range(5000):
        value = [value]
    tree = open_tree(value)
    assert len(tree.leaves) == 1
    assert type(close_tree(tree.structure, tree.leaves)) is list


# classes that somebody registered


class Registered:
    def __init__(self, tensors: list[Any], flag: str) -> None:
        self.tensors = tensors
        self.flag = flag


@pytest.fixture
def registered() -> Iterator[None]:
    from onlooker.pytrees.registry import register_class_flattening, unregister_class_flattening

    keys = torch_pytree.SequenceKey
    register_class_flattening(
        Registered,
        lambda value: (list(value.tensors), value.flag),
        lambda children, flag: Registered(list(children), flag),
        lambda value: ([(keys(i), child) for i, child in enumerate(value.tensors)], value.flag),
    )
    yield
    unregister_class_flattening(Registered)


@pytest.mark.usefixtures("registered")
def test_a_registered_class_is_opened_as_its_owner_says() -> None:
    value = Registered([torch.zeros(1), torch.ones(2)], "flag")
    tree = open_arguments({"x": value})
    assert [path.code() for path in tree.structure.paths()] == ["x[0]", "x[1]"]
    again = close_tree(tree.structure, tree.leaves)["x"]
    assert (type(again), again.flag) == (Registered, "flag")
    assert all(a is b for a, b in zip(again.tensors, value.tensors, strict=True))
    other = Registered([torch.zeros(1), torch.ones(2)], "other")
    assert open_arguments({"x": other}).structure != tree.structure


# caches of transformers


def pair(tokens: int = 3, heads: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(1, heads, tokens, 4), torch.rand(1, heads, tokens, 4)


def lazy() -> Any:
    return cache_utils.DynamicCache(config=LlamaConfig(num_hidden_layers=2))


def sliding(tokens: int = 3) -> Any:
    cache = cache_utils.DynamicCache(config=MistralConfig(num_hidden_layers=2, sliding_window=4))
    for layer in range(2):
        cache.update(*pair(tokens), layer)
    return cache


def linear() -> Any:
    cache = cache_utils.DynamicCache()
    cache.layers = [cache_utils.LinearAttentionLayer(), cache_utils.LinearAttentionAndFullAttentionLayer()]
    for layer in cache.layers:
        layer.update_conv_state(torch.rand(1, 6, 4))
        layer.update_recurrent_state(torch.rand(1, 2, 4, 4))
    cache.layers[1].update(*pair())
    return cache


def half_linear() -> Any:
    cache = cache_utils.DynamicCache()
    cache.layers = [cache_utils.LinearAttentionLayer()]
    cache.layers[0].update_conv_state(torch.rand(1, 6, 4))
    return cache


def encoder_decoder(crossed: bool = True) -> Any:
    cross = make_dynamic_cache([pair(5)]) if crossed else cache_utils.DynamicCache()
    return make_encoder_decoder_cache(make_dynamic_cache([pair()]), cross)


PLAIN_CODES = [f"x.layers[{i}].{name}" for i in range(2) for name in ("keys", "values")]
CACHES = {
    "plain": (lambda: make_dynamic_cache([pair(), pair()]), PLAIN_CODES),
    "empty": (cache_utils.DynamicCache, []),
    "lazy": (lazy, []),
    "one layer waits": (lambda: make_dynamic_cache([pair(), (None, None)]), PLAIN_CODES[:2]),
    "sliding": (
        sliding,
        [f"x.layers[{i}].{name}" for i in range(2) for name in ("keys", "values", "cumulative_length")],
    ),
    "static": (
        lambda: make_static_cache([pair()], 8),
        [f"x.layers[0].{name}" for name in ("keys", "values", "max_cache_len", "cumulative_length")],
    ),
    "encoder-decoder": (
        encoder_decoder,
        [
            f"x.{cache}.layers[0].{name}"
            for cache in ("self_attention_cache", "cross_attention_cache")
            for name in ("keys", "values")
        ],
    ),
    "encoder-decoder, not yet crossed": (
        lambda: encoder_decoder(False),
        ["x.self_attention_cache.layers[0].keys", "x.self_attention_cache.layers[0].values"],
    ),
    "linear": (
        linear,
        [f"x.layers[0].{name}[0]" for name in ("conv_states", "recurrent_states")]
        + [f"x.layers[1].{name}" for name in ("keys", "values", "conv_states[0]", "recurrent_states[0]")],
    ),
    "linear, half": (half_linear, ["x.layers[0].conv_states[0]"]),
}


@pytest.mark.parametrize(("make", "codes"), CACHES.values(), ids=CACHES)
def test_the_leaves_of_a_cache_are_where_python_finds_them(make: Callable[[], Any], codes: list[str]) -> None:
    cache = make()
    tree = open_arguments({"x": cache})
    assert sorted(path.code() for path in tree.structure.paths()) == sorted(codes)
    assert all(eval(path.code(), {}, {"x": cache}) is leaf for path, leaf in tree.items())


def flags(obj: Any) -> Any:
    """All that a cache holds, tensors by identity, layers and caches opened."""
    if isinstance(obj, (cache_utils.Cache, cache_utils.CacheLayerMixin, cache_utils.LinearAttentionCacheLayerMixin)):
        return type(obj), {name: flags(value) for name, value in vars(obj).items()}
    if isinstance(obj, dict):
        return {key: flags(value) for key, value in obj.items()}
    if isinstance(obj, list):
        return [flags(value) for value in obj]
    return id(obj) if isinstance(obj, torch.Tensor) else obj


@pytest.mark.parametrize("make", [make for make, _ in CACHES.values()], ids=CACHES)
def test_a_cache_is_closed_as_it_was_and_no_tensor_is_made(make: Callable[[], Any]) -> None:
    cache = make()
    tree = open_tree(cache)
    with CountTensors() as counted:
        again = close_tree(tree.structure, tree.leaves)
    assert counted.calls == []
    assert flags(again) == flags(cache)
    assert again is not cache
    assert [a is not b for a, b in zip(getattr(again, "layers", []), getattr(cache, "layers", []), strict=True)] == [
        True
    ] * len(getattr(cache, "layers", []))


@pytest.mark.parametrize("make", [make for make, _ in CACHES.values()], ids=CACHES)
def test_two_caches_of_one_kind_have_one_structure(make: Callable[[], Any]) -> None:
    assert open_tree(make()).structure == open_tree(make()).structure


def cell(cache: Any, layer: int = 0) -> None:
    cache.update(*pair(1), layer)


@pytest.mark.parametrize(
    "make",
    [lambda: make_dynamic_cache([pair()]), cache_utils.DynamicCache, lazy, sliding],
    ids=["plain", "empty", "lazy", "sliding"],
)
def test_a_closed_cache_works_and_shares_nothing_that_changes(make: Callable[[], Any]) -> None:
    cache = make()
    before, tree = flags(cache), open_tree(cache)
    again = close_tree(tree.structure, tree.leaves)
    cell(again)
    assert flags(cache) == before
    assert again.get_seq_length() == cache.get_seq_length() + 1
    assert flags(close_tree(tree.structure, tree.leaves)) == before


def test_sliding_caches_of_two_lengths_have_one_structure() -> None:
    short, long = open_tree(sliding(2)), open_tree(sliding(9))
    assert short.structure == long.structure
    assert [leaf for leaf in short.leaves if isinstance(leaf, int)] == [2, 2]
    assert [leaf for leaf in long.leaves if isinstance(leaf, int)] == [9, 9]


def test_flags_are_kept_as_they_were_when_the_cache_was_opened() -> None:
    cache = encoder_decoder(False)
    cache.is_updated = {0: False}
    tree = open_tree(cache)
    cache.is_updated[0] = True
    again = close_tree(tree.structure, tree.leaves)
    assert again.is_updated == {0: False}
    again.is_updated[0] = True
    assert close_tree(tree.structure, tree.leaves).is_updated == {0: False}
    assert open_tree(cache).structure != tree.structure


def test_flags_of_linear_layers_are_kept_as_they_were() -> None:
    cache = cache_utils.DynamicCache()
    cache.layers = [cache_utils.LinearAttentionLayer()]
    tree = open_tree(cache)
    cache.layers[0].update_conv_state(torch.rand(1, 6, 4))
    again = close_tree(tree.structure, tree.leaves)
    assert again.layers[0].has_previous_state == {0: False}
    assert again.layers[0].conv_states == {0: None}


def test_a_cache_can_be_closed_with_other_tensors() -> None:
    tree = open_tree(sliding(3))
    longer = [torch.zeros(5, 2, 3, 4) if isinstance(leaf, torch.Tensor) else 7 for leaf in tree.leaves]
    again = close_tree(tree.structure, longer)
    assert [layer.cumulative_length for layer in again.layers] == [7, 7]
    assert [tuple(layer.keys.shape) for layer in again.layers] == [(5, 2, 3, 4)] * 2


def test_the_output_of_a_model_is_closed_as_its_class() -> None:
    output = CausalLMOutputWithPast(logits=torch.zeros(1, 2), past_key_values=make_dynamic_cache([pair()]))
    tree = open_tree(output)
    again = close_tree(tree.structure, tree.leaves)
    assert type(again) is CausalLMOutputWithPast
    assert list(again) == ["logits", "past_key_values"]
    assert again.logits is output.logits
    assert again.loss is None


def test_opening_registers_nothing() -> None:
    before = dict(torch_pytree.SUPPORTED_NODES)
    for make, _ in CACHES.values():
        open_tree(make())
    assert before == torch_pytree.SUPPORTED_NODES

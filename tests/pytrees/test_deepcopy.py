"""torch_deepcopy: the same values and classes, no tensor shared."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchEncoding, LlamaConfig, cache_utils
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from onlooker.pytrees.deepcopy import torch_deepcopy
from onlooker.pytrees.descriptions.describe import string_type
from onlooker_compat.trees.compare import max_diff
from onlooker_compat.trees.make import make_dynamic_cache, make_encoder_decoder_cache, make_static_cache

Named = collections.namedtuple("Named", ["a", "b"])


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Mine(dict[str, Any]):
    """A dict with an attribute."""


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 4)


def tensors_of(value: Any, seen: set[int] | None = None) -> list[torch.Tensor]:
    """Every tensor that can be reached from ``value``, by whatever attribute or item."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, (type, str)):
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [value]
    inside: list[Any] = []
    if isinstance(value, dict):
        inside.extend(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside.extend(value)
    inside.extend(getattr(value, "__dict__", {}).values())
    inside.extend(getattr(value, name, None) for name in getattr(type(value), "__slots__", ()))
    return [tensor for child in inside for tensor in tensors_of(child, seen)]


def linear() -> Any:
    layer = cache_utils.LinearAttentionLayer(number_of_states=2)
    layer.update_conv_state(torch.randn(1, 3, 4))
    layer.update_recurrent_state(torch.randn(1, 3, 4), 1)
    return layer


def defaults() -> Any:
    made: Any = collections.defaultdict(list)
    made["a"].append(torch.ones(1))
    return made


def mine() -> Mine:
    made = Mine(a=torch.ones(1))
    made.extra = torch.ones(2)  # type: ignore[attr-defined]
    return made


VALUES: list[Any] = [
    torch.randn(2, 3),
    torch.tensor(3),
    [torch.ones(2), [torch.zeros(1)]],
    (torch.ones(2), None, "a", 3, 2.5, True),
    {"a": torch.ones(2), "b": {"c": torch.zeros(0)}},
    collections.OrderedDict(a=torch.ones(2)),
    defaults(),
    mine(),
    {torch.ones(2)},
    Named(torch.ones(2), 3),
    torch.Size([2, 3]),
    Point(torch.ones(2), [torch.ones(1)]),
    Slotted(torch.ones(2)),
    torch.max(torch.ones(2, 2), dim=0),
    make_dynamic_cache([pair(), pair()]),
    make_dynamic_cache([pair(), pair()], cls_layers=["DynamicLayer", "DynamicSlidingWindowLayer"]),
    make_static_cache([pair()], max_cache_len=7),
    make_encoder_decoder_cache(make_dynamic_cache([pair()]), make_dynamic_cache([pair()])),
    cache_utils.DynamicCache(),
    cache_utils.DynamicCache(config=LlamaConfig(num_hidden_layers=2)),
    cache_utils.StaticCache(config=LlamaConfig(num_hidden_layers=2), max_cache_len=4),
    cache_utils.Cache(layers=[linear(), cache_utils.DummyLayer(), cache_utils.DynamicSlidingWindowLayer(3)]),
    linear(),
    BaseModelOutput(last_hidden_state=torch.ones(2)),
    CausalLMOutputWithPast(logits=torch.ones(2), past_key_values=make_dynamic_cache([pair()])),
    BatchEncoding({"a": torch.ones(2)}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda x: type(x).__name__)
def test_copies_are_equal_and_share_no_tensor(value: Any) -> None:
    copy = torch_deepcopy(value)
    assert type(copy) is type(value)
    assert string_type(copy, with_shape=True, with_min_max=True) == string_type(
        value, with_shape=True, with_min_max=True
    )
    if not isinstance(value, set):
        assert max_diff(value, copy)["abs"] == 0
    before, after = tensors_of(value), tensors_of(copy)
    assert len(before) == len(after)
    places = {tensor.untyped_storage().data_ptr() for tensor in before if tensor.numel()}
    assert not places & {tensor.untyped_storage().data_ptr() for tensor in after if tensor.numel()}


@pytest.mark.parametrize("value", [value for value in VALUES if hasattr(value, "layers")])
def test_a_copy_of_a_cache_has_all_its_attributes(value: Any) -> None:
    copy = torch_deepcopy(value)
    assert set(vars(copy)) == set(vars(value))
    for old, new in zip(value.layers, copy.layers, strict=True):
        assert type(old) is type(new)
        assert list(vars(old)) == list(vars(new))
        assert getattr(old, "is_initialized", None) == getattr(new, "is_initialized", None)


def test_a_copied_cache_goes_its_own_way() -> None:
    cache = make_static_cache([pair()], max_cache_len=7)
    copy = torch_deepcopy(cache)
    copy.update(*(x[:, :, :1] for x in pair()), 0)
    assert int(cache.layers[0].cumulative_length) == 3
    assert int(copy.layers[0].cumulative_length) == 4


@pytest.mark.parametrize("value", [None, 3, 2.5, "a", b"a", True, torch.float32, torch.device("cpu"), int, len])
def test_constants_are_kept(value: Any) -> None:
    assert torch_deepcopy(value) is value


def test_tensors_are_detached() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    for copy in torch_deepcopy([x, y]):
        assert not copy.requires_grad
        assert copy.grad_fn is None


def test_strides_dtypes_and_places_are_kept() -> None:
    x = torch.zeros(2, 3, dtype=torch.bfloat16).t()
    copy = torch_deepcopy(x)
    assert (copy.stride(), copy.dtype, copy.device) == (x.stride(), x.dtype, x.device)
    assert torch_deepcopy(torch.zeros(2, device="meta")).device.type == "meta"


def test_arrays() -> None:
    array = numpy.array([1.0, 2.0])
    copy = torch_deepcopy({"a": array})["a"]
    array[0] = 5
    assert copy.tolist() == [1.0, 2.0]


def test_one_tensor_at_two_places() -> None:
    x = torch.ones(2)
    shared = [x]
    copy = torch_deepcopy((x, {"a": x, "b": shared}, Point(x, shared), make_dynamic_cache([(x, x)])))
    first = copy[0]
    assert first is not x
    assert copy[1]["a"] is first
    assert copy[1]["b"] is copy[2].y
    assert copy[1]["b"][0] is first
    assert copy[2].x is first
    assert copy[3].layers[0].keys is first
    assert copy[3].layers[0].values is first


def test_one_tensor_inside_and_outside_of_an_unknown_object() -> None:
    x = torch.ones(2)
    copy = torch_deepcopy([x, Unknown(x)])
    assert copy[1].x is copy[0]


class Unknown:
    def __init__(self, x: Any) -> None:
        self.x = x


def test_unknown_objects_are_left_to_the_standard_library() -> None:
    value = Unknown([torch.ones(2)])
    copy = torch_deepcopy(value)
    assert type(copy) is Unknown
    assert copy.x[0] is not value.x[0]


def test_what_cannot_be_copied_is_kept() -> None:
    value = Unknown(threading.Lock())
    assert torch_deepcopy([value])[0] is value


def test_loops() -> None:
    inside: list[Any] = [torch.ones(1)]
    point = Point(inside)
    inside.append(point)
    copy = torch_deepcopy(inside)
    assert copy[1].x is copy
    assert copy is not inside


leaves = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=3).map(lambda shape: torch.ones(shape)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


@given(trees)
def test_any_tree(tree: Any) -> None:
    copy = torch_deepcopy(tree)
    assert string_type(copy, with_shape=True, with_min_max=True) == string_type(
        tree, with_shape=True, with_min_max=True
    )
    assert not {id(x) for x in tensors_of(tree)} & {id(x) for x in tensors_of(copy)}

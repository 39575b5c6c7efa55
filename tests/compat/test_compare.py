"""max_diff, flatten_object and string_diff: what is a difference, and what is none."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import LlamaConfig, cache_utils
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from onlooker.core.errors import UnsupportedError, UsageError
from onlooker.pytrees.deepcopy import torch_deepcopy
from onlooker_compat.trees.compare import flatten_object, max_diff, string_diff
from onlooker_compat.trees.make import (
    CacheKeyValue,
    make_dynamic_cache,
    make_encoder_decoder_cache,
    make_static_cache,
)

NAN, INF = math.nan, math.inf
ZERO = {"abs": 0, "rel": 0, "sum": 0, "n": 0, "dnan": 0}
INFINITE = {"abs": INF, "rel": INF, "sum": INF, "n": INF, "dnan": INF}


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


class Holder:
    """A plain object with a tensor inside."""

    def __init__(self, x: Any) -> None:
        self.x = x


def tensor(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def pair(tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(1, 2, tokens, 4), torch.randn(1, 2, tokens, 4)


def test_one_tensor() -> None:
    assert max_diff(tensor(1, 2, 3), tensor(1, 2, 7)) == {
        "abs": 4.0,
        "rel": pytest.approx(4 / 3.001),
        "sum": 4.0,
        "n": 3.0,
        "dnan": 0.0,
        "argm": (2,),
        "dev": 0,
    }


def test_one_array() -> None:
    found = max_diff(numpy.array([1.0, 2.0]), numpy.array([1.0, 3.0]))
    assert (found["abs"], found["n"], found["argm"]) == (1.0, 2.0, (1,))
    assert "dev" not in found


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, *FLOAT8)
INTS = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS], ids=str)
def test_every_element_type(dtype: torch.dtype) -> None:
    left, right = tensor(1, 2, 4).to(dtype), tensor(1, 2, 6).to(dtype)
    assert max_diff(left, right)["abs"] == 2.0
    assert max_diff(left, left.clone())["abs"] == 0.0


DIFFERENCES: list[tuple[Any, Any, float]] = [
    (torch.tensor([True, False]), torch.tensor([True, True]), 1.0),
    (torch.tensor([2**62 + 1]), torch.tensor([2**62]), 1.0),
    (torch.tensor([2**62], dtype=torch.uint64), torch.tensor([2**62 + 1], dtype=torch.uint64), 1.0),
    (torch.tensor([3 + 4j]), torch.tensor([0j]), 5.0),
    (torch.tensor([2 + 0j]), tensor(1), 1.0),
    (tensor(1), torch.tensor([2]), 1.0),
    (torch.tensor(5), 5, 0.0),
    (5, torch.tensor(7), 2.0),
    (5, torch.tensor([5, 6]), INF),
    (3, 3.5, 0.5),
    (True, True, 0.0),
    (True, False, 1.0),
    (2**70, 2**70, 0.0),
    (numpy.float32(2), 2.0, 0.0),
    (numpy.array([1.0, 2.0]), tensor(1, 3), 1.0),
    (tensor(1, 2), [1.0, 3.0], 1.0),
    ([[1, 2]], tensor(1, 2), INF),
    (numpy.array([[1, 2]]), [[1, 2]], 0.0),
    (numpy.array([1.0, 2.0]), (1.0,), INF),
    (numpy.array(["a"]), numpy.array(["a"]), 0.0),
    (numpy.array(["a"]), numpy.array(["b"]), INF),
    (torch.eye(2).to_sparse(), torch.eye(2), 0.0),
    ("text", "text", 0.0),
    ("text", "other", INF),
    ("text", tensor(1), INF),
    (slice(1), slice(1), 0.0),
    (tensor(1), tensor(1, 2), INF),
    (torch.zeros(2, 2), torch.zeros(4), INF),
    (torch.zeros(0, 3), torch.zeros(0, 3), 0.0),
    (torch.zeros(0, 3), torch.zeros(3, 0), INF),
    (tensor(INF, -INF), tensor(INF, -INF), 0.0),
    (tensor(INF), tensor(-INF), INF),
    (tensor(INF), tensor(1), INF),
    (tensor(1), tensor(INF), INF),
]


@pytest.mark.parametrize(("expected", "got", "difference"), DIFFERENCES)
def test_leaves(expected: Any, got: Any, difference: float) -> None:
    found = max_diff(expected, got)
    assert found["abs"] == difference
    assert not any(math.isnan(found[key]) for key in ("abs", "rel", "sum", "n", "dnan"))


def test_arrays_of_types_that_numpy_does_not_know() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert max_diff(numpy.array([1, 2], bfloat16), numpy.array([1, 3], bfloat16))["abs"] == 1.0


def test_none() -> None:
    assert max_diff(None, None) == ZERO
    assert max_diff([tensor(1), None], [tensor(1), None])["n"] == 1.0


@pytest.mark.parametrize(
    ("expected", "got"),
    [(None, tensor(1)), (tensor(1), None), ([None], [3]), ([None], tensor(1)), (tensor(1), [None])],
)
def test_none_against_a_value(expected: Any, got: Any) -> None:
    with pytest.raises(UsageError, match=r"is None against .* skip_none=True leaves .* \[none-against-value\]"):
        max_diff(expected, got)
    assert max_diff(expected, got, skip_none=True) == ZERO


def test_none_that_was_dropped() -> None:
    expected, got = [tensor(1), None, tensor(2)], [tensor(1), tensor(5)]
    assert max_diff(expected, got, skip_none=True)["abs"] == 3.0
    assert max_diff(expected, got) == INFINITE


def test_the_error_says_where() -> None:
    with pytest.raises(UsageError, match=r"At \['a'\]\[1\], got is None against T1s1"):
        max_diff({"a": [1, tensor(1)]}, {"a": [1, None]})


def test_nan() -> None:
    same = max_diff(tensor(1, NAN, 3), tensor(1, NAN, 3))
    assert (same["abs"], same["rel"], same["sum"], same["dnan"]) == (0, 0, 0, 0)
    one = max_diff([tensor(1, NAN, NAN)], [tensor(NAN, 2, NAN)])
    assert (one["abs"], one["dnan"]) == (INF, 2)


def test_fake_tensors_have_no_values() -> None:
    with FakeTensorMode():
        fake = torch.zeros(2)
    for empty in (fake, torch.zeros(2, device="meta")):
        with pytest.raises(UnsupportedError, match=r"no values to compare.*\[tensor-without-values\]"):
            max_diff(torch.zeros(2), empty)


A, B = tensor(1, 2), tensor(3)
CACHE = make_dynamic_cache([pair(), pair()])
K0, V0, K1, V1 = CacheKeyValue(CACHE).aslist()
STATIC = make_static_cache([pair(), pair()], max_cache_len=5)
BOTH = make_encoder_decoder_cache(make_dynamic_cache([pair()]), make_dynamic_cache([pair(5)]))
OUTPUT = CausalLMOutputWithPast(logits=torch.randn(1, 5), past_key_values=CACHE)
SLIDING = make_dynamic_cache([(K0, V0), (K1, V1)], cls_layers="DynamicSlidingWindowLayer")

SAME: list[tuple[Any, Any]] = [
    ([], []),
    ([A, B], [A, B]),
    ([A, B], (A, B)),
    ([A, [B, (A,)]], (A, (B, [A]))),
    ([A], A),
    (A, [A]),
    ({"x": A, "y": B}, {"y": B, "x": A}),
    ({"x": A, "y": B}, [A, B]),
    ([A, B], {"x": A, "y": B}),
    (Point(A, B), Point(A, B)),
    (Point(A), Point(A)),
    (Holder(A), Holder(A)),
    (BaseModelOutput(last_hidden_state=A), BaseModelOutput(last_hidden_state=A)),
    (BaseModelOutput(last_hidden_state=A), A),
    (BaseModelOutput(last_hidden_state=A), [A]),
    (BaseModelOutput(last_hidden_state=A), {"last_hidden_state": A}),
    (CACHE, CACHE),
    (CACHE, torch_deepcopy(CACHE)),
    (CACHE, [K0, V0, K1, V1]),
    (CACHE, ([K0, K1], [V0, V1])),
    (([K0, K1], [V0, V1]), CACHE),
    (CacheKeyValue(CACHE), CacheKeyValue(CACHE)),
    (CacheKeyValue(CACHE), ([K0, K1], [V0, V1])),
    (CACHE.layers[0], CACHE.layers[0]),
    (SLIDING, SLIDING),
    (SLIDING, CACHE),
    (STATIC, STATIC),
    (STATIC, torch_deepcopy(STATIC)),
    (BOTH, torch_deepcopy(BOTH)),
    (BOTH, [BOTH.self_attention_cache, BOTH.cross_attention_cache]),
    (BOTH, flatten_object(BOTH)),
    (OUTPUT, OUTPUT),
    (OUTPUT, [OUTPUT.logits, *flatten_object(CACHE)]),
    (OUTPUT, (OUTPUT.logits, CACHE)),
    (cache_utils.DynamicCache(), cache_utils.DynamicCache()),
    (cache_utils.DynamicCache(config=LlamaConfig(num_hidden_layers=2)), cache_utils.DynamicCache()),
]


@pytest.mark.parametrize(("expected", "got"), SAME, ids=lambda x: type(x).__name__)
def test_containers_that_agree(expected: Any, got: Any) -> None:
    lines: list[str] = []
    assert max_diff(expected, got, debug_info=lines)["abs"] == 0, lines
    assert lines == []


OTHER: list[tuple[Any, Any, str]] = [
    ([A, B], [A], "the top: 1 values where 2 are expected"),
    ([A, B], A, "the top: T1s2 where #2[T1s2,T1s1] is expected"),
    ({"x": A}, {"y": A}, "the top: keys ['y'] where ['x'] are expected"),
    ({"x": A, "y": B}, {"x": A}, "the top: keys ['x'] where ['x', 'y'] are expected"),
    ({"x": A}, A, "the top: T1s2 where dict(x:T1s2) is expected"),
    ({"x": [A, B]}, {"x": [A, A]}, "['x'][1]: T1s2 where T1s1 is expected"),
    (Point(A), BaseModelOutput(last_hidden_state=A), ""),
    (CACHE, [K0, V0], ""),
    (CACHE, make_dynamic_cache([pair(4), pair(4)]), ""),
    (CACHE, cache_utils.DynamicCache(), ""),
    (CACHE, STATIC, ""),
    (OUTPUT, BaseModelOutput(last_hidden_state=OUTPUT.logits), ""),
    (
        BaseModelOutput(last_hidden_state=A, hidden_states=(A,)),
        BaseModelOutput(last_hidden_state=A, attentions=(A,)),
        "",
    ),
]


@pytest.mark.parametrize(("expected", "got", "line"), OTHER, ids=lambda x: type(x).__name__)
def test_containers_that_do_not_match(expected: Any, got: Any, line: str) -> None:
    lines: list[str] = []
    assert max_diff(expected, got, debug_info=lines, level=2) == INFINITE
    assert len(lines) == 1
    assert lines[0].startswith(f"  {line}")


def test_counters_are_compared() -> None:
    other = torch_deepcopy(SLIDING)
    other.layers[1].cumulative_length += 2
    assert max_diff(SLIDING, other)["abs"] == 2.0
    late = torch_deepcopy(STATIC)
    late.layers[0].cumulative_length += 1
    assert max_diff(STATIC, late)["abs"] == 1.0


def test_sums_over_leaves() -> None:
    found = max_diff([tensor(1, 2), (tensor(0), {"e": tensor(5, 5)})], [tensor(1, 4), (tensor(1), {"e": tensor(5, 6)})])
    assert found == {"abs": 2.0, "rel": pytest.approx(1000.0), "sum": 4.0, "n": 5.0, "dnan": 0.0, "dev": 0}


def test_flatten() -> None:
    nested = [A, [B, {"a": A, "cache": CACHE}]]
    flat = flatten_object(nested, drop_keys=True)
    assert max_diff(nested, flat) == INFINITE
    assert max_diff(nested, flat, flatten=True)["abs"] == 0


def test_a_lone_tensor_in_a_list() -> None:
    assert max_diff(A, [A], allow_unique_tensor_with_list_of_one_element=False) == INFINITE


def test_begin_and_end() -> None:
    expected, got = [tensor(0), {"a": tensor(0)}, tensor(0)], [tensor(1), {"a": tensor(2)}, tensor(4)]
    assert [max_diff(expected, got, begin=i)["abs"] for i in range(4)] == [4, 4, 4, 0]
    assert [max_diff(expected, got, end=i)["abs"] for i in range(4)] == [0, 1, 2, 4]
    assert max_diff(expected, got, begin=1, end=2)["sum"] == 2
    assert max_diff(expected, got, begin=1, end=2, _index=1)["sum"] == 1


COUNTS = {">0.0": 8, ">0.0001": 8, ">0.001": 6, ">0.01": 5, ">0.1": 5, ">1.0": 3, ">10.0": 2, ">100.0": 1}


def spread() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    y = x.clone()
    added = {
        (0, 1): 0.1,
        (0, 2): 0.01,
        (0, 3): 0.001,
        (1, 1): 0.0001,
        (1, 2): 1,
        (2, 2): 10,
        (1, 3): 100,
        (2, 1): 1000,
    }
    for place, amount in added.items():
        y[place] += amount
    return x, y


def test_counts_above_bounds() -> None:
    x, y = spread()
    assert max_diff(x, y, hist=True)["rep"] == COUNTS
    assert max_diff(x.numpy(), y.numpy(), hist=True)["rep"] == COUNTS
    nested = max_diff([x, (x, {"e": x})], [y, (y, {"e": y})], hist=True)["rep"]
    assert nested == {bound: 3 * count for bound, count in COUNTS.items()}
    assert max_diff(x, y, hist=[0, 5.0])["rep"] == {">0": 8, ">5.0": 3}
    assert max_diff(torch.zeros(0), torch.zeros(0), hist=[0.1])["rep"] == {">0.1": 0}
    assert "rep" not in max_diff(x, y, hist=False)


def test_string_diff() -> None:
    x, y = spread()
    text = string_diff(max_diff(x, y, hist=True))
    assert text.endswith("/#8>0.0-#8>0.0001-#6>0.001-#5>0.01-#5>0.1-#3>1.0-#2>10.0-#1>100.0,amax=2,1, dev=0")
    assert text.startswith("abs=1000.0, rel=")
    assert string_diff(max_diff([x, x], [x, x])) == "abs=0.0, rel=0.0, dev=0"
    assert string_diff(max_diff(tensor(NAN), tensor(1))) == "abs=inf, rel=inf, n=1.0, dnan=1.0,amax=0, dev=0"
    assert string_diff(max_diff(None, None)) == "abs=0.0, rel=0.0"


def test_string_diff_as_json() -> None:
    diff = max_diff(tensor(1, 2), tensor(1, 4), hist=[1.0])
    row = json.loads(string_diff(diff, js=True, ratio=True, name="x"))
    assert row == {
        **{key: value for key, value in diff.items() if key not in ("rep", "argm")},
        "argm": [1],
        ">1.0": 1,
        "%>1.0": 0.5,
        "mean": 1.0,
        "name": "x",
    }


FLAT: list[tuple[Any, Any]] = [
    (None, None),
    (3, 3),
    ([1, (2, [3])], [1, 2, 3]),
    ((1, [None, "a"]), (1, None, "a")),
    ({"a": 1, "b": [2]}, ["a", 1, "b", 2]),
    ([], []),
]


@pytest.mark.parametrize(("value", "flat"), FLAT)
def test_flatten_object(value: Any, flat: Any) -> None:
    assert flatten_object(value) == flat


def test_flatten_object_with_tensors() -> None:
    assert flatten_object(A) is A
    assert flatten_object(CACHE) == (K0, V0, K1, V1)
    assert flatten_object({"c": CACHE}, drop_keys=True) == [K0, V0, K1, V1]
    assert flatten_object(OUTPUT) == (OUTPUT.logits, K0, V0, K1, V1)
    assert [type(x) for x in flatten_object(SLIDING)] == [torch.Tensor, torch.Tensor, int] * 2
    assert len(flatten_object(BOTH)) == 4


tensors = st.lists(st.floats(-1e6, 1e6, width=32), max_size=4).map(lambda row: torch.tensor(row, dtype=torch.float32))
trees = st.recursive(
    tensors,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=8,
)


@given(trees)
def test_a_value_is_equal_to_its_copy(tree: Any) -> None:
    found = max_diff(tree, torch_deepcopy(tree), hist=True)
    assert (found["abs"], found["rel"], found["sum"], found["dnan"]) == (0, 0, 0, 0)
    assert found["n"] == sum(x.numel() for x in _tensors(tree))


@given(trees, st.floats(0.5, 100), st.data())
def test_one_changed_value_is_found(tree: Any, amount: float, data: st.DataObject) -> None:
    copy = torch_deepcopy(tree)
    changeable = [x for x in _tensors(copy) if x.numel()]
    if not changeable:
        return
    chosen = data.draw(st.sampled_from(changeable))
    before = chosen[0].item()
    chosen[0] += amount
    there, back = max_diff(tree, copy), max_diff(copy, tree)
    assert there["abs"] == back["abs"] == there["sum"] == abs(chosen[0].item() - before)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(flatten_object([tree], drop_keys=True)) if x is not None]

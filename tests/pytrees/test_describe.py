"""string_type: the whole format, and the promise never to raise."""

from __future__ import annotations

import collections
import dataclasses
import subprocess
import sys
from typing import Any, NoReturn

import numpy
import pytest
import torch
import torch.utils._pytree as torch_pytree
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import BatchEncoding, LlamaConfig, cache_utils
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from onlooker.pytrees.descriptions.describe import string_type
from onlooker_compat.trees.make import (
    CacheKeyValue,
    make_dynamic_cache,
    make_encoder_decoder_cache,
    make_static_cache,
)

Dim = torch.export.Dim
BATCH = Dim("batch")
NAN = float("nan")


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@dataclasses.dataclass
class Nothing:
    pass


Named = collections.namedtuple("Named", ["a", "b"])


def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(shape), torch.zeros(shape)


def filled(layer: Any, *shape: int) -> Any:
    layer.update(*pair(*shape))
    return layer


def linear(**kwargs: int) -> Any:
    layer = cache_utils.LinearAttentionLayer(**kwargs)
    layer.update_conv_state(torch.zeros(1, 3, 4))
    return layer


PLAIN: list[tuple[Any, str]] = [
    (None, "None"),
    (True, "bool"),
    (3, "int"),
    (3.5, "float"),
    (1j, "complex"),
    ("text", "str"),
    (b"bytes", "bytes"),
    (slice(1, 5), "slice"),
    ((), "()"),
    ([], "#0[]"),
    ({}, "{}"),
    (set(), "{}"),
    ((None,), "(None,)"),
    ((4, 5.0), "(int,float)"),
    ([None] * 2, "#2[None,None]"),
    ([None] * 25, "#25[None,...]"),
    ((4,) * 100, "#100(int,...)"),
    ({1, 2}, "{int,int}"),
    (frozenset({"a", 1}), "{int,str}"),
    (set(range(20)), "{...}"),
    ({"r": 5.6, "c": (1,)}, "dict(r:float,c:(int,))"),
    (collections.OrderedDict(a=1), "dict(a:int)"),
    ({0: 1, 2: None}, "{0:int,2:None}"),
    ({0: torch.zeros(1)}, "{0:T1r1}"),
    (Named(1, None), "(int,None)"),
    (torch.Size([2, 3]), "(int,int)"),
    (torch.zeros(2, 3), "T1r2"),
    (torch.tensor(1), "T7r0"),
    (torch.nn.Parameter(torch.zeros(2)), "T1r1"),
    (numpy.zeros((2, 3), numpy.float32), "A1r2"),
    (numpy.array([1]), "A7r1"),
    (numpy.array(["a"]), "A8r1"),
    (numpy.int8(3), "A3r0"),
    (Point(1), "Point(x:int)"),
    (Point(1, [2]), "Point(x:int,y:#1[int])"),
    (Nothing(), "Nothing()"),
    (Point, "type(...)"),
    (len, "builtin_function_or_method(...)"),
    (torch.device("cpu"), "device(cpu)"),
    (torch.float16, "dtype(torch.float16)"),
    (torch.nn.Linear(2, 2), "Linear(...)"),
    (object(), "object(...)"),
    (torch_pytree.MappingKey("a"), "MappingKey(key='a')"),
]

DIMENSIONS: list[tuple[Any, str]] = [
    (Dim.DYNAMIC, "DYNAMIC"),
    (Dim.AUTO, "AUTO"),
    (Dim.STATIC, "STATIC"),
    ([Dim.DYNAMIC], "#1[DYNAMIC]"),
    (Dim.DYNAMIC(min=2, max=5), "DimHint(DYNAMIC, min=2, max=5)"),
    (BATCH, "Dim(batch)"),
    (2 * BATCH, "DerivedDim"),
    ({0: BATCH, 1: "seq"}, "{0:Dim(batch),1:DYN(seq)}"),
    ({0: Dim.AUTO, 1: None}, "{0:AUTO,1:None}"),
    (
        {"ids": {0: BATCH, 1: "seq"}, "past": [[{0: BATCH, 2: "past"}], [{}]]},
        "dict(ids:{0:Dim(batch),1:DYN(seq)},past:#2[#1[{0:Dim(batch),2:DYN(past)}],#1[{}]])",
    ),
]

CODES = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.uint16: 4,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.uint32: 12,
    torch.uint64: 13,
    torch.complex64: 14,
    torch.complex128: 15,
    torch.bfloat16: 16,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
}

VALUES: list[tuple[Any, str]] = [
    (None, "None"),
    (True, "bool=True"),
    (4, "int=4"),
    (4.5, "float=4.5"),
    ("text", "str"),
    ([4] * 100, "#100[int=4,...][4,4:4.0]"),
    ((4.5,) * 100, "#100(float=4.5,...)[4.5,4.5:A[4.5]]"),
    ([True] * 100, "#100[bool=True,...][True,True:1.0]"),
    (["a"] * 100, "#100[str,...]"),
    (set(range(15)), "{...}#15[0,14:A7.0]"),
    (set("abcdefghijkl"), "{...}#12"),
    (torch.tensor([4.0, 5.0]), "T1s2[4.0,5.0:A4.5]"),
    (torch.tensor([3, 5]), "T7s2[3,5:A4.0]"),
    (torch.tensor([True, False]), "T9s2[False,True:A0.5]"),
    (torch.tensor([1, 3], dtype=torch.uint64), "T13s2[1,3:A2.0]"),
    (torch.tensor([1, 3], dtype=torch.uint16), "T4s2[1,3:A2.0]"),
    (torch.tensor([1.0, 3.0]).to(torch.float8_e5m2), "T19s2[1.0,3.0:A2.0]"),
    (torch.tensor([3 + 4j, 0]), "T14s2[0.0,5.0:A2.5]"),
    (torch.tensor([1.0, NAN, 3.0]), "T1s3[1.0,3.0:A2.0N1nans]"),
    (torch.tensor([NAN, NAN]), "T1s2[N2nans]"),
    (torch.tensor(5.0), "T1s=5.0"),
    (torch.zeros(0, 3), "T1s0x3[empty]"),
    (torch.zeros(2, requires_grad=True), "T1s2[0.0,0.0:A0.0]"),
    (torch.zeros(2, device="meta"), "T1s2"),
    (numpy.array([4, 5], numpy.float32), "A1s2[4.0,5.0:A4.5]"),
    (numpy.array([1.0, NAN]), "A11s2[1.0,1.0:A1.0N1nans]"),
    (numpy.array([NAN]), "A11s1[N1nans]"),
    (numpy.array(5.0), "A11s=5.0"),
    (numpy.zeros((0, 3)), "A11s0x3[empty]"),
    (numpy.array(["a"]), "A8s1"),
]


@pytest.mark.parametrize(("value", "text"), PLAIN + DIMENSIONS, ids=lambda x: x if type(x) is str else "")
def test_types(value: Any, text: str) -> None:
    assert string_type(value) == text


@pytest.mark.parametrize(("dtype", "code"), CODES.items(), ids=str)
def test_element_types_are_numbered_as_in_onnx(dtype: torch.dtype, code: int) -> None:
    assert string_type(torch.empty(2, 6, dtype=dtype), with_shape=True) == f"T{code}s2x6"


@pytest.mark.parametrize(("value", "text"), VALUES, ids=lambda x: x if type(x) is str else "")
def test_values(value: Any, text: str) -> None:
    assert string_type(value, with_shape=True, with_min_max=True) == text


def test_shapes_of_containers() -> None:
    x = torch.zeros(2, 6)
    assert string_type((x, x[:1]), with_shape=True) == "(T1s2x6,T1s1x6)"
    assert string_type({"x": [x]}, with_shape=True) == "dict(x:#1[T1s2x6])"
    assert string_type([x] * 30, with_shape=True) == "#30[T1s2x6,...]"
    assert string_type([x] * 3, limit=3) == "#3[T1r2,...]"


def test_devices() -> None:
    assert string_type(torch.zeros(2), with_device=True) == "CT1r1"
    assert string_type(torch.zeros(2, device="meta"), with_shape=True, with_device=True) == "GT1s2"


def test_fake_tensors() -> None:
    with FakeTensorMode():
        fake = torch.zeros(2, 3, dtype=torch.int64)
    assert string_type([fake], with_shape=True, with_min_max=True) == "#1[F7s2x3]"


def test_symbolic_sizes() -> None:
    seen: list[str] = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(string_type((x, x.shape[0]), with_shape=True))
            return x + x.shape[0]

    torch.export.export(Model(), (torch.zeros(4, 3),), dynamic_shapes=({0: Dim("rows")},), strict=False)
    assert len(seen) == 1
    assert seen[0].endswith("x3,SymInt)")


TWO = [pair(1, 4, 10, 32), pair(1, 4, 10, 32)]
K = "T1s1x4x10x32"
DYNAMIC_TEXT = f"DynamicCache(key_cache=#2[{K},{K}], value_cache=#2[{K},{K}])"


class OldCache:
    """A class of somebody else that keeps its tensors as caches once did."""

    def __init__(self) -> None:
        self.key_cache = [torch.zeros(1, 2)]
        self.value_cache = [torch.zeros(1, 2)]


CACHES: list[tuple[Any, str]] = [
    (make_dynamic_cache(TWO), DYNAMIC_TEXT),
    (cache_utils.DynamicCache(), "DynamicCache(key_cache=#0[], value_cache=#0[])"),
    (
        cache_utils.DynamicCache(config=LlamaConfig(num_hidden_layers=2)),
        "DynamicCache(key_cache=#2[None,None], value_cache=#2[None,None])",
    ),
    (
        make_static_cache([pair(2, 1, 5, 96)], max_cache_len=96),
        "StaticCache(key_cache=#1[T1s2x1x96x96], value_cache=#1[T1s2x1x96x96])",
    ),
    (
        make_encoder_decoder_cache(make_dynamic_cache(TWO), cache_utils.DynamicCache()),
        f"EncoderDecoderCache(self_attention_cache={DYNAMIC_TEXT}, "
        "cross_attention_cache=DynamicCache(key_cache=#0[], value_cache=#0[]))",
    ),
    (
        make_dynamic_cache(TWO, cls_layers=["DynamicLayer", "DynamicSlidingWindowLayer"]),
        f"DynamicCache(DynamicLayer({K}, {K}), DynamicSlidingWindowLayer({K}, {K}))",
    ),
    (
        cache_utils.Cache(layers=[linear(), filled(cache_utils.DynamicLayer(), 1, 2, 3, 4)]),
        "Cache(LinearAttentionLayer(conv_states={0:T1s1x3x4}, recurrent_states={0:None}), "
        "DynamicLayer(T1s1x2x3x4, T1s1x2x3x4))",
    ),
    (make_dynamic_cache(TWO).layers[0], f"DynamicLayer(keys={K}, values={K})"),
    (cache_utils.DynamicSlidingWindowLayer(4), "DynamicSlidingWindowLayer(keys=None, values=None)"),
    (CacheKeyValue(TWO[:1]), f"CacheKeyValue(key_cache=#1[{K}], value_cache=#1[{K}])"),
    (OldCache(), "OldCache(key_cache=#1[T1s1x2], value_cache=#1[T1s1x2])"),
    (BaseModelOutput(last_hidden_state=torch.zeros(4, 4, 4)), "BaseModelOutput(last_hidden_state:T1s4x4x4)"),
    (
        CausalLMOutputWithPast(logits=torch.zeros(1, 2), past_key_values=make_dynamic_cache(TWO)),
        f"CausalLMOutputWithPast(logits:T1s1x2,past_key_values:{DYNAMIC_TEXT})",
    ),
    (BatchEncoding({"a": torch.zeros(2)}), "BatchEncoding(data=dict(a:T1s2))"),
]


@pytest.mark.parametrize(("value", "text"), CACHES, ids=lambda x: "" if type(x) is str else type(x).__name__)
def test_caches_and_outputs(value: Any, text: str) -> None:
    assert string_type(value, with_shape=True) == text


def test_the_inputs_of_a_language_model() -> None:
    inputs = {
        "input_ids": torch.zeros(1, 10, dtype=torch.int64),
        "attention_mask": torch.ones(1, 10, dtype=torch.int64),
        "past_key_values": make_dynamic_cache(TWO),
    }
    text = f"dict(input_ids:T7s1x10,attention_mask:T7s1x10,past_key_values:{DYNAMIC_TEXT})"
    assert string_type(inputs, with_shape=True) == text


def test_configurations() -> None:
    config = LlamaConfig(hidden_size=64)
    assert string_type(config).startswith("LlamaConfig(**{")
    assert "'hidden_size':64" in string_type(config)
    assert string_type(config, ignore=True) == "LlamaConfig(...)"


def test_values_of_onnx_runtime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    value = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.array([[1.0, 3.0]], numpy.float32))
    assert string_type(value) == "OV1r2"
    assert string_type([value], with_shape=True) == "#1[OV1s1x2]"
    assert string_type(value, with_shape=True, with_device=True) == "COV1s1x2"
    assert string_type(value, with_shape=True, with_min_max=True) == "OV(A1s1x2[1.0,3.0:A2.0])"


def test_registered_classes_show_their_children() -> None:
    class Pair:
        def __init__(self, a: Any) -> None:
            self.a = a

    torch_pytree.register_pytree_node(
        Pair, lambda p: ([p.a, 1], None), lambda x, _: Pair(*x), serialized_type_name="test_describe.Pair"
    )
    try:
        assert string_type(Pair(torch.zeros(2))) == "Pair[serialized](#2[T1r1,int])"
    finally:
        torch_pytree._deregister_pytree_node(Pair)


class Hostile:
    """Raises at whatever is asked of it."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError(name)

    def __len__(self) -> NoReturn:
        raise RuntimeError

    def __str__(self) -> NoReturn:
        raise RuntimeError

    __repr__ = __str__


class HostileList(list[Any]):
    def __len__(self) -> NoReturn:
        raise RuntimeError

    def __iter__(self) -> NoReturn:
        raise RuntimeError


class HostileMeta(type):
    @property
    def __name__(cls) -> NoReturn:  # type: ignore[override]
        raise RuntimeError


class Nameless(metaclass=HostileMeta):
    pass


class HostileCache(cache_utils.DynamicCache):  # type: ignore[misc]
    def __init__(self) -> None:
        pass


def loop() -> list[Any]:
    inside: list[Any] = [1]
    inside.append({"again": inside})
    return inside


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Hostile(), "Hostile(...)"),
        (HostileList([1]), "HostileList(...)"),
        (Nameless(), "Nameless(...)"),
        (HostileCache(), "HostileCache(...)"),
        ({Hostile(): 1}, "dict(Hostile(...):int)"),
        ([Hostile(), 1], "#2[Hostile(...),int]"),
        ((Nameless(), None), "(Nameless(...),None)"),
        (loop(), "#2[int,dict(again:...)]"),
    ],
    ids=lambda x: x if type(x) is str else "",
)
def test_objects_that_fight_back(value: Any, text: str) -> None:
    assert string_type(value) == text
    assert string_type(value, with_shape=True, with_min_max=True, with_device=True) == text.replace("int", "int=1")


def test_deep_values_end_in_dots() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    assert string_type(value).startswith("#1[#1[")
    assert "..." in string_type(value)


ODD = [Hostile(), HostileList(), Nameless(), HostileCache(), torch.ones(3).to_sparse()]
KNOWN: list[Any] = [value for value, _ in [*PLAIN, *DIMENSIONS, *VALUES, *CACHES]] + ODD

atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.integers(0, len(KNOWN) - 1).map(lambda position: KNOWN[position]),
)
keys = st.one_of(st.text(max_size=3), st.integers(0, 5))
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.builds(Point, inner, inner),
    ),
    max_leaves=12,
)


@given(
    values,
    st.fixed_dictionaries(
        {name: st.booleans() for name in ("with_shape", "with_min_max", "with_device", "ignore")}
        | {"limit": st.integers(0, 5)}
    ),
)
def test_it_never_raises(value: Any, options: dict[str, Any]) -> None:
    text = string_type(value, **options)
    assert isinstance(text, str)
    assert text


def test_transformers_is_not_imported_for_it() -> None:
    code = (
        "import sys, torch; from onlooker.pytrees.descriptions.describe import string_type;"
        "assert string_type([torch.zeros(2), object()]) == '#2[T1r1,object(...)]';"
        "assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""``dynamic_shapes`` from inputs alone, and the checks of such shapes against inputs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onlooker
from onlooker import (
    OnlookerError,
    UsageError,
    all_dynamic_shape_from_inputs,
    all_dynamic_shapes_from_inputs,
    make_dynamic_cache,
    make_encoder_decoder_cache,
    make_static_cache,
    register_flattening_functions,
    string_type,
)
from onlooker.compat import (
    CacheKeyValue,
    CoupleInputsDynamicShapes,
    ModelInputs,
    convert_dynamic_axes_into_dynamic_shapes,
    flatten_unflatten_for_dynamic_shapes,
    guess_dynamic_shapes_from_inputs,
    make_dynamic_shapes_kv_cache,
    to_any,
    use_dyn_not_str,
)

AUTO, DYNAMIC = torch.export.Dim.AUTO, torch.export.Dim.DYNAMIC
X, Y = torch.rand(5, 6), torch.rand(1, 6)


@dataclasses.dataclass
class Box:
    left: Any
    right: Any


Pair = namedtuple("Pair", ["a", "b"])


def cache(layers: int = 1, batch: int = 2, tokens: int = 3, **kwargs: Any) -> Any:
    pairs = [(torch.rand(batch, 4, tokens, 7), torch.rand(batch, 4, tokens, 7)) for _ in range(layers)]
    return make_dynamic_cache(pairs, **kwargs)


def named(numbers: range | list[int], rank: int) -> list[dict[int, str]]:
    return [{i: f"d_{number}_{i}" for i in range(rank)} for number in numbers]


# --- all dynamic ---


def test_both_names_are_public() -> None:
    assert {"all_dynamic_shape_from_inputs", "all_dynamic_shapes_from_inputs"} <= set(onlooker._HOMES)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (X, {0: "d_0_0", 1: "d_0_1"}),
        ((X, Y), ({0: "d_0_0", 1: "d_0_1"}, {0: "d_1_0", 1: "d_1_1"})),
        ([X, [Y]], [{0: "d_0_0", 1: "d_0_1"}, [{0: "d_1_0", 1: "d_1_1"}]]),
        ({"x": X, "flag": True, "none": None, "n": 3, "s": "a"},
         {"x": {0: "d_0_0", 1: "d_0_1"}, "flag": None, "none": None, "n": None, "s": None}),
        (OrderedDict(x=torch.zeros(2)), {"x": {0: "d_0_0"}}),
        (Box(torch.zeros(2), [torch.zeros(3)]), [{0: "d_0_0"}, [{0: "d_1_0"}]]),
        (Pair(torch.zeros(2), torch.zeros(())), Pair({0: "d_0_0"}, {})),
        ((), ()),
        ({}, {}),
        (None, None),
    ],
)  # fmt: skip
def test_the_shapes_have_the_form_of_the_inputs(inputs: Any, expected: Any) -> None:
    got = all_dynamic_shapes_from_inputs(inputs)
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize("dim", [AUTO, DYNAMIC])
def test_a_hint_stands_for_every_dimension(dim: Any) -> None:
    assert all_dynamic_shapes_from_inputs((X,), dim_prefix=dim) == ({0: dim, 1: dim},)
    assert all_dynamic_shape_from_inputs((X,), dim_prefix=dim) == ({0: dim, 1: dim},)


def test_another_prefix() -> None:
    assert all_dynamic_shapes_from_inputs([X], dim_prefix="size") == [{0: "size_0_0", 1: "size_0_1"}]


def test_a_cache_is_a_flat_list_and_in_the_older_form_two_lists() -> None:
    two = cache(2)
    assert all_dynamic_shapes_from_inputs(two) == named(range(4), 4)
    assert all_dynamic_shape_from_inputs(two) == [named([0, 1], 4), named([2, 3], 4)]


def test_an_encoder_decoder_cache_is_a_list_of_two() -> None:
    both = make_encoder_decoder_cache(cache(), cache())
    assert all_dynamic_shapes_from_inputs(both) == [named([0, 1], 4), named([2, 3], 4)]
    assert all_dynamic_shape_from_inputs(both) == [[named([0], 4), named([1], 4)], [named([2], 4), named([3], 4)]]


def test_the_counter_of_a_static_layer_has_no_dimensions_and_that_of_a_sliding_one_is_a_hint() -> None:
    pairs = [(torch.rand(2, 4, 3, 7), torch.rand(2, 4, 3, 7))]
    static, sliding = make_static_cache(pairs, max_cache_len=8), cache(cls_layers="DynamicSlidingWindowLayer")
    assert all_dynamic_shapes_from_inputs(static) == [*named([0, 1], 4), {}]
    assert all_dynamic_shapes_from_inputs(sliding) == [*named([0, 1], 4), DYNAMIC]
    assert all_dynamic_shapes_from_inputs(sliding, dim_prefix=AUTO)[-1] == AUTO
    older = [named([0], 4), named([1], 4)]
    assert all_dynamic_shape_from_inputs(static) == all_dynamic_shape_from_inputs(sliding) == older


def test_the_output_of_a_model_is_the_list_of_its_fields() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    output = BaseModelOutput(last_hidden_state=torch.zeros(4, 4, 4))
    assert all_dynamic_shapes_from_inputs([output]) == [named([0], 3)]


@pytest.mark.parametrize("kind", ["dynamic", "static", "sliding", "both", "waiting"])
def test_a_flat_list_has_one_shape_per_leaf_of_the_registered_cache(kind: str) -> None:
    pairs = [(torch.rand(2, 4, 3, 7), torch.rand(2, 4, 3, 7))] * 2
    one = {
        "dynamic": lambda: cache(2),
        "static": lambda: make_static_cache(pairs, max_cache_len=8),
        "sliding": lambda: cache(2, cls_layers="DynamicSlidingWindowLayer"),
        "both": lambda: cache(2, cls_layers=["DynamicLayer", "DynamicSlidingWindowLayer"]),
        "waiting": lambda: make_dynamic_cache([(None, None), pairs[0]]),
    }[kind]()
    with register_flattening_functions():
        leaves = torch.utils._pytree.tree_leaves(one)
    shapes = all_dynamic_shapes_from_inputs(one)
    assert [len(shape) for shape in shapes if isinstance(shape, dict)] == [
        leaf.ndim for leaf in leaves if isinstance(leaf, torch.Tensor)
    ]
    assert len(shapes) == len(leaves)


tensors = st.lists(st.integers(0, 3), max_size=3).map(torch.zeros)
leaves = st.one_of(tensors, st.none(), st.booleans(), st.integers(), st.text(max_size=2))
nested = st.recursive(
    leaves,
    lambda child: st.one_of(
        st.lists(child, max_size=3),
        st.lists(child, max_size=3).map(tuple),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), child, max_size=3),
    ),
    max_leaves=8,
)


def form_of(value: Any, shape: Any) -> None:
    if isinstance(value, torch.Tensor):
        assert list(shape) == list(range(value.ndim))
    elif isinstance(value, (list, tuple)):
        assert type(shape) is type(value)
        assert len(shape) == len(value)
        for child, one in zip(value, shape, strict=True):
            form_of(child, one)
    elif isinstance(value, dict):
        assert list(shape) == list(value)
        for key, child in value.items():
            form_of(child, shape[key])
    else:
        assert shape is None


def names_in(shape: Any) -> list[str]:
    if isinstance(shape, str):
        return [shape]
    children = shape.values() if isinstance(shape, dict) else shape if isinstance(shape, (list, tuple)) else ()
    return [name for child in children for name in names_in(child)]


@given(nested)
@settings(max_examples=60, deadline=None)
def test_shapes_have_the_structure_of_any_inputs_and_names_of_their_own(inputs: Any) -> None:
    shapes = all_dynamic_shapes_from_inputs(inputs)
    form_of(inputs, shapes)
    names = names_in(shapes)
    assert len(names) == len(set(names))
    couple = CoupleInputsDynamicShapes((), {"x": inputs}, {"x": shapes})
    assert couple.replace_by_string() == {"x": shapes}
    assert not names_in(couple.replace_string_by())


class AddAll(torch.nn.Module):
    def forward(self, xs: Any, past: Any) -> Any:
        filled = CacheKeyValue(past)
        return xs["a"] + xs["b"][0], [k + v for k, v in zip(filled.key_cache, filled.value_cache, strict=True)]


def test_torch_export_takes_the_shapes() -> None:
    inputs = {"xs": {"a": torch.rand(5, 6), "b": [torch.rand(5, 6)]}, "past": cache(2)}
    shapes = all_dynamic_shapes_from_inputs(inputs, dim_prefix=AUTO)
    with register_flattening_functions():
        program = torch.export.export(AddAll(), (), kwargs=inputs, dynamic_shapes=shapes).module()
        other = {"xs": {"a": torch.rand(3, 9), "b": [torch.rand(3, 9)]}, "past": cache(2, batch=3, tokens=11)}
        got, expected = program(**other), AddAll()(**other)
    assert torch.equal(got[0], expected[0])
    assert all(map(torch.equal, got[1], expected[1]))


@pytest.mark.parametrize("kind", ["static", "sliding", "encoder-decoder"])
def test_torch_export_takes_the_shapes_of_every_cache(kind: str) -> None:
    class Total(torch.nn.Module):
        def forward(self, past: Any) -> Any:
            caches = [past.self_attention_cache, past.cross_attention_cache] if kind == "encoder-decoder" else [past]
            return sum(layer.keys.sum() + layer.values.sum() for one in caches for layer in one.layers)

    def make(batch: int) -> Any:
        pairs = [(torch.rand(batch, 4, 3, 7), torch.rand(batch, 4, 3, 7))] * 2
        if kind == "static":
            return make_static_cache(pairs, max_cache_len=8)
        if kind == "sliding":
            return cache(2, batch, cls_layers="DynamicSlidingWindowLayer", cls_kwargs={"sliding_window": 9})
        return make_encoder_decoder_cache(cache(1, batch), cache(2, batch))

    first, other = make(2), make(5)
    shapes = (all_dynamic_shapes_from_inputs(first, dim_prefix=AUTO),)
    with register_flattening_functions():
        program = torch.export.export(Total(), (first,), dynamic_shapes=shapes).module()
        torch.testing.assert_close(program(other), Total()(other))


def test_torch_export_takes_named_tuples_and_outputs() -> None:
    from transformers.modeling_outputs import BaseModelOutput

    class Model(torch.nn.Module):
        def forward(self, pair: Any, output: Any) -> Any:
            return pair.a + pair.b + output.last_hidden_state

    inputs = (Pair(torch.rand(3, 4), torch.rand(3, 4)), BaseModelOutput(last_hidden_state=torch.rand(3, 4)))
    program = torch.export.export(
        Model(), inputs, dynamic_shapes=all_dynamic_shapes_from_inputs(inputs, dim_prefix=AUTO)
    )
    other = (Pair(torch.rand(2, 9), torch.rand(2, 9)), BaseModelOutput(last_hidden_state=torch.rand(2, 9)))
    assert torch.equal(program.module()(*other), Model()(*other))


@pytest.mark.parametrize("kind", [list, tuple])
def test_torch_export_takes_classes_that_somebody_registered(kind: type) -> None:
    class Model(torch.nn.Module):
        def forward(self, box: Any, queue: Any) -> Any:
            return box.left + box.right + queue[0]

    keys = [torch.utils._pytree.GetAttrKey(name) for name in ("left", "right")]
    onlooker.register_class_flattening(
        Box,
        lambda box: (kind([box.left, box.right]), None),
        lambda children, _: Box(*children),
        lambda box: (list(zip(keys, (box.left, box.right), strict=True)), None),
    )
    try:
        inputs = (Box(torch.rand(3, 4), torch.rand(3, 4)), deque([torch.rand(3, 4)]))
        shapes = all_dynamic_shapes_from_inputs(inputs, dim_prefix=AUTO)
        assert [type(shape) for shape in shapes] == [kind, deque]
        program = torch.export.export(Model(), inputs, dynamic_shapes=shapes).module()
        assert program(Box(torch.rand(2, 9), torch.rand(2, 9)), deque([torch.rand(2, 9)])).shape == (2, 9)
    finally:
        onlooker.unregister_class_flattening(Box)


# --- the other form of inputs ---


def test_inputs_in_the_form_of_shapes() -> None:
    inputs = {"x": X, "c": cache(), "n": (3, Y)}
    assert string_type(flatten_unflatten_for_dynamic_shapes(inputs), with_shape=True) == (
        "#3[T1s5x6,#2[T1s2x4x3x7,T1s2x4x3x7],#2[None,T1s1x6]]"
    )
    by_rank = flatten_unflatten_for_dynamic_shapes(inputs, use_dict=True, change_function=lambda t: t.ndim)
    assert by_rank == {"x": 2, "c": [4, 4], "n": (None, 2)}


@pytest.mark.parametrize("given_as", ["cache", "list"])
def test_one_shape_for_a_whole_cache(given_as: str) -> None:
    one = cache(2) if given_as == "cache" else CacheKeyValue(cache(2)).aslist()
    shapes = make_dynamic_shapes_kv_cache(one, {0: "batch", 2: "past"})
    assert shapes == [{0: "batch", 2: "past"}] * 4
    shapes[0][1] = "changed"
    assert shapes[1] == {0: "batch", 2: "past"}


def test_the_counters_of_a_cache_are_not_shaped_like_its_keys() -> None:
    static = make_static_cache([(torch.rand(2, 4, 3, 7), torch.rand(2, 4, 3, 7))], max_cache_len=8)
    assert make_dynamic_shapes_kv_cache(static, {0: "batch"}) == [{0: "batch"}, {0: "batch"}, {}]


@pytest.mark.parametrize("default", [None, AUTO])
def test_names_are_replaced_wherever_they_stand(default: Any) -> None:
    dim = DYNAMIC if default is None else default
    shapes = {"x": {0: "batch", 1: 3}, "y": [({0: "batch"}, None)], "z": {"batch"} if default is None else 0}
    expected = {"x": {0: dim, 1: 3}, "y": [({0: dim}, None)], "z": 0}
    if default is None:
        del shapes["z"], expected["z"]
    assert use_dyn_not_str(shapes, default_value=default) == expected


# --- several sets of inputs ---


class Add(torch.nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x if y is None else x + y

    def forward2(self, x: Any, y: Any) -> Any:
        return x + y

    def forward3(self, x: Any, **others: Any) -> Any:
        return x + sum(others.values())


def test_the_names_of_a_model_and_its_inputs() -> None:
    inputs = ModelInputs(Add(), [])
    assert (inputs.name, inputs.true_model_name) == ("main", "Add")
    assert (inputs.full_name, inputs.module_name_type) == ("main:Add", "type(main)=Add")
    other = ModelInputs(Add(), [], method_name="forward2", name="inner", level=2)
    assert (other.full_name, other.module_name_type) == ("inner:Add.forward2", "type(inner)=Add.forward2")
    assert other.level == 2
    assert ModelInputs(torch.nn.functional, [], method_name="relu").true_model_name == "torch.nn.functional"


@pytest.mark.parametrize(
    ("inputs", "auto", "expected"),
    [
        ([], False, ((), {})),
        ([], True, ((), {})),
        ([(X, Y)], False, (({}, {}), {})),
        ([(X, 3)], True, (({0: AUTO, 1: AUTO}, None), {})),
        ([(X, Y)], "dd", (({}, {}), {})),
        ([(X, Y), (torch.rand(7, 8), torch.rand(1, 8))], False, (({0: DYNAMIC, 1: DYNAMIC}, {1: DYNAMIC}), {})),
        ([(X, Y), (torch.rand(7, 8), torch.rand(1, 8))], True, (({0: AUTO, 1: AUTO}, {1: AUTO}), {})),
        ([{"y": Y, "x": X}, {"y": Y, "x": torch.rand(7, 6)}], False, ((), {"x": {0: DYNAMIC}, "y": {}})),
        ([((X,), {"y": Y}), ((torch.rand(7, 6),), {"y": Y})], False, (({0: DYNAMIC},), {"y": {}})),
        ([{"x": X}, {"x": torch.rand(6, 6), "y": Y}, {"x": X, "y": torch.rand(7, 6)}], False,
         ((), {"x": {0: DYNAMIC}, "y": {0: DYNAMIC}})),
        ([{"x": X, "y": None}, {"x": torch.rand(6, 6), "y": Y}], False, ((), {"x": {0: DYNAMIC}, "y": {}})),
        ([(X[:0],), (torch.rand(0, 6),)], False, (({0: DYNAMIC},), {})),
        ([(X,), (X, Y), (X, torch.rand(3, 6))], False, (({}, {0: DYNAMIC}), {})),
        ([(([X, Y],), {}), (([X[:0], Y],), {})], False, (([{0: DYNAMIC}, {}],), {})),
        ([({"a": X}, 1), ({"a": X[:2]}, 2)], False, (({"a": {0: DYNAMIC}}, DYNAMIC), {})),
        ([(X, True, "a"), (X, False, "b")], False, (({}, None, None), {})),
        ([((X, [Y]),), ((X[:3], [Y[:, :2]]),)], "d", ((({0: "d_0I_0t0"}, [{1: "d_0I_1t_0l1"}]),), {})),
        ([({"k": X},), ({"k": X[:3]},)], "d", (({"k": {0: "d_0I_kd0"}},), {})),
    ],
)  # fmt: skip
def test_a_dimension_that_is_not_always_the_same_is_dynamic(inputs: Any, auto: Any, expected: Any) -> None:
    got = ModelInputs(Add(), inputs).guess_dynamic_shapes(auto=auto)
    assert got == expected
    assert list(got[1]) == list(expected[1])


def test_the_inputs_are_pairs() -> None:
    inputs = ModelInputs(None, [(X, Y), {"x": X}, ((X,), {"y": Y})]).inputs
    assert string_type(inputs, with_shape=True) == (
        "#3[((T1s5x6,T1s1x6),{}),((),dict(x:T1s5x6)),((T1s5x6,),dict(y:T1s1x6))]"
    )


def test_the_names_of_caches_tell_where_their_tensors_stand() -> None:
    first = {"input_ids": torch.zeros(2, 3), "mask": torch.zeros(2, 33), "past": cache()}
    second = {"input_ids": torch.zeros(3, 4), "mask": torch.zeros(3, 37), "past": cache(batch=3, tokens=9)}
    assert guess_dynamic_shapes_from_inputs([first, second], auto="dd") == (
        (),
        {
            "input_ids": {0: "dd_0I0", 1: "dd_0I1"},
            "mask": {0: "dd_1I0", 1: "dd_1I1"},
            "past": [{0: "dd_2I_0o0", 2: "dd_2I_0o2"}, {0: "dd_2I_1o0", 2: "dd_2I_1o2"}],
        },
    )


def test_an_empty_cache_is_judged_by_the_others() -> None:
    sets = [(make_dynamic_cache([]),), (cache(),), (cache(tokens=5),)]
    assert guess_dynamic_shapes_from_inputs(sets) == (([{2: DYNAMIC}, {2: DYNAMIC}],), {})
    assert guess_dynamic_shapes_from_inputs([sets[0]]) == (([],), {})


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([(X,), (X[0],)], r"differ at args\[0\]: the tensors are of rank 2 and 1"),
        ([{"x": [X]}, {"x": [X, X]}], r"differ at x: a list holds 1 values, another 2"),
        ([{"x": {"a": X}}, {"x": {"b": X}}], r"differ at x: a dict has 'a', another 'b'"),
        ([{"x": [X]}, {"x": [3]}], r"differ at x\[0\]: one set has a tensor and another a int"),
        ([{"x": cache(1)}, {"x": cache(2)}], r"differ at x: a DynamicCache holds 2 values, another 4"),
    ],
)
def test_sets_of_another_form_are_refused_at_the_path(inputs: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text) as raised:
        guess_dynamic_shapes_from_inputs(inputs)
    assert raised.value.slug == "inputs-differ"


@pytest.mark.parametrize("inputs", [{}, [[]], (X,), [X], None])
def test_what_is_no_set_of_inputs_is_a_value_error(inputs: Any) -> None:
    with pytest.raises(ValueError, match="no inputs of a model") as raised:
        ModelInputs(Add(), inputs)
    assert isinstance(raised.value, OnlookerError)


def test_a_model_is_needed_for_names() -> None:
    inputs = ModelInputs(None, [(X,)])
    for ask in (lambda: inputs.full_name, lambda: inputs.move_to_kwargs((X,), {}, (({},), {}))):
        with pytest.raises(UsageError, match="without a model"):
            ask()
    with pytest.raises(UsageError, match="no model with a method nothing"):
        ModelInputs(Add(), [], method_name="nothing")


def test_shapes_move_to_their_names() -> None:
    inputs = ModelInputs(Add(), [((X,), {"y": Y}), ((X[:2],), {"y": Y})])
    shapes = inputs.guess_dynamic_shapes()
    args, kwargs, moved = inputs.move_to_kwargs(*inputs.inputs[0], shapes)
    assert (args, list(kwargs)) == ((X,), ["y"])
    assert moved == ((), {"x": {0: DYNAMIC}, "y": {}})
    assert shapes == (({0: DYNAMIC},), {"y": {}})
    program = torch.export.export(Add(), args, kwargs=kwargs, dynamic_shapes=moved[1])
    assert program.module()(X[:3], y=Y).shape == (3, 6)
    variadic = ModelInputs(Add(), [{"z": Y, "x": X}], method_name="forward3")
    _, kwargs, moved = variadic.move_to_kwargs((), {"z": Y, "x": X}, ((), {"z": {0: DYNAMIC}, "x": {}}))
    assert list(kwargs) == ["x", "z"]
    assert moved == ((), {"x": {}, "others": {"z": {0: DYNAMIC}}})


def test_sets_are_checked_for_sizes_that_do_not_export() -> None:
    inputs = ModelInputs(Add(), [{"x": X}, {"x": X[:1]}])
    assert inputs.validate_inputs_for_export() == [None, {"x": {0: "d=[1]"}}]
    assert ModelInputs(Add(), [(X,), (X[:1],)]).validate_inputs_for_export() == [None, ({0: "d=[1]"},)]


# --- dynamic_axes ---


class Decoder(torch.nn.Module):
    def forward(
        self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None, flag: bool = True
    ) -> Any:
        return input_ids


IDS = torch.zeros(2, 8, dtype=torch.int64)
AXES = {
    "input_ids": {0: "batch", 1: "length"},
    "logits": {0: "batch"},
    "past_key_values.0.key": {0: "batch", 2: "past"},
    "past_key_values.0.value": {0: "batch"},
    "present.0.key": {0: "batch", 2: "total"},
}


@pytest.mark.parametrize("model", [Decoder, Decoder()])
def test_axes_become_shapes_and_pairs_a_cache(model: Any) -> None:
    pairs = [(torch.rand(2, 1, 3, 4), torch.rand(2, 1, 3, 4))]
    args, kwargs, shapes = convert_dynamic_axes_into_dynamic_shapes(
        model, (IDS, IDS, pairs), {"flag": True}, dynamic_axes=AXES, verbose=1
    )
    assert args == ()
    assert string_type(kwargs, with_shape=True) == (
        "dict(input_ids:T7s2x8,attention_mask:T7s2x8,past_key_values:DynamicCache(key_cache=#1[T1s2x1x3x4], "
        "value_cache=#1[T1s2x1x3x4]),flag:bool)"
    )
    assert shapes == {
        "input_ids": {0: "batch", 1: "length"},
        "attention_mask": {},
        "past_key_values": [{0: "batch", 2: "past"}, {0: "batch"}],
        "flag": None,
    }


@pytest.mark.parametrize(
    ("value", "axes", "mapping", "expected"),
    [
        (IDS, {"past_key_values": [0, -1]}, {}, {0: DYNAMIC, 1: DYNAMIC}),
        (cache(), {"past_key_values": {0: "b"}}, {}, [{0: "b"}, {0: "b"}]),
        (cache(2), {"present.1.value": {2: "n"}}, {"present": "past_key_values"}, [{}, {}, {}, {2: "n"}]),
        (make_encoder_decoder_cache(cache(), cache()),
         {"past_key_values.0.decoder.key": {2: "n"}, "past_key_values.0.encoder.value": {2: "m"}}, {},
         [[{2: "n"}, {}], [{}, {2: "m"}]]),
        ((X, 1), {}, {}, ({}, None)),
    ],
)  # fmt: skip
def test_axes_of_caches_and_lists_of_axes(value: Any, axes: Any, mapping: Any, expected: Any) -> None:
    kwargs = {"past_key_values": value}
    got = convert_dynamic_axes_into_dynamic_shapes(Decoder(), (), kwargs, axes, mapping)[2]
    assert got == {"past_key_values": expected}


@pytest.mark.parametrize(
    ("args", "kwargs", "axes", "text"),
    [
        ((IDS,) * 5, {}, {}, "5 positional arguments for input_ids, "),
        ((IDS,), {"input_ids": IDS}, {}, "input_ids comes by position and by name"),
        ((IDS,), {}, {"input_ids": {2: "n"}}, "input_ids is of rank 2 and has no dimension 2"),
        (((X, X),), {}, {"input_ids": {0: "n"}}, "input_ids is a tuple"),
    ],
)
def test_axes_that_do_not_fit(args: Any, kwargs: Any, axes: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text) as raised:
        convert_dynamic_axes_into_dynamic_shapes(Decoder(), args, kwargs, axes)
    assert raised.value.slug == "bad-dynamic-axes"


# --- conversion ---


@pytest.mark.parametrize("to", [torch.float16, "float16", "torch.float16"])
def test_floats_are_converted_and_nothing_else(to: Any) -> None:
    x, ids, mask = torch.rand(2), torch.arange(2), torch.tensor([True, False])
    inputs = {"x": [x, x], "ids": (ids, mask), "past": cache(), "set": {1, "a"}, "text": "a"}
    got = to_any(inputs, to)
    assert got["x"][0].dtype == torch.float16
    assert got["x"][0] is got["x"][1]
    assert [t.dtype for t in got["ids"]] == [torch.int64, torch.bool]
    assert got["past"].layers[0].keys.dtype == torch.float16
    assert (got["set"], got["text"], type(got["past"])) == ({1, "a"}, "a", type(inputs["past"]))
    assert inputs["past"].layers[0].keys.dtype == torch.float32


def test_other_targets() -> None:
    assert to_any(torch.rand(2), torch.int64).dtype == torch.int64
    assert to_any([torch.arange(2)], "meta")[0].device.type == "meta"
    assert to_any(torch.nn.Linear(1, 1), "float64").weight.dtype == torch.float64
    assert to_any((torch.nn.Linear(1, 1),), torch.float64)[0].bias.dtype == torch.float64
    with pytest.raises(UsageError, match="'float17' is neither a dtype nor a device"):
        to_any(X, "float17")

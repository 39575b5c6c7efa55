"""Inputs and their ``dynamic_shapes`` together, and programs tried on inputs grown from them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import (
    ExportError,
    UsageError,
    all_dynamic_shape_from_inputs,
    make_dynamic_cache,
    make_encoder_decoder_cache,
    make_static_cache,
    register_flattening_functions,
    string_type,
)
from onlooker.compat import CacheKeyValue, CoupleInputsDynamicShapes, validate_ep

Dim = torch.export.Dim
DYNAMIC, AUTO, STATIC = Dim.DYNAMIC, Dim.AUTO, Dim.STATIC
T34, T31, T14, T11, T56 = (torch.rand(shape) for shape in ((3, 4), (3, 1), (1, 4), (1, 1), (5, 6)))
B, BS = {0: "batch"}, {0: "batch", 1: "seq"}
Pair = namedtuple("Pair", ["a", "b"])


def cache(tokens: int = 3, layers: int = 2, batch: int = 2, **kwargs: Any) -> Any:
    pairs = [(torch.rand(batch, 4, tokens, 7), torch.rand(batch, 4, tokens, 7)) for _ in range(layers)]
    return make_dynamic_cache(pairs, **kwargs)


def shapes_of(value: Any) -> str:
    return string_type(value, with_shape=True)


# --- sizes that torch.export takes for constants ---


@pytest.mark.parametrize(
    ("args", "kwargs", "shapes", "names", "expected"),
    [
        ((T34,), {}, (B,), None, None),
        ((T31,), {}, (B,), None, None),
        ((T14,), {}, (B,), None, ({0: "d=[1]"},)),
        ((T34[:0],), {}, (B,), None, ({0: "d=[0]"},)),
        ((), {"A": T11}, {"A": B}, None, {"A": {0: "d=[1]"}}),
        ((T34, T31), {}, (B, BS), None, (None, {1: "d=[1]"})),
        ((T34, T31), {}, {"x": B, "y": BS}, None, (None, {1: "d=[1]"})),
        ([T34, T31], {}, (B, BS), None, (None, {1: "d=[1]"})),
        ((), {"A": T34, "B": T31}, {"A": B, "B": BS}, None, {"B": {1: "d=[1]"}}),
        ((), {"A": T34, "B": (T31, T31)}, {"A": B, "B": (B, BS)}, None, {"B": (None, {1: "d=[1]"})}),
        (None, {"A": T34, "B": (T31, T31)}, {"A": B, "B": (B, B)}, None, None),
        ((T56,), {"A": T34, "B": T31}, {"A": B, "B": BS}, None, {"B": {1: "d=[1]"}}),
        ((T56,), {"A": T34, "B": T31}, {"A": B, "B": BS}, ["X"], {"B": {1: "d=[1]"}}),
        ((T31,), {"A": T31}, {"X": BS, "A": BS}, ["X"], {"X": {1: "d=[1]"}, "A": {1: "d=[1]"}}),
        ((T31,), {"A": T31}, ((BS,), {"A": B}), None, (({1: "d=[1]"},), None)),
        ((T14, 1, "a"), {}, (({0: None, 1: 4}), None, None), None, None),
        ((T11,), {}, ({0: STATIC, 1: AUTO},), None, ({1: "d=[1]"},)),
        ((T11,), {}, ([None, DYNAMIC],), None, ({1: "d=[1]"},)),
        ((T11, 1), {}, (None, DYNAMIC), None, (None, "d=[1]")),
        ((cache(1),), {}, ([B, {0: "batch", 2: "past"}] * 2,), None, ([None, {2: "d=[1]"}] * 2,)),
        ((cache(1),), {}, ([[B, B], [{2: "past"}, B]],), None, ([None, [{2: "d=[1]"}, None]],)),
        ((make_dynamic_cache([]),), {}, ([],), None, None),
        ((), {"x": T34, "z": T14}, {"x": B, "kwargs": {"z": B}}, None, {"kwargs": {"z": {0: "d=[1]"}}}),
        ((), {}, {}, None, None),
    ],
)
def test_sizes_0_and_1_are_invalid_where_a_dimension_changes(
    args: Any, kwargs: Any, shapes: Any, names: Any, expected: Any
) -> None:
    couple = CoupleInputsDynamicShapes(args, kwargs, shapes, args_names=names)
    assert couple.invalid_dimensions_for_export() == expected


# --- names and hints ---


def test_names_are_replaced_by_a_hint_or_any_value() -> None:
    couple = CoupleInputsDynamicShapes((T31,), {"A": T34, "B": (T31, 3)}, {"X": BS, "A": B, "B": (B, None)}, ["X"])
    assert couple.replace_string_by() == {
        "X": {0: DYNAMIC, 1: DYNAMIC}, "A": {0: DYNAMIC}, "B": ({0: DYNAMIC}, None)
    }  # fmt: skip
    assert couple.replace_string_by(value="DYN")["X"] == {0: "DYN", 1: "DYN"}
    by_list = CoupleInputsDynamicShapes((T31,), {}, (["batch", None],))
    assert by_list.replace_string_by(AUTO) == ([AUTO, None],)


def test_hints_get_names_of_their_own() -> None:
    shape = {0: Dim("batch"), 1: DYNAMIC}
    couple = CoupleInputsDynamicShapes(
        (T31,), {"A": T34, "B": (T31, T31)}, {"X": {0: Dim("batch")}, "A": shape, "B": (shape, shape)}, ["X"]
    )
    assert couple.replace_by_string() == {
        "X": {0: "batch"},
        "A": {0: "batch", 1: "Dim1"},
        "B": ({0: "batch", 1: "Dim2"}, {0: "batch", 1: "Dim3"}),
    }
    past = CoupleInputsDynamicShapes((), {"past": cache()}, {"past": [{0: DYNAMIC, 1: AUTO}] * 4})
    assert past.replace_by_string() == {"past": [{0: f"Dim{2 * i}", 1: f"Dim{2 * i + 1}"} for i in range(4)]}


def test_a_name_that_is_taken_is_not_given_again_and_constants_stay() -> None:
    couple = CoupleInputsDynamicShapes((T34, T34), {}, ({0: "Dim1", 1: DYNAMIC}, {0: STATIC, 1: None}))
    assert couple.replace_by_string() == ({0: "Dim1", 1: "Dim2"}, {0: STATIC, 1: None})


def test_a_couple_prints_its_shapes() -> None:
    assert str(CoupleInputsDynamicShapes((T34,), {}, (B,))) == (
        "CoupleInputsDynamicShapes(\n    args=(T1s3x4,),\n    kwargs={},\n    dynamic_shapes=({0:DYN(batch)},),\n)"
    )


# --- where they part ---


@pytest.mark.parametrize(
    ("inputs", "shapes", "text"),
    [
        ({"x": T34}, {"x": {2: "n"}}, "at x: a tensor of rank 2 has no dimension 2"),
        ({"x": T34}, {"x": {"0": "n"}}, "at x: a tensor of rank 2 has no dimension '0'"),
        ({"x": T34}, {"x": {0: 1.5}}, "at x: dimension 0 is 1.5, neither"),
        ({"x": T34}, {"x": "batch"}, "at x: a tensor of rank 2 takes a dict by dimension, not 'batch'"),
        ({"x": T34}, {"x": [None]}, "at x: a tensor of rank 2 takes a dict"),
        ({"x": 3}, {"x": "batch"}, "at x: 3 has no dimensions, but a shape 'batch'"),
        ({"x": {"a": [T34]}}, {"x": {"a": [B, B]}}, r"at x\['a'\]: a list holds 1, and there are 2 shapes"),
        ({"x": {"a": [T34]}}, {"x": {"a": (B,)}}, r"at x\['a'\]: a list takes a list of shapes, not \("),
        ({"x": (T34,)}, {"x": [B]}, "at x: a tuple takes a tuple of shapes"),
        ({"x": {"a": T34}}, {"x": {"b": B}}, "at x: there is no shape for 'a'"),
        ({"x": {"a": T34}}, {"x": {"a": B, "b": B}}, "at x: there is a shape for 'b', which is no input"),
        ({"x": {"a": T34}}, {"x": [B]}, "at x: a dict takes a dict of shapes"),
        ({"x": T34}, {}, "at their root: there is no shape for x"),
        ({"x": T34}, {"x": B, "y": B}, "at their root: y is no argument"),
        ({"x": T34}, (B,), "at their root: arguments by name take a dict"),
        ({"x": cache()}, {"x": [B, B, B]}, "at x: a DynamicCache has 4 tensors, and there are 3 shapes"),
        ({"x": cache()}, {"x": [[B], [B]]}, "at x: a DynamicCache has 4 tensors, and there are 2 shapes"),
        ({"x": cache()}, {"x": [B, B, B, {7: "n"}]}, r"at x.layers\[1\].values: a tensor of rank 4 has no dimension 7"),
        ({"x": cache()}, {"x": B}, "at x: a DynamicCache takes a list of shapes"),
        ({"x": make_encoder_decoder_cache(cache(), cache())}, {"x": [[B] * 4, [B] * 3]},
         "at x.cross_attention_cache: a DynamicCache has 4"),
    ],
)  # fmt: skip
def test_shapes_are_refused_at_the_path_where_they_part(inputs: Any, shapes: Any, text: str) -> None:
    with pytest.raises(UsageError, match=f"The shapes part from the inputs {text}") as raised:
        CoupleInputsDynamicShapes((), inputs, shapes).replace_string_by()
    assert raised.value.slug == "shapes-do-not-fit"


def test_positional_arguments_and_shapes_are_counted() -> None:
    for shapes in ((B,), {"x": B}):
        with pytest.raises(UsageError, match="2 positional arguments and 1 shapes"):
            CoupleInputsDynamicShapes((T34, T34), {}, shapes).replace_string_by()
    with pytest.raises(UsageError, match="2 positional arguments, y by name: the names x do not fit"):
        CoupleInputsDynamicShapes((T34, T34), {"y": T34}, {"x": B}, ["x"]).replace_string_by()


@pytest.mark.parametrize("form", ["flat", "nested", "without counters", "none"])
@pytest.mark.parametrize("kind", ["dynamic", "static", "sliding"])
def test_every_form_of_a_cache_fits(kind: str, form: str) -> None:
    value = {
        "dynamic": lambda: cache(),
        "sliding": lambda: cache(cls_layers="DynamicSlidingWindowLayer"),
        "static": lambda: make_static_cache([(torch.rand(2, 4, 3, 7),) * 2] * 2, max_cache_len=8),
    }[kind]()
    counter = {"dynamic": [], "static": [{}], "sliding": [None]}[kind]
    shapes = {
        "flat": [B, B, *counter] * 2,
        "nested": [[B, B], [B, B]],
        "without counters": [B] * 4,
        "none": None,
    }[form]
    couple = CoupleInputsDynamicShapes((value,), {}, (shapes,))
    assert couple.replace_by_string() == (shapes,)
    (grown,) = couple.change_dynamic_dimensions()
    assert type(grown) is type(value)
    batch = 2 if form == "none" else 3
    assert grown.layers[1].values.shape[0] == batch
    assert getattr(grown.layers[1], "batch_size", batch) == batch


# --- other sizes ---


def test_each_name_gets_one_more() -> None:
    inputs = {"A": torch.arange(70).reshape(2, 5, 7), "B": torch.arange(18).reshape(2, 9), "flag": True}
    couple = CoupleInputsDynamicShapes((), inputs, {"A": {0: "batch", 2: "last"}, "B": BS, "flag": None})
    assert shapes_of(couple.change_dynamic_dimensions()) == "dict(A:T7s3x5x8,B:T7s3x10,flag:bool)"
    chosen = couple.change_dynamic_dimensions({"seq": 50, "batch": 1})
    assert shapes_of(chosen) == "dict(A:T7s1x5x8,B:T7s1x50,flag:bool)"
    only = couple.change_dynamic_dimensions({"batch": 1}, only_desired=True)
    assert shapes_of(only) == "dict(A:T7s1x5x7,B:T7s1x9,flag:bool)"
    assert torch.equal(only["A"], inputs["A"][:1])


def test_the_older_form_of_a_cache_changes_a_cache() -> None:
    one = make_dynamic_cache([(torch.ones(2, 2, 2, 2), torch.ones(2, 2, 2, 2))])
    shape = {0: "batch", 2: "last"}
    new = CoupleInputsDynamicShapes((), {"A": one}, {"A": [[shape], [shape]]}).change_dynamic_dimensions()
    assert [tuple(t.shape) for t in CacheKeyValue(new["A"]).aslist()] == [(3, 2, 3, 2)] * 2
    assert tuple(one.layers[0].keys.shape) == (2, 2, 2, 2)


def test_the_counter_of_a_sliding_layer_goes_with_its_keys() -> None:
    sliding = cache(cls_layers="DynamicSlidingWindowLayer", cls_kwargs={"sliding_window": 9})
    couple = CoupleInputsDynamicShapes((sliding,), {}, (all_dynamic_shape_from_inputs(sliding),))
    (grown,) = couple.change_dynamic_dimensions()
    assert [layer.cumulative_length for layer in grown.layers] == [4, 4]
    assert [layer.cumulative_length for layer in sliding.layers] == [3, 3]


@pytest.mark.parametrize(
    ("past", "seq", "total"),
    [("past", "seq", "past+seq"), ("past", "seq", "seq + past"), ("cache_length", "seq_length", "cache+seq")],
)
def test_a_sum_of_names_stays_the_sum(past: str, seq: str, total: str) -> None:
    inputs = {"ids": torch.zeros(2, 3), "mask": torch.ones(2, 8), "past": cache(5)}
    ids, mask = {0: "batch", 1: seq}, {0: "batch", 1: total}
    couple = CoupleInputsDynamicShapes((), inputs, {"ids": ids, "mask": mask, "past": [{0: "batch", 2: past}] * 4})
    new = couple.change_dynamic_dimensions({past: 20})
    assert (new["ids"].shape, new["mask"].shape, new["past"].layers[0].keys.shape[2]) == ((3, 4), (3, 24), 20)


def test_a_sum_that_the_inputs_do_not_obey_is_a_name() -> None:
    inputs, shapes = (torch.zeros(3), torch.zeros(4), torch.zeros(9)), ({0: "a"}, {0: "b"}, {0: "a+b"})
    assert shapes_of(CoupleInputsDynamicShapes(inputs, {}, shapes).change_dynamic_dimensions()) == "(T1s4,T1s5,T1s10)"


def test_dims_hints_and_ints_change_too() -> None:
    n = Dim("n")
    inputs = (torch.zeros(3), torch.zeros(6), torch.zeros(3, 5), torch.zeros(3), 4)
    couple = CoupleInputsDynamicShapes(inputs, {}, ({0: n}, {0: 2 * n}, {0: DYNAMIC, 1: STATIC}, [AUTO], DYNAMIC))
    new = couple.change_dynamic_dimensions()
    assert (shapes_of(new[:-1]), new[-1]) == ("(T1s4,T1s8,T1s4x5,T1s4)", 5)
    alone = CoupleInputsDynamicShapes((torch.zeros(6),), {}, ({0: 2 * n},)).change_dynamic_dimensions()
    assert shapes_of(alone) == "(T1s8,)"


def test_arguments_of_both_kinds() -> None:
    class Model(torch.nn.Module):
        def forward(self, X: Any, A: Any) -> Any:
            return X, A

    named = CoupleInputsDynamicShapes((T34,), {"A": T56}, {"X": B, "A": B}, args_names=Model())
    assert shapes_of(named.change_dynamic_dimensions({"batch": 7})) == "dict(X:T1s7x4,A:T1s7x6)"
    assert shapes_of(named.change_dynamic_dimensions(args_kwargs=True)) == "((T1s4x4,),dict(A:T1s4x6))"
    unnamed = CoupleInputsDynamicShapes((T34,), {"A": T56}, {"A": B})
    assert shapes_of(unnamed.change_dynamic_dimensions()) == "((T1s3x4,),dict(A:T1s6x6))"
    alone = CoupleInputsDynamicShapes((T34,), {}, (B,))
    assert shapes_of(alone.change_dynamic_dimensions(args_kwargs=True)) == "((T1s4x4,),{})"


def test_other_containers_are_made_again() -> None:
    new = CoupleInputsDynamicShapes((Pair(T34, [T34]),), {}, ((B, [BS]),)).change_dynamic_dimensions()
    assert type(new[0]) is Pair
    assert (new[0].a.shape, new[0].b[0].shape) == ((4, 4), (4, 5))


def test_a_size_for_a_name_that_no_dimension_has() -> None:
    with pytest.raises(UsageError, match=r"No dimension is called rows\. The shapes have batch, seq") as raised:
        CoupleInputsDynamicShapes((T34,), {}, (BS,)).change_dynamic_dimensions({"rows": 3})
    assert raised.value.slug == "no-such-dimension"


NAMES = ["a", "b", "c"]
one_tensor = st.lists(st.tuples(st.sampled_from([*NAMES, None]), st.integers(0, 4)), max_size=3)


@given(st.lists(one_tensor, min_size=1, max_size=4), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 6)))
@settings(max_examples=80, deadline=None)
def test_equal_names_stay_equal_and_the_others_as_they_are(dims: Any, wanted: dict[str, int]) -> None:
    sizes = dict(zip(NAMES, (2, 3, 5), strict=True))
    inputs = tuple(torch.rand([sizes.get(name, size) for name, size in one]) for one in dims)
    shapes = tuple({i: name for i, (name, _) in enumerate(one) if name} for one in dims)
    used = {name for one in dims for name, _ in one if name}
    wanted = {name: size for name, size in wanted.items() if name in used}
    new = CoupleInputsDynamicShapes(inputs, {}, shapes).change_dynamic_dimensions(wanted)
    expected = {name: wanted.get(name, size + 1) for name, size in sizes.items()}
    for one, tensor, before in zip(dims, new, inputs, strict=True):
        assert list(tensor.shape) == [expected.get(name, size) for name, size in one]
        assert tensor.dtype == before.dtype
        assert tensor is not before


# --- validate_ep ---


class Add(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def exported(model: torch.nn.Module, args: Any, kwargs: Any, shapes: Any) -> torch.export.ExportedProgram:
    couple = CoupleInputsDynamicShapes(args, kwargs, shapes, args_names=model)
    with register_flattening_functions():
        return torch.export.export(model, args, kwargs=kwargs, dynamic_shapes=couple.replace_string_by())


@pytest.mark.parametrize("by_name", [0, 1, 2])
def test_every_combination_of_sizes_is_run(by_name: int) -> None:
    names, tensors, shapes = ("x", "y"), (torch.rand(5, 6), torch.rand(1, 6)), ({0: "a", 1: "b"}, {1: "b"})
    n = 2 - by_name
    args, kwargs = tensors[:n], dict(zip(names[n:], tensors[n:], strict=True))
    ds: Any = shapes if not kwargs else dict(zip(names, shapes, strict=True))
    values = {"a": [5, 10], "b": [10, 20, 30]}
    rows = validate_ep(
        exported(Add(), args, kwargs, ds), Add(), args, kwargs, True, dynamic_shapes=ds, values_to_try=values, verbose=2
    )
    assert [row["sizes"] for row in rows] == [{}] + [{"a": a, "b": b} for a in (5, 10) for b in (10, 20, 30)]
    assert all(row["SUCCESS"] and row["diff"]["abs"] == 0 for row in rows)
    assert [tuple(row["got"].shape) for row in rows[1:]] == [(a, b) for a in (5, 10) for b in (10, 20, 30)]
    assert all(row["expected"].shape == row["got"].shape for row in rows)


def test_a_program_is_only_run_when_there_is_no_model() -> None:
    program = exported(Add(), (T34, T34), {}, (B, B))
    (row,) = validate_ep(program.module(), args=(T34, T34))
    assert set(row) == {"args", "kwargs", "sizes", "got"}


class Grow(torch.nn.Module):
    """Appends to the cache in place, as a decoder does."""

    def forward(self, x: Any, past: Any) -> Any:
        keys, _ = past.update(x, x, 0)
        return keys.sum(dim=2)


@pytest.mark.parametrize("copy", [False, True])
def test_a_cache_does_not_grow_from_run_to_run(copy: bool) -> None:
    inputs = {"x": torch.rand(2, 4, 3, 7), "past": cache(5, layers=1)}
    shapes = {"x": {0: "batch", 2: "seq"}, "past": [[{0: "batch", 2: "past"}], [{0: "batch", 2: "past"}]]}
    flat = {"x": shapes["x"], "past": [{0: "batch", 2: "past"}] * 2}
    program = exported(Grow(), (), inputs, flat)
    rows = validate_ep(
        program, Grow(), (), inputs, copy, dynamic_shapes=shapes, values_to_try={"past": [2, 9], "batch": [4]}
    )
    assert all(row["SUCCESS"] for row in rows)
    assert inputs["past"].layers[0].keys.shape[2] == 5
    assert [row["kwargs"]["past"].layers[0].keys.shape[2] for row in rows] == [5, 2, 9]


class WrongOnLong(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y + (torch.nan if x.shape[0] > 5 else 0)


def test_a_failure_is_an_error_or_a_row() -> None:
    given: dict[str, Any] = {"args": (T34, T34), "dynamic_shapes": (B, B), "values_to_try": {"batch": [4, 6]}}
    program = exported(Add(), (T34, T34), {}, (B, B))
    with pytest.raises(ExportError, match="At batch=6, the program differs from the model") as raised:
        validate_ep(program, WrongOnLong(), **given)
    assert raised.value.slug == "program-differs"
    rows = validate_ep(program, WrongOnLong(), exc=False, **given)
    assert [row["SUCCESS"] for row in rows] == [True, True, False]


def test_a_program_that_refuses_sizes_is_a_failure_too() -> None:
    static = torch.export.export(Add(), (T34, T34))
    given: dict[str, Any] = {"args": (T34, T34), "dynamic_shapes": (B, B), "values_to_try": {"batch": [6]}}
    with pytest.raises(ExportError, match="At batch=6, the program fails"):
        validate_ep(static, Add(), **given)
    assert [row["got"] is None for row in validate_ep(static, Add(), exc=False, **given)] == [False, True]


@pytest.mark.parametrize("lacking", [{"dynamic_shapes": (B, B)}, {"values_to_try": {"batch": [3]}}])
def test_shapes_and_values_come_together(lacking: Any) -> None:
    with pytest.raises(UsageError, match="needs both or none") as raised:
        validate_ep(Add(), Add(), (T34, T34), **lacking)
    assert raised.value.slug == "sizes-without-shapes"


def decoder_inputs(config: Any) -> dict[str, Any]:
    size = config.hidden_size // config.num_attention_heads
    pairs = [
        (torch.rand(2, config.num_key_value_heads, 5, size), torch.rand(2, config.num_key_value_heads, 5, size))
        for _ in range(config.num_hidden_layers)
    ]
    return {
        "input_ids": torch.arange(6).reshape(2, 3),
        "attention_mask": torch.ones(2, 8, dtype=torch.int64),
        "past_key_values": make_dynamic_cache(pairs),
    }


def test_a_decoder_is_exported_and_validated_on_sizes_it_never_had() -> None:
    from onlooker.zoo import tiny_model

    model = tiny_model("llama").model
    inputs = decoder_inputs(model.config)
    one = {0: "batch", 2: "past"}
    shapes = {
        "input_ids": {0: "batch", 1: "seq"},
        "attention_mask": {0: "batch", 1: "past+seq"},
        "past_key_values": [one] * (2 * model.config.num_hidden_layers),
    }
    assert CoupleInputsDynamicShapes((), inputs, shapes).invalid_dimensions_for_export() is None
    program = exported(model, (), inputs, shapes)
    rows = validate_ep(
        program, model, (), inputs, dynamic_shapes=shapes, values_to_try={"batch": [3, 4], "past": [2, 7], "seq": [4]}
    )
    assert len(rows) == 5
    assert all(row["SUCCESS"] and row["diff"]["abs"] < 1e-5 for row in rows)
    assert [row["kwargs"]["attention_mask"].shape[1] for row in rows] == [8, 6, 11, 6, 11]

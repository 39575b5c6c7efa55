"""What torch.export needs by hand: dynamic shapes and arguments inferred from calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as torch_pytree
from transformers import LlamaConfig, LlamaForCausalLM

from onlooker import InputObserver, make_dynamic_cache, max_diff, register_flattening_functions, string_type
from onlooker.core.errors import ArgumentKindError, ObservationError, OnlookerError, UsageError
from onlooker_compat.trees.make import make_encoder_decoder_cache

DYN = torch.export.Dim.DYNAMIC
BOTH, FIRST, SECOND = {0: DYN, 1: DYN}, {0: DYN}, {1: DYN}
Shape = tuple[int, ...]


class Two(torch.nn.Module):
    def forward(self, x: Any = None, y: Any = None) -> Any:
        return x if y is None else y if x is None else x + y


class Four(torch.nn.Module):
    def forward(self, x: Any, y: Any, z: Any = None, w: Any = None) -> Any:
        return x + y


class Options(torch.nn.Module):
    def forward(self, x: Any, option: int = 1, mode: str = "a", add: bool = True, ratio: float = 0.5) -> Any:
        return x * ratio + option if add else x


class Args(torch.nn.Module):
    def forward(self, x: Any, *args: Any) -> Any:
        return x + sum(args)


class ArgsAndNames(torch.nn.Module):
    def forward(self, x: Any, *args: Any, y: Any = None) -> Any:
        return x + sum(args) + (0 if y is None else y)


class Kwargs(torch.nn.Module):
    def forward(self, x: Any, **kwargs: Any) -> Any:
        return x + kwargs["y"]


class Nested(torch.nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def watched(model: torch.nn.Module, calls: list[Any], **options: Any) -> InputObserver:
    """An observer that saw these calls: tuples, dicts, or ``(tuple, dict)``."""
    observer = InputObserver(**options)
    with observer(model, store_n_calls=len(calls)):
        for call in calls:
            both = type(call) is tuple and len(call) == 2 and type(call[0]) is tuple
            args, kwargs = call if both else (call, {})
            model(**call) if isinstance(call, dict) else model(*args, **kwargs)
    return observer


def sizes(value: Any) -> Any:
    """The shapes of all tensors, in the containers that hold them."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, dict):
        return {key: sizes(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(sizes, value))
    return value


# shapes


def pairs(n: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(t(5 + i, 6 + i), t(1, 6 + i)) for i in range(n)]


SHAPES: list[tuple[str, torch.nn.Module, list[Any], Any]] = [
    ("by position", Two(), pairs(), (BOTH, SECOND)),
    ("by name", Two(), [{"x": x, "y": y} for x, y in pairs()], {"x": BOTH, "y": SECOND}),
    (
        "by both",
        Four(),
        [((x, y), {"z": x, "w": y}) for x, y in pairs()],
        {"x": BOTH, "y": SECOND, "z": BOTH, "w": SECOND},
    ),
    (
        "in another order",
        Four(),
        [((x, y), {"w": y, "z": x} if i % 2 else {"z": x, "w": y}) for i, (x, y) in enumerate(pairs(), 1)],
        {"x": BOTH, "y": SECOND, "z": BOTH, "w": SECOND},
    ),
    (
        "names before positions",
        Four(),
        [{"w": t(2), "y": t(3), "x": t(3)}, {"x": t(4), "y": t(4), "w": t(2)}],
        {"x": FIRST, "y": FIRST, "w": {}},
    ),
    (
        "now by position, now by name",
        Two(),
        [(t(5, 6),), {"x": t(5, 7), "y": t(5, 7)}, (t(5, 8),), {"x": t(5, 9), "y": t(5, 9)}],
        {"x": SECOND, "y": SECOND},
    ),
    ("nothing changes", Two(), [(t(2, 3), t(3)), (t(2, 3), t(3))], ({}, {})),
    ("a missing one by position", Two(), [(t(5, 6),), (t(6, 7), t(1, 7)), (t(7, 8), t(1, 8))], (BOTH, SECOND)),
    (
        "a missing one by name",
        Two(),
        [{"x": t(5, 6)}, {"x": t(6, 7), "y": t(1, 7)}, {"x": t(7, 8), "y": t(1, 8)}],
        {"x": BOTH, "y": SECOND},
    ),
    (
        "one at a time",
        Two(),
        [{"x": t(5, 6)}, {"y": t(1, 7)}, {"x": t(6, 6)}, {"y": t(1, 8)}],
        {"x": FIRST, "y": SECOND},
    ),
    ("only one of them", Two(), [{"y": t(5, 6)}, {"y": t(5, 7)}], {"y": SECOND}),
    ("None", Two(), [{"x": t(5), "y": None}, {"x": t(6), "y": None}], {"x": FIRST}),
    ("now None", Nested(), [{"x": t(5), "y": None}, {"x": t(6), "y": t(7)}], {"x": FIRST, "y": {}}),
    ("a list", Nested(), [(t(5, 6), [t(1, 6), t(1, 6)]), (t(7, 7), [t(1, 7), t(1, 7)])], (BOTH, [SECOND, SECOND])),
    ("lists", Nested(), [(t(5, 6), [t(1, 6), [t(1, 6)]]), (t(7, 7), [t(1, 7), [t(1, 7)]])], (BOTH, [SECOND, [SECOND]])),
    (
        "a tuple",
        Nested(),
        [{"x": t(5), "y": (t(5), t(2))}, {"x": t(6), "y": (t(6), t(2))}],
        {"x": FIRST, "y": (FIRST, {})},
    ),
    (
        "a dict",
        Nested(),
        [(t(5, 6), {"a": t(1, 6), "b": [t(6)]}), (t(7, 7), {"a": t(1, 7), "b": [t(7)]})],
        (BOTH, {"a": SECOND, "b": [FIRST]}),
    ),
    ("a list that is missing", Nested(), [(t(5),), (t(6), [t(6), t(2)]), (t(7), [t(7), t(2)])], (FIRST, [FIRST, {}])),
    ("star", Args(), [(t(5, 6), t(1, 6), t(6)), (t(7, 7), t(1, 7), t(7))], {"x": BOTH, "args": (SECOND, FIRST)}),
    (
        "star and names",
        ArgsAndNames(),
        [((t(5), t(5)), {"y": t(1)}), ((t(6), t(6)), {"y": t(1)})],
        {"x": FIRST, "args": (FIRST,), "y": {}},
    ),
    ("two stars", Kwargs(), [((t(5),), {"y": t(5)}), ((t(6),), {"y": t(6)})], {"x": FIRST, "kwargs": {"y": FIRST}}),
    (
        "two stars and a constant",
        Kwargs(),
        [((t(5),), {"y": t(5), "flag": True}), ((t(6),), {"y": t(6), "flag": True})],
        {"x": FIRST, "kwargs": {"y": FIRST}},
    ),
    (
        "constants",
        Options(),
        [
            {"x": t(5), "option": 0, "mode": "b", "add": False, "ratio": 0.25},
            {"x": t(6), "option": 0, "mode": "b", "add": False, "ratio": 0.25},
        ],
        {"x": FIRST, "option": None, "mode": None, "add": None, "ratio": None},
    ),
    (
        "defaults",
        Options(),
        [{"x": t(5), "option": 1, "mode": "a", "add": True, "ratio": 0.5}, {"x": t(6)}],
        {"x": FIRST},
    ),
    ("a size", Options(), [{"x": t(5), "option": 5}, {"x": t(6), "option": 6}], {"x": FIRST, "option": DYN}),
]


@pytest.mark.parametrize(("model", "calls", "expected"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_a_dimension_that_changes_is_dynamic(model: torch.nn.Module, calls: list[Any], expected: Any) -> None:
    shapes = watched(model, calls).infer_dynamic_shapes()
    assert shapes == expected
    assert type(shapes) is type(expected)
    if isinstance(expected, dict):
        assert list(shapes) == list(expected)


EXPORTED = [
    row
    for row in SHAPES
    if row[0] in ("by position", "by name", "in another order", "a list", "a tuple", "a dict", "constants")
]


@pytest.mark.parametrize(("model", "calls"), [row[1:3] for row in EXPORTED], ids=[row[0] for row in EXPORTED])
def test_torch_export_takes_what_was_inferred(model: torch.nn.Module, calls: list[Any]) -> None:
    observer = watched(model, calls)
    arguments, shapes = observer.infer_arguments(), observer.infer_dynamic_shapes()
    args, kwargs = (arguments, {}) if isinstance(arguments, tuple) else ((), arguments)
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    assert max_diff(model(*args, **kwargs), program.module()(*args, **kwargs))["abs"] == 0


@pytest.mark.parametrize(
    ("batch_for", "expected"),
    [
        (None, {"x": SECOND, "y": SECOND, "z": SECOND, "w": SECOND}),
        (False, {"x": SECOND, "y": SECOND, "z": SECOND, "w": SECOND}),
        (set(), {"x": SECOND, "y": SECOND, "z": SECOND, "w": SECOND}),
        (True, {"x": BOTH, "y": BOTH, "z": BOTH, "w": BOTH}),
        ({0, "z"}, {"x": BOTH, "y": SECOND, "z": BOTH, "w": SECOND}),
        ({"x", "z"}, {"x": BOTH, "y": SECOND, "z": BOTH, "w": SECOND}),
        ([1, 3], {"x": SECOND, "y": BOTH, "z": SECOND, "w": BOTH}),
    ],
    ids=["none", "false", "empty", "all", "position and name", "names", "positions"],
)
def test_a_batch_is_dynamic_where_the_user_says_so(batch_for: Any, expected: Any) -> None:
    calls = [((t(5, n), t(1, n)), {"z": t(5, n), "w": t(1, n)}) for n in (6, 7, 8)]
    assert watched(Four(), calls).infer_dynamic_shapes(set_batch_dimension_for=batch_for) == expected


@pytest.mark.parametrize("batch_for", [True, {0}, {"x"}])
def test_a_scalar_has_no_batch(batch_for: Any) -> None:
    observer = watched(Two(), [{"x": t(), "y": t(3)}, {"x": t(), "y": t(4)}])
    assert observer.infer_dynamic_shapes(batch_for) == {"x": {}, "y": FIRST}


@pytest.mark.parametrize("batch_for", [{"nope"}, {9}, [-9]], ids=repr)
def test_a_batch_for_an_argument_that_does_not_exist_is_refused(batch_for: Any) -> None:
    with pytest.raises(UsageError, match=r"nope|9"):
        watched(Two(), pairs()).infer_dynamic_shapes(set_batch_dimension_for=batch_for)


def test_dimensions_are_named_by_the_user() -> None:
    observer = watched(Two(), pairs())
    names = {"x": {0: "batch", 1: "length"}, 1: {1: "length"}}
    assert observer.infer_dynamic_shapes(dim_names=names) == ({0: "batch", 1: "length"}, {1: "length"})
    assert observer.infer_dynamic_shapes(dim_names={0: {1: "length"}}) == (
        {0: "x_dim_0", 1: "length"},
        {1: "y_dim_1"},
    )
    assert observer.infer_dynamic_shapes(dim_names={}) == ({0: "x_dim_0", 1: "x_dim_1"}, {1: "y_dim_1"})
    assert observer.infer_dynamic_shapes(set_batch_dimension_for=True, dim_names={"y": {0: "one"}})[1] == {
        0: "one",
        1: "y_dim_1",
    }
    assert observer.infer_dynamic_shapes(dim_names=False) == (BOTH, SECOND)


class Decoder(torch.nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None, past_key_values: Any = None) -> Any:
        return input_ids


def step(batch: int, tokens: int, past: int | None) -> dict[str, Any]:
    cache = (
        None if past is None else make_dynamic_cache([(t(batch, 4, past, 8), t(batch, 4, past, 8)) for _ in range(2)])
    )
    return {
        "input_ids": torch.ones(batch, tokens, dtype=torch.int64),
        "attention_mask": torch.ones(batch, tokens + (past or 0), dtype=torch.int64),
        **({} if cache is None else {"past_key_values": cache}),
    }


def test_dimensions_are_named_by_their_role() -> None:
    observer = watched(Decoder(), [step(2, 7, 0), step(2, 1, 7), step(3, 1, 8)])
    kept = {0: "batch_size", 2: "past_sequence_length"}
    assert observer.infer_dynamic_shapes(dim_names=True) == {
        "input_ids": {0: "batch_size", 1: "sequence_length"},
        "attention_mask": {0: "batch_size", 1: "total_sequence_length"},
        "past_key_values": [kept] * 4,
    }


def test_a_cache_is_a_flat_list_and_was_empty_where_it_was_absent() -> None:
    observer = watched(Decoder(), [step(1, 10, None), step(1, 1, 10), step(1, 1, 11)])
    expected = {"input_ids": SECOND, "attention_mask": SECOND, "past_key_values": [{2: DYN}] * 4}
    assert observer.infer_dynamic_shapes() == expected
    both = {0: DYN, 2: DYN}
    assert observer.infer_dynamic_shapes(set_batch_dimension_for=True) == {
        "input_ids": BOTH,
        "attention_mask": BOTH,
        "past_key_values": [both] * 4,
    }


def test_one_cache_that_was_absent_once_grows() -> None:
    observer = watched(Decoder(), [step(1, 10, None), step(1, 1, 10)])
    assert observer.infer_dynamic_shapes()["past_key_values"] == [{2: DYN}] * 4  # type: ignore[call-overload]


def test_an_encoder_decoder_cache_is_a_list_of_two_lists() -> None:
    def call(n: int) -> dict[str, Any]:
        own, cross = (make_dynamic_cache([(t(1, 2, m, 4), t(1, 2, m, 4))]) for m in (n, 5))
        return {"input_ids": t(2, 3), "past_key_values": make_encoder_decoder_cache(own, cross)}

    observer = watched(Decoder(), [call(3), call(4)])
    assert observer.infer_dynamic_shapes()["past_key_values"] == [[{2: DYN}] * 2, [{}] * 2]  # type: ignore[call-overload]


class Custom:
    def __init__(self, tensors: list[Any]) -> None:
        self.tensors = tensors


def test_a_registered_class_is_a_flat_list() -> None:
    from onlooker.pytrees.registry import register_class_flattening, unregister_class_flattening

    register_class_flattening(
        Custom,
        lambda value: (list(value.tensors), None),
        lambda children, _: Custom(list(children)),
        lambda value: ([(torch_pytree.SequenceKey(i), c) for i, c in enumerate(value.tensors)], None),
    )
    try:
        observer = watched(Nested(), [(t(5),), (t(6), Custom([t(6), t(1)])), (t(7), Custom([t(7), t(1)]))])
        assert observer.infer_dynamic_shapes() == (FIRST, [FIRST, {}])
        assert sizes(observer.infer_arguments()[1].tensors) == [(6,), (1,)]
    finally:
        unregister_class_flattening(Custom)


# arguments

ARGUMENTS: list[tuple[str, torch.nn.Module, list[Any], Any]] = [
    ("by position", Two(), pairs(), ((5, 6), (1, 6))),
    ("by name", Two(), [{"x": x, "y": y} for x, y in pairs()], {"x": (5, 6), "y": (1, 6)}),
    ("by both", Four(), [((x, y), {"w": y}) for x, y in pairs()], {"x": (5, 6), "y": (1, 6), "w": (1, 6)}),
    ("the first one that has all", Two(), [(t(5, 6),), (t(6, 7), t(1, 7)), (t(7, 8), t(1, 8))], ((6, 7), (1, 7))),
    ("the first one without ones", Two(), [(t(1, 6),), (t(3, 6),)], ((3, 6),)),
    ("nested", Nested(), [(t(5), [t(5), {"a": t(2)}]), (t(6), [t(6), {"a": t(2)}])], ((5,), [(5,), {"a": (2,)}])),
    (
        "constants",
        Options(),
        [{"x": t(5), "option": 0, "add": False}, {"x": t(6), "option": 0, "add": False}],
        {"x": (5,), "option": 0, "add": False},
    ),
    ("defaults", Options(), [{"x": t(5), "option": 1}, {"x": t(6), "add": True}], {"x": (5,)}),
    ("two stars", Kwargs(), [((t(5),), {"y": t(5)}), ((t(6),), {"y": t(6)})], {"x": (5,), "y": (5,)}),
]


@pytest.mark.parametrize(
    ("model", "calls", "expected"), [row[1:] for row in ARGUMENTS], ids=[row[0] for row in ARGUMENTS]
)
def test_one_call_with_all_arguments_is_the_example(model: torch.nn.Module, calls: list[Any], expected: Any) -> None:
    arguments = watched(model, calls).infer_arguments()
    assert sizes(arguments) == expected
    assert type(arguments) is type(expected)


@pytest.mark.parametrize(
    ("index", "expected"), [(0, ((5, 6), (1, 0))), (1, ((6, 7), (1, 7))), (2, ((7, 8), (1, 8))), (-1, ((7, 8), (1, 8)))]
)
def test_an_index_chooses_the_call_and_missing_tensors_are_empty(index: int, expected: Any) -> None:
    observer = watched(Two(), [(t(5, 6),), (t(6, 7), t(1, 7)), (t(7, 8), t(1, 8))])
    assert sizes(observer.infer_arguments(index)) == expected


def test_values_are_those_of_the_call_and_copies() -> None:
    calls = pairs()
    observer = watched(Two(), calls)
    arguments = observer.infer_arguments(1)
    assert all(torch.equal(left, right) for left, right in zip(arguments, calls[1], strict=True))
    arguments[0].zero_()
    assert torch.equal(observer.infer_arguments(1)[0], calls[1][0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"w": t(1, 6), "z": t(5, 6)}, {"x": (5, 0), "y": (1, 0), "z": (5, 6), "w": (1, 6)}),
        ((t(5, 6), t(1, 6)), {"x": (5, 6), "y": (1, 6), "z": (5, 0), "w": (1, 0)}),
    ],
    ids=["named", "by position"],
)
def test_given_arguments_are_completed(given: Any, expected: Any) -> None:
    calls = [((t(5, n), t(1, n)), {"w": t(1, n), "z": t(5, n)}) for n in (6, 7, 8)]
    observer = watched(Four(), calls)
    arguments = observer.infer_arguments(given)
    assert sizes(arguments) == expected
    if isinstance(given, dict):
        assert all(torch.equal(arguments[name], tensor) for name, tensor in given.items())


def test_a_missing_cache_is_an_empty_one() -> None:
    observer = watched(Decoder(), [step(1, 10, None), step(1, 1, 10), step(1, 1, 11)])
    arguments = observer.infer_arguments(0)
    shown = string_type(arguments["past_key_values"], with_shape=True)
    empty = "T1s1x4x0x8"
    assert shown == f"DynamicCache(key_cache=#2[{empty},{empty}], value_cache=#2[{empty},{empty}])"
    assert arguments["past_key_values"].get_seq_length() == 0


@pytest.mark.parametrize(
    ("calls", "expected"),
    [(pairs(), [(5, 6), (1, 6)]), ([(t(5), [t(5), (t(2),)]), (t(6), [t(6), (t(2),)])], [(5,), (5,), (2,)])],
)
def test_arguments_as_a_flat_list(calls: list[Any], expected: list[Shape]) -> None:
    flat = watched(Nested(), calls).infer_arguments(flat=True)
    assert type(flat) is list
    assert [tuple(tensor.shape) for tensor in flat] == expected


def test_flat_arguments_stand_in_the_order_of_the_others() -> None:
    observer = watched(Four(), [{"w": t(2), "x": t(3), "y": t(3)}, {"w": t(2), "y": t(4), "x": t(4)}])
    assert list(observer.infer_arguments()) == ["x", "y", "w"]
    assert [tuple(tensor.shape) for tensor in observer.infer_arguments(flat=True)] == [(3,), (3,), (2,)]


@pytest.mark.parametrize(
    ("model", "calls", "expected"),
    [
        (Two(), pairs(), (((5, 6), (1, 6)), {})),
        (Two(), [{"x": x, "y": y} for x, y in pairs()], ((), {"x": (5, 6), "y": (1, 6)})),
        (Four(), [((x, y), {"w": y}) for x, y in pairs()], (((5, 6), (1, 6)), {"w": (1, 6)})),
        (Args(), [(t(5), t(5), t(1)), (t(6), t(6), t(1))], (((5,), (5,), (1,)), {})),
        (ArgsAndNames(), [((t(5), t(5)), {"y": t(1)}), ((t(6), t(6)), {"y": t(1)})], (((5,), (5,)), {"y": (1,)})),
        (Kwargs(), [((t(5),), {"y": t(5)}), ((t(6),), {"y": t(6)})], (((5,),), {"y": (5,)})),
    ],
    ids=["by position", "by name", "both", "star", "star and names", "two stars"],
)
def test_arguments_as_args_and_kwargs(model: torch.nn.Module, calls: list[Any], expected: Any) -> None:
    args, kwargs = watched(model, calls).infer_arguments(as_args_kwargs=True)
    assert (sizes(args), sizes(kwargs)) == expected
    model(*args, **kwargs)


@pytest.mark.parametrize("model", [Args(), ArgsAndNames()], ids=["star", "star and names"])
def test_args_and_names_are_neither_a_tuple_nor_a_dict(model: torch.nn.Module) -> None:
    observer = watched(model, [(t(5), t(5)), (t(6), t(6))])
    with pytest.raises(RuntimeError) as caught:
        observer.infer_arguments()
    assert str(caught.value) == (
        "The arguments are neither a tuple nor a dict: the method has *args and names. "
        "Ask for both with as_args_kwargs=True. [args-and-names]"
    )


def test_inference_works_after_all_contexts_were_left() -> None:
    observer = InputObserver()
    model = Decoder()
    with register_flattening_functions(), observer(model):
        for past in (None, 10, 11):
            model(**step(1, 10 if past is None else 1, past))
    inside = None
    with register_flattening_functions():
        inside = observer.infer_dynamic_shapes()
    assert observer.infer_dynamic_shapes() == inside
    assert sizes(observer.infer_arguments(1)["input_ids"]) == (1, 1)


def test_inference_changes_nothing() -> None:
    observer = watched(Two(), pairs())
    first = (observer.recording(), observer.infer_dynamic_shapes(), sizes(observer.infer_arguments()))
    assert (observer.recording(), observer.infer_dynamic_shapes(), sizes(observer.infer_arguments())) == first


def test_all_calls_count_for_the_shapes_and_not_only_the_kept_ones() -> None:
    model, observer = Two(), InputObserver()
    with observer(model, store_n_calls=1):
        for n in (5, 5, 5, 6):
            model(t(n, 2))
    assert observer.infer_dynamic_shapes() == (FIRST,)
    assert sizes(observer.infer_arguments()) == ((5, 2),)


# value_if_missing

EMPTY = torch.ones(0, 10)


MISSING_Y: list[Any] = [(t(2, 10),), (t(3, 10), t(3, 10)), (t(4, 10), t(4, 10))]
NAMED_Y: list[Any] = [dict(zip("xy", call, strict=False)) for call in MISSING_Y]


@pytest.mark.parametrize(
    ("key", "calls", "container"),
    [("y", NAMED_Y, dict), (1, NAMED_Y, dict), (1, MISSING_Y, tuple)],
    ids=["name", "position", "all by position"],
)
def test_a_value_given_for_a_missing_argument_appears_as_given(key: Any, calls: list[Any], container: type) -> None:
    observer = watched(Two(), calls, value_if_missing={key: EMPTY})

    def spelled(x: Any, y: Any) -> Any:
        return {"x": x, "y": y} if container is dict else (x, y)

    assert observer.infer_dynamic_shapes() == spelled(FIRST, FIRST)
    assert sizes(observer.infer_arguments()) == spelled((2, 10), (0, 10))
    assert sizes(observer.infer_arguments(1)) == spelled((3, 10), (3, 10))


def test_a_value_given_for_an_argument_that_is_never_missing_is_not_used() -> None:
    observer = watched(Two(), pairs(), value_if_missing={"y": EMPTY})
    assert observer.infer_dynamic_shapes() == (BOTH, SECOND)
    assert sizes(observer.infer_arguments()) == ((5, 6), (1, 6))


UNKNOWN = "in value_if_missing. The method has x, y. [unknown-argument]"
KEY = "for a key of value_if_missing. Use the name of an argument or its position. [unexpected-key]"


@pytest.mark.parametrize(
    ("key", "cls", "builtin", "text"),
    [
        ("nope", UsageError, ValueError, f"Unexpected keyword argument 'nope' {UNKNOWN}"),
        (7, UsageError, ValueError, f"Unexpected keyword argument 7 {UNKNOWN}"),
        (-1, UsageError, ValueError, f"Unexpected keyword argument -1 {UNKNOWN}"),
        (1.5, ArgumentKindError, TypeError, f"Unexpected type float {KEY}"),
        (None, ArgumentKindError, TypeError, f"Unexpected type NoneType {KEY}"),
    ],
    ids=repr,
)
def test_a_value_for_something_unknown_is_refused(
    key: Any, cls: type[OnlookerError], builtin: type[Exception], text: str
) -> None:
    observer, model = InputObserver(value_if_missing={key: EMPTY}), Two()
    before = dict(vars(model))
    with pytest.raises(cls) as caught, observer(model):
        pytest.fail("the block was entered")
    assert str(caught.value) == text
    assert isinstance(caught.value, builtin)
    assert vars(model) == before


def test_any_name_may_be_missing_where_the_method_takes_any() -> None:
    observer = watched(
        Kwargs(),
        [{"x": t(5, 10), "y": t(10), "z": t(1, 10)}, {"x": t(6, 10), "y": t(10)}],
        value_if_missing={"z": EMPTY},
    )
    assert observer.infer_dynamic_shapes() == {"x": FIRST, "kwargs": {"y": {}, "z": FIRST}}


# errors


@pytest.mark.parametrize(
    ("model", "calls", "text"),
    [
        (
            Options(),
            [{"x": t(5), "mode": "a"}, {"x": t(5), "mode": "b"}],
            "Two calls were made with different constant values: mode is 'b' in call 1 and 'a' in others. "
            "One graph cannot serve both; observer.export() makes one graph for each. [constant-changes]",
        ),
        (
            Options(),
            [{"x": t(5), "add": True}, {"x": t(5), "add": False}],
            "Two calls were made with different constant values: add is False in call 1 and True in others. "
            "One graph cannot serve both; observer.export() makes one graph for each. [constant-changes]",
        ),
        (
            Nested(),
            [{"x": t(5)}, {"x": t(5), "y": [t(7)]}, {"x": t(5), "y": [t(7), t(7)]}],
            "Named argument 'y' has 1 tensors in call 1 and 2 in others. "
            "One graph cannot serve both; observer.export() makes one graph for each. [container-changes]",
        ),
        (
            Nested(),
            [(t(5), [t(7)]), (t(5), [t(7), t(7)])],
            "Positional argument 1 has 1 tensors in call 0 and 2 in others. "
            "One graph cannot serve both; observer.export() makes one graph for each. [container-changes]",
        ),
    ],
    ids=["text", "bool", "named list", "positional list"],
)
def test_calls_that_one_graph_cannot_serve_are_told(model: torch.nn.Module, calls: list[Any], text: str) -> None:
    observer = watched(model, calls)
    for ask in (observer.infer_dynamic_shapes, observer.infer_arguments):
        with pytest.raises(ObservationError) as caught:
            ask()
        assert str(caught.value) == text


def test_a_constant_and_its_default_are_two_values() -> None:
    observer = watched(Options(), [{"x": t(5), "mode": "b"}, {"x": t(5)}])
    with pytest.raises(ObservationError, match=r"Two calls were made with different constant values: mode"):
        observer.infer_arguments()


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([(t(5, 2),), (t(5),)], "x"),
        ([(t(5),), (torch.ones(5, dtype=torch.int64),)], "x"),
        ([(t(5), [t(2)]), (t(5), [t(2, 2)])], "y"),
        ([(t(5), "a"), (t(5), t(2))], "y"),
    ],
    ids=["rank", "dtype", "rank in a list", "text and tensor"],
)
def test_tensors_that_no_shape_describes_are_told(calls: list[Any], text: str) -> None:
    observer = watched(Nested(), calls)
    for ask in (observer.infer_dynamic_shapes, observer.infer_arguments):
        with pytest.raises(ObservationError, match=text):
            ask()


@pytest.mark.parametrize("given", ["text", 1.5, True, {1}], ids=repr)
def test_arguments_of_another_kind_are_refused(given: Any) -> None:
    with pytest.raises(ArgumentKindError) as caught:
        watched(Two(), pairs()).infer_arguments(given)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == (
        f"Unexpected type {type(given).__name__} for index_or_args_or_kwargs. Give the index of a kept call, "
        "a tuple of positional arguments or a dict of named ones. [unexpected-arguments]"
    )


@pytest.mark.parametrize("index", [3, -4, 99])
def test_an_index_that_was_not_kept_is_refused(index: int) -> None:
    with pytest.raises(UsageError) as caught:
        watched(Two(), pairs()).infer_arguments(index)
    assert str(caught.value) == (
        f"There is no kept call {index}: 3 were kept. Raise store_n_calls, or give a smaller index. [no-such-call]"
    )


@pytest.mark.parametrize("given", [{"nope": t(1)}, (t(1), t(1), t(1))], ids=["name", "positions"])
def test_given_arguments_that_the_method_does_not_have_are_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"These arguments do not fit the method: .* \[does-not-bind\]$"):
        watched(Two(), pairs()).infer_arguments(given)


def test_the_first_call_of_a_kind_is_kept_whatever_the_number_is() -> None:
    model, observer = Two(), InputObserver()
    with observer(model, store_n_calls=0):
        model(t(2))
        model(t(3))
    assert observer.num_obs() == 0
    assert observer.infer_dynamic_shapes() == (FIRST,)
    assert sizes(observer.infer_arguments()) == ((2,),)


# a real model


@pytest.fixture(scope="module")
def llama() -> Any:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def generated(llama: Any) -> InputObserver:
    observer = InputObserver()
    ids = torch.arange(3, 17).reshape(2, 7)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with observer(llama):
        llama.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None)
    return observer


def test_generate_is_inferred(generated: InputObserver) -> None:
    shapes: Any = generated.infer_dynamic_shapes(set_batch_dimension_for=True)
    assert shapes["input_ids"] == BOTH
    assert shapes["attention_mask"] == BOTH
    assert shapes["past_key_values"] == [{0: DYN, 2: DYN}] * 4
    arguments = generated.infer_arguments()
    assert set(arguments) >= {"input_ids", "attention_mask", "past_key_values"}
    tokens, total = arguments["input_ids"].shape[1], arguments["attention_mask"].shape[1]
    assert total == tokens + arguments["past_key_values"].get_seq_length()
    assert tokens > 1
    assert set(shapes) - {"kwargs"} <= set(arguments)


def chosen(arguments: dict[str, Any], shapes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Without what torch.export cannot spell for ``**kwargs``."""
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values")
    return {n: arguments[n] for n in names if n in arguments}, {n: shapes[n] for n in names if n in shapes}


@pytest.fixture(scope="module")
def exported(llama: Any, generated: InputObserver) -> Callable[..., Any]:
    """The graph that torch.export makes of what was inferred; it takes caches while they are registered."""
    arguments, shapes = chosen(
        generated.infer_arguments(), generated.infer_dynamic_shapes(set_batch_dimension_for=True)
    )
    assert set(arguments) == set(shapes)
    with register_flattening_functions(patch_transformers=True), torch.no_grad():
        program = torch.export.export(llama, (), arguments, dynamic_shapes=shapes, strict=False)
        return program.module()


def call_of(batch: int, tokens: int, past: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch + tokens + past)
    mask = torch.ones(batch, past + tokens, dtype=torch.int64)
    mask[0, : (past + tokens) // 2] = 0
    position = torch.arange(past, past + tokens).expand(batch, tokens)
    keys = [
        (torch.randn(batch, 2, past, 8, generator=generator), torch.randn(batch, 2, past, 8, generator=generator))
        for _ in range(2)
    ]
    return {
        "input_ids": torch.randint(1, 64, (batch, tokens), generator=generator),
        "attention_mask": mask,
        "position_ids": position.clone(),
        "past_key_values": make_dynamic_cache(keys),
    }


@pytest.mark.parametrize(("batch", "tokens", "past"), [(2, 3, 7), (3, 2, 5), (5, 7, 30), (4, 9, 2)])
def test_the_exported_graph_is_exact_on_other_sizes(
    llama: Any, generated: InputObserver, exported: Any, batch: int, tokens: int, past: int
) -> None:
    names = set(chosen(generated.infer_arguments(), {})[0])
    with register_flattening_functions(patch_transformers=True), torch.no_grad():
        expected = llama(**{n: v for n, v in call_of(batch, tokens, past).items() if n in names})
        got = exported(**{n: v for n, v in call_of(batch, tokens, past).items() if n in names})
    assert max_diff(expected.logits, got.logits)["abs"] <= 1e-5
    assert max_diff(expected.past_key_values, got.past_key_values)["abs"] <= 1e-5
    assert got.past_key_values.get_seq_length() == past + tokens


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def test_a_named_tuple_is_spelled_as_torch_export_takes_it() -> None:
    class Distance(torch.nn.Module):
        def forward(self, point: Point) -> torch.Tensor:
            return point.x - point.y

    model = Distance()
    observer = watched(model, [(Point(torch.ones(n, 3), torch.ones(n, 3)),) for n in (4, 5)])
    shapes = observer.infer_dynamic_shapes()
    assert shapes == (Point({0: torch.export.Dim.DYNAMIC}, {0: torch.export.Dim.DYNAMIC}),)  # type: ignore[arg-type]
    program = torch.export.export(model, observer.infer_arguments(), dynamic_shapes=shapes)
    point = Point(torch.ones(9, 3), torch.zeros(9, 3))
    torch.testing.assert_close(program.module()(point), model(point))

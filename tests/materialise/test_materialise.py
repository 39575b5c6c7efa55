"""Real arguments for chosen sizes: exact shapes, valid values, and no random number drawn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from onlooker import InputObserver
from onlooker.core.errors import ObservationError
from onlooker.core.path import Name, Path
from onlooker.core.plan import Fill, LeafPlan, Plan
from onlooker.core.sizes.expression import Expression
from onlooker.core.spec import ConstantSpec
from onlooker.core.structure import Structure, Tree
from onlooker.infer.build import build_plan
from onlooker.infer.samples import table_of
from onlooker.infer.unify import forms_of, union_of
from onlooker.materialise.arguments import Calls, close_arguments, fill_of, leaf_values
from onlooker.materialise.tensors import filled_tensor, resized
from onlooker.observing.store import Sample
from onlooker.pytrees.open import dtype_of, spec_of
from onlooker.zoo import tiny_model

INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]


@st.composite
def tensors_and_shapes(
    draw: st.DrawFn, dtypes: list[torch.dtype], least: int = 0
) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A tensor, and another shape of the same rank."""
    dtype = draw(st.sampled_from(dtypes))
    rank = draw(st.integers(0, 4))
    have = draw(st.lists(st.integers(least, 4), min_size=rank, max_size=rank))
    want = draw(st.lists(st.integers(0, 7), min_size=rank, max_size=rank))
    count = torch.Size(have).numel()
    limit = 1 if dtype is torch.bool else 100
    values = draw(st.lists(st.integers(0, limit), min_size=count, max_size=count))
    return torch.tensor(values, dtype=dtype).reshape(have), tuple(want)


@given(tensors_and_shapes(INTS + FLOATS), st.booleans())
def test_a_resized_tensor_has_exactly_the_shape_asked_for(
    case: tuple[torch.Tensor, tuple[int, ...]], varied: bool
) -> None:
    tensor, shape = case
    before, state = tensor.clone(), torch.get_rng_state()
    grown = resized(tensor, shape, varied=varied)
    assert (tuple(grown.shape), grown.dtype, grown.device) == (shape, tensor.dtype, tensor.device)
    assert grown.is_contiguous()
    assert torch.equal(tensor, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(grown, resized(tensor, shape, varied=varied))
    if grown.numel():
        assert grown.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


@given(tensors_and_shapes(INTS, least=1), st.booleans())
def test_ints_and_bools_stay_among_those_that_were_seen(
    case: tuple[torch.Tensor, tuple[int, ...]], varied: bool
) -> None:
    tensor, shape = case
    assert set(resized(tensor, shape, varied=varied).flatten().tolist()) <= set(tensor.flatten().tolist())


@given(tensors_and_shapes(FLOATS[:4], least=1))
def test_floats_are_repeated_as_they_are_unless_they_shall_vary(case: tuple[torch.Tensor, tuple[int, ...]]) -> None:
    tensor, shape = case
    assert set(resized(tensor, shape, varied=False).flatten().tolist()) <= set(tensor.flatten().tolist())


@given(tensors_and_shapes(INTS + FLOATS[:4], least=1))
def test_what_is_smaller_is_cut_out_of_what_was_seen(case: tuple[torch.Tensor, tuple[int, ...]]) -> None:
    tensor, shape = case
    assume(all(want <= have for want, have in zip(shape, tensor.shape, strict=True)))
    grown = resized(tensor, shape)
    first = tensor[tuple(slice(0, want) for want in shape)]
    last = (
        tensor[(slice(0, shape[0]), *(slice(h - w, h) for h, w in zip(tensor.shape[1:], shape[1:], strict=True)))]
        if shape
        else tensor
    )
    assert torch.equal(grown, first) or torch.equal(grown, last)


def test_a_tensor_with_two_values_in_its_first_row_alone_is_no_mask() -> None:
    """A mask that is padded on the right grows on the left."""
    ids, mask = torch.tensor([[1, 1, 0], [5, 6, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert resized(ids, (2, 4), varied=False).tolist() == [[1, 1, 0, 0], [5, 6, 0, 0]]
    assert resized(mask, (2, 4), varied=False).tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]


@given(st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.data())
def test_a_left_padded_mask_stays_one(rows: int, length: int, want_rows: int, want: int, data: st.DataObject) -> None:
    padding = [data.draw(st.integers(0, length - 1)) for _ in range(rows)]
    mask = torch.tensor([[0] * n + [1] * (length - n) for n in padding])
    grown = resized(mask, (want_rows, want))
    assert bool((grown.diff(dim=1) >= 0).all())
    assert bool((grown[:, -1] == 1).all())


@pytest.mark.parametrize("left", [True, False], ids=["left", "right"])
@given(st.lists(st.integers(0, 5), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 9))
def test_a_padded_row_is_never_hidden_completely(left: bool, padding: list[int], rows: int, length: int) -> None:
    shown = [[0] * n + [1] * (6 - n) for n in padding]
    mask = torch.tensor(shown if left else [row[::-1] for row in shown])
    assert resized(mask, (rows, length)).any(dim=1).tolist() == [True] * rows


@pytest.mark.parametrize(
    ("tensor", "shape", "expected"),
    [
        (torch.tensor([[5, 6, 7]]), (2, 3), [[5, 6, 7], [7, 5, 6]]),
        (torch.tensor([[5, 6, 7]]), (1, 5), [[5, 6, 7, 7, 7]]),
        (torch.tensor([[5, 6, 7]]), (1, 2), [[5, 6]]),
        (torch.tensor([[0, 1, 1]]), (1, 2), [[1, 1]]),
        (torch.tensor([[0, 1, 1]]), (2, 4), [[0, 1, 1, 1], [0, 1, 1, 1]]),
        (torch.tensor([[True, False, True]]), (1, 2), [[False, True]]),
        (torch.tensor([137.0, 274.0, 411.0]), (5,), [137.0, 274.0, 411.0, 128.0, 256.0]),
        (torch.tensor([[0.0, -1e9]]), (2, 3), [[0.0, -1e9, 0.0], [0.0, -1e9, 0.0]]),
        (torch.tensor(7), (), 7),
        (torch.zeros(0, 2, dtype=torch.int64), (1, 2), [[0, 0]]),
        (torch.tensor([[5, 6, 7]]), (0, 3), []),
    ],
)
def test_a_tensor_grows_as_a_user_would_grow_it(tensor: torch.Tensor, shape: tuple[int, ...], expected: Any) -> None:
    assert resized(tensor, shape).tolist() == expected


@pytest.mark.parametrize(
    "tensor", [torch.tensor([[5, 6, 7, 9]]), torch.tensor([[0.5, 0.25, 3.0]])], ids=["ids", "floats"]
)
def test_no_two_rows_are_equal(tensor: torch.Tensor) -> None:
    assert len({tuple(row) for row in resized(tensor, (3, tensor.shape[1])).tolist()}) == 3
    assert len({tuple(row) for row in resized(tensor, (3, tensor.shape[1]), varied=False).tolist()}) == 1


@pytest.mark.parametrize("dtype", FLOATS[:4], ids=str)
def test_where_nothing_was_seen_floats_are_invented_and_differ(dtype: torch.dtype) -> None:
    grown = resized(torch.zeros(2, 0, 4, dtype=dtype), (3, 5, 4))
    assert (tuple(grown.shape), grown.dtype) == ((3, 5, 4), dtype)
    assert bool(torch.isfinite(grown).all())
    assert not torch.equal(grown[0], grown[1])


def test_gradients_are_left_behind() -> None:
    tensor = torch.ones(2, 3, requires_grad=True)
    assert not resized(tensor, (4, 3)).requires_grad
    assert not resized(tensor, (2, 3)).requires_grad


@pytest.mark.parametrize(("kind", "value"), [("ones", 1), ("zeros", 0), ("empty", 0)])
@pytest.mark.parametrize("dtype", ["torch.int64", "torch.float16", "torch.bool"])
def test_a_fill_is_made_of_its_dtype(kind: str, value: int, dtype: str) -> None:
    tensor = filled_tensor(kind, (2, 3), dtype_of(dtype), "cpu")
    assert (tuple(tensor.shape), str(tensor.dtype)) == ((2, 3), dtype)
    assert bool((tensor == value).all())


# arguments from a plan

N = Expression.symbol("n")
X = Path((Name("x"),))


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (LeafPlan(X, "torch.int64", "cpu", (N, Expression.constant(4)), fill=Fill("ones")), (3, 4)),
        (LeafPlan(X, "torch.int64", "cpu", (N, Expression.constant(4)), fill=Fill("empty", dim=1)), (3, 0)),
    ],
)
def test_an_absent_tensor_has_the_planned_shape(leaf: LeafPlan, expected: tuple[int, ...]) -> None:
    assert tuple(fill_of(leaf, {"n": 3}).shape) == expected


def test_an_absent_int_is_its_fill_and_what_has_none_is_none() -> None:
    assert fill_of(LeafPlan(X, value=N, fill=Fill("constant", value=7)), {"n": 3}) == 7
    assert fill_of(LeafPlan(X, "torch.int64", "cpu", (N,)), {"n": 3}) is None


def test_a_leaf_without_values_and_without_fill_is_an_error() -> None:
    structure = Structure("arguments", (Name("x"),), (Structure(),))
    plan = Plan("main", structure, (LeafPlan(X, "torch.float32", "cpu", (N,)),))
    with pytest.raises(ObservationError) as caught:
        Calls(plan, ()).values({"n": 3})
    assert str(caught.value) == (
        "No call with values for x was kept. Raise store_n_calls so that a call which has it is kept. [no-values]"
    )


def watched(model: Any, *calls: dict[str, Any]) -> tuple[Plan, list[Sample]]:
    """The plan of these calls, with missing containers empty, and their values."""
    observer = InputObserver()
    with observer(model, store_n_calls=len(calls)), torch.no_grad():
        for call in calls:
            model(**call)
    return planned(observer)


def planned(observer: InputObserver) -> tuple[Plan, list[Sample]]:
    recording = observer.recording()
    union = union_of(forms_of(recording.calls))
    fills = {path: Fill("empty", dim=2) for form in union.forms for path in union.missing(form)}
    store = observer._watcher.store()
    return build_plan(union, table_of(recording.calls, fills), fills), store.samples


class Mixed(torch.nn.Module):
    def forward(self, x: Any, options: Any, n: int, flag: bool = True) -> Any:
        return x.sum() + options["weights"][0].sum()


def mixed_call(batch: int, length: int) -> dict[str, Any]:
    weights = [torch.rand(batch, 3, dtype=torch.float64), torch.ones(length, dtype=torch.bool)]
    return {"x": torch.arange(batch * length).reshape(batch, length), "options": {"weights": weights}, "n": length}


@pytest.fixture(scope="module")
def mixed() -> tuple[Plan, list[Sample]]:
    return watched(Mixed(), mixed_call(2, 5), mixed_call(3, 8))


@pytest.fixture(scope="module")
def llama() -> tuple[Plan, list[Sample]]:
    tiny = tiny_model("llama")
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()
    return planned(observer)


def check_specs(case: tuple[Plan, list[Sample]], data: st.DataObject) -> dict[str, Any]:
    plan, samples = case
    sizes = {s.name: data.draw(st.integers(s.low, 12), label=s.name) for s in plan.symbols}
    state = torch.get_rng_state()
    values = Calls(plan, samples).values(sizes)
    assert torch.equal(torch.get_rng_state(), state)
    assert list(values) == [leaf.path for leaf in plan.leaves]
    for leaf in plan.leaves:
        spec: Any = spec_of(values[leaf.path])
        if leaf.is_tensor:
            assert spec.shape == tuple(e.evaluate(sizes) for e in leaf.shape), leaf.path.code()
            assert (spec.dtype, spec.device) == (leaf.dtype, leaf.device)
        elif leaf.value is not None:
            assert spec == ConstantSpec(leaf.value.evaluate(sizes))
        else:
            assert spec == leaf.constant
    return close_arguments(plan, values)


@given(st.data())
def test_materialised_arguments_have_exactly_the_planned_specs(
    mixed: tuple[Plan, list[Sample]], data: st.DataObject
) -> None:
    arguments = check_specs(mixed, data)
    assert sorted(arguments) == ["n", "options", "x"]
    assert set(arguments["x"].flatten().tolist()) <= set(range(24))
    assert arguments["n"] == arguments["x"].shape[1] == arguments["options"]["weights"][1].shape[0]


@given(st.data())
def test_materialised_caches_have_exactly_the_planned_specs(
    llama: tuple[Plan, list[Sample]], data: st.DataObject
) -> None:
    arguments = check_specs(llama, data)
    cache, mask = arguments["past_key_values"], arguments["attention_mask"]
    assert cache.get_seq_length() + arguments["input_ids"].shape[1] == mask.shape[1]
    assert bool((arguments["input_ids"] < 256).all())
    assert bool(((mask == 0) | (mask == 1)).all())


def test_materialised_arguments_are_no_alias_of_what_was_kept(mixed: tuple[Plan, list[Sample]]) -> None:
    plan, samples = mixed
    first = samples[0]
    kept = {path: value.clone() for path, value in leaf_values(first).items() if isinstance(value, torch.Tensor)}
    sizes = {s.name: s.observed[0] for s in plan.symbols}
    for value in Calls(plan, samples).values(sizes).values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    now = leaf_values(first)
    assert all(torch.equal(now[path], value) for path, value in kept.items())


def test_a_call_that_is_large_enough_is_cut_instead_of_grown(mixed: tuple[Plan, list[Sample]]) -> None:
    plan, samples = mixed
    values = Calls(plan, samples).values({s.name: s.observed[-1] for s in plan.symbols})
    assert torch.equal(values[X], leaf_values(samples[1])[X])


class Optional(torch.nn.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x


def test_values_come_from_the_call_that_has_the_most() -> None:
    observer = InputObserver()
    model, few, many = Optional(), torch.zeros(3, 2), torch.ones(3, 2)
    with observer(model):
        model(few)
        model(many, torch.ones(3))
    plan, samples = planned(observer)
    values = Calls(plan, samples).values({})
    assert torch.equal(values[X], many)


def test_an_opaque_object_is_passed_as_it_was() -> None:
    thing = object()
    structure = Structure("arguments", (Name("x"),), (Structure(),))
    inputs: Tree[Any] = Tree(structure, (thing,))
    observer = InputObserver()
    model = torch.nn.Identity()
    with observer(model):
        model(torch.zeros(1))
    sample = Sample(observer.recording().calls[0], inputs, Tree(Structure(), (None,)))
    assert Calls(Plan("main", structure, (LeafPlan(X),)), [sample]).values({}) == {X: thing}


@pytest.mark.parametrize("shown", [True, False], ids=["ones below", "ones above"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 3), (9, 9), (2, 12), (5, 9)])
@pytest.mark.parametrize("past", [0, 4])
def test_a_triangle_stays_a_triangle_that_ends_in_the_last_corner(
    past: int, rows: int, columns: int, shown: bool
) -> None:
    def triangle(rows: int, columns: int) -> torch.Tensor:
        below = torch.ones(rows, columns).tril(columns - rows).bool()
        return below if shown else ~below

    seen = triangle(3, 3 + past)
    assert torch.equal(resized(seen, (rows, columns)), triangle(rows, columns))
    added = torch.zeros(3, 3 + past).masked_fill(seen, float("-inf"))
    other = torch.zeros(rows, columns).masked_fill(triangle(rows, columns), float("-inf"))
    assert torch.equal(resized(added, (rows, columns)), other)
    assert torch.equal(resized(seen.expand(2, 1, -1, -1), (3, 1, rows, columns))[2, 0], triangle(rows, columns))


def test_rows_of_padding_that_are_a_triangle_are_never_hidden_completely() -> None:
    padding = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    for rows, columns in ((2, 9), (5, 6), (7, 3), (9, 2)):
        assert resized(padding, (rows, columns)).any(1).all()


def test_floats_that_grow_stay_between_those_that_were_seen() -> None:
    """A time of day below 1, and whole numbers as floats, are rows of a table, which has no others."""
    for seen in (torch.linspace(0, 0.99, 6).reshape(2, 3), torch.tensor([[0.0, 8.0, 3.0]])):
        grown = resized(seen, (9, 7))
        assert seen.min() <= grown.min()
        assert grown.max() <= seen.max()
        assert len({tuple(row) for row in grown.tolist()}) == 9

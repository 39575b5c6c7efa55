"""Inputs of every kind of tensor: a program that holds, or one clear error, and never one of torch's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import onlooker
from fuzz_values import DTYPES, KINDS, end_group
from onlooker import InputObserver, OnlookerError, Program, RejectedCallError, UnsupportedError
from onlooker.lab.judge import perturbed
from onlooker.materialise.domains import Domains
from onlooker.materialise.tensors import filled_tensor, resized
from onlooker.pytrees.comparisons.agree import agreement, leaf_difference
from onlooker.pytrees.numbers import altered, as_dtype, as_numbers, as_numbers_dtype, is_same
from onlooker.pytrees.open import open_arguments
from onlooker.pytrees.unusual import unusual

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, on kinds that are experimental or deprecated

#: the kinds that no program takes or gives, and a word of what is said of each
UNUSUAL = {
    **{"quantised": "x.dequantize()", "per channel": "x.dequantize()"},
    **dict.fromkeys(("sparse", "not coalesced", "csr", "bsr", "mkldnn"), "x.to_dense()"),
    **{kind: "x.full_tensor()" for kind in ("distributed", "replicated") if kind in KINDS},
    **{"nested": "a nested tensor", "jagged": "a nested tensor"},
    **{"meta": "on a real device", "fake": "outside FakeTensorMode", "uninitialised parameter": "is not initialised"},
}
PACKED = torch.float4_e2m1fn_x2
#: the dtypes that torch can hold and hardly compute with
HELD = tuple(dtype for dtype in DTYPES.values() if as_numbers_dtype(dtype) is not dtype)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """The group of distributed tensors ends with the tests that make some."""
    yield
    end_group()


def values_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Small numbers, 1 to 7, of a dtype; of a packed one their bits."""
    numbers = torch.arange(1, 1 + math.prod(shape)).reshape(shape) % 7 + 1
    return numbers.to(torch.uint8).view(dtype) if dtype is PACKED else numbers.to(dtype)


def watched(model: torch.nn.Module, *calls: dict[str, Any]) -> InputObserver:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for call in calls:
            model(**call)
    return observer


def verified(model: torch.nn.Module, *calls: dict[str, Any]) -> Program:
    program: Program = watched(model, *calls).export()
    tally = program.verify()
    assert tally.verified, [check.note for check in tally.checks if not check.passed]
    return program


class Cloned(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.clone(), y + 1


class Beside(torch.nn.Module):
    """Does not look at ``x``."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return y + 1


#: torch itself cannot clone a parameter that has no shape yet
CASES = [
    (kind, cls) for kind in KINDS for cls in (Cloned, Beside) if (kind, cls) != ("uninitialised parameter", Cloned)
]


@pytest.mark.parametrize(("kind", "cls"), CASES, ids=lambda value: getattr(value, "__name__", value))
@pytest.mark.one_in(26)
def test_a_model_with_any_kind_of_input_is_proven_or_refused(kind: str, cls: type[torch.nn.Module]) -> None:
    model = cls()
    calls = [{"x": KINDS[kind]((k,)), "y": torch.ones(k, 2)} for k in (2, 3)]
    if kind not in UNUSUAL:
        verified(model, *calls)
        return
    observer = watched(model, *calls)
    for use in (observer.export, observer.plans, observer.code):
        with pytest.raises(UnsupportedError) as caught:
            use()
        assert caught.value.slug == "unusual-tensor"
        assert str(caught.value).startswith("x of call 0 is a ")
        assert UNUSUAL[kind] in str(caught.value)


class Cast(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.to(torch.complex64 if x.is_complex() else torch.float32) * 2 + y


class Back(torch.nn.Module):
    """Computes in another dtype, and gives a result in that of ``x``."""

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> Any:
        x = torch.cat([past, x], dim=1)
        return x, (x.to(torch.complex64 if x.is_complex() else torch.float32) * 3).to(x.dtype)


class Gathered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.table(input_ids.to(torch.int64))
        return rows


class Masked(torch.nn.Module):
    def forward(self, y: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return y.softmax(-1) * attention_mask.to(torch.float32)


class Optional(torch.nn.Module):
    def forward(self, y: torch.Tensor, x: torch.Tensor | None = None) -> torch.Tensor:
        return y if x is None else y + x.to(torch.float32)


def mask_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    mask = torch.ones(shape)
    mask[0, 0] = 0
    return mask.to(dtype)


USES: dict[str, Any] = {
    "cast": (Cast, lambda d: [{"x": values_of(d, k, 3), "y": torch.ones(k, 3)} for k in (2, 3)]),
    "back": (Back, lambda d: [{"x": values_of(d, 2, k), "past": values_of(d, 2, p)} for k, p in ((2, 0), (1, 3))]),
    "gathered": (Gathered, lambda d: [{"input_ids": values_of(d, k, 5)} for k in (2, 3)]),
    "masked": (Masked, lambda d: [{"y": torch.randn(k, 4), "attention_mask": mask_of(d, k, 4)} for k in (2, 3)]),
    "optional": (Optional, lambda d: [{"y": torch.ones(2, 3)}, {"y": torch.ones(3, 3), "x": values_of(d, 3, 3)}]),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("dtype", HELD, ids=str)
@pytest.mark.one_in(16)
def test_a_model_that_converts_what_torch_hardly_computes_with_is_proven(dtype: torch.dtype, use: str) -> None:
    make, calls = USES[use]
    program = verified(make(), *calls(dtype))
    dynamic = {str(axis) for plan in program.plans for leaf in plan.inputs for axis in leaf.shape}
    assert any(not text.isdigit() for text in dynamic)


@pytest.mark.parametrize("dtype", HELD, ids=str)
@pytest.mark.one_in(3)
def test_such_a_program_is_saved_with_values_and_proven_where_it_is_loaded(dtype: torch.dtype, tmp_path: Any) -> None:
    model = Back()
    program = verified(model, *USES["back"][1](dtype))
    program.save(tmp_path / "saved", values=True)
    loaded = onlooker.load(tmp_path / "saved")
    again = loaded.verify_saved()
    assert again.passed == again.total == 2
    assert loaded.verify(model=model).verified


def test_a_program_with_packed_floats_runs_and_is_refused_as_a_file(tmp_path: FilePath) -> None:
    calls = [{"x": values_of(PACKED, k, 2), "y": torch.ones(k, 2)} for k in (2, 3)]
    program = verified(Cloned(), *calls)
    with pytest.raises(OnlookerError) as caught:
        program.save(tmp_path / "saved", values=True)
    assert caught.value.slug == "program-not-saved"
    assert "float4_e2m1fn_x2" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("factor", [0, 2])
@pytest.mark.parametrize("dtype", HELD, ids=str)
def test_a_wrong_result_of_such_a_dtype_is_seen(dtype: torch.dtype, factor: int) -> None:
    right = values_of(dtype, 3, 4)
    wrong = as_dtype(as_numbers(right) * factor, dtype)
    (path,) = open_arguments({"x": None}).structure.paths()
    assert agreement([path], [right], [right.clone()]).holds
    assert leaf_difference(right, wrong) >= 0.5
    assert not agreement([path], [right], [wrong]).holds


@pytest.mark.parametrize("dtype", [*HELD, PACKED], ids=str)
def test_numbers_hold_each_value_and_lead_back(dtype: torch.dtype) -> None:
    bits = torch.arange(256, dtype=torch.uint8).repeat(dtype.itemsize * 2)
    tensor = bits.view(dtype)
    numbers = as_numbers(tensor)
    assert numbers.dtype == as_numbers_dtype(dtype)
    assert numbers.shape == tensor.shape
    there = as_numbers(as_dtype(numbers, dtype))
    assert bool(((there == numbers) | (there.isnan() & numbers.isnan())).all())


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype not in HELD], ids=str)
def test_numbers_of_a_dtype_that_computes_are_the_tensor_itself(dtype: torch.dtype) -> None:
    tensor = torch.ones(2).to(dtype)
    assert as_numbers(tensor) is tensor
    assert as_numbers_dtype(dtype) is dtype


@pytest.mark.parametrize("dtype", [*DTYPES.values(), PACKED], ids=str)
def test_every_dtype_is_grown_cut_and_filled(dtype: torch.dtype) -> None:
    tensor = values_of(dtype, 2, 3)
    for shape in ((2, 3), (5, 3), (2, 7), (4, 6), (1, 2), (3, 0)):
        grown = resized(tensor, shape)
        assert (grown.dtype, tuple(grown.shape), grown.is_contiguous()) == (dtype, shape, True)
    assert tuple(resized(tensor[:0], (2, 3)).shape) == (2, 3)
    assert filled_tensor("ones", (2, 3), dtype, "cpu").dtype == dtype
    assert bool((as_numbers(filled_tensor("empty", (2, 3), dtype, "cpu")) == 0).all()) or dtype is torch.float8_e8m0fnu
    if dtype is not torch.bool:
        first, second = as_numbers(resized(tensor, (4, 3))).split(2)
        assert not torch.equal(first, second), "rows that are repeated can be told apart"


@pytest.mark.parametrize("dtype", [*(d for d in HELD if not d.is_complex), torch.int64, torch.float32], ids=str)
def test_a_mask_of_any_dtype_stays_a_mask(dtype: torch.dtype) -> None:
    found = as_numbers(resized(mask_of(dtype, 2, 4), (3, 6)))
    assert found.unique().numel() == 2
    assert bool((found == found.max()).any(dim=1).all()), "no row is hidden completely"


@pytest.mark.parametrize("dtype", [*HELD, PACKED], ids=str)
def test_other_values_of_such_a_dtype_are_others(dtype: torch.dtype) -> None:
    (path,) = open_arguments({"x": None}).structure.paths()
    before = values_of(dtype, 2, 3)
    grown = resized(before, (2, 5))
    axis = onlooker.core.spec.Axis(path, 1)
    found = perturbed({path: grown}, {path: before}, [axis], Domains())[path]
    assert found.dtype == dtype
    kept, changed = (as_numbers(found)[:, part] == as_numbers(grown)[:, part] for part in (slice(3), slice(3, None)))
    assert bool(kept.all())
    assert not bool(changed.all())
    if dtype.is_floating_point or dtype.is_complex:
        assert not is_same(altered(before), before)


def test_ints_that_float64_cannot_tell_apart_are_told_apart() -> None:
    for dtype in (torch.int64, torch.uint64):
        left = torch.tensor([2**62], dtype=torch.int64).to(dtype)
        right = torch.tensor([2**62 + 1], dtype=torch.int64).to(dtype)
        assert leaf_difference(left, right) >= 1
        assert leaf_difference(left, left.clone()) == 0
        assert not is_same(left, right)


@pytest.mark.parametrize("kind", UNUSUAL)
def test_an_unusual_tensor_is_never_taken_for_equal(kind: str) -> None:
    tensor = KINDS[kind]((2,))
    assert unusual(tensor) is not None
    assert not is_same(tensor, tensor)
    assert leaf_difference(tensor, tensor) == leaf_difference(torch.ones(2), tensor) == math.inf
    with pytest.raises(UnsupportedError, match="unusual-tensor"):
        resized(tensor, (4,))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNUSUAL])
def test_a_dense_tensor_with_values_is_not_unusual(kind: str) -> None:
    assert unusual(KINDS[kind]((2, 3))) is None


class Sparse(torch.nn.Module):
    """Gives a sparse tensor, some way down in its result."""

    runs = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.runs += 1
        return {"dense": x * 2, "parts": [x, x.to_sparse()]}


def test_a_sparse_result_is_refused_by_its_path_before_the_model_is_asked() -> None:
    model = Sparse()
    observer = watched(model, {"x": torch.ones(2, 3)}, {"x": torch.ones(3, 3)})
    with pytest.raises(UnsupportedError, match=r"the result\['parts'\]\[1\] of call 0 is a sparse tensor.*to_dense"):
        observer.export()
    assert model.runs == 2


def test_the_number_of_the_call_is_the_one_that_brought_the_tensor() -> None:
    observer = watched(Beside(), *({"x": x, "y": torch.ones(2, 2)} for x in (torch.ones(2), torch.eye(2).to_sparse())))
    with pytest.raises(UnsupportedError, match="x of call 1 is a sparse tensor"):
        observer.export()


def test_a_class_with_operators_of_its_own_is_refused() -> None:
    masked = torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False]))
    observer = watched(Beside(), {"x": masked, "y": torch.ones(2, 2)})
    with pytest.raises(UnsupportedError, match=r"MaskedTensor, which has operators of its own"):
        observer.plans()


def test_fake_calls_beside_real_ones_do_not_stand_in_the_way() -> None:
    model, observer = Beside(), InputObserver()
    with torch.no_grad(), observer(model):
        with FakeTensorMode():
            model(torch.ones(4), torch.ones(4, 2))
        for k in (2, 3):
            model(torch.ones(k), torch.ones(k, 2))
    assert observer.export().verify().verified


def test_of_many_fake_calls_the_first_is_named() -> None:
    observer = watched(Beside(), *[{"x": KINDS["fake"]((k,)), "y": torch.ones(k, 2)} for k in range(2, 30)])
    with pytest.raises(UnsupportedError, match="x of call 0 is a fake tensor"):
        observer.export()
    assert len(observer._watcher.store(None).unsaved) == 1


def test_a_program_is_not_adopted_for_calls_that_it_cannot_serve() -> None:
    program = watched(Beside(), {"x": torch.ones(2), "y": torch.ones(2, 2)}).export()
    observer = watched(Beside(), {"x": torch.eye(2).to_sparse(), "y": torch.ones(2, 2)})
    with pytest.raises(UnsupportedError, match="x of call 0 is a sparse tensor"):
        observer.adopted(program)


@pytest.mark.parametrize("kind", ["fake", "uninitialised parameter"])
def test_without_values_there_are_neither_arguments_nor_discrepancies(kind: str) -> None:
    model = Beside()
    observer = watched(model, {"x": KINDS[kind]((2,)), "y": torch.ones(2, 2)})
    for use in (observer.infer_arguments, lambda: observer.check_discrepancies(model)):
        with pytest.raises(OnlookerError, match="No call with values was kept"):
            use()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_program_refuses_an_unusual_tensor_or_does_what_the_model_does(kind: str) -> None:
    program = watched(Beside(), *({"x": torch.ones(k), "y": torch.ones(k, 2)} for k in (2, 3))).export()
    y = torch.ones(2, 2)
    try:
        assert torch.equal(program(KINDS[kind]((2,)), y), y + 1)
    except RejectedCallError as error:
        assert error.slug == "call-refused"  # noqa: PT017  # any other is an error of the test


@pytest.mark.parametrize("dtype", [*HELD, PACKED], ids=str)
def test_a_tensor_that_comes_again_is_kept_again(dtype: torch.dtype) -> None:
    tensor = values_of(dtype, 2, 2)
    observer = watched(Beside(), *[{"x": tensor, "y": torch.ones(2, 2)}] * 3)
    assert observer.num_obs() == 3
    assert observer.recording().missed == ()

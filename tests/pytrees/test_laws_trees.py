"""Laws of trees of any tensors: opened and closed, described, compared, watched, and written to files."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz_values import ATOMS, KINDS, Own, end_group, examples, tensors, trees
from onlooker import InputObserver, Recording
from onlooker.core.errors import UnsupportedError, UsageError
from onlooker.core.spec import TensorSpec
from onlooker.disk.codec import read_document, write_document
from onlooker.disk.text import read_json, write_json
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.open import close_tree, open_arguments, open_tree, spec_of
from onlooker.targets.weights import read_tensors, write_tensors
from onlooker_compat.trees.compare import max_diff

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, on kinds that are experimental or deprecated
OPTIONS = st.fixed_dictionaries({name: st.booleans() for name in ("with_shape", "with_min_max", "with_device")})
VALUES = trees()
COMPARABLE = tuple(name for name in KINDS if name not in ("meta", "fake", "uninitialised parameter"))


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """The group of distributed tensors ends with the tests that make some."""
    yield
    end_group()


def check_opened(value: Any) -> None:
    """Opening and closing gives the same structure of the same leaves, by the same paths."""
    tree = open_arguments({"x": value})
    (again,) = close_tree(tree.structure, tree.leaves).values()
    assert type(again) is type(value)
    second = open_arguments({"x": again})
    assert second.structure == tree.structure
    assert hash(second.structure) == hash(tree.structure)
    assert [a is b for a, b in zip(tree.leaves, second.leaves, strict=True)] == [True] * len(tree.leaves)
    for path, leaf in tree.items():
        assert path.follow({"x": value}) is leaf
        assert eval(path.code(), {}, {"x": value}) is leaf


def check_described(value: Any, options: dict[str, bool]) -> None:
    """The text is one line, the same each time, and no longer than what it describes."""
    text = string_type(value, **options)
    assert text == string_type(value, **options)
    assert 0 < len(text) <= 200 * (1 + parts(value))


def parts(value: Any) -> int:
    """The number of containers and leaves."""
    return sum(2 + len(path.code()) for path, _ in open_arguments({"x": value}).items())


def check_difference(value: Any) -> None:
    """Nothing differs from itself; only tensors without values are refused."""
    with contextlib.suppress(UnsupportedError):
        found = max_diff(value, value, hist=True)
        assert (found["abs"], found["rel"], found["sum"], found["dnan"]) == (0, 0, 0, 0)


def check_codec(value: Any) -> None:
    """The specs of the leaves survive JSON, in a recording."""
    recording = watched(value)
    content = write_json(write_document("recording", Recording, recording))
    read = read_document(read_json(content, "file"), "recording", Recording, "file")
    assert read == recording
    assert hash(read) == hash(recording)


class Same(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def watched(value: Any) -> Recording:
    """The recording of a call with this argument, whose result is the argument itself."""
    model, observer = Same(), InputObserver()
    with observer(model):
        assert model(value) is value
    recording = observer.recording()
    assert len(recording.calls) == 1, recording.missed
    leaves = open_tree(value).leaves
    kinds = [type(spec_of(leaf, identified=False)) for leaf in leaves]
    assert [type(spec) for spec in recording.calls[0].inputs.leaves] == kinds
    assert [type(spec) for spec in recording.calls[0].outputs.leaves] == kinds
    tensors = [str(spec_of(leaf)) for leaf in leaves if isinstance(spec_of(leaf), TensorSpec)]
    assert [str(spec) for spec in recording.calls[0].inputs.leaves if isinstance(spec, TensorSpec)] == tensors
    return recording


def check_all(value: Any) -> None:
    check_opened(value)
    for on in (False, True):
        check_described(value, dict.fromkeys(("with_shape", "with_min_max", "with_device"), on))
    check_difference(value)
    check_codec(value)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_all_laws_hold_for_a_tensor_of_any_kind(kind: str, shape: tuple[int, ...]) -> None:
    tensor = KINDS[kind](shape)
    check_all(tensor)
    check_all({"a": [tensor, tensor], "b": (tensor,)})


@given(VALUES)
@examples(80)
def test_a_tree_is_closed_as_it_was_opened(value: Any) -> None:
    check_opened(value)


@given(VALUES, OPTIONS)
@examples(80)
def test_a_tree_is_described_in_one_bounded_line(value: Any, options: dict[str, bool]) -> None:
    check_described(value, options)


@given(VALUES)
@examples(60)
def test_a_tree_does_not_differ_from_itself(value: Any) -> None:
    check_difference(value)


@given(VALUES)
@examples(40)
def test_a_call_with_any_tree_is_recorded_and_survives_json(value: Any) -> None:
    check_codec(value)


def differences(first: Any, second: Any, **options: Any) -> dict[str, Any] | str:
    """The differences, or the slug of the error that refuses them."""
    try:
        return max_diff(first, second, **options)
    except (UsageError, UnsupportedError) as error:
        return error.slug


@given(VALUES, VALUES, st.booleans(), st.booleans())
@example(torch.tensor(1.0, dtype=torch.bfloat16), [None], False, False)
@examples(80)
def test_two_trees_differ_as_much_in_either_order(first: Any, second: Any, flatten: bool, skip: bool) -> None:
    there = differences(first, second, flatten=flatten, skip_none=skip)
    back = differences(second, first, flatten=flatten, skip_none=skip)
    if isinstance(there, str) or isinstance(back, str):
        assert there == back
        return
    assert there["abs"] == back["abs"]
    assert there["dnan"] == back["dnan"]
    assert there["abs"] >= 0
    assert not math.isnan(there["abs"])


@given(tensors(COMPARABLE), tensors(COMPARABLE))
@examples(150)
def test_the_difference_of_two_tensors_is_symmetric_and_never_nan(first: torch.Tensor, second: torch.Tensor) -> None:
    there, back = max_diff(first, second, hist=True), max_diff(second, first, hist=True)
    assert (there["abs"], there["dnan"], there["n"]) == (back["abs"], back["dnan"], back["n"])
    assert not any(math.isnan(there[name]) or there[name] < 0 for name in ("abs", "rel", "sum"))
    assert (there["dnan"] == 0) or there["abs"] == math.inf
    assert there.get("rep") == back.get("rep")


@given(st.lists(st.floats(width=32), min_size=1, max_size=5), st.lists(st.floats(width=32), min_size=1, max_size=5))
@examples(80)
def test_the_rules_of_nan(first: list[float], second: list[float]) -> None:
    pairs = list(zip(first, second, strict=False))
    found = max_diff(torch.tensor([a for a, _ in pairs]), torch.tensor([b for _, b in pairs]))
    one_sided = sum(math.isnan(a) is not math.isnan(b) for a, b in pairs)
    assert found["dnan"] == one_sided
    expected = [
        0.0 if a == b or (math.isnan(a) and math.isnan(b)) else math.inf if math.isnan(a - b) else abs(a - b)
        for a, b in pairs
    ]
    assert found["abs"] == max(expected)


def test_numbers_that_no_tensor_holds_differ_from_tensors() -> None:
    """Found by `make fuzz`: an int of more than 64 bits raised."""
    numbers = [[2**63, 2**63], [2**63, 2**63]]
    for value in (torch.ones(2, 2), torch.ones(2)):
        assert max_diff(numbers, value)["abs"] == max_diff(value, numbers)["abs"] == math.inf


TABLES = st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), tensors(), max_size=4), max_size=2)


@given(TABLES, st.booleans())
@examples(60)
def test_tensors_come_back_from_a_file_or_are_refused(tmp_path: Any, tables: Any, shared: bool) -> None:
    if shared and tables:
        first = next(iter(tables.values()))
        tables = {**tables, "again": dict(first)}
    try:
        write_tensors(tables, tmp_path / "w")
    except UnsupportedError as error:
        assert error.slug == "tensor-not-saved"  # noqa: PT017  # any other is an error of the test
        return
    read = read_tensors(tmp_path / "w")
    assert {table: set(rows) for table, rows in read.items()} == {table: set(rows) for table, rows in tables.items()}
    for table, rows in tables.items():
        for name, tensor in rows.items():
            check_read(tensor, read[table][name])


def check_read(tensor: torch.Tensor, found: torch.Tensor) -> None:
    assert type(found) in (torch.Tensor, torch.nn.Parameter)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert (found.requires_grad, isinstance(found, torch.nn.Parameter)) == (
        tensor.requires_grad,
        isinstance(tensor, torch.nn.Parameter),
    )
    assert max_diff(tensor.detach(), found.detach())["abs"] == 0


def test_a_tensor_of_a_derived_class_stays_one() -> None:
    tree = open_tree([Own(torch.ones(2))])
    assert type(close_tree(tree.structure, tree.leaves)[0]) is Own


@given(st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3), max_leaves=5), OPTIONS)
@examples(40)
def test_what_holds_no_tensor_obeys_the_laws_too(value: Any, options: dict[str, bool]) -> None:
    check_opened(value)
    check_described(value, options)
    check_difference(value)

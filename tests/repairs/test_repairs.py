"""The tuple of repairs: what each says of itself, and in which order they are asked."""

from __future__ import annotations

import ast

import pytest
import torch

from onlooker.repairs.guard_count import UNGUARDED, TooManyGuardsError
from onlooker.repairs.loops.rolled_loops import NotRolledError, RolledLoops
from onlooker.repairs.memory_copies import MEMORY_COPIES
from onlooker.repairs.neutral_branches import NEUTRAL_BRANCHES, NeutralBranches
from onlooker.repairs.not_tracing import EQUAL_SIZES, NOT_TRACING
from onlooker.repairs.numbers.by_values import BY_VALUES
from onlooker.repairs.numbers.greatest_sizes import GREATEST_SIZES
from onlooker.repairs.numbers.size_functions import SIZE_KEYS
from onlooker.repairs.numbers.size_ints import SIZE_INTS
from onlooker.repairs.repair import Attempt, Repair, TraceRequest
from onlooker.repairs.repairs import REPAIRS, anew, next_attempt
from onlooker.repairs.trace_mode import Reader, TraceMode, reading
from onlooker.repairs.value_branches import VALUE_BRANCHES
from onlooker.torch_internals.fake_tensors import DataDependentOutputException
from repairs_page import PAGE, ROOT, page


def test_the_page_is_that_of_the_repairs() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/repairs_page.py writes it"


@pytest.mark.parametrize("repair", REPAIRS, ids=lambda repair: repair.name)
def test_what_tells_when_a_repair_may_go_is_there(repair: Repair) -> None:
    path, _, test = repair.until.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert not test or test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert repair.why.endswith(".")


def test_no_repair_stands_twice() -> None:
    assert len({repair.name for repair in REPAIRS}) == len(REPAIRS)


VALUE = DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (TooManyGuardsError("many"), UNGUARDED),
        (TypeError("unhashable type: non-nested SymInt"), SIZE_KEYS),
        (VALUE, VALUE_BRANCHES),
        (AssertionError("[0, 4] not a subset of src_bound [0, 3]"), GREATEST_SIZES),
        (RuntimeError("a shape is wrong"), NOT_TRACING),
    ],
    ids=lambda value: value.name if isinstance(value, Repair) else type(value).__name__,
)
def test_a_refusal_wants_a_repair(error: Exception, wanted: Repair) -> None:
    retry = next_attempt(Attempt(TraceRequest(), error=error))
    assert retry is not None
    assert retry.request.on == {wanted}
    assert wanted.is_part_of(retry.request)


def test_what_no_repair_knows_is_the_last_attempt() -> None:
    assert next_attempt(Attempt(TraceRequest(), error=KeyError("x"))) is None
    assert next_attempt(Attempt(TraceRequest().with_repair(NOT_TRACING), error=RuntimeError("x"))) is None


def test_a_loop_that_is_no_scan_is_asked_before_anything_else() -> None:
    loops = RolledLoops()
    error = loops.failed(NotRolledError("model.py:3", "it ends early"))
    retry = next_attempt(Attempt(TraceRequest(), readers=[NeutralBranches(), loops], error=RuntimeError(str(error))))
    assert retry is not None
    assert retry.request.unrolled == ("model.py:3",)
    assert retry.note == str(error)


def test_branches_that_were_taken_are_given_up_last() -> None:
    branches = NeutralBranches()
    branches.taken.append("model.py:3")
    retry = next_attempt(Attempt(TraceRequest(), readers=[branches], error=KeyError("x")))
    assert retry is not None
    assert not NEUTRAL_BRANCHES.is_part_of(retry.request)
    assert MEMORY_COPIES.is_part_of(retry.request)


def test_ints_of_python_come_back_where_sizes_did_not_help() -> None:
    asked = TraceRequest().with_repair(SIZE_INTS)
    retry = next_attempt(Attempt(asked, error=TypeError("no size")))
    assert retry is not None
    assert retry.request.off == {SIZE_INTS}
    assert next_attempt(Attempt(retry.request, error=TypeError("no size"))) is None


def test_equal_sizes_take_the_place_of_a_trace_that_is_not_told() -> None:
    retry = next_attempt(Attempt(TraceRequest().with_repair(NOT_TRACING), error=VALUE))
    assert retry is not None
    assert retry.request.on == {EQUAL_SIZES}


def test_another_trace_finds_out_anew_whether_values_decide() -> None:
    asked = TraceRequest(value_error=VALUE).with_repair(BY_VALUES, NOT_TRACING)
    assert anew(asked) == TraceRequest().with_repair(NOT_TRACING)


class Noting(Reader):
    """Writes down which functions it gets."""

    def __init__(self, name: str, found: list[str], functions: frozenset[object] | None = None) -> None:
        self.name, self.found, self.functions = name, found, functions

    def on_call(self, func, args, kwargs):  # type: ignore[no-untyped-def]
        self.found.append(f"{self.name} {func.__name__}")
        return func(*args, **kwargs)


class Doubling(Noting):
    """Answers a sum by other functions of torch."""

    def on_call(self, func, args, kwargs):  # type: ignore[no-untyped-def]
        self.found.append(f"{self.name} {func.__name__}")
        return torch.mul(args[0].sum(), 2)


def test_readers_see_a_function_from_the_last_one_to_the_first() -> None:
    found: list[str] = []
    with reading(Noting("a", found), Noting("b", found, frozenset({torch.sum})), Noting("c", found)):
        torch.sum(torch.ones(2))
    assert [one for one in found if one.endswith("sum")] == ["c sum", "b sum", "a sum"]
    assert "b ones" not in found


def test_what_a_reader_calls_is_seen_by_those_before_it() -> None:
    found: list[str] = []
    with reading(Noting("a", found), Doubling("b", found, frozenset({torch.sum})), Noting("c", found)):
        assert torch.sum(torch.ones(3)).item() == 6
    assert [one for one in found if not one.endswith(("ones", "item"))] == ["c sum", "b sum", "a sum", "a mul"]


def test_an_error_leaves_the_mode_as_it_was() -> None:
    found: list[str] = []
    mode = TraceMode(Noting("a", found), Noting("b", found))
    with mode:
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        found.clear()
        torch.ones(1)
    assert found == ["b ones", "a ones"]

"""A size that the user names is tried, or is a failed check that says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onlooker import InputObserver, Program, UsageError
from onlooker.core.verdict import Check, Focus, Outcome

ROWS = 40


class Positions(nn.Module):
    """A table of positions, behind a past or without one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(20, 4), nn.Embedding(ROWS, 4)

    def forward(self, ids: Tensor, past: Tensor | None = None) -> Tensor:
        first = 0 if past is None else past.shape[1]
        places = torch.arange(first, first + ids.shape[1])
        found = self.words(ids) + self.table(places)
        return found if past is None else torch.cat([past, found], 1)


class Uneven(nn.Module):
    """The model refuses some sizes by itself, with an error of its own."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] % 13 == 2:
            raise ValueError("two are left")
        return x * 2


def exported(model: nn.Module, *calls: tuple[Any, ...], **more: Any) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model.eval()):
        for call in calls:
            model(*call)
    return observer.export(**more)


def tokens(*shape: int) -> Tensor:
    return 7 * torch.arange(shape[0] * shape[1]).reshape(shape) % 20


TEXTS = (tokens(2, 10),), (tokens(3, 12),), (tokens(4, 7),)


@pytest.fixture(scope="module")
def program() -> Program:
    return exported(Positions(), *TEXTS)


def given(program: Program, sizes: Any) -> list[Check]:
    tally = program.verify(sizes=sizes)
    return [check for check in tally.checks if check.focus is Focus.GIVEN]


def test_sizes_up_to_the_bound_are_tried_and_those_beyond_are_failures(program: Program) -> None:
    checks = given(program, {"sequence": [ROWS, ROWS + 1, 500]})
    assert [check.outcome for check in checks] == [Outcome.EXACT, Outcome.FAILED, Outcome.FAILED]
    assert [dict(check.sizes)["sequence"] for check in checks] == [ROWS, ROWS + 1, 500]
    for check in checks[1:]:
        assert f"sequence <= {ROWS} ({ROWS} rows of table.weight)" in check.note
        assert "self.table(places)" in check.note
    assert not program.tally.verified
    assert not program.report.verified
    assert "given sizes failed" in program.tally.verdict


def test_a_list_of_sizes_names_them_too(program: Program) -> None:
    (check,) = given(program, [{"sequence": ROWS + 1}])
    assert check.outcome is Outcome.FAILED
    assert program.verify().verified


def test_a_number_alone_needs_one_symbol(program: Program) -> None:
    with pytest.raises(UsageError, match=r"129, which may be of batch or sequence") as caught:
        program.verify(sizes=[129])
    assert caught.value.slug == "no-such-symbol"
    one = exported(Positions(), (tokens(1, 10),), (tokens(1, 12),), static={"ids": [0]})
    checks = given(one, [ROWS, ROWS + 1])
    assert [check.outcome for check in checks] == [Outcome.EXACT, Outcome.FAILED]


def test_other_sizes_make_room_for_a_given_one() -> None:
    calls = [(tokens(2, n), torch.randn(2, k, 4)) for n, k in ((5, 3), (6, 7), (4, 0))]
    program = exported(Positions(), *calls)
    past = program.plans[0].symbols[-1].name
    assert past.startswith("past")
    checks = given(program, [{"sequence": ROWS}, {"sequence": ROWS, past: 1}, {past: ROWS - 1}])
    assert [check.outcome for check in checks] == [Outcome.EXACT, Outcome.FAILED, Outcome.EXACT]
    assert f"{past} + sequence <= {ROWS}" in checks[1].note


def test_sizes_that_the_model_refuses_by_itself_are_failures() -> None:
    program = exported(Uneven(), (torch.randn(5),), (torch.randn(7),))
    tally = program.verify(sizes=[41])
    (check,) = (check for check in tally.checks if check.focus is Focus.GIVEN)
    assert check.outcome is Outcome.FAILED
    assert "ValueError: two are left" in check.note
    assert not tally.verified


def test_sizes_that_the_program_refuses_are_failures() -> None:
    program = exported(Positions(), *TEXTS, ranges={"sequence": (1, 20)})
    (check,) = given(program, {"sequence": 30})
    assert check.outcome is Outcome.REJECTED
    assert not program.tally.verified


def test_sizes_that_were_not_tried_in_time_are_failures(program: Program) -> None:
    tally = program.verify(sizes={"sequence": 30}, seconds=1e-9)
    (check,) = (check for check in tally.checks if check.focus is Focus.GIVEN)
    assert check.outcome is Outcome.FAILED
    assert "raise seconds=" in check.note


def test_the_bound_itself_is_tried_and_nothing_beyond_it(program: Program) -> None:
    tally = program.verify()
    tried = [dict(check.sizes).get("sequence", 0) for check in tally.checks]
    assert max(tried) == ROWS
    assert tally.verified
    assert not program.report.unlawful
    drawn = program.verify(trials=150)
    assert max(dict(check.sizes).get("sequence", 0) for check in drawn.checks) == ROWS
    assert drawn.verified


# -- ranges


@pytest.mark.parametrize("ranges", [{"sequence": (1, 500)}, {"sequence": (1, ROWS + 1)}])
def test_a_range_beyond_the_bound_is_an_error(ranges: dict[str, tuple[int, int]]) -> None:
    with pytest.raises(UsageError, match=f"no more than {ROWS}: {ROWS} rows of table") as caught:
        exported(Positions(), *TEXTS, ranges=ranges)
    assert caught.value.slug == "range-beyond-bound"
    assert "self.table(places)" in str(caught.value)


def test_a_range_up_to_the_bound_is_obeyed() -> None:
    program = exported(Positions(), *TEXTS, ranges={"sequence": (1, ROWS)})
    assert program.plans[0].symbol("sequence").high == ROWS
    open_ = exported(Positions(), *TEXTS, ranges={"sequence": (1, None)})
    assert open_.plans[0].symbol("sequence").high == ROWS
    small = exported(Positions(), *TEXTS, ranges={"sequence": (1, 20)})
    symbol = small.plans[0].symbol("sequence")
    assert (symbol.high, symbol.limit) == (20, "")


def test_a_range_of_a_joint_bound_counts_with_the_least_other_size() -> None:
    calls = [(tokens(2, n), torch.randn(2, k, 4)) for n, k in ((5, 3), (6, 7), (4, 0))]
    exported(Positions(), *calls, ranges={"sequence": (1, ROWS)})
    with pytest.raises(UsageError, match=f"sequence up to {ROWS + 1}") as caught:
        exported(Positions(), *calls, ranges={"sequence": (1, ROWS + 1)})
    assert caught.value.slug == "range-beyond-bound"

"""A verification that was ended goes on where it ended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver
from onlooker.core.errors import UsageError
from onlooker.core.verdict import Focus
from unreached import Unreached

RUNS = Unreached(0)
ENDS_AT: list[int] = []


class Counted(nn.Module):
    """Counts its runs outside of its state, and raises KeyboardInterrupt at one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        RUNS[0] += 1
        if RUNS[0] in ENDS_AT:
            raise KeyboardInterrupt
        return self.line(x).relu() + x.sum(1, keepdim=True)


def program() -> tuple[Counted, Any]:
    model = Counted().eval()
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for rows in (2, 5, 3):
            model(torch.randn(rows, 6, 4))
    found = observer.export()
    RUNS[0] = 0
    return model, found


def test_ctrl_c_loses_no_trial() -> None:
    _, whole = program()
    expected = whole.verify()
    runs = RUNS[0]
    RUNS[0] = 0
    ENDS_AT.append(runs // 2)
    with pytest.raises(KeyboardInterrupt):
        whole.verify(seed=0)
    ENDS_AT.clear()
    RUNS[0] = 0
    tally = whole.verify(seed=0)
    assert tally == expected
    assert RUNS[0] == runs - runs // 2 + 1  # the trial that was ended is made again


def test_seconds_leave_trials_out_and_the_next_call_makes_them() -> None:
    _, whole = program()
    expected = whole.verify(seed=3)
    first = whole.verify(seed=3, seconds=1e-9)
    assert first.counts == {Focus.OBSERVED: 3, Focus.REPEATED: 1}
    assert first.left_out > 0
    assert not first.verified
    rest = whole.verify(seed=3, seconds=600.0)  # another bound: begins anew
    assert rest == expected
    assert rest.left_out == 0


def test_a_bound_goes_on_from_where_it_ended() -> None:
    _, whole = program()
    expected = whole.verify()
    RUNS[0] = 0
    found = whole.verify(seconds=1e-9)
    for _ in range(3):
        found = whole.verify(seconds=1e-9)
    assert RUNS[0] == 0  # observed calls are compared with what was seen
    assert found.counts[Focus.OBSERVED] == expected.counts[Focus.OBSERVED]


def test_other_weights_begin_anew() -> None:
    model, whole = program()
    whole.verify(seconds=1e-9)
    RUNS[0] = 0
    with torch.no_grad():
        model.line.weight.mul_(2.0)
    whole.verify(seconds=1e-9)
    assert RUNS[0] == 3


def test_a_whole_verification_begins_anew() -> None:
    _, whole = program()
    whole.verify()
    runs = RUNS[0]
    whole.verify()
    assert RUNS[0] == 2 * runs


def test_the_smallest_observed_call_is_repeated() -> None:
    _, whole = program()
    [repeated] = [check for check in whole.verify().checks if check.focus is Focus.REPEATED]
    assert repeated.label == "call 0, again"


@pytest.mark.parametrize("seconds", [0, -1, True, "1", float("nan")])
@pytest.mark.one_in(2)
def test_seconds_that_say_nothing(seconds: Any) -> None:
    _, whole = program()
    with pytest.raises(UsageError) as raised:
        whole.verify(seconds=seconds)
    assert raised.value.slug == "bad-trials"


def test_an_interrupt_in_the_calls_that_follow_each_other_leaves_the_tally(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    model, observer = nn.Linear(4, 2), InputObserver()
    with observer(model):
        model(torch.ones(2, 4))
        model(torch.ones(3, 4))
    program = observer.export()
    before = program.tally
    monkeypatch.setattr("onlooker.verify.verification.further_checks", interrupted)
    with pytest.raises(KeyboardInterrupt):
        program.verify(seed=7)
    assert program.tally == before

"""One verdict: the tally, the report, the program and the command line say the same, and first what was left out."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program, Programs
from onlooker.core.verdict import Focus, Reach


def exported(model: torch.nn.Module, *shapes: tuple[int, ...], **more: Any) -> Program:
    observer = InputObserver()
    with observer(model):
        for shape in shapes:
            model(torch.randn(*shape))
    return observer.export(**more)


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Counted(torch.nn.Module):
    """torch.export makes the batch a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.ones(operator.index(x.shape[0]), 1)


class CountedWhenLong(torch.nn.Module):
    """Only the graph of long inputs has a number in the place of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 6:
            return x * torch.ones(operator.index(x.shape[0]), 1)
        return x.flip(1)


class Hashed(torch.nn.Module):
    """No size may change."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.hash_tensor(x).float()


def said_by(program: Program) -> set[str]:
    """What program, report, tally, and the same of several programs say."""
    both = Programs({"only": program})
    told = {program.tally.verdict, program.report.verdict, program.report.to_dict()["verdict"]}
    assert program.tally.verdict in repr(program)
    assert program.tally.verdict in repr(program.report)
    assert program.tally.verdict in str(program.report)
    assert both.tally.verdict == both.report.verdict
    assert both.report.verified == both.tally.verified == program.report.verified == program.tally.verified
    assert program.tally.verdict in both.tally.verdict
    return {str(text) for text in told}


def axes_of(program: Program) -> list[str]:
    return [check.label for check in program.tally.checks if check.focus is Focus.AXES]


def test_before_a_verification_nothing_was_tried() -> None:
    assert said_by(exported(Scaled(), (2, 3))) == {"not verified: nothing was tried"}


def test_a_program_that_is_right_everywhere_is_verified(tmp_path: Path) -> None:
    program = exported(Scaled(), (2, 3), (4, 5))
    program.verify()
    assert said_by(program) == {"verified"}
    program.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert isinstance(loaded, Program)
    assert said_by(loaded) == {"verified"}


def test_an_axis_that_calls_changed_and_that_every_graph_has_as_a_number_fails(tmp_path: Path) -> None:
    program = exported(Counted(), *((batch, 3) for batch in (2, *range(4, 24))))
    assert not program.verify().verified
    (said,) = said_by(program)
    assert said.startswith("not verified: x.shape[0] stays a number; ")
    assert said.endswith(" trials failed")  # the watched calls that were not kept, and that no graph takes
    (check,) = (check for check in program.tally.checks if check.focus is Focus.AXES)
    assert "calls had 2, 4, 5, 6" in check.note
    assert "x.shape[0] stays a number" in str(program.report)
    program.save(tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert isinstance(loaded, Program)
    assert loaded.tally == program.tally


def test_an_axis_of_which_each_watched_size_has_a_graph_is_served() -> None:
    program = exported(Counted(), (2, 3), (4, 3))
    assert program.verify().verified
    assert len(program.graphs) > 1
    assert axes_of(program) == []
    assert said_by(program) == {"serves the watched sizes of x.shape[0] alone: verified"}


def test_an_axis_that_no_call_changed_may_stay_a_number() -> None:
    program = exported(Counted(), (2, 3))
    assert program.verify().verified
    assert axes_of(program) == []


@pytest.mark.parametrize("asked", [{"dynamic": {"x": [0]}}, {"ranges": {"batch": (1, 64)}}], ids=["dynamic", "ranges"])
def test_an_axis_that_the_user_asks_for_fails_where_it_stays_a_number(asked: dict[str, Any]) -> None:
    program = exported(Counted(), (2, 3), **asked)
    assert not program.verify().verified
    assert axes_of(program) == ["x.shape[0]"]
    assert said_by(program) == {"not verified: x.shape[0] stays a number"}


def test_a_number_in_one_of_several_graphs_is_no_failure() -> None:
    program = exported(CountedWhenLong(), (2, 4), (3, 9), (4, 5))
    assert program.verify().verified
    assert "x.shape[0]" in program.report.narrowed
    assert said_by(program) == {"verified"}


def test_a_program_of_watched_sizes_alone_says_so_first() -> None:
    program = exported(Hashed(), (2, 3), (4, 5))
    assert program.verify().reach is Reach.WATCHED_SERVED
    (verdict,) = said_by(program)
    assert verdict.startswith("serves the watched sizes alone: verified")
    static = exported(torch.nn.Linear(3, 2).eval(), (2, 3), probe=False)
    assert static.verify().verified
    assert said_by(static) == {"serves the watched sizes alone: verified"}


def test_the_share_of_trials_is_said_first() -> None:
    program = exported(Scaled(), (2, 3), (4, 5))
    tally = program.verify(seconds=1e-9)
    assert tally.left_out
    (verdict,) = said_by(program)
    assert f"on {tally.total} of {tally.total + tally.left_out} trials" in verdict.partition(":")[0] + verdict
    assert tally.reach is Reach.WATCHED_TRIED
    assert verdict.startswith("tried at the watched sizes alone: not verified on ")


class Weights(torch.nn.Module):
    """A module that takes nothing, as a table of positions does; or an option alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 3))

    def forward(self, *, squared: bool = True) -> torch.Tensor:
        return self.weight @ self.weight if squared else self.weight


@pytest.mark.parametrize("options", [{}, {"squared": False}])
def test_a_module_that_takes_one_call_alone_is_verified(options: dict[str, bool]) -> None:
    model, observer = Weights(), InputObserver()
    with observer(model):
        model(**options)
    program = observer.export()
    assert program.verify().verified
    assert said_by(program) == {"verified"}
    assert program(**options).equal(model(**options))
    with pytest.raises(onlooker.RejectedCallError):
        program(squared=not options.get("squared", True))

"""Verification cannot be fooled: every damage of a verified program is found, and nothing harmless is reported."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from damaged_models import Remembering, damaged, program_of
from damages import DAMAGES, HARMLESS, MODELS, Damage
from onlooker import InputObserver
from onlooker.core.verdict import Check, Outcome, Tally
from onlooker.program import Program
from onlooker.verify.trials import Trial, observed_trials
from onlooker.verify.verify import run_trials
from trust_tables import damage_rows, faults_table, found_by, section

TRUST = (Path(__file__).parent.parent.parent / "docs" / "trust.md").read_text(encoding="utf-8")

CASES = [pytest.param(damage, name, id=f"{damage.kind}-{name}") for damage in DAMAGES for name in damage.models]
FALSE_ALARMS = [pytest.param(damage, name, id=f"{damage.kind}-{name}") for damage in HARMLESS for name in damage.models]


def test_there_are_enough_kinds() -> None:
    kinds = [damage.kind for damage in DAMAGES]
    assert len(set(kinds)) == len(kinds) >= 30
    assert {name for damage in DAMAGES for name in damage.models} == set(MODELS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "decoder" else ()) for name in MODELS]
)
@pytest.mark.one_in(2)
def test_the_program_is_verified_before(name: str) -> None:
    program = program_of(name)
    assert program.verify().verified
    assert program.report.verified


@pytest.mark.parametrize(("damage", "name"), CASES)
@pytest.mark.one_in(16)
def test_a_damage_is_found(damage: Damage, name: str) -> None:
    """It fails, the report says so, and docs/trust.md names the trial that finds it first."""
    program = damaged(name, damage.change)
    tally = program.verify()
    assert not tally.verified
    assert tally.failed > 0
    assert re.match(r"not verified(: | on \d+ of \d+ trials: )", program.report.verdict)
    assert damage_rows(section(TRUST, "damages"))[damage.kind][name] == found_by(tally)


@pytest.mark.parametrize(("damage", "name"), FALSE_ALARMS)
@pytest.mark.one_in(2)
def test_what_is_harmless_is_not_reported(damage: Damage, name: str) -> None:
    assert damaged(name, damage.change).verify().verified


def test_the_table_has_these_damages_and_no_others() -> None:
    rows = damage_rows(section(TRUST, "damages"))
    assert {kind: {n for n, cell in row.items() if cell} for kind, row in rows.items()} == {
        damage.kind: set(damage.models) for damage in DAMAGES
    }
    assert f"{len(DAMAGES)} kinds, {len(CASES)} damages, 0 missed" in TRUST


def test_the_table_of_faults_has_the_faults_that_are_tested() -> None:
    assert section(TRUST, "faults") == faults_table()


# what counts


SEEN, NEW = Check("observed", "call 0", Outcome.EXACT), Check("unseen", "batch=5", Outcome.EXACT)


@pytest.mark.parametrize("outcome", [Outcome.DIFFERENT, Outcome.REJECTED, Outcome.FAILED])
@pytest.mark.parametrize("kind", ["observed", "unseen"])
def test_three_of_four_is_never_verified(kind: str, outcome: Outcome) -> None:
    assert Tally((SEEN, NEW, NEW, NEW)).verified
    tally = Tally((SEEN, NEW, NEW, Check(kind, "the fourth", outcome)))
    assert not tally.verified
    assert (tally.passed, tally.total) == (3, 4)


def test_nothing_and_what_was_seen_alone_are_not_verified() -> None:
    assert not Tally().verified
    assert not Tally((SEEN, SEEN)).verified


class Picky(torch.nn.Module):
    """Takes the sizes that it was used with, and no others; with a flag, none but the values."""

    def forward(self, x: torch.Tensor, exact: bool = False) -> torch.Tensor:
        if torch.compiler.is_exporting():
            return x * (3 if exact else 2)
        if x.shape[0] not in (2, 3) or (exact and float(x.sum()) != float(x.numel())):
            raise ValueError("not these")
        return x * (3 if exact else 2)


def picky(*calls: tuple[torch.Tensor, bool]) -> Program:
    model, observer = Picky(), InputObserver()
    with observer(model):
        for x, exact in calls:
            model(x, exact=exact)
    return observer.export()


def with_checks(program: Program) -> tuple[Tally, tuple[str, ...]]:
    tally = program.verify()
    return tally, program.report.unlawful


def test_calls_that_the_model_refuses_are_no_passes() -> None:
    tally, unlawful = with_checks(picky((torch.randn(2, 4), False), (torch.randn(3, 4), False)))
    assert unlawful
    labels = {check.label for check in tally.checks}
    assert not labels & set(unlawful)


def test_sizes_that_the_model_refuses_are_no_failures() -> None:
    tally, unlawful = with_checks(picky((torch.ones(2, 4), True)))
    assert unlawful
    assert tally.failed == 0


@pytest.mark.parametrize("refused", [set(), {0}, {1}, {0, 1}])
def test_each_of_several_graphs_needs_an_unseen_call(refused: set[int]) -> None:
    """``refused`` are the graphs of which the model refuses the unseen call."""
    program = program_of("masked")
    assert len(program.plans) == 2
    seen = list(observed_trials(program._program.samples))
    new = [Trial("unseen", str(i), dict(seen[i].arguments), plan=plan) for i, plan in enumerate(program.plans)]

    class Refusing(Remembering):
        def try_out(self, arguments: dict[str, Any], copies: dict[str, Any] | None = None) -> Any:
            if any(arguments is new[i].arguments for i in refused):
                raise ValueError("not this one")
            return super().try_out(arguments, copies)

    subject: Any = Refusing(program._program.lab)  # type: ignore[arg-type]
    names = [graph.name for graph in program.graphs]
    tally, unlawful = run_trials(program._program.serve, subject, [*seen, *new], graphs=names)
    assert unlawful == tuple(str(i) for i in sorted(refused))
    assert tally.verified == (not refused)
    assert [check.label for check in tally.checks if not check.passed] == [names[i] for i in sorted(refused)]


def test_an_observed_call_that_the_model_refuses_later_fails() -> None:
    program = program_of("perceptron")
    sample = program._program.samples[0]
    wrong = replace(sample, inputs=replace(sample.inputs, leaves=tuple(leaf[:, :3] for leaf in sample.inputs.leaves)))
    other: Any = Program(program._program.beside(program.recording, [wrong], program._program.lab))
    tally = other.verify()
    assert "No graph of this program takes the call" in tally.checks[0].note
    assert not tally.verified


def test_a_model_that_writes_to_its_arguments_may_have_a_program_that_does() -> None:
    class Counting(torch.nn.Module):
        def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
            total.add_(x)
            return total * 2

    model, observer = Counting(), InputObserver()
    with observer(model):
        model(torch.randn(2, 3), torch.zeros(2, 3))
        model(torch.randn(4, 3), torch.zeros(4, 3))
    assert observer.export().verify().verified


def test_a_model_that_gives_an_argument_back_may_have_a_program_that_does() -> None:
    class Passing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x[:, :2]

    model, observer = Passing(), InputObserver()
    with observer(model):
        model(torch.randn(2, 3))
        model(torch.randn(4, 3))
    assert observer.export().verify().verified


def test_a_tensor_that_is_not_contiguous_is_taken_as_the_model_takes_it() -> None:
    class Viewing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.contiguous().view(x.shape[0], -1) * 2

    model, observer = Viewing(), InputObserver()
    with observer(model):
        model(torch.randn(2, 3, 4))
        model(torch.randn(4, 5, 4))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(4, 6, 5).transpose(1, 2)[..., :4]
    assert torch.equal(program(x), model(x))

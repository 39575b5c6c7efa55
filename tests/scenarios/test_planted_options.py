"""A verified program is right on calls with other options, orders, marks and states: modules that decide by them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from planted_options import case_of, described, examine, held, lines_of, model_copy, new_model, watched_calls_run
from planted_options_modules import FEATURES, Case, cases


def check(n_modules: int, seed: int) -> None:
    """No verified program is wrong, no model is another one afterwards, and most programs are verified."""
    findings = [examine(case_of(seed, number)) for number in range(n_modules)]
    report = "\n".join(lines_of(findings))
    sources = "\n\n".join(described(finding) for finding in findings if finding.faults)
    assert not sources, f"python tests/planted_options.py --examples {n_modules} --seed {seed}\n{report}\n\n{sources}"
    assert sum(finding.verified for finding in findings) >= 0.6 * n_modules, report


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_verified_programs_of_random_modules_are_right(seed: int) -> None:
    check(20, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2020))
def test_verified_programs_of_many_random_modules_are_right(seed: int) -> None:
    check(100, seed)


@settings(max_examples=5, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))
@given(cases(watched_calls_run))
def test_a_verified_program_is_right(case: Case) -> None:
    finding = examine(case)
    assert not finding.faults, described(finding)


# the oracle itself


def test_the_same_seed_gives_the_same_module() -> None:
    assert case_of(7, 3) == case_of(7, 3)
    assert case_of(7, 3).later
    assert case_of(7, 3) != case_of(7, 4)


@pytest.mark.slow
def test_all_features_are_planted() -> None:
    found = {name for number in range(220) for name in case_of(5, number).features}
    assert len(found) >= len(FEATURES) - 2


def test_what_a_model_keeps_is_seen() -> None:
    model = new_model(case_of(7, 3))
    model.kept = {"seen": [1, {2}]}
    copy = model_copy(model)
    assert copy is not None
    before = dict(held(copy))
    assert before == dict(held(model))
    model.kept["seen"][1].add(3)
    assert before != dict(held(model))

"""Whose code a frame runs is known by its file."""

from __future__ import annotations

import inspect

from onlooker.model_source.frames import STAND_INS, Owner, owner_of
from onlooker.repairs.loops import kept_between_steps, loop_results, rolled_loops, scans, step_recorder, steps
from onlooker.repairs.numbers import number_texts, size_functions, size_ints, sized_operators


def test_what_stands_for_builtins_is_no_code_of_ours_for_a_decision() -> None:
    """A decision that ``int(n)`` of a model asks for is one of the line of the model."""
    of_numbers = (size_ints, size_functions, number_texts)
    of_loops = (kept_between_steps, loop_results, rolled_loops, scans, step_recorder, steps)
    files = {inspect.getfile(module) for module in (*of_numbers, *of_loops)}
    assert files == set(STAND_INS)
    assert {owner_of(file) for file in files} == {Owner.MADE}
    assert owner_of(inspect.getfile(sized_operators)) is Owner.OWN

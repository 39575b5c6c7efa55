"""New calls against a program: what falls outside, by which axis or argument, how often."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onlooker import (
    ArgumentKindError,
    InputObserver,
    ObservationError,
    Program,
    Recording,
    RejectedCallError,
    UsageError,
)
from onlooker.contract.checker import Checker
from onlooker.core.contract import Constraint, Contract, Origin, Region
from onlooker.zoo import tiny_model


class Step(torch.nn.Module):
    """A step with a past, a mask over both, and a flag; features are 3."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(
        self,
        x: torch.Tensor,
        past: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        scale: float = 1.0,
        debug: bool = False,
    ) -> torch.Tensor:
        y = x if past is None else torch.cat([past, x], dim=1)
        y = y * self.weight * scale
        return y if mask is None else y * mask.unsqueeze(-1)


def step_call(batch: int, new: int, old: int, total: int | None = None, **changes: Any) -> dict[str, Any]:
    call = {
        "x": torch.randn(batch, new, 3),
        "past": torch.randn(batch, old, 3),
        "mask": torch.ones(batch, old + new if total is None else total),
        "scale": 2.0,
    }
    return {name: value for name, value in {**call, **changes}.items() if value is not None}


@functools.cache
def program() -> Program:
    model = Step()
    observer = InputObserver()
    with observer(model):
        for sizes in ((2, 4, 5), (3, 6, 2), (3, 7, 9)):
            model(**step_call(*sizes))
    return observer.export()


def recorded(*calls: dict[str, Any]) -> Recording:
    model = Step()
    observer = InputObserver()
    with observer(model):
        for call in calls:
            model(**call)
    return observer.recording()


def test_calls_like_the_observed_ones_are_served() -> None:
    found = program().check([step_call(5, 1, 8), ((), step_call(2, 3, 4))])
    assert found.holds
    assert (found.total, found.outside, found.violations) == (2, 0, ())
    assert sum(count for _, count in found.served) == 2
    assert str(found).endswith("all of 2 calls are served")


@pytest.mark.parametrize(
    ("call", "kind", "where", "expected", "got"),
    [
        (step_call(2, 4, 5, 11), "relation", "mask.shape[1]", " + ", "11 with "),
        (step_call(2, 4, 5, past=torch.randn(3, 5, 3)), "relation", "past.shape[0]", "batch", "3 with batch = 2 in x."),
        (step_call(2, 4, 5, x=torch.randn(2, 4, 7)), "size", "x.shape[2]", "3", "7"),
        (step_call(2, 4, 5, x=torch.randn(2, 4)), "type", "x", "float32[", "float32[2, 4]"),
        (step_call(2, 4, 5, x=torch.zeros(2, 4, 3, dtype=torch.int64)), "type", "x", "float32[", "int64[2, 4, 3]"),
        (step_call(2, 4, 5, x=1), "type", "x", "float32[", "1"),
        (step_call(2, 4, 5, scale=3.0), "constant", "scale", "2.0", "3.0"),
        (step_call(2, 4, 5, scale=None), "constant", "scale", "2.0", "its default, 1.0"),
        (step_call(2, 4, 5, debug=True), "unknown", "debug", "left out", "True"),
        (step_call(2, 4, 5, x=None), "signature", "the call", "a call with x, past", "missing a required argument"),
        (step_call(2, 4, 5, z=1), "signature", "the call", "a call with x, past", "unexpected keyword"),
    ],
)  # fmt: skip
def test_a_breach_names_the_axis_or_the_argument(
    call: dict[str, Any], kind: str, where: str, expected: str, got: str
) -> None:
    found = program().check([call])
    assert not found.holds
    rows = [row for row in found.violations if row.kind == kind and row.where == where]
    assert len(rows) == 1, found.violations
    assert expected in rows[0].expected
    assert got in rows[0].got[0]


def test_equal_breaches_are_one_row_with_its_calls() -> None:
    calls = [step_call(2, 4, 5), *(step_call(2, 4, 5, scale=value) for value in (3.0, 4.0, 3.0))]
    found = program().check(calls)
    (row,) = found.violations
    assert (row.where, row.count, row.calls, row.got) == ("scale", 3, (1, 2, 3), ("3.0", "4.0"))
    assert found.verdict == "3 of 4 calls fall outside"
    assert "scale" in str(found)
    assert "3.0; 4.0" in str(found)


def test_a_recording_needs_no_values() -> None:
    found = program().check(recorded(step_call(4, 2, 3), step_call(4, 2, 3, scale=7.0)))
    assert (found.total, found.outside) == (2, 1)


def test_a_call_that_stands_for_many_counts_as_many() -> None:
    one = recorded(step_call(4, 2, 3), step_call(4, 2, 3, scale=7.0))
    many = replace(one, calls=tuple(replace(call, count=10 * (call.index + 1)) for call in one.calls))
    found = program().check(many)
    assert (found.total, found.outside, found.violations[0].count) == (30, 20, 20)


def test_the_calls_of_the_program_itself_are_served() -> None:
    recording = recorded(step_call(2, 4, 5), step_call(3, 6, 2), step_call(3, 7, 9))
    assert program().check(recording).holds
    assert program().check(recording.calls).holds


def test_the_check_goes_into_json() -> None:
    found = json.loads(json.dumps(program().check([step_call(2, 4, 5, scale=3.0)]).to_dict()))
    assert (found["schema"], found["holds"], found["total"], found["outside"], found["served"]) == (1, False, 1, 1, {})
    (row,) = found["breaches"]
    assert row == {
        "graph": program().graphs[0].name,
        "kind": "constant",
        "where": "scale",
        "expected": "2.0",
        "got": ["3.0"],
        "calls": [0],
        "count": 1,
    }


@pytest.mark.parametrize("call", [3, torch.zeros(2), (torch.zeros(2),), (torch.zeros(2), {}), [1, 2]])
def test_what_is_no_call_is_refused(call: Any) -> None:
    with pytest.raises(ArgumentKindError, match="Call 1 is a ") as caught:
        program().check([step_call(2, 4, 5), call])
    assert caught.value.slug == "not-a-call"


def test_nothing_to_check_is_no_success() -> None:
    with pytest.raises(ObservationError, match="There is no call to check") as caught:
        program().check([])
    assert caught.value.slug == "no-calls"


def test_a_recording_of_another_method_is_refused() -> None:
    other = replace(recorded(step_call(2, 4, 5)), method="encode")
    with pytest.raises(UsageError, match=r"Step\.encode cannot be checked on a program of .*Step\.forward") as caught:
        program().check(other)
    assert caught.value.slug == "different-entry-points"


def with_symbol(found: Program, name: str, ranges: tuple[int, int | None], **changes: Any) -> Program:
    """The program with another range for a symbol, as a model that needs it would have it."""
    graph = found.graphs[0]
    low, high = ranges
    symbols = [replace(s, low=low, high=high, **changes) if s.name == name else s for s in graph.plan.symbols]
    changed = replace(graph, plan=replace(graph.plan, symbols=tuple(symbols)))
    return Program(found._program.with_graphs([changed]))


@pytest.mark.parametrize(
    ("batch", "kinds"), [(3, {"range"}), (8, set()), (9, {"step"}), (40, {"range"}), (41, {"range", "step"})]
)
def test_ranges_and_steps_count(batch: int, kinds: set[str]) -> None:
    narrow = with_symbol(program(), "batch", (4, 16), step=1)
    stepped = with_symbol(narrow, "batch", (4, 16), step=2 if batch != 3 else 1)
    found = stepped.check([step_call(batch, 4, 5)])
    assert {row.kind for row in found.violations} == kinds
    assert all(row.where == "x.shape[0]" for row in found.violations)


def serves(found: Program, call: dict[str, Any]) -> bool:
    try:
        found(**call)
    except RejectedCallError:
        return False
    return True


sizes = st.integers(1, 9)
steps = st.builds(
    step_call,
    sizes,
    sizes,
    sizes,
    scale=st.sampled_from([2.0, 2.0, 2.0, 3.0, None]),
    debug=st.sampled_from([None, None, False, True]),
)
wrong_masks = st.builds(step_call, sizes, sizes, sizes, sizes)
wrong_batches = st.builds(
    lambda a, b, n: step_call(a, n, n, past=torch.randn(b, n, 3)), st.integers(2, 5), st.integers(2, 5), sizes
)
no_past = st.builds(lambda b, n: step_call(b, n, 0, past=None), sizes, sizes)
wrong_types = st.builds(
    lambda x: step_call(2, 4, 5, x=x),
    st.sampled_from(
        [3, None, torch.zeros(2, 4), torch.zeros(2, 4, 3).long(), torch.zeros(2, 4, 4), torch.zeros(2, 4, 3)]
    ),
)


@settings(max_examples=60)
@given(st.one_of(steps, wrong_masks, wrong_batches, wrong_types, no_past))
def test_the_check_says_what_the_program_does(call: dict[str, Any]) -> None:
    assert program().check([call]).holds == serves(program(), call)


@functools.cache
def llama() -> tuple[Program, Callable[..., Recording]]:
    tiny = tiny_model("llama")
    observer = InputObserver()
    with observer(tiny.model):
        tiny.watch()

    def record(**options: Any) -> Recording:
        watcher = InputObserver()
        ids, mask = torch.randint(3, 200, (3, 6)), torch.ones(3, 6, dtype=torch.int64)
        mask[0, :2] = 0
        with torch.no_grad(), watcher(tiny.model):
            tiny.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=3, pad_token_id=0, **options)
        return watcher.recording()

    return observer.export(), record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "outside"),
    [({}, set()), ({"num_beams": 2}, set()), ({"output_attentions": True}, {"output_attentions"})],
)
def test_traffic_of_a_language_model(options: dict[str, Any], outside: set[str]) -> None:
    found, record = llama()
    assert {row.where for row in found.check(record(**options)).violations} == outside


def test_a_region_without_an_answer_keeps_no_call_from_another_one() -> None:
    observer = InputObserver()
    model = torch.nn.Linear(3, 2)
    with observer(model):
        for batch in (2, 5):
            model(torch.randn(batch, 3))
    plan = observer.export().plans[0]
    (name,) = [symbol.name for symbol in plan.symbols]
    divided, empty = (Region((Constraint(text, Origin.MODEL),)) for text in (f"8 % {name} == 0", f"{name} <= 3"))
    for regions in ((divided, empty), (empty, divided)):
        served = Checker(plan, Contract(regions))
        assert [served([torch.ones(n, 3)]) for n in (0, 3, 4, 5)] == [True, True, True, False]
    assert not Checker(plan, Contract((divided,)))([torch.ones(0, 3)])


@pytest.mark.slow
def test_a_symbol_that_stands_alone_nowhere_is_solved() -> None:
    model = torch.nn.PixelUnshuffle(2)
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 3, 8, 12)), model(torch.randn(3, 3, 6, 4)), model(torch.randn(3, 3, 10, 2))
    exported = observer.export()
    assert exported.check([((torch.randn(1, 3, 4, 6),), {})]).holds
    assert not exported.check([((torch.randn(1, 3, 5, 6),), {})]).holds

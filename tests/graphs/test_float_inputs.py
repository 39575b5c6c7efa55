"""A float of Python that changes from call to call is an input, unless it decides in the Python of the model by more
than a comparison with a number."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import onlooker
from onlooker import InputObserver, Program, RejectedCallError
from onlooker.core.plan import Plan
from onlooker.lab.lab import Lab
from python_calls import python_calls

Function = Callable[[torch.Tensor, Any], Any]
WATCHED = (0.3, 0.7, 0.5)
UNSEEN = (0.1, 0.4, -2.5, 0.0, -0.0, 3.0, 1e6)


class Applies(nn.Module):
    """Any function of a tensor and a float."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, t: Any) -> Any:
        return self.function(x, t)


def watched(model: nn.Module, *values: Any) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for number, value in enumerate(values):
            model(torch.randn(2 + number, 5 + number), value)
    return observer


def exported(function: Function, *values: Any) -> Program:
    return watched(Applies(function).eval(), *(values or WATCHED)).export()


def has_float_input(program: Program) -> bool:
    return any(leaf.is_float for plan in program.plans for leaf in plan.inputs)


def assert_same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    assert type(got) is type(wanted)


COMPUTING: dict[str, Function] = {
    "multiplies": lambda x, t: x * t,
    "multiplies_ints": lambda x, t: x.long() * t,
    "multiplies_half": lambda x, t: x.half() * t,
    "multiplies_one_number": lambda x, t: x.sum() * t,
    "is_an_exponent": lambda x, t: x**t,
    "is_a_base": lambda x, t: t**x,
    "divides": lambda x, t: x / t,
    "fills": lambda x, t: x + torch.full((1,), t),
    "is_a_tensor": lambda x, t: x[:, 0] * torch.tensor([t]),
    "is_as_a_tensor": lambda x, t: x * torch.as_tensor(t),
    "interpolates": lambda x, t: torch.lerp(x, x * 2, t),
    "is_a_slope": lambda x, t: functional.leaky_relu(x, t),
    "masks": lambda x, t: x.masked_fill(x > t, -t),
    "clamps": lambda x, t: x.clamp(-t, t),
    "is_a_float": lambda x, t: x * float(t) if isinstance(t, float) else x,
    "is_no_tensor": lambda x, t: x * 2 if torch.is_tensor(t) else x * t,
    "is_given_back": lambda x, t: (x, t, t * 2 + 1),
    "writes_in_place": lambda x, t: x.clone().mul_(t),
    "is_of_a_class": lambda x, t: x * t if type(t) is float else x,
    "is_zero_times": lambda x, t: x + t * 0,
    "is_taken_from_itself": lambda x, t: x + (t - t),
    "is_divided_by_itself": lambda x, t: x + (t + 9) / (9 + t),
    "is_rounded_in_a_sum": lambda x, t: x + ((t + 1e16) - 1e16),
    "is_added_to_zero": lambda x, t: x / (0 + t),
    "is_in_a_sum_of_three": lambda x, t: x * (0.1 * t * t + 0.2 * t + 0.3),
}

DECIDING: dict[str, Function] = {
    "is_rounded": lambda x, t: x * round(t),
    "is_floored": lambda x, t: x * math.floor(t),
    "is_a_root": lambda x, t: x * math.sqrt(abs(t)),
    "is_an_exponential": lambda x, t: x * math.exp(t),
    "counts": lambda x, t: sum((x for _ in range(int(t * 10))), x),
    "is_a_step": lambda x, t: torch.arange(0, 1, t),
    "is_a_chance": lambda x, t: functional.dropout(x, p=t, training=False),
    "is_a_key": lambda x, t: x * {0.5: 2}.get(t, 3),
    "is_a_text": lambda x, t: x * len(f"{t}"),
    "is_no_number": lambda x, t: x if math.isnan(t) else x * t,
    "is_divided_with_a_rest": lambda x, t: x * (t // 0.1),
}

#: what watched floats, 0.3, 0.7 and 0.5, are compared with, and the ranges of the graphs
COMPARING: dict[str, tuple[Function, list[str]]] = {
    "branches": (lambda x, t: x * 2 if t > 0.5 else x.cumsum(0), ["at most 0.5", "above 0.5"]),
    "is_at_least": (lambda x, t: x * t if t >= 0.5 else x.cumsum(0), ["below 0.5", "from 0.5"]),
    "is_greater_than_none": (lambda x, t: x * t if not t >= 0.6 else x.cumsum(0), ["below 0.6", "from 0.6"]),
    "is_negated": (lambda x, t: x * t if -t < -0.6 else x.cumsum(0), ["at most 0.6", "above 0.6"]),
    "is_between": (
        lambda x, t: x * 2 if 0.4 < t < 0.6 else x.cumsum(0),
        ["at most 0.4", "from 0.6", "above 0.4 and below 0.6"],
    ),
    "is_in_steps": (
        lambda x, t: sum((x for i in range(3) if i * 0.3 < t), x),
        ["above 0.0 and at most 0.3", "above 0.6", "above 0.3 and at most 0.6"],
    ),
    "is_equal": (lambda x, t: x.argmax(-1) if t == 0.5 else x / t, ["below 0.5", "above 0.5", "0.5"]),
    "is_true": (lambda x, t: x / t if t else x.argmax(-1), ["above 0.0"]),
    "is_not_true": (lambda x, t: x if not t else x.cumsum(0) * t, ["above 0.0"]),
    "is_refused": (lambda x, t: _refused() if t < 0 else x * t, ["from 0.0"]),
    "is_rounded_on_one_side": (lambda x, t: x * round(t, 1) if t > 0.4 else x, ["at most 0.4"]),
}


def _refused() -> torch.Tensor:
    raise ValueError("a negative weight")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", COMPARING)
def test_a_float_that_is_compared_is_an_input_on_each_side_that_calls_were_on(name: str) -> None:
    function, ranges = COMPARING[name]
    program = exported(function)
    assert program.verify().verified, program.tally.summary
    found = [leaf.between for plan in program.plans for leaf in plan.inputs if leaf.is_float]
    assert sorted(map(str, found)) == sorted(ranges)
    floats = {end for one in found if one is not None for end in (one.low, one.high) if end is not None}
    beside = {math.nextafter(end, way) for end in floats for way in (-math.inf, math.inf)}
    x, n_served = torch.randn(4, 9), 0
    for value in (*WATCHED, *UNSEEN, *floats, *beside, math.inf, -math.inf, math.nan):
        is_in_range = any(one is not None and one.holds(value) for one in found)
        try:
            got = program(x, value)
        except RejectedCallError:
            assert not is_in_range
        else:
            assert_same(got, function(x, value))
            n_served += is_in_range
    assert n_served > 3


def test_a_range_is_saved_and_said(tmp_path: Path) -> None:
    program = exported(lambda x, t: x * t if t > 0.4 else x.cumsum(0))
    program.save(tmp_path / "out")
    loaded = onlooker.load(tmp_path / "out")
    assert isinstance(loaded, Program)
    x = torch.randn(2, 3)
    for one in (program, loaded, program.to("onnx")):
        torch.testing.assert_close(one(x, 1e6), x * 1e6)
        torch.testing.assert_close(one(x, -1.5), x.cumsum(0))
        with pytest.raises(RejectedCallError, match=r"t is above 0\.4, the call has nan"):
            one(x, math.nan)
    assert "float above 0.4" in program.report.text()
    assert "the graph takes at most 0.4" in "".join(plan.explain("t") for plan in program.plans)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", COMPUTING)
def test_a_float_that_computes_is_an_input(name: str) -> None:
    function = COMPUTING[name]
    program = exported(function)
    assert has_float_input(program)
    x = torch.randn(4, 9)
    for value in (*WATCHED, *UNSEEN, math.inf, math.nan):
        assert_same(program(x, value), function(x, value))
    assert program.verify().verified


@pytest.mark.parametrize("name", DECIDING)
@pytest.mark.one_in(8)
def test_a_float_that_decides_is_a_constant_for_each_value(name: str) -> None:
    function = DECIDING[name]
    program = exported(function)
    assert not has_float_input(program)
    x = torch.randn(4, 9)
    for value in WATCHED:
        assert_same(program(x, value), function(x, value))
    for value in UNSEEN:
        with pytest.raises(RejectedCallError, match="t is always"):
            program(x, value)
    assert any(text.startswith("only t = ") for text in program.report.blind)


def test_the_int_of_a_float_is_computed_in_the_graph() -> None:
    program = exported(lambda x, t: x * int(t * 10))
    assert has_float_input(program)
    x = torch.randn(4, 9)
    for value in (*WATCHED, *UNSEEN):
        assert_same(program(x, value), x * int(value * 10))


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_subnormal=True))
def test_any_float_gives_what_the_model_gives(value: float) -> None:
    x = torch.linspace(-3, 3, 7).reshape(1, 7)
    try:
        wanted = _scaled(x, value)
    except RuntimeError:  # more than a float32 holds
        with pytest.raises(RejectedCallError):
            _scales()(x, value)
        return
    assert_same(_scales()(x, value), wanted)


def _scaled(x: torch.Tensor, t: float) -> torch.Tensor:
    return x * t + torch.full((1,), t * 3 - 1)


_programs: list[Program] = []


def _scales() -> Program:
    if not _programs:
        _programs.append(exported(_scaled))
    return _programs[0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=6))
def test_equal_floats_are_a_constant_and_others_an_input(values: list[float]) -> None:
    observer = watched(Applies(lambda x, t: x * t), *values)
    leaf = observer.plans(probe=False)[0].leaf("t")
    distinct = {repr(value) for value in values}
    assert leaf.is_float == (len(distinct) > 1)
    assert leaf.is_constant == (len(distinct) == 1)


def test_a_float_that_never_changes_is_a_constant() -> None:
    program = exported(lambda x, t: x * t, 0.5, 0.5)
    assert not has_float_input(program)
    with pytest.raises(RejectedCallError, match=r"t is always 0\.5, the call has 0\.25"):
        program(torch.randn(2, 5), 0.25)


def test_zero_is_not_minus_zero_for_a_constant() -> None:
    program = exported(lambda x, t: x / t, 0.0, 0.0)
    with pytest.raises(RejectedCallError, match=r"t is always 0\.0, the call has -0\.0"):
        program(torch.randn(2, 5), -0.0)


def test_nan_and_infinities_are_floats_as_others() -> None:
    program = exported(lambda x, t: x * t, math.nan, math.inf, -0.0, 0.0)
    assert has_float_input(program)
    x = torch.randn(2, 5)
    for value in (math.nan, -math.inf, -0.0, 0.5):
        got, wanted = program(x, value), x * value
        assert_same(got, wanted)
        assert torch.equal(got.signbit(), wanted.signbit())


def test_a_float_that_is_compared_with_itself_may_be_nan() -> None:
    program = exported(lambda x, t: x * 2 if t == t else x * 3)
    x = torch.randn(2, 5)
    assert_same(program(x, 0.9), x * 2)
    with pytest.raises(RejectedCallError, match="decides by values"):
        program(x, math.nan)


def test_a_number_in_a_tensor_is_computed_as_python_does() -> None:
    model, observer = Applies(lambda x, t: x + ((t > 0).sum() / (t < 9).sum()).item() * 0).eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(2, 5), torch.tensor([1, 2]))
        model(torch.randn(3, 6), torch.tensor([1, 2, 0]))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(2, 5)
    assert_same(program(x, torch.tensor([1, 2])), x)
    assert program(x, torch.tensor([9, 9])).isnan().all()


def test_an_int_among_floats_has_a_graph_of_its_own() -> None:
    """An int stays an int in a tensor of ints: it is never taken for a float."""
    program = exported(lambda x, t: x.long() * t, 1, 7.5, 2.5)
    x = torch.randn(3, 6)
    assert_same(program(x, 1), x.long() * 1)
    assert_same(program(x, 3.5), x.long() * 3.5)
    for value in (2, True):
        with pytest.raises(RejectedCallError):
            program(x, value)


def test_a_bool_is_no_float() -> None:
    program = exported(lambda x, t: x * t, True, False, 0.5, 0.25)
    x = torch.randn(3, 6)
    for value in (True, False, 0.75):
        assert_same(program(x, value), x * value)


def test_a_scalar_of_numpy_is_an_input_of_its_own_class() -> None:
    program = exported(lambda x, t: x * t, *map(numpy.float64, WATCHED))
    assert has_float_input(program)
    x = torch.randn(3, 6)
    assert_same(program(x, numpy.float64(0.9)), x * 0.9)
    with pytest.raises(RejectedCallError, match=r"t is a float64, the call has 0\.9"):
        program(x, 0.9)
    assert program.verify().verified


@dataclass
class Options:
    scale: float
    shifts: dict[str, list[float]]


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, options: Options, **others: Any) -> torch.Tensor:
        minus: float = others["minus"]
        return x * options.scale + options.shifts["first"][0] - minus


def test_floats_stand_in_containers_and_among_keywords() -> None:
    observer, model = InputObserver(), Nested()
    with observer(model):
        for n in range(3):
            model(torch.randn(2 + n, 4), Options(0.5 + n, {"first": [1.5 - n]}), minus=0.25 * n)
    program = observer.export()
    assert [leaf.path.code() for leaf in program.plans[0].inputs if leaf.is_float] == [
        "options.scale",
        "options.shifts['first'][0]",
        "minus",
    ]
    x, options = torch.randn(6, 4), Options(-3.5, {"first": [0.125]})
    assert_same(program(x, options, minus=9.5), model(x, options, minus=9.5))
    assert program.verify().verified


class Guided(nn.Module):
    def forward(self, x: torch.Tensor, guidance: float = 7.5, strength: float | None = None) -> torch.Tensor:
        x = x * guidance if guidance > 1 else x
        return x if strength is None else x + strength


def test_of_two_floats_the_one_that_decides_has_a_range() -> None:
    observer, model = InputObserver(), Guided()
    with observer(model):
        for n in range(6):
            model(torch.randn(2 + n, 4), (0.5, 2.0)[n % 2], 0.125 * n)
    program = observer.export()
    assert sorted(graph.name for graph in program.graphs) == ["main", "main_2"]
    x = torch.randn(3, 4)
    for guidance in (2.0, 0.5, 3.0, 1.0, -4.0):
        assert_same(program(x, guidance, 33.5), model(x, guidance, 33.5))
    assert program.verify().verified


class Rounded(Guided):
    def forward(self, x: torch.Tensor, guidance: float = 7.5, strength: float | None = None) -> torch.Tensor:
        return x * round(guidance) + (strength or 0.5)


def test_of_two_floats_only_the_one_that_is_rounded_is_a_constant() -> None:
    observer, model = InputObserver(), Rounded()
    with observer(model):
        for n in range(6):
            model(torch.randn(2 + n, 4), (0.75, 2.0)[n % 2], 0.125 * (n + 1))
    program = observer.export()
    assert sorted(graph.name for graph in program.graphs) == ["main_guidance_0_75", "main_guidance_2_0"]
    x = torch.randn(3, 4)
    assert_same(program(x, 2.0, 33.5), model(x, 2.0, 33.5))
    with pytest.raises(RejectedCallError):
        program(x, 3.0, 33.5)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, scale: float = 7.5) -> torch.Tensor:
        return x * scale


def test_a_float_that_a_call_leaves_out_is_as_its_default() -> None:
    program = watched(Scaled(), 0.5, 0.25).export()
    x = torch.randn(3, 4)
    assert_same(program(x), x * 7.5)
    assert program.check([((x,), {}), ((x, 0.125), {})]).holds
    assert not program.check([((x, 2), {})]).holds


@pytest.mark.slow
def test_a_call_without_the_float_is_served_as_the_model_does() -> None:
    observer, model = InputObserver(), Guided()
    with observer(model):
        model(torch.randn(2, 4), 2.0)
        for n in range(3):
            model(torch.randn(3 + n, 4), 2.0, 0.5 + n)
    program = observer.export()
    x = torch.randn(5, 4)
    assert_same(program(x, 2.0, 0.75), model(x, 2.0, 0.75))
    assert_same(program(x, 2.0), model(x, 2.0))


def test_a_float_is_saved_and_read_again(tmp_path: Path) -> None:
    program = exported(COMPUTING["is_given_back"])
    program.save(tmp_path / "program", values=True)
    loaded = onlooker.load(tmp_path / "program")
    assert loaded.plans == program.plans
    x = torch.randn(4, 6)
    for value in UNSEEN:
        assert_same(loaded(x, value), program(x, value))
    assert loaded.verify(model=Applies(COMPUTING["is_given_back"])).verified


def test_a_float_is_an_input_of_a_model_of_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    program = exported(COMPUTING["fills"]).to("onnx")
    assert [str(value.dtype) for value in program.graphs[0].artifact.model.graph.inputs] == ["FLOAT", "DOUBLE"]
    assert program.verify().verified
    program.save(tmp_path / "program")
    x = torch.randn(4, 6)
    torch.testing.assert_close(onlooker.load(tmp_path / "program")(x, -1.75), x - 1.75)


def test_the_report_and_the_evidence_name_the_float() -> None:
    program = exported(lambda x, t: x * t)
    row = next(row for row in program.report.graphs[0].axes if row.axis == "t")
    assert (row.observed, row.asked, row.obtained) == ("0.3, 0.5, 0.7", "any float", "any float")
    assert program.plans[0].explain("t").startswith("t is a float that is an input: calls had 0.3, 0.5, 0.7.")
    program.verify()
    labels = [check.label for check in program.tally.checks]
    assert {"t = 0.0", "t = -0.7", "t = 0.4"} <= set(labels)


def test_a_script_takes_the_float_as_a_tensor() -> None:
    code = exported(lambda x, t: x * t).code(source="return MODEL")
    space: dict[str, Any] = {"MODEL": Applies(lambda x, t: x * t), "__name__": "script"}
    exec(code, space)
    made = space["export_main"](space["MODEL"]).module()
    x = torch.randn(4, 6)
    assert_same(made(x=x, t=torch.tensor(-2.5, dtype=torch.float64)), x * -2.5)


def test_arguments_for_an_export_by_hand_cannot_have_two_floats() -> None:
    observer = watched(Applies(lambda x, t: x * t), 0.5, 0.25)
    with pytest.raises(onlooker.ObservationError, match="different constant values: t is"):
        observer.infer_arguments()


def _plan_of(n: int) -> tuple[Plan, int]:
    observer, model, x = InputObserver(), Applies(lambda x, t: x * t), torch.randn(2, 3)
    with observer(model):
        for number in range(n):
            model(x, 0.5 + number)
    plans: list[tuple[Plan, ...]] = []
    calls = python_calls(lambda: plans.append(observer.plans()))
    assert len(plans[0]) == 1
    return plans[0][0], calls


@pytest.mark.slow
def test_the_cost_of_many_floats_is_linear() -> None:
    costs = [_plan_of(n)[1] for n in (500, 1000, 2000)]
    assert costs[2] - costs[1] <= 2.2 * (costs[1] - costs[0])
    assert len(_plan_of(1000)[0].leaf("t").floats) <= 8


class Resized(nn.Module):
    """Makes an image larger by a factor, of which a call may ask for more than there is memory for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3)

    def forward(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return functional.interpolate(self.layer(x), scale_factor=factor, mode="bilinear")


def test_no_run_asks_for_much_more_memory_than_watched_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, run = [0.0], Lab.run

    def noting(lab: Lab, arguments: Any, **options: Any) -> Any:
        factor = arguments.get("factor", 0.0)
        if math.isfinite(factor):
            tried.append(factor)
            assert factor < 100, "10 GB of floats, or the end of this process"
        return run(lab, arguments, **options)

    monkeypatch.setattr(Lab, "run", noting)
    observer, model = InputObserver(), Resized().eval()
    with observer(model), torch.no_grad():
        for factor in (2.0, 1.5, 0.5):
            model(torch.randn(2, 3, 60, 50), factor)
    program = observer.export()
    assert has_float_input(program)
    assert program.verify().verified
    assert 3 < max(tried) < 100

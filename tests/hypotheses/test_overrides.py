"""What the caller knows about axes is obeyed, and not asked about; what cannot be obeyed is one clear error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from onlooker import InputObserver, Plan
from onlooker.core.errors import OnlookerError, RejectedCallError, UsageError
from onlooker.core.spec import Axis
from unreached import Unreached


class Add(torch.nn.Module):
    """Takes anything; counts how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = [0]

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        self.asked.append(1)
        return x + 1 if y is None else x + y


class Image(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 4, 3)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.convolution(pixel_values).mean(dim=(2, 3))


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Parameter(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.rows[input_ids].cumsum(1)


def watched(model: torch.nn.Module, *calls: tuple[torch.Tensor, ...]) -> InputObserver:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for args in calls:
            model(*args)
    return observer


def plan_of(observer: InputObserver, **options: Any) -> Plan:
    (plan,) = observer.plans(**options)
    return plan


def shapes(plan: Plan) -> dict[str, str]:
    return {leaf.path.code(): ", ".join(map(str, leaf.shape)) for leaf in plan.inputs}


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.arange(batch * length).reshape(batch, length) % 20


IMAGE = torch.ones(1, 3, 12, 12)


@pytest.mark.parametrize(
    ("static", "expected"),
    [
        ({"pixel_values": [2, 3]}, "batch, 3, 12, 12"),
        ({"pixel_values": [3]}, "batch, 3, height, 12"),
        ({"pixel_values": [0]}, "1, 3, height, width"),
        ({"pixel_values": [0, 1, 2, 3]}, "1, 3, 12, 12"),
    ],
)
def test_a_static_axis_stays(static: dict[str, list[int]], expected: str) -> None:
    plan = plan_of(watched(Image(), (IMAGE,)), static=static)
    assert shapes(plan) == {"pixel_values": expected}
    pinned = {Axis(leaf.path, dim) for leaf in plan.inputs for dim in static[leaf.path.root]}
    assert not [probe for probe in plan.probes if pinned & set(probe.axes)]
    for axis in pinned:
        assert "is pinned static" in plan.explain("pixel_values", axis.dim)


def test_the_path_of_a_leaf_pins_that_leaf_alone() -> None:
    class Both(torch.nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return pair[0].sum() + pair[1]

    observer = watched(Both(), ((torch.ones(2, 3), torch.ones(4, 5)),))  # type: ignore[arg-type]
    found = shapes(plan_of(observer, static={"pair[1]": [0, 1]}))
    assert found["pair[1]"] == "4, 5"
    assert "3" not in found["pair[0]"]


def test_a_static_axis_is_a_constant_of_the_program_and_of_its_calls() -> None:
    observer = watched(Image(), (IMAGE,))
    program = observer.export(static={"pixel_values": [2, 3]})
    assert program.verify().verified, program.report
    assert program(torch.ones(4, 3, 12, 12)).shape == (4, 4)
    with pytest.raises(RejectedCallError, match=r"pixel_values.shape\[2\] is always 12, the call has 13"):
        program(torch.ones(1, 3, 13, 12))


def test_a_dynamic_axis_changes_without_a_probe() -> None:
    model = Add()
    observer = watched(model, (torch.ones(2, 3),))
    model.asked.clear()
    plan = plan_of(observer, dynamic={"x": [0, 1]}, static={})
    assert shapes(plan) == {"x": "batch, x_dim_1"}
    assert {size for probe in plan.probes for size in probe.sizes} == {0}, "only whether sizes may be 0"
    assert [symbol.observed for symbol in plan.symbols] == [(2,), (3,)]
    assert "pinned by the caller" in plan.explain("x", 1)


def test_what_is_pinned_dynamic_is_so_without_any_probe() -> None:
    plan = plan_of(watched(Table(), (ids(1, 5),)), probe=False, dynamic={"input_ids": [1]})
    assert shapes(plan) == {"input_ids": "1, sequence"}


def test_dynamic_axes_of_one_size_are_one_symbol() -> None:
    observer = watched(Add(), (torch.ones(2, 3), torch.ones(2, 3)))
    plan = plan_of(observer, probe=False, dynamic={"x": [0, 1], "y": [0, 1]})
    assert shapes(plan) == {"x": "batch, x_dim_1", "y": "batch, x_dim_1"}


def test_a_dynamic_axis_goes_with_axes_that_are_probed() -> None:
    observer = watched(Add(), (torch.ones(2, 3), torch.ones(2, 3)))
    plan = plan_of(observer, dynamic={"x": [1]})
    assert shapes(plan) == {"x": "batch, x_dim_1", "y": "batch, x_dim_1"}


def test_a_program_of_pinned_axes_is_exact() -> None:
    model = Table()
    program = watched(model, (ids(1, 5),)).export(probe=False, dynamic={"input_ids": [0, 1]})
    assert program.verify().verified, program.report
    torch.testing.assert_close(program(ids(3, 4)), model(ids(3, 4)))


@pytest.mark.parametrize("limits", [(1, 6), (2, 6), (3, 3), (2, None)])
def test_a_range_holds_everywhere(limits: tuple[int, int | None]) -> None:
    low, high = limits
    observer = watched(Table(), (ids(3, 5),))
    program = observer.export(ranges={"batch": limits}) if low != high else None
    (plan,) = observer.plans(ranges={"batch": limits})
    symbol = plan.symbol("batch")
    assert (symbol.low, symbol.high) == limits
    assert all(symbol.allows(size) for size in symbol.observed)
    assert symbol.range in plan.explain("input_ids", 0)
    if program is None:
        return
    tally = program.verify()
    assert tally.verified, program.report
    sizes = {dict(check.sizes).get("batch", low) for check in tally.checks}
    assert all(symbol.allows(size) for size in sizes)
    found = next(limits for name, _, limits in program.report.graphs[0].symbols if name == "batch")
    assert found == symbol.range
    outside = [0 if low > 0 else None, None if high is None else high + 1]
    for size in (size for size in outside if size is not None):
        with pytest.raises(RejectedCallError, match=rf"is batch, {symbol.range}, the call has {size}"):
            program(ids(size, 5))


def test_a_range_is_given_to_torch() -> None:
    program = watched(Table(), (ids(3, 5),)).export(ranges={"batch": (1, 6), "sequence": (1, 9)})
    guards = program.graphs[0].artifact._guards_code
    assert [guard for guard in guards if guard.endswith((" <= 6", " <= 9"))] == [
        "L['input_ids'].size()[0] <= 6",
        "L['input_ids'].size()[1] <= 9",
    ]


def test_a_range_may_be_of_an_axis_that_is_pinned_dynamic() -> None:
    observer = watched(Table(), (ids(1, 5),))
    plan = plan_of(observer, probe=False, dynamic={"input_ids": [0]}, ranges={"batch": (1, 64)})
    assert plan.symbol("batch").range == "1 to 64"
    assert plan.symbol("batch").observed == (1,)


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "an argument": ({"static": {"pixels": [2]}}, "unknown-argument", r"'pixels', which is no argument .* input_ids"),
    "another argument": ({"dynamic": {"ids": [0]}}, "unknown-argument", r"dynamic= names 'ids'"),
    "a dimension": ({"static": {"input_ids": [2]}}, "no-such-dimension", "dimension 2 of input_ids, which has 2"),
    "a symbol": ({"ranges": {"rows": (1, 4)}}, "no-such-symbol", r"'rows'.*batch, sequence"),
    "no list": ({"static": {"input_ids": 1}}, "bad-pin", r"static=\{'input_ids': 1\}"),
    "a text": ({"dynamic": {"input_ids": "01"}}, "bad-pin", "list of dimensions"),
    "a negative one": ({"dynamic": {"input_ids": [-1]}}, "bad-pin", "list of dimensions"),
    "a flag": ({"static": {"input_ids": [True]}}, "bad-pin", "list of dimensions"),
    "both": ({"static": {"input_ids": [0]}, "dynamic": {"input_ids": [0]}}, "bad-pin", "static and dynamic at once"),
    "one number": ({"ranges": {"batch": 4}}, "bad-pin", "least and the greatest"),
    "upside down": ({"ranges": {"batch": (4, 1)}}, "bad-pin", "least and the greatest"),
    "below nothing": ({"ranges": {"batch": (-1, 4)}}, "bad-pin", "least and the greatest"),
    "a budget": ({"budget": "5"}, "bad-pin", "the most runs of the model"),
    "a negative budget": ({"budget": -1}, "bad-pin", "the most runs of the model"),
    "a budget of seconds": ({"budget": (5, "fast")}, "bad-pin", "the most runs and the most seconds"),
    "too high a range": ({"ranges": {"sequence": (1, 4)}}, "pin-contradicts-calls", r"shape\[1\] was 5 in call 0"),
    "too low a range": ({"ranges": {"batch": (2, 4)}}, "pin-contradicts-calls", r"batch is pinned to 2 to 4.*was 1"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("method", ["plans", "export", "probe"])
def test_what_cannot_be_obeyed_is_one_error(name: str, method: str) -> None:
    options, slug, text = WRONG[name]
    with pytest.raises(OnlookerError, match=text) as caught:
        getattr(watched(Table(), (ids(1, 5),)), method)(**options)
    assert caught.value.slug == slug


def test_calls_that_contradict_a_static_pin_are_named() -> None:
    observer = watched(Table(), (ids(1, 5),), (ids(1, 5),), (ids(1, 7),))
    with pytest.raises(UsageError, match=r"input_ids.shape\[1\] is pinned static, and was 5 in call 0 and 7 in call 2"):
        observer.plans(static={"input_ids": [1]})


def test_an_argument_that_no_call_passed_may_be_pinned() -> None:
    plan = plan_of(watched(Add(), (torch.ones(2, 3),)), static={"y": [0]})
    assert "y" not in shapes(plan)


def test_probe_gives_the_plan() -> None:
    observer = watched(Image(), (IMAGE,))
    assert observer.probe() == plan_of(observer)
    assert observer.probe(static={"pixel_values": [2, 3]}) == plan_of(observer, static={"pixel_values": [2, 3]})


def test_probe_gives_all_plans_where_one_graph_is_not_enough() -> None:
    class Flag(torch.nn.Module):
        def forward(self, x: torch.Tensor, double: bool) -> torch.Tensor:
            return x * 2 if double else x

    observer = watched(Flag(), (torch.ones(2, 3), True), (torch.ones(2, 3), False))  # type: ignore[arg-type]
    plans = observer.probe()
    assert isinstance(plans, tuple)
    assert plans == observer.plans()


def test_probe_asks_the_model_it_is_given() -> None:
    watched_one, other = Add(), Add()
    observer = watched(watched_one, (torch.ones(2, 3),))
    watched_one.asked.clear()
    other.forward = _counted(other)  # type: ignore[method-assign]
    plan = observer.probe(other)
    assert isinstance(plan, Plan)
    assert shapes(plan)["x"].startswith("batch")
    assert not watched_one.asked
    assert _COUNT


_COUNT = Unreached()


def _counted(model: Add) -> Any:
    forward = type(model).forward

    def counted(x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        _COUNT.append(1)
        return forward(model, x, y)

    return counted


def test_another_signature_is_refused() -> None:
    observer = watched(Add(), (torch.ones(2, 3),))
    with pytest.raises(UsageError, match=r"Image has no forward\(x, y\)") as caught:
        observer.probe(Image())
    assert caught.value.slug == "another-signature"

"""The sizes of a graph as a ShapesSpec of torch 2.14 and newer."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import onlooker
from onlooker.core.contract import Constraint, Contract, Origin, Region
from onlooker.core.path import Attr, Index, Name, Path
from onlooker.core.plan import LeafPlan, Plan, Symbol
from onlooker.core.profile import profile_of_rows
from onlooker.core.sizes.expression import Expression
from onlooker.core.structure import Structure
from onlooker.emit.specs import spec_lines
from onlooker.emit.traffic import Served

MODULE = "torch.fx.experimental.dynamic_spec"
CALLS = ((2, 5, 3), (3, 9, 4), (1, 1, 5), (4, 7, 6))


class Nested(torch.nn.Module):
    """Tensors in a dict and in a list of it, one twice as long as another, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, pair: dict[str, Any], n: int) -> torch.Tensor:
        return torch.cat([self.linear(x), pair["a"], pair["b"][0]], 1) * n


def arguments(batch: int, length: int, n: int) -> tuple[Any, ...]:
    pair = {"a": torch.randn(batch, 1, 4), "b": [torch.randn(batch, 2 * length, 4)]}
    return torch.randn(batch, length, 4), pair, n


def emitted_of(model: torch.nn.Module) -> dict[str, Any]:
    observer = onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for sizes in CALLS:
            model(*arguments(*sizes))
    names: dict[str, Any] = {}
    exec(observer.export().emit("compile").text, names)
    return names


class Made:
    """What was asked of torch, as it was written."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.given, self.named = given, named

    def __rmul__(self, factor: int) -> tuple[int, Made]:
        return factor, self


def test_each_symbol_is_one_variable_and_sums_are_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = emitted_of(Nested().eval())["shapes"]
    module = types.ModuleType(MODULE)
    for name in ("DictSpec", "IntVar", "ObjectSpec", "ParamsSpec", "SeqSpec", "ShapesSpec", "ShapeVar", "TensorSpec"):
        setattr(module, name, type(name, (Made,), {}))
    monkeypatch.setitem(sys.modules, MODULE, module)
    spec = shapes()
    (params,) = spec.given[0].given
    batch, length, rest = params["x"].given[0]
    assert rest is None
    assert batch.named["min"] == 0
    assert type(params["n"]).__name__ == "ShapeVar"
    (pair,) = params["pair"].given
    assert pair["a"].given[0] == [batch, None, None]
    (items,) = pair["b"].given
    assert items[0].given[0] == [batch, (2, length), None]
    assert spec.named == {"assumptions": []}


NEWER = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14),
    reason="torch before 2.14 has no ShapesSpec",
)


@NEWER
def test_torch_compiles_once_with_it() -> None:
    model, graphs = Nested().eval(), []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    shapes = emitted_of(model)["shapes"]()
    compiled: Any = torch.compile(model, backend=backend, dynamic_shapes=shapes)  # type: ignore[call-overload]
    with torch.no_grad():
        for sizes in CALLS:
            given = arguments(*sizes)
            torch.testing.assert_close(compiled(*given), model(*given))
    assert len(graphs) == 1


SYMBOLS = (Symbol("batch"), Symbol("side", low=32, high=512, step=16), Symbol("other"))


def test_steps_and_conditions_are_assumptions() -> None:
    shapes = {"x": ("batch", "side"), "y": ("(side - 1)//2 + 1", "min(batch, 4)", "2*other")}
    leaves = [
        LeafPlan(Path((Name(name),)), "torch.float32", "cpu", tuple(map(Expression.parse, shape)))
        for name, shape in shapes.items()
    ]
    keys = Path((Name("cache"), Attr("layers"), Index(1), Attr("keys")))
    leaves.append(LeafPlan(keys, "torch.float32", "cpu", (Expression.symbol("batch"),)))
    plan = Plan("main", Structure(), tuple(leaves), SYMBOLS)
    formulas = (
        *("side > 48", "batch + side <= 600", "max(side, 3, batch) > 4", "batch > 1 or 2 < side < 9"),
        *("not batch == 7", "least(side, 2) > 1", "other > 3"),
    )
    contract = Contract((Region(tuple(Constraint(formula, Origin.MODEL) for formula in formulas)),))
    text = "\n".join(spec_lines(Served(plan, contract, profile_of_rows("main", []), ())))
    compile(text, "shapes", "exec")
    assert "side = ShapeVar('side', min=32, max=512)" in text
    assert "'x': TensorSpec([batch, side])" in text
    assert "'y': TensorSpec([(side - 1) // 2 + 1, torch.sym_min(batch, 4), ShapeVar()])" in text
    assert "other = ShapeVar" not in text, "torch refuses a variable that is no size by itself"
    assert "'cache': ObjectSpec({'layers': SeqSpec([None, ObjectSpec({'keys': TensorSpec([batch])})])})" in text
    assumptions = text.partition("assumptions = [")[2].partition("]")[0].splitlines()
    assert [line.strip() for line in assumptions if line.strip()] == [
        "side % 16 == 0,",
        "side > 48,",
        "batch + side <= 600,",
        "torch.sym_max(torch.sym_max(side, 3), batch) > 4,",
        "(batch > 1) | (2 < side) & (side < 9),",
        "torch.sym_not(batch == 7),",
    ]


class Halved(torch.nn.Module):
    """Every second row of the first argument beside the second one; the third has twice as many."""

    def forward(self, x: torch.Tensor, half: torch.Tensor, twice: torch.Tensor) -> torch.Tensor:
        return (x[:, ::2] * half).sum(1) + twice.sum(1)


@NEWER
def test_torch_compiles_once_with_derived_sizes_and_assumptions() -> None:
    shapes = {"x": ("batch", "n"), "half": ("batch", "(n - 1)//2 + 1"), "twice": ("batch", "min(2*n, 24)")}
    leaves = [
        LeafPlan(Path((Name(name),)), "torch.float32", "cpu", tuple(map(Expression.parse, shape)))
        for name, shape in shapes.items()
    ]
    plan = Plan("main", Structure(), tuple(leaves), (Symbol("batch", low=1), Symbol("n", low=2)))
    formulas = ("n > 40 or batch < 9", "1 < n < 90", "min(n, 3) >= 2", "not n == 77")
    contract = Contract((Region(tuple(Constraint(formula, Origin.MODEL) for formula in formulas)),))
    text = "\n".join(spec_lines(Served(plan, contract, profile_of_rows("main", []), ())))
    found: dict[str, Any] = {}
    exec(text, found)
    model, graphs = Halved().eval(), []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled: Any = torch.compile(model, backend=backend, dynamic_shapes=found["shapes"]())  # type: ignore[call-overload]
    for batch, n in ((2, 5), (1, 8), (3, 2), (4, 13)):
        given = torch.randn(batch, n), torch.randn(batch, (n - 1) // 2 + 1), torch.randn(batch, min(2 * n, 24))
        torch.testing.assert_close(compiled(*given), model(*given))
    assert len(graphs) == 1

"""Decisions of a trace, equal graphs, and regions that become one."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.nn import functional

from onlooker import InputObserver, Program
from onlooker.proofs.decisions import recorded_decisions
from onlooker.proofs.same_graph import Comparison
from onlooker.proofs.size_proofs import SizeProofs


def exported(function: Any, *inputs: torch.Tensor, dynamic: bool = True) -> Any:
    class Model(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return function(*args)

    shapes = tuple(dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for x in inputs) if dynamic else None
    given = (shapes,) if shapes is not None else None
    return torch.export.export(Model(), inputs, dynamic_shapes=given, strict=False)


def difference_of(first: Any, second: Any) -> str:
    return Comparison(second, {}, SizeProofs({})).difference_of(first)


@pytest.mark.parametrize(
    ("function", "by_model"),
    [
        (lambda x: x * 2 if x.shape[0] == 1 else x, True),
        (lambda x: x * 2 if x.shape[0] == 0 else x, True),
        (lambda x: x * 2 if x.numel() == 0 else x, True),
        (lambda x: x * 2 if x.shape[0] > 2 else x, True),
        (lambda x: x * len(x), True),
        (lambda x: functional.interpolate(x[None, None], scale_factor=2) if x.size(1) % 2 else x, True),
    ],
    ids=["one", "zero", "numel", "above", "len", "modulo"],
)
def test_a_decision_of_the_model_is_read_with_its_line_though_it_leaves_no_guard(function: Any, by_model: bool) -> None:
    with recorded_decisions() as log:
        exported(function, torch.randn(5, 7))
    own = [decision for decision in log.decisions.values() if decision.by_model]
    assert bool(own) is by_model
    assert any("lambda x" in decision.line for decision in own)


def test_a_comparison_inside_an_operator_is_no_decision_of_the_model() -> None:
    with recorded_decisions() as log:
        exported(lambda x, y: (x + y).reshape(-1, 2), torch.randn(4, 6), torch.randn(4, 6))
    assert not [decision for decision in log.decisions.values() if decision.by_model]


def test_nothing_of_torch_stays_patched() -> None:
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    before = ShapeEnv.evaluate_sym_node, SymNode.eq, SymNode.gt
    with pytest.raises(ZeroDivisionError), recorded_decisions():
        raise ZeroDivisionError
    assert (ShapeEnv.evaluate_sym_node, SymNode.eq, SymNode.gt) == before


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (lambda x: x * 2, lambda x: x * 2, True),
        (lambda x: x * 2, lambda x: x * 3, False),
        (lambda x: x * 2, lambda x: functional.pad(x, (0, 0)) * 2, True),
        (lambda x: x * 2, lambda x: x.roll(0, 1).clone().contiguous() * 2, True),
        (lambda x: x * 2, lambda x: x[:, : x.shape[1]] * 2, True),
        (lambda x: x * 2, lambda x: x[:, : x.shape[1] - 1] * 2, False),
        (lambda x: x * 2, lambda x: x.clamp(-50, 50) * 2, False),
        (lambda x: x * 2, lambda x: x.expand(x.shape[0], x.shape[1]).reshape(x.shape) * 2, True),
        (lambda x: x * x.shape[1], lambda x: x * x.shape[0], False),
        (lambda x: x + torch.tensor([1.0]), lambda x: x + torch.tensor([2.0]), False),
        (lambda x: (x, x * 2), lambda x: (x * 2, x), False),
        (lambda x: x.double().float(), lambda x: x, False),
    ],
)
@pytest.mark.one_in(2)
def test_graphs_are_equal_when_they_compute_the_same(first: Any, second: Any, same: bool) -> None:
    left, right = exported(first, torch.randn(5, 7)), exported(second, torch.randn(5, 7))
    assert (difference_of(left, right) == "") is same
    assert (difference_of(right, left) == "") is same


def test_a_concatenation_with_nothing_is_nothing() -> None:
    plain, joined = (
        exported(f, torch.randn(5, 7)) for f in (lambda x: x * 2, lambda x: torch.cat([x, x[:, :0]], 1) * 2)
    )
    assert difference_of(plain, joined) == ""


def test_a_graph_that_writes_is_only_equal_to_itself() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 0] = 0
        return y

    left, right = exported(writes, torch.randn(5, 7)), exported(writes, torch.randn(5, 7))
    assert difference_of(left, right) == ""
    assert difference_of(left, exported(lambda x: x.clone(), torch.randn(5, 7))) != ""


def _times_constants(x: torch.Tensor, count: int) -> torch.Tensor:
    flat = x.reshape(x.shape[0] * x.shape[1]).sin()
    for _ in range(count):
        flat = flat * torch.tensor([1.0, 2.0]).sum()
    return flat


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2), (0, 1), (2, 2)])
@pytest.mark.one_in(2)
def test_inputs_of_graphs_are_the_same_whatever_constants_stand_before_them(first: int, second: int) -> None:
    """Equal constants of one graph are one, so that their number tells nothing of the place of an input."""
    x = torch.randn(4, 6)
    programs = [exported(functools.partial(_times_constants, count=count), x) for count in (first, second)]
    assert bool(difference_of(*programs)) is (first != second)


def program_of(model: Any, *inputs: torch.Tensor) -> Program:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return model(x)

    watched, observer = Model(), InputObserver()
    with observer(watched), torch.no_grad():
        for x in inputs:
            watched(x)
    return observer.export()


def test_a_condition_goes_where_the_graph_is_the_same_on_both_sides() -> None:
    program = program_of(
        lambda x: x * 2 if x.shape[1] > 24 else functional.pad(x, (0, 0)) * 2, torch.randn(2, 64), torch.randn(3, 48)
    )
    (graph,) = program.graphs
    assert graph.contract.regions[0].constraints == ()
    assert any("the same graph on both sides" in dropped.evidence for dropped in graph.contract.dropped)
    assert "lambda x" in next(dropped.line for dropped in graph.contract.dropped if "24" in dropped.formula)


def test_a_condition_stays_where_the_graphs_differ_and_is_named_with_its_line() -> None:
    program = program_of(lambda x: x * 2 if x.shape[1] > 24 else x.clamp(-9, 9), torch.randn(2, 64), torch.randn(3, 10))
    (above,) = [graph for graph in program.graphs if not graph.contract.holds({"batch": 2, "x_dim_1": 24})]
    (constraint,) = above.contract.regions[0].constraints
    assert constraint.formula == "x_dim_1 > 24"
    assert "lambda x: x * 2 if x.shape[1] > 24" in constraint.line
    x = torch.full((2, 10), 50.0)
    torch.testing.assert_close(program(x), x.clamp(-9, 9))


def test_a_branch_on_size_1_that_torch_hides_has_a_graph_of_its_own() -> None:
    program = program_of(
        lambda x: x * 2 if x.shape[0] == 1 else x.clamp(-50, 50) * 2, torch.randn(3, 5), torch.randn(2, 5)
    )
    x = torch.full((1, 5), 1000.0)
    torch.testing.assert_close(program(x), x * 2)
    torch.testing.assert_close(program(x.expand(2, 5)), torch.full((2, 5), 100.0))
    assert program.verify().verified


def test_a_rank_that_an_operator_changes_at_size_1_is_found_without_extreme_values() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-50, 50) if x.squeeze(0).dim() == 1 else x * 1

    program = program_of(model, torch.randn(3, 5), torch.randn(2, 6))
    x = torch.full((1, 5), 1000.0)
    torch.testing.assert_close(program(x), x.clamp(-50, 50))


def test_a_size_that_torch_simplifies_by_its_assumptions_is_found_at_size_1() -> None:
    program = program_of(lambda x: x * max(x.shape[0], 2), torch.randn(3, 5), torch.randn(2, 6))
    x = torch.full((1, 5), 3.0)
    torch.testing.assert_close(program(x), x * 2)


def _masked(x: torch.Tensor, end: Any = None) -> torch.Tensor:
    mask = torch.zeros(x.shape[1])
    mask[2:end] = 1.0
    return x * mask


def _written_twice(x: torch.Tensor, second: float) -> torch.Tensor:
    y = x * 2
    y[:, 0] = 5
    y[:, 1:].mul_(second)
    return y


def _after(x: torch.Tensor, copies: bool) -> torch.Tensor:
    y = x + 1
    kept = y.clone() if copies else y.view(y.shape)
    y.add_(1)
    return kept


def _maybe_shared(x: torch.Tensor, keeps: bool) -> tuple[torch.Tensor, ...]:
    y = x + 1
    other = y.t().contiguous()
    other.add_(1)
    return (other, y) if keeps else (other, other)


def _cast(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    y = x.to(torch.device("cpu"), dtype)
    y.add_(1)
    return x * 2, y


def _typed_as(x: torch.Tensor, copies: bool) -> tuple[torch.Tensor, ...]:
    y = x + 1
    view = y.view(-1)
    other = y.clone() if copies else y.type_as(x)
    other.add_(1)
    return other, view


def _in_a_block(x: torch.Tensor, factor: float) -> torch.Tensor:
    y = x + 1
    with torch.no_grad():
        y.mul_(factor)
    return y


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (_masked, lambda x: _masked(x, x.shape[1]), True),
        (_masked, lambda x: _masked(x, x.shape[1] - 1), False),
        (lambda x: _written_twice(x, 3), lambda x: _written_twice(functional.pad(x, (0, 0)), 3), True),
        (lambda x: _written_twice(x, 3), lambda x: _written_twice(x, 4), False),
        (lambda x: _after(x, True), lambda x: _after(x, True), True),
        (lambda x: _after(x, True), lambda x: _after(x, False), False),
        (lambda x: _maybe_shared(x, False), lambda x: _maybe_shared(x, False), True),
        (lambda x: _maybe_shared(x, True), lambda x: _maybe_shared(x, True), False),
        (lambda x: _cast(x, torch.float32), lambda x: _cast(functional.pad(x, (0, 0)), torch.float32), False),
        (lambda x: _cast(x, torch.float32), lambda x: _cast(x, torch.float32), True),
        (lambda x: _cast(x, torch.float64), lambda x: _cast(x, torch.float64), True),
        (lambda x: _cast(x, torch.float32), lambda x: _cast(x.clone(), torch.float32), False),
        (lambda x: _typed_as(x, False), lambda x: _typed_as(x, True), False),
        (lambda x: x.add_(1) * 2, lambda x: x.add_(1) * 2, True),
        (lambda x: (x.add_(1) * 2, x)[0], lambda x: (x + 1) * 2, False),
        (lambda x: _in_a_block(x, 2), lambda x: _in_a_block(functional.pad(x, (0, 0)), 2), True),
        (lambda x: _in_a_block(x, 2), lambda x: _in_a_block(x, 3), False),
    ],
    ids=[
        *("written by a slice", "written by a shorter slice", "written twice", "written with another number"),
        *("a copy is kept", "a copy or a view is kept", "what may be shared is not read again"),
        *("what may be shared is read again", "a pad is cast to what it is", "an input is cast to what it is"),
        *("an input is cast to another dtype", "a copy of an input is cast", "cast to the type of another"),
        *("an input is written to", "an input is written to on one side"),
        *("written inside a block", "written with another number inside a block"),
    ],
)
@pytest.mark.one_in(2)
def test_graphs_that_write_are_equal_when_all_memory_holds_the_same(first: Any, second: Any, same: bool) -> None:
    x = torch.randn(5, 7)
    found = difference_of(exported(first, x.clone()), exported(second, x.clone()))
    assert (found == "") is same, found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_large_constants_are_compared_whatever_their_dtype(dtype: torch.dtype) -> None:
    table, other = torch.ones(5000).to(dtype), torch.ones(5000).to(dtype)
    different = torch.zeros(5000).to(dtype)
    first, same, changed = (
        exported(lambda x, table=table: torch.where(table.to(torch.bool), x, -x), torch.randn(5000))
        for table in (table, other, different)
    )
    assert difference_of(first, same) == ""
    assert difference_of(first, changed) != ""

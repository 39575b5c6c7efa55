"""The sizes around every bound of a contract."""

from __future__ import annotations

import pytest

from onlooker.contract.boundaries import between_bounds, boundary_sizes
from onlooker.core.contract import Constraint, Contract, Dropped, Origin, Region
from onlooker.core.path import Name, Path
from onlooker.core.plan import LeafPlan, Plan, Symbol
from onlooker.core.sizes.expression import Expression
from onlooker.core.structure import Structure

X, K = Path((Name("x"),)), Path((Name("k"),))


def plan_of(*symbols: Symbol, with_int: bool = False) -> Plan:
    shape = tuple(Expression.symbol(symbol.name) for symbol in symbols if symbol.name != "k")
    leaves = [LeafPlan(X, "torch.float32", "cpu", shape)]
    leaves += [LeafPlan(K, value=Expression.symbol("k"))] if with_int else []
    return Plan("main", Structure(), tuple(leaves), symbols)


def contract_of(*formulas: str, dropped: tuple[str, ...] = ()) -> Contract:
    constraints = tuple(Constraint(formula, Origin.MODEL) for formula in formulas)
    return Contract((Region(constraints),), tuple(Dropped(formula, "a trace") for formula in dropped))


N = Symbol("n", (5, 7))


@pytest.mark.parametrize(
    ("formula", "sides", "around"),
    [
        ("n > 24", {24, 25}, {23, 26, 51}),
        ("n <= 24", {24, 25}, {23, 26, 51}),
        ("n == 12", {11, 12, 13}, {10, 14, 27}),
        ("n != 1", {1, 2}, {3, 15}),
        ("n % 40 == 0", {39, 40, 41, 120, 121}, {38, 42, 80, 119, 122, 243}),
        ("n > 500", {500, 501}, {499, 502, 1003}),
    ],
)
@pytest.mark.parametrize("was_dropped", [False, True])
def test_both_sides_of_a_bound_their_neighbours_what_is_between_and_beyond(
    formula: str, sides: set[int], around: set[int], was_dropped: bool
) -> None:
    contract = contract_of(dropped=(formula,)) if was_dropped else contract_of(formula)
    plan = plan_of(N)
    assert {sizes["n"] for sizes in boundary_sizes(plan, contract, {"n": 5})} == sides
    assert around <= {sizes["n"] for sizes in between_bounds(plan, contract, {"n": 5})}


def test_between_two_bounds_of_two_conditions() -> None:
    contract = contract_of("n > 10", dropped=("n <= 50",))
    assert {sizes["n"] for sizes in between_bounds(plan_of(N), contract, {"n": 5})} >= {30}


def test_one_symbol_changes_and_the_others_are_those_of_the_export() -> None:
    plan = plan_of(Symbol("batch", (2, 3)), N)
    found = boundary_sizes(plan, contract_of("batch * n >= 30"), {"batch": 3, "n": 5})
    assert found == [{"batch": 5, "n": 5}, {"batch": 6, "n": 5}, {"batch": 3, "n": 9}, {"batch": 3, "n": 10}]


def test_every_bound_of_many_is_there() -> None:
    formulas = [f"n != {size}" for size in range(10, 100, 3)]
    found = {sizes["n"] for sizes in boundary_sizes(plan_of(N), contract_of(*formulas), {"n": 5})}
    assert found >= {*range(10, 100, 3)}


def test_steps_and_ranges_are_obeyed_and_the_end_of_a_range_is_a_bound() -> None:
    plan = plan_of(Symbol("n", (8, 16), 4, 64, 4))
    contract = contract_of("n > 30")
    found = [*boundary_sizes(plan, contract, {"n": 8}), *between_bounds(plan, contract, {"n": 8})]
    sizes = {choice["n"] for choice in found}
    assert {28, 32, 24, 36, 64} <= sizes
    assert all(size % 4 == 0 and 4 <= size <= 64 for size in sizes)


def test_an_int_is_tried_at_zero_below_its_range_and_far_beyond() -> None:
    plan = plan_of(N, Symbol("k", (3, 8)), with_int=True)
    sizes = {choice["k"] for choice in boundary_sizes(plan, contract_of("k > 5"), {"n": 5, "k": 3})}
    assert sizes >= {5, 6, 0, 33}


@pytest.mark.parametrize(("most", "is_tried"), [(20, True), (2048, True), (100_000, False)])
def test_a_bound_of_the_model_is_tried_where_it_is_not_far_and_nothing_beyond_it(most: int, is_tried: bool) -> None:
    bound = Constraint(f"n <= {most}", Origin.BOUND, reason=f"{most} rows of pe")
    plan = plan_of(Symbol("n", (5, 7), high=most, limit=f"{most} rows of pe"))
    contract = Contract((Region((bound,)),))
    found = {sizes["n"] for sizes in boundary_sizes(plan, contract, {"n": 5})}
    assert (most in found) is is_tried
    assert max(found, default=0) <= most

"""Dicts that a model fills for sizes have a key for the size itself in a trace."""

from __future__ import annotations

import linecache
import site
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver, Program, RejectedCallError

Table = dict[Any, Any]


def steps_of(n: int) -> torch.Tensor:
    return torch.arange(n).unsqueeze(-1) / 10


def asked_first(table: Table, x: torch.Tensor) -> Any:
    n = x.shape[1]
    if n not in table:
        table[n] = steps_of(n)
    return table[n]


def got(table: Table, x: torch.Tensor) -> Any:
    key = (x.shape[1], x.dtype)
    steps = table.get(key)
    if steps is None:
        steps = table[key] = steps_of(x.shape[1])
    return steps


def set_by_default(table: Table, x: torch.Tensor) -> Any:
    return table.setdefault(x.shape[1], steps_of(x.shape[1]))


def tried(table: Table, x: torch.Tensor) -> Any:
    try:
        return table[x.shape[1]]
    except KeyError:
        table[x.shape[1]] = steps_of(x.shape[1])
        return table[x.shape[1]]


def of_shapes(table: Table, x: torch.Tensor) -> Any:
    if x.shape not in table:
        table[x.shape] = steps_of(x.shape[1]) + x.shape[0]
    return table[x.shape]


def of_half(table: Table, x: torch.Tensor) -> Any:
    half = (x.shape[1] + 1) // 2
    if half not in table:
        table[half] = steps_of(half).sum()
    return table[half]


def with_an_end(table: Table, x: torch.Tensor) -> Any:
    if len(table) > 8:
        table.clear()
    return asked_first(table, x)


def of_two_sizes(table: Table, x: torch.Tensor) -> Any:
    for n in x.shape[:2]:
        if n not in table:
            table[n] = steps_of(n)
    return table[x.shape[1]] + table[x.shape[0]].sum()


class WithTable(torch.nn.Module):
    def __init__(self, rows: Callable[[Table, torch.Tensor], Any], held: Table | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        self.rows, self.table = rows, dict(held or {})

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.rows(self.table, x)


def exported(model: torch.nn.Module, *shapes: tuple[int, int]) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for shape in shapes:
            model(torch.randn(*shape, 4))
    return observer.export()


@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    "rows", [asked_first, got, set_by_default, tried, of_shapes, of_half, with_an_end, of_two_sizes]
)
def test_a_table_that_calls_fill_for_sizes_holds_for_all_of_them(rows: Callable[..., Any]) -> None:
    model = WithTable(rows)
    program = exported(model, (2, 5))
    assert program.verify().verified
    assert len(model.table) == (2 if rows is of_two_sizes else 1)
    for batch, length in ((2, 5), (2, 9), (4, 3), (2, 9)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))


def of_inputs(table: Table, x: torch.Tensor) -> Any:
    n = x.shape[1]
    if n not in table:
        table[n] = x.mean((0, 2)).unsqueeze(-1)
    return table[n]


def of_more_than_its_key(table: Table, x: torch.Tensor) -> Any:
    n = x.shape[1]
    if n not in table:
        table[n] = steps_of(n) + x.shape[0]
    return table[n]


def drawn(table: Table, x: torch.Tensor) -> Any:
    n = x.shape[1]
    if n not in table:
        table[n] = torch.rand(n, 1)
    return table[n]


def of_sums(table: Table, x: torch.Tensor) -> Any:
    n = x.shape[1] + x.shape[0]
    if n not in table:
        table[n] = steps_of(x.shape[1])
    return table[n][:1]


def gone_over(table: Table, x: torch.Tensor) -> Any:
    return asked_first(table, x) + sum(steps.sum() for steps in table.values())


def of_the_greatest(table: Table, x: torch.Tensor) -> Any:
    if not table or max(table) < x.shape[1]:
        table[x.shape[1]] = steps_of(x.shape[1])
    return table[max(table)][: x.shape[1]]


@pytest.mark.parametrize("rows", [of_inputs, of_more_than_its_key, drawn, of_sums, gone_over, of_the_greatest])
@pytest.mark.one_in(2)
def test_a_table_of_something_else_holds_for_the_sizes_of_the_trace(rows: Callable[..., Any]) -> None:
    model = WithTable(rows)
    torch.manual_seed(1)
    program = exported(model, (2, 5))
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 9, 4))


def written_later(table: Table, x: torch.Tensor) -> Any:
    steps = asked_first(table, x)
    steps += 1
    return steps


def counted(table: Table, x: torch.Tensor) -> Any:
    return asked_first(table, x) + len(table)


def told_apart(table: Table, x: torch.Tensor) -> Any:
    if x.shape[1] in table:
        return 2
    table[x.shape[1]] = True
    return 1


def filled(table: Table, x: torch.Tensor) -> Any:
    n = x.shape[1]
    if n not in table and len(table) < 3:
        table[n] = steps_of(n)
    return table[n] if n in table else steps_of(n) + 1


def decided_by_another_size(table: Table, x: torch.Tensor) -> Any:
    if x.shape[1] not in table:
        table[x.shape[1]] = steps_of(x.shape[1]) * (2 if x.shape[0] > 64 else 1)
    return table[x.shape[1]]


def test_a_table_whose_values_are_written_to_is_state() -> None:
    with pytest.raises(ExportError, match=r"The model keeps state: .* changes what it reads, table\[5\]"):
        exported(WithTable(written_later), (2, 5))


@pytest.mark.parametrize("rows", [counted, told_apart, filled, decided_by_another_size])
@pytest.mark.one_in(2)
def test_a_table_by_which_later_calls_differ_is_not_verified(rows: Callable[..., Any]) -> None:
    assert not exported(WithTable(rows), (2, 5)).verify().verified


class WithMask(torch.nn.Module):
    """Keeps a mask for each length, whatever else decides what is in it."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: Table = {}

    def forward(self, x: torch.Tensor, is_causal: bool = True, scale: torch.Tensor | None = None) -> Any:
        n = x.shape[1]
        if n not in self.masks:
            ones = torch.ones(n, n)
            self.masks[n] = ones.tril() if is_causal and scale is not None else ones
        return self.masks[n] @ x * (1 if scale is None else scale)


@pytest.mark.parametrize("given", [{"is_causal": True, "scale": torch.ones(1)}, {"scale": torch.ones(1)}])
def test_a_table_of_what_a_refused_call_decides_is_not_verified(given: dict[str, Any]) -> None:
    model, observer = WithMask(), InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4), **given)
    assert not observer.export().verify().verified


def test_what_a_table_had_before_the_model_was_watched_is_compared_with_the_size() -> None:
    model = WithTable(asked_first, {6: torch.ones(6, 1), 9: torch.ones(9, 1)})
    program = exported(model, (2, 5))
    assert program.verify().verified
    for length in (6, 9):
        with pytest.raises(RejectedCallError):
            program(torch.randn(2, length, 4))
    x = torch.randn(3, 7, 4)
    torch.testing.assert_close(program(x), model(x))


#: a table of a file, which all models of it share
SHARED: Table = {}


class WithTableOfFile(WithTable):
    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.rows(SHARED, x)


@pytest.fixture
def shared() -> Iterator[Table]:
    SHARED.clear()
    yield SHARED
    SHARED.clear()


@pytest.mark.parametrize("rows", [asked_first, of_two_sizes])
@pytest.mark.slow
def test_a_table_of_the_file_holds_for_all_sizes(shared: Table, rows: Callable[..., Any]) -> None:
    model = WithTableOfFile(rows)
    program = exported(model, (2, 5))
    held = dict(shared)
    assert program.verify().verified
    assert shared is SHARED
    assert type(shared) is dict
    assert [*shared] == [*held]
    assert all(shared[key] is held[key] for key in held)
    for batch, length in ((2, 5), (2, 9), (4, 3), (2, 9)):
        x = torch.randn(batch, length, 4)
        torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("rows", [of_inputs, told_apart])
@pytest.mark.slow
def test_a_table_of_the_file_of_something_else_is_not_verified_for_other_sizes(
    shared: Table, rows: Callable[..., Any]
) -> None:
    program = exported(WithTableOfFile(rows), (2, 5))
    if program.verify().verified:
        with pytest.raises(RejectedCallError):
            program(torch.randn(2, 9, 4))


def test_what_another_model_put_into_a_table_of_the_file_is_compared_with_the_size(
    shared: Table,
) -> None:
    shared[9] = torch.ones(9, 1)
    program = exported(WithTableOfFile(asked_first), (2, 5))
    assert program.verify().verified
    assert [*shared] == [9, 5]
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 9, 4))


OF_A_PACKAGE = """
import torch

STEPS = {}

class WithTable(torch.nn.Module):
    def forward(self, x):
        n = x.shape[1]
        if n not in STEPS:
            STEPS[n] = torch.arange(n).unsqueeze(-1) / 10
        return x * STEPS[n]
"""


def test_a_table_of_a_package_holds_for_all_sizes_and_keeps_what_calls_put_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = ModuleType("package_with_a_table")
    file = f"{site.getsitepackages()[0]}/package_with_a_table/__init__.py"
    monkeypatch.setitem(sys.modules, package.__name__, package)
    lines = (len(OF_A_PACKAGE), None, OF_A_PACKAGE.splitlines(keepends=True), file)
    monkeypatch.setitem(linecache.cache, file, lines)
    exec(compile(OF_A_PACKAGE, file, "exec"), vars(package))
    model = package.WithTable()
    program = exported(model, (2, 5))
    held = package.STEPS[5]
    assert program.verify().verified
    assert [*package.STEPS] == [5]
    assert package.STEPS[5] is held
    x = torch.randn(3, 9, 4)
    torch.testing.assert_close(program(x), model(x))

"""A tensor taken apart row by row and joined again keeps its dynamic size; one whose rows are read does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from onlooker import InputObserver


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


class Joins(torch.nn.Module):
    def __init__(self, join: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.join = join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(x * 2) + 1


JOINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cat of a list": lambda x: torch.cat(list(x)),
    "cat of an unbind along another dimension": lambda x: torch.cat(x.unbind(0), dim=-1),
    "stack of a tuple": lambda x: torch.stack(tuple(x)),
    "stack along another dimension": lambda x: torch.stack(list(x), dim=1),
    "shapes asked on the way": lambda x: torch.cat([row for row in x if row.shape[-1] == 3]),
}


@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
@pytest.mark.one_in(2)
def test_rows_that_are_only_joined_again_are_one_graph(join: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, observer = Joins(join), InputObserver()
    with observer(model):
        model(rand(2, 4, 3))
    program = observer.export()
    assert len(program.graphs) <= 2  # one row alone is another graph
    for shape in ((1, 4, 3), (5, 4, 3), (3, 2, 3)):
        assert torch.equal(program(rand(*shape)), model(rand(*shape)))


class Rows(torch.nn.Module):
    """Gives the rows themselves, as vision-language models give the features of each image."""

    def forward(self, x: torch.Tensor) -> dict[str, object]:
        rows = list(x * 2)
        return {"rows": rows, "last": rows[-1]}


def test_rows_that_are_results_are_each_their_own() -> None:
    model, observer = Rows(), InputObserver()
    with observer(model):
        for count in (1, 2, 3):
            model(rand(count, 4, 3))
    program = observer.export()
    for count in (1, 2, 3):
        given = rand(count, 5, 3)
        found, expected = program(given), model(given)
        assert len(found["rows"]) == count
        assert all(map(torch.equal, found["rows"], expected["rows"]))
        assert torch.equal(found["last"], expected["last"])
    assert program.verify(trials=20).verified


def last_two(x: torch.Tensor) -> torch.Tensor:
    rows = list(x.unbind(0))
    copies = rows
    return torch.cat(copies[-2:])


OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a row is read": lambda x: torch.stack([row.flip(0) if i == 1 else row for i, row in enumerate(x)]),
    "another order": lambda x: torch.cat(list(x)[::-1]),
    "their number is read": lambda x: torch.cat(list(x)) * len(list(x)),
    "the last two of a list": lambda x: torch.cat(list(x)[-2:]),
    "the last two of a list with a name": last_two,
    "the joined rows are written": lambda x: torch.cat(list(x)).add_(1) + x.sum(),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("join", OTHERS.values(), ids=OTHERS)
def test_rows_that_are_read_otherwise_are_never_wrong(join: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model, observer = Joins(join), InputObserver()
    with observer(model):
        model(rand(2, 4, 3))
    program = observer.export()
    assert torch.equal(program(rand(2, 4, 3)), model(rand(2, 4, 3)))
    for n in (3, 5):
        try:
            got = program(rand(n, 4, 3))
        except Exception:  # a graph per number of rows, and none for this one
            continue
        assert torch.equal(got, model(rand(n, 4, 3)))


def joined_twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = [row for row in x]  # noqa: C416 a loop
    first = torch.stack(rows)
    first.add_(1)
    return first, torch.stack(rows), x


def two_blocks(x: torch.Tensor) -> torch.Tensor:
    parts = x.split(2, 0)
    return torch.cat(parts[-2:]) * len(parts)


PARTS: dict[str, Callable[[torch.Tensor], object]] = {
    "the last two rows": lambda x: torch.stack(x.unbind(0)[-2:], 1),
    "the last two blocks": two_blocks,
    "all but the first": lambda x: torch.stack(x.unbind(0)[1:]),
    "backwards": lambda x: torch.cat(x.unbind(0)[::-1]),
    "written afterwards": lambda x: (torch.stack(x.unbind(0)[1:]).add_(1), x),
    "joined twice": joined_twice,
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_some_of_the_rows_are_joined_whatever_their_number(parts: Callable[[torch.Tensor], object]) -> None:
    model, observer = GivesRows(parts), InputObserver()
    with observer(model):
        for n in (4, 6):
            model(rand(n, 4, 3))
    program = observer.export()
    for n in (4, 6, 8, 12):
        torch.testing.assert_close(program(rand(n, 4, 3)), model(rand(n, 4, 3)))
    assert program.verify().verified


class GivesRows(torch.nn.Module):
    def __init__(self, rows: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: torch.Tensor) -> object:
        return self.rows(x)


ROWS: dict[str, Callable[[torch.Tensor], object]] = {
    "rows": lambda x: x.unbind(1),
    "rows among others": lambda x: {"rows": torch.unbind(x, 1), "sum": x.sum()},
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.slow
def test_rows_that_come_back_are_a_tuple(rows: Callable[[torch.Tensor], object]) -> None:
    model, observer = GivesRows(rows), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 6), (4, 8)):
            model(rand(batch, length, 3))
    program = observer.export()
    assert program.verify().verified
    torch.testing.assert_close(program(rand(5, 6, 3)), model(rand(5, 6, 3)), rtol=0, atol=0)

"""Bounds of a model are found: the rows of a table run out, or a shape fits no longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onlooker import InputObserver, Program
from onlooker.core.contract import Constraint, Origin
from onlooker.torch_internals.fake_tensors import FakeTensor
from unreached import Unreached

ROWS = 40


def exported(model: nn.Module, *calls: tuple[Any, ...], **more: Any) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model.eval()):
        for call in calls:
            model(*call)
    return observer.export(**more)


def bounds_of(program: Program) -> list[Constraint]:
    """The bounds of all graphs, each once."""
    found = [
        constraint
        for graph in program.graphs
        for region in graph.contract.regions
        for constraint in region.constraints
        if constraint.origin is Origin.BOUND
    ]
    return list(dict.fromkeys(found))


def ranges_of(program: Program) -> dict[str, str]:
    return {symbol.name: symbol.range for plan in program.plans for symbol in plan.symbols}


def tokens(*shape: int) -> Tensor:
    return torch.arange(shape[0] * shape[1]).reshape(shape) % 20


TEXTS = (tokens(2, 10),), (tokens(3, 12),), (tokens(4, 7),)
ROWS_OF_FLOATS = (torch.randn(2, 10, 4),), (torch.randn(3, 12, 4),), (torch.randn(4, 7, 4),)
PASTS = (
    (tokens(2, 5), torch.randn(2, 3, 4)),
    (tokens(3, 6), torch.randn(3, 7, 4)),
    (tokens(2, 4), torch.randn(2, 0, 4)),
)


class Learned(nn.Module):
    """A table of positions; how the positions are made is the matter of each test."""

    def __init__(self, positions: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 4)
        self.table = nn.Embedding(ROWS, 4)
        self.positions = positions

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.table(self.positions(ids))


def counted(x: Tensor) -> Tensor:
    return torch.arange(x.shape[1], device=x.device)


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("positions", "most"),
    [
        (counted, ROWS),
        (lambda x: counted(x) + 2, ROWS - 2),  # OPT
        (lambda x: torch.cumsum(torch.ones_like(x), 1) - 1, ROWS),
        (lambda x: torch.cumsum(torch.ones(x.shape[0], x.shape[1]), 1).long() + 1, ROWS - 2),
        (lambda x: counted(x).expand(x.shape[0], x.shape[1]), ROWS),
        (lambda x: counted(x).flip(0), ROWS),
        (lambda x: 2 * counted(x), ROWS // 2),
        (lambda x: ROWS - 1 - counted(x), ROWS),
        (lambda x: counted(x) + x.shape[1], ROWS // 2),
        (lambda x: torch.where(counted(x) > 15, counted(x), 0), ROWS),
        (lambda x: counted(x).clamp(max=100), ROWS),
    ],
)
def test_a_table_of_positions_ends(positions: Callable[[Tensor], Tensor], most: int) -> None:
    program = exported(Learned(positions), *TEXTS)
    (bound,) = bounds_of(program)
    assert bound.formula == f"sequence <= {most}"
    assert bound.reason == f"{ROWS} rows of table.weight"
    assert "self.table(self.positions(ids))" in bound.line
    assert program.plans[0].symbol("sequence").high == most
    assert ranges_of(program)["sequence"].startswith(f"1 to {most} ({ROWS} rows of table.weight, ")
    assert program.verify().verified
    assert f"sequence = Dim('sequence', max={most})" in program.code().replace('"', "'")
    with pytest.raises(ValueError, match=rf"{ROWS} rows of table\.weight.*itself refuses"):
        program(tokens(2, most + 1))
    program(tokens(2, most))


@pytest.mark.parametrize(
    "positions",
    [
        lambda x: counted(x).clamp(max=ROWS - 1),
        lambda x: counted(x) % ROWS,
        lambda x: x,
        lambda x: torch.cumsum((x != 1).long(), 1),
        lambda x: torch.minimum(counted(x), torch.tensor(ROWS - 1)),
        lambda x: torch.zeros_like(x),
        lambda x: (counted(x)[None] - counted(x)[:, None]).clamp(-9, 9)[0] + 9,  # relative
    ],
)
@pytest.mark.one_in(2)
def test_an_index_that_stays_in_its_table_is_no_bound(
    positions: Callable[[Tensor], Tensor],
) -> None:
    program = exported(Learned(positions), *TEXTS)
    assert not bounds_of(program)
    assert program.plans[0].symbol("sequence").high is None


def test_a_past_and_a_sequence_are_bound_together() -> None:
    class WithPast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.table = nn.Embedding(20, 4), nn.Embedding(ROWS, 4)

        def forward(self, ids: Tensor, past: Tensor) -> Tensor:
            first = past.shape[1]
            places = torch.arange(first, first + ids.shape[1])
            return torch.cat([past, self.words(ids) + self.table(places)], 1)

    model = WithPast()
    program = exported(model, *PASTS)
    (bound,) = bounds_of(program)
    assert bound.formula == f"past_dim_1 + sequence <= {ROWS}"
    plan = program.plans[0]
    assert (plan.symbol("sequence").high, plan.symbol("past_dim_1").high) == (ROWS, ROWS)  # either may be empty
    program(tokens(2, 10), torch.randn(2, ROWS - 10, 4))
    with pytest.raises(ValueError, match=rf"{ROWS} rows of table\.weight"):
        program(tokens(2, 11), torch.randn(2, ROWS - 10, 4))
    assert program.verify().verified


class Buffers(nn.Module):
    """Tables that are cut to a length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("places", torch.arange(ROWS)[None])
        self.register_buffer("rows", torch.randn(ROWS, 4))
        self.register_buffer("mask", torch.tril(torch.ones(ROWS, ROWS))[None])
        self.register_buffer("flat", torch.randn(ROWS * 4))
        self.table = nn.Embedding(ROWS, 4)


class CutPlaces(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(self.places[:, : x.shape[1]])


class CutRows(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows[: x.shape[1]]


class Narrowed(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows.narrow(0, 0, x.shape[1])


class CutMask(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return (x @ x.transpose(1, 2)) * self.mask[:, :n, :n]


class Viewed(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return x + self.flat[: 4 * n].view(n, 4)


class Indexed(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows[torch.arange(x.shape[1])]


class Selected(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.index_select(self.rows, 0, torch.arange(x.shape[1]))


class Gathered(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])[:, None].expand(-1, 4)
        return x + torch.gather(self.rows, 0, places)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CutPlaces, f"places.shape[1] is {ROWS}"),
        (CutRows, f"{ROWS} rows of rows"),
        (Narrowed, f"{ROWS} rows of rows"),
        (CutMask, f"mask.shape[1] is {ROWS}"),
        (Viewed, f"{4 * ROWS} rows of flat"),
        (Indexed, f"{ROWS} rows of rows"),
        (Selected, f"{ROWS} rows of rows"),
        (Gathered, f"{ROWS} rows of rows"),
    ],
)
@pytest.mark.one_in(2)
def test_a_buffer_ends(kind: type[Buffers], reason: str) -> None:
    model = kind()
    program = exported(model, *ROWS_OF_FLOATS)
    (bound,) = bounds_of(program)
    assert bound.formula == f"x_dim_1 <= {ROWS}"
    assert bound.reason == reason
    assert "in forward: " in bound.line
    with pytest.raises((RuntimeError, IndexError)):
        model(torch.randn(2, ROWS + 1, 4))
    with pytest.raises(ValueError, match="itself refuses"):
        program(torch.randn(2, ROWS + 1, 4))
    program(torch.randn(2, ROWS, 4))
    tally = program.verify()
    assert tally.verified
    tried = {dict(check.sizes).get("x_dim_1", 0) for check in tally.checks}
    assert max(tried) == ROWS


class CutWithPast(Buffers):
    def forward(self, x: Tensor, past: Tensor) -> Tensor:
        first = past.shape[1]
        return torch.cat([past, x + self.rows[first : first + x.shape[1]]], 1)


def test_a_cut_behind_a_past_is_bound_together() -> None:
    calls = [(torch.randn(*x.shape, 4), past) for x, past in PASTS]
    program = exported(CutWithPast(), *calls)
    (bound,) = bounds_of(program)
    assert bound.formula == f"past_dim_1 + x_dim_1 <= {ROWS}"
    assert len(program.graphs) == 1
    # nothing of what torch concludes for sizes of 2 and more is left
    program(torch.randn(2, ROWS, 4), torch.randn(2, 0, 4))
    program(torch.randn(2, 1, 4), torch.randn(2, ROWS - 1, 4))
    with pytest.raises(ValueError, match=f"{ROWS} rows of rows"):
        program(torch.randn(2, 2, 4), torch.randn(2, ROWS - 1, 4))


class Returned(Buffers):
    """A slice ends where the buffer ends, and nothing wants more of it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum() + self.rows[: x.shape[1]]


class CutAlike(Buffers):
    """What is cut has the length of what it is added to."""

    def forward(self, x: Tensor) -> Tensor:
        places = self.rows[: x.shape[1]]
        return x[:, : places.shape[0]] + places


class OnTheFly(Buffers):
    """Rotary positions are computed for any length."""

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
        return x * angles.cos()


class Checked(Buffers):
    """The model asks by itself."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > ROWS:
            return x
        return x + self.rows[: x.shape[1]]


class Branches(Buffers):
    """The size of the table depends on a branch, and there is none behind it."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if n <= 20:
            return x + self.rows[:20][torch.arange(n)]
        if n <= ROWS:
            return x + self.rows[torch.arange(n)]
        return x


@pytest.mark.parametrize("kind", [Returned, CutAlike, OnTheFly, Checked, Branches])
@pytest.mark.one_in(2)
def test_no_bound_where_the_model_takes_more(kind: type[Buffers]) -> None:
    model = kind()
    program = exported(model, *ROWS_OF_FLOATS)
    assert not bounds_of(program)
    model(torch.randn(2, ROWS + 1, 4))


class Grid(nn.Module):
    """Positions of an image are resized to its sides."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = nn.Parameter(torch.randn(1, 3, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        sides = x.shape[2], x.shape[3]
        return x + nn.functional.interpolate(self.grid, sides, mode="bilinear")


def test_a_grid_that_is_resized_has_no_end() -> None:
    images = [(torch.randn(2, 3, 8, 12),), (torch.randn(3, 3, 16, 10),)]
    assert not bounds_of(exported(Grid(), *images))


def test_a_bound_stands_behind_autocast_too() -> None:
    model = Learned(counted).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model), torch.autocast("cpu", torch.bfloat16):
        for call in TEXTS:
            model(*call)
    (bound,) = bounds_of(observer.export())
    assert bound.formula == f"sequence <= {ROWS}"


class ByTable(nn.Module):
    """The rows of the table are a size of an input as well."""

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        return x + table[torch.arange(x.shape[1])]


def test_a_table_that_is_an_input_bounds_by_its_own_size() -> None:
    calls = [(torch.randn(2, n, 4), torch.randn(rows, 4)) for n, rows in ((5, 9), (7, 20), (6, 8))]
    program = exported(ByTable(), *calls)
    (bound,) = bounds_of(program)
    assert bound.formula == "x_dim_1 <= table_dim_0"
    program(torch.randn(2, 8, 4), torch.randn(8, 4))
    with pytest.raises(ValueError, match="rows of table"):
        program(torch.randn(2, 9, 4), torch.randn(8, 4))


class Raises(Buffers):
    """The model says by itself where it ends."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > ROWS:
            raise ValueError("too long")
        return x + self.rows[0]


class Asserts(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] <= ROWS
        return x + self.rows[0]


@pytest.mark.parametrize(("kind", "error"), [(Raises, "ValueError"), (Asserts, "AssertionError")])
def test_what_the_model_refuses_by_itself_is_a_bound(kind: type[Buffers], error: str) -> None:
    program = exported(kind(), *ROWS_OF_FLOATS)
    (bound,) = bounds_of(program)
    assert bound.formula == f"x_dim_1 <= {ROWS}"
    assert bound.reason == f"the model raises {error}"
    assert program.plans[0].symbol("x_dim_1").high == ROWS
    with pytest.raises(ValueError, match="itself refuses"):
        program(torch.randn(2, ROWS + 1, 4))
    assert program.verify().verified


class RaisesBetween(Buffers):
    """Some sizes are refused, and larger ones are not."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > ROWS:
            if x.shape[1] < 60:
                raise ValueError("neither short nor long")
            return x * 2
        return x + self.rows[0]


class DecidesByValues(Buffers):
    """What lies beyond cannot be run without values, and is no error of the model."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > ROWS and x.max() > 0:
            return x * 2
        return x + self.rows[0]


@pytest.mark.parametrize("kind", [RaisesBetween, DecidesByValues])
def test_another_way_of_the_model_is_no_bound(kind: type[Buffers]) -> None:
    program = exported(kind(), *ROWS_OF_FLOATS)
    assert not bounds_of(program)
    assert program.plans[0].symbol("x_dim_1").high is None


class InPlace(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        places += 2
        return x + self.table(places)


class OneHot(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.one_hot(torch.arange(x.shape[1]), ROWS).float() @ self.rows


class Halved(Buffers):
    """What is left of the rows is not linear in the size."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((torch.arange(x.shape[1]).float() / 2).long())


class Squared(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1]) ** 2 // 8)


class FromTheEnd(Buffers):
    """An index of -1 is the last row."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows[torch.arange(x.shape[1]) - ROWS // 2]


class SplitOff(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.rows.split([x.shape[1], ROWS - x.shape[1]])[0]


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (InPlace, ROWS - 2),
        (OneHot, ROWS),
        (Halved, 2 * ROWS),
        (Squared, 18),
        (FromTheEnd, ROWS + ROWS // 2),
        (SplitOff, ROWS),
    ],
)
@pytest.mark.one_in(2)
def test_bounds_of_other_kinds(kind: type[Buffers], most: int) -> None:
    model = kind()
    program = exported(model, *ROWS_OF_FLOATS)
    (bound,) = bounds_of(program)
    assert bound.formula == f"x_dim_1 <= {most}"
    assert bound.reason
    model(torch.randn(2, most, 4))
    with pytest.raises((RuntimeError, IndexError)):
        model(torch.randn(2, most + 1, 4))
    program(torch.randn(2, most, 4))


class Expects(Buffers):
    """The error of an index is a way of the model."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return x + self.table(torch.arange(x.shape[1]))
        except IndexError:
            return x


class PythonMinimum(Buffers):
    def forward(self, x: Tensor) -> Tensor:
        first = min(x.shape[1], ROWS)
        return x[:, :first] + self.table(torch.arange(first))


class PadsToRows(Buffers):
    """A negative pad cuts."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, 0, 0, ROWS - x.shape[1])) + self.rows


@pytest.mark.parametrize("kind", [Expects, PythonMinimum, PadsToRows])
def test_what_the_model_takes_in_another_way_is_no_bound(kind: type[Buffers]) -> None:
    model = kind()
    assert not bounds_of(exported(model, *ROWS_OF_FLOATS))
    model(torch.randn(2, ROWS + 1, 4))


class CutGrid(nn.Module):
    """Positions of patches: how many there are is a quotient of the sides."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = nn.Parameter(torch.randn(1, 6, 8, 4))
        self.patches = nn.Conv2d(3, 4, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        found = self.patches(x).permute(0, 2, 3, 1)
        return found + self.grid[:, : found.shape[1], : found.shape[2]]


def test_a_quotient_of_sizes_is_bound() -> None:
    images = [(torch.randn(2, 3, 8, 12),), (torch.randn(3, 3, 16, 20),), (torch.randn(2, 3, 12, 8),)]
    program = exported(CutGrid(), *images)
    found = {bound.formula: bound.reason for bound in bounds_of(program)}
    assert found["x_dim_2 <= 27"] == "grid.shape[1] is 6"
    assert found["x_dim_3 <= 35"] == "grid.shape[2] is 8"


class Deep(nn.Module):
    """A table that runs out in the first operators, and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(ROWS, 4))
        self.shapeless = Unreached()

    def forward(self, x: Tensor) -> Tensor:
        y = (x + self.table[: x.shape[1]]).tanh()
        if isinstance(y, FakeTensor) and not torch.compiler.is_exporting():
            self.shapeless.append(tuple(y.shape))
        return y.softmax(1)


def test_a_run_at_a_bound_ends_where_the_one_beyond_it_was_refused() -> None:
    model = Deep()
    program = exported(model, *ROWS_OF_FLOATS)
    assert [bound.formula for bound in bounds_of(program)], "a bound is found"
    assert not [shape for shape in model.shapeless if shape[1] == ROWS], list(model.shapeless)

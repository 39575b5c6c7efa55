"""Two calls say little of products of sizes: a run on symbols tells what the model demands of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError


class Patches(torch.nn.Module):
    """Images of several frames, cut into patches of 2 x 2, as transformers of videos cut them."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = torch.nn.Conv2d(3, 8, 2, stride=2)
        self.of_text = torch.nn.Linear(5, 8)

    def tokens(self, video: torch.Tensor) -> torch.Tensor:
        patches = self.cut(video.flatten(0, 1)).flatten(2).mT
        return patches.reshape(len(video), -1, 8)


class WithTable(Patches):
    """A table has a row for each patch: of rotary positions, in a pipeline of diffusers."""

    def forward(self, video: torch.Tensor, text: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.of_text(text), self.tokens(video) * table], 1).softmax(1)


class Enlarged(WithTable):
    """The video is resized first, by an operator in C++."""

    def forward(self, video: torch.Tensor, text: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        sides = (video.shape[3] // 2 * 2, video.shape[4] // 2 * 2)
        resized = torch.nn.functional.interpolate(video.flatten(0, 1), size=sides, mode="nearest")
        return super().forward(resized.unflatten(0, video.shape[:2]), text, table)


class Placed(WithTable):
    """Resizes positions by factors of the sides, which an operator takes as plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Parameter(torch.randn(1, 8, 5, 5))

    def forward(self, video: torch.Tensor, text: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        factors = [(side // 2 + 0.1) / 5.0 for side in video.shape[3:]]
        places = torch.nn.functional.interpolate(self.places, scale_factor=factors, mode="bicubic")
        assert tuple(places.shape[2:]) == tuple(side // 2 for side in video.shape[3:])
        found = super().forward(video, text, table)
        return found + places.flatten(2).mT.mean(1)


class Asking(WithTable):
    """Reads a value on its way, which no run without values can."""

    def forward(self, video: torch.Tensor, text: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        scale = 2.0 if bool((text.abs().sum() >= 0).any()) else 1.0
        return scale * super().forward(video, text, table)


class OfNumbers(Patches):
    """The sides are numbers beside tokens, and say how the tokens lie; ``places`` say it where they are given."""

    def forward(
        self, tokens: torch.Tensor, frames: int, height: int, width: int, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        if places is None:
            grid = torch.stack(torch.meshgrid(*map(torch.arange, (frames, height, width)), indexing="ij"))
            places = grid.flatten(1).sum(0).unsqueeze(0)
        return tokens * places.unsqueeze(-1).cos()


class OfEvenSides(Patches):
    """The number of tokens is that of the pixels by 4: sides have to be even."""

    def forward(self, video: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        number = len(video[0]) * (video.shape[3] * video.shape[4] // 4)
        places = torch.arange(number, device=video.device).unsqueeze(-1)
        return torch.cat([self.of_text(text), self.tokens(video) + places.cos()], 1).softmax(1)


def table_of(frames: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(frames * (height // 2) * (width // 2), 8)


def with_table(batch: int, frames: int, height: int, width: int, text: int) -> tuple[Any, ...]:
    return torch.randn(batch, frames, 3, height, width), torch.randn(batch, text, 5), table_of(frames, height, width)


def without_table(*sizes: int) -> tuple[Any, ...]:
    return with_table(*sizes)[:2]


def of_numbers(batch: int, frames: int, height: int, width: int, _: int) -> tuple[Any, ...]:
    return torch.randn(batch, frames * height * width, 4), frames, height, width


def of_places(batch: int, frames: int, height: int, width: int, _: int) -> tuple[Any, ...]:
    return *of_numbers(batch, frames, height, width, 0), torch.rand(batch, frames * height * width)


#: in both calls the width is three times the frames, and the height has one row more than the text
BY_CHANCE = ((2, 4, 8, 12, 7), (3, 2, 14, 6, 13))
UNSEEN = ((1, 3, 6, 8, 5), (4, 5, 16, 14, 13), (2, 6, 10, 4, 9))
#: sides that are odd too
ODD = (*UNSEEN, (2, 3, 7, 9, 4))


def watched(model: torch.nn.Module, calls: list[tuple[Any, ...]]) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for call in calls:
            model(*call)
    return observer.export()


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("model", "call", "unseen"),
    [
        pytest.param(WithTable(), with_table, ODD, marks=pytest.mark.slow),
        (Enlarged(), with_table, UNSEEN),
        (Placed(), with_table, UNSEEN),
        (OfNumbers(), of_numbers, ODD),
        (OfNumbers(), of_places, ODD),
        (OfEvenSides(), without_table, UNSEEN),
    ],
    ids=["a table", "resized", "positions that are resized", "numbers", "numbers that are not read", "even sides"],
)
def test_what_two_calls_say_by_chance_is_no_condition(
    model: torch.nn.Module, call: Callable[..., tuple[Any, ...]], unseen: tuple[tuple[int, ...], ...]
) -> None:
    program = watched(model.eval(), [call(*sizes) for sizes in BY_CHANCE])

    assert program.verify().verified
    with torch.no_grad():
        for sizes in unseen:
            asked = call(*sizes)
            torch.testing.assert_close(program(*asked), model(*asked))


@pytest.mark.slow
def test_a_value_that_the_model_asks_for_ends_no_run_on_symbols() -> None:
    model = Asking().eval()
    program = watched(model, [with_table(*sizes) for sizes in BY_CHANCE])

    for sizes in UNSEEN:
        asked = with_table(*sizes)
        torch.testing.assert_close(program(*asked), model(*asked))


def test_the_report_says_that_the_model_demands_it() -> None:
    program = watched(WithTable().eval(), [with_table(*sizes) for sizes in BY_CHANCE])

    (relation,) = (relation for plan in program.plans for relation in plan.relations if relation.family == "demanded")
    assert str(relation.left) == "table.shape[0]"
    assert relation.right.evaluate(dict.fromkeys(relation.right.symbols, 6)) == 54


@pytest.mark.slow
def test_a_call_that_breaks_it_is_refused() -> None:
    model = WithTable().eval()
    program = watched(model, [with_table(*sizes) for sizes in BY_CHANCE])

    video, text, table = with_table(2, 3, 6, 8, 5)
    with pytest.raises(Exception, match="table"):
        program(video, text, table[1:])


class TiedOnTheOtherWay(torch.nn.Module):
    """Short ones are multiplied, row by row; of long ones the sums are added, whatever their lengths are."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 8:
            return x.sum(1) + y.sum(1)
        return (torch.cat([x, x[:, :1]], 1) * y).sum(1)


class Clamped(torch.nn.Module):
    """A slice takes no more than there is: lengths are tied by no equation."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[:, : y.shape[1] - 1].sum(1) * 2 + y.sum(1)


class TiedByAList(torch.nn.Module):
    """Python makes a number of a size on the way."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = [y[:, i + 1] * x[:, i] for i in range(x.shape[1])]
        return torch.stack(rows, 1).cumsum(1) + y[:, 1:]


@pytest.mark.parametrize(
    "model",
    [TiedOnTheOtherWay(), Clamped(), pytest.param(TiedByAList(), marks=pytest.mark.slow)],
    ids=lambda model: type(model).__name__,
)
def test_what_a_run_on_symbols_does_not_see_makes_nothing_wrong(model: torch.nn.Module) -> None:
    """In both calls ``y`` has one row more than ``x``, and more rows than ``x`` has columns."""
    program = watched(model, [(torch.randn(2, n, 4), torch.randn(2, n + 1, 4)) for n in (12, 20)])

    assert program.verify().verified
    n_right = 0
    for n, m in ((12, 13), (20, 21), (15, 16), (15, 9), (9, 30), (5, 6), (5, 9), (3, 3)):
        x, y = torch.randn(3, n, 4), torch.randn(3, m, 4)
        try:
            got = program(x, y)
        except RejectedCallError:
            continue
        torch.testing.assert_close(got, model(x, y))
        n_right += 1
    assert n_right >= 3

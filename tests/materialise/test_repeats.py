"""Values that stand as often as another argument is long: the places of images in a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from test_domains import domains, drawn, leaves

from onlooker import InputObserver
from onlooker.core.path import Name, Path
from onlooker.core.spec import Axis
from onlooker.materialise.repeats import Repeat, with_repeats

IDS, IMAGES = Path((Name("ids"),)), Path((Name("images"),))
PLACE = 90


def text(rows: int, places: int, words: int) -> torch.Tensor:
    """Two words, the places of images, then words; all rows alike in their places."""
    ids = torch.randint(6, 80, (rows, 2 + places + words), generator=drawn(rows + places + words))
    ids[:, 2 : 2 + places] = PLACE
    return ids


def images(count: int, *rest: int) -> torch.Tensor:
    return torch.randn(count, *rest, generator=drawn(count))


def found(*calls: dict[str, Any]) -> tuple[Repeat, ...]:
    return domains(*calls).of(IDS).repeats


def axes(*dims: int) -> tuple[Axis, ...]:
    return tuple(Axis(IMAGES, dim) for dim in dims)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([(text(1, 4, 6), images(1, 8)), (text(1, 8, 7), images(2, 8))], Repeat(PLACE, axes(0), 4)),
        ([(text(1, 4, 6), images(4, 8))], Repeat(PLACE, axes(0))),
        ([(text(1, 4, 6), images(1, 8))], Repeat(PLACE, axes(0), 4)),
        ([(text(1, 4, 6), images(16, 8)), (text(1, 6, 6), images(24, 8))], Repeat(PLACE, axes(0), 1, 4)),
        (
            [(text(1, 8, 6), images(1, 2, 3)), (text(2, 12, 5), images(2, 3, 3))],
            Repeat(PLACE, axes(0, 1), 4, even=True),
        ),
        (
            [(text(1, 6, 6), images(1, 3, 4, 6)), (text(1, 16, 5), images(2, 3, 4, 8))],
            Repeat(PLACE, axes(0, 2, 3), 1, 4),
        ),
    ],
    ids=["two calls", "one call", "one call, four each", "a fourth", "two dimensions", "maps"],
)
def test_places_go_with_images(calls: Sequence[tuple[torch.Tensor, torch.Tensor]], expected: Repeat) -> None:
    kept = [repeat for repeat in found(*[{"ids": i, "images": x} for i, x in calls]) if repeat.value == PLACE]
    assert kept == [expected]


def test_a_call_without_images_tells_nothing_of_them() -> None:
    calls = [{"ids": text(1, 4 * n, 6), "images": images(n, 8)} for n in (1, 3)]
    assert found(*calls, {"ids": text(1, 0, 9), "images": None}) == (Repeat(PLACE, axes(0), 4),)


def test_of_several_arguments_of_that_size_the_features_count() -> None:
    positions = torch.arange(12).expand(4, 1, 12)
    call = {"positions": positions, "ids": text(1, 4, 6), "images": images(4, 8)}
    assert found(call) == (Repeat(PLACE, axes(0)),)


def test_words_do_not_go_with_images() -> None:
    calls = [{"ids": text(1, 0, n), "images": images(n % 5 + 1, 8)} for n in (6, 9, 13)]
    assert found(*calls) == ()


@pytest.mark.parametrize(
    ("ids", "count", "expected"),
    [
        ([[1, 90, 90, 2]], 2, [[1, 90, 90, 2]]),
        ([[1, 90, 2, 3]], 2, [[1, 90, 90, 3]]),
        ([[1, 2, 3, 90]], 3, [[1, 90, 90, 90]]),
        ([[1, 90, 90, 90]], 1, [[1, 90, 1, 1]]),
        ([[1, 90, 90, 2], [2, 90, 90, 1]], 2, [[1, 90, 90, 2], [2, 1, 1, 1]]),
        ([[1, 90], [2, 3]], 5, [[1, 90], [2, 3]]),
        ([[1, 2]], 0, [[1, 2]]),
    ],
    ids=["right", "too few", "no room behind", "too many", "rows", "no room", "none"],
)
def test_as_many_values_as_asked_for(ids: list[list[int]], count: int, expected: list[list[int]]) -> None:
    numbers = torch.tensor(ids)
    made = with_repeats(numbers, (Repeat(PLACE, axes(0)),), {Axis(IMAGES, 0): count}, 0)
    assert made.tolist() == expected
    assert numbers.tolist() == ids
    assert with_repeats(made, (Repeat(PLACE, axes(0)),), {Axis(IMAGES, 0): count}, 0).tolist() == expected


def test_even_rows_stay_even() -> None:
    made = with_repeats(text(3, 5, 4), (Repeat(PLACE, axes(0), even=True),), {Axis(IMAGES, 0): 6}, 0)
    assert (made == PLACE).sum(dim=1).tolist() == [2, 2, 2]


def test_the_places_of_images_and_films_do_not_mix() -> None:
    films = Axis(Path((Name("films"),)), 0)
    repeats = Repeat(90, axes(0)), Repeat(91, (films,))
    made = with_repeats(torch.tensor([[1, 90, 91, 91, 2, 3]]), repeats, {Axis(IMAGES, 0): 3, films: 2}, 0)
    assert [int((made == value).sum()) for value in (90, 91)] == [3, 2]


def test_a_made_text_has_the_places_of_its_images() -> None:
    known = domains(*[{"ids": text(1, 4 * n, 6), "images": images(n, 8)} for n in (1, 2)])
    made = known.clamped(leaves({"ids": text(2, 4, 9), "images": images(5, 8)}))
    assert int((made[IDS] == PLACE).sum()) == 20


class Seeing(torch.nn.Module):
    """Puts rows of images where the text has places for them; their numbers have to agree."""

    def __init__(self, per_image: int = 4) -> None:
        super().__init__()
        self.words, self.look = torch.nn.Embedding(99, 8), torch.nn.Linear(8, 8)
        self.per_image = per_image

    def forward(self, ids: torch.Tensor, images: Any = None) -> torch.Tensor:
        made: torch.Tensor = self.words(ids)
        if images is not None:
            rows = torch.cat(images) if isinstance(images, list | tuple) else images
            rows = self.look(rows).repeat_interleave(self.per_image, dim=0)
            mask = (ids == PLACE)[..., None].expand_as(made)
            torch._check_tensor_all(mask.sum() == rows.numel(), lambda: "images and places do not match")
            made = made.masked_scatter(mask, rows)
        return made.cumsum(dim=1)


def one_tensor(count: int) -> torch.Tensor:
    return images(count, 8)


def a_list(count: int) -> list[torch.Tensor]:
    return list(images(count, 8).split(1))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("make", [one_tensor, a_list])
@pytest.mark.parametrize(
    "watched",
    [[(1, 1)], [(1, 1), (1, 2)], [(1, 1), (2, 2), (2, 4)], [(2, 2)]],
    ids=["one image", "one and two", "batches", "a batch"],
)
def test_any_number_of_images_in_any_batch(make: Callable[[int], Any], watched: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    model, observer = Seeing(), InputObserver()
    with observer(model):
        for rows, count in watched:
            model(text(rows, 4 * count // rows, 5 + count), make(count))
        model(text(2, 0, 7))
    program = observer.export()
    assert program.verify().verified, program.report
    for rows, count, words in ((1, 1, 9), (1, 3, 4), (2, 2, 3), (3, 3, 1), (2, 6, 8)):
        ids, given = text(rows, 4 * count // rows, words), make(count)
        torch.testing.assert_close(program(ids, given), model(ids, given))
    torch.testing.assert_close(program(text(3, 0, 4)), model(text(3, 0, 4)))
    with pytest.raises(ValueError, match="No graph of this program takes the call"):
        program(text(1, 5, 4), make(1))

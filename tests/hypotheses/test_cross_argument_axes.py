"""Axes that the model lets change together, found from one call: in other places, of other sizes, mixed rows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from onlooker import InputObserver, RejectedCallError


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ints(*shape: int, high: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(sum(shape)))


class Edges(torch.nn.Module):
    """The edges of a graph stand second in one argument and first in another one."""

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        source, target = edges
        return torch.zeros_like(nodes).index_add(0, target, nodes[source] * weights)

    @staticmethod
    def call(n: int) -> dict[str, Any]:
        return {"nodes": rand(n + 3, 4), "edges": ints(2, 2 * n, high=n), "weights": rand(2 * n, 1)}


class Latent(torch.nn.Module):
    """A latent is a quarter of its image."""

    def forward(self, image: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(image, 4) + latent

    @staticmethod
    def call(n: int) -> dict[str, Any]:
        return {"image": rand(2, 3, 4 * n, 4 * n + 4), "latent": rand(2, 3, n, n + 1)}


class Bag(torch.nn.Module):
    """Items of all bags laid flat, and where each bag begins."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(20, 4)

    def forward(self, items: torch.Tensor, offsets: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.bag(items, offsets), dense], 1)

    @staticmethod
    def call(n: int) -> dict[str, Any]:
        return {"items": ints(3 * n, high=20), "offsets": torch.arange(n - 3) * 3, "dense": rand(n - 3, 4)}


class Repeated(torch.nn.Module):
    """Each row comes as often as its duration says."""

    def forward(self, x: torch.Tensor, durations: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(x, durations, dim=0)

    @staticmethod
    def call(n: int) -> dict[str, Any]:
        return {"x": rand(n, 3), "durations": ints(n, high=4) + 1}


class Questions(torch.nn.Module):
    """Three questions about each image; the least batch is that of the images."""

    def forward(self, questions: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        times = questions.shape[0] // images.shape[0]
        return questions.reshape(images.shape[0], times, -1) * images[:, None]

    @staticmethod
    def call(n: int) -> dict[str, Any]:
        return {"questions": rand(3 * (n - 3), 6), "images": rand(n - 3, 6)}


@pytest.mark.parametrize("kind", [Edges, Latent, Bag, Repeated, Questions])
@pytest.mark.one_in(2)
def test_what_changes_together_is_found_from_one_call(kind: Any) -> None:
    torch.manual_seed(0)
    model, observer = kind().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(**kind.call(4))
    program = observer.export()
    for n in (5, 7, 11):
        with torch.no_grad():
            expected = model(**kind.call(n))
        torch.testing.assert_close(program(**kind.call(n)), expected)


class Marked(torch.nn.Module):
    """Places of a text are marked for the rows of an image: the marks begin and end with 0."""

    def forward(self, ids: torch.Tensor, marks: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        x = ids[..., None].float().expand(-1, -1, 2)
        if not torch.compiler.is_compiling() and int(marks.sum()) != image.shape[0] * image.shape[1]:
            raise ValueError("another number of marks than of features")
        return x.masked_scatter(marks[..., None].bool(), image)


def test_marks_inside_a_text_stay_when_its_end_is_cut() -> None:
    def call(rows: int, n: int) -> dict[str, Any]:
        marks = torch.zeros(rows, n, dtype=torch.int64)
        marks[:, 1:3] = 1
        return {"ids": ints(rows, n, high=9), "marks": marks, "image": rand(rows, 2, 2)}

    model, observer = Marked(), InputObserver()
    with observer(model):
        model(**call(1, 12))
    program = observer.export()
    for rows, n in ((2, 6), (3, 17)):
        assert torch.equal(program(**call(rows, n)), model(**call(rows, n)))


class Boxes(torch.nn.Module):
    """The corners of a box in their order: right of left, below the top."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Embedding(60, 4)

    def forward(self, boxes: torch.Tensor) -> torch.Tensor:
        return self.wide(boxes[..., 2] - boxes[..., 0])

    @staticmethod
    def call(rows: int, n: int) -> dict[str, Any]:
        left = ints(rows, n, 2, high=30)
        return {"boxes": torch.cat([left, left + 1 + ints(rows, n, 2, high=20)], -1)}


def test_the_corners_of_a_box_stay_together_in_further_rows() -> None:
    torch.manual_seed(0)
    model, observer = Boxes().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(**Boxes.call(1, 5))
    program = observer.export()
    with torch.no_grad():
        torch.testing.assert_close(program(**Boxes.call(3, 7)), model(**Boxes.call(3, 7)))


class Keeper:
    """An object that begins with empty tensors of another rank."""

    def __init__(self) -> None:
        self.keys, self.seen = torch.zeros(0), 0


class Kept(torch.nn.Module):
    def forward(self, x: torch.Tensor, state: Keeper) -> torch.Tensor:
        state.keys = torch.cat([state.keys, x], 1) if state.seen else x
        state.seen = state.keys.shape[1]
        return state.keys.cumsum(1)[:, -x.shape[1] :]


def test_a_state_of_another_rank_in_the_first_call_is_no_source_of_values() -> None:
    model, observer = Kept(), InputObserver()
    with observer(model):
        state = Keeper()
        for n in (6, 1, 1):
            model(rand(1, n, 2), state)
    program = observer.export()
    ours = Keeper()
    for n in (4, 1, 1):
        given = copy.deepcopy(ours)
        torch.testing.assert_close(program(rand(3, n, 2), given), model(rand(3, n, 2), ours))


class Counted(torch.nn.Module):
    """Counts its steps in a tensor of one int; does not read the mask, or adds it."""

    def __init__(self, *, reads_mask: bool) -> None:
        super().__init__()
        self.reads_mask = reads_mask

    def forward(
        self, x: torch.Tensor, state: torch.Tensor, count: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = x.cumsum(1) + state[:, None]
        return out + mask if self.reads_mask else out, count + x.shape[1]


@pytest.mark.parametrize("reads_mask", [False, True])
def test_a_batch_is_no_multiple_of_a_size_of_one_beside_a_mask_that_is_not_read(reads_mask: bool) -> None:
    def call(rows: int, n: int) -> tuple[torch.Tensor, ...]:
        mask = torch.ones(rows, n, dtype=torch.int64)
        return rand(rows, n), rand(rows), torch.tensor([n]), mask

    model, observer = Counted(reads_mask=reads_mask), InputObserver()
    with observer(model):
        for n in (5, 6, 1):
            model(*call(2, n))
    program = observer.export()
    assert program.verify().verified
    torch.testing.assert_close(program(*call(3, 4)), model(*call(3, 4)))
    if reads_mask:
        with pytest.raises(RejectedCallError):
            program(*call(3, 4)[:-1], torch.ones(2, 4, dtype=torch.int64))

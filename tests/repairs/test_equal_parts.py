"""Loops over blocks of a tensor: parts of ``split``, and rows from each fourth index on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from onlooker import InputObserver, Program, RejectedCallError
from slow_runs import runs


class Blocks(nn.Module):
    """Sums within each block of 4 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.cell = nn.Linear(4, 4), nn.GRUCell(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(part).cumsum(1) for part in x.split(4, 1)], 1)


class CarriedState(Blocks):
    """Carries a state from block to block, which may be written to, and gives each one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros(x.shape[0], 4), []
        for part in torch.split(x, split_size_or_sections=4, dim=-2):
            state = self.cell(part.sum(1), state)
            states.append(state)
        return torch.stack(states, 1)


class EachFourth(Blocks):
    """The same by the index of the first row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = []
        for first in range(0, x.shape[1], 4):
            states.append(self.layer(x[:, first : first + 4]).cumsum(1))
        return torch.cat(states, 1)


class AnyMore(Blocks):
    """Knows how many blocks there are, and joins the last two."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.split(4, 1)
        return torch.cat(parts[-2:], 1) * len(parts)


class Counted(Blocks):
    """Another function for the third block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = []
        for i, part in enumerate(x.split(4, 1)):
            parts.append(part.tanh() if i == 2 else part.cumsum(1))
        return torch.cat(parts, 1)


class WrittenParts(Blocks):
    """Writes to the parts, which are views."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        for part in x.split(4, 1):
            part.mul_(part.sum())
        return x


class Strided(Blocks):
    """Parts that are read by their strides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part.transpose(0, 1).reshape(4, -1).cumsum(0) for part in x.split(4, 1)]
        return torch.cat(parts, 1)


class UpToTheEnd(Blocks):
    """Says where each block ends."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = []
        for first in range(0, x.shape[1], 4):
            last = min(first + 4, x.shape[1])
            parts.append(self.layer(x[:, first:last]).softmax(1))
        return torch.cat(parts, 1)


class WithTheOneBefore(Blocks):
    """Reads each block with the one before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = []
        for first in range(0, x.shape[1], 4):
            parts.append(self.layer(x[:, max(0, first - 4) : first + 4]).mean(1))
        return torch.stack(parts, 1)


class OverlapAdd(Blocks):
    """Adds up windows that overlap, with how often each row was in one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, n = torch.zeros_like(x), torch.zeros_like(x)
        for first in range(0, x.shape[1] - 7, 4):
            y[:, first : first + 8] += self.layer(x[:, first : first + 8]).softmax(1)
            n[:, first : first + 8] = n[:, first : first + 8] + 1
        return y / n.clamp(min=1)


class WrittenBlocks(Blocks):
    """Writes each block to its place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for first in range(0, x.shape[1], 4):
            y[:, first : first + 4] = self.layer(x[:, first : first + 4]).softmax(1)
        return y


class FromTheBlockBefore(Blocks):
    """Adds to each block what the step before has written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        for first in range(4, x.shape[1] - 3, 4):
            y[:, first : first + 4] += y[:, first - 4 : first].tanh()
        return y


class WrittenByAView(Blocks):
    """Writes to a view of several rows, and to some of these rows by their indices."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for first in range(0, x.shape[1] - 7, 4):
            part = y[:, first : first + 8]
            part += self.layer(x[:, first : first + 8])
            y[:, first : first + 4] *= 2
        return y


class ReadAfterAWrite(Blocks):
    """Reads a view of several rows after they were written."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for first in range(0, x.shape[1] - 7, 4):
            part = y[:, first : first + 8]
            y[:, first : first + 8] = self.layer(x[:, first : first + 8])
            y[:, first : first + 4] += part[:, :4]
        return y


class ReadByAnotherTensor(Blocks):
    """Reads what steps write by another tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        z = y.view(-1, 4)
        for first in range(0, x.shape[1] - 3, 4):
            y[:, first : first + 4] += z.sum() * 1e-3
        return y


WATCHED = (
    Blocks,
    CarriedState,
    EachFourth,
    UpToTheEnd,
    WithTheOneBefore,
    OverlapAdd,
    WrittenBlocks,
    FromTheBlockBefore,
)


BY_VIEWS = (WrittenByAView, ReadAfterAWrite, ReadByAnotherTensor)


def program_of(model: nn.Module, lengths: tuple[int, ...] = (12, 20)) -> Program:
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for length in lengths:
            model(torch.randn(2, length, 4))
    return observer.export()


@pytest.mark.parametrize("kind", [pytest.param(Blocks, marks=pytest.mark.slow), CarriedState])
def test_equal_blocks_are_the_steps_of_one_graph(kind: type[Blocks]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    program = program_of(model)
    assert program.verify().verified
    for rows, length in ((3, 32), (1, 8), (2, 4)):
        x = torch.randn(rows, length, 4)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError):
        program(torch.randn(2, 10, 4))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", runs(WATCHED, slow=(Blocks, UpToTheEnd, FromTheBlockBefore, WrittenBlocks)))
@pytest.mark.slow
def test_a_shorter_last_block_is_a_step_by_itself(kind: type[Blocks]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    program = program_of(model, (11, 18))
    assert program.verify().verified
    for rows, length in ((3, 31), (2, 19), (2, 33)):
        x = torch.randn(rows, length, 4)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))


@pytest.mark.slow
def test_blocks_by_their_first_rows_are_one_graph_with_or_without_a_shorter_last_one() -> None:
    torch.manual_seed(0)
    model = EachFourth().eval()
    program = program_of(model, (12,))
    assert program.verify().verified
    for rows, length in ((3, 32), (1, 8), (2, 10), (2, 19), (2, 33), (3, 50)):
        x = torch.randn(rows, length, 4)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))


class InChunks(nn.Module):
    """Rows of a batch in chunks, whose results are collected by name: rays of a radiance field."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found: dict[str, list[torch.Tensor]] = {}
        for first in range(0, x.shape[0], 8):
            part = {"a": self.layer(x[first : first + 8]), "b": x[first : first + 8].sum(-1)}
            for name in part:
                if name not in found:
                    found[name] = []
                found[name].append(part[name])
        return {name: torch.cat(values, 0) for name, values in found.items()}


class WrittenChunks(InChunks):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found = x.new_zeros(x.shape[0], 3)
        for first in range(0, x.shape[0], 8):
            found[first : first + 8] = self.layer(x[first : first + 8])
        return {"a": found}


@pytest.mark.parametrize("watched", [(13,), pytest.param((16, 20), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", runs((InChunks, WrittenChunks), slow=(WrittenChunks,)))
@pytest.mark.slow
def test_chunks_of_a_batch_are_served_at_any_length(kind: type[InChunks], watched: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, observer = kind().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows in watched:
            model(torch.randn(rows, 4))
    program = observer.export()
    assert program.verify().verified
    for rows in (1, 5, 9, 16, 17, 31, 50, 64):
        x = torch.randn(rows, 4)
        with torch.no_grad():
            torch.testing.assert_close(program(x), model(x))


@pytest.mark.parametrize("kind", [*WATCHED, AnyMore, Counted, WrittenParts, Strided, *BY_VIEWS])
@pytest.mark.parametrize("lengths", [(12, 20), (8, 16), (11, 18), (4, 9)], ids=str)
@pytest.mark.one_in(60)
def test_loops_over_blocks_are_never_wrong(kind: type[Blocks], lengths: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    program = program_of(model, lengths)
    assert program.verify().verified
    for length in (*lengths, 3, 10, 12, 16, 24, 40):
        x = torch.randn(2, length, 4)
        try:
            found = program(x)
        except RejectedCallError:
            assert length not in lengths
            continue
        with torch.no_grad():
            torch.testing.assert_close(found, model(x))


class ManyLoops(nn.Module):
    """Chunks of several lengths, one after the other, of which some steps write to what was there before."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.sizes = nn.Linear(4, 4), sizes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for size in self.sizes:
            x = torch.cat([self.layer(x[i : i + size]) for i in range(0, x.shape[0], size)], 0)
        for i in range(0, x.shape[0], 5):
            x = x + self.layer(x[i : i + 5]).sum(0)
        total = x.sum(1)
        for i in range(0, x.shape[0], 9):
            total[i : i + 9].mul_(total[: i + 1].sum())
        return x * total[:, None]


@pytest.mark.parametrize(
    ("sizes", "watched"),
    [
        pytest.param((8,), (8, 16), marks=pytest.mark.slow),
        pytest.param((8, 7, 6), (3, 30), marks=pytest.mark.slow),
        pytest.param((8, 7, 6), (8, 16), marks=pytest.mark.slow),
    ],
)
def test_many_loops_of_which_some_stay_are_exported(sizes: tuple[int, ...], watched: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, observer = ManyLoops(sizes).eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for rows in watched:
            model(torch.randn(rows, 4) * 0.1)
    program = observer.export()
    assert program.verify().verified
    for rows in (*watched, 4, 12, 31):
        x = torch.randn(rows, 4) * 0.1
        try:
            found = program(x)
        except RejectedCallError:
            assert rows not in watched
            continue
        with torch.no_grad():
            torch.testing.assert_close(found, model(x), rtol=1e-3, atol=1e-4)

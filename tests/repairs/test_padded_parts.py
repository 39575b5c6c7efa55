"""Parts of a tensor, of lengths that are values, which ``pad_sequence`` or ``cat`` joins again."""

from __future__ import annotations

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from onlooker import InputObserver, RejectedCallError


class Split(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return pad_sequence(torch.split(x, lengths.tolist()), batch_first=True)


class OfEachPart(torch.nn.Module):
    """Pads ints of each part, and counts the parts."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, int]:
        parts = [part.argmax(1) for part in torch.split(x, lengths.tolist())]
        return pad_sequence(parts, padding_value=-100), len(parts)


class Joined(torch.nn.Module):
    """The parts together are a new tensor."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.cat(torch.split(x, lengths.tolist()))


def of_parts(*lengths: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(sum(n), 4), torch.tensor(n)) for n in lengths]


class LeftPadded(torch.nn.Module):
    """Cuts the rows of a padded tensor to their lengths, and pads them on the other side."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = [row[:length].cumsum(0) for row, length in zip(x, lengths, strict=True)]
        return pad_sequence(rows, batch_first=True, padding_side="left")


class OfMasks(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        masks = torch.arange(x.shape[1]) < lengths[:, None]
        return pad_sequence([row[mask] for row, mask in zip(x, masks, strict=True)], batch_first=True)


class Turned(torch.nn.Module):
    """Writes and reads slices whose ends are read from a tensor at the index of the step."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for i in range(x.shape[0]):
            result[i, : lengths[i]] = x[i, : lengths[i]].flip(0)
        return result


class OfOneLength(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return pad_sequence([row * 2 for row in x]) + lengths.sum()


def of_rows(*lengths: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(len(n), max(n) + 1, 4), torch.tensor(n)) for n in lengths]


def same(result: object, expected: object) -> None:
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("kind", [OfMasks, OfEachPart, Joined, LeftPadded, Split, Turned, OfOneLength])
def test_one_graph_takes_any_number_of_parts(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    calls = of_parts if kind in (Split, OfEachPart, Joined) else of_rows
    model, observer = kind(), InputObserver()
    with observer(model):
        for call in calls([5, 7], [3, 2, 4]):
            model(*call)
    program = observer.export()
    assert program.verify().verified
    for call in calls([4, 3, 3, 1], [3], [1, 1, 6, 2, 7]):
        same(program(*call), model(*call))


class WithAnother(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return pad_sequence([*torch.split(x, lengths.tolist()), x[:2]], batch_first=True)


class Sorted(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return pad_sequence(sorted(torch.split(x, lengths.tolist()), key=len), batch_first=True)


class FirstAndLast(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        parts = list(torch.split(x, lengths.tolist()))
        return parts[0].sum(0) + parts[-1].mean(0)


def pad_all(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return pad_sequence(parts).sum(0) / len(parts)


class Elsewhere(torch.nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return pad_all(torch.split(x, lengths.tolist()))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [WithAnother, Sorted, FirstAndLast, Elsewhere])
@pytest.mark.slow
def test_parts_that_are_read_otherwise_are_never_wrong(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model, observer = kind(), InputObserver()
    with observer(model):
        for call in of_parts([5, 7], [3, 2, 4]):
            model(*call)
    program = observer.export()
    served = 0
    for call in of_parts([5, 7], [3, 2, 4], [4, 3, 3, 1], [3], [6, 2]):
        try:
            result = program(*call)
        except RejectedCallError:
            continue
        same(result, model(*call))
        served += 1
    assert served

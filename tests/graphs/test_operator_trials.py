"""Where only operators decided about a size: graphs are tried there, and what could not be tried is
all that stays outside.
"""

from __future__ import annotations

import pytest
import torch

from onlooker import InputObserver, RejectedCallError
from onlooker.repairs.numbers.size_ints import length_of

transformers = pytest.importorskip("transformers", reason="The model is one of transformers.")


@pytest.mark.slow
def test_one_row_of_a_quotient_of_sizes_is_served() -> None:
    """The rows are ``batch * codebooks // 4``, which operators ask to be more than one: none is
    impossible, and one is the same graph.
    """
    torch.manual_seed(0)
    config = transformers.MusicgenDecoderConfig(
        vocab_size=32,
        hidden_size=8,
        ffn_dim=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        num_codebooks=4,
    )
    model = transformers.MusicgenForCausalLM(config).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randint(0, 32, (2, 4, 7)))
    program = observer.export()
    assert program.verify().verified
    for batch, length in ((1, 5), (1, 1), (5, 1), (4, 11)):
        ids = torch.randint(0, 32, (batch, 4, length))
        with torch.no_grad():
            expected = model(ids).logits
        torch.testing.assert_close(program(ids).logits, expected)


class ReadsAgain(torch.nn.Module):
    """Makes its shape a key, and reads it again where that is none, as in a trace."""

    def __init__(self) -> None:
        super().__init__()
        self.places = torch.nn.Parameter(torch.randn(4, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.places[: x.shape[1]]
        try:
            [shape] = {x.shape: None}
        except TypeError:
            shape = x.shape
        return x.reshape(shape[0] * shape[1], *shape[2:]).cumsum(1)


def test_a_shape_that_is_read_again_in_a_trace_alone_tells_nothing() -> None:
    model, observer = ReadsAgain(), InputObserver()
    with torch.no_grad(), observer(model):
        model(torch.randn(1, 2, 10, 4))
        model(torch.randn(2, 3, 12, 4))
    program = observer.export()
    assert program.verify().verified
    for shape in ((1, 1, 20, 4), (3, 4, 1, 4)):
        x = torch.randn(*shape)
        torch.testing.assert_close(program(x), model(x))


def test_the_length_of_a_tensor_is_one_size() -> None:
    """``len(x)`` reads what it reads outside of a trace: one row and one column are tried, and served."""
    model, observer = CountsRows(), InputObserver()
    with observer(model):
        model(torch.randn(2, 5))
        model(torch.randn(3, 9))
    program = observer.export()
    assert program.verify().verified
    assert len(program.graphs) == 1
    for shape in ((1, 5), (4, 1), (1, 1), (0, 2)):
        x = torch.randn(*shape)
        torch.testing.assert_close(program(x), model(x))
    with pytest.raises(TypeError, match="len"):
        length_of(torch.tensor(1.0))


class CountsRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) + torch.arange(len(x)) / max(len(x), 1)


class OneRowLess(torch.nn.Module):
    """``view`` asks for ``n % (batch - 1) == 0``, which divides by 0 where the trial is."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] - 1, -1)


def test_a_condition_that_divides_by_0_is_no_error() -> None:
    observer = InputObserver()
    with observer(model := OneRowLess()):
        for size in ((3, 4), (3, 6), (3, 10)):
            model(torch.rand(size))
    program = observer.export()
    assert program.verify().verified
    x = torch.rand(3, 8)
    assert program(x).equal(model(x))


class BlocksOfFour(torch.nn.Module):
    """At a length of 0 the trace's size of a block is 0 // 0; the model itself runs there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        x = torch.nn.functional.pad(x, (0, 0, 0, -length % 4)).view(rows, -1, 4, width)
        places = torch.arange(x.shape[1] * 4).view(-1, 4)
        return (x + places[:, :, None]).reshape(rows, -1, width)[:, :length]


def test_a_size_that_divides_by_0_is_no_error() -> None:
    observer = InputObserver()
    with observer(model := BlocksOfFour()):
        model(torch.rand(2, 12, 8))
        model(torch.rand(3, 16, 8))
    program = observer.export()
    assert program.verify().verified
    x = torch.rand(2, 7, 8)
    torch.testing.assert_close(program(x), model(x))


class Branches(torch.nn.Module):
    """Both branches do at size 1 what they do at others; they read a tensor that they are not given."""

    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(flag, lambda y: x * 2, lambda y: x - 2, [x + 1])


class BranchOfOneColumn(torch.nn.Module):
    """One of the branches goes another way at size 1."""

    def forward(self, flag: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def other(y: torch.Tensor) -> torch.Tensor:
            return y.sum(1) * 3 if y.shape[1] == 1 else y.sum(1)

        return torch.cond(flag, lambda y: y.sum(1) * 2, other, [x])


@pytest.mark.parametrize("model", [Branches(), BranchOfOneColumn()])
@pytest.mark.slow
def test_the_branches_of_a_cond_are_compared_at_size_1(model: torch.nn.Module) -> None:
    yes, no = torch.tensor(True), torch.tensor(False)
    observer = InputObserver()
    with observer(model):
        for flag, size in ((yes, (3, 2)), (no, (4, 4)), (yes, (6, 7))):
            model(flag, torch.rand(size))
    program = observer.export()
    assert program.verify().verified
    for flag in (yes, no):
        x = torch.rand(2, 1)
        if isinstance(model, Branches):
            assert program(flag, x).equal(model(flag, x))
        else:
            with pytest.raises(RejectedCallError, match=r"x\.shape\[1\] >= 2"):
                program(flag, x)


class TakesApart(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, keys, values = x.unflatten(-1, (3, -1)).unbind(-2)
        return query * keys.sum(1, keepdim=True) + values


class TakesApartByRank(torch.nn.Module):
    """One row has another rank, by which Python decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row, other = x.squeeze(0).unflatten(-1, (2, -1)).unbind(-2)
        return row * 2 if row.dim() == 2 else row + other


@pytest.mark.parametrize(("model", "n_graphs"), [(TakesApart(), 1), (TakesApartByRank(), 2)])
def test_a_tensor_that_is_taken_apart_is_tried_at_size_1(model: torch.nn.Module, n_graphs: int) -> None:
    observer = InputObserver()
    with observer(model):
        model(torch.rand(2, 5, 12))
    program = observer.export()
    assert [len(graph.contract.regions) for graph in program.graphs] == n_graphs * [1]
    for size in ((1, 5, 12), (1, 1, 12), (3, 1, 12), (4, 9, 12)):
        x = torch.rand(size)
        torch.testing.assert_close(program(x), model(x))

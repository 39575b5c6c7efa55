"""A trace that decides by real values computes them beside the symbolic ones."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from onlooker import ExportError, InputObserver, RejectedCallError
from onlooker.repairs.numbers.by_values import UncheckedBranchError
from onlooker.trace import torch_export


class Frames(nn.Module):
    """The end of each frame of some videos, in ints that torch adds up in a wider dtype by itself."""

    def forward(self, counts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if bool((scale > 5).any()):
            return scale
        ends = torch.repeat_interleave(2 * counts, counts).cumsum(0, dtype=torch.int32)
        return ends * scale.sum()


def watched() -> InputObserver:
    model, observer = Frames(), InputObserver()
    with observer(model):
        for counts in ([1, 2, 3], [2, 2], [3, 1, 2, 2]):
            model(torch.tensor(counts), torch.rand(2 * len(counts)))
    return observer


# torch 2.10 writes no assertion for a branch on values, see docs/versions.md
CHECKS_BRANCHES = not torch.__version__.startswith("2.10.")


@pytest.mark.skipif(not CHECKS_BRANCHES, reason="this torch does not check such a branch at run time")
def test_sums_in_ints_of_another_width_are_traced_beside_a_branch_on_values() -> None:
    model, program = Frames(), watched().export()
    counts, scale = torch.tensor([4, 1, 5, 2, 2]), torch.rand(10)
    torch.testing.assert_close(program(counts, scale), model(counts, scale))
    with pytest.raises(RejectedCallError):
        program(counts, 9 * torch.ones(10))


def test_a_branch_that_torch_does_not_check_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.10 says so itself; on newer ones the check is made to fail."""
    if CHECKS_BRANCHES:

        def unchecked(*_: object) -> None:
            raise UncheckedBranchError("the branch on any is not checked at run time by torch 2.10.0")

        monkeypatch.setattr(torch_export, "check_decided", unchecked)
    observer = watched()
    with pytest.raises(ExportError, match=r"The values of a call cannot decide: the branch on \w+ is not checked"):
        observer.export()


class Gate(nn.Module):
    """Decides by what it computes with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 1, bias=False)
        nn.init.constant_(self.gate.weight, 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(self.gate(x).sum() > 0):
            return x + 1
        return x * 2


def test_a_branch_is_decided_by_the_weights_of_the_model() -> None:
    model, observer = Gate(), InputObserver()
    with observer(model):
        for rows in (2, 3, 5):
            model(torch.rand(rows, 4) + 0.5)
    program = observer.export()
    x = torch.rand(7, 4) + 0.5
    torch.testing.assert_close(program(x), model(x))
    with pytest.raises(RejectedCallError):
        program(-x)


class Rows(nn.Module):
    """The rows of some numbers, as a detector finds the anchors of its scores."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        places = torch.where(scores.flatten() > 0)[0]
        rows = torch.div(places, scores.shape[1], rounding_mode="floor")
        if rows.numel() > 2:
            return rows * 2
        return rows


def test_a_floor_division_of_ints_is_traced_beside_a_branch_on_values() -> None:
    model, observer = Rows(), InputObserver()
    with observer(model):
        for rows in (2, 3, 5):
            model(torch.rand(rows, 4) + 0.5)
    program = observer.export()
    scores = torch.rand(7, 4) - 0.3
    torch.testing.assert_close(program(scores), model(scores))
    with pytest.raises(RejectedCallError):
        program(-scores.abs())


@torch.library.custom_op("test_by_values::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


@positive.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().create_unbacked_symint())


class Kept(nn.Module):
    """What an operator of a library keeps, as the boxes that overlap no other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return positive(x) * 2


@pytest.mark.parametrize("n_kept", [0, 1, 4])
def test_an_operator_may_keep_one_row_or_none(n_kept: int) -> None:
    model, observer = Kept(), InputObserver()
    with observer(model):
        for length in (5, 8, 9):
            model(torch.arange(-2.0, length - 2))
    program = observer.export()
    x = torch.arange(-3.0, 7.0).flip(0) - 6 + n_kept
    assert len(model(x)) == n_kept
    torch.testing.assert_close(program(x), model(x))


class Parts(nn.Module):
    """Rows of two arguments that are kept, taken together and apart again, as the boxes of two images."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [x[x > 0], y[y > 0]]
        if rows[0].numel() == 0:
            return x, y
        first, second = torch.cat(rows).cumsum(0).split([len(one) for one in rows])
        return first * 2, second * 3


def test_the_lengths_of_parts_are_values() -> None:
    model, observer = Parts(), InputObserver()
    with observer(model):
        for length in (5, 8, 9):
            model(torch.arange(-2.0, length - 2).flip(0), torch.arange(-1.0, length + 1).flip(0))
    program = observer.export()
    for n_kept in (1, 3):
        x, y = torch.arange(-6.0, n_kept + 1), torch.arange(n_kept - 5.0, 4.0)
        torch.testing.assert_close(program(x, y), model(x, y))
    with pytest.raises(RejectedCallError):
        program(-x.abs(), y)


class Marked(nn.Module):
    """Asks whether each position marks itself alone; grown to other sizes, the marks lie elsewhere."""

    def forward(self, source: torch.Tensor, target: torch.Tensor, marks: torch.Tensor) -> torch.Tensor:
        if bool((marks == torch.eye(target.shape[1])).all()):
            return target.cumsum(1) + source.sum()
        return marks @ target * source.mean()


@pytest.mark.slow
def test_values_that_no_other_sizes_can_have_are_traced_with_the_sizes_of_their_call() -> None:
    def call(batch: int, source: int, target: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(batch, source, 16), torch.randn(batch, target, 16), torch.eye(target)

    model, observer = Marked(), InputObserver()
    with observer(model), torch.no_grad():
        model(*call(2, 6, 4))
        model(*call(3, 8, 5))
    program = observer.export()
    assert program.verify().verified
    for sizes in ((1, 12, 3), (5, 7, 9)):
        args = call(*sizes)
        with torch.no_grad():
            torch.testing.assert_close(program(*args), model(*args), atol=1e-5, rtol=1e-5)


class Decodes(nn.Module):
    """A decoder of torch compares its mask with a triangle."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(16, 2, 32, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)

    def forward(self, target: torch.Tensor, source: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.decoder(target, source, tgt_mask=mask)


@pytest.mark.skipif(not CHECKS_BRANCHES, reason="this torch does not check such a branch at run time")
def test_a_decoder_that_looks_for_a_triangle_is_one_graph() -> None:
    def call(batch: int, source: int, target: int) -> tuple[torch.Tensor, ...]:
        mask = nn.Transformer.generate_square_subsequent_mask(target)
        return torch.randn(batch, target, 16), torch.randn(batch, source, 16), mask

    model, observer = Decodes().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(*call(2, 6, 4))
        model(*call(3, 8, 5))
    program = observer.export()
    assert len(program.graphs) == 1
    assert program.verify().verified
    for sizes in ((1, 12, 3), (5, 7, 9)):
        args = call(*sizes)
        with torch.no_grad():
            torch.testing.assert_close(program(*args), model(*args), atol=1e-5, rtol=1e-5)


class ScaledSize(nn.Module):
    """A float that decides together with a size, where torch writes no assertion."""

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        is_large = scale * x.shape[1] > 37 or scale * x.shape[1] > 25
        return (x.clamp(min=-100) if is_large else x).clamp(max=scale)


@pytest.mark.slow
def test_branches_are_seen_whatever_the_user_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    logger._cache.clear()
    model, observer = ScaledSize(), InputObserver()
    with observer(model):
        for batch, length, scale in ((3, 20, 2.0), (2, 30, 0.5), (5, 8, 2.0)):
            model(torch.rand(batch, length), scale)
    program = observer.export()
    x = torch.full((3, 20), -300.0)
    assert program(x, 2.0).equal(model(x, 2.0))
    logger._cache.clear()
    assert "warning" not in vars(logger)


class Counted(nn.Module):
    """Decides by the number of rows that values choose."""

    def __init__(self, asks: Callable[[Any], Any]) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (x[:, 0] > 0).nonzero().squeeze(-1)
        if self.asks(rows.shape[0]):
            return x + 1
        return x * 2


def with_rows(size: int, count: int) -> torch.Tensor:
    x = torch.zeros(size, 3)
    x[:count, 0] = 1
    return x


ASKS: dict[str, Callable[[Any], Any]] = {
    "n > 0": lambda n: n > 0,
    "n <= 0": lambda n: n <= 0,
    "n == 0": lambda n: n == 0,
    "n > 1": lambda n: n > 1,
    "n < 2": lambda n: n < 2,
    "not n": lambda n: not n,
}


@pytest.mark.skipif(not CHECKS_BRANCHES, reason="this torch does not check such a branch at run time")
@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
@pytest.mark.one_in(4)
def test_few_rows_are_checked_at_run_time(asks: Callable[[Any], Any], target: str) -> None:
    """torch leaves out the assertion that there is no row, or one at most."""
    model, observer = Counted(asks), InputObserver()
    with observer(model):
        for size in (6, 7):
            model(with_rows(size, 0))
    program = observer.export(to=target)
    n_served = 0
    for size, count in itertools.product((1, 2, 6), range(4)):
        x = with_rows(size, min(count, size))
        with contextlib.suppress(RejectedCallError):
            assert torch.equal(program(x), model(x)), (size, count)
            n_served += 1
    assert n_served


class Steps(nn.Module):
    """Writes states into a tensor at places that the batch decides, beside a branch on values."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Linear(3, 3)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        times = torch.linspace(0, 1, 5)
        if not bool((times[1:] > times[:-1]).all()):
            return y
        states = torch.empty(5, *y.shape)
        for step in range(5):
            y = y + 0.1 * self.slope(y)
            states[step] = y
        return states


def test_a_converter_does_not_compare_tensors_with_the_values_of_the_trace() -> None:
    """What it asked of the example there, the place of each state, fixed the batch of the file."""
    model, observer = Steps(), InputObserver()
    with observer(model):
        for batch in (2, 4):
            model(torch.randn(batch, 3))
    program = observer.export(to="onnx")
    assert program.verify().verified
    for batch in (1, 7):
        y = torch.randn(batch, 3)
        torch.testing.assert_close(program(y), model(y))


class Floats(nn.Module):
    """Decides by floats that it reads from tensors."""

    def __init__(self, run: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.run, self.up, self.down = run, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


def above_half(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.mean().item() > 0.5:
        return self.up(x)
    return self.down(x)


def clipped(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.up(x * min(1.0, 1.0 / (x.norm().item() + 1e-6)))


def of_two(self: Any, x: torch.Tensor) -> torch.Tensor:
    low, high = x.amin().item(), x.amax().item()
    return self.up(x / max(abs(low), abs(high)))


def in_a_list(self: Any, x: torch.Tensor) -> torch.Tensor:
    first, second, *_ = x.mean(0).tolist()
    return self.up(x) if not first > second else self.down(x)


def until_small(self: Any, x: torch.Tensor) -> torch.Tensor:
    while x.abs().max().item() > 1.0:
        x = x / 2
    return self.up(x)


def exact(self: Any, x: torch.Tensor) -> torch.Tensor:
    if x.sum().item() == 0.0:
        return x
    return self.up(x / x.sum())


@pytest.mark.skipif(not CHECKS_BRANCHES, reason="this torch does not check such a branch at run time")
@pytest.mark.parametrize(
    "run", [above_half, clipped, of_two, in_a_list, until_small, exact], ids=lambda run: run.__name__
)
@pytest.mark.one_in(2)
def test_floats_decide_and_the_program_checks_it(run: Callable[..., torch.Tensor]) -> None:
    model, observer = Floats(run), InputObserver()
    calls = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) + n % 3 - 1 for n in range(2, 60)]
    with torch.no_grad(), observer(model):
        for call in calls[:4]:
            model(call)
    program = observer.export()
    n_served = 0
    for call in [*calls, torch.zeros(3, 4), torch.full((2, 4), torch.nan)]:
        with torch.no_grad(), contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(call), model(call), equal_nan=True)
            n_served += 1
    assert n_served >= 20

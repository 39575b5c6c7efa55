"""Calls that may leave out a mask up to a size: beyond it the model computes something else, or nobody tried."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import onlooker
from onlooker import InputObserver, Program, RejectedCallError

WINDOW = 4096
Near = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Decoder(nn.Module):
    """A layer with a cache, which with a mask sees the tokens that are ``near``."""

    def __init__(self, near: Near) -> None:
        super().__init__()
        self.near = near

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        length = whole.shape[1]
        query = torch.arange(length - x.shape[1], length)[:, None]
        key = torch.arange(length)[None]
        seen = (key <= query)[None] & self.without(mask, query, key)
        if mask is not None:
            seen = seen & self.near(query, key) & (mask[:, None] > 0)
        scores = (x @ whole.transpose(1, 2)).masked_fill(~seen, -1e9)
        return scores.softmax(-1) @ whole, whole

    def without(self, mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query >= 0


def window(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key > query - WINDOW


def chunk(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key // WINDOW == query // WINDOW


def of_twice(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return 2 * key > 2 * query - WINDOW


def anywhere(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return query >= 0


def of_squares(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return key > query - (key * key // 50 > WINDOW) * 3


class Padded(Decoder):
    """Counts positions from the first token that the mask shows."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = x if past is None else torch.cat([past, x], 1)
        length = whole.shape[1]
        query = torch.arange(length - x.shape[1], length)[None, :, None]
        key = torch.arange(length)[None, None]
        seen = key <= query
        if mask is not None:
            padding = (mask.cumsum(1) == 0).sum(1)[:, None, None]
            seen = seen & self.near(query - padding, key - padding) & (mask[:, None] > 0)
        scores = (x @ whole.transpose(1, 2)).masked_fill(~seen, -1e9)
        return scores.softmax(-1) @ whole, whole


class InWindow(Decoder):
    """Has a window where it has no mask."""

    def without(self, mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return query >= 0 if mask is not None else window(query, key)


class Apart(Decoder):
    """Does something else without a mask after many tokens, and in long calls without a cache."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        is_long = x.shape[1] > 64 if past is None else mask is None and past.shape[1] > 64
        found, whole = super().forward(x, mask, past)
        return found * (2 if is_long else 1), whole


class Large(Decoder):
    """Has no memory for more than 3000 tokens without a mask."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if mask is None and x.shape[1] > 3000:
            raise MemoryError
        return super().forward(x, mask, past)


class LargeWithoutACache(Decoder):
    """Has no memory for more than 3000 tokens without a cache, and takes the part of a mask that it needs."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if past is None and x.shape[1] > 3000:
            raise MemoryError
        if mask is not None:
            mask = mask[:, : x.shape[1] + (0 if past is None else past.shape[1])]
        return super().forward(x, mask, past)


@torch.library.custom_op("onlooker_tests::in_a_small_room", mutates_args=())
def in_a_small_room(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 3000:
        raise MemoryError("no room for more than 3000 tokens")
    return x.clone()


@in_a_small_room.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class LargeWithAMask(Decoder):
    """Has no memory for more than 3000 tokens with a mask, and another path without one there."""

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, past: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if mask is not None or x.shape[1] <= 3000:
            x = in_a_small_room(x)
        return super().forward(x, mask, past)


def program_of(model: nn.Module) -> Program:
    observer = InputObserver()
    with observer(model.eval()), torch.no_grad():
        for batch, length, before in ((2, 5, 0), (3, 7, 0), (2, 1, 5), (3, 1, 7), (2, 1, 6), (3, 2, 8)):
            cache = torch.randn(batch, before, 4) if before else None
            model(torch.randn(batch, length, 4), torch.ones(batch, before + length), cache)
    program = observer.export()
    assert program.verify().verified
    return program


def call(length: int, before: int = 0) -> tuple[torch.Tensor, None, torch.Tensor | None]:
    return torch.randn(1, length, 4), None, torch.randn(1, before, 4) if before else None


def is_served(program: Program, model: nn.Module, length: int, before: int = 0) -> bool:
    """True where a call without a mask has the result of the model; False where it is refused."""
    given = call(length, before)
    try:
        found = program(*given)[0]
    except RejectedCallError:
        return False
    with torch.no_grad():
        torch.testing.assert_close(found, model(*given)[0])
    return True


@pytest.mark.parametrize(
    "model", [Decoder(chunk), *(pytest.param(one, marks=pytest.mark.slow) for one in (Decoder(window), Padded(chunk)))]
)
def test_a_mask_may_be_left_out_up_to_the_window(model: Decoder) -> None:
    program = program_of(model)
    assert is_served(program, model, 3, 20)
    assert is_served(program, model, 9)
    assert is_served(program, model, 2, WINDOW - 4)
    assert not is_served(program, model, 2, WINDOW)
    with pytest.raises(RejectedCallError, match=r"< 4095 \(without mask\)"):
        program(*call(2, WINDOW))
    whole = torch.randn(1, 2, 4), torch.ones(1, WINDOW + 2), torch.randn(1, WINDOW, 4)
    torch.testing.assert_close(program(*whole)[0], model(*whole)[0])


@pytest.mark.parametrize(
    ("model", "length"),
    [
        (Decoder(of_twice), 2060),
        pytest.param(Decoder(of_squares), 470, marks=pytest.mark.slow),
        (InWindow(anywhere), WINDOW + 4),
    ],
)
def test_numbers_that_are_no_limits_on_lengths_are_none(model: nn.Module, length: int) -> None:
    program = program_of(model)
    assert not any(graph.contract.ways for graph in program.graphs)
    for before in (3, length):
        is_served(program, model, 2, before)  # no other result


def test_sizes_without_memory_for_them_are_a_limit() -> None:
    model = Large(anywhere)
    program = program_of(model)
    assert is_served(program, model, 9)
    assert is_served(program, model, 2, 40)
    assert not is_served(program, model, 3001)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_runs_of_large_calls_keep_no_memory() -> None:
    program_of(LargeWithAMask(anywhere))
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    assert not [one.shape for one in tensors if one.numel() > 1_000_000]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.slow
def test_a_call_without_memory_for_it_is_not_kept() -> None:
    program = program_of(LargeWithAMask(anywhere))
    x = torch.randn(1, 3001, 4)
    kept = weakref.ref(x)
    with contextlib.suppress(MemoryError):
        program(x, torch.ones(1, 3001))
    del x
    assert kept() is None


def test_a_limit_of_calls_without_a_cache_is_none_of_calls_with_a_longer_mask() -> None:
    model = LargeWithoutACache(anywhere)
    program = program_of(model)  # verified: no call without a cache has a mask of some tokens before
    x = torch.randn(2, 9, 4)
    torch.testing.assert_close(program(x, torch.ones(2, 9))[0], model(x, torch.ones(2, 9))[0])
    assert not is_served(program, model, 3001)


@pytest.mark.slow
def test_a_graph_without_memory_for_a_call_is_no_difference() -> None:
    model = LargeWithAMask(anywhere)
    program = program_of(model)
    assert is_served(program, model, 9)
    assert is_served(program, model, 2, 40)
    assert not is_served(program, model, 3001)
    with pytest.raises(MemoryError, match="no room"):
        program(torch.randn(1, 3001, 4), torch.ones(1, 3001))


def test_what_calls_with_a_cache_may_not_leave_out_says_nothing_of_others() -> None:
    model = Apart(anywhere)
    program = program_of(model)
    assert any(graph.plan.never_absent for graph in program.graphs)
    assert is_served(program, model, 9)
    assert not is_served(program, model, 2, 70)


@pytest.mark.slow
def test_a_saved_program_has_the_limit(tmp_path: str) -> None:
    model = Decoder(window)
    program_of(model).save(f"{tmp_path}/program")
    loaded = onlooker.load(f"{tmp_path}/program")
    assert is_served(loaded, model, 2, 40)
    assert not is_served(loaded, model, 2, WINDOW)

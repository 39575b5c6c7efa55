"""Tests of runs without values that remember shapes: they give what torch gives, at less cost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from onlooker.lab.recorder import CountedOperators
from onlooker.lab.remembering_mode import RememberingMode
from onlooker.torch_internals.fake_tensors import FakeTensorMode
from onlooker.torch_internals.tensor_marks import memory_of

_CALLS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x + 1,
    lambda x: x + 1.0,
    lambda x: x / 2,
    lambda x: x == x,
    lambda x: x @ x.mT,
    lambda x: x[1:, ::2],
    lambda x: x.t(),
    lambda x: x.t().contiguous(),
    lambda x: x.t().reshape(-1),
    lambda x: x.view(-1),
    lambda x: x.expand(2, *x.shape),
    lambda x: x.to(torch.float64),
    lambda x: x.to(torch.float32),
    lambda x: x.detach(),
    lambda x: torch.cat([x, x.new_zeros(1, x.shape[1])]),
    lambda x: x.softmax(-1),
    lambda x: x.sum(0, keepdim=True),
    lambda x: torch.zeros_like(x, dtype=torch.int64),
    lambda x: x.chunk(2, 1)[1],
    lambda x: x.clone(memory_format=torch.contiguous_format),
    lambda x: nn.functional.dropout(x, training=False),
]


def _layout(value: torch.Tensor, given: torch.Tensor) -> tuple[object, ...]:
    is_part = memory_of(value) == memory_of(given)
    return value.shape, value.stride(), value.storage_offset(), value.dtype, value.device, is_part


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("number", range(len(_CALLS)))
def test_each_result_is_that_of_torch(number: int, dtype: torch.dtype) -> None:
    """Also where it is remembered; what is a part of an argument has its memory."""
    found = []
    tensor = torch.ones(6, 4, dtype=dtype)
    for mode in (FakeTensorMode(), RememberingMode(), RememberingMode()):
        with torch.no_grad(), mode:
            for given in (mode.from_tensor(tensor), mode.from_tensor(tensor)[:, 1:]):
                try:
                    found.append(_layout(_CALLS[number](given), given))
                except Exception as error:
                    found.append((type(error), str(error)))
    assert found[:2] == found[2:4] == found[4:]


def test_equal_blocks_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is asked for no operator of a further block, though weights have values."""
    asked: list[str] = []
    dispatch = FakeTensorMode.dispatch

    def noted(mode: FakeTensorMode, func: object, *args: object, **kwargs: object) -> object:
        asked.append(str(func))
        return dispatch(mode, func, *args, **kwargs)

    monkeypatch.setattr(FakeTensorMode, "dispatch", noted)
    monkeypatch.setattr(RememberingMode, "_known", {})
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(20))).eval()
    mode = RememberingMode()
    given = mode.from_tensor(torch.zeros(3, 8))
    asked.clear()
    with torch.no_grad(), mode, CountedOperators() as run:
        assert model(given).shape == (3, 8)
    assert run.count >= 40
    assert (asked.count("aten.t.default"), asked.count("aten.addmm.default")) == (1, 1)


def test_a_write_to_a_part_is_one_to_the_whole() -> None:
    """A remembered part has the memory of what it is a part of, by which writes are followed."""
    mode = RememberingMode()
    with torch.no_grad(), mode:
        first, second = (mode.from_tensor(torch.zeros(3, 8)) for _ in range(2))
        parts = [one[0].unsqueeze(0).add_(1) for one in (first, second)]
    assert [memory_of(part) for part in parts] == [memory_of(first), memory_of(second)]


def test_a_refusal_is_not_remembered_as_a_result() -> None:
    """The same shapes are refused again."""
    mode = RememberingMode()
    with torch.no_grad(), mode:
        left, right = mode.from_tensor(torch.zeros(3, 8)), mode.from_tensor(torch.zeros(3, 7))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"must match|broadcast"):
                left + right


def test_the_default_dtype_is_a_part_of_the_question() -> None:
    """The quotient of ints has it."""
    mode = RememberingMode()
    with torch.no_grad(), mode:
        given = mode.from_tensor(torch.ones(3, dtype=torch.int64))
        assert (given / 2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert (given / 2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)

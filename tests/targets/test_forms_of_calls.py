"""What a call has beside values and sizes is free on every target: memory, gradients, one tensor twice, the order of a
dict; and infinite numbers are right, or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from onlooker import InputObserver, Program, RejectedCallError
from onlooker.core.marks import FINITE

TARGETS = ["onnx", "openvino"]


class Pair(torch.nn.Module):
    def forward(self, both: dict[str, torch.Tensor], scale: torch.Tensor) -> Any:
        total = both["a"] * 2 - both["b"] * scale
        return total.tanh(), total.shape[0] > 3, total.shape


@cache
def converted(target: str) -> Program:
    pytest.importorskip({"onnx": "onnxruntime"}.get(target, target), reason="the runtime")
    observer, model = InputObserver(), Pair()
    with torch.no_grad(), observer(model):
        for size in ((2, 5), (3, 9), (5, 7)):
            model({"a": torch.randn(size), "b": torch.randn(size)}, torch.randn(size[1]))
    return observer.export().to(target)


def part(*size: int) -> torch.Tensor:
    """Every second column of every row but the first."""
    return torch.randn(size[0] + 1, 2 * size[1] + 1)[1:, 1::2]


def twice(size: tuple[int, int]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    one = torch.randn(size)
    return {"a": one, "b": one}, torch.randn(size[1])


FORMS: dict[str, Callable[[tuple[int, int]], tuple[dict[str, torch.Tensor], torch.Tensor]]] = {
    "parts": lambda size: ({"a": part(*size), "b": torch.randn(size[::-1]).T}, torch.randn(2 * size[1])[::2]),
    "twice": twice,
    "order": lambda size: ({"b": torch.randn(size), "a": torch.randn(size)}, torch.randn(size[1])),
    "gradients": lambda size: ({"a": torch.randn(size, requires_grad=True), "b": part(*size)}, torch.randn(size[1])),
    "expanded": lambda size: (
        {"a": torch.randn(1, size[1]).expand(size), "b": torch.randn(size)},
        torch.ones(1).expand(size[1]),
    ),
    "negative": lambda size: (
        {"a": torch.randn(size, dtype=torch.complex64).conj().imag, "b": torch.randn(size)},
        torch.randn(size[1]),
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", FORMS)
def test_calls_of_other_forms_are_right(target: str, form: str) -> None:
    program = converted(target)
    for size in ((2, 4), (6, 3)):
        arguments = FORMS[form](size)
        found, expected = program(*arguments), Pair()(*arguments)
        torch.testing.assert_close(found[0], expected[0].detach())
        assert type(found[1]) is bool
        assert found[1:] == expected[1:]


@pytest.mark.parametrize("target", TARGETS)
def test_the_trials_have_infinite_numbers_and_parts(target: str) -> None:
    tally = converted(target).verify()
    assert tally.verified
    labels = [check.label for check in tally.checks]
    assert any("infinite values" in label for label in labels)
    assert any("other layout" in label for label in labels)


class Clamped(torch.nn.Module):
    """Clip of ONNX makes a minus infinity the least finite number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=0.5)


def test_infinite_numbers_are_refused_where_the_runtime_is_wrong_with_them() -> None:
    pytest.importorskip("onnxruntime", reason="the runtime")
    model, observer = Clamped(), InputObserver()
    with torch.no_grad(), observer(model):
        for size in ((2, 5), (3, 9), (5, 7)):
            model(torch.randn(size))
    program = observer.export().to("onnx")
    x = torch.tensor([[float("inf"), 1.0, -float("inf"), 0.0]])
    assert FINITE in program.graphs[0].marks
    with pytest.raises(RejectedCallError, match="finite numbers"):
        program(x)
    assert program(torch.full((2, 2), 3e38)).eq(0.5).all()
    assert program.verify().verified

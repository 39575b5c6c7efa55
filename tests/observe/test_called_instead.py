"""Where something else was called than the watched method, the error names it, and how often."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import InputObserver, ObservationError

X = torch.ones(2, 3)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.linear(x)
        return made


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Layer(), torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.decoder[0](self.encoder(x))
        return made


def parts(model: Any) -> None:
    x = model.encoder(X)
    for _ in range(3):
        x = model.decoder[1](x)


def copies(model: Any) -> None:
    for _ in range(3):
        copy.deepcopy(model)(X)


def compiled(model: Any) -> None:
    model.compile(backend="eager")
    model(X)


USES: list[tuple[Callable[[Any], None], str]] = [
    (
        parts,
        r"Parts of it were called instead: encoder \(1 call\), decoder\.1 \(3 calls\)\. Watch such a part: model\.enc",
    ),
    (copies, r"forward of other objects of Model was called 3 times: of a copy perhaps"),
    (lambda model: copy.copy(model)(X), r"forward of other objects of Model was called 1 times"),
    (compiled, r"torch\.compiler\.set_stance\(\"force_eager\"\)"),
]


@pytest.mark.parametrize(("use", "text"), USES)
def test_the_error_names_what_was_called(use: Callable[[Any], None], text: str) -> None:
    model, observer = Model(), InputObserver()
    with observer(model):
        use(model)
    with pytest.raises(ObservationError, match=text):
        observer.recording()
    assert not hasattr(Layer.forward, "__wrapped__")


def test_a_compiled_model_is_recorded_where_it_runs_as_it_was_written() -> None:
    model, observer = Model(), InputObserver()
    model.compile(backend="eager")
    with torch.compiler.set_stance("force_eager"), observer(model):
        model(X)
    assert len(observer.recording()) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_the_parts_are_watched_until_the_first_call_or_the_end_of_the_block(fails: bool) -> None:
    model, observer, before = Model(), InputObserver(), Layer.forward
    with pytest.raises(ZeroDivisionError) if fails else torch.no_grad(), observer(model):
        assert Layer.forward is not before
        if fails:
            raise ZeroDivisionError
        model(X)
        assert Layer.forward is before
    assert Layer.forward is before
    if not fails:
        assert observer.recording().missed == ()


def test_nested_blocks_of_model_and_part() -> None:
    model, outer, inner = Model(), InputObserver(), InputObserver()
    with outer(model), inner(model.encoder):
        parts(model)
    assert len(inner.recording()) == 1
    with pytest.raises(ObservationError, match=r"encoder \(1 call\)"):
        outer.recording()

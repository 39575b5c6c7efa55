"""Where something else was called than the watched method, the error names it, and how often."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, ObservationError, OnlookerWarning

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


def others(model: Any) -> None:
    for _ in range(3):
        Model()(X)


def compiled(model: Any) -> None:
    model.compile(backend="eager")
    model(X)


USES: list[tuple[Callable[[Any], None], str]] = [
    (
        parts,
        r"Parts of it were called instead: encoder \(1 call\), decoder\.1 \(3 calls\)\. Watch such a part: model\.enc",
    ),
    (others, r"forward of other objects of Model was called 3 times: of a copy perhaps"),
    (lambda model: copy.copy(model).eval()(X), r"forward of other objects of Model was called 1 times"),
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


class Broken(torch.nn.Module):
    """Its compiled code is in two pieces, between which Python runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(X.shape[-1], 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        torch._dynamo.graph_break()
        return y.relu() * float(y.sum())


@pytest.fixture
def _compiler_without_memory() -> Iterator[None]:
    """torch counts how often it compiles the call of modules, of all of them together."""
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_compiler_without_memory")
@pytest.mark.parametrize("kind", [Model, Broken])
def test_a_model_that_was_compiled_in_place_is_recorded_as_it_runs(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model, observer = kind(), InputObserver()
    model.compile(backend="eager")
    fast = model._compiled_call_impl
    with torch.no_grad():
        expected = [model(X), model(X[:1])]
    with observer(model), torch.no_grad():
        found = [model(X), model(X[:1])]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert model._compiled_call_impl is fast
    recording = observer.recording()
    assert len(recording) == 2
    assert recording.missed == ()


@pytest.mark.usefixtures("_compiler_without_memory")
@pytest.mark.slow
def test_a_model_compiled_in_place_is_exported_and_verified() -> None:
    model, observer = Model(), InputObserver()
    model.compile(backend="eager")
    with observer(model), torch.no_grad():
        model(torch.rand(2, *X.shape[1:])), model(torch.rand(3, *X.shape[1:]))
    program = observer.export()
    assert program.verify().verified
    x = torch.rand(7, *X.shape[1:])
    with torch.no_grad(), program.installed(model):
        assert torch.equal(model(x), Model.forward(model, x))


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


class Inner(torch.nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)
        if tied:
            self.head.weight = self.body.weight

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        made: torch.Tensor = self.head(self.body(x).relu()) * scale
        return made

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = self(x)
        return x


class Wrapped(torch.nn.Module):
    """Gives ``generate`` to the one inside; its own forward has another signature."""

    def __init__(self, inner: torch.nn.Module, prompt: bool = False) -> None:
        super().__init__()
        self.inner = inner
        if prompt:
            self.prompt = torch.nn.Parameter(torch.ones(3))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    def generate(self, x: torch.Tensor) -> Any:
        return self.inner.generate(x)  # type: ignore[operator]


@pytest.mark.parametrize("depth", [1, 2])
def test_the_part_with_all_weights_is_followed(depth: int) -> None:
    model: Any = Inner()
    for _ in range(depth):
        model = Wrapped(model)
    observer = InputObserver()
    with pytest.warns(OnlookerWarning, match=r"inner(\.inner)?, a Inner that has all weights"), observer(model):
        model.generate(torch.ones(2, 3))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(7, 3)
    expected = model.generate(x)
    with program.installed(model) as served:
        torch.testing.assert_close(model.generate(x), expected)
    assert sum(served.calls.values()) == 2


def test_a_program_of_a_part_is_installed_in_another_wrapper(tmp_path: Path) -> None:
    model, observer = Wrapped(Inner()), InputObserver()
    with pytest.warns(OnlookerWarning, match="all weights"), observer(model):
        model.generate(X)
    observer.export().save(tmp_path / "saved", values=True)
    other = Wrapped(Inner())
    other.load_state_dict(model.state_dict())
    program = onlooker.load(tmp_path / "saved")
    assert program.verify(model=other).verified
    with program.installed(other) as served:
        torch.testing.assert_close(other.generate(X), model.generate(X))
    assert sum(served.calls.values()) == 2


@pytest.mark.parametrize("model", [Wrapped(Inner(), prompt=True), Inner(tied=True)], ids=["a prompt", "a tied head"])
def test_a_part_that_lacks_something_is_not_followed(model: Any) -> None:
    observer = InputObserver()
    part = model.inner if hasattr(model, "inner") else model.body
    with observer(model):
        part(X)
    with pytest.raises(ObservationError, match="Parts of it were called instead"):
        observer.export()


def test_a_wrapper_that_is_called_is_what_is_watched() -> None:
    model, observer = Wrapped(Inner()), InputObserver()
    with observer(model):
        model.generate(X)
        model(X)
    assert observer.recording().model.endswith("Wrapped")
    assert len(observer.recording()) == 1

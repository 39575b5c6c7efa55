"""No tensor without values stays in what a model's functions remember."""

import contextlib
import functools
import sys
import types

import pytest
import torch
from torch import nn

from onlooker import InputObserver, RejectedCallError
from onlooker.lab.runner import ModelRunner
from onlooker.observing import reach
from onlooker.observing.cached_functions import without_remembered_fakes


@functools.lru_cache(maxsize=8)
def places(length: int) -> torch.Tensor:
    return torch.arange(length).float()


@functools.cache
def pair(length: int) -> tuple[torch.Tensor, int]:
    return torch.arange(length).float(), length


def remembers(function):
    cached = functools.lru_cache(maxsize=8)(function)

    @functools.wraps(function)
    def wrapper(*args):
        return cached(*args)

    return wrapper


@remembers
def behind(length: int) -> torch.Tensor:
    return torch.arange(length).float()


@functools.cache
def unique() -> object:
    return object()


KINDS = {"bounded": places, "pair": lambda n: pair(n)[0], "decorated": behind}


class Remembers(nn.Module):
    """Its length is a plain number, as that of a picture cut into patches is."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.object = kind, unique()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.object is unique()
        return x + KINDS[self.kind](int(x.shape[1]))


@pytest.fixture(autouse=True)
def _empty():
    places.cache_clear(), pair.cache_clear(), unique.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_remembers_results_gives_values_after_an_export(kind: str) -> None:
    model, observer = Remembers(kind), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length))
    runner = ModelRunner(model, "forward", observer.recording().signature)
    for run in (runner.try_fake, runner.try_shapes, runner.try_out):
        run({"x": torch.randn(2, 9)})
    assert observer.export().verify().verified
    for length in (9, *range(1, 20)):
        assert type(model(torch.randn(2, length))) is torch.Tensor
    assert model.object is unique()


@pytest.mark.parametrize("kind", KINDS)
def test_fakes_are_forgotten_when_the_block_ends(kind: str) -> None:
    model = Remembers(kind)
    mode = torch._subclasses.FakeTensorMode()
    with without_remembered_fakes(model), mode:
        model(torch.randn(2, 6))
    assert type(model(torch.randn(2, 6))) is torch.Tensor


def test_values_stay_remembered() -> None:
    model = Remembers("bounded")
    with without_remembered_fakes(model):
        model(torch.randn(2, 6))
    assert places.cache_info().currsize == 1


class Memo:
    """Remembers angles beside the functions of a file, as libraries do that are not the user's."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[int, object]] = {}
        self.last: list[torch.Tensor] = [torch.zeros(1)]
        self.latest = torch.zeros(1)

    def angles(self, length: int) -> torch.Tensor:
        if "angles" not in self.tables or self.tables["angles"][0] < length:
            holder = nn.Module()
            holder.register_buffer("angles", torch.arange(length).float())
            self.tables["angles"] = length, holder
        self.latest = self.tables["angles"][1].angles
        self.last[:] = [self.latest]
        return self.latest[:length]


MEMO = Memo()


class WithMemo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + MEMO.angles(x.shape[1])


def test_tables_of_a_library_hold_no_tensors_without_values(monkeypatch) -> None:
    monkeypatch.setattr(reach, "is_file_of_user", lambda file: False)
    monkeypatch.setattr(reach, "_is_of_user", lambda cls: False)
    MEMO.__init__()
    model, observer = WithMemo(), InputObserver()
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length))
    runner = ModelRunner(model, "forward", observer.recording().signature)
    for run in (runner.try_fake, runner.try_shapes, runner.try_out):
        run({"x": torch.randn(2, 90)})
    assert type(MEMO.latest) is type(MEMO.last[0]) is torch.Tensor
    program = observer.export()
    for length in (3, 5, 7, 9, 90):
        x = torch.randn(2, length)
        assert type(model(x)) is torch.Tensor
        with contextlib.suppress(RejectedCallError):
            torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


class RaisesWhenAsked:
    """What stands for a package that is not installed: any question raises."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError(f"the package is missing ({name})")


class BesideMissing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_an_object_of_the_source_that_answers_nothing_is_passed_over(monkeypatch) -> None:
    # A module of its own: pytest asks each object of a test's module whether it wraps another.
    source = types.ModuleType("beside_missing")
    source.missing = RaisesWhenAsked()
    monkeypatch.setitem(sys.modules, source.__name__, source)
    monkeypatch.setattr(BesideMissing, "__module__", source.__name__)
    observer, model = InputObserver(), BesideMissing()
    with observer(model):
        model(torch.ones(2, 3))
    assert observer.export().verify().verified


def shifted(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * self.scale + places(x.shape[1])


@pytest.mark.parametrize("owner", ["class", "module"])
def test_a_forward_that_a_script_puts_into_a_library_has_its_own_functions(owner: str) -> None:
    """Its table by the length is general, though no class of the model is of the file that has the table."""
    Part = type("Part", (nn.Module,), {"__module__": "pytest", "scale": 2.0})
    model, observer = Part(), InputObserver()
    if owner == "class":
        Part.forward = shifted
    else:
        model.forward = types.MethodType(shifted, model)
    with observer(model):
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(4, 11)
    torch.testing.assert_close(program(x), model(x))

"""Experiments, traces and trials run on a twin: what a model keeps in Python is as it was."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from onlooker import InputObserver, OnlookerError
from onlooker.lab.twin import twin_of
from reached import reached

CALLS: list[int] = []
TOTAL = 0


class Stats:
    def __init__(self) -> None:
        self.calls = 0
        self.by_size: dict[int, list[int]] = {}


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


class KeepsDeque(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last: Any = collections.deque(maxlen=100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last.append(1)
        return x * 2


class KeepsSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.sizes.add(int(x.shape[0]) if isinstance(x.shape[0], int) else len(self.sizes))
        return x * 2


class KeepsLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log: dict[str, list[int]] = {"calls": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log["calls"].append(1)
        return x * 2


class KeepsObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stats, self.slots = Stats(), Slots()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stats.calls += 1
        self.slots.calls += 1
        self.stats.by_size.setdefault(1, []).append(1)
        return x * 2


def keeps_in_a_closure() -> nn.Module:
    n, seen = 0, []

    class Keeps(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal n
            n += 1
            seen.append(1)
            return x * 2

    return Keeps()


class KeepsGlobal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global TOTAL
        TOTAL += 1
        CALLS.append(1)
        return x * 2


class KeepsOnClass(nn.Module):
    n = 0
    seen: list[int] = []  # noqa: RUF012 it is shared on purpose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).n += 1
        self.seen.append(1)
        return x * 2


class KeepsInDefault(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.noted(x)

    def noted(self, x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(1)
        return x * 2


class KeepsInside(nn.Module):
    """Counters of nested modules, one of them in a list that is no module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(KeepsDeque(), KeepsObject())
        self.others = [KeepsLists()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.others[0](self.inner(x))


class KeepsBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.mean, self.frames = torch.zeros(4), [torch.zeros(4)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.mean.add_(x.detach().mean((0, 1)))
        self.frames[0].add_(1)
        return x * 2


class KeepsRandom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.random, self.generator = random.Random(3), torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.random.random()
        return x * 2


@functools.lru_cache(maxsize=8)
def causal(size: int) -> torch.Tensor:
    return torch.ones(size, size).tril()


class RemembersMasks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ causal(4)


class HoldsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.__dict__["me"] = self
        self.lin = nn.Linear(4, 4)
        self.call = lambda x: self.lin(x)
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return self.call(x)


class HoldsGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numbers = (n for n in range(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(self.numbers)
        return x * 2


MAKERS: dict[str, Any] = {
    **{cls.__name__: cls for cls in (KeepsDeque, KeepsSet, KeepsLists, KeepsObject, KeepsGlobal)},
    **{cls.__name__: cls for cls in (KeepsOnClass, KeepsInDefault, KeepsInside, KeepsBuffers)},
    **{cls.__name__: cls for cls in (KeepsRandom, RemembersMasks, HoldsItself, HoldsGenerator)},
    "KeepsInClosure": keeps_in_a_closure,
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_model_is_what_it_was_after_plans_probe_export_and_verify(make: Any) -> None:
    model, observer = make().eval(), InputObserver()
    with torch.no_grad(), observer(model):
        for batch, length in ((2, 5), (3, 9), (4, 7)):
            model(torch.randn(batch, length, 4))
    before = reached(model)
    for act in (observer.plans, observer.probe, lambda: observer.export().verify()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(OnlookerError):  # that some of them keep state is no matter here
                act()
        assert reached(model) == before


def test_a_generator_is_not_advanced() -> None:
    model, observer = HoldsGenerator(), InputObserver()
    with observer(model):
        for size in (2, 3):
            model(torch.zeros(size, 4))
    with pytest.raises(OnlookerError):
        observer.export()
    assert next(model.numbers) == 2


def test_a_twin_shares_tensors_and_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.tied = model[0].weight
    model.kept = {"list": [torch.zeros(2)], "numbers": [1]}
    twin = twin_of(model)
    assert twin is not model
    assert [id(t) for t in twin.state_dict().values()] != []
    own, other = dict(model.named_parameters()), dict(twin.named_parameters())
    assert all(own[name] is other[name] for name in own)
    assert twin[1].running_mean is model[1].running_mean
    assert twin.tied is twin[0].weight
    assert twin.kept["list"][0] is model.kept["list"][0]
    assert twin.kept["numbers"] is not model.kept["numbers"]


def test_a_model_whose_copy_would_call_it_is_its_own_twin() -> None:
    model = HoldsItself()
    assert twin_of(model) is model


def test_objects_that_code_compares_by_identity_are_shared() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mode, self.calls, self.mark = SENTINEL, CALLS, object()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.mode is SENTINEL
            assert self.calls is CALLS
            return x

    model = Keeps()
    twin = twin_of(model)
    assert twin is not model
    assert (twin.mode, twin.calls, twin.mark) == (model.mode, model.calls, model.mark)
    assert twin.mode is SENTINEL
    assert twin.calls is CALLS


class Sentinel:
    pass


SENTINEL = Sentinel()


def test_graphs_own_the_weights_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    observer = InputObserver()
    with torch.no_grad(), observer(model):
        for size in (2, 3, 5):
            model(torch.randn(size, 4))
    program = observer.export()
    x = torch.randn(6, 4)
    with torch.no_grad():
        for tensor in (model[0].weight, model[1].running_mean):
            tensor.add_(1.0)
        torch.testing.assert_close(program(x), model(x))
    assert program.verify().verified


def test_what_the_user_changes_after_an_export_is_verified() -> None:
    class Scaled(nn.Module):
        scale = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.scale = 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    model, observer = Scaled(), InputObserver()
    with observer(model):
        for size in (2, 3):
            model(torch.ones(size, 4))
    program = observer.export()
    assert program.verify().verified
    model.scale = 3.0
    assert not program.verify().verified


_HOOKS = """
features = {}

def of_globals(name):
    def hook(module, inputs, output):
        features[name] = output
    return hook, features

def of_closure(name):
    known = {}
    def hook(module, inputs, output):
        known[name] = output
    return hook, known
"""


class WithHook(nn.Module):
    """Reads what a hook of a package wrote into a dict that the model holds as well."""

    def __init__(self, hook: Any, features: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.features = nn.Linear(4, 4), features
        self.inner.register_forward_hook(hook)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + self.features["inner"].view(x.shape)
        return out


@pytest.mark.parametrize("kind", ["of_globals", "of_closure"])
def test_the_dict_that_a_hook_of_an_installed_package_writes_to_is_that_of_the_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name = f"hooks_{kind}"
    (tmp_path / f"{name}.py").write_text(_HOOKS)
    (tmp_path / f"{name}-1.0.dist-info").mkdir()
    (tmp_path / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{name}.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    model = WithHook(*getattr(importlib.import_module(name), kind)("inner"))
    twin = twin_of(model)
    assert twin is not model
    x = torch.randn(2, 4)
    model(torch.randn(3, 4))
    torch.testing.assert_close(twin(x), model(x))
    observer = InputObserver()
    with observer(model):
        model(torch.randn(2, 4))
        model(torch.randn(5, 4))
    assert observer.export().verify().verified

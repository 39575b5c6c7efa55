"""What a model keeps outside its inputs is put back after every probe and export, and experiments begin before it."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver
from onlooker.observing.module_state import former_values, plain_values
from onlooker.observing.reach import is_file_of_user
from onlooker.observing.state import kept_state, kept_weights


class Remembers(torch.nn.Module):
    """Every call leaves something behind: a number, a list, a buffer replaced and a buffer written."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.seen: list[int] = []
        self.notes: dict[str, int] = {}
        self.register_buffer("table", torch.zeros(2))
        self.register_buffer("count", torch.zeros(()))
        self.mean = torch.zeros(2)
        self.frames = [torch.zeros(3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = max(self.largest, int(x.shape[1]))
        self.seen.append(1)
        self.notes["last"] = 1
        self.table = torch.ones(2)
        self.count.add_(1)
        self.mean.add_(1)
        self.frames[0].add_(1)
        return x * 2


def state_of(model: torch.nn.Module) -> dict[str, Any]:
    assert isinstance(model, Remembers)
    return {
        "largest": model.largest,
        "seen": list(model.seen),
        "notes": dict(model.notes),
        "table": model.table,
        "values": model.table.tolist(),
        "count": model.count.item(),
        "mean": model.mean.tolist(),
        "frames": [frame.tolist() for frame in model.frames],
    }


@pytest.mark.parametrize("fail", [False, True], ids=["returns", "raises"])
def test_everything_that_a_run_leaves_behind_is_put_back(fail: bool) -> None:
    model = Remembers()
    seen, before = model.seen, state_of(model)

    def run() -> None:
        with kept_state(model, {}):
            model(torch.zeros(2, 7))
            assert model.largest == 7
            if fail:
                raise ZeroDivisionError

    if fail:
        with pytest.raises(ZeroDivisionError):
            run()
    else:
        run()
    assert state_of(model) == before
    assert model.seen is seen


def test_probes_exports_and_trials_leave_the_model_as_it_was() -> None:
    class Windowed(torch.nn.Module):
        """Sets its own window from the image, as some vision models do; a symbol left there would break it."""

        window = 8

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.window = min(x.shape[1], 8)
            return x[:, : self.window] * 2

    model = Windowed()
    observer = InputObserver()
    with observer(model):
        model(torch.ones(2, 9))
        model(torch.ones(3, 12))
    before = dict(vars(model))
    observer.export().verify()
    assert vars(model) == before
    assert type(model.window) is int
    torch.testing.assert_close(model(torch.ones(2, 10)), torch.full((2, 8), 2.0))


class Narrows(torch.nn.Module):
    """Its result depends on the calls before: the width only ever shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 100

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] < 4:
            self.width = 1
        return x * self.width


def test_experiments_begin_from_what_stood_there_before_the_model_was_watched() -> None:
    model = Narrows()
    observer = InputObserver()
    with observer(model):
        for length in (9, 7, 3):
            model(torch.ones(2, length))
    assert model.width == 1
    program = observer.export()
    torch.testing.assert_close(program(torch.ones(2, 8)), torch.full((2, 8), 100.0))
    assert model.width == 1


def test_the_mode_of_a_model_is_the_users_own() -> None:
    model = torch.nn.Dropout()
    before = plain_values(model)
    model.eval()
    assert former_values(model, before) == {}


class KeepsAnchors(torch.nn.Module):
    """Detectors keep what they made for the last sizes, and make it anew for others."""

    def __init__(self) -> None:
        super().__init__()
        self.shape: Any = None
        self.anchors = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.shape != x.shape:
            self.anchors, self.shape = torch.arange(x.shape[1]) * 1.0, x.shape
        return x * self.anchors


def test_a_tensor_and_the_sizes_it_was_made_for_stand_as_before_watching() -> None:
    model, observer = KeepsAnchors().eval(), InputObserver()
    model(torch.randn(1, 5))
    with observer(model), torch.no_grad():
        model(torch.randn(1, 5))
        model(torch.randn(2, 7))
    program = observer.export()
    assert program.verify().verified
    x = torch.randn(1, 5)
    torch.testing.assert_close(program(x), x * torch.arange(5))


def test_weights_written_through_data_are_put_back_after_a_run_that_raises() -> None:
    layer = torch.nn.Linear(2, 2)
    before = layer.weight.detach().clone()

    def run() -> None:
        with kept_weights():
            layer.weight.data.mul_(2)
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        run()
    assert torch.equal(layer.weight, before)


class Reparametrised(torch.nn.Module):
    """Computes the weight of one layer from those of others in each call, as the blocks of SPAN do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 6, 1), torch.nn.Conv2d(6, 6, 3)
        self.whole = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.whole.weight.requires_grad = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.first.weight.data.clone(), self.second.weight.data.clone()
        weight = torch.nn.functional.conv2d(first.flip(2, 3).permute(1, 0, 2, 3), second, padding=2)
        self.whole.weight.data = weight.flip(2, 3).permute(1, 0, 2, 3)[:, :, 1:4, 1:4].contiguous()
        image: torch.Tensor = self.whole(x)
        return image


def test_a_weight_that_each_call_computes_from_others_is_that_of_the_model_after_an_export() -> None:
    model, observer = Reparametrised().eval(), InputObserver()
    with observer(model), torch.no_grad():
        model(torch.randn(1, 3, 8, 8))
        model(torch.randn(2, 3, 9, 12))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    program, x = observer.export(), torch.randn(3, 3, 7, 5)
    assert program.verify().verified
    with torch.no_grad():
        torch.testing.assert_close(program(x), model(x))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


_REGISTRY = '''
"""A package that keeps a table by the class of a tensor, as those do that work with several frameworks."""

_BY_CLASS = {}


def doubled(tensor):
    if type(tensor) not in _BY_CLASS:
        _BY_CLASS[type(tensor)] = 2
    return tensor * _BY_CLASS[type(tensor)]
'''


class OfAPackage(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.function(x))


@pytest.mark.parametrize("is_installed", [True, False])
def test_packages_that_pip_put_into_a_folder_of_their_own_are_no_state_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    """``pip install --target folder``, as functions in a cloud are packed, beside files of the user."""
    name = f"registry_of_classes_{is_installed}".lower()
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(_REGISTRY)
    if is_installed:
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info" / "RECORD").write_text(f"{name}/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert is_file_of_user(str(tmp_path / name / "__init__.py")) is not is_installed
    assert is_file_of_user(str(tmp_path / "model.py"))
    model, observer = OfAPackage(importlib.import_module(name).doubled), InputObserver()
    with observer(model):
        model(torch.randn(2, 3))
        model(torch.randn(4, 5))
    if is_installed:
        assert observer.export().verify().verified


class Irreps(tuple[Any, ...]):
    """Says how long it is by another name, as the representations of e3nn do."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


class Parts(frozenset[Any]):
    __len__, __iter__ = Irreps.__len__, Irreps.__iter__


@pytest.mark.parametrize("kept", [Irreps([(1, "0e"), torch.ones(3)]), Parts([(1, "0e")])], ids=["tuple", "frozenset"])
def test_a_container_of_a_model_need_not_tell_its_length(kept: Any) -> None:
    model, observer = OfAPackage(torch.neg), InputObserver()
    model.kept = kept
    with observer(model):
        model(torch.randn(2, 3))
        model(torch.randn(4, 5))
    assert observer.export().verify().verified


class Fuses(torch.nn.Module):
    """Adds one layer to another in its first call, and moves a mean in each."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.mean = torch.nn.Parameter(torch.zeros(()), requires_grad=False)
        self.how, self.is_fused = how, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.layer.weight
        with torch.no_grad():
            self.mean.copy_(x.mean())
            if not self.is_fused and self.how == "method":
                weight.add_(self.other.weight)
            elif not self.is_fused and self.how == "data":
                weight.data.add_(self.other.weight)
            elif not self.is_fused and self.how == "new data":
                weight.data = weight.data + self.other.weight
            elif not self.is_fused:
                weight.view(-1).add_(1)
            self.is_fused = True
        rows: torch.Tensor = self.layer(x)
        return rows


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("how", ["method", "data", "new data", "view"])
@pytest.mark.one_in(2)
def test_weights_to_which_calls_write_are_those_of_the_user_after_an_export(how: str, state: bool) -> None:
    model, observer = Fuses(how).eval(), InputObserver(state=state)
    with observer(model), torch.no_grad():
        model(torch.randn(2, 4))
        model(torch.randn(3, 4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with contextlib.suppress(ExportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not observer.export().verify().verified
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name

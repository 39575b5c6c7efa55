"""Calls of copies of the watched model: those that are the same program, and those that were
changed.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver, ObservationError, OnlookerWarning
from onlooker.core.recording import Recording
from onlooker.core.spec import TensorSpec


class Model(torch.nn.Module):
    """Convolution and batch norm, which become one convolution when they are fused."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv1d(3, 4, 1), torch.nn.BatchNorm1d(4)
        self.is_fused = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.conv(x)
        return made if self.is_fused else self.norm(made) * 1.0

    def fused(self) -> Model:
        self.conv = torch.nn.utils.fusion.fuse_conv_bn_eval(self.conv.eval(), self.norm.eval())
        del self.norm
        self.is_fused = True
        return self.eval()


class Copies(Model):
    def __deepcopy__(self, memo: dict[int, Any]) -> Copies:
        made = Copies()
        made.load_state_dict(self.state_dict())
        return made.train(self.training)


def x(batch: int = 2) -> torch.Tensor:
    return torch.rand(batch, 3, 5)


def watched(model: Any, use: Callable[[Any], Any], observer: InputObserver | None = None) -> InputObserver:
    observer = observer or InputObserver()
    before = dict(vars(type(model))), dict(vars(model))
    with observer(model), torch.no_grad():
        use(model)
    assert (dict(vars(type(model))), dict(vars(model))) == before
    return observer


def sizes(recording: Recording) -> list[int]:
    """The batch of each call."""
    return [leaf.shape[0] for call in recording.calls for leaf in call.inputs.leaves if isinstance(leaf, TensorSpec)]


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("kind", [Model, Copies])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, pickled, lambda m: copy.deepcopy([m])[0]])
@pytest.mark.one_in(2)
def test_calls_of_equal_copies_are_calls_of_the_model(kind: type[Model], copied: Callable[[Any], Any]) -> None:
    model = kind().eval()
    observer = watched(model, lambda m: [copied(m)(x()), copied(m)(x(3)), m(x(4))])
    recording = observer.recording()
    assert sizes(recording) == [2, 3, 4]
    assert recording.missed == ()
    assert observer.export().verify().verified


def test_a_copy_of_a_copy_and_one_made_before_are_calls_too() -> None:
    model = Model().eval()
    before = copy.deepcopy(model)
    observer = watched(model, lambda m: [before(x()), copy.deepcopy(copy.deepcopy(m))(x())])
    assert len(observer.recording()) == 2


def test_a_changed_copy_is_followed_where_the_model_is_not_called() -> None:
    model = Model()
    with torch.no_grad():
        model(x(9) * 5 + 1)
    held: list[Any] = []

    def use(model: Any) -> None:
        held.append(copy.deepcopy(model).fused())
        held[0](x()), held[0](x(3))
        copy.deepcopy(model).fused()(x(4))  # holds the same as the first one

    with pytest.warns(OnlookerWarning, match=r"calls are those of a copy .*model\.training differs.*copy-watched"):
        observer = watched(model, use)
    assert observer.num_obs() == len(observer.recording()) == 3
    program = observer.export()
    assert program.verify().verified
    with torch.no_grad():
        given = x(7)
        assert torch.equal(program(x=given), held[0](given))
        for target in ([], [model], held):
            with program.installed(*target) as served:
                held[0](given)
            assert served.calls["main"] == 1


def test_the_calls_of_the_model_itself_come_first() -> None:
    def use(model: Any) -> None:
        twin = copy.deepcopy(model).fused()
        twin(x()), model(x(3)), twin(x(4))

    observer = watched(Model().eval(), use)
    recording = observer.recording()
    assert sizes(recording) == [3]
    assert recording.missed == ()


def test_calls_of_a_second_other_copy_are_left_out_and_counted() -> None:
    def use(model: Any) -> None:
        copy.deepcopy(model).fused()(x())
        copy.deepcopy(model).half().float().train()(x(3))

    with pytest.warns(OnlookerWarning, match="copy-watched"):
        observer = watched(Model().eval(), use)
    assert len(observer.recording()) == 1
    assert observer.recording().missed == ("1 calls of changed copies of the model were not seen",)


@pytest.mark.parametrize("change", [lambda m: m.train(), lambda m: m.conv.weight.add_(1)])
def test_a_copy_is_compared_again_when_it_was_changed(change: Callable[[Any], Any]) -> None:
    def use(model: Any) -> None:
        twin = copy.deepcopy(model)
        twin(x())
        change(twin)
        twin(x(3))

    recording = watched(Model().eval(), use).recording()
    assert len(recording) == 1
    assert recording.missed == ("1 calls of changed copies of the model were not seen",)


def test_a_copy_is_followed_over_several_blocks() -> None:
    model, observer = Model(), InputObserver()
    held: list[Any] = []

    def use(model: Any) -> None:
        held.append(held[0] if held else copy.deepcopy(model).eval())
        held[0](x(len(held) + 1))

    for _ in range(2):
        with pytest.warns(OnlookerWarning, match="copy-watched"):
            watched(model, use, observer)
    assert len(observer.recording()) == 2
    with observer(model), torch.no_grad():
        model(x(5))
    assert len(observer.recording()) == 1


def test_another_object_that_is_no_copy_is_not_recorded() -> None:
    observer = watched(Model().eval(), lambda model: [Model().eval()(x()) for _ in range(20)])
    with pytest.raises(ObservationError, match="other objects of Model was called 20 times"):
        observer.recording()


def test_no_layer_of_the_same_class_is_compared_once_the_model_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4)))
    observer = InputObserver()
    monkeypatch.setattr("onlooker.observing.wrapping.copies_of_model.difference_of", None)
    with observer(layers[0]):
        layers(torch.zeros(1, 3))
    assert len(observer.recording()) == 1


def test_the_state_that_a_followed_copy_overwrites_is_known() -> None:
    class Counts(torch.nn.Module):
        n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n = self.n + 1
            return x * self.n

    model = Counts()
    model.n = 0
    held: list[Any] = []

    def use(model: Any) -> None:
        held.append(copy.deepcopy(model).eval())
        held[0](x()), held[0](x(3))

    with pytest.warns(OnlookerWarning, match="copy-watched"):
        observer = watched(model, use)
    with pytest.raises(ExportError, match="n"):
        observer.export()
    assert held[0].n == 2


def test_copies_in_threads_and_an_error_inside_a_copy() -> None:
    model, observer = Model().eval(), InputObserver()
    with observer(model), torch.no_grad():
        threads = [threading.Thread(target=lambda: copy.deepcopy(model)(x())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        model.lock = threading.Lock()  # type: ignore[assignment]
        with pytest.raises(TypeError, match="lock"):
            copy.deepcopy(model)
        del model.lock
        copy.deepcopy(model)(x())
    assert len(observer.recording()) <= 5
    assert "__deepcopy__" not in vars(Model)


def test_what_fails_in_the_comparison_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> str:
        raise RuntimeError

    monkeypatch.setattr("onlooker.observing.wrapping.copies_of_model.difference_of", fails)
    with pytest.raises(ObservationError, match="other objects"):
        watched(Model().eval(), lambda model: copy.deepcopy(model)(x())).recording()

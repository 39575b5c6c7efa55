"""How often torch.compile compiles, counted before and with marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, UsageError
from onlooker.compiling.marks import Marking
from onlooker.compiling.recompiles import (
    AS_IT_IS,
    DYNAMIC,
    Count,
    Recompiles,
    Replay,
    Replayer,
    reason_of,
)
from onlooker.core.call import Call, Parameter, Signature
from onlooker.lab.runner import ModelRunner


class Masked(torch.nn.Module):
    """A linear layer whose result a mask may hide."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        hidden: torch.Tensor = self.linear(x)
        return hidden if mask is None else hidden * mask


class BySize(torch.nn.Module):
    """A model that decides by a size: an unbacked size has no answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 3 else x - 1


def observed(model: torch.nn.Module, calls: list[tuple[torch.Tensor, ...]]) -> InputObserver:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    return observer


def masked_calls() -> list[tuple[torch.Tensor, ...]]:
    sizes = ((2, 5), (3, 9), (1, 4), (5, 1), (4, 7))
    return [(torch.randn(batch, length, 4), torch.ones(batch, length, 1)) for batch, length in sizes]


@pytest.fixture(scope="module")
def of_masked() -> tuple[Masked, Recompiles]:
    model = Masked().eval()
    return model, observed(model, masked_calls()).recompiles()


def test_marks_leave_one_graph_for_batches_and_lengths_of_one(of_masked: tuple[Masked, Recompiles]) -> None:
    _, found = of_masked
    assert found.kind is Marking.UNBACKED
    assert found.before.graphs >= 4
    assert found.after.graphs == 1
    kinds = {one.reason.kind for one in found.before.again}
    assert kinds <= {"size", "size of 0 or 1"}
    assert {one.reason.place for one in found.before.again} <= {"x", "mask"}


def test_equal_axes_share_a_shape_id(of_masked: tuple[Masked, Recompiles]) -> None:
    _, found = of_masked
    ids = {(mark.path.code(), mark.dim): mark.shape_id for mark in found.marks}
    assert ids["x", 0] == ids["mask", 0] != ids["x", 1] == ids["mask", 1]


class Trained(torch.nn.Module):
    """A step of training: batch statistics, random zeros, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(self.linear(x))).relu().mean()


def test_steps_of_training_are_counted_and_marked() -> None:
    model, observer = Trained().train(), InputObserver()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with observer(model):
        for batch in (8, 8, 5, 3):
            model(torch.randn(batch, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = observer.recompiles()
    assert found.before.graphs == 2
    assert found.after.graphs == 1
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    with onlooker.marked(torch.compile(model, backend="eager"), found):
        model(torch.randn(6, 4)).backward()
    assert model.linear.weight.grad is not None


@pytest.mark.slow
def test_marks_with_which_nothing_is_compiled_are_not_recommended() -> None:
    """torch gives up a frame of these layers where a batch is unbacked, and runs it as it is."""
    layers = (torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = torch.nn.Sequential(*layers).train()
    found = observed(model, [(torch.randn(batch, 8),) for batch in (8, 6, 3)]).recompiles()
    assert dict(found.counts)[Marking.UNBACKED.value].graphs == 0
    assert found.after.graphs == 1


def test_the_text_says_how_often_and_why(of_masked: tuple[Masked, Recompiles]) -> None:
    _, found = of_masked
    text = str(found)
    assert f"{found.before.graphs} graphs" in text
    assert "mark_unbacked" in text
    assert "(recommended)" in text
    assert "of x.shape[0]" in text


def test_a_model_that_decides_by_sizes_is_never_compiled_more_often() -> None:
    found = observed(BySize(), [(torch.randn(size, 2),) for size in (2, 3, 5, 7, 1)]).recompiles()
    assert not found.after.failure
    assert found.after.graphs <= found.before.graphs


class Counter:
    """A backend that counts the graphs that it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        self.graphs += 1
        return module.forward


def compiled_whole(model: Masked, backend: Counter) -> Any:
    return torch.compile(model, backend=backend)


def compiled_in_place(model: Masked, backend: Counter) -> Any:
    model.compile(backend=backend)
    return model


def compiled_method(model: Masked, backend: Counter) -> Any:
    model.forward = torch.compile(model.forward, backend=backend)  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("compile_it", [compiled_whole, compiled_in_place, compiled_method])
def test_calls_of_a_compiled_model_are_marked(
    of_masked: tuple[Masked, Recompiles], compile_it: Callable[[Masked, Counter], Any]
) -> None:
    torch.compiler.reset()
    model, found, backend = Masked().eval(), of_masked[1], Counter()
    eager = Masked().eval()
    eager.load_state_dict(model.state_dict())
    compiled = compile_it(model, backend)
    before = dict(vars(compiled))
    with onlooker.marked(compiled, found), torch.no_grad():
        for x, mask in masked_calls():
            attributes = dict(vars(x))
            assert torch.equal(compiled(x, mask), eager(x, mask))
            assert vars(x) == attributes
        assert backend.graphs == 1
        x = torch.randn(3, 5, 4)  # a mask of another size has no mark, and is compiled for itself
        assert torch.equal(compiled(x, torch.ones(1, 5, 1)), eager(x, torch.ones(1, 5, 1)))
    assert vars(compiled) == before
    torch.compiler.reset()


def test_what_is_not_compiled_is_refused(of_masked: tuple[Masked, Recompiles]) -> None:
    message = r"Masked\.forward is not compiled\..*model\.compile"
    with pytest.raises(UsageError, match=message), onlooker.marked(Masked(), of_masked[1]):
        raise AssertionError("never here")


def test_a_count_leaves_the_memory_of_torch_and_the_model_as_they_were() -> None:
    torch.compiler.reset()
    model, backend = Masked().eval(), Counter()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for batch in (2, 3):
            compiled(torch.randn(batch, 5, 4))
    graphs, state = backend.graphs, {name: value.clone() for name, value in model.state_dict().items()}
    observed(model, masked_calls()).recompiles()
    with torch.no_grad():
        compiled(torch.randn(7, 5, 4))
    assert backend.graphs == graphs
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("text", "kind", "place", "dim"),
    [
        ("0/0: tensor 'x' size mismatch at index 0. expected 2, actual 3", "size", "x", 0),
        ("0/1: 2 <= x.size()[1]  # return x  # a/model.py:12 in forward (user code)", "size of 0 or 1", "x", 1),
        ("0/0: tensor 'L['x']' dtype mismatch. expected Float, actual Half", "dtype", "x", None),
        ("0/3: m is None     # if m is not None  # mp/d.py:10 in forward", "argument left out", "m", None),
        ("0/5: GLOBAL_STATE changed: grad_mode ", "setting of torch", "grad_mode", None),
        ("0/2: kwargs['ids'].size()[1] == 4", "condition on sizes", "ids", 1),
        ("0/2: flag == True  # if flag  # a/model.py:3 in forward", "value of Python", "flag", None),
        ("0/2: something new", "another guard", "", None),
        (None, "first call", "", None),
    ],
)
def test_reasons_are_read_from_the_text_of_guards(text: str | None, kind: str, place: str, dim: int | None) -> None:
    found = reason_of(text)
    assert (found.kind, found.place, found.dim) == (kind, place, dim)
    if text and "model.py" in text:
        assert "model.py:" in found.line


def test_the_text_for_a_compiled_model_marks_what_the_program_knows() -> None:
    program = observed(Masked().eval(), masked_calls()).export()
    text = program.emit("compile").text
    names: dict[str, Any] = {}
    exec(compile(text, "marks", "exec"), names)
    x, mask = masked_calls()[0]
    names["mark"](x, mask)
    assert x._dynamo_weak_dynamic_indices == {0, 1}  # type: ignore[attr-defined]
    assert "TORCH_COMPILE_DYNAMIC_SOURCES=\"L['x'],L['mask']\"" in text
    assert "dynamic_arg_dims={'x': {0: 'batch'" in text


class CountsItsCalls(torch.nn.Module):
    """A model whose result depends on how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


def test_every_way_begins_with_the_model_as_it_was() -> None:
    model = CountsItsCalls()
    calls = [Replay(call, {"x": torch.ones(size, 2)}) for call, size in zip(made_calls(model), (2, 3), strict=True)]
    replayer = Replayer(ModelRunner(model, "forward", Signature((Parameter("x"),))), calls)
    assert [replayer.count(dynamic=dynamic).failure for dynamic in (None, True)] == ["", ""]
    assert model.calls.item() == 2


def made_calls(model: torch.nn.Module) -> tuple[Call, ...]:
    """The calls of two batches, as they are recorded."""
    return observed(model, [(torch.ones(2, 2),), (torch.ones(3, 2),)]).recording().calls


def test_dynamic_is_recommended_where_no_marks_compile_less() -> None:
    def recommended(dynamic: Count, kind: Marking | None = None) -> list[str]:
        counts = {AS_IT_IS: Count(3), DYNAMIC: dynamic, Marking.DYNAMIC.value: Count(2)}
        found = Recompiles("Model.forward", 3, tuple(counts.items()), kind=kind)
        return [line for line in str(found).splitlines() if "(recommended)" in line]

    (line,) = recommended(Count(2))
    assert line.strip().startswith(DYNAMIC)
    assert recommended(Count(3)) == []
    assert recommended(Count(2, failure="another result")) == []
    (line,) = recommended(Count(2), Marking.DYNAMIC)
    assert line.strip().startswith(Marking.DYNAMIC.value)

"""Objects of the user that a method changes in place, under an installed program: the caller's own objects change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program, RejectedCallError


class Memory:
    """A hand-written cache: a tensor per layer in a list, one as an attribute, a counter, and a setting."""

    def __init__(self, batch: int, past: int) -> None:
        self.keys = [torch.randn(batch, past, 4) for _ in range(2)]
        self.total = torch.zeros(batch, 4)
        self.name = "mine"
        self.rule = max


class Appends(torch.nn.Module):
    """Appends to its memory, by new tensors and in place."""

    def __init__(self, returned: bool = True, least: int = 0) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((4,), 2.0))
        self.returned, self.least = returned, least

    def forward(self, x: torch.Tensor, memory: Memory) -> Any:
        if x.shape[0] < self.least:
            return sum(keys.sum(dim=1) for keys in memory.keys) + x.sum(dim=1)
        for layer, keys in enumerate(memory.keys):
            memory.keys[layer] = torch.cat([keys, x * self.scale + layer], dim=1)
        memory.total.add_(x.sum(dim=1))
        out = sum(keys.sum(dim=1) for keys in memory.keys) + memory.total
        return {"out": out, "memory": memory} if self.returned else out


class Reads(torch.nn.Module):
    """Reads a memory and gives another one."""

    def forward(self, x: torch.Tensor, memory: Memory) -> Any:
        made = Memory.__new__(Memory)
        made.__dict__ = {**memory.__dict__, "keys": [keys + 1 for keys in memory.keys]}
        return x.sum(dim=1) + memory.keys[0].sum(dim=1), made


class Lists(torch.nn.Module):
    """Appends to a list and to a dict of tensors."""

    def forward(self, x: torch.Tensor, past: list[torch.Tensor], state: dict[str, torch.Tensor]) -> Any:
        past[:] = [torch.cat([keys, x], dim=1) for keys in past]
        state["last"] = x[:, -1]
        return past[0].sum(dim=1) + state["last"], past, state


def exported(model: torch.nn.Module, *calls: tuple[Any, ...], to: str = "torch", **options: Any) -> Program:
    observer = InputObserver()
    with observer(model), torch.no_grad():
        for call in calls:
            model(*call)
    return observer.export(probe=False, **options).to(to)


def call(batch: int, sequence: int, past: int) -> tuple[torch.Tensor, Memory]:
    torch.manual_seed(batch + past)
    return torch.randn(batch, sequence, 4), Memory(batch, past)


@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_an_object_of_the_caller_is_what_it_would_be_after_the_model(target: str) -> None:
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    model = Appends()
    program = exported(model, *(call(2, 3, 5), call(3, 4, 7)), to=target)
    (x, mine), (_, theirs) = call(4, 2, 6), call(4, 2, 6)
    total, keys = mine.total, mine.keys
    for _ in range(3):
        with torch.no_grad():
            expected = model(x, theirs)
            with program.installed(model) as served:
                got = model(x, mine)
        assert served.eager == 0
        assert got["memory"] is mine
        torch.testing.assert_close(got["out"], expected["out"])
        torch.testing.assert_close(mine.keys, theirs.keys)
        torch.testing.assert_close(mine.total, theirs.total)
        assert mine.keys is keys
        assert mine.total is total  # it was written in place
        assert (mine.name, mine.rule) == ("mine", max)


def test_an_object_that_no_watched_call_changed_is_refused_when_it_changes() -> None:
    model = Appends(returned=False, least=4)
    program = exported(model, call(2, 3, 5), call(3, 4, 7), ranges={"batch": (1, 8)})
    x, mine = call(4, 2, 6)
    keys = list(mine.keys)
    with (
        program.installed(model),
        pytest.raises(
            RejectedCallError, match=r"this graph needs x\.shape\[0\] < 4, because of .*self\.least"
        ) as caught,
    ):
        model(x, mine)
    assert caught.value.slug == "call-refused"
    assert all(left is right for left, right in zip(mine.keys, keys, strict=True))
    with program.installed(model, fallback=True) as served, torch.no_grad():
        model(x, mine)
    assert served.eager == 1
    assert mine.keys[0].shape == (4, 8, 4)


def test_an_object_that_the_model_makes_anew_leaves_the_one_that_came_in() -> None:
    model = Reads()
    program = exported(model, call(2, 3, 5), call(3, 4, 7))
    x, mine = call(4, 2, 6)
    before = [keys.clone() for keys in mine.keys]
    expected = model(x, mine)
    with program.installed(model):
        got = model(x, mine)
    assert got[1] is not mine
    torch.testing.assert_close(mine.keys, before)
    torch.testing.assert_close(got[1].keys, expected[1].keys)
    torch.testing.assert_close(got[0], expected[0])


def test_lists_and_dicts_of_the_caller_change_as_well() -> None:
    def made(batch: int, past: int) -> tuple[Any, ...]:
        keys = torch.arange(batch * past * 4.0).reshape(batch, past, 4)
        return torch.ones(batch, 2, 4), [keys, keys + 1], {"last": keys[:, 0].clone()}

    model = Lists()
    program = exported(model, made(2, 5), made(3, 7))
    (x, past, state), theirs = made(4, 6), made(4, 6)
    expected = model(*theirs)
    with program.installed(model):
        got = model(x, past, state)
    assert got[1] is past
    assert got[2] is state
    torch.testing.assert_close(past, theirs[1])
    torch.testing.assert_close(state, theirs[2])
    torch.testing.assert_close(got[0], expected[0])


def test_a_model_that_cannot_be_asked_is_a_refusal() -> None:
    model = Appends()
    program = exported(model, call(2, 3, 5), call(3, 4, 7))
    with program.installed(model.to("meta")), pytest.raises(RejectedCallError, match="asked what it does to memory"):
        model(*call(4, 2, 6))


class Tables(torch.nn.Module):
    """Reads the tensors of a dict, unless its weights are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.is_gone = False

    def forward(self, x: torch.Tensor, table: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        if self.is_gone:
            raise RuntimeError("the model is not here")
        return x + torch.cat(table["rows"]).sum(0)


def test_a_saved_program_knows_of_the_objects_that_stay_as_they_are(tmp_path: Path) -> None:
    calls = [(torch.randn(n, 3), {"rows": [torch.randn(2, 3) for _ in range(n)]}) for n in (1, 2, 3)]
    program = exported(Tables(), *calls)
    program.save(tmp_path / "out")
    loaded = onlooker.load(tmp_path / "out")
    assert isinstance(loaded, Program)
    gone = Tables()
    gone.is_gone = True
    x, table = torch.randn(2, 3), {"rows": [torch.randn(2, 3), torch.randn(2, 3)]}
    for one in (loaded, loaded.to("torch")):
        with one.installed(gone):
            assert torch.allclose(gone(x, table), Tables()(x, table))
    with loaded.installed(gone), pytest.raises(RejectedCallError, match="No graph of this program takes the call"):
        gone(x, {"columns": table["rows"]})


def test_a_saved_program_that_cannot_build_the_class_of_an_object_that_changes_is_refused(tmp_path: Path) -> None:
    program = exported(Appends(), *[(torch.randn(2, n, 4), Memory(2, n)) for n in (2, 3)])
    program.save(tmp_path / "out")
    loaded, model = onlooker.load(tmp_path / "out"), Appends()
    assert isinstance(loaded, Program)
    with loaded.installed(model), pytest.raises(RejectedCallError, match="stand-in for its class, Memory") as caught:
        model(torch.randn(2, 3, 4), Memory(2, 3))
    assert caught.value.slug == "cache-not-returned"

"""Small faults, each with its class: paths, odd classes, the command line, links, notes, the room that specs take."""

from __future__ import annotations

import io
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, OnlookerError, SavedFileError, UnsupportedError
from onlooker.cli import main
from onlooker.contract.places import formulas_of
from onlooker.core.contract import Constraint, Contract, Origin, Region
from onlooker.core.path import Name
from onlooker.core.path import Path as LeafPath
from onlooker.core.plan import LeafPlan, Plan, Symbol
from onlooker.core.recording import Recording
from onlooker.core.sizes.expression import Expression
from onlooker.core.structure import Structure
from onlooker.observing import budget
from onlooker.program import Program

X = torch.ones(2, 3)


class Embeds(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.table(ids)
        return made


@pytest.fixture(scope="module")
def embeds() -> tuple[InputObserver, Program]:
    model, observer = Embeds(), InputObserver()
    with observer(model):
        model(torch.tensor([[3, 90, 17]]))
        model(torch.tensor([[3, 5], [80, 17]]))
    return observer, observer.export()


# paths

PATHS = ["a\0b", "\0", Path("a\0b"), "\ud800"]
USES: dict[str, Callable[[Any, Program, Any], Any]] = {
    "save": lambda observer, program, path: program.save(path),
    "save_graphs": lambda observer, program, path: program.save_graphs(path),
    "load": lambda observer, program, path: onlooker.load(path),
    "recording": lambda observer, program, path: observer.recording().save(path),
    "load a recording": lambda observer, program, path: Recording.load(path),
}


@pytest.mark.parametrize("path", PATHS, ids=repr)
@pytest.mark.parametrize("use", USES)
def test_a_text_that_is_no_path_is_an_error_of_ours(embeds: Any, use: str, path: Any) -> None:
    with pytest.raises(OnlookerError, match=r"which no system takes as a path") as caught:
        USES[use](*embeds, path)
    assert caught.value.slug == "bad-path"


def test_the_list_of_files_may_not_be_a_link(embeds: Any, tmp_path: Path) -> None:
    _, program = embeds
    program.save(tmp_path / "program")
    (tmp_path / "program" / "onlooker.json").rename(tmp_path / "other.json")
    (tmp_path / "program" / "onlooker.json").symlink_to("../other.json")
    with pytest.raises(SavedFileError, match=r"it is a link"):
        onlooker.load(tmp_path / "program")


# classes


def refusing(error: Exception) -> Any:
    class Meta(type):
        def __setattr__(cls, name: str, value: Any) -> None:
            raise error

    class Refuses(metaclass=Meta):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    return Refuses


class Unreadable:
    """Shows its method and nothing else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def __getattribute__(self, name: str) -> Any:
        if name in ("forward", "__class__"):
            return object.__getattribute__(self, name)
        raise RuntimeError(f"{name} is nobody's matter")


class Slots:
    __slots__ = ()


class Silent:
    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)


ERRORS = [RuntimeError("no"), ValueError("no"), KeyError("no"), TypeError("no"), AttributeError("no")]


@pytest.mark.parametrize("make", [*map(refusing, ERRORS), Unreadable], ids=lambda cls: cls.__name__)
def test_an_odd_class_is_watched_all_the_same(make: Any) -> None:
    model, observer = make(), InputObserver()
    with observer(model):
        assert model.forward(X).tolist() == (X * 2).tolist()
    assert len(observer.recording()) == 1
    assert model.forward(X).tolist() == (X * 2).tolist()
    assert "forward" not in object.__getattribute__(model, "__dict__")


def test_what_cannot_be_watched_is_an_error_of_ours() -> None:
    refuses = refusing(RuntimeError("no"))
    slots = type("Both", (Slots,), {"__slots__": (), "forward": refuses.forward})
    meta = type("Meta", (type,), {"__setattr__": type(refuses).__setattr__})
    closed = meta("Closed", (slots,), {"__slots__": ()})
    for model in (closed(), Silent()):
        with pytest.raises(UnsupportedError) as caught, InputObserver()(model):
            pass
        assert caught.value.slug == "not-watchable"
    assert closed().forward(X).tolist() == (X * 2).tolist()


# the command line


APP = """
import os, sys, torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2
def build():
    model = Model()
    def use():
        for n in (2, 3):
            model(torch.ones(n, 4))
    return model, use
def moves():
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    return build()
def moves_later():
    model, use = build()
    def both():
        use()
        os.chdir("/")
    return model, both
def closes():
    sys.stdout.close()
    return build()
def closes_both():
    print("said")
    sys.stdout.close()
    sys.stderr.close()
    return build()
"""


def run(*argv: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    return main(argv, out, err), out.getvalue(), err.getvalue()


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("function", ["moves", "moves_later", "closes", "closes_both"])
@pytest.mark.one_in(2)
def test_the_code_of_the_user_may_move_and_close(app: Path, function: str) -> None:
    code, out, err = run("export", f"app.py:{function}", "--out", "program", "--save-recording", "calls.json")
    os.chdir(app)
    assert code == 0, err
    assert "wrote program" in out
    assert onlooker.load(app / "program")(torch.ones(5, 4)).shape == (5, 4)
    assert (app / "calls.json").is_file()


@pytest.mark.parametrize("place", [".", "..", "a..b", ".app", "app.", "1x", "a b", "a-b", "", "a\0b"])
def test_what_names_no_module_is_not_blamed_on_the_user(app: Path, place: str) -> None:
    code, _, err = run("export", f"{place}:build")
    assert code == 1
    assert "[bad-function]" in err
    assert "Traceback" not in err


# notes


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("past - sequence == 0", "x.shape[0] - (mask.shape[0] - x.shape[0]) == 0"),
        ("2*sequence > past", "2 * (mask.shape[0] - x.shape[0]) > x.shape[0]"),
        ("sequence == 7", "mask.shape[0] - x.shape[0] == 7"),
        ("past < sequence", "x.shape[0] < mask.shape[0] - x.shape[0]"),
    ],
)
def test_a_size_inside_of_a_larger_one_has_brackets(formula: str, text: str) -> None:
    leaves = [LeafPath((Name("x"),)), LeafPath((Name("mask"),))]
    shapes = (Expression.parse("past"),), (Expression.parse("past + sequence"),)
    plans = tuple(LeafPlan(path, "torch.float32", "cpu", shape) for path, shape in zip(leaves, shapes, strict=True))
    plan = Plan("main", Structure(), plans, (Symbol("past"), Symbol("sequence")))
    contract = Contract((Region((Constraint(formula, Origin.MODEL),)),))
    *_, written = formulas_of(plan, contract, str)
    assert written == text


# scripts of loaded programs


@pytest.mark.parametrize("values", [False, True])
def test_a_script_of_a_loaded_program_draws_the_ids_that_were_seen(embeds: Any, tmp_path: Path, values: bool) -> None:
    _, program = embeds
    program.save(tmp_path / "one", values=values)
    loaded = onlooker.load(tmp_path / "one")
    loaded.save(tmp_path / "two")
    for each in (program, loaded, onlooker.load(tmp_path / "two")):
        assert "torch.randint(3, 91, " in each.code()


# the room that specs take


class Passes(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int, text: str) -> torch.Tensor:
        return x


def test_the_specs_of_very_many_different_calls_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_SPECS", 1 << 20)
    model, observer = Passes(), InputObserver(max_bytes=1000)
    tracemalloc.start()
    try:
        with observer(model, store_n_calls=0):
            for i in range(3000):
                model(torch.empty(i % 300, i // 300), i, "text")
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 3 << 20
    recording = observer.recording()
    assert 500 < len(recording) < 3000
    assert len(recording) + int(recording.missed[0].split("(")[-1].split()[0]) == 3000
    assert "after very many different ones was not recorded (limit: 1000 bytes)" in recording.missed[0]


def test_equal_calls_take_no_room() -> None:
    model, observer = Passes(), InputObserver(max_bytes=1000)
    with observer(model, store_n_calls=0):
        for _ in range(1000):
            model(X, 1, "text")
        before = observer._watcher._budget.spec_bytes
        for _ in range(1000):
            model(X, 1, "text")
    assert observer._watcher._budget.spec_bytes == before
    assert len(observer.recording()) == 2000

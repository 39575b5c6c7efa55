"""Saves that are killed at any moment, and folders that must stay the ones they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, SavedFileError
from onlooker.disk.staging import hidden
from onlooker.program import Program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a run is killed in a forked child")

X = torch.arange(6.0).reshape(2, 3)


def program_of(function: Callable[[torch.Tensor], torch.Tensor]) -> Program:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    model, observer = Model(), InputObserver()
    with observer(model):
        model(X)
    return observer.export()


@pytest.fixture(scope="module")
def old_and_new() -> tuple[Program, Program]:
    return program_of(lambda x: x + 1), program_of(lambda x: x * 10)


def killed_at(step: int, run: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs in a child that dies at one of the moves of files; False when it made fewer moves, and ended."""
    child = os.fork()
    if not child:
        moves = iter(range(1000))

        def rename(source: Any, target: Any) -> None:
            if next(moves) == step:
                os._exit(9)
            original(source, target)

        original, os.rename = os.rename, rename  # type: ignore[assignment]
        run()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def result_of(folder: Path) -> list[float]:
    return list(onlooker.load(folder)(X).flatten().tolist())


def result_or_error(folder: Path) -> list[float] | SavedFileError:
    try:
        return result_of(folder)
    except SavedFileError as error:
        return error


@pytest.mark.parametrize("place", ["swapped", "working directory", "new", "empty"])
@pytest.mark.one_in(2)
def test_a_program_is_whole_somewhere_at_every_moment(
    old_and_new: tuple[Program, Program], tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = old_and_new
    results = [(X + 1).flatten().tolist(), (X * 10).flatten().tolist()]
    there = place in ("swapped", "working directory")
    for step in range(100):
        folder = tmp_path / str(step) / "program"
        if there:
            old.save(folder)
        elif place == "empty":
            folder.mkdir(parents=True)
        else:
            folder.parent.mkdir()
        if place == "working directory":
            monkeypatch.chdir(folder)
        was_killed = killed_at(step, lambda folder=folder: new.save(folder), monkeypatch)  # type: ignore[misc]
        found = result_or_error(folder)
        if isinstance(found, SavedFileError):
            left = re.search(r"is whole in (\S+): load that", str(found))
            assert (left is not None) is (found.slug == "save-was-killed")
            assert left is not None or not there
            found = result_of(Path(left[1])) if left else results[1]
        assert found in (results if there else results[1:])
        new.save(folder)
        assert result_of(folder) == results[1]
        assert not hidden(folder)
        assert [path.name for path in folder.parent.iterdir()] == ["program"]
        if not was_killed:
            assert step >= (1 if place == "new" else 2)
            return
    raise AssertionError("a save that never ends")


@pytest.mark.parametrize("write", ["save", "save_graphs"])
def test_the_working_directory_stays(
    old_and_new: tuple[Program, Program], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for program in old_and_new:
        getattr(program, write)(".")
        assert os.path.samefile(os.getcwd(), tmp_path)
        listed = subprocess.run(["ls", "-a"], check=True, capture_output=True, text=True).stdout.split()
        assert "main.pt2" in listed
        assert not any(name.startswith(".onlooker") for name in listed)
    if write == "save":
        assert torch.equal(onlooker.load(".")(X), X * 10)


def test_an_empty_folder_is_filled_and_not_replaced(old_and_new: tuple[Program, Program], tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir(mode=0o750)
    before = folder.stat()
    old_and_new[0].save(folder)
    assert (folder.stat().st_ino, folder.stat().st_mode) == (before.st_ino, before.st_mode)


def test_a_hidden_folder_in_use_is_left_alone(old_and_new: tuple[Program, Program], tmp_path: Path) -> None:
    from onlooker.disk.staging import staging

    with staging(tmp_path, ".program.") as beside:
        old_and_new[0].save(tmp_path / "program")
        assert beside.is_dir()
    (tmp_path / ".program.mine").mkdir()
    old_and_new[0].save(tmp_path / "program")
    assert (tmp_path / ".program.mine").is_dir()


def test_a_lock_that_cannot_be_removed_while_it_is_open_goes_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, whose rmtree leaves the open file and its folder."""
    from onlooker.disk import staging

    left = tmp_path / ".program.killed"
    (left / "new").mkdir(parents=True)
    (left / staging._LOCK).touch()
    monkeypatch.setattr(staging.shutil, "rmtree", lambda folder, ignore_errors: (folder / "new").rmdir())
    staging.remove_abandoned(tmp_path, ".program.")
    assert not left.exists()


def test_another_process_sees_that_a_folder_is_in_use(tmp_path: Path) -> None:
    from onlooker.disk.staging import abandoned, in_use, staging

    asks = "import sys, pathlib; from onlooker.disk import staging; print(staging.in_use(pathlib.Path(sys.argv[1])))"
    with staging(tmp_path):
        told = subprocess.run([sys.executable, "-c", asks, str(tmp_path)], capture_output=True, text=True, check=True)
        assert told.stdout.strip() == "True"
        assert not abandoned(tmp_path)
    assert not in_use(tmp_path)


def test_a_folder_that_is_replaced_is_read_again(old_and_new: tuple[Program, Program], tmp_path: Path) -> None:
    folder = tmp_path / "program"
    old_and_new[0].save(folder)
    child = os.fork()
    if not child:
        while True:
            for program in old_and_new:
                program.save(folder)
    try:
        results = [result_of(folder) for _ in range(60)]
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert all(result in [(X + 1).flatten().tolist(), (X * 10).flatten().tolist()] for result in results)

"""A disk that is full or cannot be written: one error of ours, nothing half-written, and what stood there as it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker
from onlooker import InputObserver, SavedFileError
from onlooker.program import Program
from onlooker.targets.weights import write_tensors

resource = pytest.importorskip("resource")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, double: bool = False) -> torch.Tensor:
        made: torch.Tensor = self.linear(x)
        return made * 2 if double else made


@pytest.fixture(scope="module")
def programs() -> dict[str, Program]:
    torch.manual_seed(0)
    model, observer = Model(), InputObserver()
    with observer(model):
        model(torch.ones(2, 64))
        model(torch.ones(3, 64), double=True)
    program = observer.export()
    assert len(program.graphs) == 2
    return {"torch": program, "onnx": program.to("onnx")}


WRITES: dict[str, Callable[[Program, Path], Any]] = {
    "save": lambda program, folder: program.save(folder),
    "save with values": lambda program, folder: program.save(folder, values=True),
    "save_graphs": lambda program, folder: program.save_graphs(folder),
}


@contextlib.contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """Inside the block the system refuses to make a file longer: writers meet it as they meet a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too, and every folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"a folder" for p in folder.rglob("*")}


def refusal_of(write: str, program: Program, folder: Path) -> SavedFileError | None:
    try:
        WRITES[write](program, folder)
    except SavedFileError as error:
        return error
    return None


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", ["torch", "onnx"])
@pytest.mark.parametrize("place", ["new", "a/b/new", "full", "empty"])
@pytest.mark.one_in(2)
def test_a_full_disk_leaves_what_was_there(
    programs: dict[str, Program], tmp_path: Path, write: str, target: str, place: str
) -> None:
    program, folder = programs[target], tmp_path / place
    if place == "full":
        WRITES[write](program, folder)
    elif place == "empty":
        folder.mkdir()
    before = content(tmp_path)
    refusals = []
    for nbytes in (0, 1, 600, 5000, 20_000, 40_000):
        with files_of_at_most(nbytes):
            refusal = refusal_of(write, program, folder)
        if refusal is None:
            break
        assert str(folder) in str(refusal)
        assert content(tmp_path) == before
        refusals.append(refusal.slug)
    assert refusals == ["not-written"] * len(refusals)
    assert len(refusals) >= 4
    WRITES[write](program, folder)
    if write != "save_graphs":
        x = torch.ones(5, 64)
        assert torch.allclose(onlooker.load(folder)(x), program(x))


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4000])
def test_a_full_disk_under_the_weights_is_an_error_of_the_system(tmp_path: Path, nbytes: int) -> None:
    with files_of_at_most(nbytes), pytest.raises(OSError, match=r"File too large"):
        write_tensors({"main": {"weight": torch.ones(64, 64)}}, tmp_path / "weights")


def is_mounted(folder: Path) -> bool:
    """A disk of 1 MB at the folder, where the machine allows it."""
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    with contextlib.suppress(OSError):
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    return False


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("target", ["torch", "onnx"])
def test_a_small_disk(programs: dict[str, Program], tmp_path: Path, write: str, target: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if not is_mounted(disk):
        pytest.skip("this machine mounts no small disk")
    try:
        WRITES[write](programs[target], disk)
        WRITES[write](programs[target], disk / "new")
        before, used = content(disk), sum(path.stat().st_blocks * 512 for path in (disk / "new").iterdir())
        state = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(state.f_bavail * state.f_bsize - used // 2))
        refusal = refusal_of(write, programs[target], disk / "new")
        (disk / "filler").unlink()
        assert refusal is not None
        assert refusal.slug == "not-written"
        assert content(disk) == before
    finally:
        subprocess.run(["umount", str(disk)], check=False)


@pytest.mark.parametrize("write", WRITES)
def test_a_place_that_cannot_be_written(programs: dict[str, Program], write: str, monkeypatch: Any) -> None:
    with pytest.raises(SavedFileError) as caught:
        WRITES[write](programs["torch"], Path("/proc/onlooker/new"))
    assert caught.value.slug == "not-written"
    assert not os.path.lexists("/proc/onlooker")

"""The same calls and model give the same folder, file by file, but for the timings: on a loaded machine too."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import onlooker
from onlooker import InputObserver, Program
from onlooker.zoo import tiny_model

TESTS = Path(__file__).parent


class Sided(torch.nn.Module):
    """Two graphs, weights, two inputs of which one may be absent."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.linear(x) * self.scale
        hidden = hidden.clamp(-1, 1) if x.shape[1] > 12 else hidden * 2
        return {"hidden": hidden if mask is None else hidden * mask.unsqueeze(-1), "sum": hidden.sum(1)}


def observed(name: str) -> InputObserver:
    """The calls of a model that is built anew, with the same weights."""
    observer = InputObserver()
    if name != "sided":
        with torch.random.fork_rng():
            torch.manual_seed(0)
            tiny = tiny_model(name)
        with observer(tiny.model), torch.no_grad():
            tiny.watch()
        return observer
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Sided().eval()
        calls = [torch.randn(batch, length, 4) for batch, length in ((2, 5), (3, 9), (2, 15))]
    with observer(model), torch.no_grad():
        for x in calls:
            model(x)
        model(calls[0], mask=torch.ones(2, 5))
    return observer


def saved(name: str, folder: Path) -> Program:
    program = observed(name).export()
    program.verify(seed=1, trials=60)
    program.save(folder, values=True)
    return program


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Another process that computes as fast as it can."""
    with subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**5))"]) as process:
        try:
            yield
        finally:
            process.kill()


def differing(first: Path, second: Path) -> dict[str, set[str]]:
    """The files that differ, each with its fields that differ where it is JSON."""
    names = {path.name for path in first.iterdir()} | {path.name for path in second.iterdir()}
    found = {}
    for name in sorted(names):
        one, other = (folder / name for folder in (first, second))
        if not one.exists() or not other.exists():
            found[name] = {"missing"}
        elif one.read_bytes() != other.read_bytes():
            found[name] = _fields(one, other) if name.endswith(".json") else {"content"}
    return found


def _fields(one: Path, other: Path) -> set[str]:
    ours, theirs = (json.loads(path.read_text()) for path in (one, other))
    return {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}


@pytest.mark.parametrize("name", ["sided", pytest.param("llama", marks=pytest.mark.slow)])
def test_two_runs_give_the_same_folder_but_for_the_timings(name: str, tmp_path: Path) -> None:
    saved(name, tmp_path / "first")
    with busy():
        _ = [torch.zeros(1000 + number) for number in range(50)]  # other addresses
        program = saved(name, tmp_path / "second")
    if name == "sided":
        assert len(program.graphs) > 1
    assert differing(tmp_path / "first", tmp_path / "second") == {"onlooker.json": {"timings"}}


@pytest.mark.slow
def test_another_process_with_other_hashes_gives_the_same_folder(tmp_path: Path) -> None:
    saved("sided", tmp_path / "here")
    lines = [
        "import sys",
        "from pathlib import Path",
        f"sys.path.insert(0, {str(TESTS)!r})",
        f"from {Path(__file__).stem} import saved",
        f"saved('sided', Path({str(tmp_path / 'there')!r}))",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    with busy():
        subprocess.run([sys.executable, "-W", "ignore", "-c", "\n".join(lines)], check=True, env=environment)
    assert differing(tmp_path / "here", tmp_path / "there") == {"onlooker.json": {"timings"}}


@pytest.mark.slow
def test_onnx_files_are_the_same_as_well(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    for number in range(2):
        observed("sided").export(to="onnx").save(tmp_path / str(number))
    assert differing(tmp_path / "0", tmp_path / "1") == {"onlooker.json": {"timings"}}


def test_the_timings_come_back_with_the_program(tmp_path: Path) -> None:
    program = saved("sided", tmp_path / "program")
    loaded = onlooker.load(tmp_path / "program")
    assert loaded.recording == program.recording
    assert [call.seconds for call in loaded.recording.calls] == [call.seconds for call in program.recording.calls]
    assert [graph.seconds for graph in loaded.graphs] == [graph.seconds for graph in program.graphs]
    timings = json.loads((tmp_path / "program" / "onlooker.json").read_text())["timings"]
    assert set(timings["stages"]) == {name for name, _ in program.report.stages}


@pytest.mark.parametrize("change", ["number", "calls", "graphs", "kind"])
@pytest.mark.one_in(2)
def test_damaged_timings_are_refused(change: str, tmp_path: Path) -> None:
    observed("sided").export().save(tmp_path / "program")
    path = tmp_path / "program" / "onlooker.json"
    document = json.loads(path.read_text())
    timings = document["timings"]
    if change == "number":
        timings["calls"][0] += 1.0
    elif change == "kind":
        document["timings"] = 3
    else:
        timings[change].append(1.0)
    path.write_text(json.dumps(document))
    with pytest.raises(onlooker.SavedFileError, match=r"onlooker\.json at timings: .*\[file-damaged\]"):
        onlooker.load(tmp_path / "program")


@pytest.mark.slow
def test_a_folder_of_an_older_version_has_its_seconds_elsewhere(tmp_path: Path) -> None:
    observed("sided").export().save(tmp_path / "program")
    path = tmp_path / "program" / "onlooker.json"
    document = json.loads(path.read_text())
    del document["timings"]
    path.write_text(json.dumps(document))
    assert onlooker.load(tmp_path / "program").graphs

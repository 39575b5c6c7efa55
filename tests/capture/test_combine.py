"""Files of processes: read while they are written, and united in any order."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from onlooker import SavedFileError
from onlooker.capture.combine import combine, read_captured
from onlooker.capture.reader import read_process
from onlooker.capture.summary import summary_of
from onlooker.capture.writer import Writer
from recorded import recorder_of, written


def used(*sizes: int) -> tuple[torch.nn.Module, Callable[[], object]]:
    model = torch.nn.Linear(4, 2)
    return model, lambda: [model(torch.zeros(size, 4)) for size in sizes]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name, sizes in (("a", (2, 3)), ("b", (3, 3, 5)), ("c", (7,))):
        written(tmp_path / name, *used(*sizes))
    return [tmp_path / name for name in "abc"]


def test_what_is_read_is_what_was_called(tmp_path: Path) -> None:
    process = read_process(written(tmp_path, *used(2, 3, 3, 2)))
    (part,) = process.parts
    assert [(call.inputs.leaves[0].shape[0], call.count) for call in part.calls] == [(2, 2), (3, 2)]
    assert [(run.row, run.count) for run in part.runs] == [(0, 1), (1, 2), (0, 1)], "in their order"
    assert part.entry.model == "torch.nn.modules.linear.Linear"
    assert process.ended is not None


def test_every_beginning_of_a_file_can_be_read(tmp_path: Path) -> None:
    """A process may be ended, or be writing, anywhere."""
    path = written(tmp_path, *used(2, 3))
    whole, n_calls = path.read_bytes(), []
    for end in range(whole.index(b"\n") + 1, len(whole) + 1, 7):
        path.write_bytes(whole[:end])
        n_calls.append(read_process(path).n_calls)
    assert n_calls == sorted(n_calls)
    assert (n_calls[0], n_calls[-1]) == (0, 2)


def test_a_line_that_was_changed_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, *used(2, 3))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], b'{"nonsense": 1}', *lines[2:]]))
    with pytest.raises(SavedFileError, match=rf"{path.name}:3: it is no line") as caught:
        read_process(path)
    assert caught.value.slug == "file-damaged"


def test_a_file_that_grows_is_read_again(tmp_path: Path) -> None:
    model, _ = used()
    recorder, writer = recorder_of(model), Writer(str(tmp_path))
    for size in (2, 2, 6):
        recorder.watch(torch.nn.Linear.forward, (model, torch.zeros(size, 4)), {})
        writer.write([recorder])
    writer.close()
    assert [call.count for call in read_process(writer.path).parts[0].calls] == [2, 1]


def test_to_combine_is_associative_commutative_and_idempotent(folders: list[Path], tmp_path: Path) -> None:
    results = []
    for number, order in enumerate(itertools.permutations(folders)):
        into = tmp_path / f"into{number}"
        combine([order[0], order[1]], into)
        combine([into, order[2], order[0]], into)
        results.append(content(into))
    assert all(result == results[0] for result in results)
    assert results[0] == {name: text for folder in folders for name, text in content(folder).items()}
    (seen,) = read_captured(tmp_path / "into0").seen
    assert (seen.n_calls, len(seen.parts)) == (6, 3)
    assert {call.inputs.leaves[0].shape[0]: call.count for call in seen.recording.calls} == {2: 1, 3: 3, 5: 1, 7: 1}


def test_of_an_earlier_copy_the_longer_file_is_kept(folders: list[Path], tmp_path: Path) -> None:
    (path,) = folders[0].glob("*.jsonl")
    early = tmp_path / "early"
    early.mkdir()
    (early / path.name).write_bytes(path.read_bytes()[:-40])
    for order in ([early, folders[0]], [folders[0], early]):
        into = tmp_path / "into"
        shutil.rmtree(into, ignore_errors=True)
        combine(order, into)
        assert content(into) == content(folders[0])


def test_two_files_of_one_process_that_differ_are_refused(folders: list[Path], tmp_path: Path) -> None:
    (path,) = folders[0].glob("*.jsonl")
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes().replace(b'"pid"', b'"pid" '))
    with pytest.raises(SavedFileError, match="contradict") as caught:
        combine([folders[0], other], tmp_path / "into")
    assert caught.value.slug == "different-files"


def test_other_code_of_the_same_name_and_other_autocast_are_named(tmp_path: Path) -> None:
    def net(body: str) -> torch.nn.Module:
        space: dict[str, type[torch.nn.Module]] = {}
        exec(f"import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return {body}", space)
        return space["Net"]()

    one, two = net("x * 2"), net("x * 3")

    def under_autocast() -> None:
        with torch.autocast("cpu"):
            one(torch.zeros(2))

    written(tmp_path, one, lambda: one(torch.zeros(2)))
    written(tmp_path, one, under_autocast)
    written(tmp_path, two, lambda: two(torch.zeros(2)))
    found = read_captured(tmp_path).contradictions()
    assert len(found) == 2
    assert "Net.forward has 2 codes" in found[0]
    assert "under different autocast: no autocast in" in found[1]


def test_the_summary_has_axes_shares_and_silent_processes(tmp_path: Path) -> None:
    model, use = used(2, 3, 3)
    written(tmp_path, model, use)
    silent = written(tmp_path, *used())
    summary = summary_of(read_captured(tmp_path))
    (entry,) = [entry for entry in summary.entries if entry.calls]
    assert (entry.name, entry.calls, entry.different, entry.graphs) == ("Linear", 3, 2, 1)
    assert [(row.path, row.size, row.seen) for row in entry.axes] == [
        ("input.shape[0]", "batch", (2, 3)),
        ("input.shape[1]", "4", (4,)),
    ]
    pid = read_process(silent).pid
    assert f"0 calls seen in pid {pid}" in summary.text()
    assert "torch was imported, no module was called" in " ".join(summary.text().split())
    assert json.dumps(summary.to_dict())


def test_very_many_different_calls_are_bounded_in_the_file(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    path = written(tmp_path, model, lambda: [model(torch.zeros(n, 4)) for n in range(1, 400)], most_specs=8)
    (part,) = read_process(path).parts
    assert (len(part.calls), part.others, part.n_calls) == (8, 391, 399)
    assert path.stat().st_size < 8000


def test_no_file_of_a_process_is_said(tmp_path: Path) -> None:
    with pytest.raises(SavedFileError, match="no process of the program has imported torch"):
        read_captured(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"onlooker": "recording"}\n')
    with pytest.raises(SavedFileError, match="no file of a process"):
        read_captured(tmp_path)

"""Tables of all calls, and SQL on them: `make test-engines`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from onlooker import SavedFileError
from onlooker.capture.combine import read_captured
from onlooker.capture.tables import CALLS, PROCESSES, SIZES, write_tables
from onlooker.cli import main

sys.path.append(str(Path(__file__).parent.parent))
from recorded import written

pytest.importorskip("pyarrow")
duckdb = pytest.importorskip("duckdb")


class Net(torch.nn.Module):
    """Sizes of tensors and of an int; other code than that of :func:`other`."""

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return x * times


def other() -> torch.nn.Module:
    space: dict[str, Any] = {}
    exec("import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return x + 1", space)
    return space["Net"]()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    for name, sizes in (("a", (2, 3, 3, 2)), ("b", (3, 5))):
        model = Net()
        written(tmp_path / name, model, lambda model=model, sizes=sizes: [model(torch.zeros(n, 4), n) for n in sizes])
    model = other()
    written(tmp_path / "b", model, lambda: model(torch.zeros(7, 4)))
    few = Net()
    written(tmp_path / "c", few, lambda: [few(torch.zeros(n, 4)) for n in range(1, 9)], most_specs=3)
    return [tmp_path / name for name in "abc"]


def asked(question: str, folder: Path) -> list[tuple[Any, ...]]:
    names = {"calls": CALLS, "sizes": SIZES, "processes": PROCESSES}
    return duckdb.sql(question.format(**{name: f"'{folder / file}'" for name, file in names.items()})).fetchall()


def test_the_tables_have_what_the_files_have(folders: list[Path], tmp_path: Path) -> None:
    rows = write_tables([*folders, folders[0]], tmp_path / "tables")
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == sorted(rows)
    captured = read_captured(*folders)
    first, second = (seen.entry for seen in captured.seen if seen.name == "Net")
    names = {f"Net@{entry.code}" for entry in (first, second)} | {"Net"}
    totals = asked("select entry, sum(count), round(sum(seconds), 6) from {calls} group by 1", tmp_path / "tables")
    assert {entry for entry, *_ in totals} < names
    expected = sorted((seen.n_calls, round(seen.seconds, 6)) for seen in captured.seen)
    assert sorted((count, seconds) for _, count, seconds in totals) == expected

    of_net = next(entry for entry, count, _ in totals if count == 14)
    sizes = "select axis, size, sum(count) from {calls} join {sizes} using (entry, call) "
    sizes += f"where entry = '{of_net}' group by all"
    found = {(axis, size): count for axis, size, count in asked(sizes, tmp_path / "tables")}
    assert found["x.shape[0]", 3] == 4, "two of a, one of b, one of c"
    assert found["times", 2] == 2
    counted = asked("select sum(count) from {calls} where call = -1", tmp_path / "tables")
    assert counted == [(5,)], "calls after too many different ones"
    order = "select call from {calls} join {processes} using (process) where ordered and calls = 4 order by written"
    assert len(asked(order, tmp_path / "tables")) == 3, "two equal calls in a row are one row"
    hosts = asked(
        "select count(distinct process), sum(calls), min(ended is not null) from {processes}", tmp_path / "tables"
    )
    assert hosts == [(4, 15, True)]


def test_a_damaged_file_leaves_no_tables(folders: list[Path], tmp_path: Path) -> None:
    (path,) = folders[0].glob("*.jsonl")
    good = path.read_bytes()
    for run in (b'["a",1,1]', b"[1,2]", b"[0,99999999999999999999999,1]", b"[[0],1,1]", b"{}"):
        head, found, tail = good.partition(b'"runs":[')
        assert found
        path.write_bytes(head + found + run + b"," + tail)
        with pytest.raises(SavedFileError) as raised:
            write_tables(folders, tmp_path / "tables")
        assert raised.value.slug == "file-damaged"
        assert not list((tmp_path / "tables").iterdir())


def test_an_int_that_no_column_holds_has_no_size(tmp_path: Path) -> None:
    class Unread(torch.nn.Module):
        def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
            return x

    model = Unread()
    written(tmp_path / "a", model, lambda: [model(torch.zeros(2, 4), times) for times in (10**30, -5)])
    write_tables([tmp_path / "a"], tmp_path / "tables")
    found = asked("select size from {sizes} where axis = 'times' order by call", tmp_path / "tables")
    assert found == [(None,), (-5,)]


def test_the_command_writes_tables_here_and_at_a_url(folders: list[Path], tmp_path: Path) -> None:
    for place in (tmp_path / "tables", "memory://tables"):
        stdout, stderr = io.StringIO(), io.StringIO()
        words = ["combine", *map(str, folders), "--parquet", "--out", str(place), "--json"]
        assert main(words, stdout, stderr) == 0, stderr.getvalue()
        assert json.loads(stdout.getvalue())["rows"].keys() == {CALLS, SIZES, PROCESSES}
    import fsspec

    system, root = fsspec.core.url_to_fs("memory://tables")
    assert system.cat_file(f"{root}/{SIZES}") == (tmp_path / "tables" / SIZES).read_bytes()

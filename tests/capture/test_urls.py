"""Recordings at URLs: what a process leaves there, and what is combined from there."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from programs import NET

from onlooker import SavedFileError
from onlooker.capture import upload
from onlooker.capture.combine import combine, read_captured
from onlooker.capture.entry_point import entry_point
from onlooker.capture.process import Process
from onlooker.capture.settings import Settings
from onlooker.cli import main
from recorded import written


def command(*words: object) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    return main([str(word) for word in words], stdout, stderr), stdout.getvalue(), stderr.getvalue()


@pytest.fixture
def url() -> Iterator[str]:
    """A folder in memory that is not there yet."""
    name = f"memory://{uuid.uuid4().hex}/calls"
    yield name
    system, root = fsspec.core.url_to_fs(name)
    if system.exists(root):
        system.rm(root, recursive=True)


def there(url: str) -> dict[str, bytes]:
    system, root = fsspec.core.url_to_fs(url)
    return {path.rpartition("/")[2]: system.cat_file(path) for path in system.glob(f"{root}/*")}


def folder_of(place: Path, *sizes: int, **options: Any) -> Path:
    model = torch.nn.Linear(4, 2)
    return written(place, model, lambda: [model(torch.zeros(size, 4)) for size in sizes], **options)


def test_folders_and_urls_are_combined_alike(tmp_path: Path, url: str) -> None:
    paths = [folder_of(tmp_path / "a", 2, 3), folder_of(tmp_path / "b", 3, values=True)]
    values = next((tmp_path / "b").glob("*.safetensors"))
    expected = {path.name: path.read_bytes() for path in (*paths, values)}

    assert combine([tmp_path / "a"], url) == (paths[0].name,)
    assert len(combine([tmp_path / "b", url], url)) == 2
    assert there(url) == expected
    assert len(combine([url, tmp_path / "a"], tmp_path / "here")) == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == expected
    assert combine([url], f"file://{tmp_path}/again") == combine([tmp_path / "here"], url)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == expected


def test_the_commands_take_urls(tmp_path: Path, url: str) -> None:
    folder_of(tmp_path / "a", 2, 3)
    code, out, _ = command("combine", tmp_path / "a", "--out", url)
    assert (code, out.splitlines()[0]) == (0, f"1 processes in {url}")
    code, out, _ = command("report", url, "--json")
    assert (code, json.loads(out)["report"]["entries"][0]["calls"]) == (0, 2)
    assert f"combine {url}" in json.loads(out)["next"]


@pytest.mark.parametrize("place", ["memory://nothing-there", "nosuch://bucket/calls"])
def test_a_url_that_has_nothing_or_is_not_reached_is_named(place: str, tmp_path: Path) -> None:
    for words in (["report", place], ["combine", place, "--out", tmp_path / "out"]):
        code, _, err = command(*words)
        assert code == 1
        assert place in err
        assert f"[{'nothing-captured' if place.startswith('memory') else 'url-not-reached'}]" in err
    assert not (tmp_path / "out").exists()


def test_a_file_is_copied_as_it_grows_and_the_rest_at_the_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(Settings(url))
    model = torch.nn.Linear(4, 2)
    recorder = process.recorder_of(*entry_point(model, "forward"))

    def call(*sizes: int) -> None:
        for size in sizes:
            recorder.watch(torch.nn.Linear.forward, (model, torch.zeros(size, 4)), {})
        assert process.flush()
        process._copy()

    call(2)
    assert there(url) == {}, "not at every look"
    monkeypatch.setattr(upload, "_SOONEST", 0.0)
    call(3)
    (first,) = there(url).values()
    call(3)
    assert list(there(url).values()) == [first], "it has not grown by half"
    call(*range(4, 30))
    (second,) = there(url).values()
    assert second.startswith(first)
    assert len(second) > len(first)
    call(3)
    folder = process._upload.folder  # type: ignore[union-attr]
    process.end()
    (last,) = there(url).values()
    assert last.startswith(second)
    assert b'{"end":' in last
    assert not folder.exists()


def test_a_url_that_is_not_reached_costs_the_program_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise SavedFileError("no network", slug="url-not-reached")

    for name in ("put", "_copied_by_a_process"):
        monkeypatch.setattr(upload, name, refused)
    monkeypatch.setattr(upload, "_SOONEST", 0.0)
    process = Process(Settings(url))
    model = torch.nn.Linear(4, 2)
    recorder = process.recorder_of(*entry_point(model, "forward"))
    recorder.watch(torch.nn.Linear.forward, (model, torch.zeros(2, 4)), {})
    assert process.flush()
    process._copy()
    process.end()
    folder = process._upload.folder  # type: ignore[union-attr]
    (seen,) = read_captured(folder).seen
    assert seen.n_calls == 1, "its file is left where it was written"


def test_a_program_that_is_run_leaves_its_files_at_a_url(tmp_path: Path) -> None:
    code = "\nmodel = Net()\nwith torch.no_grad():\n    [model(torch.ones(n, 4)) for n in (2, 3, 3)]\n"
    (tmp_path / "app.py").write_text(NET + code)
    place = f"file://{tmp_path}/seen"
    words = [sys.executable, "-m", "onlooker", "run", "--out", place, "app.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (process,) = read_captured(tmp_path / "seen").processes
    assert (process.n_calls, process.ended is not None) == (3, True)
    code_of_run, _, err = command("run", "--out", place, "--at-exit", "--", "true")
    assert (code_of_run, "[bad-command-line]" in err) == (1, True)
    code_of_run, _, err = command("run", "--out", "nosuch://bucket", "--", "true")
    assert (code_of_run, "[url-not-reached]" in err) == (1, True)


#: a file system that works in threads, as those of object stores do
IN_THREADS = """
from concurrent.futures import ThreadPoolExecutor
from fsspec.implementations.local import LocalFileSystem

class InThreads(LocalFileSystem):
    protocol = "threads"

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("threads://").rstrip("/")

    def put_file(self, *arguments, **options):
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(super().put_file, *arguments, **options).result()
"""


@pytest.mark.slow
def test_a_file_system_that_works_in_threads_has_the_file_of_a_short_program(tmp_path: Path) -> None:
    """No thread begins while Python ends, which is when the last copy is made."""
    plugin = tmp_path / "plugin"
    about = plugin / "in_threads-1.0.dist-info"
    about.mkdir(parents=True)
    (plugin / "in_threads.py").write_text(IN_THREADS)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: in-threads\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fsspec.specs]\nthreads = in_threads:InThreads\n")
    (tmp_path / "app.py").write_text(NET + "\nNet()(torch.ones(2, 4))\n")
    places = os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": places.rstrip(os.pathsep), "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "onlooker", "run", "--out", f"threads://{tmp_path}/seen", "app.py"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (process,) = read_captured(tmp_path / "seen").processes
    assert (process.n_calls, process.ended is not None) == (1, True)
    assert not list(tmp_path.glob("onlooker-run-*"))


def test_a_report_needs_no_memory_for_the_order_of_calls(tmp_path: Path) -> None:
    folder_of(tmp_path, *([2, 3] * 50))
    ordered, summed = (read_captured(tmp_path, ordered=ordered).processes[0].parts[0] for ordered in (True, False))
    assert (len(ordered.runs), len(summed.runs)) == (100, 2)
    assert ordered.n_calls == summed.n_calls == 100
    assert [call.inputs for call in ordered.calls] == [call.inputs for call in summed.calls]
    assert ordered.seconds == pytest.approx(summed.seconds)


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("combine", "a", "--parquet", "--out", "tables"), "pyarrow.parquet", "tables"),
        (("run", "--metrics", "--", "true"), "opentelemetry.metrics", "opentelemetry"),
        (("mcp",), "mcp.server.mcpserver", "mcp"),
    ],
)
def test_an_extra_that_is_not_there_is_named(
    words: tuple[str, ...], package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder_of(tmp_path / "a", 2)
    monkeypatch.setitem(sys.modules, package, None)
    code, _, err = command(*words)
    assert code == 1
    assert f"needs {package}. Install it with: pip install 'onlooker[{extra}]'. [missing-package]" in err

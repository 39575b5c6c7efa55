"""A sweep: what its jobs are, what becomes of them, and that nothing is lost or done twice."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import onlooker
from onlooker.cli import main
from onlooker.fleet import work
from onlooker.fleet.job import EXPORT, jobs_of
from onlooker.fleet.table import Swept

FUNCTIONS = Path(__file__).with_name("functions.py")


def job(function: str, **arguments: Any) -> dict[str, Any]:
    return {"name": function, "run": f"{FUNCTIONS}:{function}", "arguments": arguments}


def numbered(count: int, **arguments: Any) -> list[dict[str, Any]]:
    return [{**job("counted", number=n, **arguments), "name": f"n{n}"} for n in range(count)]


def results(folder: Path, count: int) -> None:
    """Passes where every job has its whole result, and no file is half written."""
    for number in range(count):
        assert (folder / f"n{number}" / "result.txt").read_text() == str(number**2)
        row = json.loads((folder / f"n{number}" / work.ROW).read_text())["row"]
        assert (row["status"], row["square"]) == ("ok", number**2)
    left = [path.name for path in folder.rglob("*") if path.is_file()]
    # a process that is killed while it writes leaves the file that was to take the place of the other one
    whole = {name for name in left if not name.startswith(".job.json.")}
    assert whole == {"result.txt", "job.json", ".job.lock", "log.txt", "sweep.json", "sweep.html"}


# ------------------------------------------------------------------------------------- jobs


def build() -> None:
    """A function as an example of one that another process finds."""


def test_the_fields_of_a_job_are_the_options_of_an_export(tmp_path: Path) -> None:
    fields = {"build": "app.py:build", "to": ["torch", "onnx"], "range": ["n=1:8"], "no_probe": True, "atol": None}
    torch, onnx = jobs_of([fields], tmp_path, seconds=5)
    assert (torch.name, onnx.name, onnx.folder) == ("build/torch", "build/onnx", tmp_path / "build" / "onnx")
    assert onnx.run == EXPORT
    words = ["--no-probe", "--range", "n=1:8", "app.py:build", "--to", "onnx"]
    assert (onnx.arguments, onnx.seconds, onnx.memory) == ({"words": words}, 5.0, None)
    named = jobs_of({"llama": {"model": "models/llama", "memory": 8}}, tmp_path)
    assert [(one.name, one.memory, one.arguments["words"]) for one in named] == [
        ("llama", 8.0, ["--model", "models/llama", "--to", "torch"])
    ]
    calls = {"source": "calls.json", "build": build}
    (recorded,) = jobs_of([calls], tmp_path)
    assert recorded.arguments["words"] == ["--build", f"{__name__}:build", "calls.json", "--to", "torch"]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([{"to": "onnx"}], "A job has to, and nothing to export. Name what it exports"),
        ([{"build": "a.py:b"}, {"build": "c.py:b"}], "Two jobs are called 'b'"),
        ([{"build": "a.py:b", "name": "../b"}], "no name for a folder"),
        ([{"build": "a.py:b", "out": "here"}], "which the sweep itself decides"),
        ([{"build": "a.py:b", "seconds": 0}], "The limit seconds of a job is 0"),
        ([{"build": lambda: None}], "Another process cannot find"),
        ([{"run": "a.py:b", "range": ["n=1:8"]}], "has the field 'range'. Put it into 'arguments'"),
        ([{"run": "a.py:b", "arguments": {"x": {1}}}], "cannot be written as JSON"),
        (["a.py:b"], "A job"),
    ],
)
def test_a_job_that_cannot_be_meant_is_an_error(jobs: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(onlooker.OnlookerError, match=message.replace("(", r"\(")):
        onlooker.sweep(jobs, into=tmp_path)
    assert not list(tmp_path.iterdir())


def test_workers_is_a_number(tmp_path: Path) -> None:
    with pytest.raises(onlooker.OnlookerError, match="workers is 0"):
        onlooker.sweep(numbered(1), into=tmp_path, workers=0)


# ------------------------------------------------------------------------------------- rows


def test_what_ends_in_a_job_costs_that_job_alone(tmp_path: Path) -> None:
    names = ("dies", "refuses", "raises", "returns_a_set", "computes", "allocates", "absent")
    found = onlooker.sweep([*map(job, names), *numbered(2)], into=tmp_path, workers=2, seconds=1, memory=64)
    rows = {row["name"]: row for row in found.rows}
    assert [row["name"] for row in found.rows] == [*names, "n0", "n1"]
    assert {name: row["status"] for name, row in rows.items()} == {
        "dies": "died", "refuses": "error", "raises": "crash", "returns_a_set": "crash", "computes": "timeout",
        "allocates": "memory", "absent": "error", "n0": "ok", "n1": "ok",
    }  # fmt: skip
    assert rows["dies"]["message"] == "the process died in the middle (exit code -9)"
    assert rows["dies"]["half"] == 1, "what it noted"
    assert rows["computes"]["message"] == "more than 1 seconds of the processor, in a loop"
    assert rows["refuses"]["message"] == "It cannot be meant. Mean it."
    assert "ZeroDivisionError" in (tmp_path / "raises" / "log.txt").read_text()
    assert not found.holds
    assert found.verdict.startswith("2 of 9 jobs: 1 died, 2 error, 2 crash")
    assert json.loads((tmp_path / "sweep.json").read_text()) == found.to_dict()
    assert "<td>refuses</td><td>error</td>" in (tmp_path / "sweep.html").read_text()
    again = onlooker.sweep([*map(job, names), *numbered(2)], into=tmp_path, workers=2, seconds=1, memory=64)
    assert [row["name"] for row in again.rows if not row.get("kept")] == ["dies"]


def test_a_text_of_a_user_is_only_a_text() -> None:
    found = Swept(({"name": "a", "status": "crash", "message": "<script>[red]"},))
    assert "&lt;script&gt;" in found.html()
    assert "<script>[red]" in found.text()


@pytest.mark.slow
def test_a_job_that_waits_has_an_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = onlooker.sweep([job("beats", log=str(tmp_path / "log"))], into=tmp_path / "s", seconds=0.05)
    (row,) = found.rows
    assert row["status"] == "timeout"
    assert "on the clock" in row["message"]


# ------------------------------------------------------------------------- kept, and again


def test_a_folder_that_is_whole_is_kept(tmp_path: Path) -> None:
    log = str(tmp_path / "log")

    def swept(count: int = 4, **options: Any) -> list[str]:
        before = Path(log).read_text().splitlines() if Path(log).exists() else []
        assert onlooker.sweep(numbered(count, log=log), into=tmp_path / "s", workers=2, **options).holds
        return sorted(Path(log).read_text().splitlines()[len(before) :])

    assert swept() == ["0", "1", "2", "3"]
    assert swept() == []
    assert swept(5) == ["4"]
    (tmp_path / "s" / "n1" / "result.txt").unlink()
    (tmp_path / "s" / "n2" / work.ROW).write_text('{"onlooker": "jo')
    (tmp_path / "s" / "n3" / work.ROW).unlink()
    assert swept() == ["1", "2", "3"]
    assert swept(2, redo=True) == ["0", "1"]
    changed = onlooker.sweep([{**job("counted", number=7), "name": "n0"}], into=tmp_path / "s")
    assert changed.rows[0]["square"] == 49


@pytest.mark.slow
def test_another_limit_is_another_chance(tmp_path: Path) -> None:
    first = onlooker.sweep([job("computes")], into=tmp_path, seconds=1)
    assert onlooker.sweep([job("computes")], into=tmp_path, seconds=1).rows[0]["kept"]
    second = onlooker.sweep([job("computes")], into=tmp_path, seconds=2)
    assert [first.rows[0]["status"], second.rows[0]["status"]] == ["timeout", "timeout"]
    assert not second.rows[0].get("kept")


def test_two_sweeps_at_once_do_nothing_twice(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    jobs = numbered(12, log=log, seconds=0.05)
    with ThreadPoolExecutor(2) as pool:
        sweeps = [pool.submit(onlooker.sweep, jobs, ThreadPoolExecutor(2), into=tmp_path / "s") for _ in range(2)]
        assert all(one.result().holds for one in sweeps)
    assert sorted(map(int, Path(log).read_text().splitlines())) == list(range(12))


def processes_of(parent: int, *, named: str) -> list[int]:
    """The processes below another one whose command line has a word."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True)
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()[1:]]
    below, found = {parent}, []
    for _ in rows:
        below |= {int(pid) for pid, of, _ in rows if int(of) in below}
    found = [int(pid) for pid, _, words in rows if int(pid) in below and named in words]
    return [pid for pid in found if pid != parent]


class Killer:
    """Kills one of some processes after another, while a block runs."""

    def __init__(self, victims: Callable[[], list[int]], times: int) -> None:
        self.victims, self.times, self.killed = victims, times, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._kill)

    def _kill(self) -> None:
        while self.killed < self.times and not self._ended.wait(0.3):
            for pid in self.victims()[:1]:
                os.kill(pid, signal.SIGKILL)
                self.killed += 1

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.slow
def test_300_jobs_whose_processes_are_killed_in_the_middle(tmp_path: Path) -> None:
    jobs = numbered(300, seconds=0.01)
    with Killer(lambda: processes_of(os.getpid(), named="onlooker.fleet.host"), 4) as killer:
        first = onlooker.sweep(jobs, into=tmp_path, workers=2)
    assert killer.killed == 4
    died = [row["name"] for row in first.rows if row["status"] == "died"]
    assert 1 <= len(died) <= 4, "each costs the job that it ran"
    assert first.counts == {"ok": 300 - len(died), "died": len(died)}
    again = onlooker.sweep(jobs, into=tmp_path, workers=2)
    assert again.holds
    assert [row["name"] for row in again.rows if not row.get("kept")] == died
    results(tmp_path, 300)


def pool() -> ProcessPoolExecutor:
    import multiprocessing

    return ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))


@pytest.mark.slow
def test_a_pool_of_processes_that_breaks_is_made_anew(tmp_path: Path) -> None:
    made: list[ProcessPoolExecutor] = []

    def make() -> ProcessPoolExecutor:
        made.append(pool())
        return made[-1]

    def workers() -> list[int]:
        return list(made[-1]._processes or ()) if made and any(tmp_path.glob("n*/job.json")) else []

    with Killer(workers, 1) as killer:
        # long enough for a busy machine to kill one of them in the middle
        found = onlooker.sweep(numbered(40, seconds=0.2), make, into=tmp_path)
    assert killer.killed == 1
    assert len(made) == 2
    assert found.holds
    results(tmp_path, 40)


@pytest.mark.slow
def test_jobs_of_a_pool_that_breaks_for_good_are_lost_and_found_again(tmp_path: Path) -> None:
    jobs = numbered(30, seconds=0.05)
    with pool() as once:
        with Killer(lambda: list(once._processes) if any(tmp_path.glob("n*/job.json")) else [], 1):
            found = onlooker.sweep(jobs, once, into=tmp_path)
        assert set(found.counts) == {"ok", "lost"}
        assert "BrokenProcessPool" in next(row["message"] for row in found.rows if row["status"] == "lost")
    assert onlooker.sweep(jobs, into=tmp_path, workers=2).holds
    results(tmp_path, 30)


class Submitted:
    """As a job of submitit: no future, but it has ``done`` and ``result``."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.result, self.looked = lambda: function(*arguments), 0

    def done(self) -> bool:
        self.looked += 1
        return self.looked > 1

    def cancel(self) -> None:
        raise AssertionError("it has ended")


class Submitting:
    def submit(self, function: Callable[..., Any], *arguments: Any) -> Submitted:
        return Submitted(function, arguments)


def test_what_submits_is_enough_of_an_executor(tmp_path: Path) -> None:
    assert onlooker.sweep(numbered(3), Submitting(), into=tmp_path).holds
    results(tmp_path, 3)


@pytest.fixture
def sweeping(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a sweep of two jobs that beat."""
    jobs = [{**job("beats", log=str(tmp_path / f"beat{n}")), "name": f"b{n}"} for n in range(2)]
    script = f"import onlooker; onlooker.sweep({jobs!r}, into={str(tmp_path / 's')!r}, workers=2)"
    process = subprocess.Popen([sys.executable, "-c", script])
    yield process
    process.kill()
    process.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_jobs_of_a_parent_that_is_killed_end_too(sweeping: subprocess.Popen[bytes], tmp_path: Path) -> None:
    beats = [tmp_path / f"beat{n}" for n in range(2)]
    wait_until(lambda: all(map(Path.exists, beats)))
    sweeping.kill()
    sweeping.wait()
    wait_until(lambda: all(time.time() - path.stat().st_mtime > 1.5 for path in beats), 20)
    assert not list((tmp_path / "s").glob("*/job.json")), "no job has ended"
    with ThreadPoolExecutor(2) as threads:
        again = [{**job("counted", number=n), "name": f"b{n}"} for n in range(2)]
        assert onlooker.sweep(again, threads, into=tmp_path / "s").holds, "no lock is left"
    work.close_hosts()


# ---------------------------------------------------------------------------------- command

APP = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1).eval()
    return model, lambda: [model(torch.randn(batch, 4)) for batch in (2, 3)]
"""


def run(*words: str) -> tuple[int, dict[str, Any]]:
    stdout = io.StringIO()
    code = main([*words, "--quiet", "--json"], stdout, io.StringIO())
    return code, json.loads(stdout.getvalue())


@pytest.mark.slow
def test_a_file_of_jobs_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.py").write_text(APP)
    jobs = {"linear": {"build": "app.py:build"}, "absent": {"build": "app.py:absent"}}
    Path("jobs.json").write_text(json.dumps({"defaults": {"seconds": 300}, "jobs": jobs}))
    code, found = run("sweep", "jobs.json", "--workers", "1", "--out", "out")
    linear, absent = found["rows"]
    assert code == 2
    assert (linear["status"], linear["graphs"]) == ("verified", 1)
    passed, _, total = linear["checks"].partition("/")
    assert passed == total
    assert (absent["status"], absent["slug"]) == ("error", "bad-function")
    assert found["next"].endswith("export app.py:absent --to torch")
    assert onlooker.load("out/linear/program").report.verified
    Path("out/linear/program/plan.json").unlink()
    documents = [one.document for one in jobs_of(jobs, tmp_path / "out")]
    assert [work.kept_row(document) is not None for document in documents] == [False, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[jobs.a]\nbuild = 'app.py:build'\nrnage = 'n=1:8'", "a: Unrecognized arguments: --rnage"),
        ("[jobs.a]\nbuild = ", "cannot be read"),
        ("[job.a]\nbuild = 'app.py:build'", "has no jobs, or more than jobs and defaults"),
    ],
)
def test_a_file_that_holds_no_jobs_is_an_error(text: str, message: str, tmp_path: Path) -> None:
    pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    (tmp_path / "jobs.toml").write_text(text)
    code, found = run("sweep", str(tmp_path / "jobs.toml"), "--out", str(tmp_path / "out"))
    assert code == 1
    assert message in found["error"]["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_sweep_imports_no_torch_itself() -> None:
    imports = "import sys, onlooker, onlooker.cli.work.sweep, onlooker.fleet.host"
    script = f"{imports}; onlooker.sweep; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

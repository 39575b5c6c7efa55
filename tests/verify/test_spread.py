"""Trials in other processes: the tally is that of one process, whatever becomes of the others."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import spread_models
import torch

import onlooker
from onlooker.cli import main
from onlooker.core.verdict import Tally
from onlooker.keep import worker
from onlooker.verify import effort
from onlooker.verify import verify as verifying

MODELS = Path(spread_models.__file__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with the values of its calls."""
    model, observer = spread_models.plain(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4))
    place = tmp_path_factory.mktemp("spread") / "program"
    observer.export().save(place, values=True)
    return place


def verify(folder: Path, build: Callable[[], Any], executor: Any = None, **options: Any) -> Tally:
    """The tally of a program that is loaded for it, so that nothing is left of one before."""
    if executor is not None:
        options |= {"executor": executor, "build": f"{MODELS}:{build.__name__}"}
    return onlooker.load(folder).verify(model=build(), **options)


class Backwards:
    """An executor of this process: it runs the last thing first, when somebody asks for a result."""

    def __init__(self, lost: Sequence[int] = (), workers: int | None = None) -> None:
        self.lost, self.jobs, self._max_workers = lost, list[Any](), workers

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Backwards.Job:
        self.jobs.append(Backwards.Job(self, len(self.jobs), lambda: function(*arguments)))
        return self.jobs[-1]

    class Job(Future):  # type: ignore[type-arg]
        def __init__(self, pool: Backwards, number: int, run: Callable[[], Any]) -> None:
            super().__init__()
            self.pool, self.number, self.run = pool, number, run

        def result(self, timeout: float | None = None) -> Any:
            for job in reversed(self.pool.jobs):
                if not job.done() and job.number not in self.pool.lost:
                    job.set_result(job.run())
            if self.number in self.pool.lost:
                raise ConnectionError("the worker has gone")
            return super().result(0)


@pytest.mark.parametrize("workers", [None, 10])
@pytest.mark.parametrize("lost", [(), (0, 3), range(99)], ids=["none", "some", "all"])
@pytest.mark.one_in(2)
def test_the_tally_is_that_of_one_process_in_any_order(folder: Path, lost: Sequence[int], workers: int | None) -> None:
    expected = verify(folder, spread_models.plain)
    pool = Backwards(lost, workers)
    assert verify(folder, spread_models.plain, pool) == expected
    assert expected.verified
    assert len(pool.jobs) > 10


def test_most_trials_are_made_by_the_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    tried, alone = verifying._tried, worker.try_alone
    monkeypatch.setattr(verifying, "_tried", lambda *arguments: made.append(True) or tried(*arguments))
    monkeypatch.setattr(
        worker, "try_alone", lambda *arguments, **options: [made.pop() and one for one in alone(*arguments, **options)]
    )
    total = verify(folder, spread_models.plain).total
    in_one = len(made)
    made.clear()
    assert verify(folder, spread_models.plain, Backwards()).total == total
    assert len(made) < in_one / 4, "only what the model or the program refuses, and the repeated trial"


def test_this_process_makes_what_no_worker_has_begun(folder: Path) -> None:
    expected = verify(folder, spread_models.plain)
    pool = Backwards(workers=1)
    assert verify(folder, spread_models.plain, pool) == expected
    assert len(pool.jobs) == 2, "one worker has two parts, and none of them has ended"


def test_workers_that_end_are_given_further_parts(folder: Path) -> None:
    expected = verify(folder, spread_models.plain)

    class AtOnce(Backwards):
        def submit(self, *arguments: Any) -> Any:
            job = super().submit(*arguments)
            job.result()
            return job

    pool = AtOnce(workers=1)
    assert verify(folder, spread_models.plain, pool) == expected
    assert len(pool.jobs) > 10
    assert len(pool.jobs) < 32


def test_a_worker_keeps_as_many_trials_as_memory_allows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = verify(folder, spread_models.plain)
    monkeypatch.setattr(worker, "_MOST_BYTES", 300)
    assert verify(folder, spread_models.plain, Backwards()) == expected


def test_threads_of_this_process_make_trials_too(folder: Path) -> None:
    expected = verify(folder, spread_models.plain, trials=80)
    with ThreadPoolExecutor(3) as threads:
        assert verify(folder, spread_models.plain, threads, trials=80) == expected


@pytest.mark.parametrize(
    "options",
    [{"seed": 3}, {"trials": 60}, {"trials": 1}, {"sizes": {"batch": [9, 30]}}, {"agreement": 0.5}],
    ids=lambda options: "-".join(options),
)
@pytest.mark.one_in(2)
def test_what_is_asked_of_trials_reaches_the_workers(folder: Path, options: dict[str, Any]) -> None:
    expected = verify(folder, spread_models.plain, **options)
    assert verify(folder, spread_models.plain, Backwards(), **options) == expected


def test_a_bound_of_work_leaves_out_the_same_trials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_OF_MODULE", 1), ("_OF_OPERATOR", 1), ("_OF_LEAST", 1), ("_OF_WATCHED", 2)):
        monkeypatch.setattr(effort, name, value)
    expected = verify(folder, spread_models.plain)
    assert expected.left_out
    pool = Backwards()
    assert verify(folder, spread_models.plain, pool) == expected


@pytest.mark.parametrize("workers", [None, 1, 12])
def test_what_is_wrong_is_wrong_in_the_same_words(folder: Path, workers: int | None) -> None:
    expected = verify(folder, spread_models.later)
    assert not expected.verified
    assert verify(folder, spread_models.later, Backwards(workers=workers)) == expected


@pytest.mark.parametrize(
    ("build", "message"), [("other", "other has other weights"), ("broken", "ValueError: no weights are here")]
)
def test_another_model_in_a_worker_is_an_error(folder: Path, build: str, message: str) -> None:
    program = onlooker.load(folder)
    with pytest.raises(onlooker.OnlookerError, match=message.replace(" has", " gives there has")) as caught:
        program.verify(model=spread_models.plain(), executor=Backwards(), build=f"{MODELS}:{build}")
    assert caught.value.slug == "bad-worker"
    assert not program.tally.total


@pytest.mark.parametrize(
    ("options", "slug"),
    [
        ({"executor": Backwards()}, "bad-worker"),
        ({"executor": 3, "build": spread_models.plain}, "bad-worker"),
        ({"executor": Backwards(), "build": "absent.py:build"}, "bad-function"),
        ({"executor": Backwards(), "build": lambda: None}, "bad-function"),
    ],
)
def test_workers_that_cannot_be_meant_are_an_error(folder: Path, options: dict[str, Any], slug: str) -> None:
    with pytest.raises(onlooker.OnlookerError) as caught:
        onlooker.load(folder).verify(model=spread_models.plain(), **options)
    assert caught.value.slug == slug


def test_the_names_of_files_are_as_before(folder: Path) -> None:
    program = onlooker.load(folder)
    before = [graph.file for graph in program.graphs]
    program.verify(model=spread_models.plain(), executor=Backwards(), build=f"{MODELS}:plain")
    assert [graph.file for graph in program.graphs] == before


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as workers:
        yield workers


@pytest.mark.slow
def test_processes_make_the_trials_and_one_may_be_killed(folder: Path, pool: ProcessPoolExecutor) -> None:
    expected = verify(folder, spread_models.plain, trials=80)
    assert verify(folder, spread_models.plain, pool, trials=80) == expected

    class Killing:
        """Kills a worker when half of the trials are given away."""

        def __init__(self) -> None:
            self.count = 0

        def submit(self, *arguments: Any) -> Any:
            self.count += 1
            future = pool.submit(*arguments)
            if self.count == 8:
                os.kill(next(iter(pool._processes)), signal.SIGKILL)
            return future

    assert verify(folder, spread_models.plain, Killing(), trials=80) == expected


@pytest.mark.slow
def test_the_command_takes_workers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(MODELS.parent)

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        stdout = io.StringIO()
        code = main(
            ["verify", str(folder), "--build", "spread_models.py:plain", *words, "--json"], stdout, io.StringIO()
        )
        return code, json.loads(stdout.getvalue())

    (code, one), (again, two) = run(), run("--workers", "2")
    assert code == again == 0
    assert (two["passed"], two["total"]) == (one["passed"], one["total"])
    assert run("--workers", "0")[1]["error"]["slug"] == "bad-workers"

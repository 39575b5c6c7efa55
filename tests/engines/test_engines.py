"""Sweeps and verifications on the engines of others, where these are installed: `make test-engines`."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import onlooker

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(500)]

ROOT = Path(__file__).parent.parent
FUNCTIONS = ROOT / "fleet" / "functions.py"
MODELS = ROOT / "verify" / "spread_models.py"
COUNT = 60


def numbered(seconds: float = 0.05) -> list[dict[str, Any]]:
    given = {"run": f"{FUNCTIONS}:counted"}
    return [{**given, "name": f"n{n}", "arguments": {"number": n, "seconds": seconds}} for n in range(COUNT)]


def check(swept: Any, folder: Path) -> None:
    assert swept.holds, swept.text()
    for number in range(COUNT):
        assert (folder / f"n{number}" / "result.txt").read_text() == str(number**2)
        assert json.loads((folder / f"n{number}" / "job.json").read_text())["row"]["square"] == number**2


class KilledOnce:
    """Kills a process in the middle of a block, once some jobs have ended."""

    def __init__(self, folder: Path, victim: Callable[[], int]) -> None:
        self._thread = threading.Thread(target=self._kill, args=(folder, victim))
        self._end, self.killed = threading.Event(), 0

    def _kill(self, folder: Path, victim: Callable[[], int]) -> None:
        while not self._end.wait(0.05):
            if len(list(folder.glob("n*/job.json"))) >= 5:
                os.kill(victim(), signal.SIGKILL)
                self.killed += 1
                return

    def __enter__(self) -> KilledOnce:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a cluster of Dask of two processes."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def test_dask_whose_worker_is_killed(client: Any, tmp_path: Path) -> None:
    pids = list(client.run(os.getpid).values())
    with KilledOnce(tmp_path, lambda: pids[0]) as killer:
        swept = onlooker.sweep(numbered(), client.get_executor(), into=tmp_path)
    assert killer.killed == 1
    check(swept, tmp_path)


def test_loky_whose_worker_is_killed(tmp_path: Path) -> None:
    loky = pytest.importorskip("loky")
    made: list[Any] = []

    def make() -> Any:
        made.append(loky.get_reusable_executor(2, timeout=60, kill_workers=bool(made)))
        return made[-1]

    with KilledOnce(tmp_path, lambda: next(iter(made[-1]._processes))) as killer:
        swept = onlooker.sweep(numbered(), make, into=tmp_path)
    assert killer.killed == 1
    check(swept, tmp_path)


def test_the_local_executor_of_submitit(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit")
    executor = submitit.AutoExecutor(tmp_path / "slurm", cluster="local")
    executor.update_parameters(timeout_min=5)
    swept = onlooker.sweep(numbered(0.0)[:4], executor, into=tmp_path / "s")
    assert swept.counts == {"ok": 4}, swept.text()
    again = onlooker.sweep(numbered(0.0)[:4], executor, into=tmp_path / "s")
    assert all(row["kept"] for row in again.rows)


def test_trials_on_dask_and_on_loky(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loky = pytest.importorskip("loky")
    monkeypatch.syspath_prepend(str(MODELS.parent))
    import spread_models

    model, observer = spread_models.plain(), onlooker.InputObserver()
    with observer(model), torch.no_grad():
        for batch, length in ((2, 5), (3, 7)):
            model(torch.randn(batch, length, 4))
    observer.export().save(tmp_path / "program", values=True)

    def verify(**options: Any) -> Any:
        return onlooker.load(tmp_path / "program").verify(model=model, trials=40, **options)

    expected = verify()
    for executor in (client.get_executor(), loky.get_reusable_executor(2, timeout=60, kill_workers=True)):
        begin = time.monotonic()
        assert verify(executor=executor, build=f"{MODELS}:plain") == expected
        assert time.monotonic() - begin < 300
    assert expected.verified

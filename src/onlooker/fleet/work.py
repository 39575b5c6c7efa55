"""What a worker of an executor does: it runs one job in its folder, unless the folder is whole."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import SavedFileError
from ..core.support.locks import lock_of
from ..core.versions import __version__
from ..disk.files import read_file, write_file
from ..disk.manifest import MANIFEST, is_ours
from ..disk.text import read_json, write_json
from .job import failed

__all__ = ["ROW", "close_hosts", "kept_row", "run_job"]

#: the file of a row, which is written last
ROW = "job.json"
_LOCK = ".job.lock"
#: what is no answer about a job: it is run again
_NO_ANSWER = frozenset({"died", "lost"})
#: what another limit may change
_LIMITED = frozenset({"timeout", "memory"})


def run_job(document: Mapping[str, Any], redo: bool = False) -> dict[str, Any]:
    """The row of a job. It is that of its folder, where this job has left a whole one there; else the
    job is run in a process of its own, and its row is written, last and at once.

    Another worker that has the same job is waited for.
    """
    from filelock import FileLock

    folder = Path(document["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder / _LOCK)):
        kept = None if redo else kept_row(document)
        if kept is not None:
            return kept
        row = {"name": document["name"], **_run(document), "day": time.strftime("%Y-%m-%d")}
        written = {
            "onlooker": "job",
            "version": __version__,
            "digest": document["digest"],
            "limits": [document["seconds"], document["memory"]],
            "row": row,
        }
        write_file(folder / ROW, write_json(written))
    return row


def kept_row(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row in the folder of a job, where it is an answer about this job and all files are there."""
    folder = Path(document["folder"])
    try:
        found = read_json(read_file(folder / ROW), str(folder / ROW))
    except SavedFileError:
        return None
    if not isinstance(found, dict) or found.get("onlooker") != "job":
        return None
    row = found.get("row")
    if not isinstance(row, dict) or found.get("digest") != document["digest"]:
        return None
    status, limits = row.get("status"), [document["seconds"], document["memory"]]
    if status in _NO_ANSWER or (status in _LIMITED and found.get("limits") != limits):
        return None
    return {**row, "kept": True} if all(map(_is_whole, map(folder.joinpath, _files(row)))) else None


def _files(row: Mapping[str, Any]) -> list[str]:
    files = row.get("files", [])
    return [str(file) for file in files] if isinstance(files, list) else []


def _is_whole(place: Path) -> bool:
    return is_ours(place, whole=True) if (place / MANIFEST).exists() else place.exists()


class _Host:
    """A process that runs jobs one after the other; see :mod:`onlooker.fleet.host`."""

    def __init__(self) -> None:
        environment = {"OMP_NUM_THREADS": "1", **os.environ}  # jobs stand side by side
        self._process = subprocess.Popen(
            [sys.executable, "-m", "onlooker.fleet.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def row_of(self, document: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of a job; None where this process ended instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(dict(document)).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if line.endswith(b"\n"):
                row: dict[str, Any] = json.loads(line)
                return row
        return None

    def end(self) -> int:
        """Ends the process, with the job that it runs; gives its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            return self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self) -> int:
        """As :meth:`end`, for a process from which nobody reads."""
        code = self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


_idle: list[_Host] = []
_busy: list[_Host] = []
_lock = lock_of(sys.modules[__name__])


def _run(document: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a job, from a host of this process: a new one, where none is idle."""
    begin = time.monotonic()
    with _lock:
        host = _idle.pop() if _idle else _Host()
        _busy.append(host)
    row = host.row_of(document)
    with _lock:
        is_ended = host not in _busy
        if not is_ended:
            _busy.remove(host)
        if row is not None and not is_ended:
            _idle.append(host)
    if row is not None:
        return row
    text = f"the process that runs jobs here was ended (exit code {host.close()})"
    seconds = round(time.monotonic() - begin, 1)
    return {**failed("died", text, slug="job-died"), "seconds": seconds}


@atexit.register
def close_hosts() -> None:
    """Ends the processes that run jobs for this one, with what they are doing."""
    with _lock:
        idle, busy = [*_idle], [*_busy]
        _idle.clear()
        _busy.clear()
    for host in busy:
        host.end()  # the thread that waits for its row closes it
    for host in idle:
        host.close()

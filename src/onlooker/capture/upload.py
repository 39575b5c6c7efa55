"""The files of a process at a URL: written here first, and copied there whole as they grow."""

from __future__ import annotations

import _thread
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ..disk.urls import put
from .settings import VARIABLE

__all__ = ["Upload", "main"]

#: seconds between two copies at least, and seconds after which a file that grew is copied anyhow
_SOONEST, _LATEST = 5.0, 600.0
#: a file is copied when it has grown by this part, so that all copies of it are 3 times the last at most
_GROWTH = 1.5
#: seconds that a process has for the last copy
_LAST = 120.0


class Upload:
    """Copies the files in ``folder``, which is new and of this process, to a URL."""

    def __init__(self, url: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="onlooker-run-"))
        self._url = url
        self._sizes: dict[str, int] = {}
        self._last = time.monotonic()
        self._lock = _thread.allocate_lock()

    def look(self, *, everything: bool = False) -> None:
        """Copies the files that have grown enough, or ``everything`` that has changed.

        A file system that cannot be reached is tried again by the next look.
        """
        since = time.monotonic() - self._last
        if since < _SOONEST and not everything:
            return
        least = 1.0 if everything or since > _LATEST else _GROWTH
        with self._lock:
            changed = {path: path.stat().st_size for path in self.folder.iterdir()}
            grown = [
                path
                for path, size in changed.items()
                if size > least * self._sizes.get(path.name, 0)
            ]
            self._last = time.monotonic()
            put(grown, self._url)
            self._sizes.update({path.name: changed[path] for path in grown})

    def finish(self) -> None:
        """Copies what is left, and removes the files here; they stay where the URL is not reached.

        File systems that work in threads cannot begin any while Python ends: then another process
        copies.
        """
        try:
            self.look(everything=True)
        except Exception:
            with contextlib.suppress(Exception):
                _copied_by_a_process(self.folder, self._url)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def _copied_by_a_process(folder: Path, url: str) -> None:
    """Copies a folder to a URL, and removes it, in a process that is not watched."""
    home = str(Path(__file__).parent.parent.parent)
    places = [home, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    environment.pop(VARIABLE, None)
    subprocess.run(
        [sys.executable, "-m", __name__, str(folder), url],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_LAST,
        check=False,
    )


def main(folder: str, url: str) -> None:
    """Copies the files of a folder to a URL, and removes them here."""
    put(sorted(Path(folder).iterdir()), url)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The files of a process at a URL: written here first, and copied there whole as they grow."""

from __future__ import annotations

import _thread
import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from ..disk.urls import put

__all__ = ["Upload"]

#: seconds between two copies at least, and seconds after which a file that grew is copied anyhow
_SOONEST, _LATEST = 5.0, 600.0
#: a file is copied when it has grown by this part, so that all copies of it are 3 times the last at most
_GROWTH = 1.5


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
        """Copies what is left, and removes the files here; they stay where the URL is not reached."""
        with contextlib.suppress(Exception):
            self.look(everything=True)
            shutil.rmtree(self.folder, ignore_errors=True)

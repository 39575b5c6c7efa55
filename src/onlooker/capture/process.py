"""The recorders of this process, and what writes them: at least every second while there are calls.

A thread writes, and it lives only while there is something to write. It ends before a fork, so that
no child has half of a line, or a lock that nobody holds; a child begins anew, with a file of its own.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import inspect
import os
import sys
from typing import Any

from ..core.support.locks import lock_of
from ..disk.urls import is_url
from .entry_point import EntryPoint
from .metrics import SizeMetrics
from .recorder import EntryRecorder
from .settings import Settings
from .upload import Upload
from .writer import Writer

__all__ = ["Process"]

#: seconds between two looks; a look without calls that came since ends the thread
_INTERVAL = 1.0


class Process:
    """The recorder of one process."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._parent: int | None = None
        self._pid = os.getpid()
        self._reset()

    def _reset(self) -> None:
        self._lock = lock_of(self)
        self.by_class: dict[tuple[type, str], EntryRecorder] = {}
        self._by_entry: dict[tuple[str, str, str], EntryRecorder] = {}
        self._recorders: list[EntryRecorder] = []
        self._writer: Writer | None = None
        self._upload: Upload | None = None
        self._has_failed = False
        self._is_running = False
        self._stop = _thread.allocate_lock()
        self._is_at_end = False
        self._is_closed = False
        self._has_finalizer = False

    def begin(self) -> None:
        """Makes the file, so that a process without a call is known, and writes until the end."""
        self.flush(begins=True)
        atexit.register(self.end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_child=self._after_in_child)

    @property
    def lock(self) -> Any:
        """Held while recorders are made, and while they are written."""
        return self._lock

    def recorder_of(self, entry: EntryPoint, signature: inspect.Signature) -> EntryRecorder:
        """The recorder of an entry point; ``lock`` is held."""
        key = (entry.model, entry.method, entry.code)
        found = self._by_entry.get(key)
        if found is None:
            found = self._by_entry[key] = EntryRecorder(
                entry,
                signature,
                most_specs=self.settings.most_specs,
                keeps_values=self.settings.values == "first",
            )
            self._recorders.append(found)
        return found

    @property
    def recorders(self) -> list[EntryRecorder]:
        """The recorders, in the order in which they were made."""
        return list(self._recorders)

    def wake(self) -> None:
        """A call has returned: it is written within a second."""
        if not self._is_running and not self._has_failed:
            with contextlib.suppress(RuntimeError):  # no new thread when Python comes to its end
                self._is_running = True
                self._stop = _thread.allocate_lock()
                self._stop.acquire()
                self._write_at_the_end_of_workers()
                _thread.start_new_thread(self._write_on, (self._stop,))

    def _write_on(self, stop: Any) -> None:
        """Runs in the thread: writes, waits, writes, until nothing more comes."""
        idle = 0
        while idle < 2:
            idle = 0 if self.flush() else idle + 1
            if stop.acquire(timeout=_INTERVAL):
                return
            self._copy()
        self._is_running = False
        self.flush()  # a call that returned meanwhile saw a thread that ran
        self._copy(everything=True)

    def _copy(self, *, everything: bool = False) -> None:
        """Copies the file of this process to the URL, where it is one; not while a lock is held."""
        if self._upload is not None:
            with contextlib.suppress(Exception):  # it is tried again
                self._upload.look(everything=everything)

    def flush(self, *, begins: bool = False) -> bool:
        """Writes what is new; False where there was nothing."""
        if self._has_failed or self._is_closed or self._pid != os.getpid():
            return False
        try:
            with self._lock:
                recorders = self.recorders
                if not begins and not any(recorder.has_news for recorder in recorders):
                    return False
                if self._writer is None:
                    self._writer = self._new_writer()
                self._writer.write(recorders)
            return True
        except Exception:  # a full disk, say: the program goes on
            self._has_failed = True
            return False

    def _new_writer(self) -> Writer:
        """The writer of this process, into a folder of its own where the files go to a URL."""
        into, metrics = self.settings.into, None
        if is_url(into):
            self._upload = Upload(into)
            into = str(self._upload.folder)
        if self.settings.metrics:
            with contextlib.suppress(ImportError):  # the program may have another environment
                metrics = SizeMetrics()
        return Writer(into, parent=self._parent, metrics=metrics)

    def end(self) -> None:
        """Writes the last calls; in the first process programs are made where that was asked for."""
        if self._is_at_end or self._pid != os.getpid():
            return
        self._is_at_end = True
        self.flush()
        with contextlib.suppress(Exception):
            if self._writer is not None:
                self._writer.end()
            if self._upload is not None:
                self._upload.finish()
        self._is_closed = True  # calls that an export makes are none of the program
        for recorder in self.recorders:
            recorder.is_over = True
        if self.settings.at_exit and Settings.is_first(os.environ):
            with contextlib.suppress(Exception):
                from .at_exit import export_at_exit

                export_at_exit(self.recorders, self.settings)

    def _write_at_the_end_of_workers(self) -> None:
        """Workers of multiprocessing end without ``atexit``, and have finalizers instead.

        They forget those of their parent when they begin, so the first call is the time for it.
        """
        if self._has_finalizer:
            return
        process = sys.modules.get("multiprocessing.process")
        util = sys.modules.get("multiprocessing.util")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, self.end, exitpriority=-100)
            self._has_finalizer = True

    def _before_fork(self) -> None:
        if self._is_running and self._pid == os.getpid():
            self._is_running = False
            with contextlib.suppress(RuntimeError):
                self._stop.release()
            self.flush()  # waits for what the thread writes

    def _after_in_child(self) -> None:
        for recorder in self._recorders:
            recorder.is_over = True
        if self._writer is not None:
            self._writer.close()
        self._parent, self._pid = os.getppid(), os.getpid()
        self._reset()

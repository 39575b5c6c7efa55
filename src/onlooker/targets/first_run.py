"""Opens and runs fresh files of a runtime in another process first.

Native code that meets a graph for the first time may end the whole process: ONNX Runtime did, on
float16 models. There is no error to catch then. Where another process dies instead, that is an error
of ours, and the file is kept for whoever wants to report it.

Starting Python and importing ONNX Runtime takes a tenth of a second of processor time, importing torch
for AOTInductor and ExecuTorch nearly two. So one process serves all conversions
(:mod:`onlooker.targets.native_process`): it is started when a conversion begins, and gets ready beside
it; it ends after a minute without work, before a fork, and with this process. A death is blamed on a
file only where the process opened no other file before: what a file broke may show at the next one.

What the other process raises says nothing: the file is opened here next, with an error of its own.

Inside of :func:`kept_open` the other process keeps what it has opened and run, and a conversion is compared
there with what it was made of: its weights are in memory once then, and not a second time here, where the
file is opened when somebody calls the program.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from multiprocessing import spawn
from pathlib import Path
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.support.locks import lock_of
from ..pytrees.open import dtype_of
from ..repairs.numbers.float_tensors import with_float_tensors
from ..trace.graph import Graph
from .refused import of_graph

__all__ = ["check_first_run", "example_inputs", "get_ready", "kept_open", "run_again"]

logger = logging.getLogger(__name__)
#: the program of the other process
SCRIPT = Path(__file__).with_name("native_process.py")
#: how long one file may take: processor time, and the time on the clock of a process that waits for
#: ever
MOST_SECONDS = 900
_MOST_ON_THE_CLOCK = 3600
#: how long the process stays without work
_IDLE_SECONDS = 60
#: signals that come from outside: from a user, or from a system without memory
_FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGKILL", "SIGTERM")
_MOST_WORDS = 300


class _DiedError(Exception):
    """The other process ended while it opened a file; ``code`` is what it left, ``said`` what it
    printed.
    """

    def __init__(self, code: int, said: str, is_slow: bool) -> None:
        super().__init__(code)
        self.code, self.said, self.is_slow = code, said, is_slow


class _Process:
    """One such process, which waits for requests."""

    def __init__(self) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        options: dict[str, Any] = {"start_new_session": True}  # no Ctrl-C of the terminal
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        command = [os.fsdecode(spawn.get_executable() or ""), "-I", str(SCRIPT)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._printed,
                **options,
            )
        except OSError:
            self._printed.close()
            raise
        #: how many files it has opened
        self.opened = 0
        #: the pickled results of the last run that gave some
        self.given = b""
        with contextlib.suppress(OSError):  # a process that has ended is noticed at the first file
            self.send(pickle.dumps([place for place in sys.path if isinstance(place, str)]))

    def send(self, request: bytes) -> None:
        """Sends a pickled value."""
        assert self._process.stdin is not None
        self._process.stdin.write(request)
        self._process.stdin.flush()

    def ask(self, request: bytes) -> str:
        """The answer to a request for a file, empty where the process ended before it began with it.

        :raises _DiedError: where it ended later
        """
        timer = threading.Timer(_MOST_ON_THE_CLOCK, self._process.kill)
        timer.daemon = True
        timer.start()
        answers: list[str] = []
        with contextlib.suppress(OSError):
            self.send(request)
            answers += self._answers()
        is_slow = not timer.is_alive()
        timer.cancel()
        self.opened += 1
        last = answers[-1] if answers else ""
        if last == "opening":
            code = self._process.wait()
            raise _DiedError(code, self._said(), is_slow)
        return last if last != "ready" else ""

    def _answers(self) -> Iterator[str]:
        """Reads the answers of the process, until it is done with a file or has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode(errors="replace").strip()
            if text.startswith("gives "):
                self.given = self._process.stdout.read(int(text.removeprefix("gives ")))
            yield text
            if text not in ("ready", "opening"):
                return

    def _said(self) -> str:
        self._printed.seek(0)
        lines = self._printed.read()[-10_000:].decode(errors="replace").split()
        return " ".join(lines)[-_MOST_WORDS:]

    def end(self) -> None:
        """Ends the process, and waits for its end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._printed.close()


class _Helper:
    """The process of this one, started when it is needed."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._process: _Process | None = None
        self._timer: threading.Timer | None = None
        self._of_parent: tuple[Any, Any] = None, None
        #: how many blocks want it to keep what it opens
        self.keepers = 0

    def get_ready(self, runtime: str) -> None:
        """Lets a process import a runtime, and does not wait for it."""
        with self._lock, contextlib.suppress(OSError):
            self._started().send(pickle.dumps({"runtime": runtime}))
            self._end_when_idle()

    def ask(self, request: bytes) -> str:
        """The answer for a file, by a process that has opened no other one where it is a death.

        :raises _DiedError: where the process died of this file
        """
        with self._lock:
            try:
                return self._answer(request)
            finally:
                self._end_when_idle()

    def ask_again(self, request: bytes) -> tuple[str, bytes]:
        """The answer of the process that is there, and what it gives; ``unknown`` where there is none.

        :raises _DiedError: where it died meanwhile
        """
        with self._lock:
            process = self._process
            try:
                answer = "" if process is None else process.ask(request)
            except _DiedError:
                self.end()
                raise
            if process is None or not answer:
                self.end()
                return "unknown", b""
            return answer, process.given

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Inside the block the process stays, and keeps what it opens where it is asked to."""
        with self._lock:
            self.keepers += 1
        try:
            yield
        finally:
            with self._lock:
                self.keepers -= 1
                if self._process is not None and not self.keepers:
                    with contextlib.suppress(OSError):
                        self._process.send(pickle.dumps(None))
                    self._end_when_idle()

    def _answer(self, request: bytes) -> str:
        while True:
            process = self._started()
            is_fresh = not process.opened
            try:
                answer = process.ask(request)
            except _DiedError:
                self.end()
                if is_fresh:
                    raise
                continue
            if answer:
                return answer
            self.end()  # it ended while it waited, or before it was ready
            if is_fresh:
                return ""

    def _started(self) -> _Process:
        if self._timer is not None:
            self._timer.cancel()
        if self._process is None:
            self._process = _Process()
        return self._process

    def _end_when_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.keepers:
            return
        self._timer = threading.Timer(_IDLE_SECONDS, self.end)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Ends the process, where there is one and no file is being opened."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            process, timer = self._process, self._timer
            self._process = self._timer = None
            if process is not None:
                process.end()
            if timer is not None and timer is not threading.current_thread():
                timer.cancel()
                timer.join(timeout=1)
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Leaves the process to the one that was forked: only that one can wait for its end."""
        self._of_parent = self._process, self._timer
        self._process = self._timer = None


_helper = _Helper()
atexit.register(_helper.end)
if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_helper.end, after_in_child=_helper.forget)


def get_ready(runtime: str) -> None:
    """Starts the other process, which imports the runtime while a graph is converted here."""
    if not getattr(sys, "frozen", False):  # the executable would be the whole application
        with contextlib.suppress(OSError):
            _helper.get_ready(runtime)


def check_first_run(
    runtime: str,
    graph: Graph,
    path: Path,
    inputs: Iterable[tuple[str, Any]],
    keep: bool = False,
    **about: Any,
) -> bool:
    """Passes where another process survives that it opens the fresh file of a graph and runs it once
    on these inputs. ``about`` is what else the runtime needs.

    True where the process keeps it open for :func:`run_again`: if it shall ``keep`` it, inside of
    :func:`kept_open`.

    :raises ExportError: ``runtime-died``
    """
    if getattr(sys, "frozen", False):
        return False
    sent = [_sent(name, value) for name, value in inputs if _is_dense(value)]
    request = {
        "runtime": runtime,
        "path": str(path),
        "inputs": sent,
        "seconds": MOST_SECONDS,
        "keep": keep and _helper.keepers > 0,
        **about,
    }
    try:
        content = pickle.dumps(request)
    except Exception as error:  # options of the user may be any objects
        logger.info("options of %s cannot be sent to another process: %s", runtime, error)
        return False
    try:
        answer = _helper.ask(content)
    except OSError as error:
        logger.info("no process to open files of %s in: %s", runtime, error)
        return False
    except _DiedError as death:
        if -death.code in _numbers_from_outside() and not death.is_slow:
            logger.info("%s was ended from outside: signal %d", runtime, -death.code)
            return False
        with of_graph(graph):
            raise _error(runtime, path, death) from None
    logger.debug("%s in another process: %s", runtime, answer or "no answer")
    return answer == "kept"


def kept_open() -> contextlib.AbstractContextManager[None]:
    """Inside the block the other process keeps files open that :func:`check_first_run` lets it keep."""
    return _helper.keeping()


def run_again(
    runtime: str, path: Path, inputs: Iterable[tuple[str, Any]]
) -> list[torch.Tensor] | None:
    """The outputs of a file that the other process keeps open; None where it keeps it no more.

    :raises RuntimeError: where the runtime refuses these inputs, or ends the process
    """
    try:
        sent = [_sent(name, value) for name, value in inputs]
    except Exception as error:
        raise RuntimeError(f"{runtime} does not take these inputs: {error}") from error
    request = pickle.dumps({"again": str(path), "inputs": sent, "seconds": MOST_SECONDS})
    try:
        answer, content = _helper.ask_again(request)
    except _DiedError as death:
        if -death.code in _numbers_from_outside() and not death.is_slow:
            return None
        raise RuntimeError(f"{runtime} ended its process: {_cause(death.code)}") from None
    if answer == "unknown":
        return None
    if not answer.startswith("gives "):
        raise RuntimeError(answer.removeprefix("raised "))
    return [_tensor(*output) for output in pickle.loads(content)]


def _tensor(dtype: str, shape: Sequence[int], content: bytes) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if not content:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(content), dtype=kind).reshape(shape)


def _numbers_from_outside() -> set[int]:
    return {int(getattr(signal, name)) for name in _FROM_OUTSIDE if hasattr(signal, name)}


def _error(runtime: str, path: Path, death: _DiedError) -> ExportError:
    """The error for a process that died, with the folder of the file kept."""
    kept = Path(tempfile.mkdtemp(prefix="onlooker-died-"))
    for file in [*path.parent.iterdir()]:
        if file.is_file():
            shutil.move(file, kept)
    is_limit = death.is_slow or -death.code == getattr(signal, "SIGXCPU", 0)
    if is_limit:
        happened = f"{runtime} did not come to an end with {path.name} in a process of its own"
    else:
        happened = f"{runtime} ended the process that opened and ran {path.name}"
    said = f"; it printed: {death.said}" if death.said else ""
    return ExportError(
        f"{happened} ({_cause(death.code)}{said}).",
        slug="runtime-died",
        hint=(
            f"The file is kept as {kept / path.name}, for a report to the makers of {runtime}."
            " Another precision or other options of the target may do; to='torch' needs no other"
            " runtime."
        ),
    )


def _cause(code: int) -> str:
    """Returns the cause of the end of a process, in words.

    >>> _cause(-11)
    'signal 11, SIGSEGV'
    """
    if code >= 0:
        return f"exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    return f"signal {-code}, {known.get(-code, 'unknown')}"


def example_inputs(graph: Graph) -> Sequence[Any]:
    """Inputs of a graph of torch, in their order: those of its export; of a graph that was loaded
    zeros of the same sizes.
    """
    if graph.example:
        return with_float_tensors(graph.example)
    return [
        torch.zeros([size.evaluate(graph.sizes) for size in leaf.shape], dtype=dtype_of(leaf.dtype))
        if leaf.is_tensor
        else leaf.value.evaluate(graph.sizes)
        if leaf.value is not None
        else torch.zeros((), dtype=torch.float64)
        for leaf in graph.plan.inputs
    ]


def _is_dense(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.layout == torch.strided


def _sent(name: str, value: Any) -> tuple[str, str, tuple[int, ...], tuple[int, ...] | None, bytes]:
    """An input for the other process, which may be without torch."""
    tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    strides = None if tensor.is_contiguous() else tuple(tensor.stride())
    flat = tensor.contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return name, dtype, tuple(tensor.shape), strides, content

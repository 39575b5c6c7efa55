"""Shows where long work stands: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from ..core.support.kinds import check_kind
from ..core.support.progress import Listener, Step, listening

__all__ = ["ProgressView", "progress", "shown_on"]

#: seconds without a line after which a step is a line of its own; twice as many after each such line
_SILENCE = 30.0


class ProgressView(Protocol):
    """Shows progress: a text for what begins, the steps of the library, and what it logs."""

    def say(self, text: str) -> None:
        """Shows what begins."""

    def log(self, text: str) -> None:
        """Shows what the library logs, where the line goes away again."""

    def step(self, step: Step) -> None:
        """Shows where the work stands."""


class _ProgressLines:
    """One line a stage, with the time since the start; of a stage that lasts a line now and then."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._stream, self._clock = stream, clock
        self._start = self._last = clock()
        self._silence = _SILENCE
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Begins a stage."""
        self._said.add(text)
        self._silence = _SILENCE
        self._write(text)

    def log(self, text: str) -> None:
        """Nothing: a log of hundreds of lines tells less than one line a stage."""

    def step(self, step: Step) -> None:
        """Begins a stage that nobody has said, or writes where a long one stands."""
        if not any(text.startswith(step.what) for text in self._said):
            self.say(step.what)
        elif self._clock() - self._last >= self._silence:
            self._silence *= 2
            self._write(str(step))

    def _write(self, text: str) -> None:
        self._last = self._clock()
        self._stream.write(f"{self._last - self._start:6.1f} s  {text}\n")
        self._stream.flush()


@contextmanager
def shown_on(stream: TextIO) -> Iterator[ProgressView]:
    """Shows progress on a stream; a terminal is as before afterwards, also after Ctrl-C."""
    from rich.console import Console

    console = Console(file=stream)
    if not console.is_terminal:
        yield _ProgressLines(stream)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column

    text = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    columns = SpinnerColumn(), TimeElapsedColumn(), BarColumn(20), MofNCompleteColumn(), text
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        class Live:
            def say(self, text: str) -> None:
                bar.tasks[0].total = None  # to update() None says that it stays what it was
                bar.update(task, description=f"{text} ...", completed=0)

            def log(self, text: str) -> None:
                self.say(text)

            def step(self, step: Step) -> None:
                left = "at most " if step.at_most else ""
                remaining = f", {left}{step.left} left" if step.left is not None else ""
                detail = f": {step.detail}" if step.detail else ""
                bar.tasks[0].total = step.total
                words = f"{step.what}{remaining}{detail}"
                bar.update(task, description=words, completed=step.done)

        yield Live()


@contextmanager
def progress(callback: Listener | None = None) -> Iterator[None]:
    """Inside the block, what lasts (probing, tracing, converting, verifying, saving, loading) shows
    where it stands: on the standard error, as a bar in a terminal and as lines elsewhere.

    ``callback`` is told instead: it is called with each :class:`~onlooker.Step`, whose ``what``,
    ``done``, ``total``, ``left`` and ``detail`` say where the work stands. What it raises is logged
    and stops nothing, but for KeyboardInterrupt.

    :raises ArgumentKindError: ``wrong-kind``

    >>> import onlooker, torch
    >>> model, observer, seen = torch.nn.Linear(4, 2), onlooker.InputObserver(), []
    >>> with observer(model):
    ...     _ = [model(torch.ones(size, 4)) for size in (2, 3)]
    >>> with onlooker.progress(seen.append):
    ...     tally = observer.export().verify()
    >>> list(dict.fromkeys(step.what for step in seen))
    ['probing', 'tracing', 'verifying']
    >>> seen[-1].done == seen[-1].total
    True
    """
    if callback is not None:
        check_kind(callback, Callable, "callback", "a function of one step")
        with listening(callback):
            yield
        return
    with shown_on(sys.stderr) as shown, listening(shown.step):
        yield

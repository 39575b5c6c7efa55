"""Says what goes on while it goes on: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.text import Text

__all__ = ["Say", "progress"]

Say = Callable[[str], None]


class _Forward(logging.Handler):
    """Passes the messages of the library on."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Passes the first line of one message on: what torch refuses takes a page."""
        self._say(record.getMessage().split("\n", maxsplit=1)[0])


@contextmanager
def progress(stderr: TextIO) -> Iterator[Say]:
    """Gives a function that says what begins; what the library logs is said as well.

    The logger ``onlooker`` is as before afterwards.
    """
    logger = logging.getLogger("onlooker")
    level = logger.level
    with _line(stderr) as say:
        handler = _Forward(say)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield say
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)


@contextmanager
def _line(stderr: TextIO) -> Iterator[Say]:
    console = Console(file=stderr)
    start = time.perf_counter()
    if not console.is_terminal:
        yield lambda text: print_line(stderr, time.perf_counter() - start, text)
        return
    with console.status("") as status:
        yield lambda text: status.update(Text(f"{text} ...", no_wrap=True, overflow="ellipsis"))


def print_line(stderr: TextIO, seconds: float, text: str) -> None:
    """Writes a line with the time since the start, at once."""
    stderr.write(f"{seconds:6.1f} s  {text}\n")
    stderr.flush()

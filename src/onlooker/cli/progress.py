"""Says what goes on while it goes on: a bar in a terminal, one line a stage elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ..core.support.progress import listening
from ..report.progress import shown_on

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
    """Gives a function that says what begins; the steps of the library are counted, and in a
    terminal what it logs is shown as well.

    The logger ``onlooker`` is as before afterwards.
    """
    logger = logging.getLogger("onlooker")
    level = logger.level
    with shown_on(stderr) as shown, listening(shown.step):
        handler = _Forward(shown.log)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        try:
            yield shown.say
        finally:
            logger.setLevel(level)
            logger.removeHandler(handler)

"""The places to which texts go that only a person reads: the standard streams, and handlers of
loggers that write.

The text of a size is free where nothing of the model can read it again. A model that prints to a
buffer of its own, has a handler of its own on a logger, or turns warnings into errors for a while
can read it, so that the text is a decision there.
"""

from __future__ import annotations

import inspect
import io
import logging
import logging.handlers
import sys
import warnings
from typing import Any

from ...model_source.lines import is_of_python

__all__ = ["Outlets"]

#: handlers of Python that keep what they are given
_KEEPS = (logging.handlers.BufferingHandler, logging.handlers.QueueHandler)


def _has_filters(owner: logging.Filterer) -> bool:
    """True for filters that are not ours: a filter reads what it lets pass."""
    own = __name__.partition(".")[0]
    modules = (type(one).__module__ or "" for one in owner.filters)
    return any(module.partition(".")[0] != own for module in modules)


def _rules_of_warnings() -> tuple[Any, ...]:
    """Returns what decides about a warning: filters, and the function that shows it
    (``catch_warnings(record=True)`` replaces the inner function alone).
    """
    shows = warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)
    return (list(warnings.filters), *shows)


class Outlets:
    """The streams and the rules for warnings as they are when a trace begins: what a model puts in
    their place is its own.
    """

    def __init__(self) -> None:
        self._streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self._warnings = _rules_of_warnings()

    def shows_prints(self, file: Any = None) -> bool:
        """True where ``print`` writes to a stream that was there before; without a file to the
        standard output.
        """
        stream = sys.stdout if file is None else file
        return any(stream is known for known in self._streams)

    def shows_warnings(self) -> bool:
        """True where warnings are shown, or left out, as they were before the trace."""
        return _rules_of_warnings() == self._warnings

    def shows_logs(self, logger: Any) -> bool:
        """True for a logger all of whose handlers write for people, as far as its records go."""
        logger = getattr(logger, "logger", logger)  # of an adapter
        while logger is not None:
            if not isinstance(logger, logging.Logger) or _has_filters(logger):
                return False
            if not all(map(self._only_writes, logger.handlers)):
                return False
            logger = logger.parent if logger.propagate else None
        return True

    def _only_writes(self, handler: logging.Handler) -> bool:
        if _has_filters(handler) or isinstance(handler, _KEEPS):
            return False
        kind = type(handler)
        try:
            file = inspect.getfile(kind)
        except (TypeError, OSError):
            return False
        if is_of_python(file):
            stream = getattr(handler, "stream", None)
            return not isinstance(stream, (io.StringIO, io.BytesIO)) or self.shows_prints(stream)
        return "-packages" in file  # of an installed package, which shows or stores records

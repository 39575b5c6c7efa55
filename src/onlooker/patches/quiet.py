"""The texts that torch prints while it traces, and ExecuTorch while it converts and runs: kept for
the error and for the log, and off the user's screen.

For each trace that fails on a value torch prints the graph so far to ``sys.stderr``, some hundred
kilobytes for a real model, and most of these traces are only attempts. Of some traces torch also
logs a warning, or an error with its stack; a user who sets ``TORCH_LOGS`` gets all of these.
ExecuTorch writes the log of its runtime to ``sys.stderr``. Warnings of a model are kept too: they are about
the sizes of an experiment, which nobody asked for. The output of all other code passes.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/export/_trace.py,
``partial_fx_graph``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch

from ..core.errors import OnlookerError, OnlookerWarning
from ..core.support.locks import lock_of

__all__ = ["Printed", "quietly", "what_is_printed"]

logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

_MOST = 20_000
_TORCH = os.path.dirname(torch.__file__) + os.sep
_WARNINGS = warnings.__file__
#: the file of the runtime's Python package; the package may not be there
_EXECUTORCH = os.path.join(os.sep, "executorch", "runtime", "__init__.py")
_lock = lock_of(sys.modules[__name__])
_stand: _StreamStand | None = None


class Printed:
    """The beginning of a printed text, and its length."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._length = 0

    def add(self, text: str) -> None:
        """Notes what was printed."""
        if self._length < _MOST:
            self._kept.append(text[: _MOST - self._length])
        self._length += len(text)

    @property
    def text(self) -> str:
        """All that is kept; it says what it lacks."""
        kept = "".join(self._kept).strip()
        return f"{kept}\n[{self._length} characters in all]" if self._length > _MOST else kept


class _StreamStand:
    """Stands for ``sys.stderr``: what comes from a file of these packages goes to those who listen, all
    else passes.
    """

    def __init__(self, stream: Any) -> None:
        heard: list[Printed] = []
        unlogged = _Unlogged(heard)
        self.__dict__.update(stream=stream, heard=heard, unlogged=unlogged, handlers=[])

    def write(self, text: str) -> int:
        writer = sys._getframe(1)
        file = writer.f_code.co_filename
        is_kept = file.startswith(_TORCH) or file.endswith(_EXECUTORCH)
        if not (is_kept or _is_warning_of_others(writer)):
            return int(self.stream.write(text))
        for printed in list(self.heard):
            printed.add(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["stream"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["stream"], name, value)


def _is_warning_of_others(writer: FrameType) -> bool:
    """True for what Python writes where a warning is given that is none of ours."""
    warning = writer.f_locals.get("msg") if writer.f_code.co_filename == _WARNINGS else None
    category = getattr(warning, "category", OnlookerWarning)
    return not issubclass(category, OnlookerWarning)


class _Unlogged(logging.Filter):
    """Takes what torch logs from the handlers of torch, for those who listen."""

    def __init__(self, heard: list[Printed]) -> None:
        super().__init__()
        self.heard = heard

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:  # torch gives these only to users who ask for them
            return True
        for printed in list(self.heard):
            printed.add(record.getMessage() + "\n")
        return False


@contextlib.contextmanager
def what_is_printed() -> Iterator[Printed]:
    """Inside the block what these packages print to ``sys.stderr`` is kept; blocks of several threads
    may overlap.
    """
    printed = Printed()
    stand = _begin(printed)
    try:
        yield printed
    finally:
        if stand is not None:
            _end(stand, printed)
        if printed.text:
            logger.debug("printed meanwhile:\n%s", printed.text)


def _begin(printed: Printed) -> _StreamStand | None:
    global _stand
    with _lock:
        if sys.stderr is None:  # a program without a console
            return None
        if _stand is None or sys.stderr is not _stand:
            _stand = _StreamStand(sys.stderr)
            sys.stderr = _stand
            if not os.environ.get("TORCH_LOGS"):
                _stand.handlers.extend(_handlers_of_torch())
            for handler in _stand.handlers:
                handler.addFilter(_stand.unlogged)
        _stand.heard.append(printed)
        return _stand


def _end(stand: _StreamStand, printed: Printed) -> None:
    global _stand
    with _lock:
        stand.heard.remove(printed)
        if not stand.heard:
            for handler in stand.handlers:
                handler.removeFilter(stand.unlogged)
            if sys.stderr is stand:
                sys.stderr = stand.stream
            if _stand is stand:
                _stand = None
            with warnings.catch_warnings():
                pass  # after it Python gives a warning once more at each line: one may have been kept here


def _handlers_of_torch() -> Iterator[logging.Handler]:
    """The handlers of all loggers of torch: each logger that ``TORCH_LOGS`` may name has its own."""
    loggers = list(logging.root.manager.loggerDict.items())
    for name, known in loggers:
        is_of_torch = name == "torch" or name.startswith("torch.")
        if is_of_torch and isinstance(known, logging.Logger):
            yield from known.handlers


def quietly(function: Callable[P, R]) -> Callable[P, R]:
    """The function, during which these packages print nothing; an error of ours has it in its
    ``details``.
    """

    @functools.wraps(function)
    def quiet(*args: P.args, **kwargs: P.kwargs) -> R:
        with what_is_printed() as printed:
            try:
                return function(*args, **kwargs)
            except OnlookerError as error:
                error.details = error.details or printed.text
                raise

    return quiet

"""The errors of onlooker.

::

    OnlookerError
    ├── UsageError          (ValueError)    an argument that cannot be meant
    │   └── ArgumentKindError (TypeError)   an argument of another type than the ones accepted
    ├── ObservationError    (RuntimeError)  what was observed does not answer the question
    ├── UnsupportedError    (NotImplementedError)  torch or this library cannot do it yet
    ├── ExportError         (RuntimeError)  no program could be made from the plan
    │   └── EntriesError    (RuntimeError)  some of several programs could not be made
    ├── RejectedCallError   (ValueError)    a program refuses a call it cannot serve
    ├── SavedFileError      (ValueError)    a file or folder that was saved cannot be used, or cannot be written
    └── MissingPackageError (ImportError)   an optional package is needed and absent

    OnlookerWarning         (UserWarning)   an answer that may not be the one wanted

Every error, and every warning, has a ``slug``, which names its entry in ``docs/messages.md``:
``onlooker explain SLUG`` prints it. An error that is raised without a hint has the first advice of that
entry for one.
``warn`` tells a warning at the line that called this package.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from .messages import advice_of

__all__ = [
    "ArgumentKindError",
    "EntriesError",
    "ExportError",
    "MissingPackageError",
    "ObservationError",
    "OnlookerError",
    "OnlookerWarning",
    "RejectedCallError",
    "SavedFileError",
    "UnsupportedError",
    "UsageError",
    "warn",
]

_HOUSE = Path(__file__).parents[1]
#: the files of onlooker, and of the package beside it that has the names of other packages
_OURS = tuple(f"{folder}{os.sep}" for folder in (_HOUSE, _HOUSE.with_name("onlooker_compat")))


class OnlookerError(Exception):
    """The base of all errors that onlooker raises on purpose.

    ``message`` says what happened and where, ``slug`` names the entry in ``docs/messages.md``,
    ``hint`` says what to do about it. ``details`` is more than anybody wants to read at once: what
    torch printed.

    >>> str(OnlookerError("No call was seen.", slug="no-calls", hint="Run the model inside the block."))
    'No call was seen. Run the model inside the block. [no-calls]'
    """

    def __init__(self, message: str, *, slug: str, hint: str = "") -> None:
        self.message: str = message
        self.slug: str = slug
        self.hint: str = hint or advice_of(slug)
        self.details: str = ""
        super().__init__(_text(message, self.hint, slug))

    def happened_at(self, where: str) -> None:
        """Puts a place before the message.

        >>> error = OnlookerError("The call fits no graph.", slug="call-refused", hint="Watch it.")
        >>> error.happened_at("vae")
        >>> str(error)
        'vae: The call fits no graph. Watch it. [call-refused]'
        """
        self.restate(f"{where}: {self.message}", self.hint)

    def restate(self, message: str, hint: str) -> None:
        """Replaces what the error says, and what to do about it."""
        self.message, self.hint = message, hint
        super().__init__(_text(message, hint, self.slug))


def _text(message: str, hint: str, slug: str) -> str:
    advice = " ".join(part for part in (hint, f"[{slug}]") if part)
    return f"{message}{advice}" if message.endswith("\n") else f"{message} {advice}"


class OnlookerWarning(UserWarning):
    """There is an answer, and it may not be the one wanted; ``slug`` and ``hint`` are as those of
    an error.

    >>> str(OnlookerWarning("One call was watched.", slug="one-call", hint="Watch another one."))
    'One call was watched. Watch another one. [one-call]'
    """

    def __init__(self, message: str, *, slug: str, hint: str = "") -> None:
        self.message = message
        self.slug = slug
        self.hint = hint
        super().__init__(_text(message, hint, slug))


def warn(warning: OnlookerWarning) -> None:
    """Warns at the innermost line outside of onlooker, and of the library's context managers."""
    level = 1
    frame: FrameType | None = sys._getframe(0)
    while frame is not None and _is_passed_over(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def _is_passed_over(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(_OURS) or file == contextlib.__file__


class UsageError(OnlookerError, ValueError):
    """An argument that cannot be meant."""


class ArgumentKindError(UsageError, TypeError):
    """An argument of another type than the ones accepted."""


class ObservationError(OnlookerError, RuntimeError):
    """The observed calls do not answer the question."""


class UnsupportedError(OnlookerError, NotImplementedError):
    """torch or this library cannot do it yet."""


class ExportError(OnlookerError, RuntimeError):
    """No program could be made from the plan. ``graph`` names the graph that could not be converted,
    where the error is about one; ``program`` is the program, where there is one that is not right.
    """

    graph: str = ""
    program: Any = None


class EntriesError(ExportError):
    """Of several entries that were watched together, some could not be made into a program.

    ``refusals`` has the error of each of these by its name; ``programs``, of the class
    :class:`~onlooker.Programs`, has the programs of the others.
    """

    refusals: Mapping[str, Exception] = MappingProxyType({})
    programs: Any = None


class RejectedCallError(OnlookerError, ValueError):
    """A program refuses a call that it cannot serve.

    ``reason`` is what the runtime says, where a graph took the call and refused it when it ran.
    """

    reason: str = ""


class SavedFileError(OnlookerError, ValueError):
    """A file or a folder that was saved cannot be used, or cannot be written."""


class MissingPackageError(OnlookerError, ImportError):
    """An optional package is needed and absent."""

"""The one error for a torch that lacks a name, or that is too old."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from ..core.errors import UnsupportedError

__all__ = ["CHECKED", "OLDEST", "needed"]

#: the oldest torch that works: 2.9 and older keep the guards of a program elsewhere
OLDEST = (2, 10)
#: the versions of torch with which all of this was imported and used (docs/versions.md)
CHECKED = "torch 2.10, 2.13 and 2.15"


@contextlib.contextmanager
def needed(purpose: str) -> Iterator[None]:
    """Inside the block names of torch are imported that are not documented, for a purpose.

    :raises UnsupportedError: ``torch-too-old``, ``torch-changed`` where a name is not there
    """
    if _number(torch.__version__) < OLDEST:
        raise UnsupportedError(
            f"This is torch {torch.__version__}, and onlooker needs {_text(OLDEST)} or newer.",
            slug="torch-too-old",
            hint="pip install --upgrade torch.",
        )
    try:
        yield
    except (ImportError, AttributeError) as error:
        raise UnsupportedError(
            f"torch {torch.__version__} has not the name that onlooker needs for {purpose}:"
            f" {error}. It was checked with {CHECKED}.",
            slug="torch-changed",
            hint="Install a torch of these versions, or a newer onlooker; see onlooker doctor.",
        ) from error


def _number(text: str) -> tuple[int, ...]:
    """The first two numbers of a version.

    >>> _number("2.13.0+cpu"), _number("2.16.0a0")
    ((2, 13), (2, 16))
    """
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _text(number: tuple[int, ...]) -> str:
    return ".".join(map(str, number))

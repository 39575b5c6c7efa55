"""An enumeration of texts, as ``enum.StrEnum`` is, which Python has since 3.11."""

from __future__ import annotations

import enum
import sys

__all__ = ["StrEnum"]

if sys.version_info >= (3, 11):
    StrEnum = enum.StrEnum
else:

    class StrEnum(str, enum.Enum):
        """Members that are texts, and print as their text."""

        __str__ = str.__str__
        __format__ = str.__format__  # type: ignore[assignment]

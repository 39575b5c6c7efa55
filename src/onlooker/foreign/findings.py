"""Findings about an export, each with the axis, the input or the output that it is about."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.support.enums import StrEnum

__all__ = ["ExportFinding", "Kind"]


class Kind(StrEnum):
    """In which way an export is not the model, or not known to be it."""

    SPECIALIZED = "specialized size"
    NARROW = "narrow range"
    REFUSED = "refused size"
    WRONG = "wrong at a size"
    INPUT = "input"
    OUTPUT = "output"
    VALUES = "values"
    UNSTABLE = "unstable"
    UNRELATED = "unrelated"
    TIED = "tied"


@dataclass(frozen=True, slots=True)
class ExportFinding:
    """``where`` is an axis, an input or an output, as Python writes it. One that is no ``failure``
    is a remark: the calls that were tried hold all the same.

    >>> text = "always 2 in the file, the model takes batch"
    >>> print(ExportFinding(Kind.SPECIALIZED, "x.shape[0]", text))
    x.shape[0]: always 2 in the file, the model takes batch (specialized size)
    """

    kind: Kind
    where: str
    text: str
    is_failure: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.text} ({self.kind})"

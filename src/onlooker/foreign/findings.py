"""What is wrong with an export, each with the axis, the input or the output that it is about."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.enums import StrEnum

__all__ = ["Finding", "Kind", "told"]


class Kind(StrEnum):
    """In which way an export is not the model, or not known to be it."""

    BAKED = "baked size"
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
class Finding:
    """``where`` is an axis, an input or an output, as Python writes it. One that is no ``failure``
    is a remark: the calls that were tried hold all the same.

    >>> print(Finding(Kind.BAKED, "x.shape[0]", "always 2 in the file, the model takes batch"))
    x.shape[0]: always 2 in the file, the model takes batch (baked size)
    """

    kind: Kind
    where: str
    text: str
    is_failure: bool = True

    def __str__(self) -> str:
        return f"{self.where}: {self.text} ({self.kind})"


def told(note: str) -> str:
    """Why a check failed, in the words of the runtime where it refused the call.

    >>> told("No graph of this program takes the call. the program refuses it (too large).")
    'too large'
    """
    refused = note.partition("the program refuses it (")[2]
    return refused.rpartition(").")[0] if refused else note

"""Calls that no program can serve, since a tensor of them is not dense or has no values: refused
before any run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.errors import UnsupportedError
from ..core.path import Name, Path
from ..observing.store import Sample
from ..observing.unsaved_values import UnsavedValues
from ..pytrees.unusual import Unusual, unusual_leaves

__all__ = ["check_exportable"]


def check_exportable(samples: Sequence[Sample], unsaved: Sequence[UnsavedValues]) -> None:
    """Refuses sparse, quantised, nested and distributed tensors, and those without values, in calls
    that are needed.

    ``unsaved`` are calls without values: they are not needed where another call has the same
    structure.

    :raises UnsupportedError: ``unusual-tensor``
    """
    for sample in samples:
        for tree in (sample.inputs, sample.outputs):
            for path, found in unusual_leaves(tree):
                raise _refusal(sample.call.index, path, found)
    kept = [tree.structure for sample in samples for tree in (sample.inputs, sample.outputs)]
    for call in unsaved:
        if call.structure not in kept:
            raise _refusal(call.index, call.path, call.found)


def _refusal(index: int, path: Path, found: Unusual) -> UnsupportedError:
    code = path.code()
    if path.entries and isinstance(path.entries[0], Name):
        remedy = f"Pass {code}{found.method} to the model, which may convert it where it needs to."
    else:
        code = f"the result{code}"
        remedy = f"Let the model return what {found.method} gives."
    return UnsupportedError(
        f"{code} of call {index} is {found.what}: a program takes and gives dense tensors only.",
        slug="unusual-tensor",
        hint=found.advice or remedy,
    )

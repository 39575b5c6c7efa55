"""The calls of one method of one model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from .call import Call, Signature
from .drawing.alike import folded_rows
from .drawing.figure import Points, figure_of
from .drawing.markup import heading, listing, table
from .errors import UsageError
from .leaves import leaf_rows
from .profile import Profile, moving_axes, profile_of_axes
from .support.kinds import as_path, check_kind

__all__ = ["Recording"]


@dataclass(frozen=True, slots=True)
class Recording:
    """The finished calls of one method, in their order, with their provenance.

    ``model`` is the qualified name of the model's class. ``missed`` says what could not be
    recorded, and why. A call may stand for several (``Call.count``): the length is the number of
    all. Two recordings of the same method merge with ``|``: calls which both have count once (the
    larger ``count`` is that of the later look at the same run), and the result does not depend on
    the order of the merges.
    """

    model: str = ""
    method: str = "forward"
    signature: Signature = field(default_factory=Signature)
    calls: tuple[Call, ...] = ()
    missed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(call.count for call in self.calls)

    def __repr__(self) -> str:
        return f"<Recording of {self.model}.{self.method}: {len(self)} calls>"

    def __or__(self, other: Recording) -> Recording:
        check_kind(
            other,
            Recording,
            "The other recording",
            "a recording: recordings are merged with recordings",
        )
        if (self.model, self.method, self.signature) != (
            other.model,
            other.method,
            other.signature,
        ):
            raise UsageError(
                f"A recording of {self.model}.{self.method} cannot be merged with one of"
                f" {other.model}.{other.method}.",
                slug="different-entry-points",
                hint="Merge recordings of the same method of the same model.",
            )
        if self == other:  # in its own order, which the merge of two others has not
            return self
        calls = sorted(_merged(self.calls + other.calls), key=_order)
        missed = tuple(sorted(set(self.missed) | set(other.missed)))
        return replace(self, calls=tuple(calls), missed=missed)

    def save(self, path: str | FilePath) -> None:
        """Writes the recording as JSON: specs, and no values of tensors; constants are a part of
        the specs.

        A run that is killed leaves the old file, or none.

        :raises SavedFileError: ``not-written``
        :raises UnsupportedError: ``not-saved`` for a key of a dict that is no number and no text
        """
        from ..disk.recordings import save_recording  # files stand above values

        save_recording(self, as_path(path, "The file of a recording"))

    @classmethod
    def load(cls, path: str | FilePath) -> Recording:
        """The recording that :meth:`save` wrote, equal to the one that was saved.

        :raises SavedFileError: ``file-missing``, ``file-foreign``, ``file-newer``, ``file-damaged``
        """
        from ..disk.recordings import load_recording

        return load_recording(as_path(path, "The file of a recording"))

    def profile(self) -> Profile:
        """Counts how often which sizes came together, per structure of calls: every axis that
        changes, by its name. :meth:`Program.profile` has the same per graph, in the symbols of its
        plan.
        """
        return profile_of_axes(self.calls)

    def plot(self) -> Any:
        """A figure of matplotlib: every axis that changes over the calls, one structure of calls
        beside the other. Equal calls stand at the place of the first one.

        :raises MissingPackageError: ``missing-package``

        >>> import torch, onlooker
        >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
        >>> with observer(model):
        ...     _ = [model(torch.ones(size, 4)) for size in (2, 3)]
        >>> [panel.get_ylabel() for panel in observer.recording().plot().axes]
        ['input.shape[0]']
        """
        columns = moving_axes(self.calls)
        structures = {call.inputs.structure: "" for call in self.calls}
        names = {one: f"structure {place}" for place, one in enumerate(structures)}
        groups = [names[call.inputs.structure] for call in self.calls]
        points = [Points(str(axis), sizes) for axis, sizes in columns.items()]
        return figure_of(f"{len(self)} calls of {self.model}.{self.method}", points, groups)

    def _repr_html_(self) -> str:
        """The leaves of the arguments, for notebooks."""
        title = heading(f"{len(self)} calls of {self.model}.{self.method}")
        rows = folded_rows([row.cells for row in leaf_rows(self.calls)])
        missed = [f"a call was not recorded: {text}" for text in self.missed]
        heads = ("input", "kind", "sizes that were seen", "calls")
        return title + table(heads, rows) + listing(missed)

    def with_call(self, call: Call) -> Recording:
        """The recording with one more call."""
        return replace(self, calls=(*self.calls, call))


def _merged(calls: Iterable[Call]) -> Iterable[Call]:
    """Each call once, with the largest of its counts."""
    found: dict[Call, Call] = {}
    for call in calls:
        key = replace(call, count=1)
        known = found.get(key)
        if known is None or known.count < call.count:
            found[key] = call
    return found.values()


def _order(call: Call) -> tuple[int, float, str]:
    return call.index, call.seconds, repr(call)

"""What was observed, brought into the form that graphs take: lists that the model only concatenates are joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.recording import Recording
from ..observe.store import Sample
from ..observe.unkept import Unkept
from ..probe.joins import find_joins
from ..probe.subject import Subject
from ..pytrees.joins import Join, join_specs, join_tensors, joined
from .exportable import check_exportable

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recording and its kept calls, with every joined list as a list of one tensor."""

    recording: Recording
    samples: tuple[Sample, ...]
    joins: tuple[Join, ...] = ()


def prepare(
    recording: Recording,
    samples: Sequence[Sample],
    subject: Subject,
    *,
    probe: bool = True,
    unkept: Sequence[Unkept] = (),
) -> Prepared:
    """Asks the model about lists, and joins those that it only concatenates.

    :raises UnsupportedError: ``unusual-tensor`` for calls that no program can serve
    """
    check_exportable(samples, unkept)
    joins = find_joins(samples, subject) if probe else ()
    if not joins:
        return Prepared(recording, tuple(samples))
    calls = tuple(replace(call, inputs=joined(call.inputs, joins, join_specs)) for call in recording.calls)
    by_index = {call.index: call for call in calls}
    kept = tuple(replace(s, call=by_index[s.call.index], inputs=joined(s.inputs, joins, join_tensors)) for s in samples)
    return Prepared(replace(recording, calls=calls), kept, joins)

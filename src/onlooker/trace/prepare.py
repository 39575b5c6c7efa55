"""What was observed, brought into the form that graphs take: lists that the model only
concatenates are joined, and objects that it does not read are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.recording import Recording
from ..hypotheses.bound_defaults import with_bound_defaults
from ..hypotheses.concatenated_lists import find_concatenated_lists
from ..hypotheses.unread_objects import find_unread_objects
from ..lab.lab import Lab
from ..observing.store import Sample
from ..observing.unkept import Unkept
from ..pytrees.joins import Join, join_specs, join_tensors, joined, joined_results
from .exportable import check_exportable
from .identity_tests import compares_identity

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recording and its kept calls, with every joined list as a list of one tensor, and one
    stand-in for objects that are not read.
    """

    recording: Recording
    samples: tuple[Sample, ...]
    joins: tuple[Join, ...] = ()


def prepare(
    recording: Recording,
    samples: Sequence[Sample],
    lab: Lab,
    *,
    probe: bool = True,
    unkept: Sequence[Unkept] = (),
) -> Prepared:
    """Tests lists of tensors with the model, and joins those that it only concatenates; puts one
    stand-in for objects that it does not read.

    :raises UnsupportedError: ``unusual-tensor`` for calls that no program can serve
    """
    check_exportable(samples, unkept)
    recording, samples = with_bound_defaults(recording, samples)
    joins: tuple[Join, ...] = ()
    if probe and lab.budget.runs:
        # what is joined is one tensor, of which nobody can say whether it is another argument
        is_asked = compares_identity(lab.model, lab.subject.method)
        lists = () if is_asked else find_concatenated_lists(samples, lab)
        joins = (*lists, *find_unread_objects(samples, lab))
    if not joins:
        return Prepared(recording, tuple(samples))
    calls = tuple(
        replace(
            call,
            inputs=joined(call.inputs, joins, join_specs),
            outputs=joined_results(call.outputs, joins),
        )
        for call in recording.calls
    )
    by_index = {call.index: call for call in calls}
    kept = tuple(
        replace(
            s,
            call=by_index[s.call.index],
            inputs=joined(s.inputs, joins, join_tensors),
            outputs=joined_results(s.outputs, joins),
        )
        for s in samples
    )
    return Prepared(replace(recording, calls=calls), kept, joins)

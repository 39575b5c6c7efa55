"""What was observed, brought into the form that graphs take: lists that the model only
concatenates are joined, and objects that it does not read are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.call import Join
from ..core.marks import IDENTITY
from ..core.recording import Recording
from ..hypotheses.calls.bound_defaults import with_bound_defaults
from ..hypotheses.concatenated_lists import ConcatenatedLists
from ..hypotheses.families import joins_of
from ..lab.lab import Lab
from ..observing.store import Sample
from ..observing.unsaved_values import UnsavedValues
from ..pytrees.joins import join_specs, joined, joined_results
from ..trace.identity_tests import marks_in_source
from .exportable import check_exportable

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
    probe: bool,
    unsaved: Sequence[UnsavedValues],
) -> Prepared:
    """Returns the recording and the kept calls as graphs see them.

    Defaults of the signature are filled in, lists that the model only concatenates are one tensor, and one
    stand-in is in the place of each object that it does not read: both are tested with the model.

    :raises UnsupportedError: ``unusual-tensor`` for calls that no program can serve
    """
    check_exportable(samples, unsaved)
    recording, samples = with_bound_defaults(recording, samples)
    joins: tuple[Join, ...] = ()
    if probe and lab.budget.runs:
        # what is joined is one tensor, of which nobody can say whether it is another argument
        is_asked = IDENTITY in marks_in_source(lab.model, lab.subject.method)
        joins = joins_of(samples, lab, without=(ConcatenatedLists,) if is_asked else ())
    lab.joined_lists = tuple(join.path for join in joins if join.dim is not None)
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
    kept = tuple(replace(s.joined(joins), call=by_index[s.call.index]) for s in samples)
    return Prepared(replace(recording, calls=calls), kept, joins)

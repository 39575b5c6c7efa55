"""All families of hypotheses, in the order in which they are tested.

To add an idea, write one file with a class like those below, and add one line to :data:`FAMILIES`.

Questions about the form of all calls are asked first (:func:`joins_of`), then :mod:`.shared_graphs`
says which calls one graph can serve, and the others are asked about each such draft
(:func:`resolved`). Before all of them :mod:`.calls.replay` asks whether the recorded calls give again what
they gave.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from ..core.call import Join
from ..lab.lab import Lab, SpentError
from ..observing.store import Sample
from .absent_masks import AbsentMasks
from .axes.may_change import AxesThatMayChange, PinnedAxes
from .concatenated_lists import ConcatenatedLists
from .draft import Draft
from .empty_sizes import EmptySizes
from .family import Family, FormFamily
from .observed_steps import ObservedSteps
from .omitted_arguments import OmittedArguments
from .relations import Relations
from .unread_objects import UnreadObjects

__all__ = ["FAMILIES", "joins_of", "resolved"]

logger = logging.getLogger(__name__)

FAMILIES: tuple[type[FormFamily | Family], ...] = (
    ConcatenatedLists,  # the model only concatenates a list
    UnreadObjects,  # the model does not read an object that cannot be opened
    AxesThatMayChange,  # an axis that never changed may change, alone or together with others
    PinnedAxes,  # the caller says that an axis changes
    ObservedSteps,  # sizes that were all multiples of 16 are so by chance
    Relations,  # a relation between axes is a coincidence of a few calls
    ObservedSteps,  # the same for sizes that only a relation tied to others until now
    AbsentMasks,  # ones are neutral for a mask that no call passed
    OmittedArguments,  # a call may leave out an argument that every call passed
    EmptySizes,  # a size that was never 0 may be 0
)


def joins_of(
    samples: Sequence[Sample], lab: Lab, *, without: Collection[type[FormFamily]]
) -> tuple[Join, ...]:
    """The lists and the objects that graphs take in another form than the calls have them.

    What a family has found before the budget ends is kept.
    """
    found: list[Join] = []
    for family in FAMILIES:
        if issubclass(family, FormFamily) and family not in without:
            logger.info("testing: %s", family.question)
            try:
                for join in family(samples, lab).joins():
                    found.append(join)
            except SpentError as spent:
                lab.note_unknown(family.all_tested, spent)
    return tuple(found)


def resolved(draft: Draft, samples: Sequence[Sample], lab: Lab) -> Draft:
    """The draft with what the caller and the model say about all that the calls left open.

    Without probing, or without a budget, only what the caller said counts. A family whose share of
    the budget ends keeps what it has found, and says what it could not test.
    """
    families = FAMILIES if draft.overrides.probe and lab.budget.runs else (PinnedAxes,)
    n_records = len(lab.records)
    with lab.stages.stage("probe"):
        for family in families:
            if issubclass(family, Family):
                draft = _tested(family, draft, samples, lab)
    return replace(draft, experiments=(*draft.experiments, *lab.records[n_records:]))


def _tested(family: type[Family], draft: Draft, samples: Sequence[Sample], lab: Lab) -> Draft:
    """The draft with the hypotheses of one family that the model confirms."""
    logger.info("testing: %s", family.question)
    test = family(draft, samples, lab)
    try:
        with lab.share(family.most_runs):
            for better in test.drafts():
                draft = better
    except SpentError as spent:
        draft = draft.with_blind(test.untested(spent))
    return draft

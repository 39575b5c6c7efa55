"""All families of hypotheses about the calls of one graph, in the order in which they are tested.

To add an idea, write one file with a class like those below, and add one line to :data:`FAMILIES`.

Three questions come before a draft of a plan exists, and have files of their own: :mod:`.replay`
(do the recorded calls give again what they gave?), :mod:`.concatenated_lists` (does the model only
concatenate a list?) and
:mod:`.shared_graphs` (can one graph serve several kinds of calls?).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from ..lab.lab import Lab, SpentError
from ..observing.store import Sample
from .absent_masks import AbsentMasks
from .axes import AxesThatMayChange, PinnedAxes
from .draft import Draft
from .empty_sizes import EmptySizes
from .family import Family
from .observed_steps import ObservedSteps
from .omitted_arguments import OmittedArguments
from .relations import Relations

__all__ = ["FAMILIES", "resolved"]

logger = logging.getLogger(__name__)

FAMILIES: tuple[type[Family], ...] = (
    AxesThatMayChange,  # an axis that never changed may change, alone or together with others
    PinnedAxes,  # the caller says that an axis changes
    ObservedSteps,  # sizes that were all multiples of 16 are so by chance
    Relations,  # a relation between axes is a coincidence of a few calls
    ObservedSteps,  # the same for sizes that only a relation tied to others until now
    AbsentMasks,  # ones are neutral for a mask that no call passed
    OmittedArguments,  # a call may leave out an argument that every call passed
    EmptySizes,  # a size that was never 0 may be 0
)


def resolved(draft: Draft, samples: Sequence[Sample], lab: Lab) -> Draft:
    """The draft with what the caller and the model say about all that the calls left open.

    Without probing, or without a budget, only what the caller said counts. A family whose share of
    the budget ends keeps what it has found, and says what it could not test.
    """
    families = FAMILIES if draft.overrides.probe and lab.budget.runs else (PinnedAxes,)
    n_records = len(lab.records)
    with lab.stages.stage("probe"):
        for family in families:
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

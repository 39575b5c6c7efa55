"""Does the model read the values in which two calls of the same sizes differ?

Equal results show that it does not, results that are far apart that it does. Between them is what
rounding explains, and there the operators of both runs decide. The same operators on the same
shapes are the same kernels, and give the same bits for the same numbers: then any difference comes
from the values. Of 3 columns more in an image of 224 an untrained MobileNet keeps 4e-7.

Other operators may round otherwise: transformers leaves a mask of ones out of its attention and
takes one with a zero, though the zero stands behind all tokens. Then a difference that rounding
explains shows nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..core.path import Path
from ..core.plan import Plan
from ..core.structure import Tree
from ..lab.judge import results_equal, results_within_rounding
from ..lab.lab import Lab, SpentError
from ..materialise.arguments import close_arguments

__all__ = ["reads_difference"]

logger = logging.getLogger(__name__)

#: the values of a call, and the result of the model for it
Run = tuple[Mapping[Path, Any], Tree[Any]]


def reads_difference(plan: Plan, lab: Lab, one: Run, other: Run, *, why: str) -> bool:
    """True when the results of two calls of the same sizes differ because of their values.

    :raises SpentError: when the budget has ended
    """
    values, result = one
    other_values, other_result = other
    if results_equal(values, result, other_result):
        return False
    if not results_within_rounding(values, result, other_result):
        return True
    try:
        operators, again = lab.operators_of_run(
            close_arguments(plan, values), why=f"{why}, its operators"
        )
        others, _ = lab.operators_of_run(
            close_arguments(plan, other_values), why=f"{why}, the operators for other values"
        )
    except SpentError:
        raise
    except Exception as error:
        logger.debug("the operators are not known: %s: %s", type(error).__name__, error)
        return False
    is_repeatable = results_equal(values, result, again)
    return is_repeatable and operators == others

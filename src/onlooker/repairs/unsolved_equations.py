"""An equation of sizes that sympy cannot solve: the trace goes on, as it does for an inequality.

Why: after a trace torch solves the conditions on sizes, for the message of an error and for what it
suggests. No program is computed from the solutions. Of ``(length / 4) // 2 == 7``, which a pooling
over all that two strides leave asks, sympy finds none, and its error ends the export.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py,
``DimConstraints.solve``, which takes such an error for inequalities only. It may go when that takes
it for equations; ``upstream/torch_unsolved_equation.py`` says so.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from ..patches.swap import swapped
from ..torch_internals.sizes import DimConstraints
from .repair import Repair

__all__ = ["UNSOLVED_EQUATIONS", "unsolved_equations_stay"]

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def unsolved_equations_stay() -> Iterator[None]:
    """Inside the block an equation that cannot be solved ends no trace."""
    solve = DimConstraints.solve

    def solved(conditions: DimConstraints) -> None:
        try:
            solve(conditions)
        except NotImplementedError as error:
            logger.debug("torch suggests nothing: %s", error)

    with swapped(DimConstraints, "solve", solved):
        yield


UNSOLVED_EQUATIONS = Repair(
    "unsolved equations",
    "After a trace torch solves the conditions on sizes for its messages. An equation that"
    " sympy cannot solve ends the export, although no program is computed from the solution.",
    until="upstream/torch_unsolved_equation.py",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/symbolic_shapes.py",
    refusal="cannot be solved using",
    block=lambda _: unsolved_equations_stay(),
)

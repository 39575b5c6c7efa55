"""General sizes that the model itself accepts, with values and the result."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import ExportError
from ..core.path import Path
from ..core.plan import Plan
from ..core.structure import Tree
from ..infer.sizes import Sizes, choose_sizes, observed_sizes
from ..materialise.arguments import close_arguments, materialise
from ..observe.store import Sample
from .subject import Subject

__all__ = ["Example", "find_example", "size_choices"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Example:
    """Sizes that the model accepts, the values of all leaves, and the result."""

    sizes: Sizes
    values: Mapping[Path, Any]
    outputs: Tree[Any]


def find_example(
    plan: Plan,
    samples: Sequence[Sample],
    subject: Subject,
    *,
    fixed: Mapping[str, int] | None = None,
    choices: Iterable[Sizes] | None = None,
) -> Example:
    """The first general sizes that the model itself accepts in eager mode.

    ``choices`` are tried instead of the usual ones; ``fixed`` sizes are kept whatever is chosen.

    :raises ExportError: ``no-lawful-sizes`` when it refuses all that were tried
    """
    refusal: Exception | None = None
    for choice in size_choices(plan) if choices is None else choices:
        sizes = {**choice, **(fixed or {})}
        for varied in (True, False):
            values = materialise(plan, sizes, samples, varied=varied)
            try:
                return Example(sizes, values, subject.try_out(close_arguments(plan, values)))
            except Exception as error:
                refusal = error
                logger.debug("sizes %s are refused by the model: %s", sizes, error)
    names = ", ".join(s.name for s in plan.symbols) or "this call"
    raise ExportError(
        f"The model refuses every choice of general sizes for {names}; "
        f"the last refusal was {type(refusal).__name__}: {refusal}.",
        slug="no-lawful-sizes",
        hint="Watch calls of other sizes, so that relations between axes show.",
    ) from refusal


def size_choices(plan: Plan) -> Iterator[Sizes]:
    """General sizes: small ones first, then ones near to what was seen, then the greatest that was seen."""
    for near, offset in ((False, 0), (False, 1), (True, 0), (True, 1), (True, 3)):
        try:
            yield choose_sizes(plan, near=near, offset=offset)
        except ExportError as error:
            logger.debug("%s", error)
    yield observed_sizes(plan)

"""Sizes that were seen may all be multiples of 16 by chance: the model is asked for one between them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..core.plan import Plan, Symbol
from ..infer.samples import Row, row_of_values
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observe.store import Sample
from .regimes import Regime
from .subject import Subject

__all__ = ["probe_seen_steps"]

logger = logging.getLogger(__name__)
_PRIMES = (2, 3, 5, 7)


def probe_seen_steps(regime: Regime, samples: Sequence[Sample], subject: Subject) -> Regime:
    """The regime with a row for every symbol whose sizes were multiples by chance, at a size that is none."""
    plan = regime.plan()
    rows: list[Row] = []
    for symbol in plan.symbols:
        if symbol.step > 1:
            between = (_row(plan, symbol, size, regime, samples, subject) for size in _between(symbol))
            rows += [row for row in between if row is not None][:1]
    return replace(regime, probes=(*regime.probes, *rows)) if rows else regime


def _between(symbol: Symbol) -> Iterator[int]:
    """The next size, then ones in smaller steps; the greatest one that was seen is where they begin."""
    largest = max(symbol.observed)
    yield largest + 1
    for prime in _PRIMES:
        if symbol.step % prime == 0 and symbol.step > prime:
            yield largest + symbol.step // prime


def _row(
    plan: Plan, symbol: Symbol, size: int, regime: Regime, samples: Sequence[Sample], subject: Subject
) -> Row | None:
    """The row of a size that the model takes."""
    calls = {call.index for form in regime.union.forms for call in form.calls}
    own = [sample for sample in samples if sample.call.index in calls]
    if not own:
        return None
    sizes = {**sizes_of(plan, leaf_values(own[-1])), symbol.name: size}
    values = materialise(plan, sizes, own)
    try:
        subject.try_out(close_arguments(plan, values))
    except Exception as error:
        logger.debug("%s=%d is refused: %s", symbol.name, size, type(error).__name__)
        return None
    return row_of_values(f"{symbol.name} probed at {size}", values)

"""Arguments that every call passed: which of them may a call leave out?

``generate()`` drops a mask that hides nothing, and some of its ways leave out flags that the configuration of the
model says anyway. A tensor may be left out where the model gives for ones, or zeros, of its shape what it gives
without it; a flag where it gives the same with it and without it. Both are asked on several sizes, each argument
alone and then all of them together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..core.path import Path
from ..core.plan import Fill, LeafPlan, Plan
from ..core.spec import ConstantSpec
from ..core.structure import Tree
from ..infer.sizes import Sizes
from ..materialise.arguments import close_arguments, fill_of, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..observe.store import Sample
from ..pytrees.agree import agreement
from .example import size_choices
from .pins import Pins
from .regimes import Regime
from .subject import Subject

__all__ = ["add_left_out"]

logger = logging.getLogger(__name__)
#: choices of general sizes beside those of the first and the last call
_CHOICES = 1
#: the share of the seconds of all probes
_SHARE = 0.25


class _SpentError(Exception):
    """The budget of probes ended; never seen by a user."""


def add_left_out(regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime:
    """The regime with a fill for every tensor, and a word for every flag, that a call may leave out."""
    plan = regime.plan()
    candidates = [leaf for leaf in plan.leaves if _is_candidate(leaf, plan, subject)]
    calls = {call.index for form in regime.union.forms for call in form.calls}
    own = [sample for sample in samples if sample.call.index in calls]
    if not candidates or not own:
        return regime
    experiment = _Experiment(plan, subject, tuple(_bases(plan, own)), time.monotonic() + _SHARE * pins.seconds)
    found: dict[Path, Fill | None] = {}
    try:
        found = experiment.together(experiment.alone(candidates))
    except _SpentError:
        blind = "the budget of probes ended before every argument was left out: raise budget="
        regime = replace(regime, blind=(*regime.blind, blind))
    fills = {path: fill for path, fill in found.items() if fill is not None}
    flags = frozenset(path for path, fill in found.items() if fill is None)
    logger.debug("may be left out: %s", ", ".join(map(str, found)))
    return replace(regime, fills={**regime.fills, **fills}, optional=flags)


def _is_candidate(leaf: LeafPlan, plan: Plan, subject: Subject) -> bool:
    """True for a whole argument that every call passed, and that the signature does not require."""
    if len(leaf.path.entries) > 1 or leaf.fill is not None or leaf.calls < len(plan.calls):
        return False
    parameter = subject.signature.get(leaf.path.root)
    if parameter is None:
        optional = subject.signature.of_kind("VAR_KEYWORD") is not None
    else:
        optional = not parameter.required and not parameter.kind.startswith("VAR")
    if leaf.is_tensor or not optional:
        return optional
    default = parameter.default if parameter is not None else None
    return leaf.constant is not None and leaf.constant not in (ConstantSpec(None), default)


def _bases(plan: Plan, samples: Sequence[Sample]) -> Iterator[dict[Path, Any]]:
    """The values of calls: at the sizes of the last one and of the first one, then at general ones."""
    seen: list[Sizes] = []
    ends = [sizes_of(plan, leaf_values(sample)) for sample in (samples[-1], samples[0])]
    for sizes in (*ends, *islice(size_choices(plan), _CHOICES)):
        if sizes not in seen:
            seen.append(sizes)
            yield materialise(plan, sizes, samples)


@dataclass(frozen=True, slots=True)
class _Experiment:
    """One plan, asked about with the model; ``results`` are those of the calls that were tried, each once."""

    plan: Plan
    subject: Subject
    bases: tuple[Mapping[Path, Any], ...]
    deadline: float
    results: dict[Hashable, Tree[Any] | None] = field(default_factory=dict)

    def alone(self, leaves: Sequence[LeafPlan]) -> dict[Path, Fill | None]:
        """The leaves that a call may lack, each with its fill, None for a flag.

        :raises _SpentError: when the budget ends before
        """
        ways = ((leaf.path, fill) for leaf in leaves for fill in _fills(leaf))
        found: dict[Path, Fill | None] = {}
        for path, fill in ways:
            if path not in found and self._holds({path: fill}):
                found[path] = fill
        return found

    def together(self, found: dict[Path, Fill | None]) -> dict[Path, Fill | None]:
        """Those of them that a call may lack at once, the first ones first."""
        if len(found) < 2 or self._holds(found):
            return found
        kept: dict[Path, Fill | None] = {}
        for path, fill in found.items():
            if self._holds({**kept, path: fill}):
                kept[path] = fill
        return kept

    def _holds(self, gone: Mapping[Path, Fill | None]) -> bool:
        """True when the model gives without these arguments what it gives with their fills, wherever it runs."""
        held = 0
        for number, base in enumerate(self.bases):
            roots = {path.root for path in gone}
            own = {n: value for n, value in close_arguments(self.plan, base).items() if n not in roots}
            without = self._result((number, frozenset(gone)), own)
            if without is None and number == 0:
                return False
            result = self._filled(number, base, {path: fill for path, fill in gone.items() if fill is not None}, gone)
            if result is None and without is None:
                continue
            if result is None or without is None or not _agree(without, result):
                return False
            held += 1
        return held >= min(2, len(self.bases))

    def _filled(
        self, number: int, base: Mapping[Path, Any], fills: Mapping[Path, Fill], gone: Collection[Path]
    ) -> Tree[Any] | None:
        """The result with these fills; None where the model refuses it, or a size of a fill shows nowhere else."""
        known = sizes_of(self.plan, {path: value for path, value in base.items() if path not in gone})
        values = dict(base)
        for leaf in self.plan.inputs:
            if leaf.path in fills:
                values[leaf.path] = fill_of(replace(leaf, fill=fills[leaf.path]), known)
                if values[leaf.path].shape != base[leaf.path].shape:
                    return None
        return self._result((number, frozenset(fills.items())), close_arguments(self.plan, values))

    def _result(self, key: Hashable, arguments: dict[str, Any]) -> Tree[Any] | None:
        """The result of a call, None where the model refuses it.

        :raises _SpentError: when the budget ended
        """
        if key not in self.results:
            if time.monotonic() > self.deadline:
                raise _SpentError
            self.results[key] = self._run(arguments)
        return self.results[key]

    def _run(self, arguments: dict[str, Any]) -> Tree[Any] | None:
        try:
            return self.subject.try_out(arguments)
        except Exception as error:
            logger.debug("a call without an argument is refused: %s: %s", type(error).__name__, error)
            return None


def _fills(leaf: LeafPlan) -> tuple[Fill | None, ...]:
    """What may stand for an argument that is left out: a mask hides nothing, anything else adds nothing."""
    if not leaf.is_tensor:
        return (None,)
    ones, zeros = Fill("ones"), Fill("zeros")
    return (ones, zeros) if "mask" in leaf.path.root else (zeros, ones)


def _agree(expected: Tree[Any], got: Tree[Any]) -> bool:
    same = expected.structure == got.structure
    return same and agreement(expected.structure.paths(), expected.leaves, got.leaves).holds

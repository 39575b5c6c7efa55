"""Tries every row of a table that an input indexes, in as few calls as hold all its ids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Sizes
from ..core.verdict import Check, Focus, Outcome, Tally
from ..infer.sizes import is_possible, size_label
from ..materialise.arguments import Calls
from ..pytrees.numbers import as_dtype
from ..pytrees.open import dtype_of
from ..verify.trials import Trial

__all__ = ["RowTrials", "is_index", "sizes_for"]

#: ids of one call, the calls of one input, and those of them that the model may refuse
_MOST_IDS, _MOST_CALLS, _MOST_REFUSED = 1024, 512, 40
#: so many last elements are columns of their own, with tables of their own
_MOST_COLUMNS = 16

#: the tally of one trial, and the labels of those that the model refuses
Try = Callable[[Trial], tuple[Tally, tuple[str, ...]]]


def is_index(leaf: LeafPlan, calls: Calls) -> bool:
    """True for a tensor of ints that is no mask."""
    if not leaf.is_tensor or calls.domains.of(leaf.path).is_mask:
        return False
    dtype = dtype_of(leaf.dtype)
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


@dataclass(slots=True)
class RowTrials:
    """The calls in which one input has every id from 0 to ``rows``, which is outside.

    ``attempt`` makes one trial. A call that the model refuses is made again with each half of its
    ids; where calls are refused and the last size never changes, each column is tried by itself too.
    After :meth:`run`, ``tally`` has the calls, ``wrong`` an id with which the file is wrong and the
    check of its call, ``left`` the number of ids that were not tried for the number of calls or for
    time.
    """

    calls: Calls
    leaf: LeafPlan
    rows: int
    sizes: Sizes
    attempt: Try
    is_over: Callable[[], bool]
    wrong: tuple[int, Check] | None = None
    left: int = 0
    tally: Tally = field(default_factory=Tally)
    _calls: int = 0
    _refused: int = 0

    def run(self) -> None:
        """Makes the calls, until one is wrong."""
        self._try(None)
        if self.wrong or not self._refused:
            return
        last = self.leaf.shape[-1] if self.leaf.shape else None
        if last is not None and last.is_constant and last.evaluate({}) <= _MOST_COLUMNS:
            self.left = 0
            for column in range(last.evaluate({})):
                self._refused = 0
                if self.wrong is None:
                    self._try(column)

    @property
    def is_refused(self) -> bool:
        """True where the file refuses the call that is wrong."""
        return self.wrong is not None and self.wrong[1].outcome is Outcome.REJECTED

    def _try(self, column: int | None) -> None:
        """Makes the calls of all columns, or of one."""
        count = math.prod(e.evaluate(self.sizes) for e in self.leaf.shape)
        if column is not None:
            count //= self.leaf.shape[-1].evaluate({})
        waiting = [*self._parts(count)] if count else []
        while waiting:
            low, high = waiting.pop(0)
            if self._calls >= _MOST_CALLS or self._refused >= _MOST_REFUSED or self.is_over():
                self.left += high - low
                continue
            tally, refused = self._call(low, high, column)
            if refused:
                middle = (low + high) // 2
                self._refused += 1
                waiting += [(low, middle), (middle, high)] if high - low > 1 else []
                continue
            self.tally += tally
            failed = _failed(tally)
            if failed is not None:
                self.wrong = self._one_of(low, high, column, failed)
                return

    def _parts(self, count: int) -> Iterator[tuple[int, int]]:
        for low in range(0, self.rows, count):
            yield low, min(low + count, self.rows)

    def _one_of(self, low: int, high: int, column: int | None, check: Check) -> tuple[int, Check]:
        """One id with which the file is wrong, of those of a wrong call, and the check of its call."""
        while high - low > 1:
            middle = (low + high) // 2
            failed = _failed(self._call(low, middle, column)[0])
            if failed is not None:
                high, check = middle, failed
                continue
            failed = _failed(self._call(middle, high, column)[0])
            if failed is None:  # it is wrong with both halves together alone
                break
            low, check = middle, failed
        return low, check

    def _call(self, low: int, high: int, column: int | None) -> tuple[Tally, tuple[str, ...]]:
        self._calls += 1
        values = self.calls.values(self.sizes, varied=False)
        value = values[self.leaf.path].clone()
        part = value if column is None else value[..., column]
        ids = low + torch.arange(part.numel()) % (high - low)
        part.copy_(as_dtype(ids.reshape(part.shape), value.dtype))
        where = self.leaf.path if column is None else f"{self.leaf.path}[..., {column}]"
        label = f"{size_label(self.sizes)}, {where} from {low} to {high - 1}".removeprefix(", ")
        arguments = self.calls.arguments_of({**values, self.leaf.path: value})
        sizes = tuple(self.sizes.items())
        return self.attempt(
            Trial("unseen", label, arguments, sizes, self.calls.plan, focus=Focus.GIVEN)
        )


def _failed(tally: Tally) -> Check | None:
    return next((check for check in tally.checks if not check.passed), None)


def sizes_for(
    plan: Plan,
    leaf: LeafPlan,
    rows: int,
    base: Sizes,
    allows: Callable[[Sizes], bool],
) -> Sizes:
    """Sizes at which one tensor has room for many ids: those of ``base`` with one of its symbols
    grown, the first that is allowed.
    """
    wanted = min(rows, _MOST_IDS)
    for symbol in plan.symbols:
        smaller = {**base, symbol.name: 1}
        if not any(symbol.name in e.symbols for e in leaf.shape) or not is_possible(plan, smaller):
            continue
        step = math.prod(e.evaluate(smaller) for e in leaf.shape)
        size = -(-wanted // max(step, 1))
        size = max(base[symbol.name], -(-size // symbol.step) * symbol.step)
        grown = {**base, symbol.name: size}
        if symbol.takes(size) and is_possible(plan, grown) and allows(grown):
            return grown
    return dict(base)

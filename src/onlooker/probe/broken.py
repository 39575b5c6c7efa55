"""One relation broken alone: one side made larger than the relation says, then the other, and the model run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import Plan
from ..core.spec import Axis
from ..core.structure import Tree
from ..infer.doubts import Doubt
from ..infer.sizes import Sizes, is_general, is_possible
from ..materialise.arguments import close_arguments
from ..materialise.tensors import resized
from ..pytrees.agree import agreement
from ..pytrees.numbers import altered, as_dtype, as_numbers
from .classes import size_of
from .example import Example
from .handed_back import computed
from .subject import Subject

__all__ = ["REFUSED", "UNREAD", "Broken", "SpentRelationsError", "perturbed", "same_results"]

logger = logging.getLogger(__name__)
REFUSED = "the model refuses it"
UNREAD = "the model does not read what is too long"
_NOWHERE = "no such sizes"
_STEPS = 12


class SpentRelationsError(Exception):
    """The budget of probes ended; never seen by a user."""


class Broken:
    """A doubtful relation, in a plan that reads the table without it."""

    def __init__(self, plan: Plan, doubt: Doubt, example: Example, subject: Subject, spend: Callable[[], None]) -> None:
        self.plan, self.doubt, self.example, self.subject, self.spend = plan, doubt, example, subject, spend
        self.sizes = _read_sizes(plan, example.values)
        self.accepted: dict[Path, Any] = {}

    def outcome(self) -> str:
        """Why the relation is kept; nothing where the model takes both sides longer, and reads what was added.

        Where the other side is an expression, the first one is made shorter instead.
        """
        moved = self._changed(self.doubt.moved, 1)
        if moved is None:
            return _NOWHERE
        refusal = self._refusal(moved, self.doubt.moved)
        if refusal:
            return refusal
        self.accepted = moved
        other, way = (self.doubt.kept, 1) if self._symbol(self.doubt.kept) else (self.doubt.moved, -1)
        back = self._changed(other, way)
        if back is None:
            return _NOWHERE
        return self._refusal(back, other if way > 0 else ())

    def _symbol(self, axes: Sequence[Axis]) -> str | None:
        """The symbol of the axes in the plan without the relation."""
        expression = self.plan.expression(axes[0]) if axes else None
        return str(expression) if expression is not None and expression.is_symbol else None

    def _changed(self, axes: Sequence[Axis], way: int) -> dict[Path, Any] | None:
        """The values with these axes larger or smaller, and with them what follows from them; the rest as it was."""
        name = self._symbol(axes)
        if name is None:
            return None
        choices = list(self._choices(name, way))
        sizes = next((sizes for sizes in choices if is_general(self.plan, sizes)), choices[0] if choices else None)
        return None if sizes is None else self._resized(sizes)

    def _choices(self, name: str, way: int) -> Iterator[Sizes]:
        step, size = self.plan.symbol(name).step, self.sizes[name]
        for number in range(1, _STEPS):
            changed = size + way * number * step
            sizes = {**self.sizes, name: changed}
            if changed > 1 and is_possible(self.plan, sizes):
                yield sizes

    def _resized(self, sizes: Sizes) -> dict[Path, Any]:
        values = dict(self.example.values)
        for leaf in self.plan.inputs:
            value = values.get(leaf.path)
            if leaf.is_tensor and isinstance(value, torch.Tensor):
                values[leaf.path] = resized(value, [expression.evaluate(sizes) for expression in leaf.shape])
            elif leaf.value is not None:
                values[leaf.path] = leaf.value.evaluate(sizes)
        return values

    def _refusal(self, values: Mapping[Path, Any], longer: Sequence[Axis]) -> str:
        """Why sizes do not count: the model refuses them, or does not read what is new in ``longer`` axes.

        Each argument has to be read by itself: a mask that is too long is not, though what grows with it may be.
        """
        got = self._run(values)
        if got is None:
            return REFUSED
        if not longer:
            return ""
        for root in dict.fromkeys(axis.path.root for axis in longer):
            own = [axis for axis in longer if axis.path.root == root]
            other = self._run(perturbed(values, self.example.values, own))
            if other is None or same_results(values, got, other):
                return UNREAD
        return ""

    def _run(self, values: Mapping[Path, Any]) -> Tree[Any] | None:
        """The result of the model, None where it refuses or gives a result of another form."""
        self.spend()
        try:
            got = self.subject.try_out(close_arguments(self.plan, values))
        except Exception as error:
            logger.debug("a broken relation is refused: %s: %s", type(error).__name__, error)
            return None
        ranks = [[getattr(leaf, "ndim", -1) for leaf in tree.leaves] for tree in (self.example.outputs, got)]
        return got if ranks[0] == ranks[1] else None


def same_results(values: Mapping[Path, Any], got: Tree[Any], other: Tree[Any]) -> bool:
    """True when what the model computes is the same; an input that it hands back does not count."""
    judged = computed(values.values(), got.leaves)
    left, right = ([tree.leaves[i] for i in judged] for tree in (got, other))
    return agreement([p for i, p in enumerate(got.structure.paths()) if i in judged], left, right, atol=0.0).holds


def _read_sizes(plan: Plan, values: Mapping[Path, Any]) -> Sizes:
    """The size of each symbol in a call that obeys more relations than the plan has."""
    sizes: Sizes = {}
    for leaf in plan.inputs:
        for axis, expression in leaf.axes:
            if expression.is_symbol and values.get(leaf.path) is not None:
                sizes.setdefault(str(expression), size_of(axis, values))
    return sizes


def perturbed(values: Mapping[Path, Any], before: Mapping[Path, Any], axes: Sequence[Axis]) -> dict[Path, Any]:
    """The values with other numbers in what these axes have more than before; an int is as it was before."""
    changed = dict(values)
    for axis in axes:
        value = changed[axis.path]
        if axis.dim is None or not isinstance(value, torch.Tensor):
            changed[axis.path] = before[axis.path]
            continue
        old = int(before[axis.path].shape[axis.dim])
        value = value.clone()
        added = value.narrow(axis.dim, old, value.shape[axis.dim] - old)
        added.copy_(_other(added, value))
        changed[axis.path] = value
    return changed


def _other(added: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Numbers of the same kind that are all different from those that stand there: ids stay ids, masks masks."""
    if value.dtype == torch.bool:
        return ~added
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return altered(added)
    numbers, present = as_numbers(value), as_numbers(added)
    low, high = numbers.min(), numbers.max()
    if bool(low == high):
        return as_dtype(torch.where(present > 0, present - 1, present + 1), value.dtype)
    return as_dtype(torch.where(present == low, high, low), value.dtype)

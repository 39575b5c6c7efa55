"""One relation broken alone: one side made larger than the relation says, then the other, and
the model run.

An example: in all calls ``ids`` and ``mask`` have the same length, 6 in one of them. Is that a relation of the
model, or chance? The model is run twice more, with one of them longer, and with other values in what is new::

    ids 7, mask 6     an error                                            one length may be at most the other
                      a result that other ids in column 7 do not change   nothing reads what is new: it stays,
                                                                          but for chance between a length and a batch
                      a result that they change                           so far two lengths are possible
    ids 6, mask 7     the same questions                                  one was possible: two symbols
                      an error as well                                    the relation is the model's: it stays

A relation that is kept in vain makes a program refuse calls that the model takes. One that is dropped in vain makes
a graph that runs where the model refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from ..core.call import Values
from ..core.experiment import FindingKind
from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..core.spec import Axis
from ..core.structure import Result
from ..infer.doubtful import DoubtfulRelation, argument_of
from ..infer.sizes import stepped_sizes
from ..lab.example import Example
from ..lab.judge import have_same_ranks, perturbed, results_equal
from ..lab.lab import Lab
from ..materialise.arguments import close_arguments
from ..materialise.domains import Domains
from ..materialise.tensors import resized
from ..pytrees.numbers import altered, is_same
from .axes.classes import size_of
from .reading import reads_difference

__all__ = ["BrokenRelation"]

logger = logging.getLogger(__name__)


class BrokenRelation:
    """A doubtful relation, in a plan that reads the table without it.

    ``accepted`` are the values of a call that breaks the relation, where the model takes such a
    call. ``at_most`` is True where the model may take none larger than those of the example.
    """

    def __init__(
        self,
        plan: Plan,
        doubt: DoubtfulRelation,
        example: Example,
        lab: Lab,
        domains: Domains,
        *,
        at_most: bool = False,
    ) -> None:
        self._at_most = at_most
        self._plan, self._doubt, self._example, self._lab, self._domains = (
            plan,
            doubt,
            example,
            lab,
            domains,
        )
        self._sizes = _read_sizes(plan, example.values)
        self.accepted: Values = {}

    def finding(self) -> FindingKind:
        """``ACCEPTED`` where the model takes one side longer and reads what was added, and the other
        side too unless it refuses that; else why it does not count. The trace says what is refused.

        Where the other side is an expression, the first one is made shorter as well, and has to be taken;
        so it is where the model may take nothing longer.

        :raises SpentError: when the budget has ended
        """
        moved_axes, kept_axes = self._doubt.moved, self._doubt.kept
        found, self.accepted = self._longer(moved_axes)
        if found is FindingKind.UNREAD and self._are_unread_ints(moved_axes):
            return FindingKind.ACCEPTED
        is_of_rows = any(axis.dim == 0 for axis in moved_axes)  # a batch is no part of another one
        if found is not FindingKind.ACCEPTED and (found is not FindingKind.REFUSED or is_of_rows):
            return found
        if self._symbol(kept_axes):
            other, kept = self._longer(kept_axes)
            if found is FindingKind.ACCEPTED:
                return found if other is FindingKind.REFUSED else other
            self.accepted = kept
            return other if other is FindingKind.ACCEPTED else found
        if found is FindingKind.REFUSED and not self._at_most:
            return found
        shorter = self._changed(moved_axes, -1)
        if found is FindingKind.REFUSED and shorter is not None:
            self.accepted = shorter
        return FindingKind.NO_SIZES if shorter is None else self._tested(shorter, ())

    def _longer(self, axes: Sequence[Axis]) -> tuple[FindingKind, Values]:
        """Runs the model with longer ``axes``: returns the finding, and the values that it
        was given.

        A stride skips a column more, and a patch up to 31: where nothing reads what is new, the
        axes become twice as long, so that what is new holds all that fits into the old size.
        """
        name = self._symbol(axes)
        if name is None:
            return FindingKind.NO_SIZES, {}
        found = FindingKind.NO_SIZES
        values: Values = {}
        numbers_of_steps = [1]
        if any(axis.dim != 0 for axis in axes):  # no stride goes over the rows of a batch
            numbers_of_steps.append(self._sizes[name] // self._plan.symbol(name).step)
        for least in numbers_of_steps:
            longer = self._changed(axes, 1, least=least)
            if longer is None:
                continue
            further = self._tested(longer, axes)
            if further is FindingKind.ACCEPTED or not values:
                found, values = further, longer
            if further is not FindingKind.UNREAD:
                break
        if found is FindingKind.UNREAD and self._doubt.is_within:
            found = FindingKind.ACCEPTED  # the model takes any two lengths of one tensor
        return found, values

    def _are_unread_ints(self, axes: Sequence[Axis]) -> bool:
        """True for ints of which the model reads neither a larger one nor a smaller one: nothing ties them."""
        smaller = None if any(axis.dim is not None for axis in axes) else self._changed(axes, -1)
        if smaller is None:
            return False
        text = f"{self._doubt.text}, another number"
        one, other = (self._run(values, text) for values in (self.accepted, smaller))
        return one is not None and other is not None and results_equal(smaller, one, other)

    def _symbol(self, axes: Sequence[Axis]) -> str | None:
        """The symbol of the axes in the plan without the relation."""
        expression = self._plan.expression(axes[0]) if axes else None
        return str(expression) if expression is not None and expression.is_symbol else None

    def _changed(self, axes: Sequence[Axis], way: int, *, least: int = 1) -> Values | None:
        """The values with these axes larger or smaller by ``least`` steps or a few more, and with
        them what follows from them; the rest as it was.
        """
        name = self._symbol(axes)
        if name is None:
            return None
        sizes = stepped_sizes(self._plan, self._sizes, name, way, least=least)
        return None if sizes is None else self._resized(sizes)

    def _resized(self, sizes: Sizes) -> Values:
        values = dict(self._example.values)
        for leaf in self._plan.inputs:
            value = values.get(leaf.path)
            if leaf.is_tensor and isinstance(value, torch.Tensor):
                shape = [expression.evaluate(sizes) for expression in leaf.shape]
                values[leaf.path] = resized(value, shape)
            elif leaf.value is not None:
                values[leaf.path] = leaf.value.evaluate(sizes)
        return self._domains.clamped(values)

    def _tested(self, values: Values, longer: Sequence[Axis]) -> FindingKind:
        """``ACCEPTED`` where the model takes the values, and reads what is new in the ``longer``
        axes.

        Each argument has to be read by itself: a mask that is too long is not, though what grows
        with it may be. An argument of which no other numbers are valid tells nothing. Floats of
        which the model reads none are free: no length of theirs matters. So are such masks beside
        an argument that is read.
        """
        got = None if self._is_refused_unchecked(values) else self._run(values, self._doubt.text)
        if got is None:
            return FindingKind.REFUSED
        # every argument has its own say: one of which something new is read makes up for a mask that is too
        # long, and never for floats that are read elsewhere and not here
        are_told, is_one_read = not longer, False
        masks: list[list[Axis]] = []
        for name in dict.fromkeys(map(argument_of, longer)):
            own = [axis for axis in longer if argument_of(axis) == name]
            changed = perturbed(values, self._example.values, own, self._domains)
            if all(_is_same(changed[axis.path], values[axis.path]) for axis in own):
                continue  # no other numbers are valid there: positions count from 0
            are_told = True
            others = [axis for axis in longer if argument_of(axis) != name]
            is_read = self._reads_other(values, got, changed, f"other values of {name}")
            if is_read or self._is_read_where_shown(values, own, others):
                is_one_read = True
            elif all(self._is_binary(axis, values) for axis in own):
                masks.append(own)
            elif self._is_in_result(got, own):
                is_one_read = True
            elif self._reads(values, got, own):
                return FindingKind.UNREAD
        if masks and (not is_one_read or any(self._reads(values, got, own) for own in masks)):
            return FindingKind.UNREAD
        return FindingKind.ACCEPTED if are_told else FindingKind.UNREAD

    def _is_refused_unchecked(self, values: Values) -> bool:
        """True where tensors without values are refused, though those of the calls are taken.

        Some operators of torch check no sizes and read beyond a tensor that is too small, which may
        end the process (``torch.native_batch_norm`` with weights of fewer channels); on tensors
        without values they do check.
        """
        text = self._doubt.text
        if self._takes_shapes(values, f"not {text}, without values"):
            return False
        return self._takes_shapes(self._example.values, f"{text}, without values")

    def _takes_shapes(self, values: Values, why: str) -> bool:
        return self._lab.takes_shapes(close_arguments(self._plan, values), why=why)

    def _is_binary(self, axis: Axis, values: Values) -> bool:
        """True for an axis of a mask of ints or bools."""
        value = values[axis.path]
        is_int = isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
        return is_int and self._domains.of(axis.path).is_binary

    def _is_in_result(self, got: Result, own: Sequence[Axis]) -> bool:
        """True where a relation is one between the axes of a single tensor, and a result is longer with
        it: a triangle has zeros beyond a square, whatever stands there.
        """
        if len({axis.path for axis in (*own, *self._doubt.kept)}) > 1:
            return False
        pairs = zip(self._example.outputs.leaves, got.leaves, strict=True)
        return any(
            isinstance(after, torch.Tensor) and after.shape != before.shape
            for before, after in pairs
        )

    def _is_read_where_shown(
        self, values: Values, own: Sequence[Axis], others: Sequence[Axis]
    ) -> bool:
        """True where the model reads what is new in its ``own`` axes once the new part of the
        ``others`` has other values: a mask that grows along may hide all that is new.
        """
        former = self._example.values
        shown = perturbed(values, former, others, self._domains)
        if all(_is_same(shown[axis.path], values[axis.path]) for axis in others):
            return False
        beside = argument_of(own[0])
        got = self._run(shown, f"{self._doubt.text}, other values beside {beside}")
        if got is None:
            return False
        changed = perturbed(shown, former, own, self._domains)
        return self._reads_other(shown, got, changed, "other values of all")

    def _reads_other(self, values: Values, got: Result, changed: Values, what: str) -> bool:
        """True when the model takes changed values, and gives another result because of them."""
        why = f"{self._doubt.text}, {what}"
        other = self._run(changed, why)
        if other is None:
            return False
        return reads_difference(self._plan, self._lab, (values, got), (changed, other), why=why)

    def _reads(self, values: Values, got: Result, axes: Sequence[Axis]) -> bool:
        """True unless these axes are of floats or masks that the model does not read at all, though
        it may return them.
        """
        changed = dict(values)
        for axis in axes:
            value = values[axis.path]
            if self._is_binary(axis, values):
                changed[axis.path] = _every_other_flipped(value)
            elif isinstance(value, torch.Tensor) and value.dtype.is_floating_point:
                changed[axis.path] = altered(value)
            else:
                return True
        valid = self._domains.clamped(changed)
        if any(_is_same(valid[axis.path], values[axis.path]) for axis in axes):
            return True
        text = f"{self._doubt.text}, nothing of {axes[0].path.root} is read"
        other = self._run(valid, text)
        return other is None or not results_equal(values, got, other)

    def _run(self, values: Values, text: str) -> Result | None:
        """The result of the model, None where it refuses or gives a result of another form.

        :raises SpentError: when the budget has ended
        """
        try:
            arguments = close_arguments(self._plan, values)
        except Exception as error:
            logger.debug("a broken relation cannot be given: %s: %s", type(error).__name__, error)
            return None
        got = self._lab.try_run(arguments, why=f"not {text}", memo=True)
        if got is None or not have_same_ranks(self._example.outputs, got):
            return None
        return got


def _every_other_flipped(mask: torch.Tensor) -> torch.Tensor:
    """Returns the mask with every other value turned over: a model may read a mask that hides all as
    a mask that hides nothing.
    """
    flat = mask.reshape(-1).clone()
    flat[::2] = (flat[::2] == 0).to(mask.dtype)
    return flat.reshape(mask.shape)


def _is_same(left: Any, right: Any) -> bool:
    """True for the same tensor, and for one with the same values."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return left is right
    return left is right or is_same(left, right)


def _read_sizes(plan: Plan, values: Values) -> Sizes:
    """The size of each symbol in a call that obeys more relations than the plan has."""
    sizes: dict[str, int] = {}
    for leaf in plan.inputs:
        for axis, expression in leaf.axes:
            if expression.is_symbol and values.get(leaf.path) is not None:
                sizes.setdefault(str(expression), size_of(axis, values))
    return sizes

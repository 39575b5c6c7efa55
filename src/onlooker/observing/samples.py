"""The calls whose values are kept, within a budget."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.call import Call, Join
from ..core.structure import Tree
from ..pytrees.joins import join_tensors, joined, joined_results
from ..pytrees.numbers import has_floats, is_same
from ..pytrees.open import close_tree
from .budget import MemoryBudget, in_words
from .copies import copy_leaves, held_storages
from .ledger import Form
from .unrecorded_calls import UnrecordedCalls

__all__ = ["Sample", "Samples"]

_MOST_TRIES = 2
#: kinds of calls that differ in constants only: a number that is another one in each call is no new
#: kind
_MOST_CONSTANTS = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of one call: its arguments by name as they were before the call, and its result.

    ``counted`` is False for a call that was kept beyond the number asked for, because it brought
    something new; ``altered`` is True when arguments were taken out later: the result is then that
    of another call.
    """

    call: Call
    inputs: Tree[Any]
    outputs: Tree[Any]
    counted: bool = True
    altered: bool = False

    def arguments(self) -> dict[str, Any]:
        """A fresh copy of the arguments, so that a model may change them in place."""
        copied: dict[str, Any] = close_tree(self.inputs.structure, copy_leaves(self.inputs.leaves))
        return copied

    def floats(self) -> Iterator[torch.Tensor]:
        """The tensors of floats among the arguments that have values."""
        for leaf in self.inputs.leaves:
            if has_floats(leaf) and leaf.layout == torch.strided and not leaf.is_meta:
                yield leaf

    def joined(self, joins: Sequence[Join]) -> Sample:
        """The call as graphs see it: each joined list is a list of one tensor."""
        inputs = joined(self.inputs, joins, join_tensors)
        return replace(self, inputs=inputs, outputs=joined_results(self.outputs, joins))


class Samples:
    """The kept calls: the first ones, as many as are wanted, and one of every kind.

    When the budget is used up, a call of a new kind takes the place of one whose kind is kept
    twice.
    """

    def __init__(self, budget: MemoryBudget, unrecorded: UnrecordedCalls) -> None:
        self.samples: list[Sample] = []
        self.n_counted: int = 0
        self.dropped: list[str] = []
        self._budget, self._unrecorded = budget, unrecorded
        self._n_wanted = 0
        self._is_full = False
        self._forms: dict[Form, int] = {}
        self._wide: dict[Form, int] = {}
        self._form_of: dict[int, Form] = {}
        self._held: dict[torch.device, int] = {}
        self._storages: dict[int, int] = {}
        self._recent: list[dict[int, tuple[Any, torch.Tensor]]] = [{}, {}]

    @property
    def n_wanted(self) -> int:
        """The number of calls whose values were asked for."""
        return self._n_wanted

    @n_wanted.setter
    def n_wanted(self, number: int) -> None:
        self._n_wanted, self._is_full, self.dropped = number, False, []

    @property
    def wants_more(self) -> bool:
        """True while fewer calls are kept than were asked for."""
        return self.n_counted < self._n_wanted and not self._is_full

    def is_new(self, form: Form) -> bool:
        """True for a kind of call that is not kept yet, nor known to be impossible to keep."""
        return self._forms.get(form, 0) < _MOST_TRIES

    def may_keep(self, form: Form, wide: Form) -> bool:
        """True when the values of a call of this kind are to be kept, so far as there is room.

        ``wide`` is the kind without the values of constants.
        """
        if self.is_new(form) and form not in self._forms:
            self._wide[wide] = self._wide.get(wide, 0) + 1
            self._forms[form] = 0 if self._wide[wide] <= _MOST_CONSTANTS else _MOST_TRIES
        return self.wants_more or self.is_new(form)

    def failed(self, form: Form) -> None:
        """Notes that a call of this kind could not be kept."""
        self._forms[form] = self._forms.get(form, 0) + 1

    def make_room(self, needed: Mapping[torch.device, int], form: Form, *, index: int) -> bool:
        """True when what a call needs may be kept beside the others."""
        while not self._budget.fits(self._held, needed):
            if not self.is_new(form) or not self._give_one_up():
                self._drop(sum(needed.values()), form, index)
                return False
        return True

    def _give_one_up(self) -> bool:
        kinds = [self._form_of[sample.call.index] for sample in self.samples]
        for position in reversed(range(len(kinds))):
            if kinds[position] in kinds[:position]:
                sample = self.samples.pop(position)
                self.n_counted -= sample.counted
                self._is_full = True
                self._count(sample, -1)
                self._note(
                    f"the values of call {sample.call.index} were given up for a call of a new kind"
                )
                return True
        return False

    def _drop(self, nbytes: int, form: Form, index: int) -> None:
        more = f"{in_words(nbytes)} more needed"
        if self.wants_more:
            self._is_full = True
            self._note(f"from call {index} on only calls of a new kind are kept: {more}")
        elif self.is_new(form):
            self._note(f"the values of call {index}, of a new kind, were not kept: {more}")
        self.failed(form)

    def _note(self, text: str) -> None:
        text = f"{text} (limit: {self._budget})"
        self._unrecorded.add(text)
        self.dropped.append(text)

    def add(self, sample: Sample, form: Form) -> bool:
        """Keeps a call if it is still wanted: other threads may have kept theirs meanwhile."""
        if not (sample.counted or self.is_new(form)):
            return False
        self.samples.append(sample)
        self.n_counted += sample.counted
        self._forms[form] = _MOST_TRIES
        self._form_of[sample.call.index] = form
        self._count(sample, 1)
        return True

    def _count(self, sample: Sample, change: int) -> None:
        for key, (device, nbytes) in held_storages(
            (*sample.inputs.leaves, *sample.outputs.leaves)
        ).items():
            uses = self._storages.get(key, 0)
            self._storages[key] = uses + change
            if uses == 0 or uses + change == 0:
                self._held[device] = self._held.get(device, 0) + change * nbytes
            if uses + change == 0:
                del self._storages[key]

    def replace(self, samples: Sequence[Sample], forms: Iterable[Form]) -> None:
        """Other values for the kept calls, and further kinds that are known."""
        self.samples = list(samples)
        self._forms.update(dict.fromkeys(forms, _MOST_TRIES))

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The copy of a tensor that the latest kept calls had too, with the same values: a cache
        goes on and on.
        """
        for recent in self._recent:
            found = recent.get(id(tensor))
            if found is not None and found[0]() is tensor and tensor.device.type == "cpu":
                copy = found[1]
                return copy if is_same(tensor, copy) and tensor.stride() == copy.stride() else None
        return None

    def remember(self, leaves: Sequence[Any], copies: Sequence[Any]) -> None:
        """Notes which copies were made of which tensors."""
        pairs = zip(leaves, copies, strict=True)
        made = {
            id(leaf): (weakref.ref(leaf), copy)
            for leaf, copy in pairs
            if isinstance(leaf, torch.Tensor)
        }
        self._recent = [made, self._recent[0]]

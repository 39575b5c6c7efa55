"""Did two runs compute their results by the same operators? Compared for one choice of sizes, for
all values.

An operator of torch decides about sizes of 0 and 1 again whenever it runs, but its result may steer
the Python of the model: ``x.squeeze(0)`` has another rank at size 1. Results that agree for a few
values do not tell. So the model and the graph are both run at such sizes, and every operator that
reaches torch is recorded. Equal sequences of operators on equal arguments give equal results for
all values, also where the runs are on tensors without values. Values that the model reads, to decide
or to refuse, the graph must read as well, and both must draw as many random numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from ..torch_internals.fake_tensors import is_fake
from ..torch_internals.operators import HigherOrderOperator
from ..torch_internals.tensor_marks import address_of, memory_of
from .numbering import Numbered, Numbering, computed, digest, frozen
from .operators import Facts, facts_of

__all__ = ["READERS", "Done", "Numbers", "hides_nothing"]

_aten = torch.ops.aten
#: operators by which Python reads values of tensors
READERS = frozenset(
    {_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default}
)
#: constants up to this many elements are compared by content, larger ones by their place in memory
_SMALL = 4096
#: what is computed of constants is compared by content up to so many elements: a mask of 300 tokens
_COMPUTED = 1 << 17
#: the names of the mask that operators of attention add to scores
_MASKS = frozenset({"attn_mask", "attn_bias"})


@dataclass(slots=True)
class Done:
    """The record of a run: its results as numbers, how often it drew random numbers, and the
    numbers of the tensors whose values Python read.
    """

    outputs: list[Any] = field(default_factory=list)
    n_draws: int = 0
    read: set[int] = field(default_factory=set)

    def is_done_by(self, graph: Done) -> bool:
        """True where a graph does what this run of the model did."""
        same = (self.outputs, self.n_draws) == (graph.outputs, graph.n_draws)
        return same and self.read <= graph.read


class Numbers:
    """Numbers for what operators compute, shared by the runs that are compared.

    A run is the ``steps`` of a recorder: per operator its arguments and its result, and the ``bodies`` of one that
    has some. Of the ``weights`` two that hold the same are two: they may hold something else later. What is
    computed of constants is compared ``by_operators`` alone where it may be another at other sizes.
    """

    def __init__(self, weights: Iterable[torch.Tensor] = (), *, by_operators: bool = False) -> None:
        self._by_operators = by_operators
        self._numbering = Numbering()
        self._weights = {_place_of(one) for one in weights}
        self._constants: set[int] = set()
        #: the number of ``x != 0``, and that of ``x``
        self._asked_of: dict[int, int] = {}

    def of(self, recorder: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Done:
        """Returns the numbers of a run; tensors among ``inputs`` are numbered by their place."""
        given = {
            position: self._numbered(("input", position), value)
            for position, value in enumerate(inputs)
            if isinstance(value, torch.Tensor)
        }
        return self._numbers_of(recorder, inputs, given, outputs)

    def _numbers_of(
        self,
        recorder: Any,
        inputs: Sequence[Any],
        known: Mapping[int, Numbered],
        outputs: Sequence[Any],
        outer: _Found | None = None,
    ) -> Done:
        """Returns the numbers of a run; ``known`` are the numbers of some of its inputs, by their
        place, and ``outer`` those of the run that a body may read tensors of.
        """
        found, done = _Found(outer), Done()
        for position, number in known.items():
            found.note(inputs[position], number)
        for func, args, kwargs, result in recorder.steps:
            if isinstance(func, HigherOrderOperator):
                self._note(self._key_of_bodies(args, kwargs, found), result, found)
                continue
            facts = facts_of(func)
            if not _MASKS.isdisjoint(facts.arguments):
                args, kwargs = self._without_mask(args, kwargs, facts, found)
            given = self._arguments(args, found)
            named: Mapping[str, Any] = self._arguments(kwargs, found)
            if func in READERS:
                done.read |= self._read_by(given)
            key = computed(func, given, named)
            if isinstance(key, Numbered):
                found.note(result, key)
                continue
            if facts.draws:
                key = (*key, done.n_draws)
                done.n_draws += 1
            elif not facts.written and self._is_constant(result, facts, (given, named)):
                found.note(result, self._constant(result, most=_COMPUTED))
                continue
            written = facts.at(facts.written, args, kwargs)
            for place, value in enumerate(one for one in written if isinstance(one, torch.Tensor)):
                for other, number in found.sharing(value):
                    changed = self._numbered((*key, "written", place, number.number), other)
                    found.note(other, changed)
            self._note(key, result, found)
            if func is _aten.ne.Scalar and args[1] == 0:
                compared, asked = self._arguments((result, args[0]), found)
                self._asked_of[compared.number] = asked.number
        done.outputs = [frozen(self._argument(value, found)) for value in outputs]
        return done

    def _key_of_bodies(self, args: Any, kwargs: Mapping[str, Any], found: _Found) -> Any:
        """Returns the key of a scan: where it begins, the rows that it reads, and what a step
        gives; or of a cond: its predicate, and what both branches give.

        What stays has its number in a body as well, wherever it stands among the inputs.
        """
        begun, rows, *stays = (self._arguments(list(values), found) for values in args)
        predicate = self._argument(kwargs.get("predicate"), found)
        given = []
        for body in kwargs["bodies"]:
            known = {
                position: self._numbered(
                    ("of a step", position, tuple(value.shape), value.dtype), value
                )
                for position, value in enumerate(body.inputs[: len(begun) + len(rows)])
            }
            for position, value in enumerate(chain(*stays), len(known)):
                if isinstance(value, Numbered):
                    known[position] = value
            done = self._numbers_of(body.recorder, body.inputs, known, body.outputs, found)
            given.append(tuple(done.outputs))
        return ("bodies", frozen(predicate), frozen(begun), frozen(rows), *given)

    def _read_by(self, arguments: Any) -> set[int]:
        """The numbers of tensors that are read, but for constants. A graph asks ``x != 0`` where a
        model asks ``bool(x)``.
        """
        found = {value.number for value in _numbered_in(arguments)}
        found |= {self._asked_of[number] for number in found if number in self._asked_of}
        return found - self._constants

    def _note(self, key: Any, result: Any, found: _Found) -> None:
        results = result if isinstance(result, (tuple, list)) else (result,)
        for place, value in enumerate(results):
            if isinstance(value, torch.Tensor) and found.get(value) is None:
                found.note(value, self._numbered((*key, place), value))

    def _numbered(self, key: Any, value: torch.Tensor) -> Numbered:
        return Numbered(self._numbering.of(key), tuple(value.shape), value.dtype)

    def _arguments(self, value: Any, found: _Found) -> Any:
        if isinstance(value, dict):
            return {name: self._arguments(item, found) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return (
                type(value)(self._arguments(item, found) for item in value)
                if type(value) in (list, tuple)
                else [self._arguments(item, found) for item in value]
            )
        return self._argument(value, found)

    def _argument(self, value: Any, found: _Found) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        known = found.get(value)
        if known is None:
            known = self._constant(value)
            found.note(value, known)
        return known

    def _constant(self, value: torch.Tensor, *, most: int = _SMALL) -> Numbered:
        most = most if value.is_floating_point() else _COMPUTED
        place = _place_of(value)
        is_content = value.numel() <= most and place not in self._weights
        content = digest(value) if is_content else place
        number = self._numbered(("constant", content), value)
        self._constants.add(number.number)
        return number

    def _is_constant(self, result: Any, facts: Facts, arguments: Any) -> bool:
        """True for a small tensor that is computed of constants: by which operators is all one."""
        if self._by_operators or not isinstance(result, torch.Tensor) or is_fake(result):
            return False
        is_part_of_weight = bool(facts.shared) and result.is_floating_point()
        if result.numel() > (_SMALL if is_part_of_weight else _COMPUTED):
            return False
        return all(value.number in self._constants for value in _numbered_in(arguments))

    def _without_mask(self, args: Any, kwargs: Any, facts: Facts, found: _Found) -> tuple[Any, Any]:
        """The arguments of an operator of attention by name, without defaults, and without a mask of
        constants that hides nothing: a graph has one where a model that is not traced has none.
        """
        given = facts.named(args, kwargs)
        for name in _MASKS & given.keys():
            mask = given[name]
            is_known = isinstance(mask, torch.Tensor) and not is_fake(mask)
            if is_known and self._argument(mask, found).number in self._constants:
                given[name] = None if hides_nothing(mask) else mask
        return (), {key: one for key, one in given.items() if torch.is_tensor(one) or one}


def _numbered_in(value: Any) -> Iterator[Numbered]:
    if isinstance(value, Numbered):
        yield value
    elif isinstance(value, dict):
        yield from _numbered_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbered_in(item)


def hides_nothing(mask: torch.Tensor) -> bool:
    """True for a mask of attention by which every score stays as it is."""
    return bool(mask.all() if mask.dtype == torch.bool else (mask == 0).all())


def _place_of(value: torch.Tensor) -> int:
    """A number that tells a tensor from all others that are alive."""
    return value.data_ptr() if address_of(value) else id(value)


def _memory_of(value: torch.Tensor) -> Any:
    """What tells the memory of tensors of one run apart; those without values have no address."""
    address = 0 if is_fake(value) else address_of(value)
    return address or memory_of(value) or id(value)


class _Found:
    """The numbers of the tensors of one run, and which of them share their memory; those of an ``outer`` run are
    known too.
    """

    def __init__(self, outer: _Found | None = None) -> None:
        self._outer = outer
        self._numbers: dict[int, Numbered] = {}
        self._sharing: dict[Any, dict[int, torch.Tensor]] = {}

    def get(self, value: torch.Tensor) -> Numbered | None:
        """The number of a tensor, where it has one."""
        known = self._numbers.get(id(value))
        return self._outer.get(value) if known is None and self._outer is not None else known

    def note(self, value: torch.Tensor, number: Numbered) -> None:
        """Gives a tensor its number."""
        self._numbers[id(value)] = number
        if value.layout == torch.strided and value.numel():
            address = _memory_of(value)
            self._sharing.setdefault(address, {})[id(value)] = value

    def sharing(self, value: torch.Tensor) -> list[tuple[torch.Tensor, Numbered]]:
        """All tensors in the memory of one, with their numbers."""
        others = self._sharing.get(_memory_of(value), {}) if value.layout == torch.strided else {}
        return [(other, self._numbers[key]) for key, other in others.items()]

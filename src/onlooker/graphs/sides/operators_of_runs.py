"""What the operators of a run do with values and positions, those of the steps of scans among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ...lab.recorder import RecordedBody
from ...proofs.operators import facts_of
from ...proofs.same_run import READERS
from ..thresholds import DECIDING, POSITIONS, THRESHOLDS, numbers_in, operator_name, whole_numbers

__all__ = [
    "Step",
    "divided_lengths",
    "made_by_python",
    "numbers_of_positions",
    "places_taken",
    "thresholds_on_values",
    "used_steps",
    "value_reads",
]

#: an operator of a run: its function, its arguments and its result
Step = tuple[Any, Any, dict[str, Any], Any]
#: those that take places of one axis
_TAKING = frozenset({"slice", "narrow", "select"})

#: the ints that Python puts into a tensor for a function, and so many of them
_INTS, _FEW = (torch.int64, torch.int32), 4
#: marks of operators by whose results Python learns of values: their numbers, or their shapes
_VALUES = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


def thresholds_on_values(steps: Sequence[Step], given: Iterable[torch.Tensor]) -> Counter[Any]:
    """The thresholds of a run on values that hang on some tensors, each with its numbers."""
    hangs = {id(tensor) for tensor in given}
    found: Counter[Any] = Counter()
    for function, args, kwargs, result in steps:
        name = operator_name(function)
        tensors = [*_tensors_in(args), *_tensors_in(kwargs.values())]
        is_like = name.endswith("_like") or name.startswith("new_")
        if is_like or not any(id(tensor) in hangs for tensor in tensors):
            continue
        hangs.update(map(id, _tensors_in((result,))))
        place = DECIDING.get(name)
        deciding = tensors if place is None else args[place : place + 1]
        if name in THRESHOLDS and any(id(tensor) in hangs for tensor in deciding):
            numbers = numbers_in(args, kwargs)
            if not _is_of_answers(name, numbers, tensors):
                found[name, numbers] += 1
        for body in kwargs.get("bodies", ()):
            found += _thresholds_in(body, args, hangs)
    return found


def _is_of_answers(name: str, numbers: tuple[Any, ...], tensors: Sequence[torch.Tensor]) -> bool:
    """True for ``answer != 0``, which a trace writes where Python asks ``if answer:``."""
    is_same = name == "ne" and numbers == (0,)
    return is_same and all(tensor.dtype == torch.bool for tensor in tensors)


def _thresholds_in(
    step: RecordedBody, arguments: Sequence[Any], hangs: Collection[int]
) -> Counter[Any]:
    """The thresholds of a body; the state of a scan hangs on what its rows do."""
    outer = [one for group in arguments for one in group]
    n_begun = len(arguments[0])
    given = [
        inner
        for place, (inner, one) in enumerate(zip(step.inputs, outer, strict=True))
        if isinstance(inner, torch.Tensor) and (place < n_begun or id(one) in hangs)
    ]
    return thresholds_on_values(used_steps(step.recorder.steps, step.outputs), given)


def used_steps(steps: Sequence[Step], results: Iterable[Any]) -> list[Step]:
    """The operators whose results some tensors hang on, or memory that was there before the run, or
    what Python reads; a graph has no others.
    """
    #: the memory that each operator reads, and that of its results
    memory = [
        (set(map(_memory, _tensors_of(args, kwargs))), set(map(_memory, _tensors_in((result,)))))
        for _, args, kwargs, result in steps
    ]
    known: set[int] = set()
    needed = set(map(_memory, _tensors_in(list(results))))
    for read, given in memory:
        needed |= read - known
        known |= given
    found = []
    for step, (read, given) in zip(reversed(steps), reversed(memory), strict=True):
        function = step[0]
        is_read = function in READERS or not _VALUES.isdisjoint(getattr(function, "tags", ()))
        if is_read or not needed.isdisjoint(given):
            needed |= read
            found.append(step)
    return found[::-1]


def _memory(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor is a view of; its own for one without a storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return id(tensor)


def made_by_python(steps: Sequence[Step], others: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The few ints in tensors of a run that no operator made, and that are none of ``others``: Python made
    them of numbers, as ``torch.IntTensor([4])``.
    """
    known = set(map(_memory, others))
    for _, args, kwargs, result in _with_bodies(steps):
        for tensor in _tensors_of(args, kwargs):
            if _memory(tensor) not in known:
                known.add(_memory(tensor))
                if tensor.dtype in _INTS and tensor.numel() <= _FEW:
                    yield tensor
        known.update(map(_memory, _tensors_in((result,))))


def _tensors_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    yield from _tensors_in(args)
    yield from _tensors_in(kwargs.values())


def divided_lengths(steps: Iterable[Step]) -> tuple[int, ...]:
    """The lengths of the axes that the operators of a run divide into lists of tensors: how many of these there are
    is no size, but may hang on one.
    """
    found: list[int] = []
    for function, args, kwargs, result in steps:
        if isinstance(result, list) and args and torch.is_tensor(args[0]):
            lengths, dim = args[0].shape, facts_of(function).named(args, kwargs).get("dim", 0)
            # an operator of the user's may divide others
            is_one = isinstance(dim, int) and -len(lengths) <= dim < len(lengths)
            found += [lengths[dim]] if is_one else lengths
    return tuple(found)


def _with_bodies(steps: Sequence[Step]) -> Iterator[Step]:
    """The operators of a run, and those of the bodies that they have."""
    for step in steps:
        yield step
        for inner in step[2].get("bodies", ()):
            yield from _with_bodies(used_steps(inner.recorder.steps, inner.outputs))


def _tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments, or the results, of an operator."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors_in(value)


def numbers_of_positions(steps: Sequence[Step]) -> Counter[int]:
    """The numbers of the operators of a run that tell positions apart."""
    found: Counter[int] = Counter()
    for function, args, kwargs, _ in _with_bodies(steps):
        if operator_name(function) in POSITIONS:
            found.update(whole_numbers(args, kwargs))
    return found


def places_taken(steps: Sequence[Step]) -> Counter[tuple[int, int]]:
    """The numbers by which the operators of a run take places of an axis, each with the length of the
    axis.
    """
    found: Counter[tuple[int, int]] = Counter()
    for function, args, kwargs, _ in _with_bodies(steps):
        if operator_name(function) in _TAKING:
            length = args[0].shape[args[1] if len(args) > 1 else kwargs.get("dim", 0)]
            found.update((number, length) for number in whole_numbers(args, kwargs))
    return found


def value_reads(
    steps: Sequence[Step],
    known: Iterable[torch.Tensor] = (),
    of_sizes: Iterable[torch.Tensor] = (),
) -> int:
    """Counts the values that Python read in a run, each once; not those that are computed of ``known``
    tensors alone, which have the same values in each run. Tensors ``of_sizes`` were computed of a size as well.
    """
    others = set(map(_memory, of_sizes))
    same = set(map(_memory, known)) - others
    count = 0
    read: set[tuple[int, int]] = set()
    for function, args, kwargs, result in _with_bodies(steps):
        given = set(map(_memory, _tensors_of(args, kwargs)))
        made = set(map(_memory, _tensors_in((result,))))
        # what is written, or computed anew in memory of before, is another value
        read = {one for one in read if one[0] not in made}
        if given and given <= same:
            same |= made - others
            continue
        same -= made
        if function in READERS:
            place = _memory(args[0]), args[0].storage_offset()
            count += place not in read
            read.add(place)
    return count

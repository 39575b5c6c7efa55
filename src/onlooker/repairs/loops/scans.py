"""Makes one ``scan`` of torch of the recorded steps of a loop.

With the steps of the example of :mod:`onlooker.repairs.loops.rolled_loops`: step 1 and all later ones are equal, so
step 1 is the body. Step 0 differs in ``outer h`` where step 1 has ``before #2``, so ``#2`` is carried and begins with
``h``. The rows ``x[:, t]`` are read by the scan, and of ``#2``, which a list still holds for every step, the scan
gives the results of all steps.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ...torch_internals.fake_tensors import give_value, has_values, is_fake, value_beside
from ...torch_internals.modes import WithoutFunctions, without_dispatch_modes
from ...torch_internals.sizes import expression_of, size_of, statically_known_true
from ...torch_internals.tracing import quotients_recorded, scan_op
from .loop_results import LoopResults, one_after_another
from .step_numbers import NumberOrigin, StepSize, demanded
from .step_recorder import Blanks
from .steps import (
    Constant,
    Joined,
    Loop,
    Operation,
    Outer,
    Place,
    Result,
    Size,
    grows,
    leaves_of,
    mapped,
    number_as_tensor,
)

__all__ = ["roll"]

_ADDITIONS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
#: a number that all small ones divide
_MULTIPLE = sympy.Integer(720720)
#: the numbers that a sum may begin with, as text: -0.0 is none
_ZEROS = ("0", "0.0")


def roll(loop: Loop, results: LoopResults, blanks: dict[int, Blanks]) -> bool:
    """Makes one scan of the steps of a loop, and gives it what stands for their results; True where the
    scan computes something.

    :raises NotRolledError: where the steps differ
    """
    _add_copies(loop, blanks)
    first, body, *others = loop.steps
    if any(step != body for step in others):
        is_begin = all(step == others[0] for step in others)
        raise loop.refused("its steps differ", at_ends=is_begin)
    carries = _carries(loop, first, body, blanks)
    body, grown = _without_grown(loop, body, carries, blanks)
    for number, leaf in carries:
        after = blanks[number].blanks[leaf].size if number in blanks else ()
        if _is_another(carries[number, leaf].shape, after) or _own_dims(loop, after):
            raise loop.refused("a state has another shape after a step", at_ends=True)
    written = [operation for operation in body if operation.written is not None]
    stacked = [operation.written.place for operation in written if operation.written]
    stacked += grown
    lasts: dict[Place, torch.Tensor] = {}
    # in the order of a step, so that two traces of a loop give the same scan
    parts: dict[Place, tuple[torch.Tensor, dict[int, int], int]] = {}
    for place, tensors in sorted(results.alive(loop).items()):
        if place in grown:
            continue
        last = tensors[-1]
        are_whole = all(one is not None for one in tensors)  # ``in`` would compare tensors
        own = () if last is None else _own_dims(loop, last.shape)
        if last is not None and are_whole and own:
            demands, sizes = _settled(loop, last.shape, own)
            rest = [dim for dim in own if dim not in sizes]
            if len(rest) == 1:
                body += demands
                parts[place] = last, sizes, rest[0]
        elif own or place in loop.views_of_rows:
            continue  # who reads it is told that it is the result of one step
        elif are_whole or body[place[0]].rows is not None:
            stacked.append(place)
        elif last is not None and place not in carries:
            lasts[place] = last
    is_scan = _scan(loop, body, carries, lasts, list(dict.fromkeys(stacked)), parts)
    for place, one in grown.items():
        loop.finals[place] = one.joined(loop.stacked.pop(place))
    for operation in written:
        if operation.rows is not None and operation.written is not None:
            rows, index = operation.rows, operation.rows.index
            values = loop.stacked[operation.written.place]
            values = values if index.is_growing else values.flip(0)
            rows.whole().copy_(values.movedim(0, rows.place))
    return is_scan


def _add_copies(loop: Loop, blanks: dict[int, Blanks]) -> None:
    """Adds copies of results of the step before to each step, so that a step that reads what was computed two steps
    before reads the copy of the step before; and so on for earlier steps.

    Step 0 of ``first, second = second, cell(first, second)`` copies ``second`` from before the loop, which step 1 reads
    as ``first``.

    :raises NotRolledError: where the first steps begin with something else than tensors
    """
    while (far := _most_before(loop.steps[-1])) > 1:
        _add_copies_for(loop, far, blanks)


def _most_before(step: Iterable[Operation]) -> int:
    """How many steps before a step it was at most that something was computed which the step reads."""
    read = (one for operation in step for one in leaves_of(operation.arguments, Result))
    return max((one.before for one in read), default=0)


def _add_copies_for(loop: Loop, far: int, blanks: dict[int, Blanks]) -> None:
    """Adds the copies for what steps read of ``far`` steps before."""
    last = loop.steps[-1]
    read = {
        one.place for op in last for one in leaves_of(op.arguments, Result) if one.before == far
    }
    if len(loop.steps) <= far or any(len(step) != len(last) for step in loop.steps):
        raise loop.refused("its steps differ", at_ends=True)
    new = sorted(read - loop.copies.keys())
    loop.copies |= {place: (len(last) + n, 0) for n, place in enumerate(new)}
    begun: dict[Place, Outer] = {}

    def nearer(one: Any, other: Any) -> Any:
        """What a step reads, where the last one reads ``other``."""
        is_far = isinstance(other, Result) and other.before == far and one == other
        return Result(*loop.copies[other.place], far - 1) if is_far else one

    def begin(one: Any, other: Any) -> Any:
        """What the first step reads that could read a copy: what was there before the loop is copied by step 0."""
        is_far = isinstance(other, Result) and other.before == far
        is_begun = is_far and begun.setdefault(other.place, one) == one
        return Result(*loop.copies[other.place], far - 1) if is_begun else one

    for number in range(far - 1, len(loop.steps)):
        pairs = zip(loop.steps[number], last, strict=True)
        change = nearer if number >= far else begin
        loop.steps[number] = [_with_leaves(one, other, change) for one, other in pairs]
    known = {one: loop.steps[0][loop.copies[one][0]].arguments[0][0] for one in read - {*new}}
    are_outer = begun.keys() == read and all(isinstance(one, Outer) for one in begun.values())
    if not are_outer or any(begun[place] != one for place, one in known.items()):
        reason = "its first step begins with something else than a tensor"
        raise loop.refused(reason, at_ends=True)
    for number, step in enumerate(loop.steps):
        copied = (Result(one[0], one[1], 1) if number else begun[one] for one in new)
        step += [Operation(torch.clone, ((one,), {})) for one in copied]
    for place in new:
        if place[0] in blanks:
            copy = Blanks((blanks[place[0]].blanks[place[1]],), None)
            blanks[loop.copies[place][0]] = copy


def _with_leaves(one: Operation, other: Operation, change: Callable[[Any, Any], Any]) -> Operation:
    """An operation with other leaves, each by ``change`` of it and of the leaf of another one there."""
    others = leaves_of(other.arguments, object)
    if len(leaves_of(one.arguments, object)) != len(others):
        return one
    left = iter(others)
    return replace(one, arguments=mapped(one.arguments, lambda leaf: change(leaf, next(left))))


@dataclass(frozen=True, slots=True)
class _Grown:
    """A tensor to which each step adds rows in a dimension, at its end or in ``front``, and which no step reads
    otherwise: ``begin`` is what it is before the loop.
    """

    begin: torch.Tensor
    dim: int
    is_front: bool

    def joined(self, added: torch.Tensor) -> torch.Tensor:
        """The tensor after the loop, of what all steps have ``added``, along the first dimension."""
        dim = self.dim % (added.ndim - 1)
        rows = one_after_another(added.flip(0) if self.is_front else added, dim)
        return torch.cat([rows, self.begin] if self.is_front else [self.begin, rows], dim)


def _without_grown(
    loop: Loop,
    body: Sequence[Operation],
    carries: dict[Place, torch.Tensor],
    blanks: Mapping[int, Blanks],
) -> tuple[list[Operation], dict[Place, _Grown]]:
    """A step in which ``rows = torch.cat([rows, row], 1)`` is ``torch.cat([row], 1)`` where no step reads the rows of
    those before, and the tensors that grow so, which are not carried.
    """
    changed, grown = list(body), dict[Place, _Grown]()
    read = [one.place for operation in body for one in leaves_of(operation.arguments, Result)]
    for number, operation in enumerate(body):
        place, before = (number, 0), Result(number, 0, before=1)
        if not grows(operation, number) or read.count(place) != 1:
            continue
        (tensors, *rest), options = operation.arguments
        others = [one for one in tensors if one != before]
        is_front = tensors[-1] == before
        dim = [*rest, *options.values(), Constant(int, 0)][0]
        is_at_end = is_front or tensors[0] == before
        sizes = blanks[number].blanks[0].size if number in blanks else ()
        if not others or not is_at_end or type(dim.value) is not int or _own_dims(loop, sizes):
            continue
        grown[place] = _Grown(carries.pop(place), dim.value, is_front)
        arguments = (others, *rest), options
        changed[number] = replace(operation, arguments=arguments)
    return changed, grown


def _own_dims(loop: Loop, sizes: Sequence[Any]) -> tuple[int, ...]:
    """The dimensions whose size is a number that the step reads."""
    numbers = loop.numbers
    if numbers is None or not numbers:
        return ()
    return tuple(d for d, size in enumerate(sizes) if numbers.has_numbers(expression_of(size)))


def _settled(
    loop: Loop, shape: Sequence[Any], dims: Sequence[int]
) -> tuple[list[Operation], dict[int, int]]:
    """The dimensions that have one size whatever the numbers are, with demands that they have it.

    ``x.reshape(h // 2, w // 2, 2, 2, -1)`` of an image of ``h * w * 64`` has the size ``h * w * 64 // (h // 2 * (w
    // 2) * 4)``: 64 for each number that all others divide, and the step asks whether it is that of its own.
    """
    demands, sizes = list[Operation](), dict[int, int]()
    for dim in dims:
        found = loop.formula_of(expression_of(shape[dim]), len(loop.steps) - 1)
        if found is None:
            continue
        values = [
            found.formula.xreplace(
                {o.symbol: _MULTIPLE * (n + each) for n, o in enumerate(origins)}
            )
            for origins in (found.origins, found.origins[::-1])
            for each in (1, 2, 5)
        ]
        # h // 2 * m is 0 where m is greater than h, and nothing else where it is less
        if not values[0].is_Integer or any(value != values[0] for value in values):
            continue
        sizes[dim] = int(values[0])
        formula = sympy.Eq(found.formula, values[0])
        holds = StepSize(str(formula), found.origins, formula, found.sizes)
        demands.append(Operation(demanded, ((holds,), {})))
    return demands, sizes


def _is_another(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """True for shapes of the same rank that differ at all sizes."""
    pairs = zip(before, after, strict=False)
    return any(statically_known_true(one != other) for one, other in pairs)


def _carries(
    loop: Loop,
    first: Sequence[Operation],
    body: Sequence[Operation],
    blanks: Mapping[int, Blanks],
) -> dict[Place, torch.Tensor]:
    """Returns the results that a step has from the one before, each with what the first step has
    instead.

    :raises NotRolledError: where the first step differs otherwise
    """
    carries: dict[Place, torch.Tensor] = {}

    def begun(one: Any, other: Any) -> bool:
        if isinstance(other, Result) and other.before:
            # what a step reads from a list may be what it begins with as well
            begin = loop.begun.get(one.place) if isinstance(one, Result) else None
            begin = one.tensor if isinstance(one, Outer) else begin
            return begin is not None and carries.setdefault(other.place, begin) is begin
        return bool(one == other)

    for number, (one, other) in enumerate(zip(first, body, strict=False)):
        if _is_sum_from_zero(number, one, other) and number in blanks:
            (total,) = blanks[number].blanks
            carries[number, 0] = torch.zeros(total.size, dtype=total.dtype, device=total.device)
            continue
        leaves = leaves_of(one.arguments, object), leaves_of(other.arguments, object)
        same = mapped(one.arguments, _nothing) == mapped(other.arguments, _nothing)
        rest = one.function, one.rows, one.written
        if not same or rest != (other.function, other.rows, other.written):
            raise loop.refused("its first step differs from the others", at_ends=True)
        if not all(map(begun, *leaves)):
            reason = "its first step begins with something else than a tensor"
            raise loop.refused(reason, at_ends=True)
    if len(first) != len(body):
        raise loop.refused("its first step differs from the others", at_ends=True)
    return carries


def _is_sum_from_zero(number: int, one: Operation, other: Operation) -> bool:
    """True for ``h + row`` in a step, where the first one has ``0 + row``, as in ``sum(rows)``: a sum
    begins with zeros then.
    """
    if one.function not in _ADDITIONS or other.function not in _ADDITIONS:
        return False
    begun, later = leaves_of(one.arguments, object), leaves_of(other.arguments, object)
    zeros = [leaf for leaf in begun if isinstance(leaf, Constant) and str(leaf.value) in _ZEROS]
    total = Result(number, 0, before=1)
    if not zeros or total not in later:
        return False
    begun.remove(zeros[0])
    later.remove(total)
    return len(begun) == 1 and begun == later and isinstance(begun[0], Result)


class _Step:
    """The operations of a step that some results and numbers of it need, as a function of what a scan gives
    to each step: ``rows`` of tensors, ``sums`` of the steps before, and what ``stays``.
    """

    def __init__(
        self,
        body: Sequence[Operation],
        places: Iterable[Place],
        numbers: Iterable[StepSize] = (),
        sums: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        numbers, places, sums = list(numbers), list(places), sums or {}
        needed = {place[0] for place in places} | _read_by(numbers)
        read = _with_arguments(body, needed, writes=False)
        # numbers of rows that are not computed hang on no write of a step
        are_read = not places and all(_is_read_of_rows(body[number]) for number in read)
        needed = read if are_read else _with_arguments(body, needed, writes=True)
        for number, operation in enumerate(body):
            sizes = leaves_of(operation.arguments, StepSize)
            if operation.demands and _read_by(sizes) <= needed and _totals_of(sizes) <= sums.keys():
                needed.add(number)
        self.operations = {number: body[number] for number in sorted(needed)}
        self.rows = {
            number: one.rows.of_steps()
            for number, one in self.operations.items()
            if one.rows is not None
        }
        self.stays: dict[Any, Any] = {}
        for operation in self.operations.values():
            for one in leaves_of(operation.arguments, (Outer, Size)):
                self.stays.setdefault(one, _given(one))
            numbers += leaves_of(operation.arguments, StepSize)
        for one in numbers:
            self.stays |= {Size(str(symbol), size): size for symbol, size in one.sizes.items()}
        totals = _totals_of(numbers)
        self.sums = {name: column for name, column in sums.items() if name in totals}

    def read(self) -> list[torch.Tensor]:
        """What the scan has a row of for each step."""
        return [*self.rows.values(), *self.sums.values()]

    def known(
        self, before: Mapping[Place, Any], read: Sequence[Any], stays: Sequence[Any]
    ) -> StepValues:
        """Runs the operations of one step."""
        known = StepValues(before, dict(zip(self.stays, stays, strict=True)))
        known.results |= dict(zip(((number, 0) for number in self.rows), read, strict=False))
        sums = zip(self.sums, read[len(self.rows) :], strict=False)
        known.sums |= {name: one.item() for name, one in sums}
        for number, operation in self.operations.items():
            if operation.function is not None:
                args, kwargs = mapped(operation.arguments, known.value)
                result = operation.function(*args, **kwargs)
                kinds = (torch.Tensor, int, torch.SymInt)
                results = leaves_of(result, torch.Tensor) or leaves_of(result, kinds)
                known.results |= {(number, leaf): one for leaf, one in enumerate(results)}
        return known


def _given(one: Outer | Size) -> Any:
    """What a scan gives to each step: a float as a tensor, since it takes no others."""
    if isinstance(one, Outer):
        return _traced(one.tensor)
    if not isinstance(one.value, torch.SymFloat):
        return one.value
    with quotients_recorded():
        return number_as_tensor(one.value, torch.float64)


class StepValues:
    """The values of one step: results by their places, and sums of the steps before by their names."""

    def __init__(self, before: Mapping[Place, Any], stays: Mapping[Any, Any]) -> None:
        self._before, self._stays = before, stays
        self.results: dict[Place, Any] = {}
        self.sums: dict[str, Any] = {}

    def value(self, one: Any) -> Any:
        """The value of an argument of an operation."""
        if isinstance(one, Result):
            return self._before[one.place] if one.before else self.results[one.place]
        if isinstance(one, StepSize):
            return one.value(self._number, lambda size: self._stays[Size(str(size), None)])
        return self._stays[one] if isinstance(one, (Outer, Size)) else one.value

    def _number(self, origin: NumberOrigin) -> Any:
        if origin.total:
            return self.sums[origin.total]
        result = self.results[origin.operation, origin.leaf]
        if origin.dim is None:
            return result
        with WithoutFunctions():  # the model reads none of these sizes
            return result.shape[origin.dim]


def _with_arguments(body: Sequence[Operation], needed: set[int], *, writes: bool) -> set[int]:
    """Operations with those whose results they take, and all that write."""
    found = set(needed)
    for number in reversed(range(len(body))):
        if number in found or (writes and body[number].writes):
            found.add(number)
            arguments = body[number].arguments
            results = leaves_of(arguments, Result)
            found |= {one.operation for one in results if not one.before}
            found |= _read_by(leaves_of(arguments, StepSize))
    return found


def _is_read_of_rows(operation: Operation) -> bool:
    """True for a row of a tensor, or a number that is read from one."""
    return operation.rows is not None or operation.function in (torch.Tensor.item, torch.unbind)


def _totals_of(numbers: Iterable[StepSize]) -> set[str]:
    """The names of the totals in numbers."""
    return {o.total for number in numbers for o in number.origins if o.total}


def _no_number(origin: NumberOrigin) -> Any:
    raise LookupError(f"{origin} is a number of a step")


def _read_by(numbers: Iterable[StepSize]) -> set[int]:
    """The operations that give numbers."""
    return {o.operation for number in numbers for o in number.origins if not o.total}


def _for_joined(
    last: torch.Tensor, sizes: Mapping[int, int], dim: int, lengths: torch.Tensor
) -> Joined:
    """The tensor for results as that of the ``last`` step, of these ``lengths`` and other ``sizes``."""
    total: Any = lengths.sum().item()
    rest = (sizes.get(d, size) for d, size in enumerate(last.shape) if d != dim)
    whole = torch.zeros((total, *rest), dtype=last.dtype, device=last.device)
    return Joined(whole, lengths, dim)


def _written(
    dim: int, whole: torch.Tensor, begin: torch.Tensor, result: torch.Tensor
) -> torch.Tensor:
    """The tensor of all results with that of a step."""
    rows = result.movedim(dim, 0)
    with WithoutFunctions():  # the model reads none of these sizes
        length = rows.shape[0]
    places = begin + torch.arange(length, device=rows.device)
    return whole.index_put((places,), rows)


def _numbers_of_all(
    loop: Loop,
    body: Sequence[Operation],
    numbers: Sequence[StepSize],
    sums: Mapping[str, torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Numbers of all steps, each as a tensor with one a step.

    :raises NotRolledError: for a number that hangs on the steps before
    """
    if not numbers:
        return []
    step, sums = _Step(body, (), numbers, sums), sums or {}
    arguments = [one.arguments for one in step.operations.values()]
    is_before = any(one.before for one in leaves_of(arguments, Result))
    if is_before or not _totals_of([*numbers, *leaves_of(arguments, StepSize)]) <= sums.keys():
        raise loop.refused("a size of a step hangs on the steps before")
    read = step.read() or [torch.zeros(loop.count)]
    n_read = 1 + len(read)

    def count(begun: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        known = step.known({}, values[: n_read - 1], values[n_read - 1 :])
        found = [torch.scalar_tensor(known.value(number), dtype=torch.int64) for number in numbers]
        return [begun.clone(), *found]

    return _scanned(count, [torch.zeros(1)], read, step.stays.values(), len(numbers))[1:]


def _scan(
    loop: Loop,
    body: Sequence[Operation],
    carries: Mapping[Place, torch.Tensor],
    lasts: Mapping[Place, torch.Tensor],
    wanted: Sequence[Place],
    parts: Mapping[Place, tuple[torch.Tensor, Mapping[int, int], int]],
) -> bool:
    """One ``scan`` for all steps: it gives what a step has from the one before, ``lasts`` of the
    last step, what is ``wanted`` of all, and ``parts`` whose length is a value, in one tensor. False where
    there is nothing to compute.
    """
    sums = _sums(loop, body)
    lengths = [_length_in_step(loop, last, dim) for last, _, dim in parts.values()]
    counts = _numbers_of_all(loop, body, lengths, sums)
    joined = [
        _for_joined(*part, column) for part, column in zip(parts.values(), counts, strict=True)
    ]
    demands = [one.arguments for one in body if one.demands]
    numbers = leaves_of(demands, StepSize)
    step = _Step(body, (*carries, *lasts, *wanted, *parts), numbers, sums)
    stacked = [place for place in wanted if place[0] not in step.rows]
    # a result of the last step alone is a state that no step reads
    unread = (torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in lasts.values())
    begun = [*map(_copied, carries.values()), *unread, *(one.whole for one in joined)]
    read = [*step.read(), *(one.begins for one in joined)]

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        n_begun, n_read = len(begun), len(begun) + len(read)
        before = dict(zip(carries, values[:n_begun], strict=False))
        known = step.known(before, values[n_begun:n_read], values[n_read:])
        n_joined = len(joined)
        wholes = values[n_begun - n_joined : n_begun]
        begins = values[n_read - n_joined : n_read]
        nexts = [known.results[place] for place in (*carries, *lasts)] + [
            _written(one.dim, whole, begin, known.results[place])
            for one, whole, begin, place in zip(joined, wholes, begins, parts, strict=True)
        ]
        # results of a scan share no memory with its inputs or with each other
        given = (*(nexts or [values[0]]), *(known.results[place] for place in stacked))
        return list(map(_copied, given))

    is_scan = bool(begun or stacked)
    if is_scan:
        begun = begun or [torch.zeros(1)]  # scan asks for a state
        read = read or [torch.zeros(loop.count)]  # and for rows
        results = _scanned(run, begun, read, step.stays.values(), len(stacked))
        loop.finals.update(zip((*carries, *lasts), results, strict=False))
        wholes = results[len(begun) - len(joined) : len(begun)]
        for place, whole, one in zip(parts, wholes, joined, strict=True):
            loop.joined[place] = replace(one, whole=whole)
        loop.stacked.update(zip(stacked, results[len(begun) :], strict=True))
    loop.stacked.update((place, step.rows[place[0]]) for place in wanted if place[0] in step.rows)
    return is_scan


def _scanned(
    step: Callable[..., list[torch.Tensor]],
    begun: Sequence[torch.Tensor],
    read: list[torch.Tensor],
    stays: Iterable[Any],
    n_stacked: int,
) -> list[torch.Tensor]:
    """Runs a scan in the form that torch itself traces, which AOTInductor needs.

    The symbols of all shapes are inputs of each step: AOTInductor computes the shapes of the ``n_stacked`` results
    from them. A scan with a single result has a state beside it that no step reads.
    """
    states = [*begun] if len(begun) + n_stacked > 1 else [*begun, torch.zeros(1)]
    given = [*states, *read, *stays]
    with WithoutFunctions():  # the model reads none of these sizes
        sizes: list[Any] = [
            size for one in given if isinstance(one, torch.Tensor) for size in one.shape
        ]
    symbols: dict[Any, Any] = {}
    for node in (size.node for size in sizes if isinstance(size, torch.SymInt)):
        for symbol in sorted(node.expr.free_symbols, key=str):
            symbols[symbol] = size_of(symbol, node.shape_env)

    def body(*values: Any) -> list[torch.Tensor]:
        unread = values[len(begun) : len(states)]
        results = step(*values[: len(begun)], *values[len(states) : len(given)])
        return [*results, *(one.clone() for one in unread)]

    stay = (*given[len(states) + len(read) :], *symbols.values())
    results = list(scan_op(body, states, read, stay))
    if any(map(has_values, given)):
        _give_values(results, body, states, read, stay)
    return results[: len(begun) + n_stacked]


def _give_values(
    results: Sequence[Any],
    body: Callable[..., list[torch.Tensor]],
    states: Sequence[Any],
    read: Sequence[Any],
    stay: Sequence[Any],
) -> None:
    """Runs all steps of the example with its values, and keeps them beside the results of a scan, of which torch
    itself gives none: what the model decides by later needs them.

    :raises RuntimeError: where a step of the example does not go the way that the body has
    """
    try:
        states, read, stay = (list(map(value_beside, one)) for one in (states, read, stay))
    except LookupError:
        return
    if not len(read[0]):
        return
    rows: list[list[torch.Tensor]] = []
    with without_dispatch_modes(), WithoutFunctions():
        for step in range(len(read[0])):
            found = body(*states, *(one[step] for one in read), *stay)
            states = found[: len(states)]
            rows.append(found[len(states) :])
        values = [*states, *map(torch.stack, zip(*rows, strict=True))]
    for result, value in zip(results, values, strict=True):
        give_value(result, value)


def _length_in_step(loop: Loop, last: torch.Tensor, dim: int) -> StepSize:
    """The length of a result of the last step that was run, as a formula of the numbers of a step."""
    step, size = len(loop.steps) - 1, expression_of(last.shape[dim])
    found = None if loop.numbers is None else loop.numbers.formula_of(size, step)
    if found is None:
        raise loop.refused("the length of a result is no number of its step")
    return found


def _sums(loop: Loop, body: Sequence[Operation]) -> dict[str, torch.Tensor]:
    """The totals of a loop before each step, by name; the loop gets those after the last one."""
    totals = {} if loop.numbers is None else loop.numbers.totals
    values = {name: total for name, total in totals.items() if total.growth.origins}
    columns = _numbers_of_all(loop, body, [total.growth for total in values.values()])
    found = {}
    for (name, total), column in zip(values.items(), columns, strict=True):
        found[name] = column.cumsum(0) - column + total.begin
        total.end = functools.partial(_sum_from, total.begin, column)
    for name, total in totals.items():
        if name not in values:  # it grows by the same size in each step
            each = total.growth.value(_no_number, total.growth.sizes.__getitem__)
            found[name] = torch.arange(loop.count) * each + total.begin
            total.end = functools.partial(operator.add, total.begin, each * loop.count)
    return found


def _sum_from(begin: Any, column: torch.Tensor) -> Any:
    return (column.sum() + begin).item()


def _traced(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the trace: a weight that the model keeps in a plain dict comes with its values, and
    ``scan`` takes none with values beside others without.
    """
    return tensor if is_fake(tensor) else tensor.view_as(tensor)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy without gaps: the strides of a state must not change from step to step."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _nothing(_: Any) -> None:
    return None

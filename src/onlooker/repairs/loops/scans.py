"""Makes one ``scan`` of torch of the recorded steps of a loop.

With the steps of the example of :mod:`onlooker.repairs.loops.rolled_loops`: step 1 and all later ones are equal, so
step 1 is the body. Step 0 differs in ``outer h`` where step 1 has ``before #2``, so ``#2`` is carried and begins with
``h``. The rows ``x[:, t]`` are read by the scan, and of ``#2``, which a list still holds for every step, the scan
gives the results of all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...torch_internals.fake_tensors import is_fake
from ...torch_internals.sizes import statically_known_true
from ...torch_internals.tracing import scan_op
from .loop_results import LoopResults
from .step_recorder import Blanks
from .steps import (
    Constant,
    Loop,
    Operation,
    Outer,
    Place,
    Result,
    Rows,
    Size,
    leaves_of,
    mapped,
)

__all__ = ["roll"]

_ADDITIONS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)
#: the numbers that a sum may begin with, as text: -0.0 is none
_ZEROS = ("0", "0.0")


def roll(loop: Loop, results: LoopResults, blanks: Mapping[int, Blanks]) -> bool:
    """Makes one scan of the steps of a loop, and gives it what stands for their results; True where the
    scan computes something.

    :raises NotRolledError: where the steps differ
    """
    first, body, *others = loop.steps
    if any(step != body for step in others):
        is_begin = all(step == others[0] for step in others)
        raise loop.refused("its steps differ", at_ends=is_begin)
    carries = _carries(loop, first, body, blanks)
    for number, leaf in carries:
        after = blanks[number].blanks[leaf].size if number in blanks else ()
        if _is_another(carries[number, leaf].shape, after):
            raise loop.refused("a state has another shape after a step")
    written = [operation for operation in body if operation.written is not None]
    read = {
        one.number
        for operation in body
        for one in leaves_of((operation.arguments, operation.rows), (Outer, Rows))
        if operation.written is None
    }
    targets = [operation.rows.number for operation in written if operation.rows is not None]
    if not read.isdisjoint(targets):
        raise loop.refused("a step reads a tensor that steps write to")
    stacked = [operation.written.place for operation in written if operation.written]
    lasts: dict[Place, torch.Tensor] = {}
    # in the order of a step, so that two traces of a loop give the same scan
    for place, tensors in sorted(results.alive(loop).items()):
        if None not in tensors or body[place[0]].rows is not None:
            stacked.append(place)
        elif tensors[-1] is not None and place not in carries:
            lasts[place] = tensors[-1]
    is_scan = _scan(loop, body, carries, lasts, list(dict.fromkeys(stacked)))
    for operation in written:
        if operation.rows is not None and operation.written is not None:
            rows, index = operation.rows, operation.rows.index
            values = loop.stacked[operation.written.place]
            values = values.flip(0) if index.each < 0 else values
            rows.whole().copy_(values.movedim(0, rows.place))
    return is_scan


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
            if not isinstance(one, Outer):
                return False
            return carries.setdefault(other.place, one.tensor) is one.tensor
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
    total = Result(number, 0, before=True)
    if not zeros or total not in later:
        return False
    begun.remove(zeros[0])
    later.remove(total)
    return len(begun) == 1 and begun == later and isinstance(begun[0], Result)


def _scan(
    loop: Loop,
    body: Sequence[Operation],
    carries: Mapping[Place, torch.Tensor],
    lasts: Mapping[Place, torch.Tensor],
    wanted: Sequence[Place],
) -> bool:
    """One ``scan`` for all steps: it gives what a step has from the one before, ``lasts`` of the
    last step, and what is ``wanted`` of all. False where there is nothing to compute.
    """
    needed = {place[0] for place in (*carries, *lasts, *wanted)}
    for number in reversed(range(len(body))):
        if number in needed or body[number].writes:
            needed.add(number)
            needed |= {
                one.operation for one in leaves_of(body[number].arguments, Result) if not one.before
            }
    steps = {number: body[number] for number in sorted(needed)}
    rows = {number: one.rows.of_steps() for number, one in steps.items() if one.rows is not None}
    stays: dict[Any, Any] = {}
    for operation in steps.values():
        for one in leaves_of(operation.arguments, (Outer, Size)):
            stays.setdefault(one, _traced(one.tensor) if isinstance(one, Outer) else one.value)
    stacked = [place for place in wanted if place[0] not in rows]
    # a result of the last step alone is a state that no step reads
    unread = (torch.zeros(t.shape, dtype=t.dtype, device=t.device) for t in lasts.values())
    begun = [*map(_copied, carries.values()), *unread]
    read = list(rows.values())

    def step(*values: torch.Tensor) -> list[torch.Tensor]:
        n_begun, n_read = len(begun), len(read)
        before = dict(zip(carries, values[:n_begun], strict=False))
        known = dict(zip(((n, 0) for n in rows), values[n_begun : n_begun + n_read], strict=False))
        constant = dict(zip(stays, values[n_begun + n_read :], strict=True))

        def value(one: Any) -> Any:
            if isinstance(one, Result):
                return before[one.place] if one.before else known[one.place]
            return constant[one] if isinstance(one, (Outer, Size)) else one.value

        for number, operation in steps.items():
            if operation.function is not None:
                args, kwargs = mapped(operation.arguments, value)
                results = leaves_of(operation.function(*args, **kwargs), torch.Tensor)
                known |= {(number, leaf): result for leaf, result in enumerate(results)}
        nexts = [known[place] for place in (*carries, *lasts)] or [values[0]]
        # results of a scan share no memory with its inputs or with each other
        given = (*nexts, *(known[place] for place in stacked))
        return list(map(_copied, given))

    is_scan = bool(begun or stacked)
    if is_scan:
        begun = begun or [torch.zeros(1)]  # scan asks for a state
        read = read or [torch.zeros(loop.count)]  # and for rows
        results = list(scan_op(step, begun, read, tuple(stays.values())))
        loop.finals.update(zip((*carries, *lasts), results, strict=False))
        loop.stacked.update(zip(stacked, results[len(begun) :], strict=True))
    loop.stacked.update((place, rows[place[0]]) for place in wanted if place[0] in rows)
    return is_scan


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

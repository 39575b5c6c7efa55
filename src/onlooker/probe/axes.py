"""May an axis that never changed change? The model is asked: resize it everywhere at once and run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.path import Path
from ..core.spec import Axis
from ..infer.relations import varies
from ..infer.samples import Row, Table
from ..materialise.arguments import close_arguments, materialise
from ..materialise.tensors import resized
from ..observe.store import Sample
from ..pytrees.agree import agreement
from .regimes import Regime, sizes_of
from .subject import Subject

__all__ = ["Pins", "probe_axes"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pins:
    """What the caller decided: axes that stay static, by argument name, and a budget for the rest."""

    static: Mapping[str, Sequence[int]]
    probes: int = 24
    seconds: float = 60.0

    def allows(self, axis: Axis) -> bool:
        """True when the axis may be probed."""
        return axis.dim not in self.static.get(axis.path.root, ())


def probe_axes(regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime:
    """The regime with a row for every class of axes that the model lets change.

    The classes are, in this order: the first dimensions of all tensors that have the size of the batch;
    then axes of the same size, over all arguments and then argument by argument.
    """
    deadline = time.monotonic() + pins.seconds
    base = _base_values(regime, samples)
    if base is None:
        return regime
    try:
        expected = subject.try_out(close_arguments(regime.plan(), base))
    except Exception as error:
        note = f"nothing was probed: the model refuses the call it was given before ({type(error).__name__}: {error})"
        return replace(regime, notes=(*regime.notes, note))
    settled: set[Axis] = set()
    for number, axes in enumerate(_candidates(regime.table, base, pins)):
        if number >= pins.probes or time.monotonic() > deadline:
            return replace(regime, notes=(*regime.notes, "the budget of probes ended before every axis was tried"))
        if settled & set(axes):
            continue
        row = _probe(regime, base, expected, axes, subject, number)
        if row is not None:
            settled |= set(axes)
            regime = replace(regime, probes=(*regime.probes, row))
    return regime


def _base_values(regime: Regime, samples: Sequence[Sample]) -> dict[Path, Any] | None:
    """The values that probes start from: the sizes of the last kept call that has the most leaves."""
    calls = {call.index for form in regime.union.forms for call in form.calls}
    own = [sample for sample in samples if sample.call.index in calls]
    if not own:
        return None
    richest = max(own, key=lambda sample: (len(sample.inputs.leaves), sample.call.index))
    plan = regime.plan()
    values = dict(zip(richest.inputs.structure.paths(), richest.inputs.leaves, strict=True))
    return materialise(plan, sizes_of(plan, values), [richest, *own])


def _candidates(table: Table, base: Mapping[Path, Any], pins: Pins) -> Iterator[tuple[Axis, ...]]:
    """Classes of axes to change together, the likeliest first."""
    still = [
        axis
        for axis in table.axes
        if axis.dim is not None
        and not varies(table.column(axis))
        and isinstance(base.get(axis.path), torch.Tensor)
        and pins.allows(axis)
    ]
    first = [axis for axis in still if axis.dim == 0]
    changing = [a for a in table.axes if a.dim == 0 and varies(table.column(a))]
    if first and not changing:
        size = base[first[0].path].shape[0]
        batch = [axis for axis in first if base[axis.path].shape[0] == size]
        yield tuple(batch)
        roots = dict.fromkeys(axis.path.root for axis in batch)
        for root in list(roots)[1:]:
            yield tuple(axis for axis in batch if axis.path.root != root)
    others = [axis for axis in still if axis.dim != 0 and not _is_settled_state(axis, table, base)]
    sizes = dict.fromkeys(base[axis.path].shape[axis.dim] for axis in others)
    groups = {n: tuple(a for a in others if base[a.path].shape[a.dim] == n) for n in sizes}
    yield from groups.values()
    for group in groups.values():
        kinds = dict.fromkeys((axis.path.root, axis.dim) for axis in group)
        if len(kinds) > 1:
            yield from (tuple(a for a in group if (a.path.root, a.dim) == kind) for kind in kinds)


def _is_settled_state(axis: Axis, table: Table, base: Mapping[Path, Any]) -> bool:
    """True where a change would say nothing: a size of 1, or the state of a layer that kept its size over calls."""
    calls = sum(size is not None for size in table.column(axis))
    return base[axis.path].shape[axis.dim] < 2 or (calls > 1 and len(axis.path.entries) > 2)


def _probe(
    regime: Regime,
    base: Mapping[Path, Any],
    expected: Any,
    axes: Sequence[Axis],
    subject: Subject,
    number: int,
) -> Row | None:
    """The row of a probe that the model accepted, or None."""
    size = base[axes[0].path].shape[axes[0].dim]
    for fresh in (size + 1, 2 * size):
        values = _with_size(base, axes, fresh)
        try:
            got = subject.try_out(close_arguments(regime.plan(), values))
        except Exception as error:
            logger.info("%s: %d instead of %d is refused: %s", axes[0], fresh, size, type(error).__name__)
            continue
        batch = all(axis.dim == 0 for axis in axes)
        if _same_ranks(expected, got) and (_rows_kept(expected, got, size) if batch else _changed(expected, got)):
            return _row(f"probe {number}", values, regime.table.axes)
    return None


def _with_size(base: Mapping[Path, Any], axes: Sequence[Axis], fresh: int) -> dict[Path, Any]:
    values = dict(base)
    for axis in axes:
        shape = list(values[axis.path].shape)
        shape[axis.dim or 0] = fresh
        values[axis.path] = resized(values[axis.path], shape)
    return values


def _row(label: str, values: Mapping[Path, Any], axes: Sequence[Axis]) -> Row:
    sizes = {a: int(values[a.path].shape[a.dim]) for a in axes if a.dim is not None and a.path in values}
    ints = {a: int(values[a.path]) for a in axes if a.dim is None and isinstance(values.get(a.path), int)}
    return Row(label, {**sizes, **ints})


def _changed(expected: Any, got: Any) -> bool:
    """True when an output is another one: an axis that nothing depends on is left as it was."""
    return not agreement(expected.structure.paths(), expected.leaves, got.leaves, atol=0.0).holds


def _same_ranks(expected: Any, got: Any) -> bool:
    """True when both results have the same leaves of the same ranks."""
    ranks = [[getattr(leaf, "ndim", -1) for leaf in tree.leaves] for tree in (expected, got)]
    return ranks[0] == ranks[1]


def _rows_kept(expected: Any, got: Any, size: int) -> bool:
    """True when the rows that were there before come out as before, and some output has rows."""
    paths, left, right = [], [], []
    for (path, old), new in zip(expected.items(), got.leaves, strict=True):
        if isinstance(old, torch.Tensor) and old.ndim and old.shape[0] == size and new.shape[0] > size:
            paths.append(path)
            left.append(old)
            right.append(new[:size])
    return bool(paths) and agreement(paths, left, right, atol=1e-4).holds

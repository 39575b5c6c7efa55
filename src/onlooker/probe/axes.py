"""May an axis that never changed change? The model is asked: resize it everywhere at once and run."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch

from ..core.path import Path
from ..core.spec import Axis
from ..core.structure import Tree
from ..infer.relations import varies
from ..infer.samples import Row, Table, row_of_values
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..materialise.tensors import resized
from ..observe.store import Sample
from ..pytrees.agree import agreement
from .regimes import Regime
from .subject import Subject

__all__ = ["Pins", "probe_axes"]

logger = logging.getLogger(__name__)
_MOST_PAIRED = 8


@dataclass(frozen=True, slots=True)
class Pins:
    """What the caller decided: axes that stay static, by argument name, and a budget for the rest.

    ``probes`` is the most runs of the model, ``seconds`` the time after which no other one is begun.
    """

    static: Mapping[str, Sequence[int]] = field(default_factory=dict)
    probes: int = 64
    seconds: float = 60.0

    def allows(self, axis: Axis) -> bool:
        """True when the axis may be probed."""
        return axis.dim not in self.static.get(axis.path.root, ())


def probe_axes(regime: Regime, samples: Sequence[Sample], subject: Subject, pins: Pins) -> Regime:
    """The regime with a row for every class of axes that the model lets change.

    The classes are, in this order: first dimensions of the same size; other axes of the same size, over all
    arguments, then without some, then argument by argument; then pairs, for an axis that follows another one.
    """
    base = _base_values(regime, samples)
    if base is None:
        return regime
    try:
        bench = _Bench(regime, base, subject, subject.try_out(close_arguments(regime.plan(), base)))
    except Exception as error:
        note = f"nothing was probed: the model refuses the call it was given before ({type(error).__name__}: {error})"
        return replace(regime, notes=(*regime.notes, note))
    deadline = time.monotonic() + pins.seconds
    rows: list[Row] = []
    settled: set[Axis] = set()
    for change in _changes(regime.table, base, pins, settled):
        if bench.runs >= pins.probes or time.monotonic() > deadline:
            note = "the budget of probes ended before every axis was tried"
            return replace(regime, probes=(*regime.probes, *rows), notes=(*regime.notes, note))
        row = bench.probe(change, f"probe {len(rows)}")
        if row is not None:
            settled |= set(change.axes)
            rows.append(row)
    return replace(regime, probes=(*regime.probes, *rows))


def _base_values(regime: Regime, samples: Sequence[Sample]) -> dict[Path, Any] | None:
    """The values that probes start from: the sizes of the last kept call that has the most leaves."""
    calls = {call.index for form in regime.union.forms for call in form.calls}
    own = [sample for sample in samples if sample.call.index in calls]
    if not own:
        return None
    richest = max(own, key=lambda sample: (len(sample.inputs.leaves), sample.call.index))
    plan = regime.plan()
    return materialise(plan, sizes_of(plan, leaf_values(richest)), [richest, *own])


@dataclass(frozen=True, slots=True)
class _Change:
    """Axes to change together; ``batch`` when the rows that were there must come out as they did."""

    axes: tuple[Axis, ...]
    batch: bool = False


def _changes(table: Table, base: Mapping[Path, Any], pins: Pins, settled: set[Axis]) -> Iterator[_Change]:
    """Classes of axes to change together, the likeliest first; ``settled`` grows while they are tried."""
    still = [
        axis
        for axis in table.axes
        if axis.dim is not None
        and not varies(table.column(axis))
        and isinstance(base.get(axis.path), torch.Tensor)
        and pins.allows(axis)
    ]
    state = {axis for axis in still if _is_settled_state(axis, table, base)}
    first = [axis for axis in still if axis.dim == 0]
    for axes in _batches(first, still, base):
        if axes and not settled & set(axes):
            yield _Change(axes, batch=True)
    for axes in _by_size([axis for axis in still if axis.dim != 0], base):
        for part in _parts(axes, state):
            if part and not settled & set(part) and not set(part) <= state:
                yield _Change(part)
    left = [a for a in still if a not in settled and a not in state and a.dim != 0]
    for one, two in combinations(left[:_MOST_PAIRED], 2):
        if one.path.root != two.path.root and not {one, two} <= settled:
            yield _Change((one, two))


def _batches(first: Sequence[Axis], still: Sequence[Axis], base: Mapping[Path, Any]) -> Iterator[tuple[Axis, ...]]:
    """What may be a batch: first dimensions of one size, or second ones where the first has another size.

    First dimensions that are multiples of it come too: images or tokens of all rows, laid flat.
    """
    for axes in _by_size(first, base):
        size = int(base[axes[0].path].shape[0])
        second = tuple(a for a in still if a.dim == 1 and base[a.path].ndim > 2 and _is_second(a, size, base))
        flat = tuple(a for a in first if a not in axes and size and base[a.path].shape[0] % size == 0)
        flat = tuple(a for a in flat if a.path not in {other.path for other in second})
        for more in dict.fromkeys(((*second, *flat), second, flat, ())):
            yield (*axes, *more)
        yield from _parts(axes, set())


def _is_second(axis: Axis, size: int, base: Mapping[Path, Any]) -> bool:
    shape = base[axis.path].shape
    return int(shape[1]) == size and int(shape[0]) != size


def _by_size(axes: Sequence[Axis], base: Mapping[Path, Any]) -> Iterator[tuple[Axis, ...]]:
    """The axes grouped by their size, in the order in which the sizes are met."""
    sizes = {axis: int(base[axis.path].shape[axis.dim or 0]) for axis in axes}
    for size in dict.fromkeys(sizes.values()):
        yield tuple(axis for axis in axes if sizes[axis] == size)


def _parts(axes: tuple[Axis, ...], state: set[Axis]) -> Iterator[tuple[Axis, ...]]:
    """A class, then the class without what only has the same size by chance."""
    yield axes
    if any(axis in state for axis in axes):
        yield tuple(axis for axis in axes if axis not in state)
    kinds = list(dict.fromkeys((axis.path.root, axis.dim) for axis in axes))
    if len(kinds) > 1:
        for kind in kinds:
            yield tuple(axis for axis in axes if (axis.path.root, axis.dim) != kind)
        for kind in kinds if len(kinds) > 2 else ():
            yield tuple(axis for axis in axes if (axis.path.root, axis.dim) == kind)


def _is_settled_state(axis: Axis, table: Table, base: Mapping[Path, Any]) -> bool:
    """True where a change says little: a size of 1 inside, or the state of a layer that kept its size over calls."""
    if axis.dim == 0:
        return False
    calls = sum(size is not None for size in table.column(axis))
    return base[axis.path].shape[axis.dim] < 2 or (calls > 1 and len(axis.path.entries) > 2)


class _Bench:
    """Runs probes from one call of the model, and counts them."""

    def __init__(self, regime: Regime, base: Mapping[Path, Any], subject: Subject, expected: Tree[Any]) -> None:
        self.plan = regime.plan()
        self.base, self.subject, self.expected = base, subject, expected
        self.runs = 0

    def run(self, values: Mapping[Path, Any]) -> Tree[Any] | None:
        """The result of the model, or None where it refuses; only results of the same form count."""
        self.runs += 1
        try:
            got = self.subject.try_out(close_arguments(self.plan, values))
        except Exception as error:
            logger.debug("a probe is refused: %s: %s", type(error).__name__, error)
            return None
        ranks = [[getattr(leaf, "ndim", -1) for leaf in tree.leaves] for tree in (self.expected, got)]
        return got if ranks[0] == ranks[1] else None

    def probe(self, change: _Change, label: str) -> Row | None:
        """The row of a change that the model accepts, or None.

        The other rows of a batch must come out as they did; any other axis must matter to the result.
        """
        axes = change.axes
        sizes = [int(self.base[axis.path].shape[axis.dim or 0]) for axis in axes]
        ways = ((1, 1), (2, 0)) if len(set(sizes)) == 1 else ((2, 0),) if change.batch else ((1, 1),)
        for factor, plus in ways:
            values = dict(self.base)
            for axis, size in zip(axes, sizes, strict=True):
                values[axis.path] = _with_size(values[axis.path], axis.dim or 0, factor * size + plus)
            got = self.run(values)
            if got is None:
                continue
            if self.keeps_rows(got, sizes[0]) if change.batch else self.matters(axes, got):
                return row_of_values(label, values)
        return None

    def keeps_rows(self, got: Tree[Any], size: int) -> bool:
        """True when some output got more rows, and the ones that were there before are as before."""
        paths, left, right = [], [], []
        for (path, old), new in zip(self.expected.items(), got.leaves, strict=True):
            if isinstance(old, torch.Tensor) and old.ndim and old.shape[0] == size and new.shape[0] > size:
                paths.append(path)
                left.append(old)
                right.append(new[:size])
        return bool(paths) and agreement(paths, left, right, atol=1e-4).holds

    def matters(self, axes: Sequence[Axis], got: Tree[Any]) -> bool:
        """True when the result is another one, or would be for other values: what nothing reads stays as it was."""
        return self.differs(got) or any(self.is_read(path) for path in dict.fromkeys(axis.path for axis in axes))

    def differs(self, got: Tree[Any]) -> bool:
        """True when an output is another one."""
        return not agreement(self.expected.structure.paths(), self.expected.leaves, got.leaves, atol=0.0).holds

    def is_read(self, path: Path) -> bool:
        """True when other values of a float input give another result."""
        value = self.base[path]
        if not value.dtype.is_floating_point:
            return False
        got = self.run({**self.base, path: value * 0.5 + 0.125})
        return got is not None and self.differs(got)


def _with_size(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    shape = list(tensor.shape)
    shape[dim] = size
    return resized(tensor, shape)

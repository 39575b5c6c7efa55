"""Axes of the inputs that may be of size 1 where they had the size of another axis in every call: a
mask for all rows at once, a bias with one step.

The graph gets such a tensor expanded. Nothing but broadcasting may look at the axis, in the graph
(:mod:`onlooker.proofs.broadcasts`) and in the Python of the model: it runs once with the small tensors, and
has to read the sizes that it read in the trace. Operators of broadcasting treat each axis by itself. So
what is never seen when many axes are of size 1 is never seen when fewer are, and each call may have any
of them, as long as one axis of each symbol has its size::

    x * mask + bias, all of shape (batch, words)

    axes of batch       of size 1 in a run          what is full then
    x, mask, bias       mask and bias               x
                        x and bias                  mask
                        x and mask                  bias
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...core.marks import MEMORY
from ...core.path import Path
from ...core.plan import LeafPlan, Plan
from ...core.spec import Axis
from ...proofs.broadcasts import Broadcasts
from ...trace.graph import Graph
from .operator_trials import OperatorTrials
from .regions import ProvenRegion

__all__ = ["with_broadcast_axes"]

logger = logging.getLogger(__name__)
#: arguments with more inputs than these are caches
_MOST_INPUTS = 24

#: the axes of some symbols that may be of size 1
_Axes = Mapping[str, Sequence[Axis]]


def with_broadcast_axes(
    graph: Graph, regions: Sequence[ProvenRegion], trials: OperatorTrials
) -> Graph:
    """The graph, whose plan says which axes may be of size 1 in a call."""
    plan = graph.plan
    if len(plan.inputs) > _MOST_INPUTS or any(region.not_tracing for region in regions):
        return graph
    if MEMORY in graph.marks:  # strides are other ones
        return graph
    found = _Candidates(graph)
    broadcast = {symbol.name: found.of(symbol.name) for symbol in plan.symbols}
    axes = _those_unread(found, broadcast, regions, trials)
    dims: dict[Path, list[int]] = {}
    for axis in (axis for group in axes.values() for axis in group):
        if axis.dim is not None:
            dims.setdefault(axis.path, []).append(axis.dim)
    if not dims:
        return graph
    logger.info("%s: of size 1 may be %s", graph.name, {str(path): d for path, d in dims.items()})
    return replace(graph, plan=_with_dims(plan, dims))


def _with_dims(plan: Plan, dims: Mapping[Path, Sequence[int]]) -> Plan:
    def of(leaf: LeafPlan) -> LeafPlan:
        return replace(leaf, broadcast=tuple(sorted(dims.get(leaf.path, ()))))

    return replace(plan, leaves=tuple(map(of, plan.leaves)))


class _Candidates:
    """The axes of one graph along which it broadcasts."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._plan, self._broadcasts = graph.plan, Broadcasts(graph.artifact)
        self._places = {leaf.path: place for place, leaf in enumerate(graph.plan.inputs)}

    def of(self, name: str) -> list[Axis]:
        """The axes of a symbol of which all but one, or all where another input tells the size, may be of
        size 1.
        """
        found: list[Axis] = []
        for axis in self._plan.axes_of(name):
            if axis.dim is None:
                continue
            wider = [*found, axis]
            sets = list(self.sets_of(name, wider))
            if sets and all(map(self._are_broadcast, sets)):
                found = wider
        return found

    def sets_of(self, name: str, axes: Sequence[Axis]) -> Iterator[Sequence[Axis]]:
        """The largest sets of some axes of a symbol that may be of size 1 in one call."""
        if len(self._plan.axes_of(name)) > len(axes):
            yield axes
        elif len(axes) > 1:
            yield from ([one for one in axes if one is not full] for full in axes)

    def _are_broadcast(self, axes: Sequence[Axis]) -> bool:
        stretched: dict[int, list[int]] = {}
        for axis in axes:
            if axis.dim is not None:
                stretched.setdefault(self._places[axis.path], []).append(axis.dim)
        return self._broadcasts.is_all_of(stretched)


def _those_unread(
    found: _Candidates, axes: _Axes, regions: Sequence[ProvenRegion], trials: OperatorTrials
) -> _Axes:
    """All axes, if the Python of the model reads none of them; else those of each input of which it
    reads none.
    """
    if not any(axes.values()) or _is_unread(found, axes, regions, trials):
        return axes
    kept: dict[str, list[Axis]] = {name: [] for name in axes}
    for path in dict.fromkeys(axis.path for group in axes.values() for axis in group):
        own = {name: [one for one in group if one.path == path] for name, group in axes.items()}
        if own != axes and _is_unread(found, own, regions, trials):
            for name, group in own.items():
                kept[name] += group
    is_same = sum(map(len, kept.values())) == sum(map(len, axes.values()))
    if not any(kept.values()) or is_same or not _is_unread(found, kept, regions, trials):
        return {}
    return kept


def _is_unread(
    found: _Candidates, axes: _Axes, regions: Sequence[ProvenRegion], trials: OperatorTrials
) -> bool:
    """True where the model reads, in each region, the sizes of the trace though axes are of size 1."""
    sets = {name: list(found.sets_of(name, group)) for name, group in axes.items() if group}
    for region in regions:
        own = [sets[name] for name in sets if name not in region.fixed]
        for number in range(max(map(len, own), default=0)):
            small = [axis for group in own for axis in group[min(number, len(group) - 1)]]
            if not trials.is_unread(found.graph, region, small):
                return False
    return True

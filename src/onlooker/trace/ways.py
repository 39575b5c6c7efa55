"""Ways of a call: which arguments may it leave out together?

An option that every watched call passed is a constant of the graph. A call without it is the call
with its default, which another path of the model may serve. So a second trace leaves out the same
arguments. Where it gives the same graph, the calls that leave them out get the first graph, for the
sizes of which the second trace is proven:

    def forward(self, x, doubled=False, named=None):    # watched with doubled=True, named=True

    trace                       graph       what a call may do
    doubled=True, named=True    x * 2       pass both
    doubled=True                x * 2       pass doubled=True alone
    (nothing)                   x           another graph: refused here
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from ..core.call import Call, Signature
from ..core.contract import Constraint, Way
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..core.spec import ConstantSpec, Spec
from ..core.structure import Structure
from ..infer.sizes import Sizes
from .graph import Graph
from .regions import ProvenRegion
from .torch_export import Traced

__all__ = [
    "ProvenWay",
    "absent_tensors",
    "calls_without",
    "has_empty_fills",
    "is_proven_wherever",
    "joined_ways",
    "left_out_in",
    "watched_ways",
    "without",
]

#: sizes at which a graph is proven where another one is
_SIZES = (2, 3, 5, 17, 64, 129, 1000)


@dataclass(frozen=True, slots=True)
class ProvenWay:
    """Arguments that a trace left out, and the region for which it gave the graph."""

    left_out: frozenset[str]
    region: ProvenRegion
    traced: Traced


def joined_ways(ways: Sequence[ProvenWay]) -> tuple[Way, ...]:
    """One way for each set of arguments, with the regions of all its traces."""
    groups: dict[tuple[str, ...], list[ProvenWay]] = {}
    for way in ways:
        groups.setdefault(tuple(sorted(way.left_out)), []).append(way)
    return tuple(
        Way(names, tuple(way.region.region for way in group)) for names, group in groups.items()
    )


def without(plan: Plan, names: Collection[str]) -> Plan:
    """The plan of calls that leave out these arguments."""
    before = plan.structure
    kept = [
        (entry, child)
        for entry, child in zip(before.entries, before.children, strict=True)
        if Path((entry,)).root not in names
    ]
    structure = Structure(
        before.kind,
        tuple(entry for entry, _ in kept),
        tuple(child for _, child in kept),
        before.context,
        before.extra,
    )
    leaves = tuple(leaf for leaf in plan.leaves if leaf.path.root not in names)
    return replace(plan, structure=structure, leaves=leaves)


def watched_ways(
    plan: Plan, calls: Sequence[Call], signature: Signature
) -> dict[frozenset[str], tuple[int, ...]]:
    """The options that calls of the plan left out, each set with the numbers of its calls."""
    found: dict[frozenset[str], list[int]] = {}
    for call in calls:
        names = left_out_in(plan, call, signature) if call.index in plan.calls else None
        if names:
            found.setdefault(names, []).append(call.index)
    return {names: tuple(indices) for names, indices in found.items()}


def left_out_in(plan: Plan, call: Call, signature: Signature) -> frozenset[str]:
    """The options that a call leaves out, or passes as their default, where others pass another
    value.
    """
    given = dict(call.inputs.items())
    return frozenset(
        leaf.path.root
        for leaf in _options(plan, signature)
        if given.get(leaf.path) in (None, _default_of(leaf, signature))
    )


def absent_tensors(plan: Plan) -> tuple[str, ...]:
    """The arguments of tensors that a call may leave out as far as experiments say: ones or zeros stand
    for them, be it for a tensor or for a list of tensors.
    """
    tensors = [leaf for leaf in plan.inputs if leaf.is_tensor]
    needed = {leaf.path.root for leaf in tensors if leaf.fill is None}
    found = (
        leaf.path.root
        for leaf in tensors
        if leaf.fill is not None
        and (len(leaf.path.entries) == 1 or leaf.fill.kind != "empty")
        and leaf.path.root not in needed
    )
    return tuple(dict.fromkeys(found))


def has_empty_fills(plan: Plan) -> bool:
    """True where a cache may be empty: its calls are of several kinds."""
    return any(leaf.fill is not None and leaf.fill.kind == "empty" for leaf in plan.inputs)


def calls_without(plan: Plan, names: Collection[str], calls: Sequence[Call]) -> tuple[int, ...]:
    """The numbers of the calls of a plan that leave out just these of its tensors."""
    roots = absent_tensors(plan)
    found = []
    for call in calls:
        leaves = call.inputs.items()
        given = {path.root for path, leaf in leaves if leaf != ConstantSpec(None)}
        absent = {root for root in roots if root not in given}
        if call.index in plan.calls and absent == set(names):
            found.append(call.index)
    return tuple(found)


def is_proven_wherever(graph: Graph, holds: Callable[[Sizes], bool]) -> bool:
    """True for a graph that is proven for all sizes of 2 and more for which ``holds`` says that
    another graph is.

    Each condition is evaluated at many sizes, at its own numbers and beside them: one that holds
    at all of them excludes 0 and 1 alone.
    """
    return all(
        constraint.holds(sizes) or not holds(sizes)
        for region in graph.contract.regions
        for constraint in region.constraints
        for sizes in _sizes_from_two(constraint, dict(graph.sizes))
    )


def _sizes_from_two(constraint: Constraint, general: Sizes) -> Iterator[Sizes]:
    """Sizes of 2 and more at the numbers of a constraint, beside them and elsewhere."""
    words = set(re.findall(r"\w+", constraint.formula))
    numbers = [int(word) for word in words if word.isdigit()]
    names = [name for name in general if name in words]
    near = {size for number in numbers for size in range(number - 1, number + 2)}
    sizes = sorted(size for size in {*_SIZES, *near} if size > 1)
    for choice in product(sizes, repeat=len(names)):
        yield {**general, **dict(zip(names, choice, strict=True))}


def _options(plan: Plan, signature: Signature) -> Iterator[LeafPlan]:
    """Whole arguments that are constants of the plan, and other ones than their defaults: numbers and
    texts, and objects as a dtype.
    """
    for leaf in plan.leaves:
        fixed = leaf.opaque or (leaf.constant if leaf.is_constant else None)
        is_whole = fixed is not None and len(leaf.path.entries) == 1
        if is_whole and fixed != _default_of(leaf, signature):
            yield leaf


def _default_of(leaf: LeafPlan, signature: Signature) -> Spec | None:
    parameter = signature.get(leaf.path.root)
    default: ConstantSpec | None = parameter.default if parameter is not None else None
    return default

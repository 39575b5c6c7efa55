"""Ways of a call: which arguments may it leave out together?

An option that every watched call passed is a constant of the graph. A call without it is the call
with its default, which another path of the model may serve. So a second trace leaves out the same
arguments. Where it gives the same graph, the calls that leave them out get the first graph, for the
sizes for which the second trace is proven, which may be more than those of the first one:

    def forward(self, x, doubled=False, named=None):    # watched with doubled=True, named=True

    trace                       graph       what a call may do
    doubled=True, named=True    x * 2       pass both
    doubled=True                x * 2       pass doubled=True alone
    (nothing)                   x           another graph: refused here
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from ...core.call import Call, Signature
from ...core.contract import Constraint, Origin, Region, Way
from ...core.path import Path
from ...core.plan import LeafPlan, Plan
from ...core.sizes.expression import Sizes
from ...core.sizes.formula import numbers_near, read_formula, renamed, symbols_in
from ...core.spec import ConstantSpec
from ...trace.graph import Graph
from ...trace.torch_export import Traced
from .regions import ProvenRegion

__all__ = [
    "USUAL_SIZES",
    "Limits",
    "ProvenWay",
    "absent_tensors",
    "calls_without",
    "has_empty_fills",
    "is_proven_wherever",
    "joined_ways",
    "left_out_in",
    "limited_ways",
    "ones_that_decide",
    "separable_arguments",
    "sets_left_out",
    "sizes_from",
    "sizes_of_absent",
    "watched_ways",
    "without",
]

#: sizes that are looked at beside the numbers of a condition
USUAL_SIZES = (0, 1, 2, 3, 5, 17, 64, 129, 1000)


@dataclass(frozen=True, slots=True)
class ProvenWay:
    """Arguments that a trace left out, and the region for which it gave the graph.

    ``is_identity`` is True where an identity test says so. It was made at sizes of the graph itself.
    """

    left_out: frozenset[str]
    region: ProvenRegion
    traced: Traced
    is_identity: bool = False

    def within(self, regions: Sequence[Region]) -> Iterator[Region]:
        """Yields the region, or what lies of it in each of the regions of the graph."""
        own = self.region.region
        if not self.is_identity:
            yield own
            return
        for region in regions:
            constraints = dict.fromkeys((*region.constraints, *own.constraints))
            yield Region(tuple(constraints), own.evidence)


def joined_ways(ways: Sequence[ProvenWay], regions: Sequence[Region]) -> tuple[Way, ...]:
    """One way for each set of arguments, with the regions of all its traces.

    ``regions`` are those of the graph.
    """
    groups: dict[tuple[str, ...], list[Region]] = {}
    for way in ways:
        groups.setdefault(tuple(sorted(way.left_out)), []).extend(way.within(regions))
    return tuple(Way(names, tuple(group)) for names, group in groups.items())


#: sets of arguments that calls may leave out, each with conditions on sizes under which they may
Limits = Mapping[frozenset[str], Sequence[Constraint]]


def limited_ways(limits: Limits, fixed: Sizes, regions: Sequence[Region]) -> Iterator[Way]:
    """Yields one way for each set of arguments that calls may leave out at some sizes alone.

    ``regions`` are those of the graph, ``fixed`` the symbols that are numbers in it.
    """
    for names, conditions in limits.items():
        own = tuple(_at_sizes(condition, fixed) for condition in conditions)
        narrow = (replace(one, constraints=(*one.constraints, *own)) for one in regions)
        yield Way(tuple(sorted(names)), tuple(narrow), "run without them")


def _at_sizes(condition: Constraint, fixed: Sizes) -> Constraint:
    """The condition with numbers in the place of some symbols."""
    tree = read_formula(condition.formula, sorted(symbols_in(condition.formula)))
    return replace(condition, formula=renamed(tree, lambda name: str(fixed.get(name, name))))


def without(plan: Plan, names: Collection[str]) -> Plan:
    """The plan of calls that leave out these arguments, and the sizes that no other argument has."""
    before = plan.structure
    kept = [(entry, child) for entry, child in before.parts if Path((entry,)).root not in names]
    entries, children = zip(*kept, strict=True) if kept else ((), ())
    structure = replace(before, entries=entries, children=children)
    leaves = tuple(leaf for leaf in plan.leaves if leaf.path.root not in names)
    told = {name for leaf in leaves for name in leaf.symbols}
    symbols = tuple(symbol for symbol in plan.symbols if symbol.name in told)
    # what calls with these arguments may not leave out says nothing of calls without them
    return replace(plan, structure=structure, leaves=leaves, symbols=symbols, never_absent=())


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
        if given.get(leaf.path) in (None, signature.default_of(leaf.path))
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
        and (len(leaf.path.entries) == 1 or leaf.empty_dim is None)
        and leaf.path.root not in needed
    )
    return tuple(dict.fromkeys(found))


def separable_arguments(plan: Plan) -> tuple[str, ...]:
    """The arguments that a call may leave out as far as experiments say, caches among them."""
    needed = set(plan.needed)
    needed |= {leaf.path.root for leaf in plan.inputs if leaf.fill is None}
    found = dict.fromkeys(leaf.path.root for leaf in plan.inputs if leaf.is_tensor)
    return tuple(root for root in found if root not in needed)


def has_empty_fills(plan: Plan) -> bool:
    """True where a cache may be empty: its calls are of several kinds."""
    return any(leaf.empty_dim is not None for leaf in plan.inputs)


def sizes_of_absent(plan: Plan, names: Collection[str]) -> dict[str, int]:
    """The sizes of caches that a call leaves out: 0."""
    found: dict[str, int] = {}
    for leaf in plan.inputs:
        if leaf.path.root in names and leaf.empty_dim is not None:
            found |= dict.fromkeys(leaf.shape[leaf.empty_dim].symbols, 0)
    return found


def calls_without(
    plan: Plan, names: Collection[str], calls: Sequence[Call], roots: Collection[str]
) -> tuple[int, ...]:
    """The numbers of the calls of a plan that leave out just these of the arguments that they may
    leave out, ``roots``.
    """
    own = (call for call in calls if call.index in plan.calls)
    return tuple(call.index for call in own if _left_out(call, roots) == set(names))


def sets_left_out(
    plan: Plan, calls: Sequence[Call], roots: Collection[str]
) -> list[frozenset[str]]:
    """The sets of the arguments ``roots`` that calls of a plan left out, the smaller ones first."""
    own = (call for call in calls if call.index in plan.calls)
    found = dict.fromkeys(_left_out(call, roots) for call in own)
    return sorted((names for names in found if names), key=len)


def _left_out(call: Call, roots: Collection[str]) -> frozenset[str]:
    leaves = call.inputs.items()
    given = {path.root for path, leaf in leaves if leaf != ConstantSpec(None)}
    return frozenset(root for root in roots if root not in given)


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
        for sizes in sizes_from(2, constraint, dict(graph.sizes))
    )


def ones_that_decide(graph: Graph, holds: Callable[[Sizes], bool]) -> Iterator[Sizes]:
    """Yields sizes with some of 1 for which ``holds`` says that another graph is proven, while this one is not,
    since the Python of the model decides there: one choice for each condition, and the sizes of 1 of all of them.
    """
    ones: dict[str, int] = {}
    for constraint in dict.fromkeys(c for r in graph.contract.regions for c in r.constraints):
        choices = sizes_from(1, constraint, dict(graph.sizes))
        found = (one for one in choices if holds(one) and not constraint.holds(one))
        for sizes in islice(found, constraint.origin is Origin.MODEL):
            ones |= {name: size for name, size in sizes.items() if size == 1}
            yield sizes
    if len(ones) > 1 and holds({**graph.sizes, **ones}):
        yield {**graph.sizes, **ones}


def sizes_from(least: int, constraint: Constraint, general: Sizes) -> Iterator[Sizes]:
    """Sizes from a number on: at the numbers of a constraint, beside them and elsewhere."""
    symbols = symbols_in(constraint.formula)
    names = [name for name in general if name in symbols]
    sizes = sorted(
        size for size in {*USUAL_SIZES, *numbers_near(constraint.formula)} if size >= least
    )
    for choice in product(sizes, repeat=len(names)):
        yield {**general, **dict(zip(names, choice, strict=True))}


def _options(plan: Plan, signature: Signature) -> Iterator[LeafPlan]:
    """Whole arguments that are constants of the plan, and other ones than their defaults: numbers and
    texts, and objects as a dtype.
    """
    for leaf in plan.leaves:
        fixed = leaf.opaque or (leaf.constant if leaf.is_constant else None)
        is_whole = fixed is not None and len(leaf.path.entries) == 1
        if is_whole and fixed != signature.default_of(leaf.path):
            yield leaf

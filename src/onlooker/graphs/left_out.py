"""Arguments that calls may leave out, and the graphs without them.

Options that watched calls left out are traced without, and so are options that all of them passed.
Some tensors may be left out as far as experiments say, a mask for instance. There is a trace without
them where the plan has no cache, and else a run of the model without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from ..core.contract import Constraint, Origin
from ..core.errors import ExportError
from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..core.support.progress import tell
from ..infer.unify import forms_of
from ..lab.lab import SpentError
from ..materialise.arguments import Calls, leaf_values
from ..materialise.counting import sizes_of
from ..pytrees.open import open_arguments
from ..trace.torch_export import export_graph
from .fixed_sizes import at_sizes
from .identity import identity_difference
from .one_plan.proven_graphs import ProvenGraph
from .one_plan.search import PlanSearch
from .one_plan.ways import (
    absent_tensors,
    calls_without,
    has_empty_fills,
    is_proven_wherever,
    ones_that_decide,
    separable_arguments,
    sets_left_out,
    sizes_of_absent,
    watched_ways,
    without,
)
from .program_graphs import ProgramGraphs
from .refused_calls import complete_observed
from .sides.side_runs import SideRuns
from .sides.symbolic_sizes import WayDiffersError

__all__ = [
    "add_calls_without_masks",
    "add_free_options",
    "add_watched_ways",
    "settle_absent_tensors",
]

logger = logging.getLogger(__name__)
#: of so many tensors that a call may leave out, each set is traced
_MOST_ABSENT = 2
#: the most sets of tensors that are left out in runs: all sets of four tensors
_MOST_WAYS = 15
#: of so many graphs that serve no watched call a trace without each set of tensors is made
_MOST_UNWATCHED = 2
#: after so many plans, calls of graphs that joined the program since leave out nothing
_MOST_SETTLED = 12


def add_watched_ways(program: ProgramGraphs) -> None:
    """A trace for each set of options that watched calls left out while others passed them: it
    gives the graph of the others, or one of its own.
    """
    recording = program.prepared.recording
    for search in list(program.searches):
        ways = watched_ways(search.plan, recording.calls, recording.signature)
        for names, calls in ways.items():
            other = _search_without(program, search, names, calls)
            if other is not None and not search.add_way(names, other):
                program.searches.append(other)


def add_free_options(program: ProgramGraphs) -> None:
    """One more trace of a plan whose calls are all of one kind: without all options that every
    call passed and that experiments took for free. Calls may leave them out where it gives the
    graph of the others.

    Where calls are of several kinds, each kind would need such a trace: options stay bound.
    """
    calls = {call.index: call for call in program.prepared.recording.calls}
    for search in list(program.searches):
        names = frozenset(leaf.path.root for leaf in search.plan.leaves if leaf.optional)
        own = [calls[index] for index in search.plan.calls if index in calls]
        if names and len(forms_of(own)) == 1:
            other = _search_without(program, search, names)
            if other is None or search.add_way(names, other):
                continue
            first, name = other.graphs[0], other.plan.name
            if not any(_difference(program, one, first, name) for one in search.graphs):
                search.add_way(names, other, is_identity=True)


def add_calls_without_masks(program: ProgramGraphs) -> None:
    """Graphs of calls that leave out a mask that every call passed, where the model takes them and
    experiments found nothing that stands for it: a model may return its mask. Who pads no longer
    passes none. Without ``probe`` no such call is tried.
    """
    required = _required_arguments(program)
    for search in list(program.searches) if program.overrides.probe else ():
        for name in _given_masks(search) - required:
            if _serves_without(program, search, name):
                continue
            sample = next(one for one in program.samples if one.call.index in search.plan.calls)
            rest = {root: value for root, value in sample.arguments().items() if root != name}
            try:
                is_taken = program.lab.takes(rest, why=f"{name} left out")
            except SpentError:
                return
            other = _search_without(program, search, frozenset({name})) if is_taken else None
            if other is not None:
                program.explore(other)
                program.searches.append(other)


def _serves_without(program: ProgramGraphs, search: PlanSearch, name: str) -> bool:
    """True where watched calls without an argument have graphs already."""
    rest = _arguments_of(search.plan) - {name}
    return any(_arguments_of(other.plan) == rest for other in program.searches)


def _arguments_of(plan: Plan) -> frozenset[str]:
    """The names of the arguments of a plan."""
    return frozenset(leaf.path.root for leaf in plan.leaves)


def _given_masks(search: PlanSearch) -> frozenset[str]:
    """The masks that a call has to bring: nothing stands for them."""
    return frozenset(
        leaf.path.root
        for leaf in search.plan.inputs
        if leaf.is_tensor
        and leaf.fill is None
        and len(leaf.path.entries) == 1
        and search.calls.domains.of(leaf.path).is_mask
    )


def settle_absent_tensors(program: ProgramGraphs) -> None:
    """A trace for each set of tensors that a call may leave out, a mask for instance: graphs that
    it is no identity with lose what stood for these tensors, and its graphs join the program.

    Plans with caches would need such traces for each kind of their calls: there the model runs on
    each side of what it decides by sizes, and so it does for the graphs that joined the program.
    Arguments that every call has to bring, though they may hold no tensor, are left to experiments.
    """
    settled: list[PlanSearch] = []
    while new := [search for search in program.searches if search not in settled]:
        for search in new:
            if len(settled) >= _MOST_SETTLED:
                search.bind(separable_arguments(search.plan))
            elif settled or has_empty_fills(search.plan):
                _settle_by_runs(program, search)
            else:
                _settle_by_traces(program, search)
        settled += new
        if any(s.plan.never_absent or s.has_limits or _has_bound(s) for s in new):
            complete_observed(program)


def _has_bound(search: PlanSearch) -> bool:
    """True where a call has to bring an argument that some calls left out."""
    return any(leaf.bound for leaf in search.plan.leaves)


def _settle_by_traces(program: ProgramGraphs, search: PlanSearch) -> None:
    """Traces each set of tensors that calls of one plan may leave out: those that watched calls
    left out, and all sets of a few tensors. The others have to be there, and so have those that were
    empty and that no call may leave out: calls with an empty one have a graph of their own.
    """
    required, needed = _required_arguments(program), set(search.plan.needed)
    absent = [root for root in absent_tensors(search.plan) if root not in required]
    roots = [root for root in absent if root not in needed]
    watched = sets_left_out(search.plan, program.prepared.recording.calls, roots)
    in_watched: frozenset[str] = frozenset().union(*watched)
    roots.sort(key=lambda root: root not in in_watched)
    bound = {*roots[_MOST_ABSENT:], *needed.intersection(absent)}
    sets = dict.fromkeys((*watched, *_subsets(roots[:_MOST_ABSENT])))
    for names in sorted(sets, key=len):
        is_bound = not names.isdisjoint(bound)
        # of two that each have graphs of their own, calls may leave out both
        is_wanted = names in watched or (len(names) > 1 and names <= bound)
        if is_bound and not is_wanted:
            continue
        is_known = _settle_set(program, search, names, has_own_graph=is_bound)
        if not is_known and not is_bound:
            bound |= names
    search.bind(bound)


def _settle_set(
    program: ProgramGraphs, search: PlanSearch, names: frozenset[str], *, has_own_graph: bool
) -> bool:
    """Traces calls without these tensors. Graphs of the search that are not shown to be the same take no such
    calls; where one of them serves watched calls, and where the set ``has_own_graph``, the graphs of the trace
    join the program. Returns False where every graph of the search differs without one tensor: calls have to
    bring that tensor then.
    """
    recording = program.prepared.recording
    roots = absent_tensors(search.plan)
    calls = calls_without(search.plan, names, recording.calls, roots)
    other = _search_without(program, search, names, calls)
    differ = list(search.graphs)
    if other is not None and not has_own_graph:
        differ = _those_that_differ(program, search, other, names)
    some_are_same = len(differ) < len(search.graphs)
    is_known = len(names) > 1 or some_are_same
    if is_known:
        for proven in differ:
            proven.never_absent += (tuple(sorted(names)),)
    is_served = some_are_same and not any(map(search.weight, differ))
    if other is not None and not is_served:
        program.explore(other)
        place = program.searches.index(search)
        is_first = len(calls) * 2 > len(search.plan.calls)
        program.searches.insert(place if is_first else place + 1, other)
    return is_known


def _settle_by_runs(program: ProgramGraphs, search: PlanSearch) -> None:
    """Refuses the ways of a call that runs of the model find to be something else than what the
    graphs of the search compute. Those that watched calls went are traced.
    """
    roots = [
        root
        for root in separable_arguments(search.plan)
        if root not in _required_arguments(program)
    ]
    refused, limited = [], dict[frozenset[str], Sequence[Constraint]]()
    runs = SideRuns(search, program.lab)
    for number, names in enumerate(_subsets(roots)):
        try:
            if number >= _MOST_WAYS:
                raise WayDiffersError("too many arguments may be left out")
            with program.noting(search):
                limits = runs.limits_without(names, _empty_objects(program, names))
        except WayDiffersError as different:
            logger.info("calls without %s differ: %s", ", ".join(sorted(names)), different)
            refused.append(names)
        else:
            if limits:
                # the runs had empty caches
                absent = sizes_of_absent(search.plan, names).items()
                empty = [Constraint(f"{name} == {size}", Origin.FIXED) for name, size in absent]
                limited[names] = [*empty, *limits]
    search.refuse_ways(refused)
    search.limit_ways(limited)
    for names in refused:
        calls = calls_without(search.plan, names, program.prepared.recording.calls, roots)
        other = _search_without(program, search, names, calls) if calls else None
        if other is not None:
            program.searches.append(other)


def _empty_objects(program: ProgramGraphs, names: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yields the arguments that calls pass instead of leaving out some: none, then an empty object
    of each class that watched calls passed, such as a new cache.
    """
    yield {}
    found: dict[str, Any] = {}
    for sample in program.samples:
        given = sample.arguments()
        for name in names & given.keys() - found.keys():
            if given[name] is not None and not open_arguments({"": given[name]}).leaves:
                found[name] = given[name]
    if found:
        yield found


def _search_without(
    program: ProgramGraphs, search: PlanSearch, names: frozenset[str], calls: tuple[int, ...] = ()
) -> PlanSearch | None:
    """The graphs of calls that leave out some arguments; None where torch makes none of them.

    ``calls`` are the numbers of watched calls that did, of whose sizes there are traces too.
    """
    fixed, sizes = search.general_sizes()
    fixed = {**fixed, **sizes_of_absent(search.plan, names)}
    sizes = {name: size for name, size in sizes.items() if name not in fixed}
    plan = without(at_sizes(search.plan, fixed), names)
    named = f"{plan.name}_without_{'_'.join(sorted(names))}"
    plan = replace(plan, name=named, calls=calls or plan.calls)
    watched = [sample for sample in program.samples if sample.call.index in calls]
    # their values decide on which side of a branch the graphs of the search are
    samples = search.calls.samples
    tell("tracing", detail=plan.name)
    try:
        traced = export_graph(plan, samples, program.lab, choices=[sizes], like=search.request)
    except ExportError as error:
        logger.debug("%s", error)
        return None
    other = program.begin(traced, samples)
    other.fixed = fixed
    for sample in watched:
        own = sizes_of(plan, leaf_values(sample))
        if not other.holds(own):
            other.add_sizes(own)
    return other


def _those_that_differ(
    program: ProgramGraphs, search: PlanSearch, other: PlanSearch, names: frozenset[str]
) -> list[ProvenGraph]:
    """The graphs of a search for all sizes of which no graph of the other one, without some tensors, is proven
    to be the same.

    The other one is traced at the sizes of each graph that serves watched calls, and of a few that serve everyday
    sizes, as a batch of 1.
    """
    watched = list(filter(search.weight, search.graphs))
    unwatched = [proven for proven in search.graphs if not search.weight(proven)]
    for proven in (*watched, *unwatched[:_MOST_UNWATCHED]):
        own = (symbol.name for symbol in other.plan.symbols)
        sizes = {name: proven.regions[0].sizes[name] for name in own}
        if not other.holds(sizes):
            other.add_sizes(sizes)
    runs = SideRuns(search, program.lab)

    def is_same_as(proven: ProvenGraph, own: ProvenGraph) -> bool:
        graph, sizes = own.current(), proven.regions[0].sizes
        return (
            is_proven_wherever(graph, proven.holds)
            and not _difference(program, proven, own, other.plan.name)
            and all(
                runs.is_same_at(names, {**sizes, **ones})
                for ones in ones_that_decide(graph, proven.holds)
            )
        )

    return [
        proven
        for proven in search.graphs
        if not any(is_same_as(proven, own) for own in other.graphs)
    ]


def _difference(program: ProgramGraphs, proven: ProvenGraph, other: ProvenGraph, name: str) -> str:
    """Compares a graph with one of another search, of a plan of some name, by an identity test, at sizes
    that both hold.
    """
    graphs = proven.current(), other.current()

    def both_hold(sizes: Sizes) -> bool:
        return proven.holds(sizes) and other.holds(sizes)

    calls = Calls(graphs[0].plan, program.samples)
    found = identity_difference(*graphs, calls, both_hold)
    logger.debug("%s and %s: %s", proven.graph.name, name, found or "the same")
    return found


def _required_arguments(program: ProgramGraphs) -> frozenset[str]:
    """Returns the names of the arguments that every call has to bring."""
    signature = program.prepared.recording.signature
    named = (one for one in signature.parameters if not one.kind.startswith("VAR"))
    return frozenset(one.name for one in named if one.required)


def _subsets(roots: Sequence[str]) -> Iterator[frozenset[str]]:
    """Yields all sets of one argument and more, the smaller ones first."""
    for count in range(1, len(roots) + 1):
        yield from map(frozenset, combinations(roots, count))

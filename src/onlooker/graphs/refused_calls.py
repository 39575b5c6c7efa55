"""Further graphs for watched calls that no graph takes, though the model takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..core.plan import Plan, symbol_names
from ..core.sizes.expression import Sizes
from ..core.sizes.formula import symbols_in
from ..hypotheses.families import resolved
from ..hypotheses.shared_graphs import find_drafts
from ..infer.sizes import listed
from ..infer.unify import forms_of
from ..materialise.arguments import Calls, leaf_values
from ..materialise.counting import sizes_of
from ..materialise.padding import with_padding
from ..observing.store import Sample
from .control_flow import at_call, control_flow_numbers
from .fixed_sizes import at_sizes, is_narrower
from .one_plan.search import PlanSearch
from .program_graphs import ProgramGraphs

__all__ = ["add_sides_of_masks", "complete_observed", "drop_useless"]

#: the most graphs that are made for calls which the graphs of the plans refuse
_MOST_FURTHER = 12
#: so many attempts one after the other that help no call are made for refused calls
_MOST_IN_VAIN = 6


def complete_observed(program: ProgramGraphs) -> None:
    """Further traces for every kept call that is refused, at most a dozen.

    A model that loops over values makes a graph of each call that holds for these values alone:
    after some attempts that helped no call, no further ones are made.
    """
    given_up = set[int]()
    in_vain = 0
    for _ in range(_MOST_FURTHER):
        left = [
            one
            for one in program.samples
            if one.call.index not in given_up and not program.serves(one)
        ]
        if not left:
            break
        if in_vain >= _MOST_IN_VAIN:
            break
        before, is_served = len(program.searches), False
        for _ in _attempts(program, left[0]):
            is_served = program.serves(left[0])
            in_vain = 0 if is_served else in_vain + 1
            if is_served or in_vain >= _MOST_IN_VAIN:
                break
        if not is_served:
            program.give_up_after(before)
            given_up.add(left[0].call.index)
    for sample in program.samples:
        if not program.serves(sample):
            program.refusals.append(f"call {sample.call.index} is served by no graph")


def _attempts(program: ProgramGraphs, sample: Sample) -> Iterator[None]:
    """Makes graphs that may take a kept call, one way after the other.

    The next way is asked for only where the one before does not help: its graphs go.
    """
    search = next((one for one in program.searches if sample.call.index in one.plan.calls), None)
    plan = (
        search.plan
        if search
        else next((p for p in program.plans if sample.call.index in p.calls), None)
    )
    if search is not None:
        sizes = search.calls.sizes_of(sample)
        with program.noting(search):
            search.add_sizes(sizes)
        yield
    if plan is not None:
        for constant in _with_constants(program, plan, sample):
            before = len(program.searches)
            program.trace(constant)
            yield
            program.give_up_after(before)
        own = replace(plan, name=f"{plan.name}_at_call_{sample.call.index}")
        # a branch on values that were grown to other sizes may take another side
        for choices in (None, [sizes_of(plan, leaf_values(sample))]):
            before = len(program.searches)
            program.trace(own, samples=(sample,), choices=choices)
            yield
            program.give_up_after(before)
    before = len(program.searches)
    _try_own_form(program, sample)
    yield
    program.give_up_after(before)


def _with_constants(program: ProgramGraphs, plan: Plan, sample: Sample) -> Iterator[Plan]:
    """The plan with ints, or with sizes that torch specializes, as this call has them."""
    numbers = control_flow_numbers(plan)
    if numbers:
        yield at_call(plan, numbers, sample.call)
    sizes = sizes_of(plan, leaf_values(sample))
    for number, names in enumerate(_specialized_symbols(program, plan, sizes)):
        fixed = {name: sizes[name] for name in sorted(names)}
        what = "torch cannot keep open what the model computes from it"
        blind = f"only {listed(fixed)} served: {what}"
        narrow = at_sizes(plan, fixed)
        leaves = tuple(replace(leaf, calls=min(leaf.calls, 1)) for leaf in narrow.leaves)
        yield replace(
            narrow,
            name=f"{plan.name}_at_call_{sample.call.index}{f'_{number}' if number else ''}",
            leaves=leaves,
            calls=(sample.call.index,),
            blind=tuple(dict.fromkeys((*plan.blind, blind))),
        )


def _specialized_symbols(program: ProgramGraphs, plan: Plan, sizes: Sizes) -> list[frozenset[str]]:
    """Returns the symbols in the constraints that refuse some sizes: without first axes, then with
    them.
    """
    found: set[str] = set()
    for search in program.searches:
        for proven in search.graphs if search.plan.inputs == plan.inputs else ():
            for constraint in proven.current().contract.failing(sizes):
                found |= symbols_in(constraint.formula)
    found &= set(symbol_names(plan))
    rows = {
        name for leaf in plan.inputs for axis, e in leaf.axes if axis.dim == 0 for name in e.symbols
    }
    ways = dict.fromkeys((frozenset(found - rows), frozenset(found)))
    return [way for way in ways if way]


def _try_own_form(program: ProgramGraphs, sample: Sample) -> None:
    """Adds a graph of the calls of the same form alone."""
    recording = program.prepared.recording
    form = next(
        f for f in forms_of(recording.calls) if sample.call.index in {c.index for c in f.calls}
    )
    (draft,) = find_drafts(form.calls, program.samples, program.lab, program.overrides)
    plan = resolved(draft, program.samples, program.lab).plan()
    name = f"{plan.name}_{len(program.searches) + 1}"
    named = replace(plan, name=name, method=recording.method, model=recording.model)
    program.trace(named)
    if program.searches and program.searches[-1].plan.name == name and not program.serves(sample):
        program.searches[-1].add_sizes(sizes_of(named, leaf_values(sample)))


def drop_useless(program: ProgramGraphs) -> None:
    """Leaves out graphs that serve no watched call where torch specialized sizes, and graphs of
    calls stand in.
    """
    narrow = [search.plan for search in program.searches]
    kept: list[PlanSearch] = []
    for search in program.searches:
        stands_in = any(is_narrower(plan, search.plan) for plan in narrow)
        served = any(program.search_serves(search, sample) for sample in program.samples)
        if served or not stands_in:
            kept.append(search)
    program.searches = kept


def add_sides_of_masks(program: ProgramGraphs) -> None:
    """Adds a graph for each side of a branch that asks whether a mask hides anything, in place of
    those that have one side at some sizes and the other one at others.

    The first call of a plan stands for both sides, with masks that hide something and with masks
    that hide nothing.
    """
    plans = {
        search.plan.inputs: search.plan
        for search in reversed(program.searches)
        if search.decides_by_masks
    }
    for plan in plans.values():
        before, served = list(program.searches), program.served_calls()
        program.searches = [one for one in before if one.plan.inputs != plan.inputs]
        sample = next(one for one in program.samples if one.call.index in plan.calls)
        for name, hidden in (("", True), ("_without_padding", False)):
            side = _with_padding(Calls(plan, program.samples), sample, hidden)
            if side is not None:
                program.trace(replace(plan, name=f"{plan.name}{name}"), [side])
        if not served <= program.served_calls():
            program.searches = before


def _with_padding(calls: Calls, sample: Sample, hidden: bool) -> Sample | None:
    """Returns a call whose masks hide the beginning of rows, or nothing; None without masks."""
    values = leaf_values(sample)
    if not all(leaf.path in values for leaf in calls.plan.inputs):
        return None
    other = with_padding(calls, values, hidden=not hidden)
    changed = with_padding(calls, other or values, hidden=hidden)
    if changed is None:
        return None
    leaves = tuple(changed[path] for path in values)
    return replace(sample, inputs=replace(sample.inputs, leaves=leaves), altered=True)

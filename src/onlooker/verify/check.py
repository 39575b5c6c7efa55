"""New calls against the graphs of a program, one after the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from ..core.call import Call, Signature
from ..core.contents import ProgramContents
from ..core.errors import ObservationError, UsageError
from ..core.plan import Plan
from ..core.profile import Profile, profile_of_rows
from ..core.recording import Recording
from ..core.spec import ConstantSpec, Spec
from ..core.structure import Tree
from ..core.support.kinds import as_call, check_kind
from ..core.traffic import CheckedCall, SizedCall, Violation, ViolationKind, rows_by_graph
from ..core.verdict import Check, Focus, Outcome
from ..materialise.counting import sizes_of, values_of_specs
from ..observing.bind import bind, python_signature
from ..pytrees.joins import join_specs, joined
from ..pytrees.open import open_arguments, spec_of
from ..serve.checked_call import checked_call, records_gradients
from ..serve.dispatch import Dispatcher
from ..serve.route import Mismatch
from ..trace.graph import Graph

__all__ = ["checked_calls", "profile_of_calls", "refused_calls", "sized_calls", "sizes_of_specs"]

_CALLS = "a recording, or a list of calls, each (args, kwargs) or a dict of arguments by name"


def checked_calls(
    program: ProgramContents[Graph], calls: Recording | Iterable[Any]
) -> tuple[CheckedCall, ...]:
    """For each call, the graph of the program that serves it, or what keeps it outside."""
    return tuple(call for call, _ in sized_calls(program, calls))


def sized_calls(
    program: ProgramContents[Graph], calls: Recording | Iterable[Any]
) -> list[SizedCall]:
    """Each call with the graph that serves it, and the sizes of the symbols of that graph; of a call
    that none serves, no sizes.
    """
    check_kind(calls, (Recording, Iterable), "calls", _CALLS)
    recording = program.recording
    rows = _recorded(recording, calls) if isinstance(calls, Recording) else _given(recording, calls)
    dispatcher = Dispatcher(program.graphs, recording.signature, program.joins)
    plans = {graph.name: graph.plan for graph in program.graphs}
    found: list[SizedCall] = []
    for index, count, inputs, records in rows:
        if isinstance(inputs, Violation):
            found.append((CheckedCall(index, "", (inputs,), count), {}))
            continue
        tree = joined(inputs, program.joins, join_specs)
        call = checked_call(dispatcher, tree, index, count, records=records)
        sizes = sizes_of_specs(plans[call.graph], tree, recording.signature) if call.holds else {}
        found.append((call, sizes))
    if not found:
        raise ObservationError(
            "There is no call to check.",
            slug="no-calls",
            hint="Give a recording of calls, or the calls themselves.",
        )
    return found


def sizes_of_specs(plan: Plan, inputs: Tree[Spec], signature: Signature) -> dict[str, int]:
    """The sizes of the symbols of a plan in a call of which the specs are known; an int that it leaves out is
    its default.
    """
    defaults = {leaf.path: signature.default_of(leaf.path) for leaf in plan.inputs if leaf.value}
    left_out = {path: one.value for path, one in defaults.items() if isinstance(one, ConstantSpec)}
    return sizes_of(plan, {**left_out, **values_of_specs(inputs)})


def profile_of_calls(program: ProgramContents[Graph], calls: Recording | Iterable[Any]) -> Profile:
    """The sizes of calls in the symbols of the graphs that serve them."""
    sized = sized_calls(program, calls)
    rows = rows_by_graph(sized)
    names = [graph.name for graph in program.graphs if graph.name in rows]
    unserved = sum(call.count for call, _ in sized if not call.holds)
    return Profile(tuple(profile_of_rows(name, rows[name]) for name in names), unserved)


def refused_calls(program: ProgramContents[Graph], tried: Collection[int]) -> list[Check]:
    """A failed check for each recorded call that no graph takes, but for calls that were ``tried``, by
    their numbers.
    """
    calls = checked_calls(program, program.recording) if program.recording.calls else ()
    return [
        Check(
            "observed",
            f"call {call.index}",
            Outcome.REJECTED,
            (),
            math.inf,
            f"No graph of this program takes the call. {call.graph}: {Mismatch(*call.violations)}",
            Focus.OBSERVED,
        )
        for call in calls
        if not call.holds and call.index not in tried
    ]


def _recorded(
    recording: Recording, other: Recording
) -> Iterator[tuple[int, int, Tree[Spec], bool]]:
    if (recording.method, recording.signature.names) != (other.method, other.signature.names):
        raise UsageError(
            f"Calls of {other.model}.{other.method} cannot be checked on a program of "
            f"{recording.model}.{recording.method}: the method or its parameters are others.",
            slug="different-entry-points",
            hint="Give a recording of the same method.",
        )
    for call in other.calls:
        yield call.index, call.count, call.inputs, records_gradients(call)


def _given(
    recording: Recording, calls: Iterable[Any]
) -> Iterator[tuple[int, int, Tree[Spec] | Violation, bool]]:
    signature, records = python_signature(recording.signature), torch.is_grad_enabled()
    for index, call in enumerate(calls):
        if isinstance(call, Call):
            yield call.index, call.count, call.inputs, records_gradients(call)
            continue
        args, kwargs = as_call(call, index)
        try:
            values, _ = bind(signature, args, kwargs)
        except TypeError as error:
            parameters = ", ".join(recording.signature.names)
            yield (
                index,
                1,
                Violation(
                    ViolationKind.SIGNATURE, "the call", f"a call with {parameters}", str(error)
                ),
                records,
            )
            continue
        tree = open_arguments(values)
        yield index, 1, tree.each(spec_of), records

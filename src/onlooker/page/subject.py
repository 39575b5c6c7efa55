"""Makes the subject of one part of a page: an entry point with its calls, graphs and their proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..capture.combine import Seen
from ..capture.summary import EntrySummary, plans_of
from ..core.call import Call
from ..core.contract import Contract
from ..core.plan import Plan
from ..core.profile import profile_of_rows
from ..core.recording import Recording
from ..core.verdict import Tally
from ..emit.traffic import Served
from ..program import Program
from ..report.brief import sections_of
from ..report.data import GraphReport
from ..verify.check import sizes_of_specs

__all__ = ["KnownGraph", "Subject", "of_program", "of_recording", "of_seen"]

#: runs of equal calls whose order is drawn; further ones are only counted
_MOST_RUNS = 100_000


@dataclass(frozen=True, slots=True)
class KnownGraph:
    """A graph with its plan and its traffic. ``report`` is that of a graph that was exported; for
    another one, nothing but its plan is known.
    """

    name: str
    plan: Plan
    served: Served
    report: GraphReport | None = None

    @property
    def exported(self) -> dict[str, str]:
        """The size that the program has at each axis, by the name of the axis."""
        return {} if self.report is None else {row.axis: row.obtained for row in self.report.axes}

    @property
    def contract(self) -> Contract:
        """The sizes that the graph takes."""
        return self.served.contract


@dataclass(frozen=True, slots=True)
class Subject:
    """An entry point.

    ``graph_of`` has for each call the place of the graph that takes it, -1 where none does, and
    ``sizes`` the sizes of the symbols of that graph. ``runs`` are calls in their order: the place of
    a call, and how many like it followed each other; ``counted`` calls are in none of them.
    ``facts`` are short texts, each with its heading; ``remarks`` are sentences.
    """

    name: str
    calls: tuple[Call, ...]
    graphs: tuple[KnownGraph, ...]
    graph_of: tuple[int, ...]
    sizes: tuple[Mapping[str, int], ...]
    runs: tuple[tuple[int, int], ...]
    n_calls: int
    seconds: float
    facts: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    tally: Tally | None = None

    @property
    def counted(self) -> int:
        """The calls whose place in the order is not known."""
        return self.n_calls - sum(count for _, count in self.runs)


def of_recording(recording: Recording) -> Subject:
    """The subject of a recording alone, without a model."""
    calls = recording.calls
    facts = [("model", recording.model), ("method", recording.method)]
    remarks = [f"A call was not recorded: {text}." for text in recording.missed]
    remarks += _of_order(calls)
    runs = [(place, call.count) for place, call in enumerate(calls)]
    seconds = sum(call.seconds * call.count for call in calls)
    name = f"{recording.model.rpartition('.')[2]}.{recording.method}"
    return _unproven(name, recording, runs, len(recording), seconds, facts, remarks)


def of_seen(seen: Seen, summary: EntrySummary) -> Subject:
    """The subject of an entry point that processes saw, with its calls in the order of time."""
    calls = seen.recording.calls
    facts = [
        ("model", seen.entry.model),
        ("method", seen.entry.method),
        ("source", seen.entry.source),
        ("in the program", summary.place),
    ]
    remarks = [f"A call was not recorded: {text}." for text in summary.missed]
    remarks += [f"{text[0].upper()}{text[1:]}." for text in summary.unknown]
    runs = _runs_of(seen, calls)
    return _unproven(seen.name, seen.recording, runs, seen.n_calls, seen.seconds, facts, remarks)


def of_program(name: str, program: Program) -> Subject:
    """A program with the calls that it was made from."""
    recording, report = program.recording, program.report
    calls = recording.calls
    places = {graph.name: place for place, graph in enumerate(program.graphs)}
    sized = program.sized_calls()
    served = {one.plan.name: one for one in program.served()}
    reports = {one.name: one for one in report.graphs}
    graphs = [
        KnownGraph(graph.name, graph.plan, served[graph.name], reports[graph.name])
        for graph in program.graphs
    ]
    facts = [("verdict", report.verdict)]
    facts += [
        (section.heading, "\n".join(section.lines))
        for section in sections_of(report)
        if section.heading != "more"
    ]
    return Subject(
        name,
        calls,
        tuple(graphs),
        tuple(places[row.graph] if row.holds else -1 for row, _ in sized),
        tuple(sizes for _, sizes in sized),
        tuple((place, call.count) for place, call in enumerate(calls))[:_MOST_RUNS],
        len(recording),
        sum(call.seconds * call.count for call in calls),
        tuple((heading, text) for heading, text in facts if text),
        (*(f"{text[0].upper()}{text[1:]}." for text in report.remarks), *_of_order(calls)),
        program.tally,
    )


def _of_order(calls: Sequence[Call]) -> list[str]:
    """A remark where an observer counted equal calls, whose order is not known then."""
    if all(call.count == 1 for call in calls):
        return []
    return ["Equal calls stand beside each other: a recording counts them at the first one."]


def _unproven(
    name: str,
    recording: Recording,
    runs: Sequence[tuple[int, int]],
    n_calls: int,
    seconds: float,
    facts: Iterable[tuple[str, str]],
    remarks: Iterable[str],
) -> Subject:
    """Calls without a program: their graphs are those that the calls alone ask for."""
    calls = recording.calls
    graphs, graph_of, all_sizes = [], [-1] * len(calls), [dict[str, int]() for _ in calls]
    for number, plan in enumerate(plans_of(calls)):
        rows = []
        for index in plan.calls:
            sizes = sizes_of_specs(plan, calls[index].inputs, recording.signature)
            graph_of[index], all_sizes[index] = number, sizes
            rows.append((sizes, calls[index].count))
        traffic = profile_of_rows(plan.name, rows)
        graphs.append(KnownGraph(f"graph {number}", plan, Served(plan, Contract(), traffic, ())))
    return Subject(
        name,
        tuple(calls),
        tuple(graphs),
        tuple(graph_of),
        tuple(all_sizes),
        tuple(runs[:_MOST_RUNS]),
        n_calls,
        seconds,
        tuple((heading, text) for heading, text in facts if text),
        tuple(remarks),
    )


def _runs_of(seen: Seen, calls: Sequence[Call]) -> list[tuple[int, int]]:
    """The calls of all processes in the order of time, as far as their order was kept."""
    places = {_kind(call): place for place, call in enumerate(calls)}
    found = []
    for process, part in seen.parts:
        own = {call.index: places[_kind(call)] for call in part.calls}
        found += [
            (process.started + run.at, own[run.row], run.count)
            for run in part.runs
            if run.ordered and run.row in own
        ]
    found.sort(key=lambda run: run[0])
    return [(place, count) for _, place, count in found]


def _kind(call: Call) -> tuple[object, ...]:
    """Equal for calls that :attr:`Seen.recording` draws together."""
    return call.inputs, call.outputs, call.passed, call.surroundings

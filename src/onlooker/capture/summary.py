"""A summary of the processes of a program, for readers: entry points with their axes and graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.call import Call
from ..core.drawing.alike import counted, folded, folded_rows, listed_sizes
from ..core.plan import Plan
from ..infer.build import build_plan
from ..infer.samples import table_of_forms
from ..infer.unify import Form, find_conflict, forms_of, union_of
from ..report.text import PrintedTables, table_of
from .combine import Captured, Seen

__all__ = ["AxisSeen", "EntrySummary", "Summary", "plans_of", "summary_of"]

_MOST_SHOWN = 12
#: what is shown of the file of a process
_OF_PROCESS = (
    *("pid", "host", "rank", "parent", "forked", "program", "started", "ended", "python", "torch"),
    "digest",
)


@dataclass(frozen=True, slots=True)
class AxisSeen:
    """An axis of an argument in one graph: its expression, and the sizes that calls had."""

    graph: int
    path: str
    size: str
    seen: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EntrySummary:
    """One entry point.

    ``share`` is its part of the seconds of all entry points. ``graphs`` is the number of graphs that
    the calls need at most; only a model can say whether one graph serves several kinds of calls.
    ``processes`` are those that called it, in words, each with its calls.
    """

    name: str
    model: str
    method: str
    code: str
    source: str
    place: str
    calls: int
    others: int
    different: int
    seconds: float
    share: float
    graphs: int
    processes: tuple[tuple[str, int], ...]
    axes: tuple[AxisSeen, ...]
    relations: tuple[str, ...]
    unknown: tuple[str, ...]
    missed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary(PrintedTables):
    """The entry points, those that took most time first, and what is to be said of processes."""

    entries: tuple[EntrySummary, ...]
    processes: tuple[dict[str, object], ...]
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """The summary as JSON takes it."""
        return {"schema": 1, **asdict(self)}

    def tables(self, *, full: bool = False) -> RenderableType:
        """The summary for a console of rich."""
        shown = self.entries if full else self.entries[:_MOST_SHOWN]
        heads = ("entry point", "in the program", "calls", "processes", "time", "graphs")
        overview = table_of(_title(self), heads, map(_cells, shown))
        more = len(self.entries) - len(shown)
        parts: list[RenderableType] = [overview]
        if more:
            parts.append(Text(f"  and {more} more that took less time: --full has them"))
        parts += [_axes_table(entry, full=full) for entry in shown if entry.axes]
        parts += [
            Text(f"  {entry.name}: {text}")
            for entry in shown
            for text in (*folded(entry.relations), *folded(entry.unknown), *entry.missed)
        ]
        parts += [Text(f"  {text}") for text in self.remarks]
        return Group(*parts)


def _title(summary: Summary) -> str:
    total = sum(entry.calls for entry in summary.entries)
    return f"{counted(total, 'call')} in {counted(len(summary.processes), 'process', 'processes')}"


def _cells(entry: EntrySummary) -> tuple[str, ...]:
    time = "less than 1 %" if entry.share < 0.01 else f"{100 * entry.share:.0f} %"
    graphs = str(entry.graphs) if entry.graphs < 2 else f"at most {entry.graphs}"
    processes = str(len(entry.processes))
    return entry.name, entry.place, str(entry.calls), processes, time, graphs


def _axes_table(entry: EntrySummary, *, full: bool) -> Table:
    rows = [(str(row.graph), row.path, row.size, listed_sizes(row.seen)) for row in entry.axes]
    shown = rows if full else folded_rows(rows)
    title = f"{entry.name} ({entry.source})"
    return table_of(title, ("graph", "input", "size", "sizes that were seen"), shown)


def summary_of(captured: Captured) -> Summary:
    """The summary of what was captured."""
    seen = captured.seen
    total = sum(one.seconds for one in seen) or 1.0
    processes: tuple[dict[str, object], ...] = tuple(
        {**{name: getattr(one, name) for name in _OF_PROCESS}, "calls": one.n_calls}
        for one in captured.processes
    )
    remarks = (*_silent(captured), *captured.contradictions())
    return Summary(tuple(_entry(one, total) for one in seen), processes, tuple(remarks))


def _silent(captured: Captured) -> list[str]:
    """The processes that called no module, named: an empty recording is an answer, too."""
    return [
        f"0 calls seen in {one.name} ({one.program.rpartition('/')[2]}): torch was imported, no module was called"
        for one in captured.processes
        if not one.n_calls
    ]


def _entry(seen: Seen, total: float) -> EntrySummary:
    recording = seen.recording
    plans = plans_of(recording.calls)
    counts = [(process.name, part.n_calls) for process, part in seen.parts]
    return EntrySummary(
        seen.name,
        seen.entry.model,
        seen.entry.method,
        seen.entry.code,
        seen.entry.source,
        ", ".join(_of_method(place, seen) for place in seen.places[:3]),
        seen.n_calls,
        seen.others,
        len(recording.calls),
        round(seen.seconds, 6),
        seen.seconds / total,
        len(plans),
        tuple(counts),
        tuple(
            row for number, plan in enumerate(plans) for row in _axes(number, plan, recording.calls)
        ),
        tuple(dict.fromkeys(str(relation) for plan in plans for relation in plan.relations)),
        tuple(_unknown(seen, plans)),
        recording.missed,
    )


def _of_method(place: str, seen: Seen) -> str:
    return place if seen.entry.method == "forward" else f"{place}.{seen.entry.method}"


def plans_of(calls: Sequence[Call]) -> list[Plan]:
    """A plan for each graph that the calls need without a model that could say more: kinds of calls
    share one where each has all that the others have.
    """
    groups: list[list[Form]] = []
    for form in sorted(forms_of(calls), key=lambda form: -form.example.n_tensors):
        for group in groups:
            union = union_of((*group, form))
            whole = not any(union.missing(one) for one in union.forms)
            if whole and find_conflict(union) is None:
                group.append(form)
                break
        else:
            groups.append([form])
    unions = [union_of(group) for group in groups]
    return [build_plan(union, table_of_forms(union.forms), {}) for union in unions]


def _axes(graph: int, plan: Plan, calls: Sequence[Call]) -> list[AxisSeen]:
    own = [calls[index] for index in plan.calls]
    sizes: dict[object, set[int]] = {}
    for call in own:
        for path, spec in call.inputs.items():
            for dim, size in enumerate(getattr(spec, "shape", ())):
                sizes.setdefault((path, dim), set()).add(size)
            value = getattr(spec, "value", None)
            if isinstance(value, int):
                sizes.setdefault((path, None), set()).add(value)
    return [
        AxisSeen(graph, str(axis), str(size), tuple(sorted(sizes.get((axis.path, axis.dim), ()))))
        for leaf in plan.inputs
        for axis, size in leaf.axes
    ]


def _unknown(seen: Seen, plans: Sequence[Plan]) -> list[str]:
    """Returns the blind spots of the calls, each with the run that would tell more."""
    found = []
    axes = [
        str(axis)
        for plan in plans
        for leaf in plan.inputs
        for axis, size in leaf.axes
        if size.is_constant
    ]
    if axes:
        named = ", ".join(folded(list(dict.fromkeys(axes)))[:8])
        found.append(f"never changed, an export asks the model whether they may: {named}")
    if seen.callers:
        found.append(
            f"is a part of {seen.callers[0]}: --entry {seen.callers[0]!r} records that method"
        )
    return found

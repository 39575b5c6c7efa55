"""The report of a program for a person: a few sections of lines, the same in a terminal and in a
notebook.

The sections are data; what draws them decides nothing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from ..contract.served import ServedSizes
from ..core.drawing.alike import counted, folded, folded_rows, shortened
from ..core.runtimes import RUNTIMES
from ..core.verdict import Focus, Tally
from .data import GraphReport, ReportData

__all__ = ["Section", "as_renderable", "sections_of"]

#: how many lines of a kind are shown; the others are counted
_MOST_FAILURES, _MOST_GRAPHS, _MOST_INPUTS, _MOST_OUTPUTS = 3, 5, 9, 5
_MOST_REFUSALS, _MOST_UNKNOWN, _MOST_NOTES, _MOST_SIZES = 4, 2, 2, 4
#: as many characters of a line are shown
_LONGEST = 208
#: a column of text is not made narrower
_NARROWEST = 20
#: the number of a layer in the name of an output, and several of them
_LAYER, _LAYERS = re.compile(r"\.(\d+)(?=\.|$)"), re.compile(r"\[([\d., ]+)\]")


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a short heading."""

    heading: str
    lines: tuple[str, ...]


def sections_of(report: ReportData) -> list[Section]:
    """The sections of a report, in the order in which a reader needs them; those without lines are
    left out.
    """
    found = [
        Section("program", (_program(report),)),
        Section("trials", tuple(_trials(report))),
        Section("failed", tuple(_failed(report.tally))),
        Section("accept", tuple(_accepting(report.tally))),
        Section("graphs", tuple(_graphs(report))),
        Section("sizes", tuple(_sizes(report))),
        Section("inputs", tuple(_inputs(report.graphs))),
        Section("outputs", tuple(_outputs(report.graphs))),
        Section("refused", tuple(_first(_refused(report), _MOST_REFUSALS))),
        Section("unknown", tuple(_first(_unknown(report), _MOST_UNKNOWN))),
        Section("notes", tuple(_first(_notes(report.graphs), _MOST_NOTES))),
        Section("run", tuple(_run(report.graphs))),
        Section("more", ("text(full=True) of the report, or --full: evidence, conditions, time",)),
    ]
    return [section for section in found if section.lines]


def as_renderable(sections: Sequence[Section]) -> RenderableType:
    """The sections for a console of rich."""
    return _Drawn(tuple(sections))


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Sections beside their headings, no line longer than the console is wide."""

    sections: tuple[Section, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        indent = max((len(section.heading) for section in self.sections), default=0) + 2
        width = max(options.max_width - indent, _NARROWEST)
        for section in self.sections:
            lines = (
                part
                for line in section.lines
                for part in textwrap.wrap(line, width, break_on_hyphens=False)
            )
            for number, line in enumerate(lines):
                shown = "" if number else section.heading
                yield Text.assemble(
                    (shown.ljust(indent), "bold"), line, overflow="ignore", no_wrap=True
                )


def _first(lines: Iterator[str] | Sequence[str], most: int, what: str = "more") -> Iterator[str]:
    """The first lines, each cut to what a reader takes in, and how many more there are."""
    listed = list(lines)
    yield from (shortened(line, _LONGEST) for line in listed[:most])
    if len(listed) > most:
        yield f"... and {len(listed) - most} {what}"


def _program(report: ReportData) -> str:
    targets = dict.fromkeys(graph.made for graph in report.graphs)
    return f"{report.model}.{report.method} as {' and '.join(targets)}"


def _trials(report: ReportData) -> Iterator[str]:
    tally = report.tally
    if tally.total:
        passed = [check.difference for check in tally.checks if check.passed]
        worst = f", largest difference {max(passed):.2g}" if passed else ""
        watched = tally.counts.get(Focus.OBSERVED, 0)
        calls = counted(watched, "watched call")
        kinds = f"{calls}, {tally.total - watched} further trials"
        yield f"{tally.passed} of {tally.total} agree{worst}: {kinds}"
    if tally.left_out:
        count = counted(tally.left_out, "trial was", "trials were")
        yield f"{count} left out, since each run of the model is long: verify() again goes on"
    if tally.drawn:
        count = counted(len(tally.drawn), "trial draws", "trials draw")
        yield (
            f"{count} random numbers, which the runtime does otherwise: shapes alone were compared"
            f" ({'; '.join(tally.drawn)})"
        )
    yield from report.scores


def _failed(tally: Tally) -> Iterator[str]:
    failed = [check for check in tally.checks if not check.passed]
    lines = [f"{check.label}: {check.outcome.value}, {check.note}" for check in failed]
    return _first(lines, _MOST_FAILURES)


def _accepting(tally: Tally) -> Iterator[str]:
    """Returns the options that accept the differences of a program of another precision."""
    if tally.accepting:
        given = ", ".join(f"{name}={value:g}" for name, value in tally.accepting.items())
        typed = " ".join(f"--{name} {value:g}" for name, value in tally.accepting.items())
        yield f"these differences: verify({given}), or {typed}"


def _graphs(report: ReportData) -> Iterator[str]:
    """Each graph with the calls that it serves, and, of several, what tells it from the others."""
    several = len(report.graphs) > 1
    common = _common_constants(report.graphs)
    lines = []
    for graph in report.graphs:
        calls = f" serves {graph.served_calls} of {report.calls} watched calls"
        line = f"{graph.file or graph.name}{calls if report.calls else ''}"
        own = folded(
            f"{path}={value}" for path, value in graph.constants if (path, value) not in common
        )
        parts = [_given(graph, report.graphs), _served(graph), *own] if several else []
        lines.append(f"{line}: {'; '.join(filter(None, parts))}" if parts else line)
    return _first(lines, _MOST_GRAPHS, "graphs")


def _given(graph: GraphReport, graphs: Sequence[GraphReport]) -> str:
    """The arguments that some graphs take and others do not: those of this one, and those that its
    calls leave out. One that is constant is told as such.
    """
    takes = {one.name: {row.root for row in one.inputs} for one in graphs}
    known = dict.fromkeys(row.root for one in graphs for row in one.inputs)
    some = [root for root in known if not all(root in own for own in takes.values())]
    constant = {path for path, _ in graph.constants}
    given = [root for root in some if root in takes[graph.name]]
    absent = [root for root in some if root not in given and root not in constant]
    told = [f"with {' and '.join(given)}"] if given else []
    told += [f"without {' and '.join(absent)}"] if absent else []
    return ", ".join(told)


def _common_constants(graphs: Sequence[GraphReport]) -> list[tuple[str, str]]:
    """The constants that all graphs have."""
    if not graphs:
        return []
    shared = set.intersection(*(set(graph.constants) for graph in graphs))
    return [row for row in graphs[0].constants if row in shared]


def _served(graph: GraphReport) -> str:
    """The sizes that a graph serves, in words."""
    served = graph.served
    limited = [found for found in served.sets if found.term in served.limited]
    told = [found.words for found in limited if found.is_readable]
    count = len(served.limited) - len(told) + len(served.cases)
    if count:
        told.append(f"on {counted(count, 'condition')}")
    return ", ".join(told) or "all sizes"


def _sizes(report: ReportData) -> Iterator[str]:
    """Each symbol with the sizes that all graphs together serve, and those that calls had."""
    watched: dict[str, set[int]] = {}
    for graph in report.graphs:
        for name, sizes in graph.watched:
            watched.setdefault(name, set()).update(sizes)
    told: dict[str, dict[str, None]] = {}
    for served in report.served:
        for found in filter(lambda each: each.is_readable, served.sets):
            told.setdefault(found.term, {})[found.words.removeprefix(f"{found.term} ")] = None
    lines = []
    for name, words in told.items():
        seen = f" (watched {_listed(sorted(watched[name]))})" if name in watched else ""
        lines.append(f"{name} {' or '.join(words)}{seen}")
    if report.graphs:
        yield shortened("; ".join(lines) or "none changes", _LONGEST)
    if any(not served.exact or len(served.limited) > _n_told(served) for served in report.served):
        yield "not all of these together: see what is refused"


def _n_told(served: ServedSizes) -> int:
    return sum(found.is_readable for found in served.sets if found.term in served.limited)


def _listed(sizes: Sequence[int]) -> str:
    if len(sizes) <= _MOST_SIZES:
        return ", ".join(map(str, sizes))
    return f"{sizes[0]} to {sizes[-1]}, {len(sizes)} sizes"


def _inputs(graphs: Sequence[GraphReport]) -> Iterator[str]:
    """The inputs of all graphs, each once; of one that differs from graph to graph each form."""
    rows: dict[tuple[str, str, str], None] = {}
    for graph in graphs:
        for row in graph.inputs:
            rows.setdefault((row.path, row.kind, row.remark))
    yield from _first(_columns(folded_rows(rows)), _MOST_INPUTS, "inputs")
    constants = folded(f"{path}={value}" for path, value in _common_constants(graphs))
    if constants:
        yield shortened(f"constants: {', '.join(constants)}", _LONGEST)


def _outputs(graphs: Sequence[GraphReport]) -> Iterator[str]:
    """The outputs of all graphs; those of equal layers, ``present.0.key`` and so on, are one."""
    rows = dict.fromkeys((row.path, row.kind) for graph in graphs for row in graph.outputs)
    indexed = [(_LAYER.sub(r"[\1]", path), kind) for path, kind in rows]
    shown = [(_LAYERS.sub(r".\1", path), kind) for path, kind in folded_rows(indexed)]
    return _first(_columns(shown), _MOST_OUTPUTS, "outputs")


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts below each other; the last one of a row may be empty."""
    if not rows:
        return []
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _unknown(report: ReportData) -> list[str]:
    return [*report.unknown, *(f"a call was not recorded: {text}" for text in report.missed)]


def _notes(graphs: Sequence[GraphReport]) -> list[str]:
    return folded(note for graph in graphs for note in graph.notes)


def _refused(report: ReportData) -> list[str]:
    return [refusal.within(_LONGEST) for refusal in report.refusals]


def _run(graphs: Sequence[GraphReport]) -> Iterator[str]:
    """The lines that call the program, here and from its folder."""
    if not graphs:
        return
    names = graphs[0].passed or ("...",)
    call = f"program({', '.join(names)}); inside of program.installed(model) the model runs on it"
    yield shortened(call, _LONGEST)
    file, opener = graphs[0].file, RUNTIMES[graphs[0].target].opener
    elsewhere = f"; without onlooker {opener}('DIR/{file}')" if file and opener else ""
    yield f"program.save('DIR'), and elsewhere onlooker.load('DIR'){elsewhere}"

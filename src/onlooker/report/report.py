"""The report of a program: data that prints as tables and goes into JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from ..contract.other_side import OtherSides
from ..core.call import changed_in
from ..core.contents import GraphContents, ProgramContents
from ..core.drawing.alike import counted, first_few
from ..core.experiment import BlindSpot
from ..core.traffic import SizedCall, rows_by_graph
from .blind import blind_spots, told_spots
from .brief import as_renderable, sections_of
from .calls import surroundings_of
from .data import CHECK_KINDS, GraphReport, ReportData, graph_report
from .refused import refusals_of, served_together
from .text import PrintedTables, made_inside, render, verdict_line

__all__ = ["Report", "report_of"]

_MOST_OUTSIDE = 6


@dataclass(frozen=True, slots=True)
class Report(ReportData, PrintedTables):
    """The requests, observations, graphs and trials of a program, with what failed.

    ``text()`` is for a person, and short; ``text(full=True)`` has all evidence.
    """

    def __repr__(self) -> str:
        return f"<Report of {self.model}.{self.method}: {self.verdict}>"

    @property
    def verified(self) -> bool:
        """True where the tally is verified: no verdict differs from it."""
        return self.tally.verified

    @property
    def verdict(self) -> str:
        """A sentence that says whether the program is verified: that of the tally."""
        return self.tally.verdict

    @property
    def narrowed(self) -> tuple[str, ...]:
        """The axes for which a symbol was asked and a number obtained."""
        return tuple(row.axis for graph in self.graphs for row in graph.axes if row.narrowed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The lines about sizes that were not tried, calls that were not recorded, and what is unknown."""
        unlawful = (
            f"not valid for the model itself, not counted: {text}" for text in self.unlawful
        )
        drawn = (
            f"draws random numbers, shapes alone compared: {text}" for text in self.tally.drawn
        )
        missed = (f"a call was not recorded: {text}" for text in self.missed)
        blind = (f"blind spot: {text}" for text in self.blind)
        made = made_inside(self.surroundings)
        return (
            *unlawful,
            *drawn,
            *self._outside(),
            *self.scores,
            *made,
            *missed,
            *blind,
            *self._times(),
        )

    def _outside(self) -> tuple[str, ...]:
        """One line with the sizes outside all contracts that were tried, the first ones."""
        sizes = self.tally.refused
        shown = "; ".join(first_few(sizes, _MOST_OUTSIDE))
        return (f"outside the contracts, and refused: {shown}",) if sizes else ()

    def _times(self) -> tuple[str, ...]:
        """One line with the time of each stage; a share is never rounded to nothing or to the
        whole.
        """
        if not self.stages:
            return ()
        stages = ", ".join(
            f"{name} {seconds:.2f} s ({_percent(share)})" for name, seconds, share in self.shares
        )
        runs = counted(self.probes, "run")
        return (f"time: {stages}; {runs} of the model",)

    @property
    def shares(self) -> tuple[tuple[str, float, float], ...]:
        """Per stage its seconds, and its share of all of them."""
        total = sum(seconds for _, seconds in self.stages) or 1.0
        return tuple((name, seconds, seconds / total) for name, seconds in self.stages)

    def to_dict(self) -> dict[str, object]:
        """The report as JSON takes it."""
        return {
            "schema": 1,
            "model": self.model,
            "method": self.method,
            "verdict": self.verdict,
            "graphs": [_graph_dict(graph) for graph in self.graphs],
            "trials": [
                {
                    "kind": check.kind,
                    "label": check.label,
                    "outcome": check.outcome.value,
                    "sizes": dict(check.sizes),
                    "difference": _finite(check.difference),
                    "note": check.note,
                    "focus": check.focus.value if check.focus else "",
                }
                for check in self.tally.checks
            ],
            "scores": {
                kind: {
                    "agreeing": scores.agreeing,
                    "count": scores.count,
                    "difference": _finite(scores.difference),
                }
                for kind, _ in CHECK_KINDS
                if (scores := self.tally.scores(kind)).count
            },
            "distances": [
                {
                    "output": one.output,
                    "kind": one.kind,
                    "count": one.program.count,
                    "mean_error": _finite(one.program.mean_error),
                    "largest_error": _finite(one.program.largest_error),
                    "cosine": _finite(one.program.cosine),
                    "agreeing": one.program.agreeing,
                    "rows": one.program.rows,
                    "rounding": None if one.rounding is None else _finite(one.rounding.mean_error),
                }
                for one in self.tally.distances
            ],
            "tally": {focus.value: count for focus, count in self.tally.counts.items()},
            "refused": list(self.tally.refused),
            "drawn": list(self.tally.drawn),
            "left_out": self.tally.left_out,
            "blocked": list(self.tally.blocked),
            "unlawful": list(self.unlawful),
            "surroundings": dict(self.surroundings),
            "missed": list(self.missed),
            "blind": list(self.blind),
            "stages": [
                {"stage": name, "seconds": round(seconds, 4), "share": round(share, 4)}
                for name, seconds, share in self.shares
            ],
            "probes": self.probes,
        }

    def tables(self, *, full: bool = False) -> RenderableType:
        """The report for a console of rich."""
        if full:
            title = f"{self.model}.{self.method}"
            return render(title, self.graphs, self.tally, self.verdict, self.remarks, full=True)
        return Group(verdict_line(self.verdict, self.verified), as_renderable(sections_of(self)))

    def excerpt(self, *headings: str) -> RenderableType:
        """Some sections of the short report, by their headings, for a console of rich."""
        return as_renderable([one for one in sections_of(self) if one.heading in headings])


def report_of(
    program: ProgramContents[Any],
    calls: Sequence[SizedCall] = (),
    *,
    unknown: Sequence[BlindSpot] = (),
    stages: tuple[tuple[str, float], ...] = (),
    probes: int = 0,
    state: str = "",
) -> Report:
    """The report of a program. ``calls`` are those that it was made from, each with the graph that
    serves it and its sizes; ``unknown`` are blind spots of no graph alone, ``state`` the argument that the program
    fills with its state.
    """
    graphs, recording = program.graphs, program.recording
    traffic = rows_by_graph(calls)
    others = OtherSides([(graph.plan, graph.contract) for graph in graphs])
    reports = tuple(
        graph_report(
            graph,
            signature=recording.signature,
            state=state,
            others=others,
            traffic=traffic.get(graph.name, ()),
            notes=_notes_of_changed(graph) if program.changed else (),
        )
        for graph in graphs
    )
    groups = served_together(graphs)
    return Report(
        recording.model,
        recording.method,
        reports,
        program.tally,
        program.unlawful,
        (*recording.missed, *program.refusals),
        blind_spots(program.plans, recording.signature, unknown),
        stages=stages,
        probes=probes,
        surroundings=surroundings_of(recording),
        served=tuple(group.served for group in groups),
        refusals=refusals_of(graphs, groups, reports, recording.signature),
        unknown=told_spots(program.plans, unknown),
        calls=len(recording),
    )


def _notes_of_changed(graph: GraphContents) -> list[str]:
    return [
        f"{name} is changed by the call and not returned: the graph gives it beside the result,"
        " and the program brings that of the caller to this state"
        for name in changed_in(graph.outputs.structure)
    ]


def _finite(difference: float) -> float | str:
    """A difference as JSON takes it."""
    return difference if difference < float("inf") else "infinite"


def _percent(share: float) -> str:
    if 0 < share < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 < share < 1 else f"{share:.0%}".replace("%", " %")


def _graph_dict(graph: GraphReport) -> dict[str, object]:
    return {
        "name": graph.name,
        "target": graph.target,
        "options": dict(graph.options),
        "calls": list(graph.calls),
        "axes": [
            {
                "axis": r.axis,
                "observed": r.observed,
                "asked": r.asked,
                "obtained": r.obtained,
                "evidence": r.evidence,
            }
            for r in graph.axes
        ],
        "symbols": [
            {"name": n, "observed": seen, "range": limits} for n, seen, limits in graph.symbols
        ],
        "relations": [{"relation": text, "evidence": found} for text, found in graph.relations],
        "fills": dict(graph.fills),
        "constants": dict(graph.constants),
        "sizes": dict(graph.sizes),
        "needs": list(graph.needs),
        "dropped": [str(dropped) for dropped in graph.dropped],
        "conditions": [
            {
                "condition": row.formula,
                "otherwise": row.otherwise,
                "origin": row.origin,
                "line": row.line,
                "other_side": [
                    {"outcome": fate.kind.value, "graph": fate.graph, "sizes": dict(fate.sizes)}
                    for fate in row.fates
                ],
            }
            for row in graph.conditions
        ],
        "evidence": [
            {"condition": dropped.formula, "line": dropped.line, "evidence": dropped.evidence}
            for dropped in graph.dropped
        ],
        "notes": list(graph.notes),
        "seconds": round(graph.seconds, 3),
    }

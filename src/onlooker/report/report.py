"""The report of a program: data that prints as tables and goes into JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType

from ..contract.served import ServedSizes
from ..core.verdict import Tally
from .brief import as_html, as_renderable, sections_of, verdict_line
from .data import GraphReport
from .refused import Refusal
from .text import as_text, made_inside, render

__all__ = ["Report"]

_MOST_OUTSIDE = 6
#: how the kinds of checks are called where their scores are told
_KINDS = (("observed", "watched"), ("unseen", "unseen"))


@dataclass(frozen=True, slots=True)
class Report:
    """What a program asked for, observed and obtained, what was tried and what failed.

    ``unlawful`` are sizes that the model itself refuses, ``missed`` calls that were not recorded,
    ``blind`` what neither calls nor probes could tell, with the run that would. ``stages`` are
    seconds: of the calls that were observed, and of what was done with them; ``probes`` is how
    often the model was run between the recording and the program. ``surroundings`` is what stood
    around the calls, each with the number of calls. ``served`` are the sizes that graphs with
    the same inputs serve together, ``refusals`` what the program refuses, with the line that
    changes it, and ``unknown`` the blind spots that no refusal names; ``calls`` is the
    number of watched calls.

    ``text()`` is for a person, and short; ``text(full=True)`` has all evidence.
    """

    model: str
    method: str
    graphs: tuple[GraphReport, ...]
    tally: Tally
    unlawful: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
    stages: tuple[tuple[str, float], ...] = ()
    probes: int = 0
    surroundings: tuple[tuple[str, int], ...] = ()
    served: tuple[ServedSizes, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    unknown: tuple[str, ...] = ()
    calls: int = 0

    def __repr__(self) -> str:
        return f"<Report of {self.model}.{self.method}: {self.verdict}>"

    @property
    def verified(self) -> bool:
        """True where the tally is verified: no verdict differs from it."""
        return self.tally.verified

    @property
    def verdict(self) -> str:
        """Whether the program is verified, in a sentence: that of the tally."""
        return self.tally.verdict

    @property
    def narrowed(self) -> tuple[str, ...]:
        """The axes for which a symbol was asked and a number obtained."""
        return tuple(row.axis for graph in self.graphs for row in graph.axes if row.narrowed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was not tried, which calls were not recorded, and what nobody could know."""
        unlawful = (
            f"not lawful for the model itself, not counted: {text}" for text in self.unlawful
        )
        missed = (f"a call was not recorded: {text}" for text in self.missed)
        blind = (f"blind spot: {text}" for text in self.blind)
        made = made_inside(self.surroundings)
        return (
            *unlawful,
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
        more = len(sizes) - _MOST_OUTSIDE
        shown = "; ".join([*sizes[:_MOST_OUTSIDE], *([f"{more} more"] if more > 0 else [])])
        return (f"outside the contracts, and refused: {shown}",) if sizes else ()

    @property
    def scores(self) -> tuple[str, ...]:
        """One line with the scores of watched and of unseen calls, where they were measured."""
        measured = [(words, self.tally.scores(kind)) for kind, words in _KINDS]
        told = [
            f"{scores.agreeing} of {scores.count} {words} tokens agree, scores differ by up to"
            f" {scores.difference:.3g}"
            for words, scores in measured
            if scores.count
        ]
        return ("; ".join(told),) if told else ()

    def _times(self) -> tuple[str, ...]:
        """One line with the time of each stage; a share is never rounded to nothing or to the
        whole.
        """
        if not self.stages:
            return ()
        stages = ", ".join(
            f"{name} {seconds:.2f} s ({_percent(share)})" for name, seconds, share in self.shares
        )
        runs = f"{self.probes} {'run' if self.probes == 1 else 'runs'}"
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
                for kind, _ in _KINDS
                if (scores := self.tally.scores(kind)).count
            },
            "tally": {focus.value: count for focus, count in self.tally.counts.items()},
            "refused": list(self.tally.refused),
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

    def text(self, *, full: bool = False) -> str:
        """The report as text, as wide as the terminal: short, or ``full``, with all evidence and
        each item of a list in a row of its own.
        """
        return as_text(self.tables(full=full))

    def tables(self, *, full: bool = False) -> RenderableType:
        """The report for a console of rich."""
        if full:
            title = f"{self.model}.{self.method}"
            return render(title, self.graphs, self.tally, self.verdict, self.remarks, full=True)
        return Group(verdict_line(self.verdict, self.verified), as_renderable(sections_of(self)))

    def excerpt(self, *headings: str) -> RenderableType:
        """Some sections of the short report, by their headings, for a console of rich."""
        return as_renderable([one for one in sections_of(self) if one.heading in headings])

    def _repr_html_(self) -> str:
        """The short report, for notebooks."""
        return as_html(self.verdict, sections_of(self))

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.tables()


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

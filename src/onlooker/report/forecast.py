"""A forecast of an export, before it is made: graphs, sizes, what stays as it is, and the time.

The rows are made of plans and of the domain of interest; nothing is traced. So the number of graphs is
the least one: a trace may find that a model branches on sizes, and then calls of the domain may need
further graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from ..core.drawing.alike import counted, first_few, folded, folded_rows, listed_sizes
from ..core.experiment import FindingKind
from ..core.plan import Plan
from ..core.spec import Axis
from ..infer.interest import DomainOfInterest, SizesOfInterest
from .text import PrintedTables, table_of

__all__ = ["FixedRow", "Forecast", "GraphForecast", "SizeRow", "graph_forecast"]

#: as many rows of a kind are shown; the others are counted
_MOST_ROWS = 12


@dataclass(frozen=True, slots=True)
class SizeRow:
    """A symbol: the axes that have its size, the sizes of the calls, and those that the graph is made
    for.
    """

    symbol: str
    axes: tuple[str, ...]
    watched: tuple[int, ...]
    made_for: str


@dataclass(frozen=True, slots=True)
class FixedRow:
    """An axis that stays as it was in all calls: why, and the option that would change it, which is
    empty where the model takes no other size.
    """

    axis: str
    size: str
    why: str
    option: str


@dataclass(frozen=True, slots=True)
class GraphForecast:
    """One graph that the calls need."""

    name: str
    calls: int
    sizes: tuple[SizeRow, ...]
    fixed: tuple[FixedRow, ...]
    relations: tuple[str, ...]
    constants: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forecast(PrintedTables):
    """The plan of an export to ``target``, before it is made.

    ``experiments`` are those that were made with the model to find this out, None where there is no
    model. ``seconds`` is an estimate of the processor time of export and verification, None where there
    is none. ``unknown`` is what neither calls nor experiments could tell.
    """

    model: str
    method: str
    target: str
    calls: int
    graphs: tuple[GraphForecast, ...]
    experiments: int | None = None
    seconds: float | None = None
    unknown: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The forecast as JSON takes it."""
        return {"schema": 1, **asdict(self)}

    def tables(self, *, full: bool = False) -> RenderableType:
        """The forecast for a console of rich."""
        parts: list[RenderableType] = [Text(line) for line in self._head()]
        for graph in self.graphs:
            named = f"{graph.name}, {counted(graph.calls, 'call')}" if len(self.graphs) > 1 else ""
            parts += _of_graph(graph, named, full)
        parts += [Text(f"not known: {text}") for text in _shown(self.unknown, full)]
        return Group(*parts)

    def _head(self) -> Iterator[str]:
        count = counted(len(self.graphs), "graph")
        yield f"plan of {self.model}.{self.method} for {self.target}, of {counted(self.calls, 'call')}"
        if self.experiments is None:
            yield f"{count} at most, by the calls alone: with --build the model is asked, too"
        else:
            runs = counted(self.experiments, "experiment")
            yield f"{count}, and more where the model branches on sizes that the calls need"
            yield f"the model was run for {runs}, and nothing was traced"
        if self.seconds is not None:
            yield f"time: about {_time(self.seconds)} of one processor to export and verify"


def _of_graph(graph: GraphForecast, title: str, full: bool) -> Iterator[RenderableType]:
    if title:
        yield Text(f"\n{title}", style="bold")
    if graph.sizes:
        cells = [
            (
                row.symbol,
                ", ".join(_shown(row.axes, full, most=3)),
                listed_sizes(row.watched),
                row.made_for,
                f"--range {row.symbol}=LOW:HIGH",
            )
            for row in graph.sizes
        ]
        yield table_of(None, ("size", "of", "watched", "made for", "to change that"), cells)
    if graph.fixed:
        fixed = [(row.axis, row.size, row.why, row.option) for row in graph.fixed]
        rows = fixed if full else folded_rows(fixed)
        shown = rows if full else rows[:_MOST_ROWS]
        yield table_of(None, ("stays as it is", "size", "why", "to change that"), shown)
        if len(rows) > len(shown):
            yield Text(f"  and {len(rows) - len(shown)} more: --full has them")
    yield from (Text(f"relation: {text}") for text in _shown(graph.relations, full))
    constants = _shown(graph.constants, full)
    if constants:
        yield Text(f"constants, other values are refused: {', '.join(constants)}")


def _shown(lines: Sequence[str], full: bool, *, most: int = _MOST_ROWS) -> list[str]:
    """The lines; unless in full, items of lists are drawn together, and of many the rest is counted."""
    if full:
        return list(lines)
    return first_few(folded(lines), most, "and {} more")


def _time(seconds: float) -> str:
    """
    >>> [_time(seconds) for seconds in (0.2, 8.4, 47, 200, 5000)]
    ['1 s', '8 s', '50 s', '3 min', '83 min']
    """
    if seconds < 10:
        return f"{max(round(seconds), 1)} s"
    if seconds < 90:
        return f"{round(seconds, -1):.0f} s"
    return f"{seconds / 60:.0f} min"


def graph_forecast(
    plan: Plan, domain: DomainOfInterest, static: Mapping[str, Sequence[int]], *, probed: bool
) -> GraphForecast:
    """The forecast of one graph.

    :param static: the dimensions that the user wants to stay, by argument
    :param probed: whether the model was asked about axes that no call changed
    """
    refused = {
        axis
        for experiment in plan.probes
        if experiment.finding.kind is not FindingKind.ACCEPTED
        for axis in experiment.axes
    }
    fixed = [
        FixedRow(
            str(axis),
            str(size),
            _why(axis, refused, static, probed),
            "" if axis in refused else _option(axis),
        )
        for leaf in plan.inputs
        for axis, size in leaf.axes
        if size.is_constant
    ]
    sizes = [
        SizeRow(name, tuple(map(str, plan.axes_of(name))), one.watched, _made_for(one))
        for name, one in domain.symbols.items()
    ]
    constants = [
        f"{leaf.path.code()}={leaf.constant.value!r}"
        for leaf in plan.leaves
        if leaf.is_constant and leaf.constant is not None and not leaf.optional
    ]
    return GraphForecast(
        plan.name,
        sum(count for _, count in domain.calls),
        tuple(sizes),
        tuple(fixed),
        tuple(str(relation) for relation in plan.relations),
        tuple(constants),
    )


def _why(axis: Axis, refused: set[Axis], static: Mapping[str, Sequence[int]], probed: bool) -> str:
    if axis.dim in static.get(axis.path.root, ()) or axis.dim in static.get(axis.path.code(), ()):
        return "asked for"
    if axis in refused:
        return "the model refuses another size"
    return "equal in all calls" if probed else "equal in all calls; the model was not asked"


def _option(axis: Axis) -> str:
    return f"--dynamic {axis.path.code()}:{axis.dim}" if axis.dim is not None else ""


def _made_for(symbol: SizesOfInterest) -> str:
    """The sizes that are worth a graph of their own, in words.

    >>> _made_for(SizesOfInterest("batch", watched=(2, 3), everyday=(1,)))
    '1 to 3'
    >>> _made_for(SizesOfInterest("height", watched=(64, 96), grid=16))
    '64 to 96 in steps of 16'
    >>> _made_for(SizesOfInterest("past", watched=(5, 7), everyday=(0,), asked=None))
    '0, 5 to 7'
    >>> _made_for(SizesOfInterest("batch", watched=(2,), asked=(1, None)))
    '1 and more'
    """
    if symbol.asked is not None:
        low, high = symbol.asked
        return f"{low} and more" if high is None else f"{low} to {high}"
    if not symbol.watched:
        return "what experiments accept"
    low, high = symbol.watched[0], symbol.watched[-1]
    below = sorted(size for size in symbol.everyday if size < low)
    if below and low - below[-1] == 1 and symbol.grid == 1:
        low = below.pop()
    step = f" in steps of {symbol.grid}" if symbol.grid > 1 else ""
    between = f"{low} to {high}{step}" if low != high else str(low)
    return ", ".join([*map(str, below), between])

"""The calls of a recording: which arguments came, how often, and in which sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..core.alike import folded_rows
from ..core.path import Path
from ..core.recording import Recording
from ..core.spec import Spec, TensorSpec
from .text import as_text, made_inside

__all__ = ["CallsReport", "LeafRow", "calls_report", "surroundings_of"]

_MOST_SIZES = 5
_MOST_KINDS = 8


@dataclass(frozen=True, slots=True)
class LeafRow:
    """One leaf of the arguments: its kinds (dtype and rank, or a constant), its sizes by
    dimension, its calls.
    """

    path: str
    kinds: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    count: int


@dataclass(frozen=True, slots=True)
class CallsReport:
    """The calls of one method, leaf by leaf."""

    model: str
    method: str
    total: int
    leaves: tuple[LeafRow, ...]
    missed: tuple[str, ...] = ()
    surroundings: tuple[tuple[str, int], ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The calls as JSON takes them."""
        return {
            "schema": 1,
            "model": self.model,
            "method": self.method,
            "total": self.total,
            "leaves": [
                {
                    "path": row.path,
                    "kinds": list(row.kinds),
                    "sizes": [list(s) for s in row.sizes],
                    "calls": row.count,
                }
                for row in self.leaves
            ],
            "missed": list(self.missed),
            "surroundings": dict(self.surroundings),
        }

    def text(self, *, full: bool = False) -> str:
        """The calls as text, as wide as the terminal; ``full`` gives each item of a list a row
        of its own.
        """
        return as_text(self.tables(full=full))

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> RenderableType:
        return self.tables()

    def tables(self, *, full: bool = False) -> RenderableType:
        """The calls for a console of rich."""
        calls = f"{self.total} {'call' if self.total == 1 else 'calls'}"
        table = Table(title=f"{calls} of {self.model}.{self.method}", title_justify="left")
        for name in ("input", "kind", "sizes that were seen", "calls"):
            table.add_column(name, overflow="fold")
        cells = [_cells(row) for row in self.leaves]
        for row in cells if full else folded_rows(cells):
            table.add_row(*map(Text, row))
        return Group(
            table,
            *(Text(f"  {text}", style="dim") for text in made_inside(self.surroundings)),
            *(Text(f"  a call was not recorded: {text}", style="dim") for text in self.missed),
        )


def _cells(row: LeafRow) -> tuple[str, ...]:
    sizes = f"[{', '.join(_listed(sizes) for sizes in row.sizes)}]" if row.sizes else ""
    return row.path, _shown(row.kinds), sizes, str(row.count)


def calls_report(recording: Recording) -> CallsReport:
    """The report of a recording."""
    specs: dict[Path, list[tuple[Spec, int]]] = {}
    for call in recording.calls:
        for path, spec in call.inputs.items():
            specs.setdefault(path, []).append((spec, call.count))
    rows = tuple(_row(path, found) for path, found in specs.items())
    return CallsReport(
        recording.model,
        recording.method,
        len(recording),
        rows,
        recording.missed,
        surroundings_of(recording),
    )


def surroundings_of(recording: Recording) -> tuple[tuple[str, int], ...]:
    """What stood around the calls, in words, each with the number of calls that were made there.

    Calls of which nothing was noted are left out.
    """
    found: Counter[str] = Counter()
    for call in recording.calls:
        if call.surroundings is not None:
            found[str(call.surroundings)] += call.count
    return tuple(found.items())


def _row(path: Path, found: Sequence[tuple[Spec, int]]) -> LeafRow:
    kinds = dict.fromkeys(_kind(spec) for spec, _ in found)
    shapes = [spec.shape for spec, _ in found if isinstance(spec, TensorSpec)]
    sizes: tuple[tuple[int, ...], ...] = ()
    if len({len(shape) for shape in shapes}) == 1:
        sizes = tuple(tuple(sorted(set(column))) for column in zip(*shapes, strict=True))
    return LeafRow(path.code(), tuple(kinds), sizes, sum(count for _, count in found))


def _kind(spec: Spec) -> str:
    return (
        f"{spec.dtype.removeprefix('torch.')}, rank {len(spec.shape)}"
        if isinstance(spec, TensorSpec)
        else str(spec)
    )


def _shown(kinds: Sequence[str]) -> str:
    """The kinds; of many constants, as floats that change, the first ones."""
    more = len(kinds) - _MOST_KINDS
    return ", ".join([*kinds[:_MOST_KINDS], f"{more} more"] if more > 1 else kinds)


def _listed(sizes: Sequence[int]) -> str:
    shown = (
        [*map(str, sizes)] if len(sizes) <= _MOST_SIZES else [str(sizes[0]), "...", str(sizes[-1])]
    )
    return "|".join(shown)

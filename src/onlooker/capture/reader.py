"""Files of processes -> values; a file may be read while its process writes it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.call import Call, Passed
from ..core.errors import OnlookerError, SavedFileError
from ..core.spec import Spec
from ..core.structure import Structure, Tree
from ..core.surroundings import Surroundings
from ..disk.codec import Decoder
from ..disk.files import read_file
from ..disk.text import damaged, read_json
from ..keep.containers import with_builders
from .entry_point import EntryPoint
from .writer import KIND, SCHEMA

__all__ = [
    "Part",
    "ProcessFile",
    "Run",
    "TakesRuns",
    "ValueRange",
    "files_in",
    "merged",
    "no_runs",
    "read_process",
    "whole_lines",
]

#: what may follow the first line
_KINDS = frozenset(
    {"structures", "entry", "specs", "forms", "rows", "calls", "counts", "other", "missed"}
    | {"places", "rank", "end", "ranges", "values"}
)


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` calls that followed each other, all like the call number ``row`` of their part;
    written ``at`` seconds after the start of the process.

    ``ordered`` is False for the calls after very many, of which only the number is known.
    """

    row: int
    count: int
    seconds: float
    at: float
    ordered: bool = True


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values of one tensor in a few calls: the least, the greatest, and the names of the facts
    (:class:`~onlooker.materialise.facts.Fact`) that all of these calls show.
    """

    path: str
    low: float
    high: float
    facts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Part:
    """The calls of one entry point that one process saw.

    ``calls`` are the different ones, each with its number and the mean of its seconds. ``others``
    and ``other_seconds`` are of calls after too many different ones. ``places`` are paths under
    which the program holds the model, ``callers`` the methods of modules that call it. ``values`` are
    the files with the values of calls, by the number of the call.
    """

    entry: EntryPoint
    calls: tuple[Call, ...]
    runs: tuple[Run, ...]
    others: int = 0
    other_seconds: float = 0.0
    missed: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    callers: tuple[str, ...] = ()
    ranges: tuple[ValueRange, ...] = ()
    values: tuple[tuple[int, str], ...] = ()

    @property
    def n_calls(self) -> int:
        """The number of calls, with those that are only counted."""
        return sum(run.count for run in self.runs) + self.others

    @property
    def seconds(self) -> float:
        """The seconds that all calls took."""
        return sum(run.seconds for run in self.runs) + self.other_seconds


@dataclass(frozen=True, slots=True)
class ProcessFile:
    """The file of one process: which process it was, and what it saw.

    ``started`` is the time of its start in seconds since 1970; ``ended`` the seconds until it came to
    its end, None where it was ended from outside or still runs. ``digest`` is of the whole lines.
    """

    uid: str
    host: str
    pid: int
    parent: int
    program: str
    started: float
    python: str
    torch: str
    digest: str
    rank: int | None = None
    forked: bool = False
    ended: float | None = None
    parts: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """The process in words."""
        rank = f", rank {self.rank}" if self.rank is not None else ""
        return f"pid {self.pid} on {self.host}{rank}"

    @property
    def n_calls(self) -> int:
        """The number of all calls."""
        return sum(part.n_calls for part in self.parts)


def files_in(folder: Path, place: object) -> list[Path]:
    """The files of processes in a folder, which is a copy of ``place`` where that is given.

    :raises SavedFileError: ``file-missing`` where there is no folder, ``nothing-captured`` where
        it has none
    """
    if not folder.is_dir():
        raise SavedFileError(
            f"There is no folder {place or folder}.",
            slug="file-missing",
            hint="Give the folder that `onlooker run` wrote.",
        )
    found = sorted(folder.glob("*.jsonl"))
    if not found:
        raise SavedFileError(
            f"{place or folder} has no file of a process: no process of the program has imported torch.",
            slug="nothing-captured",
            hint=(
                "A process that is started with python -I, -E or -S, or without its environment,"
                " cannot be watched; docs/run.md has the cases."
            ),
        )
    return found


def whole_lines(content: bytes) -> list[bytes]:
    """The lines that are whole: the last one is torn where a process was ended, or still writes."""
    return content.split(b"\n")[:-1]


#: takes the runs of one line: the number of the part, seconds after the start, whether they are in their
#: order, and rows with the number of the call, how many followed each other, and microseconds
TakesRuns = Callable[[int, float, bool, Sequence[Sequence[int]]], None]


def no_runs(part: int, at: float, ordered: bool, rows: Sequence[Sequence[int]]) -> None:
    """Takes runs and does nothing with them: their sums are kept."""


def read_process(path: Path, runs: TakesRuns | None = None) -> ProcessFile:
    """The file of one process.

    With ``runs``, each line's runs are given to that function, and the parts have one run for each
    different call, without an order: the memory is that of the different calls, however many there
    were.

    :raises SavedFileError: ``file-foreign``, ``file-newer``, ``file-damaged``
    """
    lines = whole_lines(read_file(path))
    header = read_json(lines[0], f"{path}:1") if lines else None
    if not isinstance(header, dict) or header.get("onlooker") != KIND:
        raise SavedFileError(
            f"{path} is no file of a process that onlooker watched.",
            slug="file-foreign",
            hint="Give a folder that `onlooker run` or `onlooker combine` wrote.",
        )
    if header.get("schema") != SCHEMA:
        raise SavedFileError(
            f"{path} has format {header.get('schema')}, and this version reads {SCHEMA}.",
            slug="file-newer",
            hint="Install a newer version of onlooker: pip install -U onlooker.",
        )
    reading = _Reading(str(path), runs)
    try:
        for number, line in enumerate(lines[1:], 2):
            reading.take(read_json(line, f"{path}:{number}"), f"{path}:{number}")
        digest = hashlib.blake2b(b"\n".join(lines), digest_size=16).hexdigest()
        return reading.result(header, digest)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, OnlookerError):
            raise
        raise damaged(str(path), f"a line is not as it was written ({error})") from error


@dataclass(slots=True)
class _Lines:
    """The lines of one entry point."""

    entry: Any
    specs: list[Any] = field(default_factory=list)
    forms: list[Any] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    others: int = 0
    micros: int = 0
    missed: tuple[str, ...] = ()
    places: Any = ((), ())
    ranges: list[Any] = field(default_factory=list)
    values: list[tuple[int, str]] = field(default_factory=list)
    #: by row the number of calls, their microseconds, and when they were last written
    sums: dict[int, list[float]] = field(default_factory=dict)

    def sum_up(self, rows: Sequence[Sequence[int]], at: float) -> None:
        """Adds runs to the sums of their calls."""
        sums = self.sums
        for row, n, micros in rows:
            known = sums.get(row)
            if known is None:
                known = sums[row] = [0, 0, at]
            known[0] += n
            known[1] += micros
            known[2] = at


class _Reading:
    def __init__(self, where: str, runs: TakesRuns | None) -> None:
        self._where, self._takes = where, runs
        self._structures: list[Any] = []
        self._parts: list[_Lines] = []
        self._rank: int | None = None
        self._end: float | None = None

    def take(self, line: Any, where: str) -> None:
        """Adds one line."""
        kind = next(iter(line), "") if isinstance(line, dict) else ""
        if kind not in _KINDS:
            raise damaged(where, "it is no line of a process")
        if kind == "structures":
            self._structures += line["structures"]
        elif kind == "entry":
            self._parts.append(_Lines(line["value"]))
        elif kind == "rank":
            self._rank = int(line["rank"])
        elif kind == "end":
            self._end = float(line["end"])
        else:
            self._of_part(kind, line, self._parts[line[kind]])

    def _of_part(self, kind: str, line: Mapping[str, Any], part: _Lines) -> None:
        if kind in ("specs", "forms", "rows"):
            getattr(part, kind).extend(line["values"])
        elif kind in ("calls", "counts"):
            at, ordered = float(line["at"]), kind == "calls"
            if self._takes is None:
                part.runs += [
                    Run(int(row), int(n), micros / 1e6, at, ordered)
                    for row, n, micros in line["runs"]
                ]
            else:
                self._takes(line[kind], at, ordered, line["runs"])
                part.sum_up(line["runs"], at)
        elif kind == "other":
            part.others += int(line["count"])
            part.micros += int(line["micros"])
        elif kind == "missed":
            part.missed = tuple(map(str, line["texts"]))
        elif kind == "ranges":
            part.ranges += line["values"]
        elif kind == "values":
            part.values += [(int(line["row"]), str(line["file"]))] if line["file"] else []
        else:
            part.places = line["found"]

    def result(self, header: Mapping[str, Any], digest: str) -> ProcessFile:
        """The value of all lines."""
        decoder = Decoder(self._structures, self._where)
        parts = tuple(_part(lines, decoder, self._where) for lines in self._parts)
        return ProcessFile(
            str(header["uid"]),
            str(header["host"]),
            int(header["pid"]),
            int(header["parent"]),
            str(header["program"]),
            float(header["started"]),
            str(header["python"]),
            str(header["torch"]),
            digest,
            self._rank if self._rank is not None else header["rank"],
            bool(header["forked"]),
            self._end,
            parts,
        )


def _part(lines: _Lines, decoder: Decoder, where: str) -> Part:
    specs = [decoder.decode(Spec, spec, f"{where} at specs") for spec in lines.specs]
    forms = [_form(form, decoder, where) for form in lines.forms]
    runs = list(lines.runs)
    for row, (n, micros, at) in sorted(lines.sums.items()):
        runs.append(Run(int(row), int(n), micros / 1e6, at, ordered=False))
    totals: dict[int, list[float]] = {}
    for run in runs:
        total = totals.setdefault(run.row, [0, 0.0])
        total[0] += run.count
        total[1] += run.seconds
    calls = []
    for number, (form, *numbers) in enumerate(lines.rows):
        inputs, outputs, passed, surroundings, n_inputs, pattern = forms[form]
        leaves = tuple(specs[numbers[place]] for place in pattern)
        count, seconds = totals.get(number, (0, 0.0))
        if count:  # a process that was ended may have named a call and not counted it
            trees = Tree(inputs, leaves[:n_inputs]), Tree(outputs, leaves[n_inputs:])
            calls.append(Call(number, *trees, passed, seconds / count, int(count), surroundings))
    return Part(
        decoder.decode(EntryPoint, lines.entry, f"{where} at entry"),
        tuple(calls),
        tuple(runs),
        lines.others,
        lines.micros / 1e6,
        lines.missed,
        tuple(map(str, lines.places[0])),
        tuple(map(str, lines.places[1])),
        _ranges(lines.ranges),
        tuple(lines.values),
    )


def _ranges(rows: list[Any]) -> tuple[ValueRange, ...]:
    found: dict[str, ValueRange] = {}
    for path, low, high, facts in rows:
        one = ValueRange(str(path), float(low), float(high), frozenset(map(str, facts)))
        found[one.path] = merged(found.get(one.path), one)
    return tuple(found.values())


def merged(known: ValueRange | None, other: ValueRange) -> ValueRange:
    """Returns the range that covers both, with the facts that both show."""
    if known is None:
        return other
    low, high = min(known.low, other.low), max(known.high, other.high)
    return ValueRange(known.path, low, high, known.facts & other.facts)


def _form(form: Any, decoder: Decoder, where: str) -> tuple[Any, ...]:
    structure_in, structure_out, passed, surroundings, n_inputs, pattern, hidden = form
    inputs = decoder.decode(Structure, structure_in, f"{where} at forms")
    if hidden is not None:
        inputs = with_builders(inputs, decoder.decode(Any, hidden, f"{where} at forms"), where)
    return (
        inputs,
        decoder.decode(Structure, structure_out, f"{where} at forms"),
        decoder.decode(Passed, passed, f"{where} at forms"),
        decoder.decode(Surroundings | None, surroundings, f"{where} at forms"),
        int(n_inputs),
        pattern,
    )

"""Files of processes -> tables of Parquet: all calls, their sizes, and the processes.

The memory is that of one process and of the different calls, however many calls there were: a process
has the order of 200,000 calls at most, and its rows are written before the next file is read.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.call import Call
from ..core.spec import axis_sizes
from ..core.support.packages import require_packages
from ..disk.files import cannot_write
from ..disk.urls import Place, is_url, put
from .combine import FILES, files_of
from .entry_point import EntryPoint
from .reader import Part, ProcessFile, read_process

__all__ = ["CALLS", "PROCESSES", "SIZES", "write_tables"]

#: the files: a row for each run of equal calls, for each axis of each different call, for each process
CALLS, SIZES, PROCESSES = "calls.parquet", "sizes.parquet", "processes.parquet"
#: an int of Python may be larger than a column holds
_MOST_SIZE = 1 << 63
#: what stands for the number of a call that is only counted
_ONLY_COUNTED = -1
_COLUMNS = {
    CALLS: {
        **{"process": "dictionary", "entry": "dictionary", "call": "int32", "ordered": "bool_"},
        **{"written": "float64", "count": "int64", "seconds": "float64"},
    },
    SIZES: {"entry": "string", "call": "int32", "axis": "string", "size": "int64"},
    PROCESSES: {
        **{"process": "string", "host": "string", "pid": "int64", "rank": "int64"},
        **{"program": "string", "started": "float64", "ended": "float64"},
        **{"python": "string", "torch": "string", "calls": "int64"},
    },
}


def write_tables(places: Sequence[Place], into: Place) -> Mapping[str, int]:
    """Writes the tables of some folders into one, each of which may be a URL; gives the number of rows
    by the name of the file.

    :raises MissingPackageError: ``missing-package``
    :raises SavedFileError: as :func:`~onlooker.capture.combine.combine`, ``file-damaged``,
        ``not-written``
    """
    require_packages("pyarrow.parquet", purpose="onlooker combine --parquet", extra="tables")
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(files_of(places, FILES[:1]))
        beside = None if is_url(into) else _made(Path(into))
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=beside, prefix=".tables-"))
        )
        rows = _written(files, folder)
        if is_url(into):
            put([folder / name for name in rows], str(into))
        else:
            for name in rows:
                (folder / name).replace(Path(into) / name)
    return rows


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error
    return folder


def _written(files: Sequence[Path], folder: Path) -> dict[str, int]:
    """Writes the tables; the rows of calls process by process."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    entries, processes, count = _Entries(), [], 0
    schema = _schema(CALLS)
    with pq.ParquetWriter(folder / CALLS, schema) as calls:
        for path in files:
            runs: dict[int, _Runs] = {}
            process = read_process(path, _Taking(runs))
            processes.append(_row_of(process))
            for place, part in enumerate(process.parts):
                name, numbers = entries.numbers(part)
                columns = runs.get(place, _Runs()).columns(part, numbers, process.started)
                texts = [
                    pa.DictionaryArray.from_arrays(np.zeros(len(columns[0]), np.int32), [text])
                    for text in (process.uid, name)
                ]
                arrays = [*texts, *map(pa.array, columns)]
                calls.write_table(pa.Table.from_arrays(arrays, schema=schema))
                count += len(columns[0])
    sizes = list(entries.rows())
    for name, rows in ((SIZES, sizes), (PROCESSES, processes)):
        pq.write_table(pa.Table.from_pylist(rows, _schema(name)), folder / name)
    return {CALLS: count, SIZES: len(sizes), PROCESSES: len(processes)}


def _schema(name: str) -> Any:
    import pyarrow as pa

    kinds = {"dictionary": pa.dictionary(pa.int32(), pa.string())}
    return pa.schema(
        [
            (column, kinds[kind] if kind in kinds else getattr(pa, kind)())
            for column, kind in _COLUMNS[name].items()
        ]
    )


class _Runs:
    """The runs of one part of a process, as arrays of its lines."""

    def __init__(self) -> None:
        self._rows: list[Any] = []
        self._at: list[float] = []
        self._ordered: list[bool] = []

    def add(self, at: float, ordered: bool, rows: Sequence[Sequence[int]]) -> None:
        """Takes the runs of one line."""
        self._rows.append(np.array(rows, np.int64).reshape(-1, 3))
        self._at.append(at)
        self._ordered.append(ordered)

    def columns(self, part: Part, numbers: Any, started: float) -> list[Any]:
        """The columns of the table of calls after the first two; ``numbers`` has, by the number of a
        call in this part, the one that it has among all.
        """
        others = []
        if part.others:
            others.append([_ONLY_COUNTED, part.others, round(1e6 * part.other_seconds)])
        lengths = [len(rows) for rows in self._rows] + [len(others)]
        rows = np.concatenate([*self._rows, np.array(others, np.int64).reshape(-1, 3)])
        known = (rows[:, 0] >= 0) & (rows[:, 0] < len(numbers))
        call = np.full(len(rows), _ONLY_COUNTED, np.int32)
        call[known] = numbers[rows[known, 0]]
        ordered = np.repeat(np.array([*self._ordered, False]), lengths)
        at = started + np.repeat(np.array([*self._at, 0.0]), lengths)
        return [call, ordered, at, rows[:, 1], rows[:, 2] / 1e6]


class _Taking:
    """Gives the runs of a line to those of its part."""

    def __init__(self, runs: dict[int, _Runs]) -> None:
        self._runs = runs

    def __call__(self, part: int, at: float, ordered: bool, rows: Sequence[Sequence[int]]) -> None:
        self._runs.setdefault(part, _Runs()).add(at, ordered, rows)


class _Entries:
    """The different calls of each entry point, numbered in all processes alike."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str, str], str] = {}
        self._calls: dict[str, dict[Call, int]] = {}

    def numbers(self, part: Part) -> tuple[str, Any]:
        """The name of the entry point of a part, and the number of each of its calls."""
        name = self._name_of(part.entry)
        known = self._calls.setdefault(name, {})
        numbers = np.full(1 + max((c.index for c in part.calls), default=-1), _ONLY_COUNTED)
        for call in part.calls:
            kind = replace(call, index=0, seconds=0.0, count=1)
            numbers[call.index] = known.setdefault(kind, len(known))
        return name, numbers

    def _name_of(self, entry: EntryPoint) -> str:
        """The name of the entry point, with its code where another one has that name."""
        key = entry.model, entry.method, entry.code
        if key not in self._names:
            choices = (
                entry.name,
                f"{entry.name}@{entry.code}",
                f"{entry.model}.{entry.method}@{entry.code}",
            )
            taken = set(self._names.values())
            self._names[key] = next(name for name in choices if name not in taken)
        return self._names[key]

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the table of sizes."""
        for name, calls in self._calls.items():
            for call, number in calls.items():
                for axis, size in axis_sizes(call.inputs.items()).items():
                    held = size if -_MOST_SIZE <= size < _MOST_SIZE else None
                    yield {"entry": name, "call": number, "axis": str(axis), "size": held}


def _row_of(process: ProcessFile) -> dict[str, Any]:
    names = _COLUMNS[PROCESSES]
    told = {name: getattr(process, name) for name in names if hasattr(process, name)}
    return {**told, "process": process.uid, "calls": process.n_calls}

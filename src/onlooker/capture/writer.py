"""The file of one process: lines of JSON, only ever added.

A line is an object whose first key says what it is; :mod:`.reader` reads them. A process that is
ended leaves at most its last line torn.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import socket
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from ..core.call import Passed
from ..core.spec import Spec
from ..core.structure import Structure, Tree
from ..core.surroundings import Surroundings
from ..disk.codec import Encoder
from ..keep.containers import hidden_of
from ..observing.unrecorded_calls import reason
from .entry_point import EntryPoint
from .metrics import SizeMetrics
from .recorder import EntryRecorder, News

__all__ = ["KIND", "SCHEMA", "Writer"]

#: what the first line of a file says that it is
KIND = "capture"
#: the version of what is written; it grows when a reader of an older one would misunderstand
SCHEMA = 1


class _InFile:
    """The number of rows of a recorder that its file has already."""

    def __init__(self) -> None:
        self.specs = self.forms = self.rows = 0
        self.missed: tuple[str, ...] = ()
        self.places: dict[str, int] = {}


class Writer:
    """Appends what recorders have to the file of this process."""

    def __init__(
        self, into: str, *, parent: int | None = None, metrics: SizeMetrics | None = None
    ) -> None:
        """Makes the file, and the folder where there is none; ``parent`` is the process that was
        forked, None where Python began anew. ``metrics`` take what is written too.

        :raises OSError: where that is not possible
        """
        self._encoder = Encoder()
        self._metrics = metrics
        self._n_structures = 0
        self._written: list[_InFile] = []
        self._rank = os.environ.get("RANK", "")
        self._start = time.time()
        uid, host = uuid.uuid4().hex[:12], socket.gethostname()
        rank = f".rank{self._rank}" if self._rank.isdigit() else ""
        folder = Path(into)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{host}.{os.getpid()}{rank}.{uid}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._file = os.open(self.path, flags, 0o644)
        self._write([self._header(uid, host, parent)])

    def _header(self, uid: str, host: str, parent: int | None) -> dict[str, Any]:
        torch = sys.modules.get("torch")
        return {
            "onlooker": KIND,
            "schema": SCHEMA,
            "uid": uid,
            "host": host,
            "pid": os.getpid(),
            "parent": os.getppid() if parent is None else parent,
            "forked": parent is not None,
            "rank": int(self._rank) if self._rank.isdigit() else None,
            "program": " ".join(getattr(sys, "argv", [""])[:1]) or "python",
            "started": round(self._start, 3),
            "python": platform.python_version(),
            "torch": str(getattr(torch, "__version__", "")),
        }

    def write(self, recorders: list[EntryRecorder]) -> None:
        """Adds what is new; never less than whole lines."""
        lines: list[dict[str, Any]] = self._rank_lines()
        for number, recorder in enumerate(recorders):
            if number == len(self._written):
                self._written.append(_InFile())
                entry = self._encoder.encode(EntryPoint, recorder.entry)
                lines.append({"entry": number, "value": entry})
            lines += self._lines(number, recorder)
        structures = self._encoder.structures[self._n_structures :]
        if structures:
            lines.insert(0, {"structures": structures})
            self._n_structures = len(self._encoder.structures)
        if lines:
            self._write(lines)

    def end(self) -> None:
        """Notes that the process came to its end."""
        self._write([{"end": round(time.time() - self._start, 3)}])

    def close(self) -> None:
        """Closes the file, of which a forked process has its own."""
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _rank_lines(self) -> list[dict[str, Any]]:
        """The rank, where it was not known at the start: a program may set it itself."""
        rank = os.environ.get("RANK", "")
        if rank == self._rank or not rank.isdigit():
            return []
        self._rank = rank
        return [{"rank": int(rank)}]

    def _lines(self, number: int, recorder: EntryRecorder) -> list[dict[str, Any]]:
        news = recorder.take()  # first: all that it speaks of is in the ledger
        if self._metrics is not None:
            with contextlib.suppress(Exception):  # whatever takes them: the file is written
                self._metrics.note(number, recorder, news)
        ledger, written, lines = recorder.ledger, self._written[number], []
        encode = self._encoder.encode
        n_specs, n_forms, n_rows = len(ledger.numbers), len(ledger.forms), len(ledger.entries)
        if n_specs > written.specs:
            specs = ledger.numbers.specs(range(written.specs, n_specs))
            found = [encode(Spec, specs[n]) for n in range(written.specs, n_specs)]
            lines.append({"specs": number, "values": found})
        if n_forms > written.forms:
            forms = [self._form(ledger, form) for form in ledger.forms[written.forms : n_forms]]
            lines.append({"forms": number, "values": forms})
        if n_rows > written.rows:
            rows = [list(entry) for entry in ledger.entries[written.rows : n_rows]]
            lines.append({"rows": number, "values": rows})
        written.specs, written.forms, written.rows = n_specs, n_forms, n_rows
        lines += self._calls(number, news)
        if news.ranges:
            ranges = [
                [path, one.low, one.high, sorted(fact.name for fact in one.facts)]
                for path, one in news.ranges
                if math.isfinite(one.low) and math.isfinite(one.high)
            ]
            lines.append({"ranges": number, "values": ranges})
        lines += [self._values(number, row, tree, recorder) for row, tree in news.values]
        lines += self._words(number, recorder, written)
        return lines

    def _form(self, ledger: Any, form: Any) -> list[Any]:
        structure_in, structure_out, (passed, surroundings), n_inputs, pattern = form
        encode = self._encoder.encode
        return [
            encode(Structure, ledger.inputs.structures[structure_in]),
            encode(Structure, ledger.outputs.structures[structure_out]),
            encode(Passed, passed),
            encode(Surroundings | None, surroundings) if surroundings is not None else None,
            n_inputs,
            list(pattern),
            self._hidden(ledger.inputs.structures[structure_in]),
        ]

    def _hidden(self, structure: Structure) -> Any:
        """Returns the plain state of the caches among the arguments, from which they are built
        again; None where there are none, or where it cannot be written.
        """
        with contextlib.suppress(Exception):
            hidden = hidden_of(structure)
            if any(row is not None for row in hidden):
                return self._encoder.encode(Any, hidden)
        return None

    def _values(
        self, number: int, row: int, tree: Tree[Any], recorder: EntryRecorder
    ) -> dict[str, Any]:
        """Writes the values of a call into a file beside this one."""
        from ..keep.values import tensors_of
        from ..targets.weights import write_tensors

        name = f"{self.path.stem}.{number}.{row}.safetensors"
        try:
            write_tensors({"inputs": tensors_of(tree, "inputs")}, self.path.with_name(name))
        except Exception as error:
            recorder.unrecorded.add(f"the values of a call were not written: {reason(error)}")
            return {"values": number, "row": row, "file": ""}
        return {"values": number, "row": row, "file": name}

    def _calls(self, number: int, news: News) -> list[dict[str, Any]]:
        at = round(time.time() - self._start, 3)
        lines: list[dict[str, Any]] = []
        if news.runs:
            runs = [[row, n, round(1e6 * seconds)] for row, n, seconds in news.runs]
            lines.append({"calls": number, "at": at, "runs": runs})
        if news.counts:
            counts = [[row, n, round(1e6 * seconds)] for row, (n, seconds) in news.counts.items()]
            lines.append({"counts": number, "at": at, "runs": counts})
        if news.others[0]:
            count, seconds = news.others
            lines.append({"other": number, "count": count, "micros": round(1e6 * seconds)})
        return lines

    def _words(
        self, number: int, recorder: EntryRecorder, written: _InFile
    ) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        missed = recorder.unrecorded.texts()
        if missed != written.missed:
            lines.append({"missed": number, "texts": list(missed)})
            written.missed = missed
        places = {**recorder.places, **{f"by {name}": 1 for name in recorder.callers}}
        if places.keys() != written.places.keys():
            found = [list(recorder.places), list(recorder.callers)]
            lines.append({"places": number, "found": found})
            written.places = places
        return lines

    def _write(self, lines: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        content = text.encode("ascii")
        while content:
            content = content[os.write(self._file, content) :]

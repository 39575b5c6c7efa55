"""Several folders of processes -> one folder, and the processes of a folder -> entry points.

To combine is to unite sets of files: each process has one file, which only grows, so of two of the
same process the longer one is kept. The order, the grouping and repetitions change nothing.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.call import Call
from ..core.drawing.alike import named_few
from ..core.errors import SavedFileError
from ..core.recording import Recording
from ..disk.files import read_file
from ..disk.urls import Place, copied_here, is_url, put
from .entry_point import EntryPoint
from .reader import (
    Part,
    ProcessFile,
    ValueRange,
    files_in,
    merged,
    no_runs,
    read_process,
    whole_lines,
)

__all__ = ["FILES", "Captured", "Seen", "combine", "files_of", "read_captured"]

#: the files of a run: those of processes, and the values of calls
FILES = ("*.jsonl", "*.safetensors")


@dataclass(frozen=True, slots=True)
class Seen:
    """One entry point, in all processes that called it: ``parts`` has what each saw."""

    entry: EntryPoint
    parts: tuple[tuple[ProcessFile, Part], ...]

    @property
    def name(self) -> str:
        """The name of the entry point."""
        return self.entry.name

    @property
    def n_calls(self) -> int:
        """The number of calls in all processes."""
        return sum(part.n_calls for _, part in self.parts)

    @property
    def seconds(self) -> float:
        """The seconds of all calls in all processes."""
        return sum(part.seconds for _, part in self.parts)

    @property
    def others(self) -> int:
        """The calls of which only the number is known."""
        return sum(part.others for _, part in self.parts)

    @property
    def places(self) -> tuple[str, ...]:
        """The paths under which programs hold the model, the most frequent one first."""
        return _ranked(place for _, part in self.parts for place in part.places)

    @property
    def callers(self) -> tuple[str, ...]:
        """The methods of modules that call it."""
        return _ranked(caller for _, part in self.parts for caller in part.callers)

    @property
    def ranges(self) -> dict[str, ValueRange]:
        """The ranges of the values of tensors, by path."""
        found: dict[str, ValueRange] = {}
        for _, part in self.parts:
            for one in part.ranges:
                found[one.path] = merged(found.get(one.path), one)
        return found

    @property
    def missed(self) -> tuple[str, ...]:
        """The reasons for which calls were not recorded, each with its process."""
        return tuple(
            f"{text} ({process.name})" for process, part in self.parts for text in part.missed
        )

    @property
    def recording(self) -> Recording:
        """The calls of all processes: equal ones are one, with the sum of their numbers."""
        totals: dict[Call, list[float]] = {}
        for _, part in self.parts:
            for call in part.calls:
                key = replace(call, index=0, seconds=0.0, count=1)
                total = totals.setdefault(key, [0, 0.0])
                total[0] += call.count
                total[1] += call.count * call.seconds
        calls = tuple(
            replace(call, index=index, seconds=seconds / count, count=int(count))
            for index, (call, (count, seconds)) in enumerate(totals.items())
        )
        entry = self.entry
        missed = list(self.missed)
        if self.others:
            missed.append(f"{self.others} calls after very many different ones were only counted")
        return Recording(entry.model, entry.method, entry.signature, calls, tuple(missed))


@dataclass(frozen=True, slots=True)
class Captured:
    """The entry points of all processes; ``processes`` are in the order of their starts."""

    processes: tuple[ProcessFile, ...]

    @property
    def seen(self) -> tuple[Seen, ...]:
        """The entry points, those that took most time first."""
        groups: dict[tuple[str, str, str], list[tuple[ProcessFile, Part]]] = {}
        for process in self.processes:
            for part in process.parts:
                key = part.entry.model, part.entry.method, part.entry.code
                groups.setdefault(key, []).append((process, part))
        found = [Seen(parts[0][1].entry, tuple(parts)) for parts in groups.values()]
        return tuple(sorted(found, key=lambda one: (-one.seconds, one.name, one.entry.code)))

    def contradictions(self) -> tuple[str, ...]:
        """Returns the contradictions between the processes, as sentences."""
        found = []
        for word, values in (
            ("torch", {process.torch for process in self.processes}),
            ("Python", {process.python for process in self.processes}),
        ):
            if len(values) > 1:
                found.append(f"processes ran {word} {' and '.join(sorted(values))}")
        codes: dict[tuple[str, str], list[Seen]] = {}
        for seen in self.seen:
            codes.setdefault((seen.entry.model, seen.entry.method), []).append(seen)
        for (model, method), several in sorted(codes.items()):
            if len(several) > 1:
                where = "; ".join(sorted(f"{one.entry.code} in {_named(one)}" for one in several))
                found.append(f"{model}.{method} has {len(several)} codes: {where}")
        for seen in self.seen:
            found += _of_surroundings(seen)
        return tuple(found)


def _named(seen: Seen) -> str:
    names = [process.name for process, _ in seen.parts]
    return named_few(names, 3)


def _of_surroundings(seen: Seen) -> list[str]:
    """Processes that call the same model under other autocast: no program serves both."""
    casts: dict[str, list[str]] = {}
    for process, part in seen.parts:
        for call in part.calls:
            if call.surroundings is not None:
                text = " and ".join(map(str, call.surroundings.autocast)) or "no autocast"
                casts.setdefault(text, []).append(process.name)
    if len(casts) < 2:
        return []
    told = "; ".join(f"{text} in {names[0]}" for text, names in sorted(casts.items()))
    return [f"{seen.name} was called under different autocast: {told}"]


def _ranked(texts: Iterable[str]) -> tuple[str, ...]:
    counts = Counter(texts)
    return tuple(sorted(counts, key=lambda text: (-counts[text], len(text), text)))


def read_captured(*places: Place, ordered: bool = True) -> Captured:
    """Returns the recordings that the processes of some folders made, combined; a folder may be a URL.

    Without ``ordered``, the order of the calls is left out, which takes memory for each of them.

    :raises SavedFileError: ``file-missing``, ``nothing-captured``, ``file-foreign``,
        ``file-newer``, ``file-damaged``, ``different-files``
    """
    with files_of(places, FILES[:1]) as files:
        processes = [read_process(path, None if ordered else no_runs) for path in files]
    by_start = sorted(processes, key=lambda one: (one.started, one.host, one.pid, one.uid))
    return Captured(tuple(by_start))


def combine(places: Sequence[Place], into: Place) -> tuple[str, ...]:
    """Puts the files of all processes into one folder, and gives their names. The folder may be one
    of those; each may be the URL of one.

    :raises SavedFileError: ``file-missing``, ``nothing-captured``, ``different-files``,
        ``url-not-reached``
    """
    with files_of(places) as files, copied_here(into, FILES) as there:
        known = [*there.glob(FILES[0])] if there.is_dir() else []
        kept = _united([*files, *known])
        there.mkdir(parents=True, exist_ok=True)
        written = [file for path in kept for file in _put(path, there)]
        if is_url(into):
            put(written, str(into))
    return tuple(path.name for path in kept)


@contextlib.contextmanager
def files_of(places: Sequence[Place], patterns: Sequence[str] = FILES) -> Iterator[list[Path]]:
    """The file of each process of some folders, the longest one; those of a URL are copied here for
    the time of the block.

    :raises SavedFileError: ``file-missing``, ``nothing-captured``, ``different-files``,
        ``url-not-reached``
    """
    with contextlib.ExitStack() as stack:
        found: list[Path] = []
        for place in places:
            found += files_in(stack.enter_context(copied_here(place, patterns)), place)
        yield _united(found)


def _put(path: Path, folder: Path) -> list[Path]:
    """Puts the file of a process, with the values beside it, into a folder; gives the files that are
    new there.
    """
    target = folder / path.name
    if path.resolve() == target.resolve():
        return []
    waiting = target.with_suffix(".part")
    waiting.write_bytes(b"".join(line + b"\n" for line in whole_lines(read_file(path))))
    waiting.replace(target)
    values = list(path.parent.glob(f"{path.stem}.*.safetensors"))
    for file in values:
        shutil.copyfile(file, folder / file.name)
    return [target, *(folder / file.name for file in values)]


def _united(files: Sequence[Path]) -> list[Path]:
    """One file for each process, the longest; by the name of the file, which is unique. The contents
    of two are in memory at most.

    :raises SavedFileError: ``different-files`` for two of which neither is the beginning of the
        other
    """
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(path.name, []).append(path)
    return [_longest(groups[name]) for name in sorted(groups)]


def _longest(paths: Sequence[Path]) -> Path:
    """The longest of some files of one process.

    :raises SavedFileError: ``different-files``
    """
    longest, *others = paths
    if not others:
        return longest
    known = _whole(longest)
    for path in others:
        content = _whole(path)
        if not (content.startswith(known) or known.startswith(content)):
            raise SavedFileError(
                f"{longest} and {path} are of the same process and contradict each other.",
                slug="different-files",
                hint="One of them was changed: combine without it.",
            )
        if len(content) > len(known):
            longest, known = path, content
    return longest


def _whole(path: Path) -> bytes:
    """The whole lines of a file."""
    return b"".join(line + b"\n" for line in whole_lines(read_file(path)))

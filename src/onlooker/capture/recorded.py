"""Calls, wherever they were recorded: a file of JSON, the folder of `onlooker run`, or of a program.

The folder of a run may have several entry points. A caller names one of them, or gives a recording of
the method that is meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import SavedFileError, UsageError
from ..core.recording import Recording
from .combine import Captured, Seen, read_captured
from .entry_point import EntryPoint
from .reader import Part, ProcessFile, Run

__all__ = ["find_entry", "is_run", "label", "read_recording", "read_seen"]

#: the file with the calls in the folder of a program
_OF_PROGRAM = "recording.json"


def is_run(place: Path) -> bool:
    """True for a folder with files of processes."""
    return place.is_dir() and any(place.glob("*.jsonl"))


def read_recording(
    place: Path, name: str | None = None, *, like: Recording | None = None
) -> Recording:
    """The calls that a place holds.

    ``name`` is the entry point of a run, or the program of a folder with several. Without it, the
    only one is meant, or the only one with the method and the class of ``like``.

    :raises SavedFileError: ``file-missing``, ``nothing-captured``, ``file-foreign``, ``file-newer``,
        ``file-damaged``
    :raises UsageError: ``no-such-entry``
    """
    if is_run(place):
        return _find_like(read_captured(place, ordered=False), name, like).recording
    if not place.is_dir():
        return Recording.load(place)
    if (place / _OF_PROGRAM).is_file():
        return Recording.load(place / _OF_PROGRAM)
    inner = sorted(path.parent.name for path in place.glob(f"*/{_OF_PROGRAM}"))
    if not inner:
        raise SavedFileError(
            f"{place} holds no calls.",
            slug="nothing-captured",
            hint=(
                "Give a file of JSON that recording.save() wrote, the folder of `onlooker run`, or"
                " that of a program."
            ),
        )
    if name not in inner:
        raise _no_such_entry(name, len(inner), inner)
    return Recording.load(place / name / _OF_PROGRAM)


def read_seen(place: Path, names: Sequence[str]) -> list[Seen]:
    """The entry points with these names, in their order; without a name, the only one that the place
    holds.

    :raises SavedFileError: as :func:`read_recording`
    :raises UsageError: ``no-such-entry``
    """
    wanted: Sequence[str | None] = names or [None]
    if is_run(place):
        captured = read_captured(place, ordered=False)
        return [find_entry(captured, name) for name in wanted]
    return [_seen(read_recording(place, name)) for name in wanted]


def _seen(recording: Recording) -> Seen:
    """The entry point of a recording, as if one process had seen it."""
    entry = EntryPoint(recording.model, recording.method, "", signature=recording.signature)
    runs = tuple(Run(call.index, call.count, call.seconds, 0.0) for call in recording.calls)
    part = Part(entry, recording.calls, runs, missed=recording.missed)
    process = ProcessFile("", "", 0, 0, "", 0.0, "", "", "", parts=(part,))
    return Seen(entry, ((process, part),))


def find_entry(captured: Captured, name: str | None) -> Seen:
    """The entry point called ``name``: its class or ``Class.method``, or the end of its path in the
    program, as ``unet`` or ``vae.decode``. Without a name, the only one.

    :raises UsageError: ``no-such-entry``
    """
    known = [one for one in captured.seen if name is None or name in _names(one)]
    if len(known) == 1:
        return known[0]
    raise _no_such_entry(name, len(known), [label(one) for one in captured.seen])


def _find_like(captured: Captured, name: str | None, like: Recording | None) -> Seen:
    if name is None and like is not None:
        alike = [one for one in captured.seen if _is_alike(one.entry, like)]
        if len(alike) == 1:
            return alike[0]
    return find_entry(captured, name)


def _is_alike(entry: EntryPoint, recording: Recording) -> bool:
    """True for the method of a class of that name; its module is another one where it is run."""
    short = recording.model.rpartition(".")[2]
    return (entry.method, entry.model.rpartition(".")[2]) == (recording.method, short)


def _no_such_entry(name: str | None, found: int, known: Sequence[str]) -> UsageError:
    what = f"{found} entry points are called {name}" if found else f"There is no {name}"
    listed = ", ".join(known[:8]) or "none"
    return UsageError(
        f"{what}." if name is not None else f"There are {found} entry points.",
        slug="no-such-entry",
        hint=f"Give one with --entry; there are {listed}.",
    )


def label(seen: Seen) -> str:
    """The name of an entry point, with its path in the program."""
    return f"{seen.name} ({seen.places[0]})" if seen.places else seen.name


def _names(seen: Seen) -> set[str]:
    entry = seen.entry
    full = entry.model if entry.method == "forward" else f"{entry.model}.{entry.method}"
    found = {seen.name, full, f"{seen.name}@{entry.code}"}
    for place in seen.places:
        words = [*place.split("."), *([entry.method] if entry.method != "forward" else [])]
        found |= {".".join(words[start:]) for start in range(len(words))}
    return found

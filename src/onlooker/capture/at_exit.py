"""Programs that are made inside of the watched process, when it comes to its end."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path

from .combine import Captured, Seen, read_captured
from .export import observer_of
from .recorder import EntryRecorder
from .settings import Settings

__all__ = ["export_at_exit"]


def export_at_exit(recorders: Sequence[EntryRecorder], settings: Settings) -> None:
    """Exports the entry points that were asked for by name, else the one that took most time, into
    the folder ``programs``; what is said of it goes into ``programs/log.txt``.
    """
    folder = Path(settings.into)
    place = folder / "programs"
    place.mkdir(exist_ok=True)
    captured = read_captured(folder, ordered=False)
    by_key = {_key(recorder): recorder for recorder in recorders}
    with (place / "log.txt").open("w") as log:
        for seen in _wanted(captured, settings):
            entry = seen.entry
            recorder = by_key.get((entry.model, entry.method, entry.code))
            if recorder is None or not recorder.models:
                log.write(f"{seen.name}: its model is not in the first process\n")
                continue
            try:
                observer = observer_of(seen, recorder.models[0], [folder])
                program = observer.export(to=settings.at_exit[0], method_name=entry.method)
                tally = program.verify()
                program.save(place / seen.name.replace(".", "_"))
                log.write(f"{seen.name}: {'verified' if tally.verified else 'not verified'}\n")
            except Exception:
                log.write(f"{seen.name}:\n{traceback.format_exc()}\n")


def _key(recorder: EntryRecorder) -> tuple[str, str, str]:
    return recorder.entry.model, recorder.entry.method, recorder.entry.code


def _wanted(captured: Captured, settings: Settings) -> Sequence[Seen]:
    names = set(settings.entries)
    named = [one for one in captured.seen if {one.name, one.entry.model} & names]
    return named or captured.seen[:1]

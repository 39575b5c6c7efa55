"""Files of processes, written here without a process of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from onlooker.capture.entry_point import entry_point
from onlooker.capture.recorder import EntryRecorder
from onlooker.capture.writer import Writer
from onlooker.observing.wrapping.hook import replaced_method


def recorder_of(model: Any, method: str = "forward", *, most_specs: int = 4096, values: bool = False) -> EntryRecorder:
    entry, signature = entry_point(model, method)
    return EntryRecorder(entry, signature, most_specs=most_specs, keeps_values=values)


def written(into: Path, model: Any, use: Callable[[], object], method: str = "forward", **options: Any) -> Path:
    """The file of a process that uses a model."""
    recorder, writer = recorder_of(model, method, **options), Writer(str(into))
    bound = lambda original, args, kwargs: recorder.watch(  # noqa: E731
        lambda _, *a, **k: original(*a, **k), (model, *args), kwargs
    )
    with replaced_method(model, method, bound):
        use()
    writer.write([recorder])
    writer.end()
    writer.close()
    return writer.path

"""``onlooker push``: the contract of a program, or the specs of calls, beside the weights of a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from ...capture.recorded import read_recording
from ...disk.manifest import MANIFEST
from ...keep.publish import CONTRACT, HUB, push_program, push_recording, texts_of
from ..command import Answer, ExitCode, printing, to_type
from ..progress import progress

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Publishes, and names the texts that calls were given."""
    place, repository = options.place, options.repository
    with progress(stderr) as say:
        say(f"publishing in {repository}")
        if (place / MANIFEST).exists():
            published, what = push_program(place, repository), "the contract"
        else:
            published = push_recording(read_recording(place, options.entry), repository)
            what = "the recording"
    texts = texts_of(published)
    where = repository if repository.startswith(HUB) else str(Path(repository) / CONTRACT)
    lines = [f"{what} of {place} is in {where}: specs of {len(published.calls)} calls, no values"]
    lines += [f"calls were given the text {text!r}, which is published too" for text in texts]
    return Answer(
        ExitCode.VERIFIED,
        printing(lines),
        lambda: {"published": where, "calls": len(published.calls), "texts": texts},
        to_type("pull", repository, "--out", "contract"),
    )

"""``onlooker pull``: what was published beside the weights of a model, as a folder."""

from __future__ import annotations

import argparse
from typing import TextIO

from ...keep.publish import pull
from ..command import Answer, ExitCode, to_type
from ..progress import progress

__all__ = ["run"]


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Fetches, and writes it when it is whole."""
    out = str(options.out)
    with progress(stderr) as say:
        say(f"reading {options.repository}")
        is_contract = pull(options.repository, options.out)
    kind = "contract" if is_contract else "recording"
    following = ("check", out, "calls.json") if is_contract else ("show", f"{out}/recording.json")
    return Answer(
        ExitCode.VERIFIED,
        lambda console: console.file.writelines([f"the {kind} is in {out}\n"]),
        lambda: {"kind": kind, "out": out},
        to_type(*following),
    )

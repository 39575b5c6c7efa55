"""A program as one file, for those who run it without onlooker: which paths ask for that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..core.errors import UsageError
from ..disk.files import write_into
from ..trace.graph import Graph
from .target import Target
from .targets import TARGETS, target_of

__all__ = ["check_file_name", "is_file_name", "write_one"]


def is_file_name(path: Path) -> bool:
    """True for a path that ends as the file of a target does; a folder may have any other name.

    >>> is_file_name(Path("model.onnx")), is_file_name(Path("models/v1.5"))
    (True, False)
    """
    return any(path.name.endswith(target.suffix) for target in TARGETS)


def check_file_name(
    path: Path, target: Target, *, values: bool = False, beside: Sequence[Path] = ()
) -> None:
    """Passes for the path of a file of this target, where no folder stands, and where nothing is
    asked for that only a folder holds: ``values`` of calls, files ``beside`` the program.

    :raises UsageError: ``wrong-suffix``, ``not-a-file``, ``folder-only``
    """
    given = [name for name, asked in (("values=True", values), ("beside=", beside)) if asked]
    if given:
        raise UsageError(
            f"{path} is one file, which has graphs and weights, and {given[0]} is for a folder.",
            slug="folder-only",
            hint=f"Save a folder: program.save({str(path.with_suffix(''))!r}, ...).",
        )
    if not path.name.endswith(target.suffix):
        meant = next(one for one in TARGETS if path.name.endswith(one.suffix))
        raise UsageError(
            f"{path} is the name of a file of {meant.name}, and this is a program of {target.name}.",
            slug="wrong-suffix",
            hint=(
                f"Turn it into the other target, program.to({meant.name!r}).save(...), or give a name"
                f" that ends in {target.suffix}, or one without a suffix for a folder."
            ),
        )
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder.",
            slug="not-a-file",
            hint="Remove it, or give another name: a program whose name has a suffix is one file.",
        )


def write_one(graphs: Sequence[Graph], path: Path) -> list[Path]:
    """Writes the graphs of a program as one file, and gives the paths of all files that were written:
    its own first. A run that is killed, or a disk that is full, leaves what stood there before.

    :raises SavedFileError: ``not-written``
    :raises UnsupportedError: ``several-graphs``, ``no-single-file``
    :raises ExportError: ``not-mergeable``
    """
    target = target_of(graphs[0].target)
    with write_into(path.parent) as inside:
        names = target.write_file(graphs, inside / path.name)
    return [path.parent / name for name in names]

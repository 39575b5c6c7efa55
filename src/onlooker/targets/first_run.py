"""Opens fresh files of a runtime in a process of their own first.

Native code that meets a graph for the first time may end the whole process: ONNX Runtime did, in an
optimisation of float16 models. There is no error to catch then. A child process that dies instead is
an error of ours, and the file is kept for whoever wants to report it.
"""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..core.errors import ExportError

__all__ = ["opened_elsewhere"]

logger = logging.getLogger(__name__)
_MOST_SECONDS = 600
#: what a child gives that ran to its end, or that raised an error of Python
_ORDINARY = (0, 1, 2)


def opened_elsewhere(script: str, paths: Sequence[Path], runtime: str) -> None:
    """Runs a script with the paths as its arguments; passes unless the process dies.

    What the script raises says nothing: the files are opened here next, with an error of its own.

    :raises ExportError: ``runtime-died``
    """
    command = [sys.executable, "-I", "-c", script, *map(str, paths)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_MOST_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("no process to open files of %s in: %s", runtime, error)
        return
    if done.returncode in _ORDINARY:
        return
    kept = Path(tempfile.mkdtemp(prefix="onlooker-died-"))
    for file in {file for path in paths for file in path.parent.iterdir() if file.is_file()}:
        shutil.copy(file, kept)
    raise ExportError(
        f"{runtime} ended the process that opened {', '.join(path.name for path in paths)}"
        f" ({_cause(done.returncode)}).",
        slug="runtime-died",
        hint=(
            f"The files are kept in {kept}, for a report to the makers of {runtime}. Another"
            " precision, or a conversion without fusions, may do."
        ),
    )


def _cause(code: int) -> str:
    """What ended a process, in words.

    >>> _cause(-11)
    'signal 11, SIGSEGV'
    """
    if code >= 0:
        return f"exit code {code}"
    known = {one.value: one.name for one in signal.Signals}
    return f"signal {-code}, {known.get(-code, 'unknown')}"

"""The members of a target, which turns graphs of torch into its own files, and reads them back.

A new target is a class with the members of :class:`Target` in a folder of its own, and one line in
``targets.py``.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Protocol

from ..core.errors import UnsupportedError, UsageError
from ..core.support.progress import tell
from ..trace.graph import Graph

__all__ = [
    "REDUCED",
    "Calibration",
    "Target",
    "check_precision",
    "file_name",
    "files_of",
    "one_by_one",
    "only_graph",
    "read_again",
]

logger = logging.getLogger(__name__)
#: the keywords of a program in another precision than its model, which all targets take
REDUCED = ("precision", "calibration", "seed", "float_layers")
#: the inputs of calls, by the name of the graph that takes them
Calibration = Mapping[str, Sequence[Sequence[Any]]]


class Target(Protocol):
    """A format that a program can be exported to.

    All methods work on the graphs of a whole program at once, so that what they share, weights
    above all, is stored once and held once.
    """

    @property
    def name(self) -> str:
        """The name that users give: ``"onnx"``."""

    @property
    def suffix(self) -> str:
        """The suffix of the file of a graph: ``".onnx"``."""

    @property
    def options(self) -> tuple[str, ...]:
        """The keywords that :meth:`convert` takes."""

    @property
    def reading(self) -> tuple[str, ...]:
        """The keywords that :meth:`read` takes. Those that are options too say how graphs are run
        in this process, and are not saved.
        """

    @property
    def precisions(self) -> tuple[str, ...]:
        """The names of the precisions that :meth:`convert` can make, of
        :data:`onlooker.core.precision.PRECISIONS`.
        """

    @property
    def needs_bounds(self) -> bool:
        """True where every size needs a greatest one before a graph is converted."""

    @property
    def rolls_numbers(self) -> bool:
        """True where a loop whose steps read numbers from tensors may be one operator of a graph; else it is
        traced step by step for this target.
        """

    def require(self) -> None:
        """Passes when the target can be used here.

        :raises MissingPackageError: with what has to be installed
        """

    def convert(self, graphs: Sequence[Graph], **options: Any) -> list[Graph]:
        """Returns the same plans as graphs of this target; ``graphs`` are graphs of torch.

        ``precision`` is one of :attr:`precisions`. For one that is calibrated, ``calibration`` has
        the inputs of some calls of each graph, in the order of its plan. The options of a graph name the
        layers that stay in floats (``targets.integers.layers``).

        :raises ExportError: when the converter refuses, with its message
        :raises UsageError: for an option that cannot be meant
        """

    def write(self, graphs: Sequence[Graph], folder: FilePath) -> list[str]:
        """Writes graphs of this target and gives the names of all files in ``folder`` that belong
        to them.

        ``folder`` exists. The file of a graph is :func:`file_name`; further files hold what graphs
        share.
        """

    def write_file(self, graphs: Sequence[Graph], path: FilePath) -> list[str]:
        """Writes graphs of this target as one file, for those who run it without onlooker, and
        gives the names of all files in its folder that belong to it: weights may stand beside it.

        :raises UnsupportedError: ``several-graphs`` where one file cannot hold all graphs
        """

    def read(self, graphs: Sequence[Graph], folder: FilePath, **options: Any) -> list[Graph]:
        """The graphs with ``run`` and ``artifact``, read from what :meth:`write` wrote.

        ``graphs`` are as they were written, without ``run`` and ``artifact``. The caller has
        checked that the files are whole (by their digests) before this is called.
        """


_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def one_by_one(graphs: Sequence[Graph], what: str) -> Iterator[Graph]:
    """Yields the graphs, and tells listeners before each ``what`` is done with it."""
    for number, graph in enumerate(graphs):
        logger.info("%s: %s", what, graph.name)
        tell(what, number, len(graphs), graph.name)
        yield graph


def file_name(graph: Graph, target: Target) -> str:
    """The name of the file of a graph: ``main.onnx``.

    :raises UsageError: ``bad-graph-name`` for a name that could lead out of a folder
    """
    if not _SAFE.fullmatch(graph.name):
        raise UsageError(
            f"A graph called {graph.name!r} cannot be a file.",
            slug="bad-graph-name",
            hint="Names of graphs have letters, digits, _, - and dots.",
        )
    return f"{graph.name}{target.suffix}"


def files_of(graphs: Sequence[Graph], target: Target, files: Collection[str]) -> list[str]:
    """The file of each graph, among the ``files`` that :meth:`Target.write` named: its own, or the
    one that has all graphs.

    :raises UsageError: ``bad-graph-name``
    """
    own = [file_name(graph, target) for graph in graphs]
    whole = [file for file in files if file.endswith(target.suffix) and file not in own]
    is_whole = len(whole) == 1 and not set(own) & set(files)
    return [whole[0]] * len(own) if is_whole else own


def check_precision(target: Target, precision: Any) -> None:
    """Passes for a precision that the target has, and for None.

    :raises UsageError: ``bad-variant``, with those that it has
    """
    if precision is None or precision in target.precisions:
        return
    raise UsageError(
        f"The target {target.name!r} has no precision {precision!r}.",
        slug="bad-variant",
        hint=f"It has {', '.join(target.precisions)}.",
    )


def only_graph(graphs: Sequence[Graph], path: FilePath) -> Graph:
    """The graph of a program that has one.

    :raises UnsupportedError: ``several-graphs``
    """
    if len(graphs) == 1:
        return graphs[0]
    names = ", ".join(graph.name for graph in graphs)
    raise UnsupportedError(
        f"The program has {len(graphs)} graphs ({names}), and {path.name} can hold one.",
        slug="several-graphs",
        hint=(
            "Save a folder, which has a file for each: a path without a suffix. Or export fewer"
            " sizes, so that one graph serves them: ranges= or static=."
        ),
    )


def read_again(target: Target, graphs: Sequence[Graph], **options: Any) -> list[Graph]:
    """Graphs of a target, run in another way: written into a folder for a moment, and read with
    these options.
    """
    with tempfile.TemporaryDirectory(prefix="onlooker-", ignore_cleanup_errors=True) as folder:
        target.write(graphs, FilePath(folder))
        return target.read(graphs, FilePath(folder), **options)

"""How often torch.compile compiles a method for the calls that were watched, and how often with
marks: counted, as a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import ObservationError
from ..core.plan import Plan
from ..core.recording import Recording
from ..lab.runner import ModelRunner
from ..observing.store import Sample
from .marks import Mark, Marking, marks_of
from .replay import Count, Replayer, replays_of

__all__ = ["AS_IT_IS", "DYNAMIC", "Recompiles", "find_recompiles"]

#: the ways to compile that are counted beside the marks
AS_IT_IS, DYNAMIC = "torch.compile(model)", "torch.compile(model, dynamic=True)"
#: reasons that the short text lists of each way
_MOST_REASONS = 6


@dataclass(frozen=True, slots=True)
class Recompiles:
    """The counts of one watched method.

    ``counts`` has each way to compile with what it compiled for the ``calls`` that were run again.
    ``marks`` are the axes to mark, and ``kind`` how: None where no marks compile less.

    >>> import torch, onlooker
    >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
    >>> with observer(model), torch.no_grad():
    ...     _ = [model(torch.ones(size, 4)) for size in (2, 3, 1)]
    >>> found = observer.recompiles()
    >>> found.before.graphs, found.after.graphs
    (3, 1)
    """

    entry: str
    calls: int
    counts: tuple[tuple[str, Count], ...]
    marks: tuple[Mark, ...] = ()
    kind: Marking | None = None

    @property
    def before(self) -> Count:
        """What the calls compile as the model is."""
        return dict(self.counts)[AS_IT_IS]

    @property
    def after(self) -> Count:
        """What the calls compile with the marks, or as the model is where no marks help."""
        return self.before if self.kind is None else dict(self.counts)[self.kind.value]

    def text(self) -> str:
        """The table: each way to compile, the number of graphs, and why functions were compiled
        again, the most frequent reason first.
        """
        lines = [f"{self.entry}: {self.calls} calls were run again"]
        width = max(len(way) for way, _ in self.counts)
        for way, count in self.counts:
            chosen = " (recommended)" if self.kind is not None and way == self.kind.value else ""
            graphs = "1 graph" if count.graphs == 1 else f"{count.graphs} graphs"
            lines.append(f"  {way.ljust(width)}  {graphs}{chosen}")
            lines += [f"    {line}" for line in _reasons(count)]
        if self.kind is None:
            lines.append("  no marks compile less")
        return "\n".join(lines) + "\n"

    __str__ = text

    def data(self) -> dict[str, object]:
        """The same for JSON."""
        ways = {
            way: {
                "graphs": count.graphs,
                "failure": count.failure,
                "compiled_again": [
                    {
                        "call": one.call,
                        "function": one.function,
                        "kind": one.reason.kind,
                        "argument": one.reason.place,
                        "dim": one.reason.dim,
                        "line": one.reason.line,
                        "guard": one.reason.text,
                    }
                    for one in count.again
                ],
            }
            for way, count in self.counts
        }
        marks = [
            {"argument": mark.path.code(), "dim": mark.dim, "shape_id": mark.shape_id}
            for mark in self.marks
        ]
        kind = None if self.kind is None else self.kind.value
        return {
            "entry": self.entry,
            "calls": self.calls,
            "ways": ways,
            "kind": kind,
            "marks": marks,
        }


def _reasons(count: Count) -> list[str]:
    """Each reason with its number of compilations, and the failure."""
    numbers = Counter(str(one.reason) for one in count.again)
    lines = [f"{number} x {reason}" for reason, number in numbers.most_common(_MOST_REASONS)]
    if len(numbers) > _MOST_REASONS:
        lines.append(f"{len(numbers) - _MOST_REASONS} further reasons")
    return lines + ([f"failed: {count.failure}"] if count.failure else [])


def find_recompiles(
    recording: Recording,
    samples: Sequence[Sample],
    plans: Sequence[Plan],
    runner: ModelRunner,
    most_calls: int,
) -> Recompiles:
    """Counts what the recorded calls compile: as the model is, with ``dynamic=True``, and with each
    kind of marks.

    :raises ObservationError: ``no-values`` where no call can be run again
    """
    replays = replays_of(recording, samples, plans, most_calls)
    if not replays:
        raise ObservationError(
            f"No call of {recording.model}.{recording.method} was kept with its values.",
            slug="no-values",
            hint="Raise store_n_calls, or max_bytes, so that calls are kept.",
        )
    replayer = Replayer(runner, replays)
    marks = marks_of(plans)
    before = replayer.count()
    counts = [(AS_IT_IS, before), (DYNAMIC, replayer.count(dynamic=True))]
    marked = [(kind, replayer.count(marks=marks, kind=kind)) for kind in Marking if marks]
    counts += [(kind.value, count) for kind, count in marked]
    return Recompiles(
        f"{recording.model}.{recording.method}",
        len(replays),
        tuple(counts),
        marks,
        _best_kind(before, marked),
    )


def _best_kind(before: Count, marked: Sequence[tuple[Marking, Count]]) -> Marking | None:
    """The kind of marks that compiles least, where all calls ran and gave equal results; None where
    none compiles less than the model as it is.
    """
    whole = [(count.graphs, kind) for kind, count in marked if not count.failure]
    least = min(whole, key=lambda row: row[0], default=None)
    if least is None or least[0] >= before.graphs:
        return None
    return least[1]

"""Sizes of calls as metrics of OpenTelemetry: histograms of the axes of each entry point, and no values.

The program that is watched sets up OpenTelemetry as it does for its own metrics; where it does not, the
metrics of its API go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core.spec import Spec, TensorSpec
from .recorder import EntryRecorder, News

__all__ = ["SizeMetrics"]

#: axes of an entry point with a histogram: the layers of a cache have the same sizes, hundreds of times
_MOST_AXES = 64
_BOUNDS = [0.0, *(float(2**power) for power in range(21))]


class SizeMetrics:
    """Counts calls by ``onlooker.calls``, and the sizes of their tensors by ``onlooker.size``, whose
    attributes are the entry point and the axis.
    """

    def __init__(self) -> None:
        """Makes the instruments.

        :raises ImportError: without the API of OpenTelemetry
        """
        from opentelemetry.metrics import get_meter

        meter = get_meter("onlooker")
        self._calls = meter.create_counter("onlooker.calls", unit="{call}")
        self._sizes = meter.create_histogram(
            "onlooker.size",
            description="the size of an axis of a tensor among the arguments, once a call",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )
        self._known: dict[tuple[int, int], list[tuple[dict[str, str], int]]] = {}

    def note(self, number: int, recorder: EntryRecorder, news: News) -> None:
        """Takes the calls that a recorder has seen since the last time; ``number`` is its own among
        those of the process.
        """
        entry = {"entry": recorder.entry.name}
        if news.others[0]:
            self._calls.add(news.others[0], entry)
        for row, count in _counted(news):
            self._calls.add(count, entry)
            known = self._known.get((number, row))
            if known is None:
                known = self._known[number, row] = _sizes_of(recorder, row)
            for attributes, size in known:
                for _ in range(count):  # an instrument takes one value at a time
                    self._sizes.record(size, attributes)


def _counted(news: News) -> Iterator[tuple[int, int]]:
    """The rows of calls, and how many there were of each."""
    yield from ((row, count) for row, count, _ in news.runs)
    yield from ((row, count) for row, (count, _) in news.counts.items())


def _shape_of(spec: Spec) -> tuple[int, ...]:
    """The shape of a tensor; nothing of an int, which is a value."""
    return spec.shape if isinstance(spec, TensorSpec) else ()


def _sizes_of(recorder: EntryRecorder, row: int) -> list[tuple[dict[str, str], int]]:
    """The sizes of the tensors of one different call, each with the attributes of its axis."""
    ledger = recorder.ledger
    form, *numbers = ledger.entries[row]
    structure, _, _, n_inputs, pattern = ledger.forms[form]
    paths = ledger.inputs.structures[structure].paths()
    places = [numbers[place] for place in pattern[:n_inputs]]
    specs = ledger.numbers.specs(places)
    found = [
        ({"entry": recorder.entry.name, "axis": f"{path.code()}.shape[{dim}]"}, size)
        for path, place in zip(paths, places, strict=True)
        for dim, size in enumerate(_shape_of(specs[place]))
    ]
    return found[:_MOST_AXES]

"""Does the model read an object that cannot be opened, or a list of texts that changes, such as the names of files? If
not, any other serves, in any number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..core.call import Join
from ..core.path import Path
from ..lab.lab import Lab
from ..lab.rerun import difference
from ..observing.store import Sample
from ..pytrees.joins import (
    join_tensors,
    joined,
    joined_results,
    lists_of_texts,
    unknown_objects,
)
from ..pytrees.unread import HandedBack, Unread
from .family import FormFamily

__all__ = ["UnreadObjects"]

#: so many calls are run again for one object
_MOST_CALLS = 3


class UnreadObjects(FormFamily):
    """The objects, lists of nothing else, and lists of texts, that the model does not read in the kept calls.

    Each call is run again with an object in their place that notices when it is read, and must give
    what it gave. The same object stands there in all that follows: a path of the model that reads it
    raises, and is in no graph.
    """

    question = "which objects does the model not read?"
    all_tested = "every object was tested for being read"

    def joins(self) -> Iterator[Join]:
        """The objects for which any other serves."""
        seen: dict[Path, list[Sample]] = {}
        for sample in self._samples:
            for path in unknown_objects(sample.inputs):
                seen.setdefault(path, []).append(sample)
        for path, values in _texts_of(self._samples).items():
            if len(set(values.values())) > 1:
                seen[path] = [one for one in self._samples if one.call.index in values]
        for path, its in seen.items():
            join = Join(path, None)
            chosen = its if len(its) <= _MOST_CALLS else [its[0], its[len(its) // 2], its[-1]]
            results = [_results_unread(join, sample, self._lab) for sample in chosen]
            holds = None not in results and len(set(results)) == 1
            if self._lab.record_claim(str(join), holds, argument=path.root):
                yield replace(join, results=results[0] or ())


def _texts_of(samples: Iterable[Sample]) -> dict[Path, dict[int, tuple[str, ...]]]:
    """The lists of texts by their place, and by the numbers of the calls that had them."""
    found: dict[Path, dict[int, tuple[str, ...]]] = {}
    for sample in samples:
        for path, texts in lists_of_texts(sample.inputs):
            found.setdefault(path, {})[sample.call.index] = texts
    return found


def _results_unread(join: Join, sample: Sample, lab: Lab) -> tuple[Path, ...] | None:
    """Returns the places of the result that have the objects as they came; None where the model
    reads them.
    """
    inputs = joined(sample.inputs, (join,), join_tensors)
    before = Unread.n_readings
    again = lab.try_run(replace(sample, inputs=inputs).arguments(), why=str(join))
    if again is None or Unread.n_readings != before:
        return None
    results = tuple(path for path, leaf in again.items() if type(leaf) is HandedBack)
    given = [id(leaf) for path, leaf in sample.inputs.items() if _is_below(path, join.path)]
    for place in results:
        got = [id(leaf) for path, leaf in sample.outputs.items() if _is_below(path, place)]
        if got != given:
            return None
    expected = joined_results(sample.outputs, (replace(join, results=results),))
    return None if difference(expected, again) else results


def _is_below(path: Path, top: Path) -> bool:
    return path.entries[: len(top.entries)] == top.entries

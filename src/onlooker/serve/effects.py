"""The arguments that a loaded program knows to stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..lab.effects import Effect
from ..observing.store import Sample
from .dispatch import Dispatcher

__all__ = ["untouched_arguments"]


def untouched_arguments(
    samples: Sequence[Sample],
    dispatcher: Dispatcher,
    effects: Mapping[int, Mapping[str, Effect]],
) -> dict[str, tuple[str, ...]]:
    """By the name of a graph, the arguments with ``effects`` that the method neither changes nor
    returns in any kept call that this graph takes; the effects are those of the calls, by their
    numbers.

    A program that was loaded has no model to ask: it knows this of the calls of its graphs.
    """
    found: dict[str, tuple[str, ...]] = {}
    for sample in samples:
        known = effects.get(sample.call.index)
        graph = None if known is None else dispatcher.taker(dict(sample.arguments()))
        if known is None or graph is None:
            continue
        left = {name for name, each in known.items() if not each.changed and each.place is None}
        found[graph.name] = tuple(sorted(left.intersection(found.get(graph.name, left))))
    return found

"""Tests of the sizes at which something else than sizes is looked at."""

from __future__ import annotations

from torch import nn, ones

from onlooker import InputObserver
from onlooker.core.verdict import Focus
from onlooker.verify.trials import unseen_trials


def test_other_values_are_tried_at_the_smallest_sizes_of_calls() -> None:
    """The smallest fresh size is beyond twice what was seen, where the call and the trace had the others."""
    model, observer = nn.Linear(4, 4).eval(), InputObserver()
    with observer(model):
        model(ones(2, 4))
    program = observer.export()
    graphs, samples = program.graphs, program._program.samples
    trials = [trial for graph in graphs for trial in unseen_trials(graph, samples)]
    sizes = {focus: {dict(t.sizes)["batch"] for t in trials if t.focus is focus} for focus in Focus}
    assert max(sizes[Focus.SIZES]) > 16
    for focus in (Focus.VALUES, Focus.LAYOUT, Focus.EXTREME):
        assert max(sizes[focus], default=17) <= 3, focus

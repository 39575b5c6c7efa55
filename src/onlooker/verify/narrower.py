"""Calls that a program lost when it was converted: the program that it was made of serves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch

from ..core.call import Serve
from ..core.drawing.alike import first_few
from ..core.errors import OnlookerWarning, RejectedCallError, warn
from ..core.structure import Result
from ..core.verdict import Check, Focus
from ..observing.samples import Sample
from ..pytrees.comparisons.agree import agreement_of_trees
from ..pytrees.open import copy_tensors, open_tree
from ..trace.graph import Graph
from .effort import Effort
from .trials import Trial, observed_trials, unseen_trials
from .verify import check_trial

__all__ = ["few_trials", "lost_checks", "noted_losses", "noted_refusals", "runs"]

#: for each graph, how many sizes are tried that neither calls nor export had
_UNSEEN = 4
#: how many of the lost calls a note names, and how much it quotes of the reason
_NAMED, _QUOTED = 3, 300


def few_trials(
    graphs: Sequence[Graph], samples: Sequence[Sample], kept: Sequence[Sample]
) -> Iterator[Trial]:
    """The observed calls, and some other sizes that each graph promises to take.

    ``kept`` are the ``samples`` as the graphs see them.
    """
    by_call = {number: graph.plan for graph in graphs for number in graph.plan.calls}
    for trial, sample in zip(observed_trials(samples), samples, strict=True):
        yield replace(trial, plan=by_call.get(sample.call.index))
    for graph in graphs:
        unseen = (trial for trial in unseen_trials(graph, kept) if trial.focus is Focus.SIZES)
        yield from islice((trial for trial in unseen if trial.is_promised), _UNSEEN)


def lost_checks(
    serve: Serve, before: Serve, trials: Iterable[Trial], effort: Effort, *, atol: float
) -> dict[str, list[Check]]:
    """By the name of the graph, a check of ``serve`` for each trial that the program ``before``
    serves: lost are those that did not pass.

    A program ``before`` that gives two results for one trial draws numbers: no trial of that graph tells
    anything.
    """
    found: dict[str, list[Check]] = {}
    drawing: set[str] = set()
    for trial in trials:
        name = trial.plan.name if trial.plan is not None else ""
        if name in drawing or not effort.wants(trial):
            continue
        try:
            expected = _result(before, trial)
            effort.note(trial)
            (check,) = check_trial(serve, trial, expected, atol).checks
            is_drawn = (
                not check.passed
                and not agreement_of_trees(expected, _result(before, trial), atol=atol).holds
            )
        except Exception:  # the program before refuses it too, or no memory is left for both
            continue
        found.setdefault(name, []).append(check)
        drawing |= {name} if is_drawn else set()
    return {name: checks for name, checks in found.items() if name not in drawing}


def noted_losses(
    graphs: Sequence[Graph], checks: dict[str, list[Check]], former: str
) -> list[Graph]:
    """The graphs with a note of what each lost; a warning, ``serves-less``, has the same notes.

    ``former`` is the target of the program that they were converted from.
    """
    target = graphs[0].target
    notes = {name: _note(own, former, target) for name, own in checks.items()}
    notes = {name: note for name, note in notes.items() if note}
    if not notes:
        return list(graphs)
    told = "; ".join(f"{name}: {note}" if name else note for name, note in notes.items())
    warn(
        OnlookerWarning(
            f"The program of {target} serves less than the program of {former}. {told}",
            slug="serves-less",
            hint=f"Keep the program of {former} for these calls; program.verify() tries more.",
        )
    )
    return [
        replace(graph, notes=(*graph.notes, notes[graph.plan.name]))
        if graph.plan.name in notes
        else graph
        for graph in graphs
    ]


def noted_refusals(graphs: Sequence[Graph], left_out: Sequence[str]) -> list[Graph]:
    """The graphs of a program, the first with a note for each graph that was left out since it
    cannot be converted; a warning, ``serves-less``, has the same notes.
    """
    if not left_out:
        return list(graphs)
    notes = [f"left out, so that calls of its sizes are refused: {text}" for text in left_out]
    target = graphs[0].target
    warn(
        OnlookerWarning(
            f"The program of {target} serves all watched calls, and less than that of torch."
            f" {'; '.join(notes)}",
            slug="serves-less",
            hint="Write this line of the model with other operators, or keep the program of torch.",
        )
    )
    first, *others = graphs
    return [replace(first, notes=(*first.notes, *notes)), *others]


def runs(serve: Serve, trial: Trial) -> bool:
    """True for a program that takes a call."""
    try:
        _result(serve, trial)
    except RejectedCallError:
        return False
    return True


def _result(serve: Serve, trial: Trial) -> Result:
    """The result for copies of the arguments, which a program may change in place."""
    with torch.no_grad():
        return open_tree(serve(copy_tensors(trial.arguments)))


def _note(checks: Sequence[Check], former: str, target: str) -> str:
    """Returns a note on the calls that the program before serves and this one does not; empty where
    there are none.
    """
    lost = [check for check in checks if not check.passed]
    if not lost:
        return ""
    named = first_few([check.label for check in lost], _NAMED)
    reason = " ".join((lost[0].note or lost[0].outcome).split())
    quoted = reason if len(reason) <= _QUOTED else f"{reason[:_QUOTED]} ..."
    return (
        f"{len(lost)} of {len(checks)} calls that {former} serves fail in {target}"
        f" ({', '.join(named)}); the first: {quoted}"
    )

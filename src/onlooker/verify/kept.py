"""Checks of a model that leaves something behind in Python: one call after the other, nothing put back.

Every other trial begins with the model as it stood before it was watched. What the calls of a model
write and its graphs do not read may still matter to a later call, so the watched calls are made twice
in a row, as a user makes them. A call of sizes that the program refuses, since it leaves behind what no
watched call does, is made before a watched one: where that gives another result then, the sizes that
the program serves are not the whole story.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from ..core.call import Arguments, Serve
from ..core.structure import Result
from ..core.verdict import Check, Focus
from ..lab.kept import MOST_SIDES, Kept
from ..lab.runner import ModelRunner, cuda_devices, opened
from ..observing.samples import Sample
from ..pytrees.comparisons.agree import Agreement, agreement_of_trees
from ..pytrees.open import copy_tensors
from ..serve.state import ProgramState
from .sequences import sequence_checks
from .trials import Trial

__all__ = ["further_checks", "kept_checks"]

#: unseen trials of a graph that are made after the watched calls
_MOST_OF_A_GRAPH = 6


def further_checks(
    serve: Serve,
    subject: ModelRunner,
    samples: Sequence[Sample],
    state: ProgramState | None,
    kept: Kept | None,
    *,
    unseen: Callable[[], Iterable[Trial]],
    atol: float,
) -> tuple[Check, ...]:
    """The checks of calls that follow each other: with the ``state`` that a program keeps, and with
    what calls of the watched model leave behind.
    """
    found: tuple[Check, ...] = ()
    if state is not None:
        found += sequence_checks(serve, subject, samples, state.name, state.initial, atol=atol)
    if kept is not None:
        found += kept_checks(serve, subject, samples, kept, unseen=unseen, atol=atol)
    return found


def kept_checks(
    serve: Serve,
    subject: ModelRunner,
    samples: Sequence[Sample],
    kept: Kept,
    *,
    unseen: Callable[[], Iterable[Trial]],
    atol: float,
) -> tuple[Check, ...]:
    """The checks of calls that follow each other; none for a model that leaves nothing behind.

    Some of the trials of each graph that ``unseen`` gives are made twice after the watched calls as well:
    what these have left behind may decide at other sizes alone.
    """
    found: list[Check] = []
    calls = [sample.arguments() for sample in (*samples, *samples)]
    if kept.changes and calls:
        found += _followed(serve, subject, [], calls, "after the watched calls", atol)
        for trial in _some_of_each_graph(unseen()):
            before = calls[: len(samples)]
            label = f"{trial.label}, after the watched calls"
            twice = [trial.arguments, trial.arguments]
            found += _followed(serve, subject, before, twice, label, atol)
    if kept.difference:
        found.append(_failed(kept.difference))
    for side in kept.sides[:MOST_SIDES] if calls else ():
        found += _followed(serve, subject, [side.arguments], calls[:1], f"after {side}", atol)
    return tuple(found)


def _some_of_each_graph(trials: Iterable[Trial]) -> Iterator[Trial]:
    """The first trials of unseen sizes of each graph."""
    made: Counter[str] = Counter()
    for trial in trials:
        name = trial.plan.name if trial.plan is not None else ""
        if trial.kind == "unseen" and not trial.problem and made[name] < _MOST_OF_A_GRAPH:
            made[name] += 1
            yield trial


def _followed(
    serve: Serve,
    subject: ModelRunner,
    before: Sequence[Arguments],
    calls: Sequence[Arguments],
    label: str,
    atol: float,
) -> Iterator[Check]:
    """One check: the results of some calls in a row, after others, for the model and the program."""
    try:
        with subject.untouched():
            for arguments in before:
                subject(copy_tensors(arguments))
            expected = [_seeded(subject, copy_tensors(arguments)) for arguments in calls]
        got = [_seeded(serve, copy_tensors(arguments)) for arguments in calls]
    except Exception:  # refused calls are the matter of other trials
        return
    worst = Agreement()
    for one, other in zip(expected, got, strict=True):
        found = agreement_of_trees(one, other, atol=atol)
        if not found.holds:
            worst = Agreement(found.difference, f"the model keeps state: {found.note}")
            break
    yield Trial("unseen", label, {}, focus=Focus.SEQUENCE).compared(worst)


def _failed(difference: str) -> Check:
    """Returns the failed check of a call that depends on the calls before it, which the export of the
    program found.
    """
    differs = Agreement(float("inf"), f"the model keeps state: {difference}")
    label = "a call after another one, while the graphs were made"
    return Trial("unseen", label, {}, focus=Focus.SEQUENCE).compared(differs)


def _seeded(run: Serve, arguments: Arguments) -> Result:
    with torch.random.fork_rng(devices=cuda_devices()), torch.no_grad():
        torch.manual_seed(0)
        return opened(run(arguments))

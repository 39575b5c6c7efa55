"""Runs trials on a program and on the model, and sums up what agrees."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..core.call import Arguments, Serve
from ..core.distance import OutputDistance
from ..core.errors import RejectedCallError
from ..core.structure import Result, Tree
from ..core.support.progress import tell
from ..core.verdict import Check, Focus, Outcome, Tally
from ..infer.sizes import size_label
from ..lab.kept import Kept, Side
from ..lab.memory import is_out_of_memory
from ..lab.runner import ModelRunner, cuda_devices
from ..materialise.other_values import as_parts
from ..pytrees.comparisons.agree import (
    Agreement,
    agreement_of_trees,
    score_agreement,
    sufficient_atol,
)
from ..pytrees.comparisons.digest import digest_of
from ..pytrees.open import copy_tensors, open_arguments
from ..pytrees.unread import open_result
from .distances import Ruler, added_up, distance_checks
from .effects import Effects
from .effort import Effort
from .progress import Progress, TrialResult
from .spread import Elsewhere, trying
from .ties import lower_index_first
from .trials import Trial

__all__ = ["check_trial", "run_trials", "try_alone"]

logger = logging.getLogger(__name__)


def run_trials(
    serve: Serve,
    subject: ModelRunner,
    trials: Iterable[Trial],
    *,
    atol: float = 1e-5,
    graphs: Sequence[str] = (),
    again: bool = True,
    effort: Effort | None = None,
    progress: Progress | None = None,
    agreeing: float | None = None,
    total: int | None = None,
    kept: Kept | None = None,
    elsewhere: Elsewhere | None = None,
    ruler: Ruler | None = None,
) -> tuple[Tally, tuple[str, ...]]:
    """The tally of all trials that are valid, and the labels of those that the model itself
    refuses.

    The smallest observed trial is run once more after all others, if it shall be ``again``. Each
    result is looked at again when the call after it has been made, since a program could give the
    same memory twice. Of several ``graphs``, each needs an unseen trial that is valid. ``effort``
    leaves out trials that would be too much work. Trials that ``progress`` has are not made again,
    and those that are made are added to it, one by one. Where a least share of ``agreeing`` scores
    is given, scores are measured, and a check fails where fewer agree. ``total`` is the number of
    trials, where somebody is told of them. Floats are measured by the ``ruler``, and judged
    by their distances, where there is one. Refused calls that leave behind what no watched call
    does are added to ``kept``. What other processes found stands in the place of a trial, by its
    number ``elsewhere``.
    """
    progress = Progress() if progress is None else progress
    effects = Effects(subject, atol)
    runs = _Runs(serve, atol, effects, measured=agreeing is not None, ruler=ruler)
    met: set[str] = set()
    n_left_out = 0
    not_tried: list[Check] = []
    for number, trial in enumerate(trials):
        tell("verifying", number, total, trial.label)
        met |= {trial.plan.name} if trial.plan is not None else set()
        if number in progress.tried:
            continue
        tried, expected, missing = None, None, "the time has ended: raise seconds="
        found = None if elsewhere is None else elsewhere.get(number)
        is_known = found is not None and found.is_of(trial)
        is_late = effort is not None and effort.is_over()
        if found is not None and is_known and (is_late or effort is None or effort.wants(trial)):
            tried = found.tried
        elif trial.problem or effort is None or effort.wants(trial):
            with trying() if elsewhere is not None else contextlib.nullcontext():
                tried, expected = _tried(runs, effects, trial, effort)
            missing = "there is not enough memory"
        if tried is None and trial.is_asked:
            not_tried.append(trial.failed(f"these sizes were not tried: {missing}"))
            continue
        if tried is None:
            n_left_out += 1
            continue
        progress.tried[number] = tried
        if expected is None and (not is_known or tried.unlawful):
            continue
        if effort is not None:
            effort.note(trial, refused=bool(tried.refused))
        if kept is not None and tried.refused:
            _keep_side(trial, subject, kept)
        if again and not tried.refused:
            progress.propose(number, trial, expected)
    if total is not None:
        tell("verifying", total, total)
    if elsewhere is not None:
        elsewhere.finish()
    _repeat_smallest(runs, effects, progress)
    checks = [*progress.checks, *not_tried, *_without_unseen(graphs, progress, met)]
    if agreeing is not None:
        checks += _few_agreeing(Tally(tuple(checks)), agreeing)
    tally = Tally(tuple(checks), progress.refused, n_left_out, drawn=progress.drawn)
    if ruler is not None:
        distances = added_up(progress.distances)
        checks += distance_checks(distances, ruler.precision)
        tally = replace(tally, checks=tuple(checks), precision=ruler.precision, distances=distances)
    return tally, progress.unlawful


def _keep_side(trial: Trial, subject: ModelRunner, kept: Kept) -> None:
    """Keeps a call that the program refuses, where the model leaves behind what no watched call does."""
    left = subject.keeper.left - kept.changes.keys()
    if left:
        kept.add_side(Side(trial.arguments, tuple(sorted(left))))


def _repeat_smallest(runs: _Runs, effects: Effects, progress: Progress) -> None:
    """Makes the smallest trial once more; before it the trial itself, where another process has made
    that.
    """
    if progress.smallest is None or progress.repeated:
        return
    _, number, trial, expected = progress.smallest
    if expected is None:
        tried, expected = _tried(runs, effects, trial, None)
        progress.tried[number] = tried or progress.tried[number]
    if expected is not None:
        progress.repeated = runs.check(_repeated(trial, "again"), expected)


def try_alone(
    serve: Serve,
    subject: ModelRunner,
    trials: Iterable[Trial],
    *,
    atol: float,
    measured: bool = False,
    ruler: Ruler | None = None,
) -> list[TrialResult | None]:
    """The outcome of each trial, for a tally that is made elsewhere; None where memory was missing."""
    effects = Effects(subject, atol)
    runs = _Runs(serve, atol, effects, measured=measured, ruler=ruler)
    return [_tried(runs, effects, trial, None)[0] for trial in trials]


def _few_agreeing(tally: Tally, wanted: float) -> Iterator[Check]:
    """A failed check for the watched calls, and for the unseen ones, where too few scores agree."""
    for kind in ("observed", "unseen"):
        scores = tally.scores(kind)
        if scores.share < wanted:
            note = (
                f"the largest score stands at another place in {scores.count - scores.agreeing} of"
                f" {scores.count} rows: {scores.share:.4f} agree, and agreement={wanted:g} is asked"
            )
            yield Check(
                kind, "tokens", Outcome.DIFFERENT, (), scores.difference, note, tolerance=0.0
            )


def _tried(
    runs: _Runs, effects: Effects, trial: Trial, effort: Effort | None
) -> tuple[TrialResult | None, Result | None]:
    """Returns the result of a trial, None where memory was missing; and the right result, None
    where the model refuses the trial.

    A program that gives what the model gave while it was watched is right there: the model is run
    only where it does not, since the weights may be others now.
    """
    if trial.problem:
        return TrialResult((trial.failed(trial.problem),)), None
    counted = effort.counted(trial) if effort is not None else contextlib.nullcontext()
    try:
        with counted:
            expected = (
                effects.result_of_model(trial.arguments) if trial.seen is None else trial.seen
            )
    except Exception as error:
        if is_out_of_memory(error) and trial.kind != "observed":
            return None, None
        cause = f"{type(error).__name__}: {error}"
        logger.debug("%s is no valid call of the model: %s", trial.label, cause)
        if trial.kind != "observed" and not trial.is_asked:
            return TrialResult(unlawful=trial.label), None
        what = "these sizes" if trial.is_asked else "the observed call when it is replayed"
        return TrialResult((trial.failed(f"the model itself refuses {what}: {cause}"),)), None
    now = partial(effects.result_of_model, trial.arguments) if trial.seen is not None else None
    try:
        found = runs.check(trial, expected, now=now)
    except _OutOfMemoryError:
        return None, None
    if runs.is_drawn:
        return TrialResult(tuple(found[:-1]), drawn=trial.label), None
    if not trial.is_promised and found[-1].outcome is Outcome.REJECTED:
        return TrialResult(tuple(found[:-1]), refused=size_label(dict(trial.sizes))), expected
    name = trial.plan.name if trial.plan is not None else ""
    distances = runs.distances(trial) if found[-1].passed else ()
    return TrialResult(tuple(found), graph=name, distances=distances), runs.right


def _without_unseen(graphs: Sequence[str], progress: Progress, met: set[str]) -> Iterator[Check]:
    """A failed check for each of several graphs that no valid trial has."""
    for name in graphs if len(graphs) > 1 else ():
        if name not in progress.graphs:
            refusal = "is valid for the model" if name in met else "was tried: raise trials="
            note = f"no unseen call of this graph {refusal}"
            yield Check("unseen", name, Outcome.FAILED, (), float("inf"), note, Focus.SIZES)


def check_trial(
    serve: Serve, trial: Trial, expected: Result, atol: float, ruler: Ruler | None = None
) -> TrialResult:
    """One comparison of a program with the result of the model."""
    runs = _Runs(serve, atol, ruler=ruler)
    check = runs.check(trial, expected)[0]
    return TrialResult((check,), distances=runs.distances(trial) if check.passed else ())


def _repeated(trial: Trial, how: str) -> Trial:
    """A trial whose result is looked at once more."""
    return replace(trial, label=f"{trial.label}, {how}", focus=Focus.REPEATED)


class _OutOfMemoryError(Exception):
    """The program found no memory for an unseen trial."""


class _Kept(NamedTuple):
    """A result that was right, and digests of its leaves."""

    trial: Trial
    got: Result
    digests: tuple[Any, ...]

    def is_unchanged(self) -> bool:
        """True when no tensor was written to since."""
        return _digests(self.got) == self.digests


def _digests(tree: Tree[Any]) -> tuple[Any, ...]:
    """Returns digests that tell the values of tensors apart, in a few bytes each; of unusual
    tensors nothing.
    """
    found = []
    for leaf in tree.leaves:
        with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
            found.append(digest_of(leaf) if isinstance(leaf, torch.Tensor) else None)
    return tuple(found)


class _Runs:
    """Runs of one program, one after the other. ``right`` is the result that the last one was compared
    with, ``got`` what it gave; ``is_drawn`` is True where that comparison tells nothing, since model and
    program each drew random numbers of their own.
    """

    def __init__(
        self,
        serve: Serve,
        atol: float,
        effects: Effects | None = None,
        *,
        measured: bool = False,
        ruler: Ruler | None = None,
    ) -> None:
        self._serve, self._atol, self._effects = serve, atol, effects
        self._ruler = ruler
        self._measured = measured
        self._last: _Kept | None = None
        self.right: Result | None = None
        self.got: Result | None = None
        self.is_drawn = False

    def check(
        self,
        trial: Trial,
        expected: Result,
        now: Callable[[], Result] | None = None,
    ) -> list[Check]:
        """The check of a trial; before it one of the trial before, where this call changed its
        result. ``now`` makes the result that is right as well, for a model that was changed since.
        """
        arguments = copy_tensors(trial.arguments)
        if trial.focus is Focus.LAYOUT:
            arguments = as_parts(arguments)
        held, last = open_arguments(arguments), self._last
        self._last, self.right, self.got, self.is_drawn = None, expected, None, False
        problem = ""
        try:
            got = self.got = self._answer(arguments)
            found = self._compared(expected, got)
            if found.note and now is not None:
                with contextlib.suppress(Exception):
                    self.right = now()
                    found = self._compared(self.right, got)
            if found.note and self._effects is not None:
                found = self._with_other_ties(trial, got, self._effects) or found
            if found.note and trial.kind != "observed" and not trial.is_asked:
                self.is_drawn = self._is_drawn(trial, expected, got)
            if found.holds and self._effects is not None:
                problem = self._effects.problem(trial.arguments, arguments, held, got)
                found = replace(found, note=problem)
        except RejectedCallError as error:
            refused = trial.failed(error.message, Outcome.REJECTED)
            return [replace(refused, reason=error.reason)]
        except Exception as error:
            if is_out_of_memory(error) and trial.kind != "observed":
                raise _OutOfMemoryError from error
            return [trial.failed(f"{type(error).__name__}: {error}")]
        checks = []
        if last is not None and not last.is_unchanged():
            note = "the next call overwrites the result"
            checks.append(_repeated(last.trial, "kept").failed(note, Outcome.DIFFERENT))
        if found.holds:
            self._last = _Kept(trial, got, _digests(got))
        if not self._measured:
            return [*checks, trial.compared(found)]
        scores = score_agreement(expected.leaves, got.leaves)
        tolerance = None
        if not found.holds and not problem:
            tolerance = sufficient_atol(self.right, got)
        return [*checks, trial.compared(found, scores, tolerance)]

    def distances(self, trial: Trial) -> tuple[OutputDistance, ...]:
        """The distances in the trial that was checked last; nothing where none are measured."""
        if self._ruler is None or self.right is None or self.got is None:
            return ()
        subject = None if self._effects is None else self._effects.subject
        return self._ruler.measured(trial, subject, self.right, self.got)

    def _answer(self, arguments: Arguments) -> Result:
        """The result of the program. It draws the random numbers that the model draws, run after this
        or before it, unless its runtime has its own.
        """
        with torch.no_grad(), torch.random.fork_rng(devices=cuda_devices()):
            return open_result(self._serve(arguments))

    def _compared(self, expected: Result, got: Result) -> Agreement:
        return agreement_of_trees(expected, got, atol=self._atol)

    def _is_drawn(self, trial: Trial, expected: Result, got: Result) -> bool:
        """True where two runs of the program differ, so that its runtime draws random numbers of its
        own, and the model gives another result with other random numbers; all in the same shapes.
        """
        if self._effects is None or not self._is_of_same_shapes(expected, got):
            return False
        again = self._answer(copy_tensors(trial.arguments))
        if self._compared(got, again).holds or not self._is_of_same_shapes(got, again):
            return False
        return self._effects.draws(trial.arguments, expected)

    def _is_of_same_shapes(self, expected: Result, got: Result) -> bool:
        """True where nothing differs but floats."""
        return agreement_of_trees(expected, got, atol=math.inf).holds

    def _with_other_ties(self, trial: Trial, got: Result, effects: Effects) -> Agreement | None:
        """The agreement with the result of the model that makes another choice among equal elements;
        None where there is none, or where the model orders nothing.
        """
        with contextlib.suppress(Exception), lower_index_first() as ordered:
            right = effects.result_of_model(trial.arguments)
            found = self._compared(right, got)
            if ordered.calls and found.holds:
                self.right = right
                return found
        return None

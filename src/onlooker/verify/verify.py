"""Runs trials on a program and on the model, and sums up what agrees."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..core.errors import RejectedCallError
from ..core.progress import tell
from ..core.structure import Tree
from ..core.verdict import Check, Focus, Outcome, Scores, Tally
from ..infer.sizes import size_label
from ..lab.kept import Kept, Side
from ..lab.memory import is_out_of_memory
from ..lab.runner import ModelRunner, cuda_devices
from ..pytrees.agree import agreement_of_trees, score_agreement
from ..pytrees.digest import digest_of
from ..pytrees.open import copy_tensors, open_arguments
from ..pytrees.unread import open_result
from .effects import Effects
from .effort import Effort
from .progress import Progress, Tried
from .ties import lower_index_first
from .trials import Trial
from .values import as_parts

__all__ = ["check_trial", "run_trials"]

logger = logging.getLogger(__name__)


def run_trials(
    serve: Callable[[dict[str, Any]], Any],
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
) -> tuple[Tally, tuple[str, ...]]:
    """The tally of all trials that are lawful, and the labels of those that the model itself
    refuses.

    The smallest observed trial is run once more after all others, if it shall be ``again``. Each
    result is looked at again when the call after it has been made, since a program could give the
    same memory twice. Of several ``graphs``, each needs an unseen trial that is lawful. ``effort``
    leaves out trials that would be too much work. Trials that ``progress`` has are not made again,
    and those that are made are added to it, one by one. Where a least share of ``agreeing`` scores
    is given, scores are measured, and a check fails where fewer agree. ``total`` is the number of
    trials, where somebody is told of them. Refused calls that leave behind what no watched call
    does are added to ``kept``.
    """
    progress = Progress() if progress is None else progress
    effects = Effects(subject, atol)
    runs = _Runs(serve, atol, effects, measured=agreeing is not None)
    met: set[str] = set()
    n_left_out = 0
    not_tried: list[Check] = []
    for number, trial in enumerate(trials):
        tell("verifying", number, total, trial.label)
        met |= {trial.plan.name} if trial.plan is not None else set()
        if number in progress.tried:
            continue
        tried, expected, missing = None, None, "the time has ended: raise seconds="
        if trial.problem or effort is None or effort.wants(trial):
            tried, expected = _tried(runs, effects, trial, effort)
            missing = "there is not enough memory"
        if tried is None and trial.is_asked:
            note = f"these sizes were not tried: {missing}"
            not_tried.append(_check(trial, Outcome.FAILED, float("inf"), note))
            continue
        if tried is None:
            n_left_out += 1
            continue
        progress.tried[number] = tried
        if expected is None:
            continue
        if effort is not None:
            effort.note(trial, refused=bool(tried.refused))
        if kept is not None and tried.refused and subject.keeper.left - kept.changes.keys():
            kept.add_side(Side(trial.arguments))
        if again and not tried.refused:
            progress.propose(trial, expected)
    if total is not None:
        tell("verifying", total, total)
    if progress.smallest is not None and not progress.repeated:
        _, trial, expected = progress.smallest
        progress.repeated = runs.check(replace(trial, focus=Focus.REPEATED), expected, ", again")
    checks = [*progress.checks, *not_tried, *_without_unseen(graphs, progress, met)]
    if agreeing is not None:
        checks += _few_agreeing(Tally(tuple(checks)), agreeing)
    return Tally(tuple(checks), progress.refused, n_left_out), progress.unlawful


def _few_agreeing(tally: Tally, wanted: float) -> Iterator[Check]:
    """A failed check for the watched calls, and for the unseen ones, where too few scores agree."""
    for kind in ("observed", "unseen"):
        scores = tally.scores(kind)
        if scores.share < wanted:
            note = (
                f"the largest score stands at another place in {scores.count - scores.agreeing} of"
                f" {scores.count} rows: {scores.share:.4f} agree, and agreement={wanted:g} is asked"
            )
            yield Check(kind, "tokens", Outcome.DIFFERENT, (), scores.difference, note)


def _tried(
    runs: _Runs, effects: Effects, trial: Trial, effort: Effort | None
) -> tuple[Tried | None, Tree[Any] | None]:
    """What a trial told, None where memory was missing; and the right result, None where the model
    refuses the trial.

    A program that gives what the model gave while it was watched is right there: the model is run
    only where it does not, since the weights may be others now.
    """
    if trial.problem:
        return Tried((_check(trial, Outcome.FAILED, float("inf"), trial.problem),)), None
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
        logger.debug("%s is no lawful call of the model: %s", trial.label, cause)
        if trial.kind != "observed" and not trial.is_asked:
            return Tried(unlawful=trial.label), None
        what = "these sizes" if trial.is_asked else "the observed call when it is replayed"
        note = f"the model itself refuses {what}: {cause}"
        return Tried((_check(trial, Outcome.FAILED, float("inf"), note),)), None
    now = partial(effects.result_of_model, trial.arguments) if trial.seen is not None else None
    try:
        found = runs.check(trial, expected, now=now)
    except _OutOfMemoryError:
        return None, None
    if not trial.is_promised and found[-1].outcome is Outcome.REJECTED:
        return Tried(tuple(found[:-1]), refused=size_label(dict(trial.sizes))), expected
    name = trial.plan.name if trial.plan is not None else ""
    return Tried(tuple(found), graph=name), runs.right


def _without_unseen(graphs: Sequence[str], progress: Progress, met: set[str]) -> Iterator[Check]:
    """A failed check for each of several graphs that no lawful trial has."""
    for name in graphs if len(graphs) > 1 else ():
        if name not in progress.graphs:
            refusal = "is lawful for the model" if name in met else "was tried: raise trials="
            note = f"no unseen call of this graph {refusal}"
            yield Check("unseen", name, Outcome.FAILED, (), float("inf"), note, Focus.SIZES)


def check_trial(
    serve: Callable[[dict[str, Any]], Any], trial: Trial, expected: Any, atol: float
) -> Check:
    """One comparison of a program with the result of the model, opened."""
    return _Runs(serve, atol).check(trial, expected)[0]


def _check(
    trial: Trial,
    outcome: Outcome,
    difference: float,
    note: str = "",
    suffix: str = "",
    scores: Scores | None = None,
) -> Check:
    label = trial.label + suffix
    return Check(trial.kind, label, outcome, trial.sizes, difference, note, trial.focus, scores)


class _OutOfMemoryError(Exception):
    """The program found no memory for an unseen trial."""


class _Kept(NamedTuple):
    """A result that was right, and digests of its leaves."""

    trial: Trial
    got: Tree[Any]
    digests: tuple[Any, ...]

    def is_unchanged(self) -> bool:
        """True when no tensor was written to since."""
        return _digests(self.got) == self.digests


def _digests(tree: Tree[Any]) -> tuple[Any, ...]:
    """What tells the values of tensors apart, in a few bytes each; of unusual tensors nothing."""
    found = []
    for leaf in tree.leaves:
        with contextlib.suppress(TypeError, RuntimeError, NotImplementedError):
            found.append(digest_of(leaf) if isinstance(leaf, torch.Tensor) else None)
    return tuple(found)


class _Runs:
    """Runs of one program, one after the other. ``right`` is the result that the last one was compared
    with.
    """

    def __init__(
        self,
        serve: Callable[[dict[str, Any]], Any],
        atol: float,
        effects: Effects | None = None,
        *,
        measured: bool = False,
    ) -> None:
        self._serve, self._atol, self._effects = serve, atol, effects
        self._measured = measured
        self._last: _Kept | None = None
        self.right: Tree[Any] | None = None

    def check(
        self,
        trial: Trial,
        expected: Tree[Any],
        suffix: str = "",
        now: Callable[[], Tree[Any]] | None = None,
    ) -> list[Check]:
        """The check of a trial; before it one of the trial before, where this call changed its
        result. ``now`` makes the result that is right as well, for a model that was changed since.
        """
        arguments = copy_tensors(trial.arguments)
        if trial.focus is Focus.LAYOUT:
            arguments = as_parts(arguments)
        held, last = open_arguments(arguments), self._last
        self._last, self.right = None, expected
        try:
            # the model draws the same random numbers, when it is run after this or before it
            with torch.no_grad(), torch.random.fork_rng(devices=cuda_devices()):
                got = open_result(self._serve(arguments))
            note, difference = self._compared(expected, got)
            if note and now is not None:
                with contextlib.suppress(Exception):
                    self.right = now()
                    note, difference = self._compared(self.right, got)
            if note and self._effects is not None:
                note, difference = self._with_other_ties(trial, got) or (note, difference)
            if not note and self._effects is not None:
                note = self._effects.problem(trial.arguments, arguments, held, got)
        except RejectedCallError as error:
            return [_check(trial, Outcome.REJECTED, float("inf"), error.message, suffix)]
        except Exception as error:
            if is_out_of_memory(error) and trial.kind != "observed":
                raise _OutOfMemoryError from error
            note = f"{type(error).__name__}: {error}"
            return [_check(trial, Outcome.FAILED, float("inf"), note, suffix)]
        overwritten = self._overwritten(last)
        if not note:
            self._last = _Kept(trial, got, _digests(got))
        outcome = Outcome.DIFFERENT if note else Outcome.EXACT
        scores = score_agreement(expected.leaves, got.leaves) if self._measured else None
        return [*overwritten, _check(trial, outcome, difference, note, suffix, scores)]

    def _with_other_ties(self, trial: Trial, got: Tree[Any]) -> tuple[str, float] | None:
        """No note and the difference, where the result is that of the model with another choice among
        equal elements; None where it is not, or where the model orders nothing.
        """
        if self._effects is None:
            return None
        with contextlib.suppress(Exception), lower_index_first() as ordered:
            right = self._effects.result_of_model(trial.arguments)
            note, difference = self._compared(right, got)
            if ordered.calls and not note:
                self.right = right
                return note, difference
        return None

    def _compared(self, expected: Tree[Any], got: Tree[Any]) -> tuple[str, float]:
        """What is wrong with a result, and the largest difference."""
        found = agreement_of_trees(expected, got, atol=self._atol)
        return found.note, found.difference

    def _overwritten(self, last: _Kept | None) -> list[Check]:
        if last is None or last.is_unchanged():
            return []
        trial, note = last.trial, "the next call overwrites the result"
        return [
            _check(
                replace(trial, focus=Focus.REPEATED),
                Outcome.DIFFERENT,
                float("inf"),
                note,
                ", kept",
            )
        ]

"""Verifies a program: on the watched calls, on unseen ones, and on calls that follow each other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core.contents import ProgramContents
from ..core.precision import is_calibrated
from ..core.support.progress import is_watched, kept_when_interrupted
from ..core.verdict import Tally
from ..observing.samples import Sample
from ..observing.state import kept_state
from ..serve.runnable import ProgramAndModel, RunnableProgram
from ..targets.integers.layers import float_layers_of
from ..targets.stand_ins import check_weights_are_here
from ..trace.graph import Graph
from .axes import with_axes
from .calibration import calls_calibrated_on
from .check import refused_calls
from .conversion import run_with
from .distances import Ruler, added_up, beside_known, distance_checks
from .effort import Effort
from .kept import further_checks
from .metric import metric_checks
from .progress import Progress, weights_of
from .request import VerifyRequest, request_of
from .spread import Elsewhere, Spread, spread_trials
from .trials import Trial, chosen_trials, observed_trials
from .verify import check_trial, run_trials

__all__ = ["Verification", "ruler_of", "saved_trials", "trials_of", "verified"]

logger = logging.getLogger(__name__)


class Verification:
    """The verification of one program, which goes on where it was ended."""

    def __init__(self) -> None:
        self._request: tuple[Any, ...] = ()
        self._progress = Progress()
        self._effort: Effort | None = None

    def run(
        self,
        program: RunnableProgram,
        request: VerifyRequest,
        model: Any = None,
        spread: Spread | None = None,
    ) -> Tally:
        """The tally of all trials so far, which the contents of the program then have too; with a
        ``spread``, workers make most of the trials.

        :raises UsageError: ``no-model``, ``no-values``, ``another-signature``, and those of the options
        :raises UnsupportedError: ``weights-elsewhere``
        """
        check_weights_are_here(program.contents.graphs)
        tried = run_with(program, request.options)
        basis = program.beside_model(model)
        blocked = [f"{g.name}: {g.blocked}" for g in tried.contents.graphs if g.blocked]
        found = Tally(blocked=tuple(blocked)), tuple[str, ...]()
        if not blocked:
            found = self._verified(program, tried, basis, request, model, spread)
        tally, unlawful = found
        program.contents = replace(program.contents, tally=tally, unlawful=unlawful)
        return tally

    def _verified(
        self,
        program: RunnableProgram,
        tried: RunnableProgram,
        basis: ProgramAndModel,
        request: VerifyRequest,
        model: Any,
        spread: Spread | None,
    ) -> tuple[Tally, tuple[str, ...]]:
        logger.info("verifying on observed and unseen calls")
        subject = basis.subject
        choose = partial(trials_of, basis, request)
        left = program.lab.kept if program.lab is not None and model is None else None
        with (
            program.stages.stage("verify"),
            kept_when_interrupted(self._what_is_kept),
            kept_state(subject.model, {}),  # a program shares buffers with its model
            _elsewhere(spread, basis, request, choose) as elsewhere,
        ):
            effort = self._goes_on(request, basis)
            tally, unlawful = run_trials(
                tried.serve,
                subject,
                choose(),
                atol=request.atol,
                total=sum(1 for _ in choose()) if is_watched() else None,
                graphs=[graph.name for graph in program.contents.graphs],
                again=request.repeats,
                effort=effort,
                progress=self._progress,
                agreeing=request.agreement,
                kept=left if program.state is None else None,
                elsewhere=elsewhere,
                ruler=ruler_of(request, basis.contents, basis.samples),
            )
            further = further_checks(
                tried.serve,
                subject,
                program.samples,
                program.state,
                left,
                unseen=choose,
                atol=request.atol,
            )
            measured = metric_checks(tried, subject, request.metric, request.at_least)
        tried_calls = {sample.call.index for sample in basis.samples}
        refused = refused_calls(basis.contents, tried_calls)
        tally = replace(tally, checks=(*tally.checks, *refused, *further, *measured))
        if not tally.left_out:
            self._request = ()
        return with_axes(tally, program.contents), unlawful

    def _goes_on(self, request: VerifyRequest, basis: ProgramAndModel) -> Effort:
        """The effort of the trials that were made, where this was asked for before and did not end;
        otherwise a beginning.
        """
        asked = (repr(request), weights_of(basis.subject.watched))
        if self._effort is None or self._request != asked:
            is_bounded = request.trials is None
            self._effort = Effort(basis.subject.model, bounded=is_bounded, seconds=request.seconds)
            self._request, self._progress = asked, Progress()
        self._effort.begin()
        return self._effort

    def _what_is_kept(self) -> str:
        """Returns a sentence that says what an interrupted verification keeps."""
        return (
            f"{len(self._progress.tried)} trials were made and are kept: verify() with the same"
            " arguments goes on from there. The program, its tally and the model are as they were."
        )


def _elsewhere(
    spread: Spread | None,
    basis: ProgramAndModel,
    request: VerifyRequest,
    choose: Callable[[], Iterator[Trial]],
) -> contextlib.AbstractContextManager[Elsewhere | None]:
    """Inside the block workers make trials; nothing without workers."""
    if spread is None:
        return contextlib.nullcontext()
    effort = Effort(basis.subject.model, bounded=request.trials is None)
    return spread_trials(spread, basis.subject, choose(), effort, request.seconds)


def trials_of(basis: ProgramAndModel, request: VerifyRequest) -> Iterator[Trial]:
    """The trials that a caller asked for: the same in every process."""
    return chosen_trials(
        basis.contents.graphs,
        basis.samples,
        basis.kept,
        request.sizes,
        seed=request.seed,
        most=request.most,
        weights=basis.weights,
    )


def saved_trials(program: RunnableProgram, atol: float | None) -> Tally:
    """One check per kept call, of which the right result is the one that was observed: no model is
    needed. Without ``atol``, a program of another precision is judged by its distances, beside those
    of rounding alone that its verification found.
    """
    request = request_of(program.contents, atol=atol)
    ruler = ruler_of(request, program.contents, program.samples)
    pairs = zip(observed_trials(program.samples), program.samples, strict=True)
    found = [
        check_trial(program.serve, trial, sample.outputs, request.atol, ruler)
        for trial, sample in pairs
    ]
    checks = [check for one in found for check in one.checks]
    if ruler is None:
        return Tally(tuple(checks))
    distances = added_up(one for result in found for one in result.distances)
    distances = beside_known(distances, program.contents.tally.distances)
    checks += distance_checks(distances, request.precision)
    return Tally(tuple(checks), precision=request.precision, distances=distances)


def verified(
    program: RunnableProgram, *, atol: float | None = None, agreement: float | None = None
) -> Tally:
    """The tally of a program beside the watched model, with the usual trials.

    :raises UsageError: ``no-model``, ``no-values``, ``bad-tolerance``
    """
    request = request_of(program.contents, atol=atol, agreement=agreement)
    return Verification().run(program, request)


def ruler_of(
    request: VerifyRequest, contents: ProgramContents[Graph], samples: Sequence[Sample]
) -> Ruler | None:
    """What measures the distances of a program, where it is judged by these."""
    if not request.precision:
        return None
    numbers = calls_calibrated_on(contents.graphs)
    chosen = [sample for sample in samples if sample.call.index in numbers] or samples
    return Ruler(
        request.precision,
        frozenset(f"call {number}" for number in numbers),
        [sample.arguments() for sample in chosen] if is_calibrated(request.precision) else (),
        tuple(name for graph in contents.graphs for name in float_layers_of(graph)),
    )

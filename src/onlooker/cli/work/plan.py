"""``onlooker plan``: what an export would do, without making it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console

from ...capture.combine import read_captured
from ...capture.recorded import is_run, read_recording
from ...capture.summary import plans_of
from ...core.errors import UsageError
from ...core.plan import Plan
from ...core.recording import Recording
from ...core.runtimes import RUNTIMES
from ...graphs.plans import domain_of
from ...hypotheses.overrides import Overrides, overrides_of
from ...input_observer import InputObserver
from ...lab.work import CountedWork
from ...model_source.user_function import names_a_function
from ...report.blind import told_spots
from ...report.forecast import Forecast, graph_forecast
from ..command import Answer, ExitCode, to_type
from ..entries import entry_name
from ..progress import Say, progress
from ..saved import in_full
from .export import (
    called_parts,
    calls_elsewhere,
    check_entries,
    pins_of,
    read_source,
    watch_source,
)

__all__ = ["run"]

#: the most runs of the model, and the most seconds, that are spent on experiments
_BUDGET = (128, 20.0)
#: a verification takes about as long as so many watched calls
_CALLS_OF_VERIFYING = 20


def run(options: argparse.Namespace, stderr: TextIO) -> Answer:
    """Watches the model, or reads what was recorded, and infers; where there is a model it is run for
    experiments.
    """
    source = options.source
    is_alone = source is not None and options.build is None and not names_a_function(source)
    with progress(stderr) as say:
        if is_alone:
            say(f"reading {source}")
            found = _of_recordings(options)
        else:
            found = _of_model(options, say)
    following = ["html", str(source)] if is_alone else ["export", *options.argv[1:]]

    def show(console: Console) -> None:
        for at, forecast in enumerate(found):
            console.print(*([""] if at else []), forecast.tables(full=options.full), sep="\n")

    return Answer(
        ExitCode.VERIFIED,
        show,
        lambda: {"plans": [forecast.to_dict() for forecast in found]},
        to_type(*following),
    )


def _of_recordings(options: argparse.Namespace) -> list[Forecast]:
    """Returns the plans of recordings without a model, for each entry point that is named, or for
    all.

    :raises UsageError: ``bad-command-line``
    """
    if options.save_recording is not None:
        raise UsageError(
            "Argument --save-recording is for calls that are watched.",
            slug="bad-command-line",
            hint=f"{options.source} has its calls already.",
        )
    place = Path(options.source)
    if is_run(place) and not options.entry:
        recordings = [seen.recording for seen in read_captured(place, ordered=False).seen]
    else:
        recordings = [read_recording(place, name) for name in options.entry or [None]]
    pins, _ = pins_of(options, [])
    overrides = overrides_of(**pins)
    return [
        _forecast(recording, plans_of(recording.calls), overrides, options.to)
        for recording in recordings
    ]


def _of_model(options: argparse.Namespace, say: Say) -> list[Forecast]:
    """Returns the plans from calls and experiments, for each part that is watched."""
    read_source(options)
    elsewhere, out = calls_elsewhere(options), in_full(options.save_recording)
    if elsewhere is None:
        check_entries(options)
    names = [entry_name(path) for path in options.entry] if len(options.entry) > 1 else []
    pins, own_pins = pins_of(options, names)
    with CountedWork() as work:
        watched, _ = watch_source(options, elsewhere, say)
    if out is not None and isinstance(watched, InputObserver):
        watched.recording(options.method).save(out)
    observers = called_parts(watched)
    n_run = sum(len(one.recording()) for one in observers.values())
    if elsewhere is not None:  # of the recorded calls a few were made here
        n_run = sum(one.num_obs() for one in observers.values())
    operators = work.count / max(n_run, 1)
    found = []
    for name, observer in observers.items():
        say(f"inferring {name}".rstrip())
        asked = {"probe": not options.no_probe, **pins, **own_pins.get(name, {})}
        plans = observer.plans(budget=_BUDGET, **asked)
        overrides = overrides_of(**asked)
        found.append(_forecast(observer.recording(), plans, overrides, options.to, operators))
    return found


def _forecast(
    recording: Recording,
    plans: Sequence[Plan],
    overrides: Overrides,
    target: str,
    operators: float | None = None,
) -> Forecast:
    """The forecast of one recording; ``operators`` is how many a call runs, None without a model."""
    is_probed = operators is not None and overrides.probe
    static: Mapping[str, Sequence[int]] = overrides.static
    graphs = tuple(
        graph_forecast(plan, domain_of(plan, recording, overrides), static, probed=is_probed)
        for plan in plans
    )
    probes = {probe for plan in plans for probe in plan.probes}
    n_probes = None if operators is None else len(probes)
    calls = recording.calls
    of_call = sum(call.seconds * call.count for call in calls) / max(len(recording), 1)
    seconds = None
    measured = RUNTIMES[target].seconds
    if operators is not None and measured is not None:
        of_graph, of_operator = measured
        seconds = len(plans) * (of_graph + of_operator * operators + _CALLS_OF_VERIFYING * of_call)
    return Forecast(
        recording.model,
        recording.method,
        target,
        len(recording),
        graphs,
        n_probes,
        seconds,
        told_spots(plans),
    )

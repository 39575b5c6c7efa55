"""What all of it takes (observe, infer, probe, export, verify), beside the bare export of the same
graphs.

    python benchmarks/pipeline.py [--quick] [--json FILE]

The bare export is what a user would write by hand who knew the right arguments and shapes:
``torch.export.export`` with just those that gave the graphs. Both run in one process after a
warm-up, and are paired.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace

from exports import Run, pipeline
from frame import Figure, main, seconds_of
from subjects import Subject, subjects

from onlooker.lab.stages import STAGES

MOST_RATIO, MOST_PROBES = 2.5, 20.0


def bare(run: Run) -> float:
    """The seconds of the exports that gave the graphs, made again."""
    if len(run.of_graphs) != len(run.program.graphs):
        raise RuntimeError("a graph was made by no export that was seen")
    return sum(seconds_of(export.again) for export in run.of_graphs)


def described(run: Run) -> str:
    """Exports per graph, and the share of each stage."""
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in run.shares.items())
    verdict = "verified" if run.program.tally.verified else "NOT VERIFIED"
    return f"{len(run.exports)} exports for {len(run.program.graphs)} graphs; {shares}; {verdict}"


def measured(subject: Subject) -> tuple[Run, float]:
    """A pipeline, and how often the bare export it takes: after one that warms what torch keeps
    of a model.
    """
    pipeline(subject.module, subject.watch)
    run = pipeline(subject.module, subject.watch)
    return run, run.seconds / bare(run)


def figures(quick: bool) -> Iterator[Figure]:
    """One per model, then the medians."""
    runs, ratios = [], []
    for subject in subjects(quick):
        run, ratio = measured(subject)
        runs.append(run)
        ratios.append(ratio)
        yield Figure(f"pipeline / bare export, {subject.name}", ratio, "x", note=described(run))
    shares = {
        stage: statistics.median(100 * run.shares.get(stage, 0.0) for run in runs)
        for stage in STAGES
    }
    refused = statistics.median(100 * (run.seconds_refused / run.seconds) for run in runs)
    lines = [f"{stage:8} {share:5.1f} % of a pipeline, median" for stage, share in shares.items()]
    lines.append(
        f"refused  {refused:5.1f} % in exports that torch refused, median (a part of export)"
    )
    overall = Figure(
        f"pipeline / bare export, median of {len(ratios)}",
        statistics.median(ratios),
        "x",
        MOST_RATIO,
    )
    yield replace(overall, profile=() if overall.reached else tuple(lines))
    yield Figure(f"share of probes, median of {len(runs)}", shares["probe"], "%", MOST_PROBES)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", figures))

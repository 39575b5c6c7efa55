"""What an export gives: the graphs of all regimes behind one callable, with the proof."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from .core.errors import UsageError
from .core.plan import Plan
from .core.recording import Recording
from .core.verdict import Tally
from .export.dispatch import Dispatcher
from .export.graph import Graph
from .export.onnx_ import to_onnx
from .export.save import save_graph
from .observe.bind import as_args_kwargs
from .observe.store import Sample
from .probe.subject import Subject
from .pytrees.joins import Join, join_tensors, joined
from .report.data import graph_report
from .report.report import Report
from .verify.trials import observed_trials, unseen_trials
from .verify.verify import run_trials

__all__ = ["Program"]

logger = logging.getLogger(__name__)


class Program:
    """An exported model: called as the model is called.

    A call goes to the first graph that takes it. Constants that were baked in must be as they were observed;
    an argument that some observed call lacked may be left out; an absent cache counts as an empty one. What no
    graph takes is refused by a :class:`~onlooker.RejectedCallError` that names the argument.

    ``graphs`` are the exported graphs, ``plans`` what was asked of each.
    """

    def __init__(
        self,
        graphs: Sequence[Graph],
        recording: Recording,
        samples: Sequence[Sample],
        subject: Subject,
        refusals: Sequence[str] = (),
        joins: Sequence[Join] = (),
    ) -> None:
        self.graphs = tuple(graphs)
        self.refusals = tuple(refusals)
        self._recording = recording
        self._samples = tuple(samples)
        self._subject = subject
        self._joins = tuple(joins)
        self._dispatcher = Dispatcher(self.graphs, recording.signature, self._joins)
        self._verdict: tuple[Tally, tuple[str, ...]] | None = None

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each graph."""
        return tuple(graph.plan for graph in self.graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the exported graph, in the classes that the model returns."""
        return self._dispatcher(args, kwargs)

    def verify(self, *, atol: float = 1e-5, sizes: Sequence[Mapping[str, int]] = ()) -> Tally:
        """Runs observed calls, and calls with sizes that neither they nor the export had, on program and model.

        ``sizes`` are further ones to try, each a size per symbol: ``{"batch": 5, "sequence": 1}``; symbols
        that one does not name have a middle size.

        ``atol`` is the largest difference allowed, times (1 + the largest value) of each float32 output; ints,
        bools, shapes and dtypes must be equal, NaN against a number fails. The tally is kept for
        :attr:`report`.
        """
        logger.info("verifying on observed and unseen calls")
        trials = [*observed_trials(self._samples)]
        kept = [replace(s, inputs=joined(s.inputs, self._joins, join_tensors)) for s in self._samples]
        for graph in self.graphs:
            trials += unseen_trials(graph, kept, sizes)
        self._verdict = run_trials(self._serve, self._subject, trials, atol=atol)
        return self._verdict[0]

    def _serve(self, arguments: dict[str, Any]) -> Any:
        args, kwargs = as_args_kwargs(self._recording.signature, arguments)
        return self(*args, **kwargs)

    @property
    def tally(self) -> Tally:
        """What was verified so far; empty before :meth:`verify`."""
        return self._verdict[0] if self._verdict else Tally()

    @property
    def report(self) -> Report:
        """What was observed, asked, obtained, tried, and what failed: prints as tables, ``to_dict()`` for JSON."""
        graphs = tuple(
            graph_report(
                graph.plan,
                target=graph.target,
                obtained=graph.obtained,
                ranges=graph.ranges,
                sizes=graph.sizes,
                notes=graph.notes,
                seconds=graph.seconds,
            )
            for graph in self.graphs
        )
        tally, unlawful = self._verdict or (Tally(), ())
        missed = (*self._recording.missed, *self.refusals)
        return Report(
            self._recording.model, self._recording.method, graphs, tally, unlawful, missed, self._blind_spots()
        )

    def _blind_spots(self) -> tuple[str, ...]:
        """The arguments that no graph takes, since no call passed them."""
        taken = {leaf.path.root for graph in self.graphs for leaf in graph.plan.leaves}
        names = [p.name for p in self._recording.signature.parameters if not p.kind.startswith("VAR")]
        never = [name for name in names if name not in taken]
        if not never:
            return ()
        return (f"{', '.join(never)} never passed: such a call is refused, watch one to have it served",)

    def to(self, target: str) -> Program:
        """The same plans for another target: ``"onnx"`` from a program of torch.export.

        :raises UsageError: ``unknown-target``
        """
        if target == "torch" and all(graph.target == "torch" for graph in self.graphs):
            return self
        if target != "onnx":
            raise UsageError(
                f"A program cannot be turned into {target!r}.",
                slug="unknown-target",
                hint="A program of torch can be turned into 'onnx'.",
            )
        graphs = [graph if graph.target == "onnx" else to_onnx(graph) for graph in self.graphs]
        return Program(graphs, self._recording, self._samples, self._subject, self.refusals, self._joins)

    def save_graphs(self, directory: str | FilePath) -> list[FilePath]:
        """Writes one file per graph (``.pt2`` or ``.onnx``) into ``directory`` and gives their paths."""
        folder = FilePath(directory)
        folder.mkdir(parents=True, exist_ok=True)
        return [save_graph(graph, folder) for graph in self.graphs]

    def __repr__(self) -> str:
        names = ", ".join(graph.name for graph in self.graphs)
        return f"<onlooker.Program of {self._recording.model}.{self._recording.method}: {names}>"

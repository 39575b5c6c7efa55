"""What an export gives: all graphs behind one callable, with the proof."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from .contract.other_side import OtherSides
from .core.call import ChangedArgument, changed_in
from .core.errors import UnsupportedError, UsageError
from .core.figure import Points, Tried, figure_of
from .core.kinds import as_path
from .core.markup import details
from .core.path import Path
from .core.plan import Plan
from .core.profile import Profile, profile_of_rows
from .core.progress import is_watched, kept_when_interrupted
from .core.recording import Recording
from .core.spec import TensorSpec
from .core.traffic import CheckedCall
from .core.verdict import Tally
from .disk.files import write_into
from .emit.texts import Emitted, emitted
from .emit.traffic import Served
from .hypotheses.overrides import RangesOption, overrides_of
from .hypotheses.ranges import check_bounded, from_one_on, plans_in_ranges, seen_sizes
from .keep.folder import Kept, save_folder
from .lab.effects import Effect
from .lab.lab import Lab
from .lab.runner import ModelRunner
from .lab.stages import Stages
from .lab.stateful import Stateful
from .materialise.domains import limits_of
from .observing.bind import as_args_kwargs
from .observing.instead import part_of_class
from .observing.state import kept_state
from .observing.store import Sample
from .observing.surroundings import autocast_of, record_gradients
from .patches.quiet import quietly
from .pytrees.hidden import hidden_tensors
from .pytrees.joins import Join, join_tensors, joined, joined_results
from .report.blind import blind_spots, told_spots
from .report.calls import surroundings_of
from .report.code import script_of
from .report.code_data import GraphCode
from .report.data import OutputRow, graph_report
from .report.experiments import Experiments, experiments_of
from .report.refused import refusals_of, served_together
from .report.report import Report
from .report.traffic import Conformity
from .serve.dispatch import Dispatcher
from .serve.effects import untouched_arguments
from .serve.installed import Installed, installed
from .serve.kept_caches import CacheKeeper
from .serve.state import (
    MethodDispatcher,
    ProgramState,
    of_given_arguments,
    without_state,
)
from .targets.fixed_ranks import of_fixed_ranks
from .targets.not_numbers import not_finite, without_nan
from .targets.onnx.genai import write_genai
from .targets.refused import convert_or_leave_out
from .targets.save import save_graph
from .targets.single_file import check_file_name, is_file_name, write_one
from .targets.target import Target, check_options, read_again
from .targets.targets import target_of
from .trace.graph import Graph
from .verify.axes import with_axes
from .verify.check import checked_calls, profile_of_calls, sized_calls
from .verify.effort import Effort
from .verify.kept import further_checks
from .verify.narrower import few_trials, lost_checks, noted_losses, noted_refusals, runs
from .verify.progress import Progress, weights_of
from .verify.request import SizesOption, check_model, check_request, wanted_agreement
from .verify.saved import saved_trials
from .verify.trials import chosen_trials, infinite_trials, observed_trials
from .verify.verify import run_trials

__all__ = ["Basis", "Program"]

logger = logging.getLogger(__name__)
#: the difference of results that is allowed, times (1 + the largest value)
_ATOL = 1e-5


@dataclass(frozen=True, slots=True)
class Basis:
    """What a verification starts from. ``kept`` are the ``samples`` as the graphs see them."""

    graphs: tuple[Graph, ...]
    recording: Recording
    samples: tuple[Sample, ...]
    kept: tuple[Sample, ...]
    joins: tuple[Join, ...]
    subject: ModelRunner


class Program:
    """An exported model: called as the model is called.

    A call goes to the first graph that takes it. Constants that were baked in must be as they were
    observed; an argument that some observed call lacked may be left out; an absent cache counts as
    an empty one. A call that no graph takes is refused by a :class:`~onlooker.RejectedCallError`
    that names the argument.

    ``graphs`` are the exported graphs, ``plans`` what was asked of each.
    """

    def __init__(
        self,
        graphs: Sequence[Graph],
        recording: Recording,
        samples: Sequence[Sample],
        subject: Lab | None,
        refusals: Sequence[str] = (),
        joins: Sequence[Join] = (),
        state: ProgramState | None = None,
        changed: Sequence[ChangedArgument] = (),
    ) -> None:
        self.graphs: tuple[Graph, ...] = tuple(graphs)
        self.refusals: tuple[str, ...] = tuple(refusals)
        self._recording = recording
        self._samples = tuple(samples)
        self._subject = subject
        self._stages = subject.stages if subject is not None else Stages()
        self._joins = tuple(joins)
        self._dispatcher = Dispatcher(self.graphs, recording.signature, self._joins)
        self._state = state
        self._changed = tuple(changed)
        self._untouched: Mapping[str, tuple[str, ...]] = {}
        self._serving: Dispatcher | MethodDispatcher = self._dispatcher
        if state is not None or changed:
            self._serving = MethodDispatcher(self._dispatcher, state, changed)
        kept = dict.fromkeys(name for graph in self.graphs for name in graph.keeps)
        self._keeper = CacheKeeper(self._serving, tuple(kept)) if kept else None
        self._verdict: tuple[Tally, tuple[str, ...]] | None = None
        self._unfinished: tuple[tuple[Any, ...], Progress, Effort] | None = None
        self._limits: Mapping[Path, tuple[float, float]] = {}

    @property
    def recording(self) -> Recording:
        """The specs of the calls that the program was made from."""
        return self._recording

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each graph."""
        return tuple(graph.plan for graph in self.graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the exported graph, in the classes that the model returns.

        A program of OpenVINO with ``stateful=True`` serves a call without a cache with the cache of
        the call before; :meth:`reset_state` begins anew.
        """
        return (self._keeper or self._serving)(args, kwargs)

    @property
    def state(self) -> Mapping[str, Any]:
        """What the program keeps from call to call, by the path of the attribute of the model; empty
        for a model that was watched without ``state=True``.

        Every call reads these values and replaces them. They begin as what stood in the model when
        watching began; :meth:`reset_state` goes back to that.

        >>> import torch, onlooker
        >>> class Sum(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.total = torch.zeros(2)
        ...     def forward(self, x):
        ...         self.total = self.total + x.sum(0)
        ...         return x + self.total
        >>> model, observer = Sum(), onlooker.InputObserver(state=True)
        >>> with observer(model):
        ...     _ = model(torch.ones(3, 2)), model(torch.ones(5, 2))
        >>> program = observer.export()
        >>> program(torch.ones(4, 2))[0], program.state
        (tensor([5., 5.]), mappingproxy({'total': tensor([4., 4.])}))
        >>> program.reset_state()
        >>> program.state["total"]
        tensor([0., 0.])
        """
        return MappingProxyType(dict(self._state.values) if self._state else {})

    def reset_state(self) -> None:
        """Brings :attr:`state` back to what stood in the model when watching began, and forgets
        caches that the program keeps: for a new stream, or a new text.
        """
        if self._keeper is not None:
            self._keeper.reset()
        if self._state is not None:
            self._state.reset()

    @contextlib.contextmanager
    def installed(self, model: Any = None, *, fallback: bool = False) -> Iterator[Installed]:
        """Inside the block the watched method of ``model`` runs on this program, its signature
        kept; by default of the model that was watched, which a loaded program lacks.

        ``model.generate(...)`` and pipelines then use the graphs: a cache that they hold is changed
        in place, as the model changes it. Copies of the model run eagerly, but for the one whose
        calls were watched in place of those of the model; of a part that was watched in this way,
        the part runs on them. On exit ``vars(model)`` is what it was. A call that no
        graph takes raises from inside; with ``fallback`` it runs on the model, and is counted.
        Gives the number of calls that each graph served.

        :raises UsageError: ``no-such-method``, ``no-model``, ``another-signature`` for a model
            whose method does not take what the graphs take, in the same order
        :raises RejectedCallError: inside the block: ``call-refused``, ``call-does-not-bind``,
            ``cache-not-returned``
        """
        watched = self._subject.subject if self._subject is not None else None
        own = () if watched is None else (watched.watched, watched.copy_of)
        chosen = self._watched().watched if model is None else model
        chosen = part_of_class(chosen, self._recording.model)
        is_own = any(chosen is one for one in own)
        objects = [one for one in own if type(one) is type(chosen)] if is_own else [chosen]
        with installed(
            self._serving,
            objects,
            self._recording.method,
            fallback=fallback,
            autocast=autocast_of(self._recording.calls),
            untouched=self._untouched,
        ) as served:
            yield served

    def verify(
        self,
        *,
        atol: float = _ATOL,
        sizes: SizesOption = (),
        model: Any = None,
        seed: int = 0,
        trials: int | None = None,
        seconds: float | None = None,
        agreement: float | None = None,
        session_options: Any = None,
        providers: Any = None,
    ) -> Tally:
        """Runs observed calls, and calls with sizes that neither they nor the export had, on
        program and model.

        ``sizes`` are further ones to try, by the name of a symbol or of an axis:
        ``{"batch": [1, 4], "sequence": [3, 500]}`` stands for all four combinations,
        ``[{"batch": 1, "sequence": 500}]`` for the ones that are listed, ``[500]`` for that size of
        the one symbol that there is. Symbols that are not named have a small size. Sizes that the
        model or the program refuses, and sizes that cannot be tried, are failed checks with the
        reason in their notes.

        ``seed`` decides the sizes and the values that are chosen: the same seed gives the same
        trials. ``trials`` is the most that are run, some of every kind; more than the usual ones
        have sizes and values drawn by the seed. Without it, verifying is bounded by about the work of
        the export, or of eight watched calls: one trial of every kind is made before the second of
        any, and ``tally.left_out`` counts those that are left out. ``seconds`` is the time after which
        no further trial is begun but those of observed calls. What was tried is counted by kind in
        ``tally.counts`` and ``tally.summary``.

        A verification that was ended, by a bound or by Ctrl-C, goes on where it ended when it is
        asked for again with the same arguments and the same weights: the tally is that of all
        trials so far.

        Where the program keeps state, the first kept calls are made one after the other as well,
        twice, each side with the state that it has come to.

        ``atol`` is the largest difference allowed, times (1 + the largest value) of each float32
        output; ints, bools, shapes and dtypes must be equal, NaN against a number fails. The tally
        is kept for
        :attr:`report`.

        A program with another ``precision`` than its model gives other numbers: what differs by more
        than ``atol`` fails, so that you say how much is allowed. Its scores are compared too, those
        of the first result, ``logits``: ``agreement`` is the least share of tokens, of the watched
        calls and of the unseen ones, for which the largest score stands at the same place, 1.0 where
        it is not given. :meth:`Tally.scores <onlooker.Tally.scores>` and the report state both. For
        an exact program scores are measured where ``agreement`` is given.

        ``model`` is the model to compare with; by default the one that was watched, which a loaded
        program lacks.

        ``session_options`` and ``providers`` are as in :meth:`to`, for this call alone: a program
        of ONNX is tried as ONNX Runtime runs it with them. A graph for which it has no kernels is
        in ``tally.blocked``, and nothing is tried.

        :raises UsageError: ``no-model``, ``no-values`` for a program that was loaded without them,
            ``another-signature``, ``bad-tolerance``, ``bad-trials``, ``no-such-symbol``,
            ``wrong-kind``, ``unknown-option``, ``bad-session-options``, ``bad-providers``
        """
        given = check_request(self.plans, atol, sizes, seed, trials, seconds)
        agreeing = wanted_agreement(agreement, is_exact=_is_exact(self.graphs))
        tried = self._run_with(session_options=session_options, providers=providers)
        subject = self._subject_of(model)
        if not self._samples:
            raise _without_values()
        blocked = [f"{graph.name}: {graph.blocked}" for graph in tried.graphs if graph.blocked]
        if blocked:
            self._verdict = Tally(blocked=tuple(blocked)), ()
            return self._verdict[0]
        logger.info("verifying on observed and unseen calls")
        again = trials != 1
        most = None if trials is None else trials - again  # one is the first, repeated
        choose = partial(
            chosen_trials,
            self.graphs,
            self._samples,
            self._kept_values(),
            given,
            seed=seed,
            most=most,
        )
        left = self._subject.kept if self._subject is not None and model is None else None
        ways = repr(session_options), repr(providers)
        asked = (atol, agreeing, repr(given), seed, trials, seconds, ways)
        with (
            self._stages.stage("verify"),
            kept_when_interrupted(self._kept_of_verifying),
            kept_state(subject.model, {}),
        ):  # a program shares buffers with its model
            effort = Effort(subject.model, bounded=trials is None, seconds=seconds)
            progress, effort = self._goes_on((*asked, weights_of(subject.watched)), effort)
            tally, unlawful = run_trials(
                tried._serve,
                subject,
                choose(),
                atol=atol,
                total=sum(1 for _ in choose()) if is_watched() else None,
                graphs=[graph.name for graph in self.graphs],
                again=again,
                effort=effort,
                progress=progress,
                agreeing=agreeing,
                kept=left if self._state is None else None,
            )
            further = further_checks(
                tried._serve, subject, self._samples, self._state, left, unseen=choose, atol=atol
            )
        tally = replace(tally, checks=(*tally.checks, *further))
        tally = with_axes(tally, self.graphs, self._recording, self._joins)
        self._verdict = tally, unlawful
        if not tally.left_out:
            self._unfinished = None
        return tally

    def _goes_on(self, request: tuple[Any, ...], effort: Effort) -> tuple[Progress, Effort]:
        """The trials that were made, and their effort, where this was asked for before and did not
        end; otherwise a beginning with ``effort``.
        """
        if self._unfinished is None or self._unfinished[0] != request:
            self._unfinished = request, Progress(), effort
        _, progress, effort = self._unfinished
        effort.begin()
        return progress, effort

    def _kept_of_verifying(self) -> str:
        n_tried = len(self._unfinished[1].tried) if self._unfinished is not None else 0
        return (
            f"{n_tried} trials were made and are kept: verify() with the same arguments goes on from"
            " there. The program, its tally and the model are as they were."
        )

    def _run_with(self, **options: Any) -> Program:
        """The program as its target runs it with these options; itself where none is given.

        :raises UsageError: ``unknown-option``, and those of the target
        """
        given = {name: value for name, value in options.items() if value is not None}
        if not given:
            return self
        target = target_of(self.graphs[0].target)
        running = [name for name in target.reading if name in target.options]
        check_options(target, given, running)
        return self._with_graphs(read_again(target, self.graphs, **given))

    def _know_untouched(self, effects: Mapping[int, Mapping[str, Effect]]) -> None:
        """Notes which lists, dicts or objects of tensors the kept calls leave as they are; ``effects``
        is what was found of each call, by its number.
        """
        if self._state is None:
            self._untouched = untouched_arguments(self._samples, self._dispatcher, effects)

    def _with_graphs(self, graphs: Sequence[Graph]) -> Program:
        """The same calls and model, with these graphs."""
        made = self._beside(self._recording, self._samples, self._subject, graphs)
        made._limits = self._limits
        return made

    def _beside(
        self,
        recording: Recording,
        samples: Sequence[Sample],
        subject: Lab | None,
        graphs: Sequence[Graph],
    ) -> Program:
        """These graphs with such calls and model, and a state of their own."""
        made = Program(
            graphs,
            recording,
            samples,
            subject,
            self.refusals,
            self._joins,
            self._state.copy() if self._state is not None else None,
            self._changed,
        )
        made._untouched = self._untouched
        return made

    def _subject_of(self, model: Any) -> ModelRunner:
        """The model to compare with, whose runs count against no budget: the one that was
        watched, or the given one.
        """
        if model is not None:
            recording = self._recording
            state = self._state
            if state is None:
                checked, method = check_model(model, recording), recording.method
            else:
                plain = without_state(recording.signature, state.name)
                check_model(model, replace(recording, signature=plain))
                checked = Stateful(
                    model, recording.method, recording.signature, state.name, state.paths
                )
                method = "forward"
            return ModelRunner.of_twin(
                checked,
                method,
                recording.signature,
                autocast=autocast_of(recording.calls),
                gradients=record_gradients(recording.calls),
                changed=self._changed,
            )
        return self._watched().with_new_twin()

    def _watched(self) -> ModelRunner:
        """The model that was watched."""
        if self._subject is None:
            raise UsageError(
                "A program that was loaded has no model.",
                slug="no-model",
                hint="Give it: program.verify(model=model), program.installed(model).",
            )
        return self._subject.subject

    def _serve(self, arguments: dict[str, Any]) -> Any:
        args, kwargs = as_args_kwargs(self._recording.signature, arguments)
        result = self._dispatcher(args, kwargs)
        gives_parts = self._state is not None or self._changed
        return of_given_arguments(result, arguments) if gives_parts else result

    @property
    def tally(self) -> Tally:
        """What was verified so far; empty before :meth:`verify`."""
        return self._verdict[0] if self._verdict else Tally()

    @property
    def experiments(self) -> Experiments:
        """What was tried with the model before the export, and what came of each experiment:
        ``print(program.experiments)``.
        """
        return experiments_of(self.plans)

    @property
    def report(self) -> Report:
        """What was observed, asked, obtained, tried, and what failed: ``print`` shows it in short,
        ``text(full=True)`` has all evidence, ``to_dict()`` is for JSON.
        """
        contracts = [(graph.plan, graph.contract) for graph in self.graphs]
        others = OtherSides(contracts)
        traffic = self._traffic()
        graphs = tuple(
            graph_report(
                graph.plan,
                target=graph.target,
                obtained=graph.obtained,
                contract=graph.contract,
                sizes=graph.sizes,
                notes=(*graph.notes, *self._notes_of_changed(graph)),
                seconds=graph.seconds,
                others=others,
                options=graph.options,
                outputs=_output_rows(graph),
                traffic=traffic.get(graph.name, ()),
                file=graph.file,
            )
            for graph in self.graphs
        )
        groups = served_together(contracts)
        tally, unlawful = self._verdict or (Tally(), ())
        missed = (*self._recording.missed, *self.refusals)
        unknown = self._subject.unknown if self._subject is not None else ()
        blind = blind_spots(self.plans, self._recording.signature, unknown)
        return Report(
            self._recording.model,
            self._recording.method,
            graphs,
            tally,
            unlawful,
            missed,
            blind,
            stages=self._stages.stages(),
            probes=self._subject.runs if self._subject is not None else 0,
            surroundings=surroundings_of(self._recording),
            served=tuple(group.served for group in groups),
            refusals=refusals_of(
                self.plans,
                groups,
                graphs,
                [graph.marks for graph in self.graphs],
                self._recording.signature,
            ),
            unknown=told_spots(self.plans, unknown),
            calls=len(self._recording),
        )

    def _traffic(self) -> dict[str, list[tuple[Mapping[str, int], int]]]:
        """The watched calls by the graph that serves them: sizes by symbol, and the number of
        calls.
        """
        found: dict[str, list[tuple[Mapping[str, int], int]]] = {}
        for call, sizes in self.sized_calls() if self._recording.calls else ():
            found.setdefault(call.graph, []).append((sizes, call.count))
        return found

    def _notes_of_changed(self, graph: Graph) -> list[str]:
        names = changed_in(graph.outputs.structure) if self._changed else ()
        return [
            f"{name} is changed by the call and not returned: the graph gives it beside the result,"
            " and the program brings that of the caller to this state"
            for name in names
        ]

    @quietly
    def to(self, target: str, *, ranges: RangesOption | None = None, **options: Any) -> Program:
        """The same plans for another target: ``"onnx"``, ``"aoti"``, ``"openvino"`` or
        ``"executorch"`` from a program of torch.export.

        ``options`` are those of the target: ``opset=21`` for ONNX. ``onlooker.targets.targets``
        lists the options and the packages of each target.

        For ONNX, ``session_options`` and ``providers`` say how ONNX Runtime runs the program in
        this process; they are not saved, and may be given to a program of ONNX too.
        ``session_options`` are values by the names of the attributes of
        ``onnxruntime.SessionOptions``, as in ``{"intra_op_num_threads": 4}``, and by the keys of
        config entries; or such an object, which is used as it is: each graph then has weights of
        its own. ``providers`` are as InferenceSession takes them. Where these have no kernels for
        the dtype of the model, a warning, ``no-kernels``, says so before the model is converted.

        For ONNX too, ``precision`` (``"fp16"``, ``"int8"`` or ``"int4"``) makes the weights smaller,
        ``fuse`` (``"cpu"``, ``"cuda"`` or ``"webgpu"``) puts operators of ONNX Runtime in the place of
        several plain ones, GroupQueryAttention among them, and ``in_place_cache=True`` lets it update
        the cache in place. Calls that GroupQueryAttention does not take, several rows with several
        new tokens after a past, are then outside of the contract. :meth:`verify` says how near such a
        program comes to the model.

        For OpenVINO, ``device`` (``"CPU"`` by default) and ``config``, properties of OpenVINO by name,
        are the same for its models. With ``stateful=True`` the model keeps its cache inside: it is
        neither an input nor an output of the files, and calls of the program may leave it out.

        ``ranges`` are as in :meth:`InputObserver.export`; they narrow what the program takes, and
        never widen it. For ExecuTorch every symbol needs an upper bound, from the ranges of the
        export or from these. ``backend`` is ``"portable"`` or ``"xnnpack"``.

        The watched calls and some other sizes are tried on both programs. A warning,
        ``serves-less``, and a note of the graph in :attr:`report` name those that this program
        serves and the new one refuses or answers otherwise, with the reason.

        :raises UsageError: ``unknown-target``, ``unknown-option``, ``not-from-torch``, and those of
            the target: ``bad-opset``, ``bad-variant``, ``bad-session-options``, ``bad-providers``,
            ``bad-openvino-options``, ``bad-backend``, ``bounds-needed``, ``bad-pin``,
            ``no-such-symbol``, ``pin-contradicts-calls``, ``range-beyond-bound``
        :raises MissingPackageError: ``missing-package``, ``no-compiler``
        :raises ExportError: ``onnx-refused``, ``onnx-not-quantised``, ``onnx-cache-not-in-place``,
            ``aoti-refused``, ``openvino-refused``,
            ``openvino-not-stateful``, ``executorch-refused``
        """
        chosen = target_of(target)
        check_options(chosen, options, chosen.options)
        is_there = all(graph.target == target for graph in self.graphs) and ranges is None
        if is_there and set(options) <= set(chosen.reading):
            return self._run_with(**options)
        others = sorted({graph.target for graph in self.graphs} - {"torch"})
        if others:
            raise UsageError(
                f"A program of {' and '.join(others)} cannot be turned into {target!r}.",
                slug="not-from-torch",
                hint=(
                    "Keep the program of torch that observer.export() gives, and turn that one into"
                    " each target."
                ),
            )
        chosen.require()
        graphs = self._in_ranges(ranges, chosen)
        with self._stages.stage("export"):
            wide = self._with_graphs(graphs)
            made, left_out = convert_or_leave_out(chosen, graphs, options, wide._is_served_by)
            converted = self._compared_with(without_nan(made, graphs, self._samples))
        return self._with_graphs(noted_refusals(converted, left_out))

    def _is_served_by(self, graphs: Sequence[Graph]) -> bool:
        """True when these graphs serve every watched call that all graphs serve: by the sizes of all
        calls, and by running those whose values were kept.
        """
        fewer = self._with_graphs(graphs)
        for before, now in zip(
            checked_calls(self.graphs, self._recording, self._joins, self._recording),
            checked_calls(graphs, self._recording, self._joins, self._recording),
            strict=True,
        ):
            if before.holds and not now.holds:
                return False
        trials = list(observed_trials(self._samples))
        return not any(runs(self._serve, trial) > runs(fewer._serve, trial) for trial in trials)

    def _in_ranges(self, ranges: RangesOption | None, target: Target) -> list[Graph]:
        """The graphs in narrower ranges of their sizes, with all bounds that the target needs.

        :raises UsageError: ``bounds-needed`` and others of the ranges
        """
        seen = seen_sizes(self.plans, self._recording, self._joins)
        plans = plans_in_ranges(self.plans, overrides_of(ranges=ranges), seen)
        if target.name != "torch":
            plans = list(map(from_one_on, plans))
        if target.needs_bounds:
            check_bounded(plans, seen, target.name)
        pairs = zip(self.graphs, plans, strict=True)
        return of_fixed_ranks([replace(graph, plan=plan) for graph, plan in pairs], target.name)

    def _compared_with(self, graphs: Sequence[Graph]) -> list[Graph]:
        """Graphs that were made of these ones, with notes of the calls that they serve no more.

        Tried are the observed calls and some other sizes, for no more work than
        :meth:`verify` may have. A program without model or values, or with a graph that cannot be
        run here, is not tried.
        """
        is_blocked = any(graph.blocked for graph in graphs)
        if is_blocked or self._subject is None or not self._samples:
            return list(graphs)
        kept = self._kept_values()
        model = self._watched().model
        with kept_state(model, {}):  # a program shares buffers with its model
            serve = self._with_graphs(graphs)._serve
            checks = lost_checks(
                serve,
                self._serve,
                few_trials(graphs, self._samples, kept),
                Effort(model),
                atol=_ATOL if _is_exact(graphs) else float("inf"),
            )
            if _is_exact(graphs):
                graphs = self._bound_to_finite(graphs, serve, kept, model)
        return noted_losses(graphs, checks, self.graphs[0].target)

    def _bound_to_finite(
        self,
        graphs: Sequence[Graph],
        serve: Callable[[dict[str, Any]], Any],
        kept: Sequence[Sample],
        model: Any,
    ) -> list[Graph]:
        """Graphs of another runtime, of which those that compute otherwise with infinite numbers take
        none; ``serve`` makes a call of them.
        """
        bound = list(graphs)
        for at, graph in enumerate(graphs):
            trials = infinite_trials(graph, kept) if graph.target != "torch" else []
            if not trials:
                continue
            found = lost_checks(serve, self._serve, trials, Effort(model), atol=_ATOL)
            if not all(check.passed for checks in found.values() for check in checks):
                bound[at] = not_finite(graph, self._samples)
        return bound

    def _kept_values(self) -> list[Sample]:
        """The kept calls as the graphs see them."""
        return [
            replace(
                s,
                inputs=joined(s.inputs, self._joins, join_tensors),
                outputs=joined_results(s.outputs, self._joins),
            )
            for s in self._samples
        ]

    def basis(self, model: Any = None) -> Basis:
        """What a verification starts from: graphs, calls with their values, and the model to compare
        with, by default the one that was watched.

        :raises UsageError: ``no-model``, ``no-values``, ``another-signature``
        """
        subject = self._subject_of(model)
        if not self._samples:
            raise _without_values()
        kept = tuple(self._kept_values())
        return Basis(self.graphs, self._recording, self._samples, kept, self._joins, subject)

    def seen_with(self, recording: Recording, samples: Sequence[Sample], subject: Lab) -> Program:
        """The same graphs, beside other calls and another model: see
        :meth:`InputObserver.adopted`.
        """
        return self._beside(recording, samples, subject, self.graphs)

    def verify_saved(self, *, atol: float = _ATOL) -> Tally:
        """Runs the kept calls, and compares with the results that were observed: no model is
        needed.

        The tally says nothing of other sizes, and is not kept for :attr:`report`.
        """
        return saved_trials(self._serve, self._samples, atol=atol)

    def check(self, calls: Recording | Iterable[Any]) -> Conformity:
        """New calls against what this program takes: which fall outside, by which axis or argument,
        how often.

        ``calls`` is a recording, or calls of the method: each ``(args, kwargs)``, or a dict of
        arguments by name. Nothing is run: the specs decide. The result prints as a table; ``holds``
        is True when a graph serves every call.

        :raises UsageError: ``different-entry-points`` for a recording of another method
        :raises ArgumentKindError: ``not-a-call``
        :raises ObservationError: ``no-calls`` when there is none
        """
        recording = self._recording
        found = checked_calls(self.graphs, recording, self._joins, calls)
        return Conformity(f"{recording.model}.{recording.method}", found)

    def profile(self, calls: Recording | Iterable[Any] | None = None) -> Profile:
        """How often which sizes came together, per graph, in the symbols of its plan.

        ``calls`` are as in :meth:`check`; without them, those that the program was made from.

        :raises UsageError: ``different-entry-points``
        :raises ArgumentKindError: ``not-a-call``
        :raises ObservationError: ``no-calls``

        >>> import torch, onlooker
        >>> model, observer = torch.nn.Linear(4, 2), onlooker.InputObserver()
        >>> with observer(model):
        ...     _ = [model(torch.ones(size, 4)) for size in (2, 2, 2, 8)]
        >>> print(observer.export().profile())
        main: 4 calls of 2 sizes
          batch: 2 to 8, p50 2, p90 8, p99 8
          3 calls: batch=2
          1 calls: batch=8
        """
        own = self._recording
        return profile_of_calls(self.graphs, own, self._joins, own if calls is None else calls)

    def emit(
        self,
        kind: str,
        calls: Recording | Iterable[Any] | None = None,
        *,
        count: int | None = None,
    ) -> Emitted:
        """The settings of another runtime for these graphs and this traffic, as text.

        ``kind`` is ``"tensorrt"`` (``torch_tensorrt.Input``), ``"trtexec"``, ``"ort-trt"``,
        ``"openvino"``, ``"executorch"``, ``"vllm"``, ``"triton"``, ``"buckets"`` or ``"compile"``
        (marks for ``torch.compile``). ``calls`` are as in :meth:`profile`. ``count`` is the number
        of profiles of each graph, 1 by default, or of buckets and captured sizes, 8 by default.

        Every size in the text is one that the graph takes: least, usual and greatest sizes are
        looked at together, never axis by axis, and a profile is divided where a corner of it would
        be outside of the contract. The result prints as the text, ``corners`` are these sizes.

        :raises UsageError: ``unknown-emitter``, ``bad-count``, ``different-entry-points``
        :raises ArgumentKindError: ``not-a-call``
        :raises ObservationError: ``no-calls``
        """
        traffic = self.profile(calls)
        return emitted(kind, self.served(traffic), traffic.unserved, count)

    def served(self, traffic: Profile | None = None) -> list[Served]:
        """The graphs, each with its traffic and with the names that its files have; by default the
        traffic of :meth:`profile`.
        """
        return _served(self.graphs, traffic or self.profile(), self._recording)

    def sized_calls(self) -> list[tuple[CheckedCall, dict[str, int]]]:
        """The calls that the program was made from, each with the graph that serves it and the
        sizes of the symbols of that graph.
        """
        return sized_calls(self.graphs, self._recording, self._joins, self._recording)

    def plot(self) -> Any:
        """A figure of matplotlib: every symbol over the calls, coloured by the graph that serves
        them, and the two symbols that changed most beside each other, with the sizes that were tried.

        :raises MissingPackageError: ``missing-package``
        """
        calls = self.sized_calls()
        names = dict.fromkeys(symbol.name for plan in self.plans for symbol in plan.symbols)
        columns = [Points(name, tuple(sizes.get(name) for _, sizes in calls)) for name in names]
        groups = [row.graph if row.holds else "no graph" for row, _ in calls]
        title = f"{len(self._recording)} calls of {self._recording.model}.{self._recording.method}"
        first = sorted(columns, key=lambda column: -len(set(column.sizes)))[:2]
        if len(first) < 2:
            return figure_of(title, columns, groups)
        x, y = sorted(first, key=columns.index)
        tried = [
            Tried(sizes[x.name], sizes[y.name], check.passed)
            for check in self.tally.checks
            for sizes in (dict(check.sizes),)
            if x.name in sizes and y.name in sizes
        ]
        return figure_of(title, columns, groups, (x, y), tried)

    def _repr_html_(self) -> str:
        """The short report, with plans and trials below it, for notebooks."""
        plans = "".join(plan._repr_html_() for plan in self.plans)
        trials = self.tally._repr_html_() if self.tally.total else ""
        return self.report._repr_html_() + details("plans and trials", plans + trials)

    def code(self, *, to: str | None = None, source: str = "", variable: str = "") -> str:
        """A Python script that exports the model again, without onlooker: arguments, dynamic
        shapes, the export.

        ``to`` is ``"torch"`` or ``"onnx"``, that of the program by default; ``source`` is the body
        of the function that gives the model, which else is left to fill in. With ``variable="model"``
        it is code to be pasted where a variable of that name holds the model. The values are random:
        of what was observed, the script has shapes, constants, and the least and the greatest id of
        the kept calls.

        :raises UsageError: ``unknown-target``
        :raises UnsupportedError: ``no-code-for-class`` when an argument cannot be written as Python,
            ``no-code-for-state`` for a program that keeps state
        """
        if self._state is not None:
            raise UnsupportedError(
                "No script is written for a program that keeps the state of its model: the state is"
                " an argument of the graphs, and none of the model.",
                slug="no-code-for-state",
                hint="Save the program with program.save(directory) instead.",
            )
        wanted = to or ("onnx" if self.graphs[0].target == "onnx" else "torch")
        if wanted not in ("torch", "onnx"):
            raise UsageError(
                f"No script is written for {to!r}.",
                slug="unknown-target",
                hint="A script exports to torch or onnx.",
            )
        limits, autocast = self._seen_limits(), autocast_of(self._recording.calls)
        graphs = [
            GraphCode(
                graph.plan,
                graph.outputs.structure,
                graph.outputs.dynamic,
                graph.outputs.names,
                graph.sizes,
                graph.obtained,
                graph.contract,
                graph.named,
                graph.oblivious,
                _hidden(graph.plan),
                limits,
                autocast,
                changed_in(graph.outputs.structure) if self._changed else None,
            )
            for graph in self.graphs
        ]
        signature = self._recording.signature
        return script_of(graphs, signature, to=wanted, source=source, variable=variable)

    def _seen_limits(self) -> Mapping[Path, tuple[float, float]]:
        """The least and the greatest number of ids and masks: of the kept calls, or as they were
        saved.
        """
        kept = self._kept_values()
        return {**self._limits, **limits_of(kept)}

    def save(
        self,
        directory: str | FilePath,
        *,
        values: bool = False,
        beside: Sequence[FilePath] = (),
    ) -> None:
        """Writes the program as a folder, which :func:`onlooker.load` reads: graphs, plans, report, weights
        stored once. A path that ends in ``.onnx``, ``.xml``, ``.pte`` or ``.pt2`` is written as that
        one file, for those who run it without onlooker.

        A file has the graphs and their weights alone. An ``.onnx`` holds several graphs, and finds by
        the sizes of a call which of them takes it; from 2 GB of weights on they stand beside it, in
        ``NAME.onnx.data``. The ``.xml`` of OpenVINO has its ``.bin`` beside it.

        The folder has no pickle, and of the calls only specs (constants are a part of them); with
        ``values`` also the tensors of the kept calls, so that :meth:`verify` can be run where it is
        loaded. The state that the program keeps is written as it is now, and as it was when watching
        began. The folder appears when it is complete: a run that is killed leaves what was there before,
        or nothing. A folder that onlooker wrote is replaced, any other is left alone. Each of
        :attr:`graphs` then has the name of its file. ``beside`` are files of yours that belong to the
        program, such as the configuration of the model: they are copied, and checked as all others.

        :raises UsageError: ``wrong-suffix`` for a file of another target, ``folder-only`` for
            ``values`` or ``beside`` with one file, ``not-a-file``
        :raises SavedFileError: ``folder-not-ours``, ``not-written``
        :raises UnsupportedError: ``not-saved``, ``program-not-saved``, ``tensor-not-saved``;
            ``several-graphs``, ``no-single-file`` for what one file cannot hold
        :raises ExportError: ``not-mergeable`` for graphs that cannot be one model of ONNX

        >>> program.to("onnx").save("model.onnx")  # doctest: +SKIP
        """
        folder = as_path(directory, "The folder of a program")
        if is_file_name(folder):
            target = target_of(self.graphs[0].target)
            check_file_name(folder, target, values=values, beside=beside)
            graphs = self._in_one_file()
            write_one(graphs, folder)
            names = {graph.name for graph in graphs}
            self.graphs = tuple(
                replace(graph, file=folder.name) if graph.name in names else graph
                for graph in self.graphs
            )
            return
        report = self.report.to_dict()
        self.graphs = save_folder(self._kept(), report, folder, values=values, beside=beside)

    def _in_one_file(self) -> tuple[Graph, ...]:
        """The graphs that one file needs: those of the form of the first one where they serve all
        watched calls. A graph for calls that leave an argument out, which no call did, is none of
        them: whoever runs the file gives all inputs.
        """
        chosen = [graph for graph in self.graphs if graph.form == self.graphs[0].form]
        names = {graph.name for graph in chosen}
        rows = self.sized_calls() if self._recording.calls else ()
        if not all(call.graph in names for call, _ in rows):
            return self.graphs
        for graph in self.graphs:
            if graph.name not in names:
                logger.info("%s serves no watched call, and is not in the file", graph.name)
        return tuple(chosen)

    def _kept(self) -> Kept:
        """What a folder holds of the program: see :meth:`onlooker.Programs.save`."""
        return Kept(
            self.graphs,
            self._recording,
            self._samples,
            self.refusals,
            self._joins,
            self._seen_limits(),
            self._verdict,
            self._state,
            self._untouched,
            self._changed,
        )

    @classmethod
    def of_kept(cls, kept: Kept) -> Program:
        """The program of what a folder holds: see :func:`onlooker.load`."""
        program = cls(
            kept.graphs,
            kept.recording,
            kept.samples,
            None,
            kept.refusals,
            kept.joins,
            kept.state,
            kept.changed,
        )
        program._verdict, program._limits = kept.verdict, kept.limits
        program._untouched = kept.untouched
        return program

    def save_graphs(self, directory: str | FilePath) -> list[FilePath]:
        """Writes one file per graph (``.pt2``, ``.onnx``, ``.xml``), and those with their weights, into
        ``directory`` and gives their paths.

        Other files there stay; where a disk is full, all files that stood there are as they were.

        :raises UsageError: ``not-a-directory``
        :raises SavedFileError: ``not-written``
        """
        folder = _directory(directory, "The folder of the graphs")
        with write_into(folder) as inside:
            if all(graph.target == "torch" for graph in self.graphs):
                names = [
                    save_graph(graph, inside / f"{graph.name}.pt2").name for graph in self.graphs
                ]
            else:
                names = target_of(self.graphs[0].target).write(self.graphs, inside)
        return [folder / name for name in names]

    def save_genai(
        self,
        directory: str | FilePath,
        tokenizer: Any = None,
        generation_config: Any = None,
        *,
        config: Any = None,
        context_length: int | None = None,
    ) -> list[FilePath]:
        """Writes a folder that ONNX Runtime GenAI generates with, for a program of ONNX of a
        decoder: ``model.onnx``, its weights, and ``genai_config.json``, made of the names and sizes
        of the graph. Gives the paths of all files.

        ``tokenizer`` is a local folder whose files are copied, or a tokenizer of transformers.
        ``generation_config`` has the special tokens and the settings of the search: an object of
        transformers, a mapping, or a local folder; ``config`` is the configuration of the model. By
        default both are those of the watched model, which a loaded program lacks.

        ``context_length`` is the greatest length of prompt and new tokens together: by default what
        the configuration says, or 4,096. Where the graph is proven for shorter texts only, by the
        ``ranges`` of the export perhaps, a warning, ``shorter-texts``, says for which.

        Other files in ``directory`` stay.

        :raises UnsupportedError: ``not-for-genai`` with the reason why GenAI cannot run it
        :raises UsageError: ``bad-config``, ``no-end-token``, ``no-tokenizer``, ``not-a-directory``
        :raises SavedFileError: ``not-written``

        >>> program.to("onnx").save_genai("out", tokenizer="folder")  # doctest: +SKIP
        """
        folder = _directory(directory, "The folder for ONNX Runtime GenAI")
        watched = self._subject.subject.watched if self._subject is not None else None
        own = getattr(watched, "generation_config", None)
        with write_into(folder) as inside:
            write_genai(
                self.graphs,
                inside,
                config=getattr(watched, "config", None) if config is None else config,
                generation_config=own if generation_config is None else generation_config,
                tokenizer=tokenizer,
                context_length=context_length,
            )
            names = sorted(path.name for path in inside.iterdir())
        return [folder / name for name in names]

    def __repr__(self) -> str:
        names = ", ".join(_described(graph) for graph in self.graphs)
        targets = " and ".join(dict.fromkeys(graph.target for graph in self.graphs))
        watched = f"{self._recording.model}.{self._recording.method}"
        return f"<onlooker.Program of {watched} as {targets}: {names}, {self.tally.verdict}>"


def _described(graph: Graph) -> str:
    """The name of a graph, with the options of its files where there are any."""
    options = ", ".join(f"{name}={value}" for name, value in graph.options.items())
    return f"{graph.name} ({options})" if options else graph.name


def _output_rows(graph: Graph) -> list[OutputRow]:
    """The outputs of a graph, with what is known of their dtypes and shapes."""
    outputs = graph.outputs
    is_known = len(outputs.kinds) == len(outputs.names)
    kinds = outputs.kinds if is_known else (("", ()),) * len(outputs.names)
    found = []
    for name, (dtype, shape) in zip(outputs.names, kinds, strict=True):
        is_number = dtype in ("int", "float", "")
        found.append(OutputRow(name, dtype if is_number else f"{dtype}[{', '.join(shape)}]"))
    return found


def _is_exact(graphs: Sequence[Graph]) -> bool:
    """True where no graph was asked for in another precision than that of the model."""
    return not any("precision" in graph.options for graph in graphs)


def _served(graphs: Sequence[Graph], traffic: Profile, recording: Recording) -> list[Served]:
    """The graphs with their traffic, and with the names that their files have."""
    outputs = {call.index: call.outputs.leaves for call in recording.calls}
    found = []
    for graph in graphs:
        leaves = next((outputs[n] for n in graph.plan.calls if n in outputs), ())
        specs = [leaf for leaf in leaves if isinstance(leaf, TensorSpec)]
        names = graph.outputs.names
        known = [
            (name, spec.dtype, len(spec.shape))
            for name, spec in zip(names, specs, strict=False)
            if len(names) == len(specs)
        ]
        own = traffic.graph(graph.name) or profile_of_rows(graph.name, ())
        found.append(Served(graph.plan, graph.contract, own, graph.labels, tuple(known)))
    return found


def _without_values() -> UsageError:
    return UsageError(
        "The program has no values of calls to start from.",
        slug="no-values",
        hint="Save it with program.save(directory, values=True), or watch calls again.",
    )


def _directory(directory: str | FilePath, what: str) -> FilePath:
    folder = as_path(directory, what)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file.", slug="not-a-directory", hint="Name a directory.")
    return folder


def _hidden(plan: Plan) -> dict[Path, dict[str, tuple[object, str]]]:
    """The small tensors that the caches of a plan hold, as numbers."""
    return {
        path: {name: (value.tolist(), str(value.dtype)) for name, value in tensors.items()}
        for path, tensors in hidden_tensors(plan.structure).items()
    }

"""The program that an export gives: all graphs behind one callable, with the proof."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .core.drawing.markup import details
from .core.errors import UnsupportedError
from .core.plan import Plan
from .core.profile import Profile
from .core.recording import Recording
from .core.support.kinds import as_path
from .core.traffic import CheckedCall
from .core.verdict import Tally
from .emit.texts import Emitted, emitted
from .emit.traffic import Served, served_graphs
from .hypotheses.overrides import RangesOption
from .keep.files import (
    save_file,
    save_genai,
    save_graphs,
    save_sentence_transformers,
    save_web,
)
from .keep.folder import save_folder
from .keep.tuning import Tuned, tuned
from .keep.worker import spread_over
from .observing.surroundings import autocast_of
from .patches.quiet import quietly
from .pytrees.hidden import hidden_numbers
from .report.code import script_of
from .report.experiments import Experiments, experiments_of
from .report.figure import figure_of_program
from .report.report import Report, report_of
from .report.traffic import Conformity
from .serve.installed import Installed, installed
from .serve.runnable import RunnableProgram
from .targets.onnx.readers.web import DTYPES, WebFile
from .targets.single_file import is_file_name
from .trace.graph import Graph
from .verify.check import checked_calls, profile_of_calls, sized_calls
from .verify.conversion import converted
from .verify.request import SizesOption, request_of
from .verify.verification import Verification, saved_trials

if TYPE_CHECKING:
    from .compiling.paddings import Paddings

__all__ = ["Program"]


class Program:
    """An exported model: called as the model is called.

    A call goes to the first graph that takes it. Constants must be as they were
    observed; an argument that some observed call lacked may be left out; an absent cache counts as
    an empty one. A call that no graph takes is refused by a :class:`~onlooker.RejectedCallError`
    that names the argument.

    ``graphs`` are the exported graphs, ``plans`` what was asked of each.
    """

    def __init__(self, program: RunnableProgram) -> None:
        self._program = program
        self._verification = Verification()

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The exported graphs, in the order in which a call is offered to them."""
        return self._program.contents.graphs

    @property
    def refusals(self) -> tuple[str, ...]:
        """The reasons for which some calls have no graph: a text for each plan that torch refused,
        and for each watched call that no graph takes.
        """
        return self._program.contents.refusals

    @property
    def recording(self) -> Recording:
        """The specs of the calls that the program was made from."""
        return self._program.contents.recording

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plan of each graph."""
        return self._program.contents.plans

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the exported graph, in the classes that the model returns.

        A program of OpenVINO with ``stateful=True`` serves a call without a cache with the cache of
        the call before; :meth:`reset_state` begins anew.
        """
        return self._program(args, kwargs)

    @property
    def state(self) -> Mapping[str, Any]:
        """The values that the program keeps from call to call, by the path of the attribute of the
        model; empty for a model that was watched without ``state=True``.

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
        state = self._program.state
        return MappingProxyType({} if state is None else dict(state.values))

    def reset_state(self) -> None:
        """Brings :attr:`state` back to what stood in the model when watching began, and forgets
        caches that the program keeps: for a new stream, or a new text.
        """
        self._program.reset()

    @property
    def weights(self) -> Mapping[str, Mapping[str, Any]]:
        """The weights that are an argument of the graphs, ready to be passed; empty for most programs.

        For a list of blocks they are those of each block, by its place in the list; for a model that
        was watched with ``adapters=True`` the matrices of each adapter by its name, and ``"none"``.

        >>> import torch, onlooker
        >>> layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        >>> with onlooker.observe(layer=layers) as observers:
        ...     for rows in (2, 3):
        ...         x = torch.ones(rows, 4)
        ...         for layer in layers:
        ...             x = layer(x)
        >>> program = observers.export()["layer"]
        >>> list(program.weights), list(program.weights["2"])
        (['0', '1', '2'], ['weight', 'bias'])
        >>> torch.equal(program(x, weights=program.weights["2"]), layers[2](x))
        True
        """
        weights = self._program.weights
        return MappingProxyType({} if weights is None else dict(weights.sets))

    @contextlib.contextmanager
    def installed(self, model: Any = None, *, fallback: bool = False) -> Iterator[Installed]:
        """Inside the block the watched method of ``model`` runs on this program, its signature
        kept; by default of the model that was watched, which a loaded program lacks. A program of
        equal blocks is put into each, with the weights that :attr:`weights` has for it: ``model`` is
        then the list of blocks. A model with adapters passes those of the adapter that is active.

        ``model.generate(...)`` and pipelines then use the graphs: a cache that they hold is changed
        in place, as the model changes it. Copies of the model run eagerly, but for the one whose
        calls were watched in place of those of the model; of a part that was watched in this way,
        the part runs on them. On exit ``vars(model)`` is what it was. A call that no
        graph takes raises from inside; with ``fallback`` it runs on the model, and is counted.
        Results of graphs carry no gradients. Gives the number of calls that each graph served.

        :raises UsageError: ``no-such-method``, ``no-model``, ``another-signature`` for a model
            whose method does not take what the graphs take, in the same order, ``no-such-block``
        :raises RejectedCallError: inside the block: ``call-refused``, ``call-does-not-bind``,
            ``cache-not-returned``, ``no-such-adapter``
        """
        with installed(self._program, model, fallback=fallback) as served:
            yield served

    def verify(
        self,
        *,
        atol: float | None = None,
        sizes: SizesOption = (),
        model: Any = None,
        seed: int = 0,
        trials: int | None = None,
        seconds: float | None = None,
        agreement: float | None = None,
        metric: Callable[[Callable[..., Any]], Any] | None = None,
        at_least: float | None = None,
        session_options: Any = None,
        providers: Any = None,
        executor: Any = None,
        build: Any = None,
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
        output, 1e-5 by default; ints, bools, shapes and dtypes must be equal, NaN against a number
        fails. The tally is kept for :attr:`report`.

        A program with another ``precision`` than its model gives other floats. Without ``atol`` they
        are judged by their distance, output by output, over the watched calls that nothing was
        calibrated on, and over the unseen ones: beside them stands the distance of the model itself
        whose products round as the precision does, and a program that is several times as far fails.
        ``tally.distances`` and the report have the figures: the mean and the largest error relative
        to the spread of the output, the cosine, and how many rows have their largest number at the
        same place. With ``atol`` such a program is compared number by number.

        ``agreement`` is the least share of tokens, of the watched calls and of the unseen ones, for
        which the largest score of the first result, ``logits``, stands at the same place: 1.0 where
        ``atol`` is given for such a program, else none by default. :meth:`Tally.scores
        <onlooker.Tally.scores>` and the report state it.

        ``metric`` is a function of what is called as the model is, the program or the model, that
        returns a number, the higher the better: an accuracy on data of yours. ``at_least`` is the
        least that it may be of the program, by default what it is of the model.

        ``model`` is the model to compare with; by default the one that was watched, which a loaded
        program lacks.

        ``session_options`` and ``providers`` are as in :meth:`to`, for this call alone: a program
        of ONNX is tried as ONNX Runtime runs it with them. A graph for which it has no kernels is
        in ``tally.blocked``, and nothing is tried.

        With an ``executor``, as those of :mod:`concurrent.futures` are, its workers make the trials:
        each loads the program from a folder among the temporary files, and the model by ``build``, a
        function or its name, ``"app.py:build"``, that gives the same model in every process. The
        tally is that of one process.

        :raises UsageError: ``bad-worker``, ``bad-function``, ``no-model``, ``no-values`` for a
            program that was loaded without them, ``another-signature``, ``bad-tolerance``,
            ``bad-trials``, ``bad-metric``, ``no-such-symbol``, ``wrong-kind``, ``unknown-option``,
            ``bad-session-options``, ``bad-providers``
        """
        request = request_of(
            self._program.contents,
            atol=atol,
            sizes=sizes,
            seed=seed,
            trials=trials,
            seconds=seconds,
            agreement=agreement,
            options={"session_options": session_options, "providers": providers},
            metric=metric,
            at_least=at_least,
        )
        report = {} if executor is None else self.report.to_dict()
        with spread_over(self._program, report, request, executor, build, model) as spread:
            return self._verification.run(self._program, request, model, spread)

    @property
    def tally(self) -> Tally:
        """The tally of all trials so far; empty before :meth:`verify`."""
        return self._program.contents.tally

    @property
    def experiments(self) -> Experiments:
        """The experiments with the model before the export, each with its result:
        ``print(program.experiments)``.
        """
        return experiments_of(self.plans)

    @property
    def report(self) -> Report:
        """The report: what was observed, asked, exported, tried, and what failed. ``print`` shows
        it in short, ``text(full=True)`` has all evidence, ``to_dict()`` is for JSON.
        """
        program, lab = self._program, self._program.lab
        return report_of(
            program.contents,
            self.sized_calls() if self.recording.calls else (),
            unknown=lab.unknown if lab is not None else (),
            stages=program.stages.stages(),
            probes=lab.runs if lab is not None else 0,
            state="" if program.state is None else program.state.name,
        )

    def __copy__(self) -> Program:
        return self._with(self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        return self._with(copy.deepcopy(self.__dict__, memo))

    def _with(self, attributes: Mapping[str, Any]) -> Program:
        made = type(self).__new__(type(self))
        made.__dict__.update(attributes)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UnsupportedError(
            "A program cannot be pickled: its graphs hold functions that are made when they run.",
            slug="not-saved",
            hint="Save it with program.save('FOLDER'), and call onlooker.load('FOLDER') in the other process.",
        )

    @quietly
    def to(self, target: str, *, ranges: RangesOption | None = None, **options: Any) -> Program:
        """Returns a program of the same plans for another target: ``"onnx"``, ``"aoti"``,
        ``"openvino"`` or ``"executorch"`` from a program of torch.export.

        ``options`` are those of the target: ``opset=21`` for ONNX. ``onlooker.targets.targets``
        lists the options and the packages of each target.

        For ONNX, ``session_options`` and ``providers`` say how ONNX Runtime runs the program in
        this process; they are not saved, and may be given to a program of ONNX too.
        ``session_options`` are values by the names of the attributes of
        ``onnxruntime.SessionOptions``, as in ``{"intra_op_num_threads": 4}``, and by the keys of
        config entries; or such an object, which is used as it is: each graph then has weights of
        its own. ``providers`` are as InferenceSession takes them. Where these have no kernels for
        the dtype of the model, a warning, ``no-kernels``, says so before the model is converted.

        ``precision`` stores and computes in smaller numbers: ``"fp16"``, ``"bf16"`` (weights),
        ``"int8"`` and ``"int4"`` (weights), or ``"int8-static"`` (weights and activations). The error
        for one that a target lacks lists those that it has; docs/precision.md has the table.
        ``float_layers`` leaves layers in floats, each by the path of its module, ``"blocks.0"`` for all
        in it. ``"int8-static"`` is calibrated: it measures between which bounds activations are, on half of
        the kept calls, which ``seed`` draws, or on those of ``calibration``: calls, each ``(args,
        kwargs)`` or a dict of arguments by name, an observer, or the folder of ``onlooker run
        --keep-values``. :meth:`verify` says how near such a
        program comes to the model.

        For ONNX too, ``fuse`` (``"cpu"``, ``"cuda"`` or ``"webgpu"``) puts operators of ONNX Runtime
        in the place of several plain ones, GroupQueryAttention among them, and ``in_place_cache=True``
        lets it update the cache in place. Calls that GroupQueryAttention does not take, several rows
        with several new tokens after a past, are then outside of the contract.

        For OpenVINO, ``device`` (``"CPU"`` by default) and ``config``, properties of OpenVINO by name,
        say how its models run in this process. With ``stateful=True`` the model keeps its cache
        inside: it is neither an input nor an output of the files, and calls of the program may leave
        it out.

        ``ranges`` are as in :meth:`InputObserver.export`; they narrow what the program takes, and
        never widen it. For ExecuTorch every symbol needs an upper bound, from the ranges of the
        export or from these. ``backend`` is ``"portable"`` or ``"xnnpack"``.

        The watched calls and some other sizes are tried on both programs. A warning,
        ``serves-less``, and a note of the graph in :attr:`report` name those that this program
        serves and the new one refuses or answers otherwise, with the reason.

        :raises UsageError: ``unknown-target``, ``unknown-option``, ``not-from-torch``, and those of
            the target: ``bad-opset``, ``bad-variant``, ``no-calibration``, ``bad-session-options``, ``bad-providers``,
            ``bad-openvino-options``, ``bad-backend``, ``bounds-needed``, ``bad-pin``,
            ``no-such-symbol``, ``pin-contradicts-calls``, ``range-beyond-bound``
        :raises MissingPackageError: ``missing-package``, ``no-compiler``
        :raises ExportError: ``onnx-refused``, ``onnx-not-quantised``, ``onnx-cache-not-in-place``,
            ``aoti-refused``, ``openvino-refused``,
            ``openvino-not-stateful``, ``openvino-not-quantised``, ``executorch-refused``,
            ``torch-not-quantised``
        """
        made = converted(self._program, target, options, ranges=ranges)
        return self if made is self._program else Program(made)

    def tune(
        self,
        target: str,
        *,
        agreement: float | None = None,
        error: float | None = None,
        atol: float | None = None,
        metric: Callable[[Callable[..., Any]], Any] | None = None,
        at_least: float | None = None,
        precisions: Iterable[str] | None = None,
        calibration: Any = None,
        seed: int = 0,
        runs: int = 12,
        trials: int | None = None,
        into: str | FilePath | None = None,
    ) -> Tuned:
        """The smallest program for a target that holds a bound: a precision, with the layers in floats
        that hurt most. ``tuned.program`` is that program, and ``print(tuned)`` a table of what was
        tried, each step with its size, its time beside floats, its distance and its verdict.

        The bound is ``agreement``, ``atol`` or ``metric`` and ``at_least``, as in :meth:`verify`, or
        ``error``, the largest mean error of an output relative to its spread, 0.05 for instance. The
        verdict of each step has to hold as well.

        ``precisions`` are those to try, by default all of the target that need no calibration. Where
        one with integers does not hold, layers are left in floats, ``float_layers`` of :meth:`to`: the
        worst one, two, four and up to half of them, and then fewer again. Which are the worst is
        measured on the calls of the calibration, half of the kept ones or ``calibration``, by the result
        of each layer with rounded numbers beside that in floats.

        At most ``runs`` programs are made. With ``into``, a folder, each step is kept in
        ``tuning.json``, and not made again by a search for the same bound with the same weights.

        :raises UsageError: ``no-bound``, ``bad-runs``, ``bad-tolerance``, ``bad-variant``, ``no-model``,
            ``no-values``, and those of :meth:`to` and :meth:`verify`

        >>> import torch, onlooker
        >>> model, observer = torch.nn.Linear(256, 256), onlooker.InputObserver()
        >>> with observer(model), torch.no_grad():
        ...     _ = [model(torch.randn(size, 256)) for size in (2, 3, 5, 8)]
        >>> found = observer.export().tune("torch", error=0.02)
        >>> found.step.precision, found.program.graphs[0].options["precision"]
        ('int8', 'int8')
        """
        bound = {"agreement": agreement, "atol": atol, "metric": metric, "at_least": at_least}
        found = tuned(
            self._program,
            target,
            bound,
            error=error,
            precisions=None if precisions is None else list(precisions),
            calibration=calibration,
            seed=seed,
            runs=runs,
            trials=trials,
            into=None if into is None else as_path(into, "The folder of a search"),
        )
        return replace(found, program=Program(found.program))

    def verify_saved(self, *, atol: float | None = None) -> Tally:
        """Runs the kept calls, and compares with the results that were observed: no model is
        needed. ``atol`` is as in :meth:`verify`.

        The tally says nothing of other sizes, and is not kept for :attr:`report`.
        """
        return saved_trials(self._program, atol)

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
        contents = self._program.contents
        return Conformity(contents.method, checked_calls(contents, calls))

    def profile(self, calls: Recording | Iterable[Any] | None = None) -> Profile:
        """Counts which sizes came together, per graph, in the symbols of its plan.

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
        contents = self._program.contents
        return profile_of_calls(contents, contents.recording if calls is None else calls)

    def emit(
        self,
        kind: str,
        calls: Recording | Iterable[Any] | None = None,
        *,
        count: int | None = None,
    ) -> Emitted:
        """The settings of another runtime for these graphs and this traffic, as text.

        ``kind`` is ``"tensorrt"`` (``torch_tensorrt.Input``), ``"trtexec"``, ``"ort-trt"``,
        ``"openvino"``, ``"executorch"``, ``"vllm"``, ``"triton"`` (the ONNX file of each
        graph), ``"triton-python"`` (a model in Python that calls the program), ``"buckets"`` or
        ``"compile"`` (marks for ``torch.compile``). ``calls`` are as in :meth:`profile`. ``count``
        is the number of profiles of each graph, 1 by default, or of buckets and captured sizes, 8 by
        default.

        Every size in the text is one that the graph takes: least, usual and greatest sizes are
        looked at together, never axis by axis, and a profile is divided where a corner of it would
        be outside of the contract. The result prints as the text, ``corners`` are these sizes.

        :raises UsageError: ``unknown-emitter``, ``bad-count``, ``different-entry-points``
        :raises ArgumentKindError: ``not-a-call``
        :raises ObservationError: ``no-calls``
        """
        traffic = self.profile(calls)
        return emitted(kind, self.served(traffic), traffic.unserved, count)

    def paddings(
        self, calls: Recording | Iterable[Any] | None = None, *, waste: float = 0.25
    ) -> Paddings:
        """The fewest sizes to which calls can be padded for ``torch.compile``, where at most the share
        ``waste`` of the work may be padding: see :class:`~onlooker.compiling.paddings.Paddings`.

        ``calls`` are as in :meth:`profile`. Padding must give the same results: the program runs calls as
        they are and padded, with two contents of the padding. Symbols for which that does not hold are
        never padded.

        :raises UnsupportedError: ``padding-not-exact`` where no symbol may be padded
        :raises UsageError: ``bad-waste``, ``different-entry-points``
        :raises ObservationError: ``no-calls``, ``no-values``
        """
        from .compiling.paddings import find_paddings  # it loads torch's compiler: a second

        return find_paddings(self._program, self.served(self.profile(calls)), waste)

    def served(self, traffic: Profile | None = None) -> list[Served]:
        """The graphs, each with its traffic and with the names that its files have; by default the
        traffic of :meth:`profile`.
        """
        return served_graphs(self._program.contents, traffic or self.profile())

    def sized_calls(self) -> list[tuple[CheckedCall, dict[str, int]]]:
        """The calls that the program was made from, each with the graph that serves it and the
        sizes of the symbols of that graph.
        """
        return sized_calls(self._program.contents, self.recording)

    def plot(self) -> Any:
        """A figure of matplotlib: every symbol over the calls, coloured by the graph that serves
        them, and the two symbols that changed most beside each other, with the sizes that were tried.

        :raises MissingPackageError: ``missing-package``
        """
        return figure_of_program(self._program.contents, self.sized_calls())

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
            ``no-code-for-state`` for a program that keeps state, ``no-code-for-blocks``
        """
        program = self._program
        if program.state is not None:
            raise UnsupportedError(
                "No script is written for a program that keeps the state of its model: the state is"
                " an argument of the graphs, and none of the model.",
                slug="no-code-for-state",
                hint="Save the program with program.save(directory) instead.",
            )
        if program.weights is not None:
            raise UnsupportedError(
                "No script is written for a program of equal blocks: their weights are an argument of"
                " the graphs, and none of a block.",
                slug="no-code-for-blocks",
                hint="Save the program with program.save(directory) instead.",
            )
        return script_of(
            program.contents,
            to=to,
            source=source,
            variable=variable,
            limits=program.limits,
            autocast=autocast_of(self.recording.calls),
            hidden=[hidden_numbers(plan.structure) for plan in self.plans],
        )

    @quietly
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
            save_file(self._program, folder, values=values, beside=beside)
        else:
            report = self.report.to_dict()
            save_folder(self._program, report, folder, values=values, beside=beside)

    @quietly
    def save_graphs(self, directory: str | FilePath) -> list[FilePath]:
        """Writes one file per graph (``.pt2``, ``.onnx``, ``.xml``), and those with their weights, into
        ``directory`` and gives their paths.

        Other files there stay; where a disk is full, all files that stood there are as they were.

        :raises UsageError: ``not-a-directory``
        :raises SavedFileError: ``not-written``
        """
        return save_graphs(self.graphs, directory)

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

        Adapters that are an argument have a file each, ``adapter_NAME.onnx_adapter``, which GenAI's
        ``Adapters.load`` takes; without one the model runs with none.

        Other files in ``directory`` stay.

        :raises UnsupportedError: ``not-for-genai`` with the reason why GenAI cannot run it
        :raises UsageError: ``bad-config``, ``no-end-token``, ``no-tokenizer``, ``not-a-directory``
        :raises SavedFileError: ``not-written``

        >>> program.to("onnx").save_genai("out", tokenizer="folder")  # doctest: +SKIP
        """
        return save_genai(
            self._program,
            directory,
            config=config,
            generation_config=generation_config,
            tokenizer=tokenizer,
            context_length=context_length,
        )

    def save_sentence_transformers(
        self, directory: str | FilePath, *, model: Any = None
    ) -> list[FilePath]:
        """Writes a folder that ``SentenceTransformer(directory, backend="onnx")`` loads, for a program of
        ONNX of a ``SentenceTransformer`` whose ``encode()`` was watched: ``onnx/model.onnx``, its
        configuration, tokenizer and modules. Gives the paths of all files.

        ``model`` is the ``SentenceTransformer``; by default the one that was watched, which a loaded
        program lacks. The file gives the embeddings of the tokens, which the reader pools and normalises
        by its own modules, and ``sentence_embedding``, which the graph pools and normalises itself.

        Where the program is proven for shorter texts than the model takes, a warning,
        ``shorter-texts``, says so, and the reader cuts texts at that length. Other files in
        ``directory`` stay, but for those in a folder ``onnx``.

        :raises UnsupportedError: ``not-for-sentence-transformers`` with the reason
        :raises ExportError: ``not-mergeable``
        :raises UsageError: ``not-a-directory``
        :raises SavedFileError: ``not-written``

        >>> program.to("onnx").save_sentence_transformers("out")  # doctest: +SKIP
        """
        return save_sentence_transformers(self._program, directory, model)

    @quietly
    def save_web(
        self,
        directory: str | FilePath,
        tokenizer: Any = None,
        *,
        config: Any = None,
        dtypes: Sequence[str] = tuple(DTYPES),
        verify: bool = True,
        atol: float | None = None,
        agreement: float | None = None,
    ) -> list[WebFile]:
        """Writes a folder that transformers.js loads, from a program of torch of a model of transformers:
        ``config.json``, the tokenizer, and one file for each of its ``dtypes``, ``onnx/model.onnx``,
        ``model_fp16.onnx``, ``model_quantized.onnx`` (q8) and ``model_q4.onnx``.

        ``tokenizer`` is a local folder whose files are copied, or a tokenizer of transformers.
        ``config`` is the configuration of the model, or a local folder that has it; by default that of
        the watched model, which a loaded program lacks.

        Each file is compared with the watched model, as by :meth:`verify`, before this returns, and the
        list says how near each comes: ``print(file.verdict)``. The file of fp32 is verified; of the
        others the distance is measured, and they are judged by ``atol`` and ``agreement`` where these are
        given. With ``verify=False`` nothing is compared, and nothing is said.

        A dtype that the weights cannot have is left out, with a warning, ``dtype-left-out``. Other files
        in ``directory`` stay, but for those in a folder ``onnx``.

        :raises UnsupportedError: ``not-for-web`` with the reason
        :raises UsageError: ``bad-variant``, ``bad-config``, ``no-tokenizer``, ``not-a-directory``,
            ``not-from-torch``, and those of :meth:`verify`
        :raises ExportError: as :meth:`to`
        :raises SavedFileError: ``not-written``

        >>> for file in program.save_web("out", tokenizer="folder"):  # doctest: +SKIP
        ...     print(file)
        onnx/model.onnx (fp32, 90.4 MB): verified, largest difference 7.2e-07
        onnx/model_fp16.onnx (fp16, 45.2 MB): differs from the model by up to 0.002 in 23 trials
        """
        return save_web(
            self._program,
            directory,
            tokenizer,
            config=config,
            dtypes=dtypes,
            verify=verify,
            atol=atol,
            agreement=agreement,
        )

    def __repr__(self) -> str:
        contents = self._program.contents
        names = ", ".join(graph.title for graph in contents.graphs)
        targets = " and ".join(dict.fromkeys(graph.target for graph in contents.graphs))
        return (
            f"<onlooker.Program of {contents.method} as {targets}: {names}, {self.tally.verdict}>"
        )

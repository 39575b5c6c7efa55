"""The observer: the facade that users know."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .by_hand.completed import completed_calls
from .by_hand.discrepancies import Rules, discrepancies
from .by_hand.inferred import check_given, given_sample, infer_values, spelled
from .by_hand.info import InputObserverInfo, info_of
from .by_hand.missing import (
    check_positions,
    named_values,
    with_missing_calls,
    with_missing_samples,
)
from .by_hand.shapes import DimNames, constant_axes, infer_shapes
from .by_hand.union import CallUnion, union_of_calls
from .core.contents import ProgramContents
from .core.errors import OnlookerWarning, UsageError, warn
from .core.plan import Plan
from .core.recording import Recording
from .core.support.kinds import check_kind, is_int
from .core.surroundings import Autocast
from .graphs.adapters import lifting_adapters
from .graphs.equal_blocks import telling_blocks_apart
from .graphs.exportable import check_exportable
from .graphs.fixed_sizes import at_single_sizes
from .graphs.graphs import export_graphs
from .graphs.plans import find_plans
from .graphs.prepare import Prepared, prepare
from .hypotheses.calls.attributes import unread_attributes
from .hypotheses.calls.changed_arguments import ChangedArguments, find_changed_arguments
from .hypotheses.calls.replay import find_doubt
from .hypotheses.overrides import AxisNames, Dims, Overrides, RangesOption, overrides_of
from .hypotheses.ranges import check_bounded, seen_sizes
from .lab.budget import BUDGET, Budget, BudgetOption, budget_of
from .lab.lab import Lab
from .lab.run_alone import check_runs_alone
from .lab.runner import ModelRunner, objects_in_calls
from .lab.stateful import Stateful
from .observing.observer import Watcher
from .observing.remove import names_to_remove
from .observing.state import kept_state
from .observing.store import Sample, Store
from .observing.surroundings import autocast_of, record_gradients
from .observing.tracked_state import StateTracker
from .observing.wrapping.lifted_weights import LiftedWeights
from .patches.collector import collecting_new_objects
from .patches.quiet import quietly
from .program import Program
from .pytrees.comparisons.leaves import thresholds_of
from .serve.runnable import RunnableProgram, check_model
from .serve.settings import Settings
from .serve.state import ProgramState
from .serve.weights import program_weights
from .targets.stand_ins import only_written
from .targets.target import check_precision
from .targets.targets import check_options, target_of

if TYPE_CHECKING:
    from .compiling.recompiles import Recompiles

__all__ = ["InputObserver"]

logger = logging.getLogger(__name__)


class InputObserver:
    """Watches a method of a model while it is used, and infers what torch.export needs.

    >>> import torch
    >>> model = torch.nn.Linear(4, 2)
    >>> observer = InputObserver()
    >>> with observer(model):
    ...     _ = model(torch.zeros(2, 4)), model(torch.zeros(3, 4))
    >>> observer.num_obs()
    2
    >>> observer.infer_dynamic_shapes()
    ({0: DimHint(DYNAMIC)},)
    """

    def __init__(
        self,
        value_if_missing: dict[str | int, Any] | None = None,
        *,
        max_bytes: int | None = None,
        state: bool = False,
    ) -> None:
        """``max_bytes`` is the memory that kept values may take, together.

        By default it is a quarter of what is free when the first values are kept, on each device,
        and at most 4 GiB.

        With ``state``, the attributes and buffers of modules that calls read and write (the last
        frames of a stream, a running sum, a counter) are inputs and outputs of the graphs, and the
        program keeps them from call to call: see :attr:`Program.state`. They may be tensors,
        numbers, None, and lists, tuples and dicts of these.

        :raises UsageError: ``bad-max-bytes``
        :raises ArgumentKindError: ``wrong-kind``
        """
        self.value_if_missing = value_if_missing
        self._watcher = Watcher(max_bytes, state=state)

    @contextlib.contextmanager
    def __call__(
        self,
        model: Any,
        store_n_calls: int = 3,
        method_name: str = "forward",
        *,
        keep: int | None = None,
    ) -> Iterator[InputObserver]:
        """Watches ``model.method_name`` inside the block.

        The specs of every call are recorded, the values of the first ``keep`` (and of calls that
        bring something new), as far as ``max_bytes`` goes: what it did not allow is named in a
        warning on exit, and in ``recording().missed``. ``store_n_calls`` is an older word for
        ``keep``, and 3. A precision is calibrated on kept calls, and proven on others: 64 are many.
        Values stay on the device where they are. Several blocks add up. The model's own attributes
        are not touched.

        :raises UsageError: ``no-such-method``, ``another-model``, ``bad-store-n-calls``,
            ``unknown-argument``
        :raises ArgumentKindError: ``unexpected-key``
        :raises UnsupportedError: ``script-module``; ``position-never-given``, on exit
        """
        n_values = store_n_calls if keep is None else keep
        with self._watcher.watch(model, method_name, n_values) as store:
            named_values(self.value_if_missing, store.signature_value)
            yield self
        store = self._watcher.stores[method_name]
        if self.value_if_missing:
            check_positions(self.value_if_missing, store.recording.calls, store.signature_value)
        if store.dropped:
            warn(
                OnlookerWarning(
                    f"Not all values were kept: {'; '.join(store.dropped)}.",
                    slug="values-dropped",
                    hint=(
                        "Give InputObserver a larger max_bytes, or a smaller number to keep, or"
                        " watch smaller inputs."
                    ),
                )
            )
        where = self._watcher.changed_copy(store)
        if where:
            warn(_of_a_copy(store, where))
        part = self._watcher.followed_part(store)
        if part:
            warn(_of_a_part(store, self._watcher.model, part))

    def __repr__(self) -> str:
        seen = [f"{store.n_calls} calls of {name}" for name, store in self._watcher.stores.items()]
        return f"<onlooker.InputObserver: {', '.join(seen) or 'nothing watched yet'}>"

    def num_obs(self) -> int:
        """The number of calls whose values were kept because ``store_n_calls`` asked for them."""
        return sum(store.n_counted for store in self._watcher.stores.values())

    def is_empty(self) -> bool:
        """True when no call has finished inside a block."""
        return not any(store.n_calls for store in self._watcher.stores.values())

    def recording(self, method_name: str | None = None) -> Recording:
        """The specs of all calls, as a value.

        :raises ObservationError: ``no-calls`` when there is none
        """
        return self._watcher.store(method_name).recording

    def kept_calls(self, method_name: str | None = None) -> list[dict[str, Any]]:
        """Copies of the calls whose values were kept, each as arguments by name: to calibrate on,
        ``program.to("onnx", precision="int8-static", calibration=observer)``, or to call again.

        :raises ObservationError: ``no-calls`` when there is none

        >>> import torch
        >>> model, observer = torch.nn.Linear(4, 2), InputObserver()
        >>> with observer(model, keep=64):
        ...     _ = [model(torch.full((rows, 4), 2.0)) for rows in (1, 2)]
        >>> [call["input"].shape[0] for call in observer.kept_calls()]
        [1, 2]
        """
        store = self._watcher.store(method_name)
        return [sample.arguments() for sample in store.plain_samples]

    def add_recording(self, recording: Recording) -> None:
        """Adds calls of the watched method that were seen elsewhere, of which there are no values.

        Some calls of the model must have been watched before: from their values those of others are
        grown.

        :raises ObservationError: ``no-calls``
        :raises UsageError: ``different-entry-points`` for a method with other parameters
        """
        check_kind(recording, Recording, "The recording", "a recording")
        store = self._watcher.store(recording.method)
        if store.recording.signature.names != recording.signature.names:
            raise UsageError(
                f"{store.recording.model}.{recording.method} has other parameters than"
                f" {recording.model}.{recording.method}, of which the recording is.",
                slug="different-entry-points",
                hint="Add a recording of the method that was watched.",
            )
        store.add_recording(recording)

    def plans(
        self,
        *,
        method_name: str | None = None,
        probe: bool = True,
        static: Dims | None = None,
        dynamic: Dims | None = None,
        ranges: RangesOption | None = None,
        names: AxisNames | None = None,
        budget: BudgetOption = BUDGET,
    ) -> tuple[Plan, ...]:
        """Returns one plan per graph that is needed, each with what was inferred.

        With ``probe`` the model is run, without gradients, on changed copies of observed values, to
        find out whether axes that never changed may change. ``budget`` is the most runs of the
        model from the recording to the program, ``(256, 60.0)`` these and the most seconds. The
        result depends on the speed of the machine only where seconds are given. A few runs are
        always made, whatever the budget: recorded calls again before an export, the first try to
        serve several kinds of calls with one graph, the example of each graph. The runs of
        :meth:`Program.verify` count against no budget.

        Statements of the caller are obeyed and not probed: ``static={"pixel_values": [2, 3]}``
        names dimensions that stay as they were, ``dynamic={"input_ids": [0, 1]}`` dimensions that
        change though no call changed them, by argument, or by the path of one leaf as Python.
        ``ranges={"batch": (1, 64)}`` gives the least and the greatest size of a symbol, None for no
        limit: sizes are chosen and tried inside it, and a call outside it is refused.
        ``ranges={"batch": "observed"}`` gives the sizes that the watched calls had, and
        ``ranges="observed"`` those of every symbol: what no call changed then stays as it was. With
        ``"*"`` for all others, as in ``{"batch": (1, 64), "*": "observed"}``, both go together.
        ``names={"input_ids": {0: "rows"}}`` names the symbols of axes, by argument or path.

        :raises ObservationError: ``no-calls``; ``different-autocast`` for calls in different autocast
        :raises UnsupportedError: ``unusual-tensor`` for sparse tensors and others that no program
            takes or gives
        :raises UsageError: ``bad-pin``, ``unknown-argument``, ``no-such-dimension``,
            ``no-such-symbol``, ``pin-contradicts-calls``, ``range-beyond-bound`` for pins that
            cannot be obeyed
        """
        overrides = overrides_of(static, dynamic, ranges, probe=probe, names=names)
        runs = budget_of(budget)
        store = self._watcher.store(method_name)
        return self._find(store, self._lab(store, runs), overrides)[0]

    def probe(
        self,
        model: Any = None,
        *,
        method_name: str | None = None,
        static: Dims | None = None,
        dynamic: Dims | None = None,
        ranges: RangesOption | None = None,
        names: AxisNames | None = None,
        budget: BudgetOption = BUDGET,
    ) -> Plan | tuple[Plan, ...]:
        """Runs a model to find out what calls could not tell: the plan, or a tuple where one graph
        is not enough.

        ``model`` is the watched one by default; another instance with the same method may be
        smaller, or on another device than the one that was watched. The other options are those of
        :meth:`plans`.

        :raises ObservationError: ``no-calls``; ``different-autocast`` for calls in different autocast
        :raises UsageError: ``another-signature`` for a model whose method takes other arguments;
            and as :meth:`plans`
        """
        overrides = overrides_of(static, dynamic, ranges, names=names)
        runs = budget_of(budget)
        store = self._watcher.store(method_name)
        plans, _ = self._find(store, self._lab(store, runs, model), overrides)
        return plans[0] if len(plans) == 1 else plans

    @quietly
    @collecting_new_objects()
    def export(
        self,
        *,
        to: str = "torch",
        method_name: str | None = None,
        probe: bool = True,
        static: Dims | None = None,
        dynamic: Dims | None = None,
        ranges: RangesOption | None = None,
        names: AxisNames | None = None,
        budget: BudgetOption = BUDGET,
        **options: Any,
    ) -> Program:
        """Infers, probes, materialises and exports; ``program.verify()`` then proves it.

        ``to`` is ``"torch"`` for a program of torch.export, ``"onnx"`` for ONNX models of the same
        plans, which ONNX Runtime runs, ``"aoti"`` for code that AOTInductor compiles,
        ``"openvino"`` for models of OpenVINO, ``"executorch"`` for methods of a program of
        ExecuTorch. The keywords from ``method_name`` to ``budget`` are those of :meth:`plans`, and
        ``options`` are those of the target, as in :meth:`Program.to`: ``opset=21``.

        ExecuTorch needs an upper bound of every symbol, which ``ranges`` give.

        Kept calls are run again first: a warning, ``training-mode``, ``random-numbers`` or
        ``outputs-depend-on-earlier-calls``, says when the results are not those that were observed.

        :raises UsageError: ``unknown-target``, ``bounds-needed``, ``unknown-option``, and what
            :meth:`plans` raises for pins, :meth:`Program.to` for options
        :raises ObservationError: ``no-calls`` when no call was seen; ``different-autocast`` for calls
            in different autocast
        :raises UnsupportedError: ``unusual-tensor``; ``sharded-weights``, ``distributed-wrapper``
            for a model that is spread over processes; ``packed-weights`` for weights that keep
            their scales in Python
        :raises ExportError: ``replay-refused`` when the model refuses the very calls that were
            watched; ``model-keeps-state`` when its calls read attributes that calls before them
            wrote; ``export-refused``, ``no-lawful-sizes`` when no graph could be made
        """
        target = target_of(to)
        check_options(target, options, target.options, InputObserver.export)
        check_precision(target, options.get("precision"))
        target.require()
        overrides = overrides_of(static, dynamic, ranges, probe=probe, names=names)
        runs = budget_of(budget)
        store = self._watcher.store(method_name)
        overrides = _with_weights(overrides, store)
        lab = self._lab(store, runs)
        lab.rolls_numbers = target.rolls_numbers
        check_runs_alone(lab.model)
        check_exportable(store.samples, store.unsaved)
        with telling_blocks_apart(store.model), lifting_adapters(store.model):
            doubt = find_doubt(store.samples, lab, store.recording.calls)
        found = find_changed_arguments(store.samples, lab)
        recording, samples = found.with_results(store.recording, store.samples, lab)
        plans, prepared = self._find(store, lab, overrides, (recording, samples))
        plans = tuple(map(at_single_sizes, _doubted(plans, doubt)))
        if target.needs_bounds:  # what they lack is said before the model is traced
            check_bounded(plans, seen_sizes(plans, prepared.recording), to)
        with (
            lab.stages.stage("export"),
            kept_state(lab.model, {}),
        ):  # a program shares buffers with its model
            graphs, refusals = export_graphs(plans, prepared, lab, overrides)
            lab.forget()
            refused = (side.refusal for side in lab.kept.sides if side.refusal is not None)
            if store.state is not None and (refusal := next(refused, None)) is not None:
                raise refusal  # calls of a program with state come to these sizes by themselves
            state = _program_state(store.state)
            contents = ProgramContents(
                tuple(only_written(graphs)),
                recording,
                tuple(refusals),
                prepared.joins,
                changed=found.changed,
            )
            weights = program_weights(store.model)
            settings = None
            if weights is None:
                settings = Settings(lab.subject.watched, () if state is None else state.paths)
            program = RunnableProgram(contents, samples, lab, state, weights, settings)
            program.know_untouched(found.effects)
            return Program(program).to(to, **options)

    def code(self, *, to: str = "torch", **options: Any) -> str:
        """A Python script that exports the model again, without onlooker; see :meth:`Program.code`.

        The model is exported once to find out what torch takes. ``to`` is ``"torch"`` or
        ``"onnx"``, the other options are those of :meth:`export`, which says what is raised.
        """
        return self.export(**options).code(to=to)

    def recompiles(
        self, *, method_name: str | None = None, probe: bool = True, most_calls: int = 64
    ) -> Recompiles:
        """Counts how often ``torch.compile`` compiles the method for the watched calls, with the
        reasons, and how often with marks for the axes that change: see
        :class:`~onlooker.compiling.recompiles.Recompiles`.

        A twin of the model is compiled by a backend that generates no code, and the calls run again:
        with their values where these were kept, else with values grown to the recorded sizes. Of
        more than ``most_calls`` kinds of calls so many are run. With ``probe``, axes that no call
        changed are marked too where the model takes other sizes.

        :raises ObservationError: ``no-calls``, ``no-values``; ``different-autocast``
        :raises UsageError: ``bad-count``
        """
        from .compiling.recompiles import find_recompiles  # it loads torch's compiler: a second

        if not (is_int(most_calls) and most_calls >= 1):
            raise UsageError(
                f"most_calls is {most_calls!r}.",
                slug="bad-count",
                hint="Give the number of kinds of calls that are run again, 1 or more.",
            )
        store = self._watcher.store(method_name)
        lab = self._lab(store)
        plans, prepared = self._find(store, lab, overrides_of(None, None, None, probe=probe))
        recording, samples = prepared.recording, prepared.samples
        return find_recompiles(recording, samples, plans, lab.subject, most_calls)

    def adopted(self, program: Program) -> Program:
        """A program, loaded perhaps, with what this observer saw: ``verify()`` proves it on these
        calls and model.

        :raises ObservationError: ``no-calls``; ``different-autocast`` for calls in different autocast
        :raises UsageError: ``different-entry-points`` when another method was watched
        :raises UnsupportedError: ``unusual-tensor``
        """
        check_kind(
            program, Program, "The program", "one that observer.export() or onlooker.load() gave"
        )
        store = self._watcher.store(program.recording.method)
        ours, theirs = store.recording, program.recording
        if ours.signature.names != theirs.signature.names:
            raise UsageError(
                f"{ours.model}.{ours.method} has other parameters than"
                f" {theirs.model}.{theirs.method}, of which the program was made.",
                slug="different-entry-points",
                hint="Watch the method that was exported.",
            )
        check_exportable(store.samples, store.unsaved)
        lab = self._lab(store)
        if record_gradients(ours.calls):
            lab.record_gradients()
        changed = ChangedArguments(program._program.contents.changed)
        ours, samples = changed.with_results(ours, store.samples, lab)
        return Program(program._program.beside(ours, samples, lab))

    @property
    def info(self) -> InputObserverInfo | None:
        """The kept calls in full: inputs, outputs, latencies; None before the first block."""
        if not self._watcher.stores:
            return None
        store = next(iter(self._watcher.stores.values()))
        return info_of(store.plain_samples, store.plain_recording.signature)

    def infer_dynamic_shapes(
        self,
        set_batch_dimension_for: Collection[int | str] | bool | None = None,
        dim_names: DimNames = None,
    ) -> tuple[Any, ...] | dict[str, Any]:
        """The ``dynamic_shapes`` of torch.export, from the specs of all calls.

        A tuple when all arguments came by position, else a dict by name. A dimension that changed
        is ``Dim.DYNAMIC``, one that did not is absent. ``set_batch_dimension_for`` (True, or names
        and positions) makes the first dimension of those arguments dynamic though it did not
        change. ``dim_names`` gives names instead of hints: True for names by role, or
        ``{argument: {dimension: name}}``.

        Arguments that came by ``**kwargs`` stand under the name of that parameter, ``{"kwargs":
        {"y": ...}}``. torch 2.13 wants this form and then fails on it, as on any other, without a
        patch; :meth:`export` gives torch a signature without ``**kwargs``, and needs none.

        After one call nothing is known to change: a warning, ``one-call``, names the axes, unless
        one of the two arguments is given.

        :raises ObservationError: ``no-calls``, ``constant-changes``, ``container-changes``
        :raises UsageError: ``unknown-argument``, ``no-such-dimension``
        :raises ArgumentKindError: ``wrong-kind``
        """
        union, _ = self._union()
        if (
            set_batch_dimension_for is None
            and dim_names is None
            and sum(call.count for call in union.calls) == 1
        ):
            unknown = constant_axes(union)
            if unknown:
                warn(
                    OnlookerWarning(
                        "One call was watched, and nobody can know from it which axes change:"
                        f" {unknown} are taken as constant.",
                        slug="one-call",
                        hint=(
                            "Watch a call of other sizes, give set_batch_dimension_for, or let"
                            " observer.export() ask the model."
                        ),
                    )
                )
        return infer_shapes(union, set_batch_dimension_for, dim_names)

    def infer_arguments(
        self,
        index_or_args_or_kwargs: tuple[Any, ...] | dict[str, Any] | int | None = None,
        flat: bool = False,
        as_args_kwargs: bool = False,
    ) -> Any:
        """Arguments for torch.export: the first kept call that has all of them, completed with
        empty tensors.

        A tuple when all arguments came by position, else a dict by name; ``(args, kwargs)`` with
        ``as_args_kwargs``, the list of leaves with ``flat``. An index, a tuple or a dict chooses
        the call that is completed. Without one, and without ``value_if_missing``, sizes are chosen
        where the observed ones cannot be exported: torch.export takes a size of 0 or 1 for a
        constant.

        :raises ObservationError: ``no-calls``, ``no-values``, ``constant-changes``,
            ``container-changes``, ``args-and-names``
        :raises UsageError: ``no-such-call``, ``unexpected-arguments``
        """
        check_given(index_or_args_or_kwargs)
        union, samples = self._union()
        index = index_or_args_or_kwargs if isinstance(index_or_args_or_kwargs, int) else None
        if isinstance(index_or_args_or_kwargs, (tuple, list, dict)):
            samples, index = [given_sample(union.signature, index_or_args_or_kwargs)], 0
        values = infer_values(union, samples, index, general=not self.value_if_missing)
        if flat:
            return [value for path, value in values.items() if path.root not in union.dropped]
        return spelled(union, values, as_args_kwargs=as_args_kwargs)

    def remove_inputs(self, input_names: Sequence[str | int]) -> int:
        """Forgets arguments, by name or position, in all calls so far, as if they had never been
        passed.

        Gives the number of the arguments forgotten; one that no call had counts as none. The
        results of the calls stay those that were observed.

        :raises ObservationError: ``no-calls``
        :raises UsageError: ``variadic-argument`` for ``*args`` or ``**kwargs`` as a whole
        """
        store = self._watcher.store()
        return store.remove(names_to_remove(input_names, store.recording.signature))

    def check_discrepancies(
        self,
        onnx_model: Any,
        atol: float = 1e-4,
        rtol: float = 0.1,
        hist: Sequence[float] = (0.1, 0.01),
        progress_bar: bool = False,
        include_io: bool = True,
        skip_none: bool = True,
    ) -> list[dict[str, Any]]:
        """Runs the kept calls on an exported model and compares the results with those that were
        observed.

        ``onnx_model`` is a path, a ModelProto, a program of ``torch.onnx.export``, a program of
        onlooker or one of its graphs, a program of ``torch.export``, or anything that is called as
        the model is. Inputs are found by their names, else by their order; what a call lacks is
        completed as :meth:`infer_arguments` does.

        One row per call, all with the same keys: ``index``, ``SUCCESS``, ``error`` (None, or why
        the call failed), ``abs``, ``rel``, ``sum``, ``n``, ``dnan``, ``dev`` as in
        :func:`~onlooker.max_diff`, a count per bound of ``hist`` (``>0.1``), ``n_inputs``,
        ``n_none`` and ``n_empty`` (inputs that the call lacked, or that were empty),
        ``duration_torch`` and ``ort_duration`` in seconds, ``atol``, ``rtol``, and, with
        ``include_io``, ``inputs``, ``outputs_torch`` and ``outputs_ort`` as text. ``SUCCESS`` wants
        ``abs <= atol`` and ``rel <= rtol``; NaN against a number, another shape or another dtype
        fails. A call that fails is a row. With ``skip_none``, an output that is None on one side is
        not compared.

        :raises ObservationError: ``no-calls``, ``no-values``
        :raises UsageError: ``model-not-loaded`` for a file or a model that ONNX Runtime does not
            load
        :raises ArgumentKindError: ``not-a-model``
        :raises MissingPackageError: ``missing-package`` without onnxruntime
        """
        store = self._watcher.store()
        rules = Rules(atol, rtol, thresholds_of(hist), include_io, skip_none)
        recording = store.plain_recording
        given = named_values(self.value_if_missing, recording.signature)
        calls = completed_calls(recording, store.plain_samples, given)
        return discrepancies(onnx_model, calls, rules, progress_bar=progress_bar)

    def _union(self) -> tuple[CallUnion, list[Sample]]:
        """All calls laid over each other, and the kept ones, with the values given for missing
        arguments.
        """
        store = self._watcher.store()
        recording = store.plain_recording
        given = named_values(self.value_if_missing, recording.signature)
        check_positions(self.value_if_missing, recording.calls, recording.signature)
        union = union_of_calls(with_missing_calls(recording.calls, given), recording.signature)
        return union, with_missing_samples(store.plain_samples, given)

    def _find(
        self,
        store: Store,
        lab: Lab,
        overrides: Overrides,
        seen: tuple[Recording, Sequence[Sample]] | None = None,
    ) -> tuple[tuple[Plan, ...], Prepared]:
        """The plans of what was watched, or ``seen`` with other results, and the calls in the form
        that graphs take.
        """
        overrides = _with_weights(overrides, store)
        recording, samples = seen or (store.recording, store.samples)
        lab.stages.seconds["observe"] = sum(call.seconds for call in store.recording.calls)
        with lab.stages.stage("probe"):
            probe = overrides.probe
            prepared = prepare(recording, samples, lab, probe=probe, unsaved=store.unsaved)
        earlier = tuple(lab.records)
        plans = find_plans(prepared, lab, overrides)
        unknown = tuple(lab.unknown)
        whole = [
            replace(p, probes=(*earlier, *p.probes), blind=(*unknown, *p.blind)) for p in plans
        ]
        return tuple(whole), prepared

    def _lab(self, store: Store, budget: Budget | None = None, model: Any = None) -> Lab:
        """The Lab for the watched model, or for another one with the same method."""
        watched = self._watcher.model
        is_own = model is None or model is store.model
        given = store.model if is_own else check_model(model, store.plain_recording)
        autocast = autocast_of(store.recording.calls)
        former = self._watcher.former(store) if is_own else {}
        if store.state is None:
            recording = store.recording
            copy_of = watched if is_own and given is not watched else None
            runner = ModelRunner.of_twin(
                given,
                recording.method,
                recording.signature,
                former,
                autocast,
                copy_of=copy_of,
                objects=objects_in_calls(store.samples),
            )
            return Lab(runner, budget)
        inside = {f"inner.{path}": value for path, value in former.items()}
        return _lab_with_state(store, store.state, given, inside, autocast, budget)


def _with_weights(overrides: Overrides, store: Store) -> Overrides:
    """The overrides, which name the argument that has weights."""
    model = store.model
    return replace(overrides, weights=model.argument if isinstance(model, LiftedWeights) else "")


def _lab_with_state(
    store: Store,
    tracker: StateTracker,
    model: Any,
    former: Mapping[str, Any],
    autocast: tuple[Autocast, ...],
    budget: Budget | None,
) -> Lab:
    """The Lab for a model whose state is an argument. Attributes that nothing depends on are found
    first, and are no state.
    """
    tracker.unread = ()
    method = store.recording.method

    def runner() -> ModelRunner:
        signature = store.recording.signature
        name, paths, unread = tracker.name, tracker.paths, tracker.unread
        stateful = Stateful(model, method, signature, name, paths, unread, tracker.initial)
        objects = objects_in_calls(store.samples)
        return ModelRunner.of_twin(
            stateful, "forward", signature, former, autocast, objects=objects
        )

    lab = Lab(runner(), budget)
    tracker.unread = unread_attributes(
        store.samples, lab, tracker.name, tracker.paths, tracker.initial
    )
    if tracker.unread:
        lab.subject = runner()
    lab.forget()
    return lab


def _program_state(tracker: StateTracker | None) -> ProgramState | None:
    """The state with which a program begins: what stood when watching began."""
    if tracker is None:
        return None
    initial = {path: tracker.initial[path] for path in tracker.paths if path in tracker.initial}
    state = ProgramState(tracker.name, tracker.paths, initial)
    state.reset()
    return state


def _of_a_copy(store: Store, where: str) -> OnlookerWarning:
    name = type(store.model).__name__
    return OnlookerWarning(
        f"The {name} itself was not called inside the block: the calls are those of a copy of it,"
        f" which is another model ({where} differs). What is inferred and exported is that copy.",
        slug="copy-watched",
        hint=f"Watch the object that is called, or call the {name} that is watched.",
    )


def _of_a_part(store: Store, model: Any, part: str) -> OnlookerWarning:
    name = type(model).__name__
    return OnlookerWarning(
        f"The {name} itself was not called inside the block: the calls are those of {part}, a"
        f" {type(store.model).__name__} that has all weights of it. What is inferred and exported"
        " is that part.",
        slug="part-watched",
        hint=f"Watch model.{part}, or call the {name} that is watched.",
    )


def _doubted(plans: tuple[Plan, ...], doubt: OnlookerWarning | None) -> tuple[Plan, ...]:
    """The plans with a doubt about hidden state among what they do not cover, and a warning to
    the caller.
    """
    if doubt is None:
        return plans
    warn(doubt)
    return tuple(replace(plan, blind=(*plan.blind, doubt.message)) for plan in plans)

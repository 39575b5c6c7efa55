"""The observer: the facade that users know."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from .core.errors import OnlookerWarning, UsageError
from .core.plan import Plan
from .core.recording import Recording
from .export.exporter import export_graphs, find_plans
from .export.prepare import prepare
from .materialise.inferred import check_given, given_sample, infer_values, spelled
from .materialise.info import InputObserverInfo, info_of
from .materialise.missing import check_positions, named_values, with_missing_calls, with_missing_samples
from .materialise.shapes import DimNames, constant_axes, infer_shapes
from .materialise.union import CallUnion, union_of_calls
from .observe.observer import Watcher
from .observe.remove import names_to_remove
from .observe.store import Sample
from .probe.axes import Pins
from .probe.subject import Subject
from .program import Program
from .verify.completed import completed_calls
from .verify.discrepancies import Rules, discrepancies

__all__ = ["InputObserver"]

logger = logging.getLogger(__name__)

#: what a program can be exported to
TARGETS = ("torch", "onnx")


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

    def __init__(self, value_if_missing: dict[str | int, Any] | None = None) -> None:
        self.value_if_missing = value_if_missing
        self._watcher = Watcher()

    @contextlib.contextmanager
    def __call__(self, model: Any, store_n_calls: int = 3, method_name: str = "forward") -> Iterator[InputObserver]:
        """Watches ``model.method_name`` inside the block.

        The specs of every call are recorded, the values of the first ``store_n_calls`` (and of calls that bring
        something new). Several blocks add up. On exit ``vars(model)`` is what it was.

        :raises UsageError: ``no-such-method``, ``another-model``, ``bad-store-n-calls``, ``unknown-argument``
        :raises ArgumentKindError: ``unexpected-key``
        :raises UnsupportedError: ``position-never-given``, on exit
        """
        with self._watcher.watch(model, method_name, store_n_calls) as store:
            named_values(self.value_if_missing, store.recording.signature)
            yield self
        check_positions(self.value_if_missing, store.recording.calls, store.recording.signature)

    def num_obs(self) -> int:
        """The number of calls whose values were kept because ``store_n_calls`` asked for them."""
        return sum(store.n_counted for store in self._watcher.stores.values())

    def is_empty(self) -> bool:
        """True when no call has finished inside a block."""
        return not any(store.recording.calls for store in self._watcher.stores.values())

    def recording(self, method_name: str | None = None) -> Recording:
        """The specs of all calls, as a value.

        :raises ObservationError: ``no-calls`` when there is none
        """
        return self._watcher.store(method_name).recording

    def plans(
        self,
        *,
        method_name: str | None = None,
        probe: bool = True,
        static: Mapping[str, Sequence[int]] | None = None,
    ) -> tuple[Plan, ...]:
        """What was inferred: one plan per graph that is needed.

        With ``probe`` the model is asked whether axes that never changed may change; ``static`` names axes, by
        argument, that are not asked about. The model is run, without gradients, on copies of observed values.

        :raises ObservationError: ``no-calls``
        """
        store = self._watcher.store(method_name)
        subject = self._subject(store)
        prepared = prepare(store.recording, store.samples, subject, probe=probe)
        return tuple(find_plans(prepared, subject, pins=Pins(dict(static or {})), probe=probe))

    def export(
        self,
        *,
        to: str = "torch",
        method_name: str | None = None,
        probe: bool = True,
        static: Mapping[str, Sequence[int]] | None = None,
    ) -> Program:
        """Infers, probes, materialises and exports; ``program.verify()`` then proves it.

        ``to`` is ``"torch"`` for a program of torch.export, ``"onnx"`` for ONNX models of the same plans, which
        ONNX Runtime runs.

        :raises UsageError: ``unknown-target``
        :raises ObservationError: ``no-calls`` when no call was seen
        :raises ExportError: ``export-refused``, ``no-lawful-sizes`` when no graph could be made
        """
        if to not in TARGETS:
            raise UsageError(
                f"There is no target {to!r}.",
                slug="unknown-target",
                hint=f"The targets are {', '.join(TARGETS)}.",
            )
        store = self._watcher.store(method_name)
        subject = self._subject(store)
        prepared = prepare(store.recording, store.samples, subject, probe=probe)
        plans = find_plans(prepared, subject, pins=Pins(dict(static or {})), probe=probe)
        graphs, refusals = export_graphs(plans, prepared, subject)
        return Program(graphs, store.recording, store.samples, subject, refusals, prepared.joins).to(to)

    @property
    def info(self) -> InputObserverInfo | None:
        """The kept calls in full: inputs, outputs, latencies; None before the first block."""
        if not self._watcher.stores:
            return None
        store = next(iter(self._watcher.stores.values()))
        return info_of(store.samples, store.recording.signature)

    def infer_dynamic_shapes(
        self,
        set_batch_dimension_for: Collection[int | str] | bool | None = None,
        dim_names: DimNames = None,
    ) -> tuple[Any, ...] | dict[str, Any]:
        """The ``dynamic_shapes`` of torch.export, from the specs of all calls.

        A tuple when all arguments came by position, else a dict by name. A dimension that changed is
        ``Dim.DYNAMIC``, one that did not is absent. ``set_batch_dimension_for`` (True, or names and positions)
        makes the first dimension of those arguments dynamic though it did not change. ``dim_names`` gives names
        instead of hints: True for names by role, or ``{argument: {dimension: name}}``.

        What came by ``**kwargs`` stands under the name of that parameter, ``{"kwargs": {"y": ...}}``. torch 2.13
        wants this form and then fails on it, as on any other, without a patch; :meth:`export` gives torch a
        signature without ``**kwargs``, and needs none.

        After one call nothing is known to change: a warning, ``one-call``, names the axes, unless one of the two
        arguments is given.

        :raises ObservationError: ``no-calls``, ``constant-changes``, ``container-changes``
        """
        union, _ = self._union()
        if set_batch_dimension_for is None and dim_names is None and len(union.calls) == 1:
            unknown = constant_axes(union)
            if unknown:
                warnings.warn(
                    OnlookerWarning(
                        f"One call was watched, and nobody can know from it which axes change: {unknown} are taken "
                        "as constant.",
                        slug="one-call",
                        hint="Watch a call of other sizes, give set_batch_dimension_for, or let observer.export() "
                        "ask the model.",
                    ),
                    stacklevel=2,
                )
        return infer_shapes(union, set_batch_dimension_for, dim_names)

    def infer_arguments(
        self,
        index_or_args_or_kwargs: tuple[Any, ...] | dict[str, Any] | int | None = None,
        flat: bool = False,
        as_args_kwargs: bool = False,
    ) -> Any:
        """Arguments for torch.export: the first kept call that has all of them, completed with empty tensors.

        A tuple when all arguments came by position, else a dict by name; ``(args, kwargs)`` with
        ``as_args_kwargs``, the list of leaves with ``flat``. An index, a tuple or a dict chooses the call that
        is completed. Without one, and without ``value_if_missing``, sizes are chosen where the observed ones
        cannot be exported: torch.export takes a size of 0 or 1 for a constant.

        :raises ObservationError: ``no-calls``, ``constant-changes``, ``container-changes``, ``args-and-names``
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
        """Forgets arguments, by name or position, in all calls so far, as if they had never been passed.

        Gives the number of the arguments forgotten; one that no call had counts as none. The results of the calls
        stay those that were observed.

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
        """Runs the kept calls on an exported model and compares the results with those that were observed.

        ``onnx_model`` is a path, a ModelProto, a program of ``torch.onnx.export``, a program of onlooker or one
        of its graphs, a program of ``torch.export``, or anything that is called as the model is. Inputs are
        found by their names, else by their order; what a call lacks is completed as :meth:`infer_arguments` does.

        One row per call, all with the same keys: ``index``, ``SUCCESS``, ``error`` (None, or why the call failed),
        ``abs``, ``rel``, ``sum``, ``n``, ``dnan``, ``dev`` as in :func:`~onlooker.max_diff`, a count per bound of
        ``hist`` (``>0.1``), ``n_inputs``, ``n_none`` and ``n_empty`` (inputs that the call lacked, or that were
        empty), ``duration_torch`` and ``ort_duration`` in seconds, ``atol``, ``rtol``, and, with ``include_io``,
        ``inputs``, ``outputs_torch`` and ``outputs_ort`` as text. ``SUCCESS`` wants ``abs <= atol`` and
        ``rel <= rtol``; NaN against a number, another shape or another dtype fails. A call that fails is a row.
        With ``skip_none``, an output that is None on one side is not compared.

        :raises ObservationError: ``no-calls``
        :raises UsageError: ``model-not-loaded`` for a file or a model that ONNX Runtime does not load
        :raises ArgumentKindError: ``not-a-model``
        :raises MissingPackageError: ``missing-package`` without onnxruntime
        """
        store = self._watcher.store()
        rules = Rules(atol, rtol, tuple(hist), include_io, skip_none)
        given = named_values(self.value_if_missing, store.recording.signature)
        calls = completed_calls(store.recording, store.samples, given)
        return discrepancies(onnx_model, calls, rules, progress_bar=progress_bar)

    def _union(self) -> tuple[CallUnion, list[Sample]]:
        """All calls laid over each other, and the kept ones, with the values given for missing arguments."""
        store = self._watcher.store()
        recording = store.recording
        given = named_values(self.value_if_missing, recording.signature)
        check_positions(self.value_if_missing, recording.calls, recording.signature)
        union = union_of_calls(with_missing_calls(recording.calls, given), recording.signature)
        return union, with_missing_samples(store.samples, given)

    def _subject(self, store: Any) -> Subject:
        recording = store.recording
        return Subject(self._watcher.model, recording.method, recording.signature, self._watcher.former)

"""The observer: the facade that users know."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .core.plan import Plan
from .core.recording import Recording
from .export.exporter import export_graphs, find_plans
from .observe.observer import Watcher
from .probe.axes import Pins
from .probe.subject import Subject
from .program import Program

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

    def __init__(self, value_if_missing: dict[str | int, Any] | None = None) -> None:
        self.value_if_missing = value_if_missing
        self._watcher = Watcher()

    @contextlib.contextmanager
    def __call__(
        self, model: Any, store_n_calls: int = 3, method_name: str = "forward"
    ) -> Iterator[InputObserver]:
        """Watches ``model.method_name`` inside the block.

        The specs of every call are recorded, the values of the first ``store_n_calls`` (and of calls that bring
        something new). Several blocks add up. On exit ``vars(model)`` is what it was.

        :raises UsageError: ``no-such-method``, ``another-model``, ``bad-store-n-calls``
        """
        with self._watcher.watch(model, method_name, store_n_calls):
            yield self

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
        pins = Pins(dict(static or {}))
        return tuple(find_plans(store.recording, store.samples, self._subject(store), pins=pins, probe=probe))

    def export(
        self,
        *,
        to: str = "torch",
        method_name: str | None = None,
        probe: bool = True,
        static: Mapping[str, Sequence[int]] | None = None,
    ) -> Program:
        """Infers, probes, materialises and exports; ``program.verify()`` then proves it.

        :raises ObservationError: ``no-calls`` when no call was seen
        :raises ExportError: ``export-refused``, ``no-lawful-sizes`` when no graph could be made
        """
        store = self._watcher.store(method_name)
        subject = self._subject(store)
        plans = self.plans(method_name=method_name, probe=probe, static=static)
        graphs, refusals = export_graphs(plans, store.samples, subject)
        return Program(graphs, store.recording, store.samples, subject, refusals)

    def _subject(self, store: Any) -> Subject:
        recording = store.recording
        return Subject(self._watcher.model, recording.method, recording.signature)

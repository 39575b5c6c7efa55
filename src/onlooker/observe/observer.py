"""Watching one entry point of a model over several blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..core.errors import ObservationError, UsageError
from ..core.recording import Recording
from ..pytrees.nodes import qualified_name
from .bind import read_signature
from .hook import replaced_method
from .state import Attributes, changed_since, read_attributes
from .store import Store

__all__ = ["Watcher"]


class Watcher:
    """The stores of the methods of one model, by the name of the method, in the order of watching."""

    def __init__(self) -> None:
        self.model: Any = None
        self.stores: dict[str, Store] = {}
        self.former: Attributes = {}

    @contextlib.contextmanager
    def watch(self, model: Any, method: str, n_values: int) -> Iterator[Store]:
        """Records the calls of ``model.method`` inside the block; blocks add up.

        :raises UsageError: ``no-such-method``, ``another-model``, ``bad-store-n-calls``
        """
        if isinstance(n_values, bool) or not isinstance(n_values, int) or n_values < 0:
            raise UsageError(
                f"store_n_calls is {n_values!r}.",
                slug="bad-store-n-calls",
                hint="Give the number of calls whose values are kept, 0 or more.",
            )
        if self.model is not None and model is not self.model:
            raise UsageError(
                f"This observer has watched a {type(self.model).__name__} already and cannot watch another model.",
                slug="another-model",
                hint="Make one InputObserver per model.",
            )
        store = self._store(model, method)
        before = read_attributes(model)
        with replaced_method(model, method, store.watch):
            self.model = model
            self.stores[method] = store
            store.n_values = store.n_counted + n_values
            try:
                yield store
            finally:
                self.former = {**changed_since(before, model), **self.former}

    def _store(self, model: Any, method: str) -> Store:
        if method in self.stores:
            return self.stores[method]
        if not callable(getattr(model, method, None)):
            raise UsageError(
                f"{type(model).__name__} does not have a method {method!r}.",
                slug="no-such-method",
                hint="Give the name of a method of the model as method_name.",
            )
        signature, value = read_signature(getattr(model, method))
        return Store(signature, Recording(qualified_name(type(model)), method, value))

    def store(self, method: str | None = None) -> Store:
        """The store of a method, or of the only one that was watched.

        :raises ObservationError: ``no-calls`` when nothing was watched or no call was seen
        """
        if method is None and len(self.stores) > 1:
            raise UsageError(
                f"Several methods were watched: {', '.join(self.stores)}.",
                slug="which-method",
                hint="Say which one with method_name.",
            )
        name = method or next(iter(self.stores), "forward")
        store = self.stores.get(name)
        if store is None or not store.recording.calls:
            raise ObservationError(_nothing_seen(name, store), slug="no-calls", hint=_ADVICE)
        return store


def _nothing_seen(method: str, store: Store | None) -> str:
    if store is None:
        return f"No inputs were captured. No input was captured: {method} was not watched yet."
    if store.recording.missed:
        return f"No inputs were captured. No input was captured by {method}: {store.recording.missed[0]}."
    return f"No inputs were captured. No input was captured: no call of {method} has finished inside the block."


_ADVICE = (
    "Call the model itself inside `with observer(model):`. It may be that a submodule was called instead "
    "(watch that one), that another method was (give method_name), that every call raised, or that the model "
    "was compiled before (watch the original model)."
)

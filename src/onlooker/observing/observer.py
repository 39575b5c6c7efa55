"""Watching one entry point of a model over several blocks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ..core.errors import ObservationError, UsageError
from ..core.kinds import check_kind
from ..core.recording import Recording
from ..pytrees.nodes import qualified_name
from .budget import Budget
from .hook import check_method, replaced_method
from .inner import advice_on_inner, method_signature
from .instead import advice_on_parts
from .state import Attributes, changed_since, read_attributes
from .store import Store
from .wrapper import own_attributes

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)
#: where ``model.compile()`` keeps what a call of the model runs instead of ``forward``
_COMPILED = "_compiled_call_impl"


class Watcher:
    """The stores of the methods of one model, by the name of the method, in the order of
    watching.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        self._budget = Budget(max_bytes)
        self.model: Any = None
        self.stores: dict[str, Store] = {}
        self.former: Attributes = {}

    @contextlib.contextmanager
    def watch(self, model: Any, method: str, n_values: int) -> Iterator[Store]:
        """Records the calls of ``model.method`` inside the block; blocks add up.

        :raises UsageError: ``no-such-method``, ``another-model``, ``bad-store-n-calls``
        :raises ArgumentKindError: ``wrong-kind``
        """
        check_kind(method, str, "method_name", "the name of a method")
        if issubclass(type(model), type):  # not isinstance, which asks the object
            check_kind(
                model,
                (),
                "The model",
                f"an instance of {model.__name__}: calls of one model are watched",
            )
        if isinstance(n_values, bool) or not isinstance(n_values, int) or n_values < 0:
            raise UsageError(
                f"store_n_calls is {n_values!r}.",
                slug="bad-store-n-calls",
                hint="Give the number of calls whose values are kept, 0 or more.",
            )
        if self.model is not None and model is not self.model:
            raise UsageError(
                f"This observer has watched a {type(self.model).__name__} already and cannot watch"
                " another model.",
                slug="another-model",
                hint="Make one InputObserver per model.",
            )
        store = self._store(model, method)
        self._begin(store, model, method)
        before: Attributes = {}
        try:
            before = _attributes(model)
            self.model = model
            self.stores[method] = store
            store.n_values = store.n_counted + n_values
            yield store
        finally:
            self._end(store, method)
            self.former = {**_changed(before, model), **self.former}

    def _begin(self, store: Store, model: Any, method: str) -> None:
        """Puts the wrapper on; inside another block of the same method it is there, and sees
        each call once.
        """
        if store.blocks == 0:
            store.place = store.hook.enter_context(replaced_method(model, method, store.watch))
            if method == "forward" and own_attributes(model).get(_COMPILED) is not None:
                hook = replaced_method(model, _COMPILED, store.watch_compiled)
                store.hook.enter_context(hook)
            store.begin_block(model)
        store.blocks += 1

    def _end(self, store: Store, method: str) -> None:
        store.blocks -= 1
        if store.blocks == 0:
            store.end_block(method)

    def _store(self, model: Any, method: str) -> Store:
        if method in self.stores:
            return self.stores[method]
        check_method(model, method)
        signature, value = method_signature(model, method)
        return Store(signature, Recording(qualified_name(type(model)), method, value), self._budget)

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
        if store is None or not store.n_calls:
            hint = f"{advice_on_inner(self.model)}{_instead(self.model, name, store)}{_ADVICE}"
            raise ObservationError(_nothing_seen(name, store), slug="no-calls", hint=hint)
        return store


def _attributes(model: Any) -> Attributes:
    try:
        return read_attributes(model)
    except Exception:
        logger.warning(
            "The attributes of a %s cannot be read.", type(model).__name__, exc_info=True
        )
        return {}


def _changed(before: Attributes, model: Any) -> Attributes:
    try:
        return changed_since(before, model)
    except Exception:
        logger.warning(
            "The attributes of a %s cannot be read.", type(model).__name__, exc_info=True
        )
        return {}


def _nothing_seen(method: str, store: Store | None) -> str:
    if store is None:
        return f"No inputs were captured. No input was captured: {method} was not watched yet."
    if store.recording.missed:
        return (
            f"No inputs were captured. No input was captured by {method}:"
            f" {store.recording.missed[0]}."
        )
    return (
        f"No inputs were captured. No input was captured: no call of {method} has finished inside"
        " the block."
    )


def _instead(model: Any, method: str, store: Store | None) -> str:
    """What was called in place of the method, and how often, with a space after it; nothing
    where that is not known.
    """
    if store is None:
        return ""
    found = advice_on_parts(store.part_calls)
    if store.n_others:
        kind = type(model).__name__
        found += (
            f"{method} of other objects of {kind} was called {store.n_others} times: of a copy"
            " perhaps, which the code makes itself; watch the object that is called. "
        )
    if store.was_compiled:
        found += (
            'Inside `with torch.compiler.set_stance("force_eager"):` compiled code runs as it was'
            " written. "
        )
    return found


_ADVICE = (
    "Call the model itself inside `with observer(model):`. It may be that a submodule was called"
    " instead (watch that one), that another method was (give method_name), that every call raised,"
    " or that the model was compiled before (watch the original model)."
)

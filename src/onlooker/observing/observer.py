"""Watching one entry point of a model over several blocks."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..core.call import Signature
from ..core.errors import ObservationError, OnlookerError, UsageError
from ..core.recording import Recording
from ..core.support.kinds import check_kind
from ..core.support.locks import lock_of
from ..pytrees.comparisons.same_object import difference_of
from ..pytrees.nodes import qualified_name
from .budget import MemoryBudget
from .copies import unseen
from .module_state import former_values, plain_values
from .store import Store
from .tracked_state import StateTracker, name_of_state
from .wrapped_model import advice_on_wrapped, method_signature
from .wrapping.copies_of_model import CopiesOfModel
from .wrapping.hook import WrappedPlace, check_method, replaced_method
from .wrapping.lifted_weights import LiftedWeights, WithWeights, around_call
from .wrapping.submodule_calls import advice_on_parts
from .wrapping.wrapper import Around, own_attributes

__all__ = ["Watcher"]

logger = logging.getLogger(__name__)
#: where ``model.compile()`` keeps what a call of the model runs instead of ``forward``
_COMPILED = "_compiled_call_impl"


class _Watched:
    """The calls of one method of a model, and those of a copy or a part of it that is called
    instead.

    A deep copy that holds what the model holds is the same program: its calls are calls of the
    model. One that was changed is a model of its own, and so is a part in which all weights are;
    such a one, ``copy``, is followed where the model itself is not called. ``where`` says where it
    differs, ``part`` which part it is.
    """

    def __init__(self, own: Store) -> None:
        self.own = own
        self.copy: Store | None = None
        self.where = ""
        self.part = ""
        self._lock = lock_of(self)
        self.copies = self._new_copies()
        self._before: dict[str, Any] = {}
        self._former: dict[str, Any] = {}
        self._n_of_copies = 0
        self._n_left_out = 0

    @property
    def store(self) -> Store:
        """The calls of the model; where it was not called, those of the copy."""
        return self.own if self.copy is None or self.own.n_calls else self.copy

    @property
    def former(self) -> dict[str, Any]:
        """The attributes that the copy overwrote while it was watched, as they were before."""
        return self._former

    def _new_copies(self) -> CopiesOfModel:
        return CopiesOfModel(self.own.model, self._same, self._changed, self._is_uncalled)

    def _is_uncalled(self) -> bool:
        """True while the model itself was not called."""
        return self.own.n_calls <= self._n_of_copies

    def _same(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._n_of_copies += 1
        return self.own.watch(original, args, kwargs)

    def _changed(self, copy: Any, where: str) -> Around:
        """Returns the block around the calls of a copy that differs from the model at the place
        ``where``.
        """
        if self.own.n_calls:
            return self._leave_out
        if self.copy is None:
            self.own.end_parts()
            self.copy, self.where = self.own.beside(copy), where
            self._before = _read(plain_values, copy)
            return self.copy.watch
        with unseen():
            differs = difference_of(self.copy.model, copy)
        return self._leave_out if differs else self.copy.watch

    def followed(self, name: str, part: Any) -> Around:
        """Returns the block around the calls of a part that has all weights: the first such part
        that is called while the model itself is not.
        """

        def around(
            original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            if self.own.state is None and not torch.compiler.is_compiling():
                self._begin_part(name, part)
            if self.copy is None or self.copy.model is not part:
                return original(*args, **kwargs)
            return self.copy.watch(original, args, kwargs)

        return around

    def _begin_part(self, name: str, part: Any) -> None:
        with self._lock, contextlib.suppress(Exception):  # what cannot be watched is only called
            if self.copy is None:
                made = self.own.of_part(part)
                self.part, self.copy, self._before = name, made, _read(plain_values, part)

    def _leave_out(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._n_left_out += 1
        return original(*args, **kwargs)

    def end_block(self, method: str) -> None:
        """Notes what was not seen in the block that ends; where the model itself was called, its
        changed copies are other models.
        """
        self.own.end_block(method)
        if self.copy is not None:
            self._former = {**_read(former_values, self.copy.model, self._before), **self._former}
        if self.copy is not None and self.own.n_calls:
            self._n_left_out += self.copy.n_calls
            self.copy = None
            self.copies = self._new_copies()
        if self._n_left_out and self._is_uncalled():
            self.store.unrecorded.add(
                f"{self._n_left_out} calls of changed copies of the model were not seen"
            )
        self._n_left_out = 0


class Watcher:
    """The stores of one model, by the name of the method, in the order of watching."""

    def __init__(self, max_bytes: int | None = None, *, state: bool = False) -> None:
        check_kind(state, bool, "state", "True or False")
        self._budget = MemoryBudget(max_bytes)
        self._tracks_state = state
        self.model: Any = None
        self._watched: dict[str, _Watched] = {}
        self._former: dict[str, Any] = {}

    @property
    def stores(self) -> dict[str, Store]:
        """The calls of each method."""
        return {method: watched.store for method, watched in self._watched.items()}

    def former(self, store: Store) -> dict[str, Any]:
        """The attributes that the model of a store overwrote while it was watched, as they were
        before.
        """
        if store.model is self.model:
            return self._former
        return next(w.former for w in self._watched.values() if w.copy is store)

    def changed_copy(self, store: Store) -> str:
        """Returns the place where the model of a store, a copy, differs from the watched one; empty
        for that one.
        """
        return next((w.where for w in self._watched.values() if w.copy is store), "")

    def followed_part(self, store: Store) -> str:
        """Returns the place of the model of a store within the watched model; empty for another
        one.
        """
        return next((w.part for w in self._watched.values() if w.copy is store), "")

    @contextlib.contextmanager
    def watch(self, model: Any, method: str, n_values: int) -> Iterator[Store]:
        """Records the calls of ``model.method`` inside the block; blocks add up.

        :raises UsageError: ``no-such-method``, ``another-model``, ``bad-store-n-calls``,
            ``state-of-no-module``
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
        watched = self._watched.get(method) or _Watched(self._store(model, method))
        self._begin(watched, model, method)
        before: dict[str, Any] = {}
        try:
            before = _read(plain_values, model)
            self.model = model
            self._watched[method] = watched
            for store in filter(None, (watched.own, watched.copy)):
                store.n_values = store.n_counted + n_values
            yield watched.own
        finally:
            self._end(watched, method)
            self._former = {**_read(former_values, model, before), **self._former}

    def _begin(self, watched: _Watched, model: Any, method: str) -> None:
        """Puts the wrapper on; inside another block of the same method it is there, and sees
        each call once.
        """
        store = watched.own
        if store.blocks == 0 and isinstance(model, LiftedWeights):
            places = [_routed(store, model.argument, one) for one in model.watched()]
            store.place = places[0]
        elif store.blocks == 0:
            # the state that is followed is that of the model, not that of a copy
            of_model = watched.copies if store.state is None else None
            if of_model is not None:
                copies = [watched.copy.model] if watched.copy and not watched.part else []
                store.hook.enter_context(of_model.noted(*copies))
            store.place = store.hook.enter_context(
                replaced_method(model, method, store.watch, of_model)
            )
            if method == "forward" and own_attributes(model).get(_COMPILED) is not None:
                hook = replaced_method(model, _COMPILED, store.watch_compiled)
                store.hook.enter_context(hook)
            store.begin_block(model, watched.followed)
        store.blocks += 1

    def _end(self, watched: _Watched, method: str) -> None:
        watched.own.blocks -= 1
        if watched.own.blocks == 0:
            watched.end_block(method)

    def _store(self, model: Any, method: str) -> Store:
        check_method(model, method)
        signature, value = method_signature(model, method)
        kind = model.kind if isinstance(model, LiftedWeights) else type(model)
        recording = Recording(qualified_name(kind), method, value)
        state = self._tracker(model, value) if self._tracks_state else None
        return Store(signature, recording, self._budget, model, state)

    def _tracker(self, model: Any, signature: Signature) -> StateTracker:
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"state=True is for modules of torch, and this is a {type(model).__name__}.",
                slug="state-of-no-module",
                hint="Watch the module that keeps the state, or leave the option out.",
            )
        return StateTracker(model, name_of_state(signature))

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
            hint = f"{advice_on_wrapped(self.model)}{_instead(self.model, name, store)}{_ADVICE}"
            raise ObservationError(_nothing_seen(name, store), slug="no-calls", hint=hint)
        return store


def _routed(store: Store, argument: str, watched: WithWeights) -> WrappedPlace:
    """Puts a wrapper on a module whose weights are seen as an argument; returns where it stands."""

    def watch(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with store.wanting(watched.wanted()):
            return store.watch(original, args, kwargs)

    def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            weights = watched.weights()
        except OnlookerError as error:  # of the state of the model, which is the user's own matter
            store.unrecorded.add(f"a call was not recorded: {error.message}")
            return original(*args, **kwargs)
        return around_call(argument, watched, weights, watch)(original, args, kwargs)

    return store.hook.enter_context(replaced_method(watched.module, "forward", around))


def _read(read: Callable[..., dict[str, Any]], model: Any, *others: Any) -> dict[str, Any]:
    """Calls ``read`` on a model; returns nothing where its class does not let it be read."""
    try:
        return read(model, *others)
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
    """Returns in words which method was called in place of the watched one, and how often, with a
    space after it; nothing where that is not known.
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

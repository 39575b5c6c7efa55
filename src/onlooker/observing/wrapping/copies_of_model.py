"""Calls of copies of a watched object: a pipeline may copy the model, and call the copy.

A copy that holds what the watched object holds is the same program, so that its calls are calls of
it. A copy that was changed, whose layers were fused for instance, is another model: whoever watches
decides about it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...core.support.locks import lock_of
from ...pytrees.comparisons.same_object import difference_of
from ..copies import unseen
from .deepcopy_hook import noted_copies
from .wrapper import Around

__all__ = ["CopiesOfModel"]

#: of the objects that were not seen to be copied, so many are found to differ
_MOST_STRANGERS = 8


@dataclass(frozen=True, slots=True)
class _KnownCopy:
    """An object that was compared, what it was then, and what runs around its calls."""

    ref: weakref.ref[Any]
    fingerprint: Any
    around: Around | None


class CopiesOfModel:
    """Finds what runs around the calls of copies of a model.

    ``same`` runs around calls of an object that holds the same as the model when it is called.
    ``changed(copy, where)`` gives what runs around those of a deep copy made inside the block that
    differs from the model, at the place ``where``. Objects that nobody saw to be copied are compared
    as well while ``asks_strangers()``, a few of them.

    Objects are compared at their first call, and once more when a weight was written to or when
    their mode changed.
    """

    def __init__(
        self,
        model: Any,
        same: Around,
        changed: Callable[[Any, str], Around],
        asks_strangers: Callable[[], bool],
    ) -> None:
        self._model = model
        self._asks_strangers = asks_strangers
        self._same = same
        self._changed = changed
        self._copies: dict[int, weakref.ref[Any]] = {}
        self._known: dict[int, _KnownCopy] = {}
        self._n_strangers = 0
        self._lock = lock_of(self)

    @contextlib.contextmanager
    def noted(self, *objects: Any) -> Iterator[None]:
        """Inside the block deep copies of the model, of these objects of its class and of such
        copies are known as copies.
        """
        for obj in objects:
            self._note(obj)
        with noted_copies(self._model, self._is_watched, self._note):
            yield

    def __call__(self, obj: Any) -> Around | None:
        """Returns the block around a call of another object of the class; None for one that is no
        copy.
        """
        if torch.compiler.is_compiling() or type(obj) is not type(self._model):
            return None
        try:
            return self._around(obj)
        except Exception:  # cannot be compared, or not be referred to
            return None

    def _is_watched(self, obj: Any) -> bool:
        return obj is self._model or self._is_copy(obj)

    def _is_copy(self, obj: Any) -> bool:
        found = self._copies.get(id(obj))
        return found is not None and found() is obj

    def _note(self, made: Any) -> None:
        with contextlib.suppress(TypeError):  # no weak references to it
            living = {key: ref for key, ref in self._copies.items() if ref() is not None}
            self._copies = {**living, id(made): weakref.ref(made)}

    def _around(self, obj: Any) -> Around | None:
        with self._lock:
            known = self._known.get(id(obj))
            if known is not None and known.ref() is not obj:
                known = None
            is_copy = self._is_copy(obj)
            if not is_copy and not self._may_be_copy(known):
                return None
            now = _fingerprint(obj)
            if known is None or known.fingerprint != now:
                known = _KnownCopy(weakref.ref(obj), now, self._compared(obj, is_copy))
                self._n_strangers += known.around is None
                living = {
                    key: other for key, other in self._known.items() if other.ref() is not None
                }
                self._known = {**living, id(obj): known}
            return known.around

    def _may_be_copy(self, known: _KnownCopy | None) -> bool:
        """False for an object that differed, and for a new one where no more are compared."""
        if known is not None:
            return known.around is not None
        return self._n_strangers < _MOST_STRANGERS and self._asks_strangers()

    def _compared(self, obj: Any, is_copy: bool) -> Around | None:
        if _is_captured():
            return None
        with unseen():
            where = difference_of(self._model, obj)
        if not where:
            return self._same
        return self._changed(obj, where) if is_copy else None


def _fingerprint(obj: Any) -> Any:
    """Returns marks that change when a weight is written to, or replaced, or when the mode of a
    module changes.
    """
    if not isinstance(obj, torch.nn.Module):
        return None
    weights = [
        (id(weight), 0 if weight.is_inference() else weight._version) for weight in obj.parameters()
    ]
    return weights, [module.training for module in obj.modules()]


def _is_captured() -> bool:
    """True while calls are captured into a graph of CUDA, where nothing may be compared."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]

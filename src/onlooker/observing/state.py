"""The state of a model outside its inputs: attributes that a call overwrites, buffers that it
writes.

A model may set its own window size from the last image, or count its calls. Probes and exports run
it again, so what they change is put back; and they begin from what stood there before the model was
watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ..patches.swap import swapped
from ..pytrees.numbers import is_same
from .effects import Effect
from .module_state import put_values
from .reach import Snapshot

__all__ = ["StateKeeper", "kept_state", "kept_weights"]


@contextlib.contextmanager
def kept_state(
    model: Any, former: Mapping[str, Any], keeper: StateKeeper | None = None
) -> Iterator[None]:
    """Inside the block the ``former`` attributes stand; on exit all that the model can reach is what
    it was: see :mod:`~onlooker.observing.reach`.

    A ``keeper`` that is given again saves most of the work: it remembers what it found.
    """
    keeper = StateKeeper() if keeper is None else keeper
    snapshot = keeper.snapshot(model)
    put_values(model, former, former)
    try:
        with _without_derivatives(snapshot.tensors.values()):
            yield
    finally:
        keeper.put_back(snapshot)


@contextlib.contextmanager
def _without_derivatives(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Inside the block no tensor has a derivative yet, to which ``backward`` would add; on exit each has its
    own.
    """
    kept = [(tensor, tensor.grad) for tensor in tensors if tensor.requires_grad and tensor.is_leaf]
    for tensor, derivative in kept:
        if derivative is not None:
            tensor.grad = None
    try:
        yield
    finally:
        for tensor, derivative in kept:
            if tensor.grad is not derivative:
                tensor.grad = derivative


@contextlib.contextmanager
def kept_weights() -> Iterator[None]:
    """Inside the block parameters whose ``data`` is read are copied first, and on exit they hold what
    they held: torch does not count what is written through ``data``.
    """
    read = torch.Tensor.data.__get__  # type: ignore[attr-defined]
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def data(tensor: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = read(tensor)
        if type(tensor) is torch.nn.Parameter and id(tensor) not in copies:
            copies[id(tensor)] = tensor, found.clone()
        return found

    write = torch.Tensor.data.__set__  # type: ignore[attr-defined]
    try:
        with swapped(torch.Tensor, "data", property(data, write)):
            yield
    finally:
        for tensor, copy in copies.values():
            if not is_same(read(tensor), copy):
                read(tensor).copy_(copy)


class StateKeeper:
    """Takes snapshots of a model and puts back what they hold; ``lost`` are the changes that could
    not be put back, ``left`` the places that the last run changed, but for writes to tensors.
    """

    def __init__(self) -> None:
        self.lost: tuple[Effect, ...] = ()
        self.left: frozenset[str] = frozenset()
        self._known: tuple[Any, Snapshot] | None = None

    def snapshot(self, model: Any) -> Snapshot:
        """Returns a snapshot of everything in reach; the last one where nothing has changed since."""
        if self._known is not None and self._known[0] is model and not self._known[1].changed():
            return self._known[1]
        self._known = model, Snapshot.of(model)
        return self._known[1]

    @property
    def begun(self) -> Snapshot:
        """The last snapshot: what stood when the run of now began."""
        return self._known[1] if self._known is not None else Snapshot()

    def put_back(self, snapshot: Snapshot) -> None:
        """Gives everything what it held."""
        self.left = frozenset()
        if snapshot.changed():
            effects = snapshot.effects()
            self.left = frozenset(one.place for one in effects if not one.is_write)
            snapshot.put_back()
            self.lost += tuple(snapshot.lasting())

    def forget(self) -> None:
        """Frees the snapshot."""
        self._known = None

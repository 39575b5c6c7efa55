"""The state of a model outside its inputs: attributes that a call overwrites, buffers that it
writes.

A model may set its own window size from the last image, or count its calls. Probes and exports run
it again, so what they change is put back; and they begin from what stood there before the model was
watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from ..patches.swap import swapped
from ..pytrees.numbers import is_same
from ..torch_internals.fake_tensors import is_fake
from ..torch_internals.modes import without_dispatch_modes
from .effects import Effect, note_data
from .module_state import contents_at, put_values
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
    snapshot, held = keeper.snapshot(model), contents_at(model, former)
    put_values(model, former, former)
    try:
        with _without_derivatives(snapshot.tensors.values()):
            yield
    finally:
        keeper.put_back(snapshot)
        put_values(model, held, held)  # a dict of a package is in no snapshot


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
def kept_weights(keeper: StateKeeper | None = None) -> Iterator[None]:
    """Inside the block parameters are copied before a method writes to them, and so are tensors whose ``data`` is
    read or set; on exit they hold what they held: torch does not count what is written through ``data``. The
    ``keeper`` remembers the tensors that were written to so.
    """
    read = torch.Tensor.data.__get__  # type: ignore[attr-defined]
    write = torch.Tensor.data.__set__  # type: ignore[attr-defined]
    copies: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}

    def keep(tensor: torch.Tensor) -> None:
        if id(tensor) in copies or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            return
        is_copied = type(tensor) is torch.nn.Parameter or tensor.nbytes <= _MOST_KEPT
        with without_dispatch_modes():  # the values, in a run without values too
            held: torch.Tensor = read(tensor)
            copies[id(tensor)] = tensor, held, held.clone() if is_copied else None
        note_data(tensor)

    def data(tensor: torch.Tensor) -> torch.Tensor:
        keep(tensor)
        found: torch.Tensor = read(tensor)
        return found

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        keep(tensor)
        if not is_fake(value) or value.shape != tensor.shape or value.dtype != tensor.dtype:
            write(tensor, value)

    def keeping(name: str) -> Callable[..., Any]:
        method = getattr(torch.Tensor, name)

        def written(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            keep(tensor)
            return method(tensor, *args, **kwargs)

        return written

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(swapped(torch.Tensor, "data", property(data, set_data)))
            for name in _WRITING:
                stack.enter_context(swapped(torch.nn.Parameter, name, keeping(name)))
            yield
    finally:
        for tensor, held, copy in copies.values():
            now = read(tensor)
            is_other = now.data_ptr() != held.data_ptr() or now.shape != held.shape
            if keeper is not None and (is_other if copy is None else not is_same(now, copy)):
                keeper.by_data[id(tensor)] = tensor
            if is_other:
                write(tensor, held)
            if copy is not None and not is_same(held, copy):
                held.copy_(copy)


#: a tensor that is no parameter is copied up to so many bytes
_MOST_KEPT = 1 << 22
#: the methods by which models write to their parameters
_WRITING = (
    *("copy_", "add_", "sub_", "mul_", "div_", "lerp_", "addcmul_", "addcdiv_", "clamp_", "zero_"),
    *(
        "fill_",
        "normal_",
        "uniform_",
        "index_copy_",
        "index_add_",
        "masked_fill_",
        "scatter_",
        "set_",
    ),
    *("renorm_", "sign_", "neg_", "addmm_", "clamp_min_", "clamp_max_", "trunc_", "sqrt_"),
    *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"),
)


class StateKeeper:
    """Takes snapshots of a model and puts back what they hold; ``lost`` are the changes that could
    not be put back, ``left`` the places that the last run changed, but for writes to tensors.
    """

    def __init__(self) -> None:
        self.lost: tuple[Effect, ...] = ()
        self.left: frozenset[str] = frozenset()
        #: tensors that a run wrote to through ``data``, or methods of a parameter, by identity
        self.by_data: dict[int, torch.Tensor] = {}
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

"""Copies of the tensors of a call: once each, whatever shares memory, and unseen by the user's
modes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..torch_internals.fake_tensors import FakeTensor
from ..torch_internals.modes import (
    is_functorch_wrapped_tensor,
    number_of_function_modes,
    without_dispatch_modes,
    without_last_function_mode,
)

__all__ = [
    "Copying",
    "copy_leaves",
    "held_storages",
    "unseen",
    "why_without_values",
    "without_function_modes",
]

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
#: copies begin at multiples of the largest element
_ALIGNED = 16


def copy_leaves(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """The leaves with every tensor copied; a tensor that stands at two places stays one tensor."""
    memo: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and id(leaf) not in memo:
                memo[id(leaf)] = leaf.detach().clone()
    return tuple(memo.get(id(leaf), leaf) for leaf in leaves)


def why_without_values(leaves: Iterable[Any]) -> str | None:
    """Returns the reason for which the tensors have no values that could be kept; None where they
    have.
    """
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            continue
        if is_functorch_wrapped_tensor(leaf):
            return "its tensors exist only inside a transform of torch.func"
        if isinstance(leaf, FakeTensor):
            return "its tensors are fake"
    return None


class Copying:
    """The copies that some leaves need: how many bytes they take, then the copies.

    Tensors that share memory are copied as one block where that is not larger than copies one by
    one; an expanded tensor is copied by its memory, not by its size. ``known`` gives a copy that is
    there already.
    """

    def __init__(
        self, leaves: Sequence[Any], known: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> None:
        self.leaves = leaves
        self._copies: dict[int, torch.Tensor] = {}
        self._alone: list[torch.Tensor] = []
        self._blocks: list[list[torch.Tensor]] = []
        self.nbytes: dict[torch.device, int] = {}
        with unseen():
            self._sort(known)

    def _sort(self, known: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        groups: dict[int, list[torch.Tensor]] = {}
        for tensor in {
            id(leaf): leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)
        }.values():
            copy = known(tensor)
            if copy is not None:
                self._copies[id(tensor)] = copy
            elif _is_plain(tensor):
                groups.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
            else:
                self._single(tensor)
        for group in groups.values():
            low, high = _span(group)
            if high - low < sum(tensor.nbytes for tensor in group):
                self._blocks.append(group)
                self._need(group[0].device, high - low)
            else:
                for tensor in group:
                    self._single(tensor)

    def _single(self, tensor: torch.Tensor) -> None:
        self._alone.append(tensor)
        self._need(tensor.device, _nbytes(tensor))

    def _need(self, device: torch.device, nbytes: int) -> None:
        self.nbytes[device] = self.nbytes.get(device, 0) + nbytes

    def run(self) -> tuple[Any, ...]:
        """The leaves, copied."""
        with unseen():
            for tensor in self._alone:
                self._copies[id(tensor)] = tensor.detach().clone()
            for block in self._blocks:
                self._copies.update(zip(map(id, block), _copied_block(block), strict=True))
        return tuple(self._copies.get(id(leaf), leaf) for leaf in self.leaves)


@contextlib.contextmanager
def without_function_modes() -> Iterator[None]:
    """No mode of the user sees which attributes of tensors are read."""
    with contextlib.ExitStack() as stack:
        for _ in range(number_of_function_modes()):
            stack.enter_context(without_last_function_mode())
        yield


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """No gradients, no inference tensors, and no mode of the user that counts or changes
    operators.
    """
    with (
        without_function_modes(),
        without_dispatch_modes(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        yield


def _is_plain(tensor: torch.Tensor) -> bool:
    """True for a tensor that is a view of its storage and nothing else."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
        and not is_functorch_wrapped_tensor(tensor)
    )


def _nbytes(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return tensor._values().nbytes + tensor._indices().nbytes
    return tensor.numel() * tensor.element_size()


def _span(group: Sequence[torch.Tensor]) -> tuple[int, int]:
    """The first byte of a storage that one of the tensors uses, and the one behind the last."""
    lows, highs = [], []
    for tensor in group:
        start, size = int(tensor.storage_offset()), tensor.element_size()
        length = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        lows.append(start * size)
        highs.append((start + int(length) if tensor.numel() else start) * size)
    low = min(lows)
    return low - low % _ALIGNED, max(highs)


def _copied_block(group: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    low, high = _span(group)
    source, device = group[0].untyped_storage(), group[0].device
    block = (
        torch.empty(0, dtype=torch.uint8, device=device)
        .set_(source, low, (high - low,), (1,))
        .clone()
    )
    storage = block.untyped_storage()
    return [
        torch.empty(0, dtype=tensor.dtype, device=device).set_(
            storage,
            tensor.storage_offset() - low // tensor.element_size(),
            tensor.shape,
            tensor.stride(),
        )
        for tensor in group
    ]


def held_storages(leaves: Iterable[Any]) -> dict[int, tuple[torch.device, int]]:
    """The memory that the tensors among the leaves hold: device and bytes, by identity; what is
    shared stands once.
    """
    storages: dict[int, tuple[torch.device, int]] = {}
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if _is_plain(leaf):
                storage = leaf.untyped_storage()
                storages[storage._cdata] = (leaf.device, storage.nbytes())
            else:
                storages[id(leaf)] = (leaf.device, _nbytes(leaf))
    return storages

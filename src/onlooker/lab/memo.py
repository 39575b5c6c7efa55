"""Runs that were made already: the same arguments give the same result, since every run begins from the same state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..core.structure import Tree
from ..pytrees.hidden import hidden_tensors
from ..pytrees.open import open_arguments

__all__ = ["Memo", "key_of"]

#: the most bytes of results that are kept; later results are not
_MOST_BYTES = 1 << 28

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a run gave: a result, or the error of the model."""

    result: Tree[Any] | None
    error: Exception | None


class Memo:
    """The results of runs by their arguments.

    >>> memo = Memo()
    >>> memo.keep("key", None, ValueError("too long"))
    >>> memo.has("key"), memo.has("another key")
    (True, False)
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._bytes = 0

    def has(self, key: str | None) -> bool:
        """True when a run with these arguments was kept; never for arguments without a key."""
        return key is not None and key in self._entries

    def result(self, key: str) -> Tree[Any]:
        """The result of the run, or the error that the model raised.

        :raises Exception: what the model raised
        """
        entry = self._entries[key]
        if entry.error is not None:
            raise entry.error.with_traceback(None)
        if entry.result is None:
            raise KeyError(key)
        return entry.result

    def keep(self, key: str | None, result: Tree[Any] | None, error: Exception | None = None) -> None:
        """Keeps what a run gave, as long as there is room for it."""
        if key is None:
            return
        leaves = result.leaves if result is not None else ()
        size = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
        if self._bytes + size > _MOST_BYTES:
            return
        self._bytes += size
        bare = None if error is None else error.with_traceback(None)
        self._entries[key] = _Entry(result, bare)


def key_of(arguments: Mapping[str, Any]) -> str | None:
    """A digest of the arguments: equal for equal values in equal containers; None where a value has no digest.

    >>> key_of({"x": torch.zeros(2)}) == key_of({"x": torch.zeros(2)})
    True
    >>> key_of({"x": torch.zeros(2)}) == key_of({"x": torch.zeros(1, 2)})
    False
    """
    tree = open_arguments(dict(arguments))
    digest = hashlib.blake2b(repr(tree.structure).encode(), digest_size=20)
    try:
        for leaf in tree.leaves:
            _add_leaf(digest, leaf)
        for path, tensors in hidden_tensors(tree.structure).items():
            for name, tensor in tensors.items():
                digest.update(f"{path}.{name}".encode())
                _add_leaf(digest, tensor)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    return digest.hexdigest()


def _add_leaf(digest: Any, leaf: Any) -> None:
    """Adds one leaf to a digest.

    :raises TypeError: for a leaf that is neither a dense tensor nor a plain value
    """
    if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout is torch.strided and not leaf.is_quantized:
        about = (leaf.dtype, tuple(leaf.shape), leaf.stride(), str(leaf.device), leaf.is_conj(), leaf.is_neg())
        digest.update(repr(about).encode())
        flat = leaf.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
        return
    if not isinstance(leaf, _PLAIN):
        raise TypeError(f"a {type(leaf).__name__} has no digest")
    digest.update(f"{type(leaf).__name__}:{leaf!r}".encode())

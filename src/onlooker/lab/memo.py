"""Runs that were made already: the same arguments give the same result, since every run begins
from the same state.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from ..core.structure import Result
from ..pytrees.comparisons.digest import digest_of
from ..pytrees.hidden import hidden_tensors
from ..pytrees.open import open_arguments

__all__ = ["Memo", "key_of"]

#: the most bytes of results that are kept; later results are not
_MOST_BYTES = 1 << 28

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class Memo:
    """The results of runs by their arguments.

    >>> memo = Memo()
    >>> memo.keep("key", ValueError("too long"))
    >>> memo.has("key"), memo.has("another key")
    (True, False)
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, Result | Exception] = {}
        self._bytes = 0

    def has(self, key: str | None) -> bool:
        """True when a run with these arguments was kept; never for arguments without a key."""
        return key is not None and key in self._outcomes

    def result(self, key: str) -> Result:
        """The result of the run, or the error that the model raised.

        :raises Exception: what the model raised
        """
        outcome = self._outcomes[key]
        if isinstance(outcome, Exception):
            raise outcome.with_traceback(None)
        return outcome

    def keep(self, key: str | None, outcome: Result | Exception) -> None:
        """Keeps what a run gave, as long as there is room for it."""
        if key is None:
            return
        if isinstance(outcome, Exception):
            self._keep_error(key, outcome)
            return
        size = sum(leaf.nbytes for leaf in outcome.leaves if isinstance(leaf, torch.Tensor))
        if self._bytes + size <= _MOST_BYTES:
            self._bytes += size
            self._outcomes[key] = outcome

    def forget(self) -> None:
        """Frees the results."""
        self._outcomes.clear()
        self._bytes = 0

    def _keep_error(self, key: str, error: Exception) -> None:
        """Keeps a copy without a traceback, which would hold the tensors of all frames of the
        model.
        """
        try:
            bare = copy.copy(error)
        except Exception:  # an exception that cannot be built from its arguments
            return
        if type(bare) is type(error) and str(bare) == str(error):
            self._outcomes[key] = bare


def key_of(arguments: Mapping[str, Any]) -> str | None:
    """A digest of the arguments: equal for equal values in equal containers; None where a value has
    no digest.

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
    if isinstance(leaf, _PLAIN):
        digest.update(f"{type(leaf).__name__}:{leaf!r}".encode())
        return
    digest.update(digest_of(leaf))

"""Marks of tensors that have no public name: whose view one is, what tells its memory, and which of its
attributes are none of torch's.
"""

from __future__ import annotations

from typing import Any

import torch

from .modes import WithoutFunctions
from .needed import needed
from .trees import tree_leaves

with needed("marks of tensors"):
    _tensors: Any = torch.Tensor
    base_of_tensor = _tensors._base.__get__
    version_of_tensor = _tensors._version.__get__
    is_view = _tensors._is_view

__all__ = [
    "address_of",
    "attributes_given_to",
    "base_of_tensor",
    "is_view",
    "memories_in",
    "memory_of",
    "version_of_tensor",
]

#: what torch keeps at a tensor without values, and at parameters
_OWN_ATTRIBUTES = frozenset(
    {"_fake_device", "fake_mode", "constant", "pytype", "dispatch_keys", "real_tensor", "_is_param"}
)
_MEMOS = ("_memo", "_memo_vc", "_memo_epoch")


def attributes_given_to(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the attributes that somebody gave to a tensor object, without those of torch.

    >>> x = torch.zeros(2)
    >>> x.calls = 1
    >>> attributes_given_to(x)
    {'calls': 1}
    """
    return {
        name: value
        for name, value in vars(tensor).items()
        if name not in _OWN_ATTRIBUTES and not name.endswith(_MEMOS)
    }


def memory_of(tensor: torch.Tensor) -> Any:
    """Returns a value that tells the memory of tensors apart; None for a tensor without one.

    The modes of a trace do not see the question: each of them would be asked.
    """
    try:
        with WithoutFunctions():
            return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def address_of(tensor: torch.Tensor) -> int:
    """Returns the address of the memory that a tensor and its views lie in; 0 for one without memory
    of its own, as a class of tensors is that holds others.
    """
    try:
        with WithoutFunctions():
            return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def memories_in(value: Any) -> set[Any]:
    """The memories of all tensors in a value, as a list or a dict may have them."""
    return {memory_of(leaf) for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)}

"""Pytrees: the classes that torch opens, and how."""

from __future__ import annotations

from .needed import needed

with needed("pytrees"):
    import torch.fx._pytree as fx_pytree
    import torch.utils._pytree as torch_pytree
    from torch.utils._pytree import (
        TreeSpec,
        tree_flatten,
        tree_leaves,
        tree_map_only,
        tree_unflatten,
    )

__all__ = [
    "TreeSpec",
    "fx_pytree",
    "torch_pytree",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]

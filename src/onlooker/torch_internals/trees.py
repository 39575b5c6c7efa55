"""Pytrees: the classes that torch opens, and how."""

from __future__ import annotations

from .needed import needed

with needed("pytrees"):
    import torch.fx._pytree as fx_pytree
    import torch.utils._pytree as torch_pytree
    from torch.utils._pytree import tree_leaves, tree_map_only

__all__ = ["fx_pytree", "torch_pytree", "tree_leaves", "tree_map_only"]

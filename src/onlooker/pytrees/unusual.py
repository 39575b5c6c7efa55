"""Tensors that are no dense block of numbers: sparse, quantised, nested, distributed, or without
values at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ..core.path import Path
from ..core.structure import Tree
from ..torch_internals.fake_tensors import FakeTensor
from ..torch_internals.modes import is_functorch_wrapped_tensor
from .nodes import qualified_name

__all__ = ["Unusual", "unusual", "unusual_leaves"]


@dataclass(frozen=True, slots=True)
class Unusual:
    """A kind of tensor that is not dense, in words, and the call or the step that makes a dense one
    of it.

    >>> unusual(torch.eye(2).to_sparse())
    Unusual(what='a sparse tensor of the layout torch.sparse_coo', method='.to_dense()', advice='')
    """

    what: str
    method: str = ""
    advice: str = ""


_NESTED = Unusual(
    "a nested tensor",
    advice="Pass a dense tensor that is padded, and a mask or the lengths as another argument.",
)
_META = Unusual(
    "a tensor of the device meta, which has no values",
    advice="Run the model and its inputs on a real device, the CPU for instance.",
)
_LAZY = Unusual(
    "a parameter that is not initialised",
    advice="Run the module that it belongs to once before the model is watched.",
)
_FAKE = Unusual(
    "a fake tensor, which has no values",
    advice="Run the model on real tensors, outside FakeTensorMode.",
)
_TRANSFORMED = Unusual(
    "a tensor that exists only inside a transform of torch.func",
    advice="Watch a call outside the transform.",
)


def unusual(tensor: torch.Tensor) -> Unusual | None:
    """Returns in words what is unusual about a tensor; None for a dense one with values, on any
    device, of a derived class too.
    """
    if is_lazy(tensor):
        return _LAZY
    if is_functorch_wrapped_tensor(tensor):
        return _TRANSFORMED
    if isinstance(tensor, FakeTensor):
        return _FAKE
    if tensor.is_nested:
        return _NESTED
    return _META if tensor.device.type == "meta" else _convertible(tensor)


def _convertible(tensor: torch.Tensor) -> Unusual | None:
    """The kinds from which a method makes a dense tensor."""
    if hasattr(tensor, "full_tensor"):
        return Unusual("a distributed tensor", ".full_tensor()")
    if tensor.is_quantized:
        return Unusual(f"a quantised tensor of the dtype {tensor.dtype}", ".dequantize()")
    if tensor.layout != torch.strided:
        kind = "a sparse tensor" if str(tensor.layout).startswith("torch.sparse") else "a tensor"
        return Unusual(f"{kind} of the layout {tensor.layout}", ".to_dense()")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return Unusual(
            f"a {qualified_name(type(tensor))}, which has operators of its own",
            advice="Pass the plain tensors that it is made of.",
        )
    return None


def unusual_leaves(tree: Tree[Any]) -> list[tuple[Path, Unusual]]:
    """The unusual tensors among the leaves, with their paths.

    >>> from .open import open_arguments
    >>> [(path, found)] = unusual_leaves(open_arguments({"x": [torch.eye(2).to_mkldnn()]}))
    >>> path.code(), found.method
    ('x[0]', '.to_dense()')
    """
    rows: list[tuple[Path, Unusual]] = []
    for path, leaf in tree.items():
        found = unusual(leaf) if isinstance(leaf, torch.Tensor) else None
        if found is not None:
            rows.append((path, found))
    return rows

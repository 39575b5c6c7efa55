"""Tensors without values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Node

from .needed import needed

with needed("tensors without values"):
    import torch._subclasses as subclasses
    from torch._library.fake_impl import FakeImplCtx
    from torch._subclasses import fake_utils, meta_utils
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
        UnsupportedFakeTensorException,
        UnsupportedOperatorException,
        in_kernel_invocation_manager,
        is_fake,
        should_allow_numbers_as_tensors,
        unset_fake_temporarily,
    )
    from torch.utils._python_dispatch import (
        is_traceable_wrapper_subclass as is_tensor_of_tensors,
    )

__all__ = [
    "UNKNOWN_VALUES",
    "DataDependentOutputException",
    "FakeImplCtx",
    "FakeTensor",
    "FakeTensorMode",
    "fake_utils",
    "give_value",
    "has_values",
    "in_kernel_invocation_manager",
    "is_fake",
    "is_tensor_of_tensors",
    "meta_utils",
    "mode_of",
    "should_allow_numbers_as_tensors",
    "subclasses",
    "unset_fake_temporarily",
    "value_beside",
]

#: what is raised where a run needs the values that such tensors lack
UNKNOWN_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)


#: where a trace keeps the values of symbols: of sizes, and of what is read from tensors
_VALUES_OF_SYMBOLS = (
    *("backed_var_to_val", "var_to_val"),
    *("real_tensor_prop_unbacked_vals", "unbacked_var_to_val"),
)


def has_values(leaf: Any) -> bool:
    """True for a tensor of a trace that keeps the values of its example."""
    return isinstance(leaf, FakeTensor) and bool(leaf.fake_mode.propagate_real_tensors)


def give_value(tensor: Any, value: torch.Tensor) -> None:
    """Keeps a value beside a tensor of a trace, for :func:`value_beside`; where the tensor has one, the new one begins
    at the same place of its memory, which torch compares.
    """
    before = tensor.real_tensor
    if before is not None:
        memory = before.untyped_storage().clone()
        place = before.storage_offset(), before.size(), before.stride()
        value = torch.empty(0, dtype=before.dtype).set_(memory, *place).copy_(value)
    tensor.real_tensor = value


def value_beside(leaf: Any) -> Any:
    """The value that a trace by values keeps beside a tensor or a symbolic number: of a tensor its
    ``real_tensor``, and a plain number as it is.

    :raises LookupError: where there is none
    """
    if isinstance(leaf, FakeTensor):
        if leaf.real_tensor is None:
            raise LookupError("a tensor of the trace has no value")
        return leaf.real_tensor
    if not isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return leaf
    expression = leaf.node.expr
    for values in _VALUES_OF_SYMBOLS:  # other versions of torch have other ones
        expression = expression.xreplace(getattr(leaf.node.shape_env, values, {}))
    if expression.free_symbols:
        raise LookupError("a number of the trace has no value")
    return leaf.node.pytype(expression)


def mode_of(nodes: Iterable[Node]) -> Any:
    """Returns the mode of the tensors that nodes of a graph give; None where they give none."""
    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in nodes)
    return next((mode for mode in modes if mode is not None), None)

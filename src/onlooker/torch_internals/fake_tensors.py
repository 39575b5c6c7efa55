"""Tensors without values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    "in_kernel_invocation_manager",
    "is_fake",
    "is_tensor_of_tensors",
    "meta_utils",
    "mode_of",
    "should_allow_numbers_as_tensors",
    "subclasses",
    "unset_fake_temporarily",
]

#: what is raised where a run needs the values that such tensors lack
UNKNOWN_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    NotImplementedError,
)


def mode_of(nodes: Iterable[Node]) -> Any:
    """Returns the mode of the tensors that nodes of a graph give; None where they give none."""
    modes = (getattr(node.meta.get("val"), "fake_mode", None) for node in nodes)
    return next((mode for mode in modes if mode is not None), None)

"""Tensors without values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .needed import needed
from .operators import OpOverload

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
    "RememberingMode",
    "fake_utils",
    "in_kernel_invocation_manager",
    "is_fake",
    "is_tensor_of_tensors",
    "meta_utils",
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


class RememberingMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block operators give tensors without values; such a mode remembers more of them.

    torch remembers what an operator gave to tensors without values, and computes it anew where one
    argument has values, as each weight of a model has. Here such an argument loses its values first:
    a run of a model with equal blocks takes half as long.

    >>> mode, weight = RememberingMode(), torch.zeros(3, 8)
    >>> with mode:
    ...     (weight @ torch.zeros(8, 2)).shape
    torch.Size([3, 2])
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs an operator on tensors that all have no values."""
        kwargs = kwargs or {}
        if self._would_convert(func, types):
            args = tuple(map(self._without_values, args))
            kwargs = {name: self._without_values(value) for name, value in kwargs.items()}
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _would_convert(self, func: Any, types: Sequence[type]) -> bool:
        """True where torch itself would take the values away, and do nothing else with them.

        It computes with constants, keeps the values of new ones, and refuses to change the sizes of a
        tensor that has values.
        """
        if not isinstance(func, OpOverload) or func in self.lift_fns:
            return False
        if torch.Tag.inplace_view in func.tags:
            return False
        return FakeTensor in types or not should_allow_numbers_as_tensors(func)

    def _without_values(self, value: Any) -> Any:
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            return self._blank(value) if _is_plain_weight(value) else self.from_tensor(value)
        if isinstance(value, (list, tuple)):
            return [self._without_values(one) for one in value]
        return value

    def _blank(self, weight: torch.Tensor) -> FakeTensor:
        """A tensor of the same shape, in a sixth of the time that torch needs to look at each feature
        that a tensor may have.
        """
        with in_kernel_invocation_manager(self):
            blank = torch.empty_strided(
                weight.shape, weight.stride(), dtype=weight.dtype, device="meta"
            )
            return FakeTensor(self, blank, weight.device)


def _is_plain_weight(value: torch.Tensor) -> bool:
    """True for a weight in memory of its own, of which sizes and strides tell everything."""
    return (
        type(value) is torch.nn.Parameter
        and value.layout is torch.strided
        and not (value.is_quantized or value.is_nested or value.is_conj() or value.is_neg())
        and value.device.type != "meta"
        and value.untyped_storage().nbytes() == value.nbytes
    )

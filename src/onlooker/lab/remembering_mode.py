"""Tensors without values, whose shapes are remembered from run to run.

torch remembers what an operator gave to tensors without values, and computes it anew where one
argument has values, as each weight of a model has. Here such an argument loses its values first. And
torch compares much that no tensor of such a run has, as symbols in sizes. Here a call of an operator
that only computes is known by the layouts of its arguments, and its result is made from the layout that it
had before: a part of an argument in the memory of that argument, anything else in memory of its own. A
run of a model of equal blocks takes a third of the time.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/_subclasses/fake_tensor.py, where
``FakeTensorMode._cached_dispatch_impl`` is the memory of torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..proofs.operators import facts_of, flat
from ..pytrees.nodes import SYMBOLIC
from ..torch_internals.fake_tensors import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    should_allow_numbers_as_tensors,
)
from ..torch_internals.modes import BesideCompilers
from ..torch_internals.operators import OpOverload
from ..torch_internals.tensor_marks import memory_of

__all__ = ["RememberingMode"]


class RememberingMode(BesideCompilers, FakeTensorMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block operators give tensors without values; such a mode remembers more of them.

    >>> mode, weight = RememberingMode(), torch.zeros(3, 8)
    >>> with mode:
    ...     (weight @ torch.zeros(8, 2)).shape
    torch.Size([3, 2])
    """

    #: of all modes, as the memory of torch is
    _known: ClassVar[dict[Hashable, _Shape]] = {}

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
        if func is torch.ops.prim.device.default:
            return args[0].fake_device if type(args[0]) is FakeTensor else args[0].device
        if self._would_convert(func, types):
            args = tuple(map(self._without_values, args))
            kwargs = {name: self._without_values(value) for name, value in kwargs.items()}
        key = self._key_of_call(func, args, kwargs)
        if key is None:
            return super().__torch_dispatch__(func, types, args, kwargs)
        known = self._known.get(key)
        if known is not None:
            return known.fresh(self, args)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        made = _Shape.of(result, func, args, kwargs)
        if made is not None:
            self._known[key] = made
        return result

    def _key_of_call(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Hashable | None:
        """Equal for calls of a pure operator whose results have the same shape."""
        if torch.is_grad_enabled() or not (args and facts_of(func).is_pure):
            return None
        try:
            named = tuple((name, self._key_of(value)) for name, value in kwargs.items())
            return func, torch.get_default_dtype(), tuple(map(self._key_of, args)), named
        except NotImplementedError:
            return None

    def _key_of(self, value: Any) -> Hashable:
        kind = type(value)
        if kind is FakeTensor:
            if value.fake_mode is not self or not _is_plain(value):
                raise NotImplementedError
            return (
                value.shape,
                value.stride(),
                value.storage_offset(),
                value.dtype,
                value.fake_device,
            )
        if kind in (list, tuple):
            return tuple(map(self._key_of, value))
        if isinstance(value, (torch.Tensor, *SYMBOLIC)):
            raise NotImplementedError
        return kind, value

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


@dataclass(frozen=True, slots=True)
class _Shape:
    """The shape of the one result of an operator, which is a part of an argument where it has the
    number ``of_argument``.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    of_argument: int | None

    @classmethod
    def of(
        cls, result: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> _Shape | None:
        """The shape of a result; None where there is more to tell, as of one that may be an argument."""
        is_plain = type(result) is FakeTensor and _is_plain(result) and not result.requires_grad
        facts = facts_of(func)
        if not is_plain or (facts.shared and not facts.is_view):
            return None
        place = facts.shared[0] if facts.is_view else None
        whole = [] if place is None else list(args[place : place + 1])
        memory = memory_of(result)
        given = [value for value in flat((args, kwargs)) if isinstance(value, torch.Tensor)]
        sharing = [value for value in given if memory_of(value) == memory]
        if any(value is result for value in sharing) or list(map(id, sharing)) != list(
            map(id, whole)
        ):
            return None
        return cls(
            tuple(result.shape),
            result.stride(),
            result.storage_offset(),
            result.dtype,
            result.fake_device,
            place,
        )

    def fresh(self, mode: FakeTensorMode, args: Sequence[Any]) -> FakeTensor:
        """A tensor of this shape."""
        with in_kernel_invocation_manager(mode):
            made = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")
            if self.of_argument is not None:
                memory = args[self.of_argument].untyped_storage()
                made.set_(memory, self.offset, self.size, self.stride)
            return FakeTensor(mode, made, self.device)


def _is_plain(value: FakeTensor) -> bool:
    """True for a tensor without values of which sizes and strides tell everything."""
    return (
        value.constant is None
        and value.layout is torch.strided
        and not (value.is_conj() or value.is_neg())
    )


def _is_plain_weight(value: torch.Tensor) -> bool:
    """True for a weight in memory of its own, of which sizes and strides tell everything."""
    return (
        type(value) is torch.nn.Parameter
        and value.layout is torch.strided
        and not (value.is_quantized or value.is_nested or value.is_conj() or value.is_neg())
        and value.device.type != "meta"
        and value.untyped_storage().nbytes() == value.nbytes
    )

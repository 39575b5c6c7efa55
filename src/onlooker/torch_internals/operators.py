"""The classes of operators: one overload, all overloads of a name, and those that take graphs; and
functions of torch that have no public name.
"""

from __future__ import annotations

from typing import Any

import torch

from .needed import needed

with needed("operators"):
    import torch.export.custom_ops  # registers ``torch.ops.export``
    from torch import _pack_padded_sequence as pack_padded_sequence
    from torch import _pad_packed_sequence as pad_packed_sequence
    from torch import _sym_sqrt as sym_sqrt  # type: ignore[attr-defined]
    from torch._C import DispatchKey
    from torch._C._nn import _parse_to as parse_to
    from torch._C._nn import pad_sequence
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = [
    "DispatchKey",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "access_inner_tensor",
    "composed",
    "know_quantised_operators",
    "pack_padded_sequence",
    "pad_packed_sequence",
    "pad_sequence",
    "parse_to",
    "sym_sqrt",
]

#: reads a tensor that a tensor of a class holds, by the name of the attribute
access_inner_tensor = torch.ops.export.access_subclass_inner_tensor.default


def composed(operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The result of an operator that torch itself makes of others, as these: where an operator is
    decomposed, torch asks for its decomposition again instead.
    """
    return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def know_quantised_operators() -> None:
    """Makes ``torch.ops.quantized_decomposed`` known: importing its module registers it."""
    with needed("operators"):
        import torch.ao.quantization.fx._decomposed  # noqa: F401

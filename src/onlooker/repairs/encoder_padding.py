"""Zeros at padded positions of ``torch.nn.TransformerEncoder``, as its fast path gives them.

Why: in eager mode, without gradients, an encoder leaves padded positions out of its computation and
fills them with zeros before its last norm. In a trace it computes them like all others. A decoder
that is given no mask for them, or a caller who gets them, reads other numbers.

The fast path is taken where each row ends with its padding, which values decide: the zeros are
chosen by an operator of the graph.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/transformer.py,
``TransformerEncoder.forward``: "mask_check enabled with torch.compile or torch.export". It may go
when the two ways agree; ``tests/repairs/test_encoder_padding.py`` fails then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import TransformerEncoder

from ..patches.swap import swapped
from .repair import Repair

__all__ = ["ENCODER_PADDING", "padding_is_zero"]


@contextlib.contextmanager
def padding_is_zero(model: Any) -> Iterator[None]:
    """Inside the block encoders that would take the fast path in eager mode give zeros at padded
    positions, by operators that can be traced.

    Nothing is replaced where the fast path is off, or for a model without such an encoder.
    """
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    has_encoder = any(isinstance(module, TransformerEncoder) for module in modules)
    if not has_encoder or not torch.backends.mha.get_fastpath_enabled():
        yield
        return
    forward = TransformerEncoder.forward

    def with_zeros(
        self: TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> torch.Tensor:
        padding = src_key_padding_mask
        if padding is None or mask is not None or not _takes_fast_path(self, src):
            return forward(self, src, mask, padding, is_causal)
        result = forward(_without_norm(self), src, mask, padding, is_causal)
        kept = padding.logical_not()
        ends_with_padding = (kept[:, 1:] <= kept[:, :-1]).all()
        result = torch.where((ends_with_padding & ~kept)[..., None], 0.0, result)
        return result if self.norm is None else self.norm(result)

    with swapped(TransformerEncoder, "forward", with_zeros):
        yield


def _takes_fast_path(encoder: TransformerEncoder, src: torch.Tensor) -> bool:
    """True where eager takes the fast path, if each row of the mask ends with its padding."""
    layer: Any = encoder.layers[0]
    records = torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters())
    return (
        getattr(encoder, "use_nested_tensor", False)
        and getattr(encoder, "mask_check", True)
        and not layer.training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
        and not records
    )


def _without_norm(encoder: TransformerEncoder) -> TransformerEncoder:
    """An encoder of the same layers that gives what comes before the last norm."""
    plain = TransformerEncoder.__new__(TransformerEncoder)
    plain.__dict__.update(encoder.__dict__)
    plain.__dict__["_modules"] = {**encoder._modules, "norm": None}
    return plain


ENCODER_PADDING = Repair(
    "padding of encoders",
    "In eager mode ``torch.nn.TransformerEncoder`` fills padded positions with zeros, in a"
    " trace it computes them. An operator of the graph writes the zeros.",
    until="upstream/torch_fast_path.py",
    versions="2.13, 2.15",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/transformer.py",
    always=True,
    block=lambda setup: padding_is_zero(setup.model),
)

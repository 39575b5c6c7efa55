"""The values of a tensor in a few bytes."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["digest_of"]


def digest_of(tensor: torch.Tensor) -> bytes:
    """A digest of dtype, shape, strides, device and values: equal for tensors that are the same.

    >>> digest_of(torch.zeros(2)) == digest_of(torch.zeros(2))
    True
    >>> digest_of(torch.zeros(2)) == digest_of(torch.zeros(1, 2))
    False

    :raises TypeError: for a tensor that is not dense, or of a class of its own
    """
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not is_plain or tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"a {type(tensor).__name__} has no digest")
    about = (tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device))
    digest = hashlib.blake2b(repr(about).encode(), digest_size=20)
    values = tensor.detach().resolve_conj().resolve_neg()
    flat = values.cpu().contiguous().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()

"""Tiny models with random weights and the real use that is watched; nothing is ever downloaded.

======== ==============================================================================
llama    decoder: one left-padded ``generate()`` of batch 2
gpt2     decoder with learned positions: one left-padded ``generate()`` of batch 2
bert     encoder: two calls with ids and a mask, of two sizes
vit      vision: two calls with images, of two batch sizes
======== ==============================================================================

:mod:`onlooker_compat.untrained` has about a hundred published configurations, made tiny by rule, with inputs for
    each.
"""

from __future__ import annotations

from .model import TinyModel as TinyModel
from .registry import MODELS as MODELS
from .registry import tiny_model as tiny_model

__all__ = ["MODELS", "TinyModel", "tiny_model"]

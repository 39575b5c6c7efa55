"""Caches of transformers and their layers in one line, without importing transformers."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ..layers import is_cache, is_layer

__all__ = ["describe_cache"]


class _Details(Protocol):
    def part(self, value: Any) -> str: ...


def describe_cache(value: Any, details: _Details) -> str | None:
    """A cache, or a layer of a cache; None for anything else.

    ``Name(key_cache=#1[...], value_cache=#1[...])`` when all layers are of one class that keeps
    keys and values; ``Name(DynamicLayer(k, v), LinearAttentionLayer(...))`` otherwise. A layer that
    waits for its first tokens shows None.
    """
    if is_layer(value):
        return f"{type(value).__name__}({_fields(_states(value), details)})"
    if is_cache(value):
        return _layered(value, details)
    lists = {name: getattr(value, name, _ABSENT) for name in ("key_cache", "value_cache")}
    if all(isinstance(child, (list, tuple, type(None))) for child in lists.values()):
        return f"{type(value).__name__}({_fields(lists, details)})"
    return None


_ABSENT = object()


def _layered(cache: Any, details: _Details) -> str:
    name = type(cache).__name__
    inner = {key: child for key, child in vars(cache).items() if is_cache(child)}
    if inner:
        return f"{name}({_fields(inner, details)})"
    layers = cache.layers
    kinds = set(map(type, layers))
    if len(kinds) <= 1 and all(map(_keeps_only_keys_and_values, layers)):
        keys, values = [one.keys for one in layers], [one.values for one in layers]
        columns = {"key_cache": keys, "value_cache": values}
        return f"{name}({_fields(columns, details)})"
    return f"{name}({', '.join(_in_a_list(layer, details) for layer in layers)})"


def _in_a_list(layer: Any, details: _Details) -> str:
    if not _keeps_only_keys_and_values(layer):
        return details.part(layer)
    return f"{type(layer).__name__}({details.part(layer.keys)}, {details.part(layer.values)})"


def _fields(fields: dict[str, Any], details: _Details) -> str:
    return ", ".join(f"{name}={details.part(child)}" for name, child in fields.items())


def _keeps_only_keys_and_values(layer: Any) -> bool:
    return set(_states(layer)) == {"keys", "values"}


def _states(layer: Any) -> dict[str, Any]:
    """``keys`` and ``values`` of a layer, and its other states: tensors, and dicts of tensors."""
    states = {name: child for name, child in vars(layer).items() if name in ("keys", "values")}
    for name, child in vars(layer).items():
        is_state = isinstance(child, torch.Tensor) and child.dim() > 0
        if isinstance(child, dict):
            is_state = any(isinstance(one, torch.Tensor) for one in child.values())
        if is_state:
            states.setdefault(name, child)
    linear = {n: vars(layer)[n] for n in ("conv_states", "recurrent_states") if n in vars(layer)}
    return {**states, **linear}

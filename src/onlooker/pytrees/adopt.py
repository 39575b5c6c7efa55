"""A cache that a caller holds takes over the state of one that a program gave.

A model changes its cache in place and returns the same object, and ``generate()`` of transformers relies on both.
A program returns a new cache: what it holds is moved into the one that came in, layer by layer. Layers which
promise that their tensors stay where they are (static ones, states of linear attention) are written in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from .layers import is_cache
from .nodes import is_plain

__all__ = ["adopt", "adopted", "caches_in"]


def caches_in(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments that are caches, by name."""
    for name, value in values.items():
        if is_cache(value):
            yield name, value


def adopted(result: Any, given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The result with the caches of the caller in the place of its own, and the names of those it does not have."""
    waiting = dict(given)

    def exchanged(name: str, value: Any) -> Any:
        if not is_cache(value):
            return value
        fitting = [key for key, cache in waiting.items() if type(cache) is type(value)]
        if not fitting:
            return value
        return adopt(waiting.pop(name if name in fitting else fitting[0]), value)

    if is_cache(result):
        return exchanged("", result), list(waiting)
    if isinstance(result, dict):
        for name, value in list(result.items()):
            new = exchanged(name, value)
            if new is not value:
                result[name] = new
        return result, list(waiting)
    if type(result) in (list, tuple):
        return type(result)(exchanged("", value) for value in result), list(waiting)
    return result, list(waiting)


def adopt(given: Any, made: Any) -> Any:
    """``given`` with the state of ``made``, a cache of the same class."""
    if given is made:
        return given
    own = vars(given)
    for name, value in vars(made).items():
        if is_cache(value) and type(own.get(name)) is type(value):
            adopt(own[name], value)
        elif name == "layers" and isinstance(own.get(name), list):
            _adopt_layers(own[name], value)
        elif name not in own or is_plain(value):
            own[name] = value
    return given


def _adopt_layers(given: list[Any], made: list[Any]) -> None:
    for position, layer in enumerate(made):
        if position >= len(given):
            given.append(layer)
        elif type(given[position]) is type(layer):
            _adopt_layer(given[position], layer)
        else:
            given[position] = layer


def _adopt_layer(given: Any, made: Any) -> None:
    own, stays = vars(given), bool(getattr(type(given), "is_compileable", False))
    for name, value in vars(made).items():
        if isinstance(value, torch.Tensor):
            own[name] = _moved(own.get(name), value) if stays else value
        elif type(value) is dict:
            before = own.get(name)
            known = before if type(before) is dict else {}
            own[name] = {k: _moved(known.get(k), v) if stays else v for k, v in value.items()}
        elif name not in own or is_plain(value):
            own[name] = value


def _moved(before: Any, value: Any) -> Any:
    """The tensor of the caller with the new values, where it can hold them."""
    if not (isinstance(before, torch.Tensor) and isinstance(value, torch.Tensor)) or before is value:
        return value
    if before.shape != value.shape or before.dtype != value.dtype or before.device != value.device:
        return value
    with torch.no_grad():
        before.copy_(value)
    return before

"""The part of a cache that belongs to one block of a decoder.

The cache of a decoder has a layer for each block, and a block finds its own by the number that it holds.
As a function, the block takes a cache with its layer alone::

    the call of block 2        cache.layers = [a, b, c, d]     past.layers[2]
    the call of the function   cache.layers = [c]              past.layers[its number]

The layer is the same object in both, so that what the function writes into it is in the cache. Inside of
the function the list of layers answers for the number of the block, whatever it is, and raises where it is
asked for anything else: no graph depends on the place of a layer, on another layer, or on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...pytrees.layers import is_cache
from ...pytrees.unread import Unread

__all__ = ["BlockNumberError", "on_own_layer", "own_layer_of", "with_own_layer"]

IsOwn = Callable[[Any], bool]


class BlockNumberError(RuntimeError):
    """What is read is another one in each block."""


class OwnLayer(Unread):
    """Stands for the layers of a cache, of which only the own one may be asked for."""

    def __init__(self, layer: Any, is_own: IsOwn) -> None:
        super().__init__()
        self.layer, self.is_own = layer, is_own

    def __getitem__(self, number: Any) -> Any:
        if not self.is_own(number):
            raise self.failure()
        return self.layer

    def failure(self) -> RuntimeError:
        """The error of a reading."""
        return BlockNumberError("layers of a cache are read that belong to other blocks")


def own_layer_of(number: int, value: Any) -> Any:
    """A cache with the one layer that has this number; any other value, and a cache without such a layer,
    as it is.
    """
    layers = vars(value).get("layers") if is_cache(value) else None
    if type(layers) is not list or len(layers) <= number:
        return value
    return _with_layers(value, [layers[number]])


def with_own_layer(is_own: IsOwn, value: Any) -> Any:
    """A cache of one layer as the block takes it, which asks for the layer by a number that ``is_own``;
    any other value as it is.
    """
    layers = vars(value).get("layers") if is_cache(value) else None
    if type(layers) is not list or len(layers) != 1:
        return value
    found = _with_layers(value, OwnLayer(layers[0], is_own))
    if "layer_class_to_replicate" in vars(found):
        found.layer_class_to_replicate = None  # what it is for: to append layers that are not there
    return found


def on_own_layer(
    is_own: IsOwn, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs a block on caches of one layer.

    :raises BlockNumberError: where it changes more of a cache than the layer
    """
    given = [*args, *kwargs.values()]
    taken = [with_own_layer(is_own, value) for value in given]
    before = [dict(vars(own)) for own, value in zip(taken, given, strict=True) if own is not value]
    own_kwargs = dict(zip(kwargs, taken[len(args) :], strict=True))
    result = function(*taken[: len(args)], **own_kwargs)
    after = [vars(own) for own, value in zip(taken, given, strict=True) if own is not value]
    for one, other in zip(before, after, strict=True):
        is_same = one.keys() == other.keys() and all(other[name] is one[name] for name in one)
        if not is_same:
            raise BlockNumberError(
                "a cache is changed in another place than the layer of the block"
            )
    return result


def _with_layers(cache: Any, layers: list[Any]) -> Any:
    found = object.__new__(type(cache))
    vars(found).update(vars(cache), layers=layers)
    return found

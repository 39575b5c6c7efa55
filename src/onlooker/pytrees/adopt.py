"""A cache that a caller holds takes over the state of one that a program gave.

A model changes its cache in place and returns the same object, and ``generate()`` of transformers
relies on both. A program returns a new cache: what it holds is moved into the one that came in,
layer by layer. Layers which promise that their tensors stay where they are (static ones, states of
linear attention) are written in place.
:func:`take_over` does the same for objects of any other class, for lists and for dicts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from ..core.path import Attr, Entry, Key, Path
from .layers import holds_tensors, is_cache
from .nodes import is_plain
from .open import open_tree, take_apart

__all__ = [
    "Place",
    "adopt",
    "adopted",
    "caches_in",
    "can_change",
    "give_back",
    "holds_numbers",
    "made_at",
    "placed",
    "put",
    "take_over",
]

#: where an object stands in a result: it is the result itself, or stands under a key or an index of
#: it
Place = tuple[()] | tuple[Any]


def caches_in(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments that are caches, by name."""
    for name, value in values.items():
        if is_cache(value):
            yield name, value


def adopted(result: Any, given: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The result with the caches of the caller in the place of its own, and the names of those
    it does not have.
    """
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
        elif name not in own or is_plain(value) or holds_tensors(name, value):
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
        elif name not in own or is_plain(value) or holds_tensors(name, value):
            own[name] = value


def _moved(before: Any, value: Any) -> Any:
    """The tensor of the caller with the new values, where it can hold them."""
    if (
        not (isinstance(before, torch.Tensor) and isinstance(value, torch.Tensor))
        or before is value
    ):
        return value
    if before.shape != value.shape or before.dtype != value.dtype or before.device != value.device:
        return value
    with torch.no_grad():
        before.copy_(value)
    return before


def placed(result: Any, value: Any) -> Place | None:
    """Returns the place of this very object in the result; None when it is not there."""
    if result is value:
        return ()
    items = (
        result.items()
        if isinstance(result, dict)
        else enumerate(result)
        if type(result) in (list, tuple)
        else ()
    )
    return next(((key,) for key, child in items if child is value), None)


def holds_numbers(value: Any) -> bool:
    """True for a list or dict without tensors, and a tuple of such. What a call does to it costs a graph
    no tensor more: it is brought to its new state for the caller, also where the result has it.
    """
    if not isinstance(value, (list, dict, tuple)) or is_cache(value) or not can_change(value):
        return False
    return not any(isinstance(leaf, torch.Tensor) for leaf in open_tree(value).leaves)


def can_change(value: Any) -> bool:
    """True for a container that a call can change, and for a tuple that holds one: not for the tuple
    itself, nor for tensors and other leaves.

    >>> can_change([1]), can_change((1, 2)), can_change((1, {"n": 1}))
    (True, False, True)
    """
    if isinstance(value, tuple):
        return any(map(can_change, tuple.__iter__(value)))
    return _children(value) is not None


def made_at(result: Any, place: Place) -> Any:
    """Returns the value at a place of a result."""
    return result[place[0]] if place else result


def put(result: Any, place: Place, value: Any) -> Any:
    """The result with a value at a place."""
    if not place:
        return value
    if type(result) is tuple:
        return tuple(
            value if position == place[0] else child for position, child in enumerate(result)
        )
    result[place[0]] = value
    return result


def give_back(given: Any, made: Any, written: Collection[Path]) -> bool:
    """Brings an argument of the caller to the state of ``made``, the one that a program gave; False
    where it cannot be changed so.
    """
    if is_cache(given):
        return adopt(given, made) is given
    if isinstance(given, torch.Tensor):
        return _moved(given, made) is given
    return take_over(given, made, written) is given


def take_over(
    given: Any,
    made: Any,
    written: Collection[Path],
    here: Path = Path(),  # noqa: B008  # a frozen value
    *,
    in_tuples: bool = True,
) -> Any:
    """``given`` with the state of ``made``, which is opened alike; ``made`` itself for what cannot
    be changed.

    The tensors at ``written`` stay where they are, and get the new values. ``in_tuples`` is True
    where nothing but tuples is around ``given``, in which no call can put something else.
    """
    if isinstance(given, torch.Tensor):
        return _moved(given, made) if here in written else made
    new = None if given is made or type(given) is not type(made) else _children(made)
    if new is None:
        return made
    known = _children(given) or {}
    for entry, child in new.items():
        if entry in known:
            fixed = in_tuples and isinstance(given, tuple)
            new[entry] = take_over(known[entry], child, written, here / entry, in_tuples=fixed)
    if isinstance(given, tuple):
        # in a tuple that is an argument, as ``*args`` is, stand the leaves of the caller
        pairs = zip(given, new.values(), strict=False)
        stays = [old is now or (in_tuples and _children(old) is None) for old, now in pairs]
        return given if len(given) == len(made) and all(stays) else made
    if type(given) is list:
        given[:] = new.values()
    elif isinstance(given, dict):
        items = list(zip(made, new.values(), strict=True))
        given.clear()
        given.update(items)
    else:
        attributes = {entry.name: c for entry, c in new.items() if isinstance(entry, Attr)}
        if len(attributes) < len(new):
            return made
        for name, child in attributes.items():
            object.__setattr__(given, name, child)
    return given


def _children(value: Any) -> dict[Entry, Any] | None:
    """Returns the children of a container, by the steps to them; None for a leaf, as a slice is."""
    if isinstance(value, dict):
        return {Key(key): child for key, child in value.items()}
    opened = None if isinstance(value, slice) else take_apart(value)
    return None if opened is None else dict(opened.children)

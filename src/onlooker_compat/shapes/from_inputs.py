"""``dynamic_shapes`` from inputs alone: every dimension of every tensor may change."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from onlooker.pytrees.layers import is_cache

from ..trees.make import CacheKeyValue
from .layout import CacheForm, ContainerKind, ShapeTree, lay_out, spelled_tree

__all__ = [
    "all_dynamic_shape_from_inputs",
    "all_dynamic_shapes_from_inputs",
    "flatten_unflatten_for_dynamic_shapes",
    "make_dynamic_shapes_kv_cache",
]


def all_dynamic_shapes_from_inputs(inputs: Any, dim_prefix: Any = "d") -> Any:
    """Shapes in which every dimension of every tensor may change, as torch.export addresses the
    inputs.

    A cache is one flat list ``[key_0, value_0, key_1, ...]``; the counter of a sliding or static
    layer stands behind its values, as a leaf without dimensions or, when it is an int, as a hint.
    Other classes are the list of their children. Nothing has to be registered.

    :param inputs: any nesting of lists, tuples, dicts, caches, dataclasses and outputs of
        transformers
    :param dim_prefix: the beginning of the names, or what stands for every dimension:
        ``Dim.DYNAMIC``, ``Dim.AUTO``
    :return: a tensor gives ``{i: f"{dim_prefix}_{number of the tensor}_{i}"}``, anything without a
        shape None

    >>> all_dynamic_shapes_from_inputs({"x": torch.zeros(2, 3), "y": [torch.zeros(4), True]})
    {'x': {0: 'd_0_0', 1: 'd_0_1'}, 'y': [{0: 'd_1_0'}, None]}
    """
    return spelled_tree(lay_out(inputs), _namer(dim_prefix))


def all_dynamic_shape_from_inputs(inputs: Any, dim_prefix: Any = "d") -> Any:
    """As :func:`all_dynamic_shapes_from_inputs`, with caches in the older form
    ``[[keys], [values]]``.

    All keys are numbered before all values, and counters are left out, so that torch.export itself
    does not take this form for every cache; all functions of this library do.

    :param inputs: any nesting of lists, tuples, dicts, caches, dataclasses and outputs of
        transformers
    :param dim_prefix: the beginning of the names, ``Dim.DYNAMIC`` or ``Dim.AUTO``

    >>> from onlooker_compat.trees.make import make_dynamic_cache
    >>> all_dynamic_shape_from_inputs(make_dynamic_cache([(torch.zeros(2, 2), torch.zeros(2, 2))]))
    [[{0: 'd_0_0', 1: 'd_0_1'}], [{0: 'd_1_0', 1: 'd_1_1'}]]
    """
    return spelled_tree(lay_out(inputs), _namer(dim_prefix), caches=CacheForm.NESTED)


def _namer(dim_prefix: Any) -> Callable[[ShapeTree], Any]:
    numbers = itertools.count()

    def spell(leaf: ShapeTree) -> Any:
        if leaf.is_counter:
            hint = torch.export.Dim.DYNAMIC if isinstance(dim_prefix, str) else dim_prefix
            return {} if isinstance(leaf.value, torch.Tensor) else hint
        if not isinstance(leaf.value, torch.Tensor):
            return None
        if not isinstance(dim_prefix, str):
            return dict.fromkeys(range(leaf.value.ndim), dim_prefix)
        number = next(numbers)
        return {i: f"{dim_prefix}_{number}_{i}" for i in range(leaf.value.ndim)}

    return spell


def make_dynamic_shapes_kv_cache(cache: Any, shape_of_one: dict[int, Any]) -> list[Any]:
    """The shapes of a cache whose keys and values all have the same one.

    :param cache: a cache, or its keys and values as :class:`CacheKeyValue` takes them
    :param shape_of_one: dimension -> its name, ``Dim`` or hint
    :return: the flat list that torch.export takes, a copy of ``shape_of_one`` for each of the keys
        and values

    >>> from onlooker_compat.trees.make import make_dynamic_cache
    >>> cache = make_dynamic_cache([(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))])
    >>> make_dynamic_shapes_kv_cache(cache, {0: "batch", 2: "past"})
    [{0: 'batch', 2: 'past'}, {0: 'batch', 2: 'past'}]
    """
    if not is_cache(cache):
        return [dict(shape_of_one) for _ in range(len(CacheKeyValue(cache)))]

    def spell(leaf: ShapeTree) -> Any:
        if leaf.is_counter:
            return {} if isinstance(leaf.value, torch.Tensor) else torch.export.Dim.DYNAMIC
        return dict(shape_of_one) if isinstance(leaf.value, torch.Tensor) else None

    shapes: list[Any] = spelled_tree(lay_out(cache), spell)
    return shapes


def flatten_unflatten_for_dynamic_shapes(
    obj: Any, use_dict: bool = False, change_function: Callable[[torch.Tensor], Any] | None = None
) -> Any:
    """``obj`` in the form in which ``dynamic_shapes`` describes it.

    :param obj: any nesting of lists, tuples, dicts and classes
    :param use_dict: keeps dicts and tuples; else they become lists too
    :param change_function: what stands for a tensor, by default the tensor itself
    :return: nested lists with one item per tensor; anything without a shape is None

    >>> flatten_unflatten_for_dynamic_shapes({"x": (torch.zeros(2), 3)}, change_function=lambda t: t.ndim)
    [[1, None]]
    """

    def spell(leaf: ShapeTree) -> Any:
        if not isinstance(leaf.value, torch.Tensor):
            return None
        return change_function(leaf.value) if change_function else leaf.value

    place = lay_out(obj)
    return spelled_tree(place, spell) if use_dict else _listed(place, spell)


def _listed(place: ShapeTree, spell: Callable[[ShapeTree], Any]) -> Any:
    if place.form is ContainerKind.LEAF:
        return spell(place)
    return [_listed(child, spell) for child in place.children]

"""Walks inputs and their ``dynamic_shapes`` together, and says where they part.

Beside the form that torch.export takes, a cache may have a flat list without its counters, or the
older nested form ``[[keys], [values]]``; a class a dict by the names of its attributes; and None
stands for anything that does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

from onlooker.core.errors import UsageError
from onlooker.core.path import Path

from .dims import is_dim
from .layout import ContainerKind, ShapeTree, states_by_kind

__all__ = ["fit_shapes", "parted"]

Visit = Callable[[ShapeTree, Any], Any]


def parted(path: Path, what: str) -> NoReturn:
    """Raises the error for shapes that do not fit the inputs at ``path``.

    :raises UsageError: ``shapes-do-not-fit``
    """
    raise UsageError(
        f"The shapes part from the inputs at {path.code() or 'their root'}: {what}.",
        slug="shapes-do-not-fit",
        hint="all_dynamic_shapes_from_inputs(inputs) gives shapes of the right form.",
    )


def fit_shapes(place: ShapeTree, shapes: Any, visit: Visit) -> Any:
    """``visit(leaf, its shape)`` for each leaf, in the form in which ``shapes`` are given.

    A leaf that has no shape of its own is visited with None.

    :raises UsageError: ``shapes-do-not-fit``, with the path
    """
    if place.form is ContainerKind.LEAF:
        return visit(place, _checked(place, shapes))
    if shapes is None or _is_empty(place, shapes):
        for leaf in place.leaves():
            visit(leaf, None)
        return shapes
    if place.form is ContainerKind.CACHE:
        return _fit_cache(place, shapes, visit)
    if place.form is ContainerKind.DICT or (
        place.form is ContainerKind.OBJECT and isinstance(shapes, dict)
    ):
        return _fit_dict(place, shapes, visit)
    return _fit_sequence(place, shapes, visit)


def _is_empty(place: ShapeTree, shapes: Any) -> bool:
    """True for nothing that has nothing: a cache before its first layer."""
    return not any(True for _ in place.leaves()) and shapes in ({}, [], (), [[], []])


def _fit_cache(place: ShapeTree, shapes: Any, visit: Visit) -> Any:
    if not isinstance(shapes, (list, tuple)):
        parted(place.path, f"{_named(place)} takes a list of shapes, not {_shown(shapes)}")
    kinds, leaves = states_by_kind(place), place.children
    if kinds is not None and _is_nested(shapes, len(kinds[0])):
        _visit_counters(place, visit)
        both = zip(kinds, shapes, strict=True)
        return _like(shapes, [_fit_each(group, given, visit) for group, given in both])
    if len(shapes) == len(leaves):
        return _fit_each(leaves, shapes, visit)
    states = [leaf for leaf in leaves if not leaf.is_counter]
    if len(shapes) != len(states):
        parted(
            place.path,
            f"{_named(place)} has {len(states)} tensors, and there are {len(shapes)} shapes",
        )
    _visit_counters(place, visit)
    return _fit_each(states, shapes, visit)


def _is_nested(shapes: Any, layers: int) -> bool:
    """True for ``[[keys], [values]]``; the shape of a tensor may be a list too, but not of
    shapes.
    """
    return len(shapes) == 2 and all(
        isinstance(group, (list, tuple)) and len(group) == layers and not any(map(_is_size, group))
        for group in shapes
    )


def _is_size(shape: Any) -> bool:
    return shape is not None and is_dim(shape)


def _visit_counters(place: ShapeTree, visit: Visit) -> None:
    for leaf in place.children:
        if leaf.is_counter:
            visit(leaf, None)


def _fit_each(places: Any, shapes: Any, visit: Visit) -> Any:
    return _like(
        shapes,
        [fit_shapes(place, shape, visit) for place, shape in zip(places, shapes, strict=True)],
    )


def _fit_dict(place: ShapeTree, shapes: Any, visit: Visit) -> dict[Any, Any]:
    if not isinstance(shapes, Mapping):
        parted(place.path, f"{_named(place)} takes a dict of shapes, not {_shown(shapes)}")
    lacking = [key for key in place.keys if key not in shapes]
    unknown = [key for key in shapes if key not in place.keys]
    if lacking:
        parted(place.path, f"there is no shape for {', '.join(map(repr, lacking))}")
    if unknown:
        parted(
            place.path, f"there is a shape for {', '.join(map(repr, unknown))}, which is no input"
        )
    children = zip(place.keys, place.children, strict=True)
    return {key: fit_shapes(child, shapes[key], visit) for key, child in children}


def _fit_sequence(place: ShapeTree, shapes: Any, visit: Visit) -> Any:
    wanted: Any = (list, tuple)
    if place.form is not ContainerKind.OBJECT:
        wanted = list if place.form is ContainerKind.LIST else tuple
    if not isinstance(shapes, wanted):
        kind = "tuple" if wanted is tuple else "list"
        parted(place.path, f"{_named(place)} takes a {kind} of shapes, not {_shown(shapes)}")
    if len(shapes) != len(place.children):
        parted(
            place.path,
            f"{_named(place)} holds {len(place.children)}, and there are {len(shapes)} shapes",
        )
    return _fit_each(place.children, shapes, visit)


def _like(shapes: Any, children: list[Any]) -> Any:
    if isinstance(shapes, tuple) and hasattr(shapes, "_fields"):
        return type(shapes)(*children)
    return tuple(children) if isinstance(shapes, tuple) else children


def _checked(leaf: ShapeTree, shape: Any) -> Any:
    """The shape of a leaf, as it is given."""
    if shape is None:
        return None
    if not isinstance(leaf.value, torch.Tensor):
        if shape != {} and (isinstance(shape, str) or not is_dim(shape)):
            parted(
                leaf.path, f"{_shown(leaf.value)} has no dimensions, but a shape {_shown(shape)}"
            )
        return shape
    rank = leaf.value.ndim
    if isinstance(shape, dict):
        for dim, content in shape.items():
            if type(dim) is not int or not 0 <= dim < rank:
                parted(leaf.path, f"a tensor of rank {rank} has no dimension {dim!r}")
            _check_dim(leaf, dim, content)
        return shape
    if not isinstance(shape, (list, tuple)) or len(shape) != rank:
        parted(leaf.path, f"a tensor of rank {rank} takes a dict by dimension, not {_shown(shape)}")
    for dim, content in enumerate(shape):
        _check_dim(leaf, dim, content)
    return shape


def _check_dim(leaf: ShapeTree, dim: int, content: Any) -> None:
    if not is_dim(content):
        parted(
            leaf.path,
            f"dimension {dim} is {_shown(content)}, neither a name, a Dim, a number nor None",
        )


def _named(place: ShapeTree) -> str:
    name = type(place.value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

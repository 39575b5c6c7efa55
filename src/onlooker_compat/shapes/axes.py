"""The ``dynamic_axes`` of ``torch.onnx.export`` as the ``dynamic_shapes`` of ``torch.export``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from onlooker.core.errors import UsageError
from onlooker.core.path import Attr, Name, Path
from onlooker.pytrees.layers import is_cache

from ..trees.make import make_dynamic_cache
from .layout import ShapeTree, lay_out, spelled_tree

__all__ = ["convert_dynamic_axes_into_dynamic_shapes"]

Axes = Mapping[int, Any] | Sequence[int]
_OF_A_CACHE = re.compile(
    r"(?P<prefix>.+?)\.(?P<layer>\d+)\.(?:(?P<part>encoder|decoder)\.)?(?P<kind>key|value)s?"
)
_PARTS = {"decoder": "self_attention_cache", "encoder": "cross_attention_cache"}


def convert_dynamic_axes_into_dynamic_shapes(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_axes: Mapping[str, Axes] | None = None,
    prefix_mapping: Mapping[str, str] | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The inputs by name and their ``dynamic_shapes``, from the arguments of the older exporter.

    A list of pairs ``[(keys, values), ...]`` becomes a ``DynamicCache``. The axes of its tensors
    are those of ``past_key_values.0.key``, ``past_key_values.0.value`` ..., of
    ``past_key_values.0.decoder.key`` ... for an ``EncoderDecoderCache``, or those of
    ``past_key_values`` for all of them. An input without axes does not change. Axes of what is no
    input are left out: the older exporter has those of the outputs in the same place.

    :param model: the model or its class, whose signature names ``args``
    :param args: the positional arguments
    :param kwargs: the named arguments
    :param dynamic_axes: name -> ``{dimension: its name}``, or a list of dimensions
    :param prefix_mapping: ``{"present": "past_key_values"}`` reads the axes of ``present.0.key``
        for the cache ``past_key_values``
    :return: ``((), kwargs, dynamic_shapes)``, with an entry for every argument; a list of
        dimensions gives ``Dim.DYNAMIC``
    :raises UsageError: ``bad-dynamic-axes`` when arguments and signature do not fit, or axes and
        inputs

    >>> class Model(torch.nn.Module):
    ...     def forward(self, x, y):
    ...         return x + y
    >>> x = torch.zeros(2, 3)
    >>> axes = {"x": {0: "batch"}, "sum": {0: "batch"}}
    >>> convert_dynamic_axes_into_dynamic_shapes(Model(), (x, x), dynamic_axes=axes)[2]
    {'x': {0: 'batch'}, 'y': {}}
    """
    inputs = _by_name(model, tuple(args or ()), dict(kwargs or {}))
    inputs = {name: _with_cache(value) for name, value in inputs.items()}
    axes = dict(dynamic_axes or {})
    of_caches = _axes_of_caches(axes, prefix_mapping or {})
    shapes = {}
    for name, value in inputs.items():
        place = lay_out(value, Path((Name(name),)))
        shapes[name] = spelled_tree(
            place, _Speller(name, place, axes.get(name), of_caches.get(name, {}))
        )
    return (), inputs, shapes


def _by_name(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(model.forward).parameters) if args else []
    if isinstance(model, type):
        names = names[1:]
    if len(args) > len(names):
        _bad(f"there are {len(args)} positional arguments for {', '.join(names) or 'no name'}")
    positional = dict(zip(names, args, strict=False))
    twice = [name for name in kwargs if name in positional]
    if twice:
        _bad(f"{', '.join(twice)} comes by position and by name")
    return positional | kwargs


def _with_cache(value: Any) -> Any:
    pairs = isinstance(value, list) and bool(value)
    if pairs and all(isinstance(item, tuple) and len(item) == 2 for item in value):
        return make_dynamic_cache(value)
    return value


def _axes_of_caches(
    axes: Mapping[str, Axes], renamed: Mapping[str, str]
) -> dict[str, dict[tuple[str, ...], Axes]]:
    """Argument -> ``(part, layer, keys or values)`` -> axes."""
    found: dict[str, dict[tuple[str, ...], Axes]] = {}
    for name, content in axes.items():
        match = _OF_A_CACHE.fullmatch(name)
        if match is not None:
            prefix, layer, part, kind = match.group("prefix", "layer", "part", "kind")
            of_one = found.setdefault(renamed.get(prefix, prefix), {})
            of_one[(_PARTS.get(part or "", ""), layer, f"{kind}s")] = content
    return found


class _Speller:
    """The shape of each leaf of one input."""

    def __init__(
        self,
        name: str,
        place: ShapeTree,
        axes: Axes | None,
        of_cache: Mapping[tuple[str, ...], Axes],
    ) -> None:
        if axes is not None and not (
            isinstance(place.value, torch.Tensor) or is_cache(place.value)
        ):
            _bad(
                f"{name} is a {type(place.value).__name__}, whose tensors have no axes of their own"
            )
        self.axes = axes
        self.of_cache = of_cache

    def __call__(self, leaf: ShapeTree) -> Any:
        if not isinstance(leaf.value, torch.Tensor):
            return torch.export.Dim.DYNAMIC if leaf.is_counter else None
        if leaf.is_counter:
            return {}
        axes = self.of_cache.get(_cache_key(leaf.path), self.axes) if leaf.in_cache else self.axes
        if axes is None:
            return {}
        if not isinstance(axes, Mapping):
            axes = dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
        beyond = [dim for dim in axes if not -leaf.value.ndim <= dim < leaf.value.ndim]
        if beyond:
            _bad(
                f"{leaf.path.code()} is of rank {leaf.value.ndim} and has no dimension {beyond[0]}"
            )
        return {dim % leaf.value.ndim: content for dim, content in axes.items()}


def _cache_key(path: Path) -> tuple[str, ...]:
    names = [
        entry.name if isinstance(entry, Attr) else entry.code().strip("[]")
        for entry in path.entries[1:]
    ]
    part = names[0] if names[0] in _PARTS.values() else ""
    return (part, names[-2], names[-1])


def _bad(what: str) -> NoReturn:
    raise UsageError(
        f"These dynamic_axes cannot be converted: {what}.",
        slug="bad-dynamic-axes",
        hint=(
            "Give the arguments as in a call of the model, and axes as torch.onnx.export takes"
            " them."
        ),
    )

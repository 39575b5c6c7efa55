"""The axes that a user names, in the spelling of ``torch.onnx.export``: ``dynamic_axes`` of old, or
``dynamic_shapes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..core.errors import UsageError
from ..core.path import Path, label_of
from ..core.plan import Range
from ..core.spec import TensorSpec
from ..core.structure import Tree
from ..hypotheses.overrides import is_symbol_name
from ..torch_internals.trees import torch_pytree

__all__ = ["AskedAxes", "asked_by_axes", "asked_by_calls", "asked_by_shapes", "tensors_of"]


@dataclass(slots=True)
class AskedAxes:
    """The wishes of the user about axes, by the path of the tensor as Python and by dimension.

    ``dynamic`` are those that have to change, ``free`` those that may change if the model lets them;
    all others stay as they are. ``names`` are what the user calls them, ``ranges`` the least and the
    greatest size by such a name. ``outputs`` are the names of the axes of outputs, by the output.
    """

    dynamic: dict[str, list[int]] = field(default_factory=dict)
    free: dict[str, list[int]] = field(default_factory=dict)
    names: dict[str, dict[int, str]] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    outputs: dict[str, dict[int, str]] = field(default_factory=dict)

    def add(self, path: str, dim: int, name: str | None = None) -> None:
        """An axis that has to change, and its name where it has one."""
        self.dynamic.setdefault(path, []).append(dim)
        if name is not None:
            self.names.setdefault(path, {})[dim] = name

    def moving(self, path: str) -> set[int]:
        """The axes of a tensor that have to change, or may."""
        return {*self.dynamic.get(path, ()), *self.free.get(path, ())}

    def static(self, shapes: Mapping[str, Sequence[tuple[int, ...]]]) -> dict[str, list[int]]:
        """The axes that stay, of tensors of these shapes."""
        found: dict[str, list[int]] = {}
        for path, seen in shapes.items():
            moving = self.moving(path)
            stays = [dim for dim in range(len(seen[0])) if dim not in moving]
            if stays:
                found[path] = stays
        return found

    @property
    def symbols(self) -> dict[str, str]:
        """For each name of the user what the symbol is called: an identifier, each once."""
        found: dict[str, str] = {}
        for given in self.names.values():
            for name in given.values():
                if name not in found:
                    found[name] = _free(_identifier(name), found.values())
        return found


def _identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "axis"
    text = f"n_{text}" if text[0].isdigit() else text
    return text if is_symbol_name(text) else f"{text}_"


def _free(name: str, taken: Any) -> str:
    number, free = 2, name
    while free in taken:
        number, free = number + 1, f"{name}_{number}"
    return free


def tensors_of(tree: Tree[Any], example: Any, places: Mapping[int, Path]) -> list[Path]:
    """The tensors of a call in the order in which torch.export has them: arguments by position, then
    those by name as they were given. They are the inputs of a file.

    ``example`` are the arguments as they were given, ``places`` the path of each tensor by identity.
    """
    leaves = torch_pytree.tree_leaves(example)
    in_the_example = [places[id(leaf)] for leaf in leaves if id(leaf) in places]
    tensors = [path for path, spec in tree.items() if isinstance(spec, TensorSpec)]
    first = [path for path in in_the_example if path in tensors]
    return list(dict.fromkeys([*first, *tensors]))


def asked_by_calls(shapes: Mapping[str, Sequence[tuple[int, ...]]]) -> AskedAxes:
    """The axes that differ between calls."""
    asked = AskedAxes()
    for path, seen in shapes.items():
        for dim, sizes in enumerate(zip(*seen, strict=False)):
            if len(set(sizes)) > 1:
                asked.add(path, dim)
    return asked


def asked_by_axes(
    dynamic_axes: Any,
    call: Tree[Any],
    paths: Sequence[Path],
    input_names: Sequence[str],
    output_names: Sequence[str],
) -> AskedAxes:
    """Reads ``dynamic_axes``, as ``{"ids": {0: "batch"}, "logits": [0]}``. ``paths`` are the
    tensors of the call, which ``input_names`` name.

    :raises UsageError: ``bad-dynamic-axes``, ``no-such-name``, ``no-such-dimension``
    """
    if not isinstance(dynamic_axes, Mapping):
        raise _bad_axes("dynamic_axes", dynamic_axes)
    inputs: dict[str, Path] = {}
    for path in paths:
        inputs.setdefault(label_of(path), path)
        inputs.setdefault(path.code(), path)
    inputs |= dict(zip(input_names, paths, strict=False))
    ranks = {path: len(spec.shape) for path, spec in call.items() if isinstance(spec, TensorSpec)}
    asked = AskedAxes()
    for name, axes in dynamic_axes.items():
        given = dict(_axes_of(name, axes))
        if name in inputs:
            path = inputs[name]
            for dim, text in given.items():
                asked.add(path.code(), _dim_of(name, dim, ranks[path]), text)
        elif name in output_names:
            asked.outputs[name] = given
        else:
            known = [*dict.fromkeys((*input_names, *map(label_of, paths), *output_names))]
            raise UsageError(
                f"dynamic_axes names {name!r}, which is no input and no output.",
                slug="no-such-name",
                hint=f"The names are {', '.join(known)}; input_names= and output_names= give others.",
            )
    return asked


def _axes_of(name: str, axes: Any) -> Iterator[tuple[int, str]]:
    """The dimensions of one input with their names; a list has names that torch makes."""
    if axes is None:
        return
    if isinstance(axes, Mapping):
        pairs = [*axes.items()]
    elif isinstance(axes, (list, tuple)):
        pairs = [(dim, f"{name}_dynamic_axes_{n}") for n, dim in enumerate(axes, 1)]
    else:
        raise _bad_axes(f"dynamic_axes[{name!r}]", axes)
    for dim, text in pairs:
        if type(dim) is not int or not isinstance(text, str) or not text:
            raise _bad_axes(f"dynamic_axes[{name!r}]", axes)
        yield dim, text


def _dim_of(name: str, dim: int, rank: int) -> int:
    """A dimension counted from 0."""
    if not -rank <= dim < rank:
        raise UsageError(
            f"Dimension {dim} of {name} is asked for, which has {rank}.",
            slug="no-such-dimension",
            hint="Dimensions count from 0; only tensors have some.",
        )
    return dim % rank


def _bad_axes(where: str, given: Any) -> UsageError:
    return UsageError(
        f"{where} is {str(given)[:100]!r}, which names no axes.",
        slug="bad-dynamic-axes",
        hint="Give names by dimension, {'ids': {0: 'batch', 1: 'sequence'}}, or dimensions alone: [0, 1].",
    )


def asked_by_shapes(
    dynamic_shapes: Any, arguments: Mapping[str, Any], places: Mapping[int, Path]
) -> AskedAxes:
    """Reads ``dynamic_shapes``, as torch.export takes it: a tuple in the order of the arguments, or
    a dict by their names, with a dict or a list of dims for each tensor.

    ``arguments`` are those of the example by name, in the order of the signature, ``places`` the
    path of each tensor of it by identity.

    :raises UsageError: ``bad-dynamic-shapes``, ``no-such-dimension``
    """
    asked = AskedAxes()
    values = dict(arguments)
    if isinstance(dynamic_shapes, (tuple, list)):
        if len(dynamic_shapes) > len(values):
            raise _bad_shapes(
                "dynamic_shapes",
                f"{len(dynamic_shapes)} specs, the call has {len(values)} arguments",
            )
        pairs = [*zip(values, dynamic_shapes, strict=False)]
    elif isinstance(dynamic_shapes, Mapping):
        pairs = [*dynamic_shapes.items()]
    else:
        raise _bad_shapes("dynamic_shapes", f"a {type(dynamic_shapes).__name__}")
    for name, spec in pairs:
        is_variadic = name not in values and isinstance(spec, Mapping) and set(spec) <= set(values)
        inner = spec.items() if is_variadic else [(name, spec)]
        for argument, own in inner:
            if argument not in values:
                raise _bad_shapes("dynamic_shapes", f"{argument!r}, which the call does not have")
            _read(own, values[argument], f"dynamic_shapes[{argument!r}]", places, asked)
    return asked


def _read(spec: Any, value: Any, where: str, places: Mapping[int, Path], asked: AskedAxes) -> None:
    """Adds what a spec says of a value and what is in it."""
    if spec is None:
        return
    if isinstance(value, torch.Tensor):
        _read_tensor(spec, value, where, places, asked)
        return
    for inner, part, place in _parts(spec, value, where):
        _read(inner, part, place, places, asked)


def _read_tensor(
    spec: Any, value: torch.Tensor, where: str, places: Mapping[int, Path], asked: AskedAxes
) -> None:
    """Adds what a spec says of the dimensions of a tensor."""
    if isinstance(spec, Mapping):
        pairs = [*spec.items()]
    elif isinstance(spec, (tuple, list)) and len(spec) == value.dim():
        pairs = [*enumerate(spec)]
    else:
        raise _bad_shapes(where, f"{str(spec)[:80]!r} for a tensor of {value.dim()} dimensions")
    for dim, wanted in pairs:
        if type(dim) is not int:
            raise _bad_shapes(where, f"{dim!r} for a dimension")
        _read_dim(wanted, _dim_of(where, dim, value.dim()), value, where, places, asked)


def _parts(spec: Any, value: Any, where: str) -> list[tuple[Any, Any, str]]:
    """Yields the parts of a value, each with its own spec and place.

    :raises UsageError: ``bad-dynamic-shapes``
    """
    children = _children(value)
    if children is None:
        raise _bad_shapes(where, f"{str(spec)[:80]!r} for a {type(value).__name__}")
    if isinstance(spec, Mapping) and isinstance(value, Mapping):
        unknown = next((key for key in spec if key not in value), None)
        if unknown is not None:
            raise _bad_shapes(where, f"the key {unknown!r}, which the example does not have")
        return [(spec[key], value[key], f"{where}[{key!r}]") for key in spec]
    own: list[Any] = []
    if isinstance(spec, Mapping):
        own = [*spec.values()]
    elif isinstance(spec, (tuple, list)):
        own = [*spec]
    if len(own) != len(children):
        raise _bad_shapes(where, f"{len(own)} specs for {len(children)} parts")
    pairs = enumerate(zip(own, children, strict=True))
    return [(inner, part, f"{where}[{number}]") for number, (inner, part) in pairs]


def _children(value: Any) -> list[Any] | None:
    """The parts of a value, as torch.export opens it; None for a leaf."""
    node = torch_pytree.SUPPORTED_NODES.get(torch_pytree._get_node_type(value))
    return None if node is None else [*node.flatten_fn(value)[0]]


def _read_dim(
    wanted: Any,
    dim: int,
    value: torch.Tensor,
    where: str,
    places: Mapping[int, Path],
    asked: AskedAxes,
) -> None:
    """Adds what is wanted of one dimension of a tensor."""
    path = places.get(id(value))
    if path is None:
        raise _bad_shapes(where, "a spec for a tensor that the call was not given")
    hint = getattr(getattr(wanted, "type", None), "name", "")
    if wanted is None or hint == "STATIC" or wanted == value.shape[dim]:
        return
    if isinstance(wanted, str) and wanted:
        asked.add(path.code(), dim, wanted)
    elif hint == "DYNAMIC":
        asked.add(path.code(), dim)
    elif hint == "AUTO":
        asked.free.setdefault(path.code(), []).append(dim)
    elif isinstance(wanted, torch.export.Dim):
        name = str(wanted.__name__)
        asked.add(path.code(), dim, name)
        low, high = wanted.min, wanted.max
        limits = (
            low if type(low) is int and low > 0 else None,
            high if type(high) is int else None,
        )
        if limits != (None, None) and name.isidentifier():
            asked.ranges[name] = limits
    else:
        raise _bad_shapes(
            where, f"{wanted!r} for dimension {dim}, whose size is {value.shape[dim]}"
        )


def _bad_shapes(where: str, what: str) -> UsageError:
    return UsageError(
        f"{where} has {what}.",
        slug="bad-dynamic-shapes",
        hint=(
            "Give what torch.export takes: for each argument a dict of dimensions, {0: 'batch'}, whose"
            " values are names, Dim(...), Dim.DYNAMIC, Dim.AUTO or None."
        ),
    )

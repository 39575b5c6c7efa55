"""``CoupleInputsDynamicShapes``: inputs and their ``dynamic_shapes``, walked together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from onlooker.core.errors import UsageError
from onlooker.core.path import Name, Path
from onlooker.pytrees.descriptions.describe import string_type
from onlooker.pytrees.open import close_tree, open_arguments

from .dims import dim_name, is_dynamic, is_hint
from .fit import fit_shapes, parted
from .layout import ShapeTree, lay_out
from .resize import NewSizes, settle_sizes

__all__ = ["CoupleInputsDynamicShapes"]

Visit = Callable[[ShapeTree, Any], Any]


class CoupleInputsDynamicShapes:
    """Inputs of a model and the ``dynamic_shapes`` that were written for them.

    A cache may have the flat form of torch.export or the older ``[[keys], [values]]``; every result
    has the form in which the shapes were given. No class has to be registered. Where shapes and
    inputs part, every method raises ``shapes-do-not-fit``, with the path.

    :param args: the positional arguments
    :param kwargs: the named arguments
    :param dynamic_shapes: a tuple when all arguments are positional, else a dict by name
    :param args_names: the names of the positional arguments, or the model that has them in its
        signature; needed when there are arguments of both kinds and the positional ones have shapes
    """

    def __init__(
        self,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        dynamic_shapes: Any,
        args_names: torch.nn.Module | Sequence[str] | None = None,
    ) -> None:
        self.args: tuple[Any, ...] = tuple(args or ())
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.args_names: tuple[str, ...] = _names_of(args_names)
        self.dynamic_shapes: Any = dynamic_shapes
        if (
            isinstance(dynamic_shapes, dict)
            and self.args
            and not self.kwargs
            and not self.args_names
        ):
            self.dynamic_shapes = self._by_position(dynamic_shapes)

    def __str__(self) -> str:
        parts = {"args": self.args, "kwargs": self.kwargs, "dynamic_shapes": self.dynamic_shapes}
        lines = (
            f"    {name}={string_type(value, with_shape=True)}," for name, value in parts.items()
        )
        return "\n".join([f"{type(self).__name__}(", *lines, ")"])

    def invalid_dimensions_for_export(self) -> Any:
        """The dimensions that are to change and have size 0 or 1, which torch.export takes for
        constants.

        :return: ``{dimension: "d=[size]"}`` for such a tensor and None for any other, in the form
            of the shapes without what is None in a dict; None when all is well

        >>> x, y = torch.zeros(1, 4), torch.zeros(3, 4)
        >>> shapes = {"x": {0: "batch"}, "y": {0: "rows"}}
        >>> CoupleInputsDynamicShapes((), {"x": x, "y": y}, shapes).invalid_dimensions_for_export()
        {'x': {0: 'd=[1]'}}
        """
        return _pruned(self._walk(_small_sizes))

    def replace_string_by(self, value: Any = None) -> Any:
        """The shapes with names replaced, by ``Dim.DYNAMIC`` or by ``value``.

        >>> CoupleInputsDynamicShapes((torch.zeros(3, 4),), {}, ({0: "batch"},)).replace_string_by()
        ({0: DimHint(DYNAMIC)},)
        """
        new = torch.export.Dim.DYNAMIC if value is None else value
        return self._walk(
            lambda _, shape: _each_dim(shape, lambda dim: new if isinstance(dim, str) else dim)
        )

    def replace_by_string(self) -> Any:
        """The shapes with a name for every ``Dim``, and ``Dim0``, ``Dim1`` ... for every hint.

        >>> shapes = ({0: torch.export.Dim("batch"), 1: torch.export.Dim.DYNAMIC},)
        >>> CoupleInputsDynamicShapes((torch.zeros(3, 4),), {}, shapes).replace_by_string()
        ({0: 'batch', 1: 'Dim1'},)
        """
        used: set[str] = set()
        return self._walk(lambda _, shape: _each_dim(shape, lambda dim: _as_text(dim, used)))

    def change_dynamic_dimensions(
        self,
        desired_values: Mapping[str, int] | None = None,
        args_kwargs: bool = False,
        only_desired: bool = False,
    ) -> Any:
        """Inputs of other sizes, for a program that was exported with the first ones.

        Dimensions of one name get one size. A name that is a sum of others (``"past+seq"``), or a
        ``Dim`` made from another, keeps this relation when the inputs obey it; dimensions with a
        hint change together when their sizes are equal. Values are grown from those of the inputs.

        :param desired_values: sizes by name; any other name gets its size + 1
        :param args_kwargs: gives ``(args, kwargs)`` even when one of them is empty
        :param only_desired: changes nothing but the sizes in ``desired_values``
        :return: the new kwargs, or the new args when there are only these; with arguments of both
            kinds all of them by name, when the names are known, else ``(args, kwargs)``
        :raises UsageError: ``no-such-dimension`` for a desired size of a name that the shapes do
            not have

        >>> shapes = ({0: "batch"}, {0: "batch", 1: "length"})
        >>> couple = CoupleInputsDynamicShapes((torch.zeros(2, 4), torch.zeros(2, 5)), {}, shapes)
        >>> [tuple(x.shape) for x in couple.change_dynamic_dimensions({"length": 9})]
        [(3, 4), (3, 9)]
        """
        shaped: dict[Path, tuple[ShapeTree, Any]] = {}
        self._walk(lambda leaf, shape: shaped.__setitem__(leaf.path, (leaf, shape)))
        sizes = NewSizes(shaped.values(), dict(desired_values or {}), only_desired)
        tree = open_arguments(self._arguments())
        leaves = [sizes.resized(path, leaf) for path, leaf in tree.items()]
        values: dict[str, Any] = close_tree(tree.structure, leaves)
        settle_sizes(lay_out(values))
        if self.args and self.kwargs and self.args_names and not args_kwargs:
            return values
        kwargs = {name: values[name] for name in self.kwargs}
        args = tuple(value for name, value in values.items() if name not in kwargs)
        if args_kwargs or (args and kwargs):
            return args, kwargs
        return args or kwargs

    def _by_position(self, shapes: dict[Any, Any]) -> tuple[Any, ...]:
        if len(shapes) != len(self.args):
            parted(
                Path(), f"there are {len(self.args)} positional arguments and {len(shapes)} shapes"
            )
        return tuple(shapes.values())

    def _arguments(self) -> dict[str, Any]:
        """All arguments by name, the positional ones first."""
        names = self.args_names[: len(self.args)] or tuple(
            f"args[{i}]" for i in range(len(self.args))
        )
        if len(names) < len(self.args) or set(names) & set(self.kwargs):
            raise UsageError(
                f"{len(self.args)} positional arguments, {', '.join(self.kwargs) or 'none'} by"
                f" name: the names {', '.join(names)} do not fit.",
                slug="args-names",
                hint="Give one name per positional argument in args_names, or the model.",
            )
        return dict(zip(names, self.args, strict=True)) | self.kwargs

    def _walk(self, visit: Visit) -> Any:
        """``visit(leaf, shape)`` for every leaf that has one, in the form of the shapes."""
        arguments = self._arguments()
        places = {name: lay_out(value, Path((Name(name),))) for name, value in arguments.items()}
        shapes = self.dynamic_shapes
        if isinstance(shapes, (tuple, list)) and not self.kwargs:
            if len(shapes) != len(places):
                parted(
                    Path(), f"there are {len(places)} positional arguments and {len(shapes)} shapes"
                )
            pairs = zip(places.values(), shapes, strict=True)
            return type(shapes)([fit_shapes(place, shape, visit) for place, shape in pairs])
        if _is_pair(shapes) and len(shapes[0]) == len(self.args):
            positional = self._fit_each(zip(places, shapes[0], strict=False), places, visit)
            named = {name: places[name] for name in self.kwargs}
            return tuple(positional.values()), self._fit_named(named, shapes[1], visit)
        if not isinstance(shapes, dict):
            parted(
                Path(), f"arguments by name take a dict of shapes, not a {type(shapes).__name__}"
            )
        if not self.args_names or not set(self.args_names) & set(shapes):
            places = {name: places[name] for name in self.kwargs} or places
        return self._fit_named(places, shapes, visit)

    def _fit_named(
        self, places: dict[str, ShapeTree], shapes: dict[str, Any], visit: Visit
    ) -> dict[str, Any]:
        inner = self._inner(places, shapes)
        flat = {name: shape for name, shape in shapes.items() if name != inner} | (
            shapes[inner] if inner else {}
        )
        lacking, unknown = (
            [n for n in places if n not in flat],
            [n for n in flat if n not in places],
        )
        if lacking or unknown:
            what = (
                f"there is no shape for {', '.join(lacking)}"
                if lacking
                else f"{', '.join(unknown)} is no argument"
            )
            parted(Path(), what)
        done = self._fit_each(((name, flat[name]) for name in places), places, visit)
        if inner is None:
            return done
        caught = {name: done.pop(name) for name in shapes[inner]}
        return done | {inner: caught}

    @staticmethod
    def _fit_each(
        shapes: Iterable[tuple[str, Any]], places: Mapping[str, ShapeTree], visit: Visit
    ) -> dict[str, Any]:
        return {name: fit_shapes(places[name], shape, visit) for name, shape in shapes}

    @staticmethod
    def _inner(places: Mapping[str, ShapeTree], shapes: Mapping[str, Any]) -> str | None:
        """The entry that holds the shapes of ``**kwargs``, as torch.export spells them."""
        unknown = [name for name in shapes if name not in places]
        if len(unknown) != 1 or not isinstance(shapes[unknown[0]], dict):
            return None
        return unknown[0] if set(shapes[unknown[0]]) == set(places) - set(shapes) else None


def _names_of(args_names: Any) -> tuple[str, ...]:
    if isinstance(args_names, torch.nn.Module):
        return tuple(inspect.signature(args_names.forward).parameters)
    return tuple(args_names or ())


def _is_pair(shapes: Any) -> bool:
    """True for ``(shapes of the args, shapes of the kwargs)``."""
    return (
        isinstance(shapes, tuple)
        and len(shapes) == 2
        and isinstance(shapes[0], tuple)
        and type(shapes[1]) is dict
    )


def _each_dim(shape: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(shape, dict):
        return {i: change(dim) for i, dim in shape.items()}
    if isinstance(shape, (list, tuple)):
        return type(shape)(change(dim) for dim in shape)
    return change(shape)


def _as_text(dim: Any, used: set[str]) -> Any:
    name = dim_name(dim)
    if name is None:
        if not is_hint(dim) or not is_dynamic(dim):
            return dim
        number = len(used)
        while f"Dim{number}" in used:
            number += 1
        name = f"Dim{number}"
    used.add(name)
    return name


def _small_sizes(leaf: ShapeTree, shape: Any) -> Any:
    if not isinstance(leaf.value, torch.Tensor):
        return f"d=[{leaf.value}]" if is_dynamic(shape) and leaf.value in (0, 1) else None
    dims = shape.items() if isinstance(shape, dict) else enumerate(shape or ())
    sizes = {i: leaf.value.shape[i] for i, dim in dims if is_dynamic(dim)}
    return {i: f"d=[{size}]" for i, size in sorted(sizes.items()) if size in (0, 1)} or None


def _pruned(found: Any) -> Any:
    """Without what says nothing: entries of dicts, and containers in which all is None."""
    if isinstance(found, dict):
        return {
            key: child
            for key, child in ((k, _pruned(v)) for k, v in found.items())
            if child is not None
        } or None
    if not isinstance(found, (list, tuple)):
        return found
    children = [_pruned(child) for child in found]
    if all(child is None for child in children):
        return None
    return type(found)(*children) if hasattr(found, "_fields") else type(found)(children)

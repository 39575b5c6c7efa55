"""``dynamic_shapes`` from several sets of inputs: a dimension that is not the same in all of
them may change.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NoReturn

import torch

from onlooker.core.errors import UsageError
from onlooker.core.path import Name, Path
from onlooker.core.support.kinds import ArgsKwargs

from .couple import CoupleInputsDynamicShapes
from .layout import ContainerKind, ShapeTree, closed, lay_out

__all__ = ["ModelInputs", "guess_dynamic_shapes_from_inputs"]

Auto = bool | str


def guess_dynamic_shapes_from_inputs(inputs: list[Any], auto: Auto = False) -> ArgsKwargs:
    """The shapes that several sets of inputs ask for.

    :param inputs: sets of inputs, each a tuple, a dict or ``(tuple, dict)``
    :param auto: see :meth:`ModelInputs.guess_dynamic_shapes`
    :return: ``(shapes of the args, shapes of the kwargs)``
    :raises UsageError: as :class:`ModelInputs`

    >>> guess_dynamic_shapes_from_inputs([{"x": torch.zeros(2, 3)}, {"x": torch.zeros(4, 3)}], auto="d")
    ((), {'x': {0: 'd_0I0'}})
    """
    return ModelInputs(None, inputs).guess_dynamic_shapes(auto=auto)


class ModelInputs:
    """A model and sets of inputs that are valid for it.

    :param model: the model, a Python module with a method, or None
    :param inputs: sets of inputs, each a tuple, a dict or ``(tuple, dict)``
    :param level: how deep the model stands in another one, for the caller's own use
    :param method_name: the method that takes the inputs
    :param name: a name for messages
    :raises UsageError: ``bad-inputs`` for anything else
    """

    def __init__(
        self,
        model: torch.nn.Module | types.ModuleType | None,
        inputs: list[Any],
        level: int = 0,
        method_name: str = "forward",
        name: str = "main",
    ) -> None:
        self.model = model
        self.level = level
        self.method_name = method_name
        self.name = name
        self.signature: inspect.Signature | None = None
        if model is not None:
            self.signature = inspect.signature(_method(model, method_name))
        self.inputs: list[ArgsKwargs] = _as_pairs(inputs)

    @property
    def true_model_name(self) -> str:
        """The name of the class of the model, or of the Python module."""
        if self.model is None:
            _no_model()
        return (
            self.model.__name__
            if isinstance(self.model, types.ModuleType)
            else type(self.model).__name__
        )

    @property
    def full_name(self) -> str:
        """``main:Class``, or ``main:Class.method``."""
        return f"{self.name}:{self._class_and_method}"

    @property
    def module_name_type(self) -> str:
        """``type(main)=Class``, or ``type(main)=Class.method``."""
        return f"type({self.name})={self._class_and_method}"

    @property
    def _class_and_method(self) -> str:
        return self.true_model_name + (
            "" if self.method_name == "forward" else f".{self.method_name}"
        )

    def guess_dynamic_shapes(self, auto: Auto = False) -> ArgsKwargs:
        """A dimension changes when the inputs do not agree on it, or when all have 0 there.

        An input that is None, missing or an empty container in some sets is judged by the others.
        One set alone tells nothing: no dimension changes then.

        :param auto: False for ``Dim.DYNAMIC``; True for ``Dim.AUTO``, in one set alone for every
            dimension; a text for names that begin with it
        :return: ``(shapes of the args, shapes of the kwargs)``, the latter in the order of the
            signature, or of the inputs
        :raises UsageError: ``inputs-differ`` where two sets are not of one form
        """
        args = list(zip_longest(*(args for args, _ in self.inputs)))
        names = sorted({name for _, kwargs in self.inputs for name in kwargs})
        guess = _Guess(auto, len(self.inputs))
        spelled = {}
        for i, name in enumerate(names):
            spelled[name] = guess(
                _places((kwargs.get(name) for _, kwargs in self.inputs), name), f"_{i}I"
            )
        positions = (
            guess(_places(values, f"args[{i}]"), f"_{i}I") for i, values in enumerate(args)
        )
        return tuple(positions), {name: spelled[name] for name in self._ordered(spelled)}

    def move_to_kwargs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: ArgsKwargs
    ) -> tuple[tuple[Any, ...], dict[str, Any], ArgsKwargs]:
        """The shapes by name: those of positional arguments move, those of ``**kwargs`` stand
        together.

        :param args: the positional arguments; they are given back as they are
        :param kwargs: the named arguments; they are given back in the order of the signature
        :param dynamic_shapes: ``(shapes of the args, shapes of the kwargs)``
        :return: ``(args, kwargs, ((), shapes))``; nothing is changed in place
        :raises UsageError: ``no-model`` when this object was made without one
        """
        if self.signature is None:
            _no_model()
        parameters = self.signature.parameters
        shapes = dict(zip(parameters, dynamic_shapes[0], strict=False)) | dynamic_shapes[1]
        caught = {name: shapes.pop(name) for name in list(shapes) if name not in parameters}
        variadic = [name for name, p in parameters.items() if p.kind is p.VAR_KEYWORD]
        if variadic and caught:
            shapes[variadic[0]] = caught
        elif caught:
            shapes |= caught
        ordered = {name: shapes[name] for name in self._ordered(shapes)}
        return args, {name: kwargs[name] for name in self._ordered(kwargs)}, ((), ordered)

    def validate_inputs_for_export(self, dynamic_shapes: ArgsKwargs | None = None) -> list[Any]:
        """The dimensions of each set that are to change and have size 0 or 1; None where there
        are none.
        """
        shapes = self.guess_dynamic_shapes() if dynamic_shapes is None else dynamic_shapes
        return [
            CoupleInputsDynamicShapes(
                args, kwargs, shapes if args and kwargs else shapes[0] if args else shapes[1]
            ).invalid_dimensions_for_export()
            for args, kwargs in self.inputs
        ]

    def _ordered(self, names: Iterable[str]) -> list[str]:
        """Names in the order of the signature, then of the inputs."""
        order = list(self.signature.parameters if self.signature is not None else ())
        order += [
            name
            for _, kwargs in sorted(self.inputs, key=lambda pair: -len(pair[1]))
            for name in kwargs
        ]
        order += list(names)
        wanted = set(names)
        return [name for name in dict.fromkeys(order) if name in wanted]


def _method(model: Any, method_name: str) -> Any:
    if not isinstance(model, (torch.nn.Module, types.ModuleType)) or not hasattr(
        model, method_name
    ):
        raise UsageError(
            f"{type(model).__name__} is no model with a method {method_name}.",
            slug="bad-inputs",
            hint="Give a torch.nn.Module, or None.",
        )
    return getattr(model, method_name)


def _no_model() -> NoReturn:
    raise UsageError(
        "These inputs were given without a model, so that there are no names for them.",
        slug="no-model",
        hint="Give the model to ModelInputs.",
    )


def _as_pairs(inputs: Any) -> list[ArgsKwargs]:
    if not isinstance(inputs, list):
        _bad_inputs(f"sets of inputs come in a list, not in a {type(inputs).__name__}")
    pairs: list[ArgsKwargs] = []
    for i, given in enumerate(inputs):
        if type(given) is tuple and [type(part) for part in given] == [tuple, dict]:
            pairs.append((given[0], given[1]))
        elif type(given) in (tuple, dict):
            pairs.append((given, {}) if type(given) is tuple else ((), given))
        else:
            _bad_inputs(
                f"set {i} is a {type(given).__name__}, neither a tuple nor a dict nor (tuple, dict)"
            )
    return pairs


def _bad_inputs(what: str) -> NoReturn:
    raise UsageError(
        f"These are no inputs of a model: {what}.",
        slug="bad-inputs",
        hint="Give for example [(x, y), (x2, y2)], or [dict(x=x), dict(x=x2)].",
    )


def _places(values: Iterable[Any], name: str) -> list[ShapeTree]:
    path = Path((Name(name),))
    return [lay_out(value, path) for value in values if value is not None]


class _Guess:
    """The shape of one place from what stands there in each set; ``prefix`` names its
    dimensions.
    """

    def __init__(self, auto: Auto, n_sets: int) -> None:
        self.text = auto if isinstance(auto, str) else ""
        self.hint = torch.export.Dim.AUTO if auto is True else torch.export.Dim.DYNAMIC
        self.any_size = auto is True and n_sets == 1

    def __call__(self, places: Sequence[ShapeTree], prefix: str) -> Any:
        full = [p for p in places if p.form is not ContainerKind.LEAF or p.value is not None]
        full = [p for p in full if p.form is ContainerKind.LEAF or p.children] or full
        if not full:
            return None
        first = full[0]
        forms = dict.fromkeys(_kind(p) for p in full)
        if len(forms) > 1:
            _differ(first.path, f"one set has a {' and another a '.join(forms)}")
        if first.form is ContainerKind.LEAF:
            return self._leaf(full, prefix)
        groups = zip(*(_children_like(first, p) for p in full), strict=True)
        labelled = zip(groups, _labels(first), strict=True)
        return closed(first, [self(group, prefix + label) for group, label in labelled])

    def _leaf(self, places: Sequence[ShapeTree], prefix: str) -> Any:
        values = [place.value for place in places]
        if not isinstance(values[0], torch.Tensor):
            changes = type(values[0]) is int and len(set(values)) > 1
            return self.hint if changes else None
        if len({value.ndim for value in values}) > 1:
            ranks = " and ".join(str(value.ndim) for value in values)
            _differ(places[0].path, f"the tensors are of rank {ranks}")
        if len(values) == 1:
            return dict.fromkeys(range(values[0].ndim), self.hint) if self.any_size else {}
        sizes = [set(dims) for dims in zip(*(value.shape for value in values), strict=True)]
        changing = [i for i, seen in enumerate(sizes) if len(seen) > 1 or seen == {0}]
        return {i: f"{self.text}{prefix}{i}" if self.text else self.hint for i in changing}


def _kind(place: ShapeTree) -> str:
    if isinstance(place.value, torch.Tensor):
        return "tensor"
    return type(place.value).__name__


def _children_like(first: ShapeTree, place: ShapeTree) -> list[ShapeTree]:
    """The children of one set in the order of the first one."""
    kind = type(first.value).__name__
    if len(first.children) != len(place.children):
        _differ(
            first.path,
            f"a {kind} holds {len(first.children)} values, another {len(place.children)}",
        )
    if first.keys == place.keys:
        return list(place.children)
    if set(first.keys) != set(place.keys):
        _differ(
            first.path,
            f"a {kind} has {', '.join(map(repr, first.keys))}, another"
            f" {', '.join(map(repr, place.keys))}",
        )
    by_key = dict(zip(place.keys, place.children, strict=True))
    return [by_key[key] for key in first.keys]


def _labels(place: ShapeTree) -> list[str]:
    if place.form is ContainerKind.DICT:
        return [f"_{key}d" for key in place.keys]
    letter = {ContainerKind.LIST: "l", ContainerKind.TUPLE: "t", ContainerKind.NAMED: "t"}.get(
        place.form, "l" if place.in_cache else "o"
    )
    return [f"_{i}{letter}" for i in range(len(place.children))]


def _differ(path: Path, what: str) -> NoReturn:
    raise UsageError(
        f"The sets of inputs differ at {path.code()}: {what}.",
        slug="inputs-differ",
        hint=(
            "One graph takes inputs of one form: group the sets, or observe the model and export()."
        ),
    )

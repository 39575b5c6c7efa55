"""Arguments by name: from a call to the signature, and back."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from typing import Any

import torch

from ..core.call import Parameter, Passed, Passing, Signature
from ..core.spec import ConstantSpec, OpaqueSpec
from ..core.support.kinds import ArgsKwargs
from ..pytrees.open import spec_of

__all__ = ["Binder", "as_args_kwargs", "bind", "python_signature", "read_signature"]

_MOST_ROUTES = 256
_CONSTANTS = (bool, int, float, str, type(None))
#: objects that nobody can change, and that are the same in every process
_LASTING = (enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format)


def read_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, Signature]:
    """The signature of a bound method, as Python has it and as a value of ours; of one without,
    any arguments.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # builtins have none
        signature = inspect.signature(lambda *args, **kwargs: None)
    parameters = tuple(
        Parameter(
            p.name,
            p.kind.name,
            p.default is p.empty,
            ConstantSpec(p.default) if isinstance(p.default, _CONSTANTS) else None,
            (
                ""
                if p.annotation is p.empty
                else inspect.formatannotation(p.annotation).replace("'", "")
            ),
            _object_of(p.default),
        )
        for p in signature.parameters.values()
    )
    return signature, Signature(parameters)


def _object_of(default: Any) -> OpaqueSpec | None:
    """The spec of a default that is an object which lasts."""
    spec = spec_of(default) if isinstance(default, _LASTING) else None
    return spec if isinstance(spec, OpaqueSpec) else None


def bind(
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    partial: bool = False,
) -> tuple[dict[str, Any], Passed]:
    """The arguments that were passed, by name and in the order of the signature, and how each came.

    ``*args`` stay one tuple under their own name; ``**kwargs`` stand beside the others. With
    ``partial``, arguments may be missing.

    :raises TypeError: when the method itself would refuse the call
    """
    bound = signature.bind_partial(*args, **kwargs) if partial else signature.bind(*args, **kwargs)
    values: dict[str, Any] = {}
    passed: list[tuple[str, Passing]] = []
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            values.update(value)
            passed += [(key, Passing.VAR_KEYWORD) for key in value]
            continue
        values[name] = value
        if kind is inspect.Parameter.VAR_POSITIONAL:
            passed.append((name, Passing.VAR_POSITIONAL))
        else:
            passed.append((name, Passing.KEYWORD if name in kwargs else Passing.POSITIONAL))
    return values, tuple(passed)


class Binder:
    """Binds calls as :func:`bind` does; how calls of one spelling are bound is found out once."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        self._routes: dict[Any, tuple[tuple[str, ...], tuple[Any, ...], Passed]] = {}

    def __call__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[str, ...], list[Any], Passed]:
        """The names of the arguments in the order of the signature, their values, and how each
        came.

        :raises TypeError: when the method itself would refuse the call
        """
        spelling = (len(args), *kwargs)
        route = self._routes.get(spelling)
        if route is None:
            values, passed = bind(self._signature, args, kwargs)
            if len(passed) != len(values) or len(self._routes) >= _MOST_ROUTES:
                return tuple(values), list(values.values()), passed
            route = self._routes[spelling] = (tuple(values), _sources(passed), passed)
        names, sources, passed = route
        return names, [kwargs[s] if type(s) is str else args[s] for s in sources], passed


def _sources(passed: Passed) -> tuple[Any, ...]:
    """Returns the source of each argument: a position or a slice among the positional ones, or its
    name.
    """
    found: list[Any] = []
    for position, (name, how) in enumerate(passed):
        if how is Passing.VAR_POSITIONAL:
            found.append(slice(position, None))
        else:
            found.append(position if how is Passing.POSITIONAL else name)
    return tuple(found)


def as_args_kwargs(signature: Signature, values: dict[str, Any]) -> ArgsKwargs:
    """Returns the positional and the keyword arguments that call the method with arguments given by
    name.

    Everything goes by keyword, but for positional-only parameters and those that stand before
    ``*args``.
    """
    var = signature.of_kind("VAR_POSITIONAL")
    spread = bool(var and values.get(var))
    args: list[Any] = []
    kwargs = dict(values)
    for parameter in signature.parameters:
        if parameter.name not in kwargs:
            continue
        if parameter.kind == "VAR_POSITIONAL":
            args += kwargs.pop(parameter.name)
        elif parameter.kind == "POSITIONAL_ONLY" or (
            spread and parameter.kind == "POSITIONAL_OR_KEYWORD"
        ):
            args.append(kwargs.pop(parameter.name))
    return tuple(args), kwargs


def python_signature(signature: Signature) -> inspect.Signature:
    """The signature that binds calls, made from the value."""
    return inspect.Signature(
        [
            inspect.Parameter(
                p.name,
                getattr(inspect.Parameter, p.kind),
                default=(
                    inspect.Parameter.empty
                    if p.required or p.kind.startswith("VAR")
                    else (p.default.value if p.default is not None else None)
                ),
            )
            for p in signature.parameters
        ]
    )

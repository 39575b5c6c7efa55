"""Arguments by name: from a call to the signature, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..core.call import Parameter, Passing, Signature
from ..core.spec import ConstantSpec

__all__ = ["as_args_kwargs", "bind", "python_signature", "read_signature"]

_CONSTANTS = (bool, int, float, str, type(None))


def read_signature(function: Callable[..., Any]) -> tuple[inspect.Signature, Signature]:
    """The signature of a bound method, as Python has it and as a value of ours."""
    signature = inspect.signature(function)
    parameters = tuple(
        Parameter(
            p.name,
            p.kind.name,
            p.default is p.empty,
            ConstantSpec(p.default) if isinstance(p.default, _CONSTANTS) else None,
            "" if p.annotation is p.empty else inspect.formatannotation(p.annotation).replace("'", ""),
        )
        for p in signature.parameters.values()
    )
    return signature, Signature(parameters)


def bind(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any], *, partial: bool = False
) -> tuple[dict[str, Any], tuple[tuple[str, Passing], ...]]:
    """The arguments that were passed, by name and in the order of the signature, and how each came.

    ``*args`` stay one tuple under their own name; ``**kwargs`` stand beside the others. With ``partial``,
    arguments may be missing.

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


def as_args_kwargs(signature: Signature, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How to call the method with arguments given by name.

    Everything goes by keyword, but for positional-only parameters and those that stand before ``*args``.
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
        elif parameter.kind == "POSITIONAL_ONLY" or (spread and parameter.kind == "POSITIONAL_OR_KEYWORD"):
            args.append(kwargs.pop(parameter.name))
    return tuple(args), kwargs


def python_signature(signature: Signature) -> inspect.Signature:
    """The signature that binds calls, made from the value."""
    return inspect.Signature(
        [
            inspect.Parameter(
                p.name,
                getattr(inspect.Parameter, p.kind),
                default=inspect.Parameter.empty
                if p.required or p.kind.startswith("VAR")
                else (p.default.value if p.default is not None else None),
            )
            for p in signature.parameters
        ]
    )

"""Calls as people have them, example inputs above all, made under the eyes of an observer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from ..core.errors import ObservationError, UsageError
from ..core.support.kinds import ArgsKwargs, check_kind
from ..input_observer import InputObserver
from ..model_source.lines import place_of_error

__all__ = ["as_calls", "watched"]

#: the arguments of one call, by position and by name
_WANTED = (
    "a list of calls, each a tensor, a tuple of arguments, a dict of arguments by name or (args,"
    " kwargs); or a function that uses the model"
)


def as_calls(calls: Any) -> list[ArgsKwargs]:
    """The arguments of each call: of one that stands alone, or of every one in a list.

    >>> as_calls(3.5)
    [((3.5,), {})]
    >>> as_calls([(1, 2), {"x": 3}, ((4,), {"y": 5})])
    [((1, 2), {}), ((), {'x': 3}), ((4,), {'y': 5})]

    :raises ArgumentKindError: ``wrong-kind``
    :raises ObservationError: ``no-calls`` for an empty list
    """
    if isinstance(calls, list) or _is_lazy(calls):
        found = [_as_call(call) for call in calls]
    else:
        found = [_as_call(calls)]
    if not found:
        raise ObservationError(
            "The list of calls is empty: nothing says what the model takes.",
            slug="no-calls",
            hint=f"Give {_WANTED}.",
        )
    return found


def _is_lazy(calls: Any) -> bool:
    """True for what gives calls one after the other, as a generator or a DataLoader does."""
    alone = (torch.Tensor, str, bytes, tuple, Mapping)
    return isinstance(calls, Iterable) and not isinstance(calls, alone)


def _as_call(call: Any) -> ArgsKwargs:
    if isinstance(call, (str, bytes)):
        check_kind(call, (), "A call", _WANTED)
    if isinstance(call, Mapping):
        for name in call:
            check_kind(name, str, "The name of an argument", "a dict of arguments by name")
        return (), dict(call)
    if not isinstance(call, tuple):
        return (call,), {}
    is_pair = len(call) == 2 and isinstance(call[0], (tuple, list)) and isinstance(call[1], Mapping)
    if is_pair and all(isinstance(name, str) for name in call[1]):
        return tuple(call[0]), dict(call[1])
    return call, {}


def watched(model: Any, calls: Any, method: str = "forward") -> InputObserver:
    """An observer that has seen the calls of ``model.method``: those of a list, or those that a
    function makes, which is given the model where it takes an argument.

    :raises UsageError: ``call-raised`` where the model, or the function, refuses them; and as
        :meth:`InputObserver.__call__`
    :raises ObservationError: ``no-calls``
    :raises ArgumentKindError: ``wrong-kind``
    """
    uses = callable(calls) and not isinstance(calls, (torch.Tensor, torch.nn.Module, type))
    given = [] if uses else as_calls(calls)
    observer = InputObserver()
    for number, (args, kwargs) in enumerate(given):
        signature = _signature(model, method)
        if signature is not None:
            _made(f"Call {number}", partial(signature.bind, *args, **kwargs))
    with observer(model, store_n_calls=max(3, len(given)), method_name=method), torch.no_grad():
        if uses:
            _made("The function that uses the model", _use_of(calls, model))
        called = model if method == "forward" and callable(model) else getattr(model, method)
        for number, (args, kwargs) in enumerate(given):
            _made(f"Call {number}", partial(called, *args, **kwargs))
    observer.recording(method)  # says where the model was not called
    return observer


def _signature(model: Any, method: str) -> inspect.Signature | None:
    """The signature of the method; None where there is none to read."""
    try:
        return inspect.signature(getattr(model, method))
    except (AttributeError, TypeError, ValueError):
        return None


def _use_of(function: Callable[..., Any], model: Any) -> Callable[[], Any]:
    """The function with the model as its argument, where it takes one."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    needed = [one for one in parameters if one.default is one.empty and one.kind in _BY_POSITION]
    return (lambda: function(model)) if needed else function


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _made(what: str, call: Callable[[], Any]) -> None:
    """Makes a call.

    :raises UsageError: ``call-raised``
    """
    try:
        call()
    except Exception as error:
        place = place_of_error(error)
        line = f" ({place})" if place else ""
        text = str(error)[:500].rstrip(".")
        raise UsageError(
            f"{what} raised {type(error).__name__}: {text}{line}.",
            slug="call-raised",
            hint="Give arguments that the model takes: they are passed as they are.",
        ) from error


def sizes_by_call(trees: Sequence[Any]) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of each tensor, by its path, over some calls."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for tree in trees:
        for path, spec in tree.items():
            shape = getattr(spec, "shape", None)
            if shape is not None:
                found.setdefault(path.code(), []).append(tuple(shape))
    return found

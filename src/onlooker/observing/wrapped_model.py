"""The model that a wrapper passes its calls on to: DataParallel, torch.compile, PEFT and FSDP
wrap another one.
"""

from __future__ import annotations

import functools
import inspect
import sys
from types import MethodType
from typing import Any

import torch

from ..core.call import Signature
from .bind import read_signature

__all__ = ["advice_on_wrapped", "method_signature", "model_inside", "wrapped_model"]

#: classes of torch that hand all arguments on as they came, and the modules that hold them
_HAND_ON = {
    "torch.nn.parallel": ("DataParallel", "DistributedDataParallel"),
    "torch._dynamo.eval_frame": ("OptimizedModule",),
    "torch.distributed.fsdp": ("FullyShardedDataParallel",),
}
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


def wrapped_model(model: Any) -> tuple[str, Any] | None:
    """Returns the place of the wrapped model, ``module`` or ``base_model.model``, and the model;
    None where nothing is wrapped.

    A wrapper takes any arguments, or passes names on that it lacks, and one child has most of its
    weights.
    """
    path: list[str] = []
    while isinstance(model, torch.nn.Module) and _passes_on(model):
        found = _heaviest_child(model)
        if found is None:
            break
        path.append(found[0])
        model = found[1]
    return (".".join(path), model) if path else None


def advice_on_wrapped(model: Any) -> str:
    """A sentence that names the model inside a wrapper, with a space after it; nothing for any
    other model.
    """
    found = wrapped_model(model)
    if found is None:
        return ""
    return (
        f"This {type(model).__name__} wraps a {type(found[1]).__name__}: watch model.{found[0]}"
        " instead. "
    )


def method_signature(model: Any, method: str) -> tuple[inspect.Signature, Signature]:
    """The signature of a method, as Python has it and as a value of ours.

    That of a wrapper of torch, which takes any arguments, is the one of the model inside: so they
    have names.
    """
    found: Any = model
    while method == "forward" and _hands_on(found):
        children = list(found.children())
        if len(children) != 1:
            break
        found = children[0]
    static = inspect.getattr_static(type(found), method, None)
    if isinstance(static, functools.singledispatchmethod):
        return read_signature(_dispatched(MethodType(static.func, found)))
    return read_signature(getattr(found, method))


def _dispatched(bound: MethodType) -> Any:
    """A function that shows how a ``singledispatchmethod`` is called: its first argument by
    position.

    Python shows such a method with its ``self``.
    """
    first, *rest = inspect.signature(bound).parameters.values()

    def shown(*args: Any, **kwargs: Any) -> Any:
        return bound(*args, **kwargs)

    first = first.replace(kind=inspect.Parameter.POSITIONAL_ONLY)
    shown.__signature__ = inspect.Signature([first, *rest])  # type: ignore[attr-defined]
    return shown


def _hands_on(model: Any) -> bool:
    held = ((sys.modules.get(module), names) for module, names in _HAND_ON.items())
    classes = tuple(
        getattr(module, name) for module, names in held for name in names if hasattr(module, name)
    )
    return isinstance(model, classes) and _is_variadic(model)


def _passes_on(model: torch.nn.Module) -> bool:
    if type(model).__getattr__ is not torch.nn.Module.__getattr__:
        return True
    return _is_variadic(model)


def _is_variadic(model: Any) -> bool:
    """True for a forward of ``*args`` and ``**kwargs``."""
    try:
        kinds = {
            parameter.kind for parameter in inspect.signature(model.forward).parameters.values()
        }
    except (TypeError, ValueError):
        return False
    return kinds == _VARIADIC


def _heaviest_child(model: torch.nn.Module) -> tuple[str, torch.nn.Module] | None:
    """The child with more than half of the weights, by number."""
    try:
        total = sum(weight.numel() for weight in model.parameters())
        for name, child in model.named_children():
            if 2 * sum(weight.numel() for weight in child.parameters()) > total:
                return name, child
    except Exception:  # lazy weights have no number yet
        return None
    return None


def model_inside(model: Any) -> Any:
    """The model that a wrapper hands its calls on to, with the same arguments; the model itself
    where it is no wrapper.

    Wrappers are those of torch, and modules with one child that give attributes which they lack from
    it, as those of PEFT.

    >>> inner = torch.nn.Linear(2, 3)
    >>> model_inside(torch.nn.DataParallel(inner)) is inner
    True
    >>> model_inside(torch.nn.Sequential(inner)) is inner
    False
    """
    found = model
    while isinstance(found, torch.nn.Module):
        children = list(found.children())
        passes_on = type(found).__getattr__ is not torch.nn.Module.__getattr__
        if len(children) != 1 or not (passes_on or _hands_on(found)):
            break
        found = children[0]
    return found

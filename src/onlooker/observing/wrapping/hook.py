"""Puts a wrapper in the place of a method of one object, and takes it away without a trace."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import UnsupportedError, UsageError
from ...core.support.locks import lock_of
from .wrapper import (
    MISSING,
    Around,
    Finder,
    Wrapper,
    class_wrapper,
    instance_wrapper,
    own_attributes,
)

__all__ = ["WrappedPlace", "check_method", "replaced_method"]

_lock = lock_of(sys.modules[__name__])


def check_method(obj: Any, name: str) -> None:
    """Refuses what cannot be watched.

    :raises UsageError: ``no-such-method`` when the object has no such method
    :raises UnsupportedError: ``script-module`` for a module of TorchScript
    """
    if issubclass(type(obj), torch.jit.ScriptModule):
        raise UnsupportedError(
            f"{type(obj).__name__} is a module of TorchScript, whose methods do not run in Python.",
            slug="script-module",
            hint="Watch the module that it was made from.",
        )
    try:
        is_method = callable(getattr(obj, name, None))
    except Exception as error:  # a class that raises something else for what it lacks
        raise UnsupportedError(
            f"{name} of this {type(obj).__name__} cannot be read: {type(error).__name__}: {error}.",
            slug="not-watchable",
            hint="Watch an object whose attributes can be read.",
        ) from error
    if not is_method:
        raise UsageError(
            f"{type(obj).__name__} does not have a method {name!r}.",
            slug="no-such-method",
            hint="Give the name of a method of the model as method_name.",
        )


@dataclass(frozen=True, slots=True)
class WrappedPlace:
    """The class or object in which a wrapper was put."""

    obj: Any
    name: str
    wrapper: Wrapper

    @property
    def n_replicas(self) -> int:
        """The number of calls of replicas of objects of the class, which passed."""
        return self.wrapper.n_replicas

    @property
    def n_others(self) -> int:
        """The number of calls of other objects of the class, which passed."""
        return self.wrapper.n_others

    def still_stands(self) -> bool:
        """True when calls meet the wrapper."""
        own = own_attributes(self.obj)
        met = (
            own[self.name]
            if self.name in own
            else inspect.getattr_static(type(self.obj), self.name, None)
        )
        while met is not None and met is not self.wrapper.function:
            known = Wrapper.of(met)
            met = known.before if known is not None else None
        return met is not None


@contextlib.contextmanager
def replaced_method(
    obj: Any, name: str, around: Around, finder: Finder | None = None
) -> Iterator[WrappedPlace]:
    """Inside the block ``obj.name(...)`` runs ``around(original, args, kwargs)``.

    The wrapper stands in the class of the object and lets all other objects of the class pass: so
    the attributes of the object stay as they are, and what is copied, pickled or replicated from it
    inside the block runs its own method, unless ``finder`` gives what runs around its calls. A
    method that the object holds itself is wrapped where it
    stands. The signature is kept: ``generate`` of transformers reads it. On exit, also after an
    exception, everything is what it was, unless somebody else has put another method there
    meanwhile: that one is then left alone. Blocks may overlap in any order.

    The value tells whether the wrapper still stands where calls meet it, and which calls it has let
    pass.

    :raises UsageError: ``no-such-method`` when the object has no such method
    :raises UnsupportedError: ``script-module`` for a module of TorchScript
    """
    check_method(obj, name)
    with _lock:
        wrapper = _wrapper(obj, name)
        wrapper.add(obj, around)
        if finder is not None:
            wrapper.finders += (finder,)
    try:
        yield WrappedPlace(obj, name, wrapper)
    finally:
        with _lock:
            wrapper.remove(obj, around)
            wrapper.finders = tuple(f for f in wrapper.finders if f is not finder)
            if not wrapper.is_used:
                _put_back(wrapper)


def _wrapper(obj: Any, name: str) -> Wrapper:
    """The wrapper that calls of the method meet: the one that stands there, or a new one."""
    cls = type(obj)
    own = own_attributes(obj)
    if name in own:
        known = Wrapper.of(own[name])
        if known is not None and known.is_used:
            return known
        return instance_wrapper(obj, own, name)
    known = Wrapper.of(vars(cls).get(name))
    if known is not None and known.is_used:
        return known
    if inspect.getattr_static(cls, name, MISSING) is not MISSING:
        with contextlib.suppress(Exception):  # a class that cannot be changed, whatever it raises
            return class_wrapper(obj, cls, name)
    made = instance_wrapper(obj, own, name)
    if Wrapper.of(own_attributes(obj).get(name)) is not made:
        raise _not_watchable(obj, name)
    return made


def _not_watchable(obj: Any, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"{name} of this {type(obj).__name__} cannot be replaced: neither its class nor the object"
        " lets it be set.",
        slug="not-watchable",
        hint="Watch an object that holds it and calls it, or a subclass of its class.",
    )


def _put_back(wrapper: Wrapper) -> None:
    """Restores what stood there before; a wrapper of a block that has ended meanwhile is passed
    over.
    """
    if wrapper.current() is not wrapper.function:
        return
    before = wrapper.before
    while (known := Wrapper.of(before)) is not None and not known.is_used:
        before = known.before
    wrapper.put(before)
    wrapper.hand_over()

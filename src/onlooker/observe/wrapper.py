"""The function that stands in the place of a method, and who is watched through it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

__all__ = ["MISSING", "Around", "Wrapper", "class_wrapper", "instance_wrapper"]

#: what stood in a place where nothing was
MISSING: Any = object()
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
_MARK = "__onlooker_wrapper__"


class Wrapper:
    """What replaces a method of a class or of an object.

    ``arounds`` holds, by the identity of the object, what runs around its calls, the latest block last; a call of
    an object that is not in it passes.
    """

    def __init__(self, before: Any, current: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.before = before
        self.current = current
        self.put = put
        self.arounds: dict[int, tuple[Around, ...]] = {}
        self.function: Any = None
        self.n_replicas = 0

    @staticmethod
    def of(value: Any) -> Wrapper | None:
        """The wrapper whose function this is; None for any other value."""
        found = value.__dict__.get(_MARK) if isinstance(value, (FunctionType, _Held)) else None
        return found if isinstance(found, Wrapper) else None

    @property
    def is_used(self) -> bool:
        """True while somebody is watched through it."""
        return bool(self.arounds)

    def add(self, obj: Any, around: Around) -> None:
        """Calls of ``obj`` run through ``around`` from now on."""
        self.arounds[id(obj)] = (*self.arounds.get(id(obj), ()), around)

    def remove(self, obj: Any, around: Around) -> None:
        """Calls of ``obj`` run without ``around`` again; the latest one goes where it was added twice."""
        left = list(self.arounds.get(id(obj), ()))
        for position in reversed(range(len(left))):
            if left[position] == around:
                del left[position]
                break
        if left:
            self.arounds[id(obj)] = tuple(left)
        else:
            self.arounds.pop(id(obj), None)

    def passed(self, obj: Any) -> None:
        """Counts the calls of replicas, which ``torch.nn.DataParallel`` makes for every call."""
        if getattr(obj, "__dict__", {}).get("_is_replica") is True:
            self.n_replicas += 1

    def stand(self, function: Any) -> Wrapper:
        """Puts the function in its place."""
        function.__dict__[_MARK] = self
        self.function = function
        self.put(function)
        return self


def run_around(
    call: Callable[..., Any], arounds: tuple[Around, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Runs ``call`` inside all that stands around it, the last one outermost."""
    if len(arounds) == 1:
        return arounds[0](call, args, kwargs)
    inner = arounds[:-1]
    return arounds[-1](lambda *a, **k: run_around(call, inner, a, k), args, kwargs)


def class_wrapper(obj: Any, cls: type, name: str) -> Wrapper:
    """Wraps a method in the class: it stays a method there, whatever kind of descriptor it was.

    :raises TypeError: for a class that cannot be changed
    """
    found = inspect.getattr_static(cls, name)
    before = vars(cls).get(name, MISSING)

    def put(value: Any) -> None:
        delattr(cls, name) if value is MISSING else setattr(cls, name, value)

    wrapper = Wrapper(before, lambda: vars(cls).get(name), put)
    arounds = wrapper.arounds
    if isinstance(found, FunctionType):

        @functools.wraps(found)
        def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            own = arounds.get(id(self))
            if own is None:
                wrapper.passed(self)
                return found(self, *args, **kwargs)
            return run_around(functools.partial(found, self), own, args, kwargs)

        return wrapper.stand(method)

    bound = getattr(obj, name)

    @functools.wraps(bound)
    def other(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        call = found.__get__(self, type(self)) if hasattr(type(found), "__get__") else found
        own = arounds.get(id(self))
        return call(*args, **kwargs) if own is None else run_around(call, own, args, kwargs)

    with contextlib.suppress(ValueError, TypeError):
        signature = inspect.signature(bound)
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        while first.name in signature.parameters:
            first = first.replace(name=f"_{first.name}")
        parameters = (first, *signature.parameters.values())
        other.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return wrapper.stand(other)


class _Held:
    """A wrapper that an object holds itself: its copy and its pickle are those of what it replaces."""

    def __init__(self, wrapper: Wrapper, obj: Any, original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._key, self._original, self._arounds = id(obj), original, wrapper.arounds
        with contextlib.suppress(ValueError, TypeError):
            self.__signature__ = inspect.signature(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self._arounds.get(self._key)
        return self._original(*args, **kwargs) if own is None else run_around(self._original, own, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._original, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return copy.copy, (self._original,)


def instance_wrapper(obj: Any, own: Any, name: str) -> Wrapper:
    """Wraps a method that the object holds itself, or has from elsewhere than its class."""
    before = own.get(name, MISSING)

    def put(value: Any) -> None:
        if value is MISSING:
            del own[name]
        else:
            own[name] = value

    wrapper = Wrapper(before, lambda: own.get(name), put)
    return wrapper.stand(_Held(wrapper, obj, getattr(obj, name)))

"""The function that stands in the place of a method, and who is watched through it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

__all__ = [
    "MISSING",
    "Around",
    "Finder",
    "Wrapper",
    "class_wrapper",
    "instance_wrapper",
    "own_attributes",
]

#: what stood in a place where nothing was
MISSING: Any = object()
Around = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
#: finds what runs around the calls of an object that is not watched itself
Finder = Callable[[Any], Around | None]
_MARK = "__onlooker_wrapper__"


class Wrapper:
    """Replaces a method of a class or of an object.

    ``arounds`` holds, by the identity of the object, what runs around its calls, the latest block
    last. Of an object that is not in it, ``finders`` are asked; its call passes where none of them
    knows it.
    """

    def __init__(self, before: Any, current: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.before = before
        self.current = current
        self.put = put
        self.arounds: dict[int, tuple[Around, ...]] = {}
        self.finders: tuple[Finder, ...] = ()
        self.function: Any = None
        self.n_replicas: int = 0
        self.n_others: int = 0
        self.original: Any = None
        self._attributes: dict[str, Any] = {}

    @staticmethod
    def of(value: Any) -> Wrapper | None:
        """The wrapper whose function this is; None for any other value."""
        found = (
            value.__dict__.get(_MARK)
            if isinstance(value, (FunctionType, _Held, _MethodStand))
            else None
        )
        return found if isinstance(found, Wrapper) else None

    @property
    def is_used(self) -> bool:
        """True while somebody is watched through it."""
        return bool(self.arounds)

    def add(self, obj: Any, around: Around) -> None:
        """Calls of ``obj`` run through ``around`` from now on."""
        self.arounds[id(obj)] = (*self.arounds.get(id(obj), ()), around)

    def remove(self, obj: Any, around: Around) -> None:
        """Calls of ``obj`` run without ``around`` again; the latest one goes where it was added
        twice.
        """
        left = list(self.arounds.get(id(obj), ()))
        for position in reversed(range(len(left))):
            if left[position] == around:
                del left[position]
                break
        if left:
            self.arounds[id(obj)] = tuple(left)
        else:
            self.arounds.pop(id(obj), None)

    def of_other(self, obj: Any) -> tuple[Around, ...]:
        """Returns the block around a call of an object that is not watched itself.

        Calls that pass are counted; those of replicas alone, which ``DataParallel`` makes for each
        call.
        """
        if own_attributes(obj).get("_is_replica") is True:
            self.n_replicas += 1
            return ()
        found = tuple(around for find in self.finders if (around := find(obj)) is not None)
        if not found:
            self.n_others += 1
        return found

    def stand(self, function: Any) -> Wrapper:
        """Puts the function in its place."""
        function.__dict__[_MARK] = self
        self.function = function
        self._attributes = dict(function.__dict__)
        self.put(function)
        return self

    def hand_over(self) -> None:
        """Gives the original function the attributes that were set on the one that stood for it."""
        if self.original is None:
            return
        before, now, attributes = self._attributes, self.function.__dict__, self.original.__dict__
        for name in before:
            if name not in now:
                attributes.pop(name, None)
        attributes.update({k: v for k, v in now.items() if k not in before or before[k] is not v})


def own_attributes(obj: Any) -> dict[str, Any]:
    """The ``__dict__`` of an object, without any code of its class; an empty one where it has
    none.
    """
    try:
        found = object.__getattribute__(obj, "__dict__")
    except Exception:
        return {}
    return found if isinstance(found, dict) else {}


def run_around(
    call: Callable[..., Any],
    arounds: tuple[Around, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
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
    if type(found) is FunctionType:  # a decorator of wrapt says that its class is this one

        @functools.wraps(found)
        def method(*args: Any, **kwargs: Any) -> Any:
            own = arounds.get(id(args[0])) if args else None
            if own is None:
                own = wrapper.of_other(args[0] if args else None)
            if not own:
                return found(*args, **kwargs)
            return run_around(functools.partial(found, args[0]), own, args[1:], kwargs)

        @functools.wraps(found)
        def decorated(self: Any, /, *args: Any, **kwargs: Any) -> Any:
            return method(self, *args, **kwargs)

        wrapper.original = found
        return wrapper.stand(decorated if hasattr(found, "__wrapped__") else _posed(method, found))

    is_data = hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")
    return wrapper.stand((_DataStand if is_data else _MethodStand)(found, arounds))


def _posed(function: Any, original: FunctionType) -> Any:
    """The function with the signature and the defaults of another one, whoever asks and however.

    ``inspect.signature`` follows ``__wrapped__``; ``inspect.getfullargspec`` reads
    ``__signature__`` instead, which must not stand on a function that was decorated: both would
    give the same then.
    """
    function.__defaults__, function.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    if not hasattr(original, "__signature__"):
        with contextlib.suppress(ValueError, TypeError):
            function.__signature__ = inspect.signature(original)
    return function


class _MethodStand:
    """Stands for a method that is no function in its class: a static one, a cached one, any
    descriptor.

    Only the objects that are watched get another one than they had; the attributes are those of the
    original.
    """

    def __init__(self, found: Any, arounds: dict[int, tuple[Around, ...]]) -> None:
        self._found, self._arounds = found, arounds

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        found = self._found
        bound = found.__get__(obj, cls) if hasattr(type(found), "__get__") else found
        own = None if obj is None else self._arounds.get(id(obj))
        if own is None:
            return bound
        if isinstance(bound, MethodType):
            return MethodType(_Unbound(bound, own), bound.__self__)
        return _Bound(bound, own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_found"], name)


class _DataStand(_MethodStand):
    """Stands for a descriptor that decides what is assigned, as a property does."""

    def __set__(self, obj: Any, value: Any) -> None:
        type(self._found).__set__(self._found, obj, value)

    def __delete__(self, obj: Any) -> None:
        type(self._found).__delete__(self._found, obj)


class _Bound:
    """A method of a watched object, with the attributes of the one that it stands for."""

    def __init__(self, original: Callable[..., Any], arounds: tuple[Around, ...]) -> None:
        self.__dict__.update(_texts_of(original), _original=original, _arounds=arounds)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run_around(self._original, self._arounds, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return _attribute_of(self.__dict__["_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)

    def __repr__(self) -> str:
        return repr(self._original)


class _Unbound(_Bound):
    """The function of a method that is bound already, to the object or to its class."""

    def __init__(self, bound: MethodType, arounds: tuple[Around, ...]) -> None:
        super().__init__(bound.__func__, arounds)
        self.__dict__["_bound"] = bound

    def __call__(self, _: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run_around(self._bound, self._arounds, args, kwargs)


def _texts_of(original: Any) -> dict[str, Any]:
    """Returns the names that every object has, so that nobody would look for them in the original."""
    return {
        name: getattr(original, name)
        for name in ("__module__", "__doc__")
        if hasattr(original, name)
    }


def _attribute_of(original: Any, name: str) -> Any:
    """An attribute of what an object stands for; ``inspect`` reads the signature and the source
    by the first two.
    """
    if name == "__signature__":
        try:
            return inspect.signature(original)
        except (TypeError, ValueError):
            raise AttributeError(name) from None
    if name == "__wrapped__":
        return getattr(original, name, original)
    return getattr(original, name)


class _Held:
    """A wrapper that an object holds itself: its copy and its pickle are those of what it
    replaces.
    """

    def __init__(self, wrapper: Wrapper, obj: Any, original: Callable[..., Any]) -> None:
        self.__dict__.update(
            _texts_of(original), _key=id(obj), _original=original, _arounds=wrapper.arounds
        )

    def __getattr__(self, name: str) -> Any:
        return _attribute_of(self.__dict__["_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self._arounds.get(self._key)
        return (
            self._original(*args, **kwargs)
            if own is None
            else run_around(self._original, own, args, kwargs)
        )

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

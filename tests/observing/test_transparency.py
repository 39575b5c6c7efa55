"""Inside the block a method shows what it shows outside: to inspect, by its attributes, and through its class."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch

from onlooker import ExportError, InputObserver

X = torch.ones(2, 3)


def decorated(function: Callable[..., Any]) -> Any:
    @functools.wraps(function)
    def with_more(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return with_more


def signed(function: Any) -> Any:
    function.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", "x")]
    )
    return function


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: int = 3, *, scale: float = 2.0) -> torch.Tensor:
        """Scales."""
        return x * scale + y

    forward.note = "kept"  # type: ignore[attr-defined]


class Derived(Plain):
    pass


class Decorated(torch.nn.Module):
    @decorated
    def forward(self, x: torch.Tensor, y: int = 3) -> torch.Tensor:
        return x + y


class Signed(torch.nn.Module):
    @signed
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Static(torch.nn.Module):
    @staticmethod
    def forward(x: torch.Tensor, y: int = 3) -> torch.Tensor:
        return x + y


class OfClass(torch.nn.Module):
    factor = 3

    @classmethod
    def forward(cls, x: torch.Tensor, y: int = 3) -> torch.Tensor:
        return x * cls.factor + y


class Cached(torch.nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def forward(self, x: torch.Tensor, y: int = 3) -> torch.Tensor:
        return x + y


class Partial(torch.nn.Module):
    def scaled(self, x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    forward = functools.partialmethod(scaled, factor=3)


class Dispatched(torch.nn.Module):
    @functools.singledispatchmethod
    def forward(self, x: Any) -> Any:
        raise TypeError

    @forward.register
    def _(self, x: torch.Tensor) -> torch.Tensor:
        return x * 5


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def forward(x: torch.Tensor, y: int = 3) -> torch.Tensor:
            return x + y

        self.forward = forward  # type: ignore[method-assign]


CLASSES = [Plain, Derived, Decorated, Signed, Static, OfClass, Cached, Partial, Dispatched, Held]
READERS: dict[str, Callable[[Any], Any]] = {
    "signature": lambda m: inspect.signature(m.forward),
    "signature of the class": lambda m: inspect.signature(type(m).forward),
    "full argument specification": lambda m: inspect.getfullargspec(m.forward),
    "full argument specification of the class": lambda m: inspect.getfullargspec(type(m).forward),
    "name": lambda m: (m.forward.__name__, m.forward.__qualname__, m.forward.__module__, m.forward.__doc__),
    "defaults": lambda m: (m.forward.__defaults__, m.forward.__kwdefaults__),
    "defaults of the class": lambda m: (type(m).forward.__defaults__, type(m).forward.__kwdefaults__),
    "note": lambda m: m.forward.note,
    "annotations": lambda m: m.forward.__annotations__,
    "types": lambda m: typing.get_type_hints(m.forward),
    "source": lambda m: inspect.getsource(m.forward),
    "cache": lambda m: m.forward.cache_info().maxsize,
    "cache of the class": lambda m: type(m).forward.cache_info().maxsize,
    "the object": lambda m: m.forward.__self__ is m,
    "is a method": lambda m: inspect.ismethod(m.forward),
    "is a coroutine": lambda m: inspect.iscoroutinefunction(m.forward),
    "unwrapped": lambda m: inspect.unwrap(m.forward).__code__,
    "dispatch": lambda m: type(m).forward.__isabstractmethod__,
    "a call through the class": lambda m: type(m).forward(m, X).tolist(),
    "a call without the object": lambda m: type(m).forward(x=X).tolist(),
    "a call of a twin": lambda m: type(m)().forward(X).tolist(),
    "a wrong call": lambda m: m.forward(),
    "a wrong call through the class": lambda m: type(m).forward(),
}


def answer(read: Callable[[Any], Any], model: Any) -> Any:
    try:
        return read(model)
    except Exception as error:
        return type(error), str(error).replace("_Held", "function")


#: what Python tells of no such method, and of ours
OTHERS = {(name, "full argument specification") for name in ("Cached", "Partial", "Dispatched")}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("cls", CLASSES)
def test_a_method_shows_what_it_shows_outside(cls: Any, reader: str) -> None:
    model, read = cls(), READERS[reader]
    before = answer(read, model)
    with InputObserver()(model):
        inside = answer(read, model)
    if (cls.__name__, reader) not in OTHERS:
        assert inside == before
    assert answer(read, model) == before


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.one_in(2)
def test_calls_of_every_kind_of_method_are_recorded(cls: Any) -> None:
    model, observer = cls(), InputObserver()
    with observer(model):
        expected = model(X)
        model.forward(torch.ones(5, 3))
    assert len(observer.recording()) == 2
    if cls is Cached:  # a caller may pass the same tensor again, with other values in it
        with pytest.raises(ExportError, match="keeps state"):
            observer.export()
        return
    assert torch.equal(observer.export()(X), expected)


@pytest.mark.parametrize("cls", [Plain, Derived, Decorated, Held])
def test_what_is_set_on_a_method_inside_the_block_stays(cls: Any) -> None:
    def function_of(model: Any) -> Any:
        return vars(model).get("forward") or type(model).forward

    model = cls()
    try:
        with InputObserver()(model):
            function_of(model).mine = 1
            with InputObserver()(model):
                function_of(model).inner = 2
            assert (model.forward.mine, model.forward.inner) == (1, 2)
        assert (model.forward.mine, model.forward.inner) == (1, 2)
        with InputObserver()(model):
            pass
        assert "mine" in vars(function_of(model))
    finally:
        for name in ("mine", "inner"):
            delattr(function_of(model), name)


class FunctionProxy:
    """A decorated method as wrapt makes them: its class is that of a function, whoever asks, and it has to be bound."""

    def __init__(self, function: Callable[..., Any], owner: Any = None) -> None:
        self.function, self.owner = function, owner

    @property
    def __class__(self) -> type:
        return type(self.function)

    def __get__(self, owner: Any, cls: Any = None) -> FunctionProxy:
        return FunctionProxy(self.function.__get__(owner, cls), owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.owner is None:
            raise RuntimeError("a method of an object is asked without one")
        return self.function(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


class Checked(torch.nn.Module):
    """A method that is decorated by a class, as those of NeMo are."""

    @FunctionProxy
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_method_that_says_it_is_a_function_is_bound() -> None:
    model, observer = Checked(), InputObserver()
    assert isinstance(vars(Checked)["forward"], FunctionType)
    with observer(model):
        for rows in (2, 3):
            assert model(torch.ones(rows, 4)).sum() == 8 * rows
    assert type(vars(Checked)["forward"]) is FunctionProxy
    program = observer.export()
    assert program.verify().verified
    assert program(torch.ones(7, 4)).sum() == 56

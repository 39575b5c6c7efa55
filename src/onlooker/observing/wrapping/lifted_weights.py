"""A module some of whose weights are an argument of its ``forward``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import UnsupportedError
from .deepcopy_hook import unnoted_copies
from .wrapper import Around

__all__ = ["LiftedWeights", "Weights", "WithWeights", "around_call", "copying"]

Weights = Mapping[str, torch.Tensor]


@contextlib.contextmanager
def copying(module: torch.nn.Module) -> Iterator[None]:
    """Inside the block copies of a module are made, which nobody notes.

    :raises UnsupportedError: ``not-copied`` where there is none, whatever it raises
    """
    try:
        with unnoted_copies():
            yield
    except Exception as error:
        raise UnsupportedError(
            f"This {type(module).__name__} cannot be copied, and a copy is what is exported with its"
            f" weights as an argument: {type(error).__name__}: {error}.",
            slug="not-copied",
            hint="Watch the whole model, or leave out of the module what cannot be copied.",
        ) from error


def _always() -> bool:
    return True


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class WithWeights:
    """A module whose calls are those of the function: ``weights`` are those of a call, and the values
    of a call are kept where they are ``wanted``. ``seen`` gives what the function takes in the place of
    an argument of the module, and ``given`` what the module takes for an argument of the function.
    """

    module: torch.nn.Module
    weights: Callable[[], Weights]
    wanted: Callable[[], bool] = _always
    seen: Callable[[Any], Any] = _as_it_is
    given: Callable[[Any], Any] = _as_it_is


class LiftedWeights(torch.nn.Module):
    """A module as a function of its arguments and of some weights, those in ``names``: ``argument`` is
    the name of the argument that has them.

    ``inner`` is a copy that is given away: the weights are taken out of it. ``names`` are the names of
    its weights by those in the argument, ``ties`` further names of some of them. ``taken`` runs ``inner``
    on the arguments of the function.
    """

    def __init__(
        self,
        inner: torch.nn.Module,
        signature: inspect.Signature,
        names: Mapping[str, str],
        ties: Mapping[str, str] | None = None,
        taken: Around | None = None,
    ) -> None:
        super().__init__()
        self.training = inner.training
        self.inner = inner
        self.kind: type = type(inner)
        self.argument: str = _name_of_weights(signature)
        every = {**{full: name for name, full in names.items()}, **(ties or {})}
        vars(self)["forward"] = _LiftedCall(inner, self.argument, signature, every, taken)

    def watched(self) -> list[WithWeights]:
        """The modules of the user whose calls are watched."""
        raise NotImplementedError

    def sets(self) -> dict[str, Weights]:
        """The weights that a program keeps, by name."""
        raise NotImplementedError

    def served(self, sets: Mapping[str, Weights]) -> list[WithWeights]:
        """The modules of the user that run on a program with these weights."""
        raise NotImplementedError


class _LiftedCall:
    """Runs a module with given weights: ``every`` is what each of its weights is called in the
    argument.
    """

    def __init__(
        self,
        inner: torch.nn.Module,
        argument: str,
        signature: inspect.Signature,
        every: Mapping[str, str],
        taken: Around | None,
    ) -> None:
        self.inner, self.argument, self._every = inner, argument, dict(every)
        self._taken = taken
        self._names = set(every.values())
        for name in every:
            path, _, last = name.rpartition(".")
            owner = inner.get_submodule(path)
            table = owner._parameters if last in owner._parameters else owner._buffers
            table[last] = None
        weights = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY)
        parameters = list(signature.parameters.values())
        is_last_open = bool(parameters) and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD
        parameters.insert(len(parameters) - is_last_open, weights)
        self.__signature__ = signature.replace(parameters=parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop(self.argument)
        if given.keys() != self._names:
            raise KeyError(f"{self.argument} has to have {', '.join(sorted(self._names))}")
        weights = {full: given[name] for full, name in self._every.items()}

        def with_weights(*args: Any, **kwargs: Any) -> Any:
            return torch.func.functional_call(self.inner, weights, args, kwargs)

        if self._taken is None:
            return with_weights(*args, **kwargs)
        return self._taken(with_weights, args, kwargs)


def around_call(argument: str, one: WithWeights, weights: Weights, around: Around) -> Around:
    """Returns what runs around the calls of a module: ``around`` sees its weights among the arguments,
    which are those of the function, and the module itself runs without them, on its own arguments.
    """

    def run(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        own = [(one.seen(value), value) for value in (*args, *kwargs.values())]

        def of_module(seen: Any) -> Any:
            for known, value in own:
                if known is seen:
                    return value
            return one.given(seen)

        def without_weights(*args: Any, **kwargs: Any) -> Any:
            kwargs.pop(argument)
            named = {name: of_module(value) for name, value in kwargs.items()}
            return original(*map(of_module, args), **named)

        seen = [value for value, _ in own]
        named = dict(zip(kwargs, seen[len(args) :], strict=True))
        return around(without_weights, tuple(seen[: len(args)]), {**named, argument: dict(weights)})

    return run


def _name_of_weights(signature: inspect.Signature) -> str:
    """The name of the argument with the weights: ``weights``, or one like it where that is taken."""
    name = "weights"
    while name in signature.parameters:
        name += "_"
    return name

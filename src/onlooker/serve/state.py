"""The state of a program: the attributes of the model, kept from call to call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.call import Signature
from ..core.errors import RejectedCallError
from ..observing.bind import bind, python_signature
from ..observing.module_state import copied_values, put_values, values_at
from ..observing.tracked_state import ARGUMENTS, OUTPUT, STATE
from ..pytrees.adopt import adopt
from ..pytrees.layers import is_cache
from ..trace.graph import Graph
from .dispatch import Dispatcher

__all__ = ["ProgramState", "StatefulDispatcher", "of_given_caches", "without_state"]


@dataclass(slots=True)
class ProgramState:
    """The values of the attributes, which every call reads and replaces.

    ``name`` is the argument of the graphs that has them, ``initial`` the values that stood when
    watching began, ``paths`` the attributes that are state at all.
    """

    name: str
    paths: tuple[str, ...]
    initial: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)

    def reset(self) -> None:
        """Goes back to the initial values."""
        self.values = copied_values(self.initial)

    def copy(self) -> ProgramState:
        """The same values, which go their own way."""
        return replace(self, values=copied_values(self.values))

    @contextlib.contextmanager
    def lent_to(self, model: Any) -> Iterator[None]:
        """Inside the block the model has this state; what the block leaves there is the state
        afterwards, and the model has its own again.
        """
        before = values_at(model, self.paths)
        put_values(model, self.paths, self.values)
        try:
            yield
            self.values = values_at(model, self.paths)
        finally:
            put_values(model, self.paths, before)


def without_state(signature: Signature, name: str) -> Signature:
    """The signature of the method itself."""
    return Signature(tuple(p for p in signature.parameters if p.name != name))


def of_given_caches(result: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a graph without the caches that the call did not pass: a graph may have taken
    an absent one for an empty one.
    """
    caches = {
        name: cache
        for name, cache in result.get(ARGUMENTS, {}).items()
        if is_cache(values.get(name))
    }
    others = {part: value for part, value in result.items() if part != ARGUMENTS}
    return {**others, **({ARGUMENTS: caches} if caches else {})}


class StatefulDispatcher:
    """Serves calls of the method itself: its state comes from the program, and goes back there."""

    def __init__(self, dispatcher: Dispatcher, state: ProgramState) -> None:
        self.graphs: tuple[Graph, ...] = dispatcher.graphs
        self.signature: Signature = without_state(dispatcher.signature, state.name)
        self.state = state
        self._dispatcher = dispatcher
        self._python = python_signature(self.signature)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call; as :meth:`serve`."""
        return self.serve(args, kwargs)[2]

    def serve(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Graph, dict[str, Any], Any]:
        """As :meth:`Dispatcher.serve`; a refused call leaves the state as it was.

        A cache that the method changes and does not return is brought to the state after the call,
        and is not among the arguments that are given.

        :raises RejectedCallError: ``call-does-not-bind``, ``call-refused``
        """
        values = self.bound(args, kwargs)
        given = {**values, self.state.name: self.state.values}
        graph, _, result = self._dispatcher.serve_values(given)
        result = of_given_caches(result, values)
        for name, cache in result.get(ARGUMENTS, {}).items():
            adopt(values.pop(name), cache)
        self.state.values = result[STATE]
        return graph, values, result[OUTPUT]

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, in the order of the signature.

        :raises RejectedCallError: ``call-does-not-bind``
        """
        try:
            return bind(self._python, args, kwargs)[0]
        except TypeError as error:
            raise RejectedCallError(
                f"The call does not fit the signature of the model: {error}.",
                slug="call-does-not-bind",
            ) from error

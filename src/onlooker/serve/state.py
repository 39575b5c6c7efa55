"""The effects of a call on the state of a program, which is that of the attributes of its model,
and on the arguments that the method changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..core.call import ARGUMENTS, OUTPUT, STATE, Arguments, ChangedArgument, Signature
from ..core.errors import RejectedCallError
from ..core.path import Key, Path
from ..core.structure import Structure, child_of
from ..observing.bind import bind, python_signature
from ..observing.module_state import copied_values, put_values, values_at
from ..pytrees.adopt import give_back
from ..pytrees.layers import is_cache
from ..pytrees.open import close_tree
from ..trace.graph import Graph
from .dispatch import Dispatcher, Finish

__all__ = [
    "MethodDispatcher",
    "ProgramState",
    "of_another_class",
    "of_given_arguments",
    "without_state",
]


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
        """A copy whose values change on their own."""
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


def of_given_arguments(result: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a graph without the arguments that the call did not pass: a graph may have taken
    an absent cache for an empty one.
    """
    if ARGUMENTS not in result:
        return result
    given = {name: made for name, made in result[ARGUMENTS].items() if values.get(name) is not None}
    others = {part: value for part, value in result.items() if part != ARGUMENTS}
    return {**others, **({ARGUMENTS: given} if given else {})}


class MethodDispatcher:
    """Serves calls as the method itself takes and leaves them: its state comes from the program and
    goes back there, and an argument that it changes is brought to the state after the call.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        state: ProgramState | None = None,
        changed: Sequence[ChangedArgument] = (),
    ) -> None:
        signature = dispatcher.signature
        self.graphs: tuple[Graph, ...] = dispatcher.graphs
        self.signature: Signature = without_state(signature, state.name) if state else signature
        self.state = state
        self.changed: Mapping[str, frozenset[Path]] = {
            one.name: frozenset(one.written) for one in changed
        }
        self._known: set[tuple[str, type]] = set()
        self._dispatcher = dispatcher
        self._python = python_signature(self.signature)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call; as :meth:`serve`."""
        return self.serve(args, kwargs)[2]

    def serve(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], finish: Finish | None = None
    ) -> tuple[Graph, Arguments, Any]:
        """As :meth:`Dispatcher.serve`; a refused call leaves the state as it was.

        An argument that the method changes and does not return is brought to the state after the
        call, and is not among the arguments that are given.

        :raises RejectedCallError: ``call-does-not-bind``, ``call-refused``, ``cache-not-returned``
        """
        values = self.bound(args, kwargs)
        self._check_classes(values)

        def finished(_: dict[str, Any], result: Any) -> Any:
            result = of_given_arguments(result, values)
            for name, made in result.get(ARGUMENTS, {}).items():
                given = values.pop(name)
                if not give_back(given, made, self.changed.get(name, ())):
                    raise of_another_class(name, given)
            if finish is not None:
                result = {**result, OUTPUT: finish(values, result[OUTPUT])}
            return result

        graph, _, result = self._dispatcher.serve_values(self._with_state(values), finished)
        if self.state is not None:
            self.state.values = result[STATE]
        return graph, values, result[OUTPUT]

    def _check_classes(self, values: Mapping[str, Any]) -> None:
        """Passes where every object that the call changes can take over what a graph gives for it: a
        program that was loaded has a stand-in for a class that it cannot build. This is known before
        a graph runs, and writes into tensors of the call.

        :raises RejectedCallError: ``cache-not-returned``
        """
        for name in self.changed:
            given = values.get(name)
            if given is None or isinstance(given, (torch.Tensor, list, dict, tuple)):
                continue
            if is_cache(given) or (name, type(given)) in self._known:
                continue
            made = [close_tree(part, (None,) * part.n_leaves) for part in self._given_for(name)]
            if made and not any(type(one) is type(given) for one in made):
                raise of_another_class(name, given)
            self._known.add((name, type(given)))

    def _given_for(self, name: str) -> Iterator[Structure]:
        """The structure of the argument in the result of each graph that gives it."""
        for graph in self.graphs:
            found = child_of(graph.outputs.structure, Key(ARGUMENTS), Key(name))
            if found is not None:
                yield found

    def taker(self, values: dict[str, Any]) -> Graph | None:
        """As :meth:`Dispatcher.taker`."""
        return self._dispatcher.taker(self._with_state(values))

    def _with_state(self, values: dict[str, Any]) -> dict[str, Any]:
        return values if self.state is None else {**values, self.state.name: self.state.values}

    def bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, in the order of the signature.

        :raises RejectedCallError: ``call-does-not-bind``
        """
        if self.state is None:
            return self._dispatcher.bound(args, kwargs)
        try:
            return bind(self._python, args, kwargs)[0]
        except TypeError as error:
            raise RejectedCallError(
                f"The call does not fit the signature of the model: {error}.",
                slug="call-does-not-bind",
            ) from error


def of_another_class(name: str, value: Any) -> RejectedCallError:
    """The refusal of a call whose argument cannot take over what the program gives for it."""
    return RejectedCallError(
        f"The call changes {name}, and the program gives a stand-in for its class,"
        f" {type(value).__qualname__}: the object of the caller cannot be updated.",
        slug="cache-not-returned",
        hint="Install the program in the process that exported it, or pass lists and dicts.",
    )

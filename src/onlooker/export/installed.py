"""A program in the place of a method of its model: ``generate()`` and pipelines then run on the exported graphs."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..core.errors import RejectedCallError
from ..observe.hook import replaced_method
from ..pytrees.adopt import adopted, caches_in
from .dispatch import Dispatcher

__all__ = ["Installed", "installed"]


class Installed:
    """What an installed program has served so far.

    ``calls`` counts the calls of each graph by its name, ``eager`` those that ran on the model itself (only
    with ``fallback=True``), ``refusals`` says why, once per reason.
    """

    def __init__(self, dispatcher: Dispatcher, fallback: bool) -> None:
        self.calls: Counter[str] = Counter({graph.name: 0 for graph in dispatcher.graphs})
        self.eager = 0
        self.refusals: list[str] = []
        self._dispatcher = dispatcher
        self._fallback = fallback
        self._lock = threading.Lock()

    def serve(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the call; a cache that the caller holds is brought to the state after the call.

        :raises RejectedCallError: as :meth:`Dispatcher.serve`, and ``cache-not-returned``
        """
        try:
            graph, values, result = self._dispatcher.serve(args, kwargs)
            result = _with_callers_caches(values, result)
        except RejectedCallError as error:
            if not self._fallback:
                raise
            with self._lock:
                self.eager += 1
                if error.message not in self.refusals:
                    self.refusals.append(error.message)
            return original(*args, **kwargs)
        with self._lock:
            self.calls[graph.name] += 1
        return result

    def __repr__(self) -> str:
        counts = ", ".join(f"{name}: {number}" for name, number in self.calls.items())
        return f"<onlooker.Installed {counts}, eager: {self.eager}>"


def _with_callers_caches(values: Mapping[str, Any], result: Any) -> Any:
    """The result, in which every cache that came in is the object that came in."""
    given = dict(caches_in(values))
    if not given:
        return result
    result, missing = adopted(result, given)
    if missing:
        raise RejectedCallError(
            f"The call passes the cache {missing[0]}, which the method does not return: the program cannot update it.",
            slug="cache-not-returned",
            hint="Watch and install a method that returns its cache, the forward of the whole model for instance.",
        )
    return result


@contextlib.contextmanager
def installed(dispatcher: Dispatcher, model: Any, method: str, *, fallback: bool = False) -> Iterator[Installed]:
    """Inside the block ``model.method`` runs on the graphs; on exit ``vars(model)`` is what it was.

    :raises UsageError: ``no-such-method``
    """
    served = Installed(dispatcher, fallback)
    with replaced_method(model, method, served.serve):
        yield served

"""A model whose state is an argument: a call sets the attributes, runs the method, and gives the
result with the new values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.call import Signature
from ..observing.bind import python_signature
from ..observing.module_state import copied_values, put_values, values_at
from ..observing.tracked_state import stateful_result
from ..pytrees.open import map_tensors

__all__ = ["Stateful"]


class Stateful(torch.nn.Module):
    """One method of a model as a function of its arguments and its state, without a trace.

    ``paths`` are the attributes that are state: before the method runs they are set to copies of
    what the argument called ``name`` has; one that it lacks is taken away. ``unread`` are further
    attributes that calls write and nothing depends on: each call begins with what ``initial`` has of
    them. Afterwards all of them are what they were.

    >>> class Sum(torch.nn.Module):
    ...     total = 0
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.total = torch.zeros(2)
    ...     def forward(self, x):
    ...         self.total = self.total + x
    ...         return self.total * 2
    >>> from ..core.call import Parameter
    >>> signature = Signature((Parameter("x"), Parameter("state", "KEYWORD_ONLY")))
    >>> stateful = Stateful(Sum(), "forward", signature, "state", ["total"])
    >>> stateful(torch.ones(2), state={"total": torch.ones(2)})
    {'output': tensor([4., 4.]), 'state': {'total': tensor([2., 2.])}}
    """

    def __init__(
        self,
        inner: torch.nn.Module,
        method: str,
        signature: Signature,
        name: str,
        paths: Sequence[str],
        unread: Sequence[str] = (),
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.inner = inner
        self.training = inner.training
        fixed = {path: value for path, value in (initial or {}).items() if path in unread}
        binding = python_signature(signature)
        call = _StatefulCall(inner, method, name, tuple(paths), tuple(unread), fixed)
        vars(self)["_call"] = call

        def forward(*args: Any, **kwargs: Any) -> dict[str, Any]:
            return call(args, kwargs)

        forward.__signature__ = binding  # type: ignore[attr-defined]
        vars(self)["forward"] = forward
        self._made_of = method, signature, name, tuple(paths), tuple(unread), dict(initial or {})

    @property
    def unread(self) -> tuple[str, ...]:
        """The attributes that calls write, and that nothing was found to depend on."""
        call: _StatefulCall = vars(self)["_call"]
        return call.unread

    @contextlib.contextmanager
    def lifted(self, stand_in: Callable[[str, Any], Any]) -> Iterator[None]:
        """Inside the block calls begin with stand-ins of the ``unread`` attributes, as far as there
        are any: ``stand_in(path, value)`` gives them, or None.
        """
        call: _StatefulCall = vars(self)["_call"]
        call.stand_in = stand_in
        try:
            yield
        finally:
            call.stand_in = _no_stand_in

    def around(self, inner: torch.nn.Module) -> Stateful:
        """Returns another model as a function of the same state."""
        return Stateful(inner, *self._made_of)


def _no_stand_in(path: str, value: Any) -> Any:
    """Nothing: an attribute begins with its value."""
    return None


class _StatefulCall:
    """Runs the method; no module, so that torch does not take its attributes for state."""

    def __init__(
        self,
        inner: torch.nn.Module,
        method: str,
        name: str,
        paths: tuple[str, ...],
        unread: tuple[str, ...],
        fixed: dict[str, Any],
    ) -> None:
        self.inner, self.method, self.name = inner, method, name
        self.paths, self.unread, self.fixed = paths, unread, fixed
        self.stand_in: Callable[[str, Any], Any] = _no_stand_in

    def _unread(self) -> dict[str, Any]:
        """The values with which unread attributes begin."""
        values = copied_values(self.fixed)
        stand_ins = {path: self.stand_in(path, value) for path, value in values.items()}
        return {path: values[path] if one is None else one for path, one in stand_ins.items()}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        state = kwargs.pop(self.name)
        paths = (*self.paths, *self.unread)
        before = values_at(self.inner, paths)
        # a clone, so that a model that writes to its state in place writes to no argument
        values = map_tensors(torch.clone, dict(state))
        put_values(self.inner, paths, {**values, **self._unread()})
        try:
            result = getattr(self.inner, self.method)(*args, **kwargs)
            after = values_at(self.inner, self.paths)
        finally:
            put_values(self.inner, paths, before)
        return stateful_result(result, after)

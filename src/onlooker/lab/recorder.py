"""The operators of a run, in their order."""

from __future__ import annotations

from typing import Any

from ..torch_internals.modes import TorchDispatchMode

__all__ = ["Recorder"]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Inside the block every operator is recorded, with its arguments and its result, which stay
    alive.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[tuple[Any, Any, dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.steps.append((func, args, kwargs, result))
        return result

"""The progress of long work, for whoever listens; and what is kept when it is interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = [
    "Listener",
    "Step",
    "is_watched",
    "kept_when_interrupted",
    "listening",
    "tell",
    "tell_step",
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of long work: what is done, and how much of it.

    ``total`` is None where nobody knows; with ``at_most`` there may be less to do. ``detail`` says
    what is worked on now.

    >>> str(Step("verifying", 12, 40, "batch=3")), Step("verifying", 12, 40).left
    ('verifying: 12 of 40, batch=3', 28)
    >>> str(Step("probing", 3, 200, at_most=True)), str(Step("tracing", detail="main"))
    ('probing: 3 of at most 200', 'tracing: main')
    """

    what: str
    done: int = 0
    total: int | None = None
    detail: str = ""
    at_most: bool = False

    @property
    def left(self) -> int | None:
        """The share that is left to do; None where nobody knows."""
        return None if self.total is None else max(self.total - self.done, 0)

    def __str__(self) -> str:
        of = "of at most" if self.at_most else "of"
        counted = f"{self.done} {of} {self.total}" if self.total is not None else ""
        more = ", ".join(part for part in (counted, self.detail) if part)
        return f"{self.what}: {more}" if more else self.what


Listener = Callable[[Step], object]
_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("_listeners", default=())


def tell(what: str, done: int = 0, total: int | None = None, detail: str = "") -> None:
    """Tells all listeners of this context where the work stands."""
    if _listeners.get():
        tell_step(Step(what, done, total, detail))


def tell_step(step: Step) -> None:
    """Tells all listeners of this context of a step.

    An exception of a listener is logged and goes no further: work that tries what a model refuses
    would take it for a refusal. A KeyboardInterrupt passes.
    """
    for listener in _listeners.get():
        try:
            listener(step)
        except Exception:
            logger.exception("a listener of the progress has failed at %s", step)


def is_watched() -> bool:
    """True where somebody listens: only then is it worth while to count what is left."""
    return bool(_listeners.get())


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside the block the listener is told of every step of this context."""
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


@contextmanager
def kept_when_interrupted(said: Callable[[], str]) -> Iterator[None]:
    """A KeyboardInterrupt inside the block gets a note that says what is kept.

    >>> try:
    ...     with kept_when_interrupted(lambda: "Nothing was written."):
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt as interrupt:
    ...     interrupt.__notes__
    ['Nothing was written.']
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        # as add_note of Python 3.11 does
        setattr(interrupt, "__notes__", [*getattr(interrupt, "__notes__", ()), said()])  # noqa: B010
        raise

"""The reasons for which calls were not recorded: equal ones are counted."""

from __future__ import annotations

from ..core.support.locks import lock_of

__all__ = ["UnrecordedCalls", "reason"]

_MOST = 100


class UnrecordedCalls:
    """The reasons for which calls or values are missing; of words that differ only a limited number
    is kept.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._more = 0
        self._lock = lock_of(self)

    def add(self, text: str) -> None:
        """Notes it once more."""
        with self._lock:
            if text in self._counts or len(self._counts) < _MOST:
                self._counts[text] = self._counts.get(text, 0) + 1
            else:
                self._more += 1

    def texts(self) -> tuple[str, ...]:
        """All of them, in the order in which they came first, each with how often it came.

        >>> unrecorded = UnrecordedCalls()
        >>> unrecorded.add("before a call: RuntimeError: no shape")
        >>> unrecorded.add("before a call: RuntimeError: no shape")
        >>> unrecorded.texts()
        ('before a call: RuntimeError: no shape (2 times)',)
        """
        with self._lock:
            texts = [text if n == 1 else f"{text} ({n} times)" for text, n in self._counts.items()]
            return (*texts, f"and {self._more} more") if self._more else tuple(texts)


def reason(error: BaseException) -> str:
    """An exception in one line; of one that cannot be printed, its class."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__

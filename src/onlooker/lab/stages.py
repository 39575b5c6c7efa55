"""The seconds of each stage between the calls and the verdict."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

__all__ = ["STAGES", "Stages"]

#: the stages, in the order of the way of the data
STAGES = ("observe", "infer", "probe", "export", "verify")


class Stages:
    """Seconds per stage. They are reported, and no decision depends on them.

    A stage inside another one counts for itself alone, so that the seconds add up to the whole.

    >>> stages = Stages()
    >>> with stages.stage("infer"), stages.stage("probe"):
    ...     pass
    >>> [name for name, _ in stages.stages()]
    ['infer', 'probe']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def stages(self) -> tuple[tuple[str, float], ...]:
        """The stages that took place, with their seconds."""
        return tuple((name, self.seconds[name]) for name in STAGES if name in self.seconds)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """The time of the block counts for the stage ``name``."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    @contextlib.contextmanager
    def experiment(self) -> Iterator[None]:
        """The time of one run of the model: it counts as probing where it happens while plans
        are made.
        """
        if self._open and self._open[-1] == "infer":
            with self.stage("probe"):
                yield
        else:
            yield

    def _charge(self) -> None:
        now = time.perf_counter()
        if self._open:
            name = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

"""Functions of a test as its parameters, some of them slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest


def runs(given: Sequence[Callable[..., object]], slow: Collection[Callable[..., object]]) -> list[object]:
    """A parameter for each function, with its name; ``slow`` ones stay out of continuous integration."""
    return [
        pytest.param(run, marks=pytest.mark.slow if run in slow else (), id=getattr(run, "__name__", ""))
        for run in given
    ]

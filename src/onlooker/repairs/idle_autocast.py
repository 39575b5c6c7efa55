"""Regions that turn autocast off where it is off already: ``with torch.autocast("cuda", enabled=False)``.

Positional embeddings and norms are often computed in such a region. torch makes a graph of its own of
each, with the sizes in it as numbers or as symbols. Nothing is cast in it or outside of it, so its
operators belong to the graph around it. A program runs without autocast, whatever its caller stands in.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/amp/autocast_mode.py, ``autocast.__enter__``,
which tells the trace of each region.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..patches.swap import swapped
from .repair import Repair

__all__ = ["IDLE_AUTOCAST", "idle_regions_left_out"]


@contextlib.contextmanager
def idle_regions_left_out() -> Iterator[None]:
    """Inside the block a region that turns autocast off where it is off is no region of the trace."""
    region: Any = torch.autocast
    enter, leave = region.__enter__, region.__exit__
    are_idle: list[bool] = []

    def entered(self: Any) -> Any:
        is_idle = not self._enabled and not torch.is_autocast_enabled(self.device)
        are_idle.append(is_idle)
        return self if is_idle else enter(self)

    def left(self: Any, *error: Any) -> Any:
        # a region that was entered before the trace is not known
        is_idle = bool(are_idle) and are_idle.pop()
        return False if is_idle else leave(self, *error)

    with (
        swapped(region, "__enter__", entered),
        swapped(region, "__exit__", left),
    ):
        yield


IDLE_AUTOCAST = Repair(
    "idle autocast",
    "``with torch.autocast('cuda', enabled=False)`` is a graph of its own, also where autocast is off and"
    " nothing is cast. Its operators stand in the graph around it.",
    until="tests/repairs/test_idle_autocast.py::test_torch_makes_a_graph_of_a_region_without_autocast",
    versions="2.13",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/amp/autocast_mode.py",
    always=True,
    block=lambda _: idle_regions_left_out(),
)

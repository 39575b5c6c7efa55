"""The notes of torch at every node of a trace, made in a quarter less of its time.

torch notes the Python frames of the model. It describes all frames of the process first, and leaves
out those before the first ``forward`` afterwards. Here those are not described at all, and each line
is described once in a trace.

torch also notes in which of three memory formats a result is contiguous, which it finds with
symbolic arithmetic: a tenth of the time of a trace. An exported program has no use for that, and
does not keep it when it is saved; here it is left open, as for results of which torch knows no such
format.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/proxy.py (``create_node``),
https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/experimental/proxy_tensor.py (``set_meta``)
"""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch.fx.proxy

from ..patches.swap import swapped
from ..torch_internals.tracing import proxy_tensor
from .repair import Repair

__all__ = ["QUICK_NODES", "nodes_made_quickly"]

#: the function from which on torch keeps the frames of a node
_FIRST = "forward"


@contextlib.contextmanager
def nodes_made_quickly() -> Iterator[None]:
    """Inside the block a node gets the same frames of the model in less time, and no memory
    format.
    """
    described = functools.partial(
        proxy_tensor._extract_tensor_metadata,  # type: ignore[attr-defined]
        include_contiguity=False,
    )
    with (
        swapped(torch.fx.proxy, "CapturedTraceback", _Frames),
        swapped(proxy_tensor, "_extract_tensor_metadata", described),
    ):
        yield
    _described.cache_clear()


class _Frames:
    """The frames of the caller, from the outermost ``forward`` inwards."""

    def __init__(self, summary: traceback.StackSummary) -> None:
        self._summary = summary

    @classmethod
    def extract(cls, **_options: Any) -> _Frames:
        """The frames at this moment, as ``CapturedTraceback`` of torch gives them."""
        frame: FrameType | None = sys._getframe(1)
        places: list[tuple[str, int, str]] = []
        kept = 0
        while frame is not None:
            code = frame.f_code
            places.append((code.co_filename, frame.f_lineno, code.co_name))
            if code.co_name == _FIRST:
                kept = len(places)
            frame = frame.f_back
        found = [_described(*place) for place in reversed(places[:kept])]
        return cls(traceback.StackSummary.from_list(found))

    def summary(self) -> traceback.StackSummary:
        """The frames, outermost first."""
        return self._summary


@functools.lru_cache(maxsize=4096)
def _described(filename: str, line: int, name: str) -> traceback.FrameSummary:
    return traceback.FrameSummary(filename, line, name)


QUICK_NODES = Repair(
    "quick nodes",
    "At every node torch describes all frames of the process, and asks in which memory formats"
    " the result is contiguous, which no exported program keeps: a quarter of the time of"
    " these notes.",
    until="tests/repairs/test_repeated_operators.py::test_no_memory_format_is_looked_for_with_symbolic_sizes",
    link="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/fx/proxy.py",
    always=True,
    block=lambda _: nodes_made_quickly(),
)

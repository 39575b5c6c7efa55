"""The operators that a conversion stopped at, and the lines of the model that call them.

torch's converter names one operator, the first, and no line. The frame that raised still holds the
graph and the functions that were looked through, so that all operators without one can be named at
once.

Upstream: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/onnx/_internal/exporter/_core.py,
where ``_handle_call_function_node_with_lowering`` has the ``node`` and the ``registry``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch.fx import Node

from ....core.drawing.alike import counted, first_few
from ....model_source.lines import place_of_node

__all__ = ["Stop", "stop_of"]

_FRAME = "_handle_call_function_node_with_lowering"
_MOST = 8


@dataclass(frozen=True, slots=True)
class Stop:
    """The place at which a conversion stopped: at ``operator``, which came from the line ``place``;
    both may be unknown.

    ``missing`` has the operators for which there is no function: how often each stands in the
    graph, and the line of the first.
    """

    operator: str
    place: str
    missing: dict[str, tuple[int, str]]

    def spelled(self) -> str:
        """The missing operators with their lines; empty when none is missing."""
        texts = [
            f"{name} ({counted(count, 'call')}{_at(place)})"
            for name, (count, place) in self.missing.items()
        ]
        return "; ".join(first_few(texts, _MOST, "and {} more"))


def _at(place: str) -> str:
    return f", at {place}" if place else ""


def stop_of(error: BaseException) -> Stop:
    """Reads the traceback of the converter's error."""
    frame = next(_frames(error), None)
    node = None if frame is None else frame.f_locals.get("node")
    if frame is None or not isinstance(node, Node):
        return Stop("", "", {})
    missing: dict[str, tuple[int, str]] = {}
    for other in _untranslated(frame, node):
        count, place = missing.get(_name(other), (0, place_of_node(other)))
        missing[_name(other)] = (count + 1, place)
    return Stop(_name(node), place_of_node(node), missing)


def _name(node: Node) -> str:
    """The operator; the converter has functions of their own for complex numbers."""
    values = [argument.meta.get("val") for argument in node.all_input_nodes]
    is_complex = any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)
    return f"{node.target} of complex numbers" if is_complex else str(node.target)


def _frames(error: BaseException | None) -> Iterator[FrameType]:
    """The frames of the converter that translated a node, of the error and of what it came from."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_name == _FRAME:
                yield trace.tb_frame
            trace = trace.tb_next
        error = error.__cause__


def _untranslated(frame: FrameType, node: Node) -> Iterator[Node]:
    """The calls of the graph for which the converter finds no function; it is asked as it asks
    itself.
    """
    dispatch: Callable[..., Any] | None = getattr(
        frame.f_globals.get("_dispatching"), "dispatch", None
    )
    registry = frame.f_locals.get("registry")
    if dispatch is None or registry is None:
        return
    for other in node.graph.nodes:
        if (
            other.op == "call_function"
            and hasattr(other.target, "_schema")
            and dispatch(other, registry)[0] is None
        ):
            yield other

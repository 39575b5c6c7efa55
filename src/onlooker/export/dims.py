"""Dynamic shapes as torch.export wants them, and what its refusals say about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import Plan

__all__ = ["Asked", "Refusal", "read_refusal"]


@dataclass(frozen=True, slots=True)
class Asked:
    """How each changing expression is asked for: by a named ``Dim``, by a hint, or not at all.

    Equal axes share a ``Dim``. Expressions of several symbols are independent Dims: torch cannot add two,
    and finds the relation itself.
    """

    bounds: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hints: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    auto: bool = False

    def dynamic_shapes(self, plan: Plan, names: Mapping[Path, str]) -> dict[str, Any]:
        """``{input: {dimension: Dim}}``; an int is a dynamic input."""
        dims: dict[str, Any] = {}
        shapes: dict[str, Any] = {}
        for leaf in plan.inputs:
            name = names[leaf.path]
            if not leaf.is_tensor:
                shapes[name] = torch.export.Dim.AUTO if self.auto else torch.export.Dim.DYNAMIC
                continue
            changing = {dim: e for dim, e in enumerate(leaf.shape) if e.symbols and str(e) not in self.static}
            shapes[name] = {dim: self._dim(e, dims) for dim, e in changing.items()}
        return shapes

    def _dim(self, expression: Expression, dims: dict[str, Any]) -> Any:
        text = str(expression)
        if self.auto:
            return torch.export.Dim.AUTO
        if text in self.hints:
            return torch.export.Dim.DYNAMIC
        if text not in dims:
            low, high = self.bounds.get(text, (None, None))
            dims[text] = torch.export.Dim(dim_name(text), min=low, max=high)
        return dims[text]


def dim_name(text: str) -> str:
    """A Python name for an expression.

    >>> dim_name("past_sequence + sequence")
    'past_sequence_plus_sequence'
    """
    words = text.replace(" + ", "_plus_").replace(" - ", "_minus_").replace("*", "_times_")
    return re.sub(r"\W", "_", words if not words[0].isdigit() else f"n_{words}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What torch.export said against a plan, and how to ask the next time."""

    asked: Asked
    specialised: Mapping[str, int]
    note: str


_BOUND = re.compile(r"(min|max)\s*=\s*(\d+)")
_FIX = re.compile(r"^\s*(\w+)\s*=\s*(.+?)\s*$", re.MULTILINE)


def read_refusal(message: str, asked: Asked, plan: Plan) -> Refusal | None:
    """The next way to ask, from the fixes that torch suggests; None when the message suggests nothing new."""
    _, _, fixes = message.partition("Suggested fixes:")
    texts = {dim_name(str(e)): str(e) for leaf in plan.inputs for e in leaf.shape if e.symbols}
    bounds, hints, specialised, notes = dict(asked.bounds), set(asked.hints), dict[str, int](), []
    for name, right in _FIX.findall(fixes):
        text = texts.get(name)
        if text is None:
            continue
        if right.startswith("Dim("):
            found = {side: int(number) for side, number in _BOUND.findall(right)}
            bounds[text] = (found.get("min"), found.get("max"))
            if "max" in found:
                notes.append(f"{text} is at most {found['max']}")
        elif right.isdigit() and text not in hints:
            hints.add(text)  # a named Dim must be free of guards; a hint lets torch keep them as checks at run time
        elif right.isdigit():
            specialised[text] = int(right)
            notes.append(f"{text} was specialised to {right}")
        else:
            hints.add(text)
            notes.append(f"torch finds {text} == {right}")
    fresh = replace(asked, bounds=bounds, hints=frozenset(hints), static=asked.static | frozenset(specialised))
    return None if fresh == asked else Refusal(fresh, specialised, "; ".join(notes))

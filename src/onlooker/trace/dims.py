"""Dynamic shapes as torch.export wants them, and what its refusals say about them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.fx.experimental._config

from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import Plan
from .by_values import decided_by_values

__all__ = ["Asked", "least_of"]


@dataclass(frozen=True, slots=True)
class Asked:
    """How changing sizes are asked for: by named Dims, or with ``auto`` by hints, which torch may refine by guards.

    Equal axes share a ``Dim``. Expressions of several symbols are independent Dims: torch cannot add two,
    and finds the relation itself. ``oblivious`` lets torch take the general side of a comparison with 0 or 1, where
    it would else keep every one as a guard. ``branch`` is the error of torch about a branch on a value: the values of
    the example then decide, and the program checks at run time that others decide alike. ``ints`` keeps ``int(size)``
    of the model a size; None where it was not tried.
    """

    auto: bool = False
    oblivious: bool = False
    branch: Exception | None = None
    ints: bool | None = None

    @classmethod
    def first(cls, plan: Plan) -> Asked:
        """Names, and hints for a plan with sizes that the model takes only from a least one on.

        Such a size is halved and cropped in the model, and torch refuses a name that meets a guard after a whole trace.
        """
        return cls(auto=any(symbol.low > 2 and symbol.high is None for symbol in plan.symbols))

    def without_guards(self) -> Asked:
        """The same, by hints alone and without guards on 0 and 1."""
        return replace(self, oblivious=True, auto=True)

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """The settings of torch for an export that is asked for in this way."""
        with contextlib.ExitStack() as stack:
            if self.oblivious:
                settings = torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
                stack.enter_context(settings)
            if self.branch is not None:
                stack.enter_context(decided_by_values())
            yield

    def dynamic_shapes(self, plan: Plan, names: Mapping[Path, str]) -> dict[str, Any]:
        """``{input: {dimension: Dim}}``; an int is a dynamic input, a float a tensor without dimensions."""
        dims: dict[str, Any] = {}
        shapes: dict[str, Any] = {}
        for leaf in plan.inputs:
            name = names[leaf.path]
            if leaf.is_float:
                shapes[name] = {}
                continue
            if leaf.value is not None and not leaf.value.symbols:
                shapes[name] = None
                continue
            if not leaf.is_tensor:
                shapes[name] = torch.export.Dim.AUTO if self.auto else torch.export.Dim.DYNAMIC
                continue
            changing = {dim: e for dim, e in enumerate(leaf.shape) if e.symbols}
            shapes[name] = {dim: self._dim(plan, e, dims) for dim, e in changing.items()}
        return shapes

    def named(self, plan: Plan) -> dict[str, tuple[int | None, int | None]]:
        """The expressions that are asked for by a name, each with the bounds that it is given."""
        changing = {str(e): e for leaf in plan.inputs for e in leaf.shape if e.symbols}
        return {} if self.auto else {text: _limits(plan, e) for text, e in changing.items()}

    def _dim(self, plan: Plan, expression: Expression, dims: dict[str, Any]) -> Any:
        text = str(expression)
        low, high = _limits(plan, expression)
        if self.auto:
            return torch.export.Dim.AUTO if high is None else torch.export.Dim.AUTO(max=high)
        if text not in dims:
            dims[text] = torch.export.Dim(dim_name(text), min=low, max=high)
        return dims[text]


def _limits(plan: Plan, expression: Expression) -> tuple[int | None, int | None]:
    """The least size that torch must be told, and the greatest one that the ranges of symbols allow.

    Expressions rise or fall with each symbol, so the greatest is at an end of each range.
    """
    symbols = [plan.symbol(name) for name in expression.symbols]
    least = least_of(plan, expression)
    ends = [(symbol.low, symbol.high) for symbol in symbols if symbol.high is not None]
    if len(ends) < len(symbols):
        return least, None
    choices = (dict(zip(expression.symbols, choice, strict=True)) for choice in product(*ends))
    return least, max(expression.evaluate(sizes) for sizes in choices)


def least_of(plan: Plan, expression: Expression) -> int | None:
    """The least size, where torch must be told: it starts each symbol at 2, so a sum of two starts at 4."""
    lows = {name: max(plan.symbol(name).low, 2) for name in expression.symbols}
    least = expression.evaluate(lows)
    rises = all(expression.evaluate({**lows, name: low + 1}) >= least for name, low in lows.items())
    return least if rises and least > 2 else None


#: what stands for the signs of an expression in a name; the longer ones first
_WORDS = (
    (" + ", "_plus_"),
    (" - ", "_minus_"),
    ("-", "minus_"),
    ("**", "_to_"),
    ("*", "_times_"),
    ("//", "_over_"),
    ("min(", "least_of_"),
    (", ", "_and_"),
)


def dim_name(text: str) -> str:
    """A Python name for an expression.

    >>> dim_name("past_sequence + sequence")
    'past_sequence_plus_sequence'
    >>> dim_name("(samples - 3)//2 + 1"), dim_name("min(past, 15)")
    ('samples_minus_3_over_2_plus_1', 'least_of_past_and_15')
    """
    for sign, word in _WORDS:
        text = text.replace(sign, word)
    name = re.sub(r"\W", "", text)
    return f"n_{name}" if name[0].isdigit() else name

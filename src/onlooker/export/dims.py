"""Dynamic shapes as torch.export wants them, and what its refusals say about them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
import torch.fx.experimental._config

from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import Plan
from .by_values import decided_by_values

__all__ = ["Asked", "Refusal", "least_of", "read_refusal"]


@dataclass(frozen=True, slots=True)
class Asked:
    """How each changing expression is asked for: by a named ``Dim``, by a hint, or not at all.

    Equal axes share a ``Dim``. Expressions of several symbols are independent Dims: torch cannot add two,
    and finds the relation itself. ``oblivious`` lets torch take the general side of a comparison with 0 or 1, where
    it would else keep every one as a guard. ``branch`` is what torch says of a branch on a value: the values of the
    example then decide, and the program checks at run time that others decide alike. ``ints`` keeps ``int(size)`` of
    the model a size; None where it was not tried.
    """

    bounds: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    hints: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    auto: bool = False
    oblivious: bool = False
    branch: Exception | None = None
    ints: bool | None = None

    @classmethod
    def first(cls, plan: Plan) -> Asked:
        """Names, and hints for what the model takes only from a least size on.

        Such a size is halved and cropped in the model, and a name must be free of the guards that this leaves: torch
        would refuse it after a whole trace.
        """
        halved = {symbol.name for symbol in plan.symbols if symbol.low > 2 and symbol.high is None}
        shapes = (e for leaf in plan.inputs for e in leaf.shape)
        return cls(hints=frozenset(str(e) for e in shapes if not halved.isdisjoint(e.symbols)))

    def without_guards(self, plan: Plan) -> Asked:
        """The same, by hints alone and without guards on 0 and 1."""
        texts = {str(e) for leaf in plan.inputs for e in leaf.shape if e.symbols}
        return replace(self, oblivious=True, hints=self.hints | texts)

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
            if not leaf.is_tensor:
                shapes[name] = torch.export.Dim.AUTO if self.auto else torch.export.Dim.DYNAMIC
                continue
            changing = {dim: e for dim, e in enumerate(leaf.shape) if e.symbols and str(e) not in self.static}
            shapes[name] = {dim: self._dim(plan, e, dims) for dim, e in changing.items()}
        return shapes

    def named(self, plan: Plan) -> dict[str, tuple[int | None, int | None]]:
        """The expressions that are asked for by a name, each with the bounds that it is given."""
        changing = {str(e): e for leaf in plan.inputs for e in leaf.shape if e.symbols}
        texts = [] if self.auto else [t for t in changing if t not in self.hints | self.static]
        return {text: self._bounds(plan, changing[text]) for text in texts}

    def _dim(self, plan: Plan, expression: Expression, dims: dict[str, Any]) -> Any:
        text = str(expression)
        if self.auto:
            return torch.export.Dim.AUTO
        if text in self.hints:
            most = _limits(plan, expression)[1]
            return torch.export.Dim.DYNAMIC if most is None else torch.export.Dim.DYNAMIC(max=most)
        if text not in dims:
            low, high = self._bounds(plan, expression)
            dims[text] = torch.export.Dim(dim_name(text), min=low, max=high)
        return dims[text]

    def _bounds(self, plan: Plan, expression: Expression) -> tuple[int | None, int | None]:
        low, high = self.bounds.get(str(expression), (None, None))
        least, most = _limits(plan, expression)
        return least if low is None else low, most if high is None else high


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


@dataclass(frozen=True, slots=True)
class Refusal:
    """What torch.export said against a plan, and how to ask the next time; ``texts`` are the expressions it names."""

    asked: Asked
    specialised: Mapping[str, int]
    note: str
    texts: tuple[str, ...] = ()


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
            if text in bounds:  # torch names one bound after the other: a hint takes them all at once
                hints.add(text)
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
    named = tuple(texts[name] for name, _ in _FIX.findall(fixes) if name in texts)
    return None if fresh == asked else Refusal(fresh, specialised, "; ".join(notes), named)

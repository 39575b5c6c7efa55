"""Dynamic shapes as torch.export wants them, and what its refusals say about them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from ..core.expression import Expression
from ..core.path import Path
from ..core.plan import Plan
from ..repairs.by_values import decided_by_values, results_of_any_length
from ..repairs.greatest_sizes import greatest_sizes_fit
from ..repairs.not_tracing import untold_of_traces
from ..repairs.size_functions import functions_of_sizes
from ..repairs.unchanged_modules import unchanged_modules_stay
from ..repairs.unsolved_equations import unsolved_equations_stay
from ..torch_internals.sizes import shape_config

__all__ = ["Asked", "least_of", "limits_of"]


@dataclass(frozen=True, slots=True)
class Asked:
    """How torch is asked for changing sizes: by hints, which it may refine by guards.

    ``oblivious`` lets torch take the general side of a comparison with 0 or 1, where it would else
    keep every one as a guard. ``branch`` is the error of torch about a branch on a value: the
    values of the example then decide, and the program checks at run time that others decide alike.
    ``ints`` keeps ``int(size)`` of the model a size; None where it was not tried. ``untold`` answers
    the model that it is not traced. ``unrolled`` are the lines of loops that are no ``scan``.
    ``conversions`` leaves modules as they are where ``Module.to`` would change nothing.
    ``any_length`` lets operators of libraries keep one row or none. ``in_memory`` makes no copies
    for ``contiguous()``. ``alike`` chooses an example in which sizes are equal that were equal in
    all calls, ``as_watched`` one of the sizes of a call. ``lifted`` counts the
    traces that found something new that they change in Python. ``greatest`` takes a number of values for a
    multiple of a size of any greatness.
    ``unsolved`` goes on where sympy cannot solve an equation of sizes.
    ``keys`` makes sizes keys of dicts and caches.
    ``opaque`` makes values of the ints that floats of several sizes give, in a trace that decides by
    values; after a trace it says whether there were any. ``floats`` makes numbers of the floats that
    tensors of sizes hold, which the program checks.
    ``decided`` are the lines of branches on sizes that Python decides; None for all of them.
    """

    oblivious: bool = False
    branch: Exception | None = None
    ints: bool | None = None
    untold: bool = False
    unrolled: tuple[str, ...] = ()
    conversions: bool = False
    any_length: bool = False
    in_memory: bool = False
    as_watched: bool = False
    lifted: int = 0
    alike: bool = False
    greatest: bool = False
    unsolved: bool = False
    keys: bool = False
    opaque: bool = False
    floats: bool = False
    decided: tuple[str, ...] | None = ()

    def without_guards(self) -> Asked:
        """The same, without guards on 0 and 1."""
        return replace(self, oblivious=True)

    def anew(self) -> Asked:
        """The same for another trace of the model: whether values decide is found out again, unless
        sizes are values themselves.
        """
        return self if self.opaque else replace(self, branch=None)

    @contextlib.contextmanager
    def settings(self) -> Iterator[Collection[str]]:
        """The settings of torch for an export that is asked for in this way.

        Yields the names of the numbers that the trace decides about by their values.
        """
        decided: Collection[str] = ()
        with contextlib.ExitStack() as stack:
            stack.enter_context(functions_of_sizes(as_keys=self.keys))
            if self.any_length:
                stack.enter_context(results_of_any_length())
            if self.oblivious:
                settings = shape_config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
                stack.enter_context(settings)
            if self.branch is not None:
                decided = stack.enter_context(decided_by_values())
            if self.untold:
                stack.enter_context(untold_of_traces())
            if self.greatest:
                stack.enter_context(greatest_sizes_fit())
            if self.unsolved:
                stack.enter_context(unsolved_equations_stay())
            if self.conversions:
                stack.enter_context(unchanged_modules_stay())
            yield decided

    def dynamic_shapes(self, plan: Plan, names: Mapping[Path, str]) -> dict[str, Any]:
        """``{input: {dimension: Dim}}``; an int is a dynamic input, a float a tensor without
        dimensions.
        """
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
                shapes[name] = torch.export.Dim.AUTO
                continue
            changing = {dim: e for dim, e in enumerate(leaf.shape) if e.symbols}
            shapes[name] = {dim: _hint(plan, e) for dim, e in changing.items()}
        return shapes


def _hint(plan: Plan, expression: Expression) -> Any:
    _, high = limits_of(plan, expression)
    return torch.export.Dim.AUTO if high is None else torch.export.Dim.AUTO(max=high)


def limits_of(plan: Plan, expression: Expression) -> tuple[int | None, int | None]:
    """The least size that torch must be told, and the greatest one that the ranges of symbols
    allow.

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
    """The least size, where torch must be told: it starts each symbol at 2, so a sum of two
    starts at 4.
    """
    lows = {name: max(plan.symbol(name).low, 2) for name in expression.symbols}
    least = expression.evaluate(lows)
    rises = all(expression.evaluate({**lows, name: low + 1}) >= least for name, low in lows.items())
    return least if rises and least > 2 else None

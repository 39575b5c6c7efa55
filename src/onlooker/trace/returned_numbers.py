"""Symbolic numbers that leave the model in its result.

A size that is returned is an output of the graph, and so is a number that ``item()`` reads. torch
has no output that is a bool, so a bool such as ``x.shape[1] > 64`` leaves the graph as 1 or 0, of
which :class:`~onlooker.core.contents.Outputs` makes a bool again. A number inside of an object that
cannot be opened has no way out: it becomes a constant, by a decision that the path condition of the
trace has, so that calls with other sizes are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from sympy.logic.boolalg import BooleanAtom

from ..pytrees.identity import attributes_of
from ..pytrees.nodes import SYMBOLIC
from ..pytrees.unread import is_unknown

__all__ = ["as_output", "is_output"]

_chosen: Any = torch.sym_ite
_MOST_LOOKED_AT = 10_000


def as_output(leaf: Any) -> Any:
    """A leaf of the result as the graph gives it.

    A comparison that torch answers by its assumption that no size is 0 or 1 (``n == 0``) is decided
    here and now: the decision is logged, and the answer is a constant.
    """
    if isinstance(leaf, torch.SymBool):
        is_answered = isinstance(leaf.node.expr, BooleanAtom)
        return bool(leaf) if is_answered else _chosen(leaf, 1, 0)
    if is_unknown(leaf):
        for number in _symbolic_in(leaf):
            _decide(number)
    return leaf


def is_output(leaf: Any) -> bool:
    """True for a leaf that a graph gives; any other is a constant of the result."""
    return isinstance(leaf, (torch.Tensor, torch.SymInt, torch.SymFloat))


def _decide(number: Any) -> None:
    """Makes a symbolic number a constant of the trace."""
    if isinstance(number, torch.SymBool):
        number.node.guard_bool("", 0)
    elif isinstance(number, torch.SymInt):
        number.node.guard_int("", 0)
    else:
        number.node.guard_float("", 0)


def _symbolic_in(value: Any) -> Iterator[Any]:
    """The symbolic numbers in an object: in its attributes, and in containers among them."""
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < _MOST_LOOKED_AT:
        here = waiting.pop()
        if isinstance(here, SYMBOLIC):
            yield here
        elif id(here) not in seen and not isinstance(here, (torch.Tensor, torch.nn.Module, type)):
            seen.add(id(here))
            if isinstance(here, dict):
                waiting += [*dict.keys(here), *dict.values(here)]
            elif isinstance(here, (list, tuple, set, frozenset)):
                waiting += list(here)
            waiting += attributes_of(here).values()

"""Bounds of tables whose rows are chosen by sizes alone: ``embedding(table, arange(past, past + n))``.

What is left of the rows is evaluated at a few sizes, and found to be linear. Of a table of 128 rows, in a trace
with ``past`` 7 and ``n`` 5::

    past  n    greatest index    rows behind it
    7     5    11                116
    8     5    12                115     one row less for each ``past``
    7     6    12                115     one row less for each ``n``
    8     7    14                113     116 - 1 - 2, as the line says

So no row is left behind the index where ``past + n`` is 116 + 7 + 5 = 128. The bound ``past + n <= 128`` is then
tried: at 128 positions the index is legal, and at 129 it is not. What is not linear in one size, as
``arange(n) // 2``, is searched by doubling and halving.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import sympy
from torch.fx import Node

from ..core.plan import Symbol
from ..core.sizes.expression import Expression, Sizes
from ..lab.lab import SpentError
from ..model_source.lines import place_of_node
from ..proofs.linear import Linear
from ..proofs.path_condition import Atom
from ..torch_internals.operators import OpOverload
from .bounded_graph import GREATEST, WHY, BoundedGraph, bound_at

__all__ = ["IndexBounds"]

logger = logging.getLogger(__name__)
#: how many sizes on each side of a bound are tried that is not known to be linear
_SAMPLES = 16
#: the greatest bound beyond which the model is run with values
_LONGEST = 2048
#: per operator the places of the table, of the dimension and of the index among its arguments
_OPERATORS: Mapping[str, tuple[int, int | None, int]] = {
    "embedding": (0, None, 1),
    "embedding_bag": (0, None, 1),
    "index_select": (0, 1, 2),
    "gather": (0, 1, 2),
    "take_along_dim": (0, 2, 1),
    "scatter": (0, 1, 2),
    "scatter_add": (0, 1, 2),
    "index_add": (0, 1, 2),
    "index_copy": (0, 1, 2),
    "index_fill": (0, 1, 2),
}
#: operators that index several dimensions at once, where -1 is the last row
_INDEXING = frozenset({"index", "index_put"})


@dataclass(frozen=True, slots=True)
class _LookUp:
    """An index that depends on sizes alone, into one dimension of a tensor of ``rows`` rows."""

    node: Node
    table: Any
    dim: int
    rows: Any
    index: Node
    wraps: bool = False


class IndexBounds:
    """The bounds of the tables in one graph."""

    def __init__(self, graph: BoundedGraph) -> None:
        self._graph = graph
        self._taken: dict[Linear, bool] = {}
        self._indices: dict[tuple[Node, tuple[tuple[str, int], ...]], tuple[int, int] | None] = {}

    def find(self) -> Iterator[Atom]:
        """Yields the bounds of tables whose rows are chosen by sizes alone."""
        known: set[tuple[Any, ...]] = set()
        for node in self._graph.program.nodes:
            for look_up in self._look_ups(node):
                key = (look_up.index, str(look_up.rows), look_up.wraps)
                if key in known:
                    continue
                known.add(key)
                for room in (self._rows_behind, self._rows_before):
                    linear = self._bound_of(look_up, partial(room, look_up))
                    if linear is not None:
                        what = self._graph.name_of(look_up.table, look_up.dim)
                        yield bound_at(self._graph.condition_of(linear), place_of_node(node), what)

    def _look_ups(self, node: Node) -> Iterator[_LookUp]:
        if not isinstance(node.target, OpOverload):
            return
        name = node.target._opname
        args: list[Any] = [*node.args]
        if name in _INDEXING:
            yield from self._of_several(node)
            return
        if name == "one_hot" and isinstance(args[-1], int) and self._graph.program.knows(args[0]):
            yield _LookUp(node, None, 0, sympy.Integer(args[-1]), args[0])
        places = _OPERATORS.get(name)
        if places is None or len(args) <= max(place or 0 for place in places):
            return
        at_table, at_dim, at_index = places
        dim = args[at_dim] if at_dim is not None else 0
        index = args[at_index]
        if isinstance(dim, int) and self._graph.program.knows(index):
            rows = self._graph.rows(args[at_table], dim)
            if rows is not None:
                yield _LookUp(node, args[at_table], dim, rows, index)

    def _of_several(self, node: Node) -> Iterator[_LookUp]:
        """The indices of ``x[first, second]``, where no mask is among them."""
        table: Any = node.args[0]
        indices: Any = node.args[1]
        dtypes = [
            str(getattr(index.meta.get("val"), "dtype", None))
            for index in indices
            if isinstance(index, Node)
        ]
        if "torch.bool" in dtypes or "torch.uint8" in dtypes:
            return
        for dim, index in enumerate(indices):
            rows = self._graph.rows(table, dim)
            if rows is not None and self._graph.program.knows(index):
                yield _LookUp(node, table, dim, rows, index, wraps=True)

    def _bound_of(self, look_up: _LookUp, room: Callable[[Sizes], int | None]) -> Linear | None:
        """The bound at which an index leaves its table; None where there is none, or where it was
        not found.
        """
        names = [*self._graph.program.symbols_of([look_up.index])]
        names += [s.name for s in look_up.rows.free_symbols if s.name not in names]
        changing = [name for name in names if name in self._graph.symbols]
        if not changing or len(changing) < len(names):
            return None
        linear = self._fitted(room, changing)
        if linear is None or not linear.is_upper or not self._is_confirmed(linear, room):
            linear = None
            if len(changing) == 1:
                linear = self._searched(room, self._graph.symbols[changing[0]])
        if linear is None or self._is_taken_beyond(linear):
            return None
        return linear

    def _is_taken_beyond(self, linear: Linear) -> bool:
        """True where the model takes sizes beyond a bound all the same: it may expect the error of an
        index. Known on the processor alone, where such an error ends nothing.
        """
        if linear not in self._taken:
            self._taken[linear] = self._runs_beyond(linear)
        return self._taken[linear]

    def _runs_beyond(self, linear: Linear) -> bool:
        for name, count in linear.parts:
            pair = self._graph.both_sides(linear.holds, name) if count > 0 else None
            if pair is None or pair[1][name] > _LONGEST or not self._graph.is_on_processor:
                continue
            arguments = self._graph.calls.arguments(pair[1])
            with contextlib.suppress(SpentError):
                return self._graph.lab.try_run(arguments, why=WHY, memo=True) is not None
        return False

    def _rows_behind(self, look_up: _LookUp, sizes: Sizes) -> int | None:
        """Counts the rows that are left beyond the greatest index: negative where it leaves the
        table. None where that is not known.
        """
        ends = self._ends_of_index(look_up.index, sizes)
        return None if ends is None else self._count(look_up, sizes) - 1 - ends[1]

    def _rows_before(self, look_up: _LookUp, sizes: Sizes) -> int | None:
        """Counts the rows that are left before the least index."""
        ends = self._ends_of_index(look_up.index, sizes)
        if ends is None:
            return None
        return ends[0] + (self._count(look_up, sizes) if look_up.wraps else 0)

    def _ends_of_index(self, index: Node, sizes: Sizes) -> tuple[int, int] | None:
        """The least and the greatest value of an index; None where there are none, or where they are
        not known.
        """
        key = index, tuple(sizes.items())
        if key not in self._indices:
            self._indices[key] = self._evaluated(index, sizes)
        return self._indices[key]

    def _evaluated(self, index: Node, sizes: Sizes) -> tuple[int, int] | None:
        try:
            values = self._graph.program.values([index], sizes)
        except Exception as error:
            logger.debug("an index cannot be computed at %s: %s", sizes, error)
            return None
        if values is None or not values[0].numel():
            return None
        return int(values[0].min()), int(values[0].max())

    def _count(self, look_up: _LookUp, sizes: Sizes) -> int:
        """The rows of the table."""
        return Expression(look_up.rows).evaluate(sizes)

    def _fitted(self, room: Callable[[Sizes], int | None], names: Sequence[str]) -> Linear | None:
        """The bound that is linear in sizes, if what is left of the rows is so near the example."""
        steps = {name: self._graph.symbols[name].step for name in names}
        first = room(self._graph.base)
        if first is None:
            return None
        falls: dict[str, int] = {}
        for name in names:
            there = room(self._moved({name: steps[name]}))
            if there is None:
                return None
            falls[name] = first - there
        if not any(falls.values()):
            return None
        # several symbols at once, by different steps: what is linear falls by the sum of what it falls for each
        for spread in (1, 2, 3):
            moves = {name: (1 + place * spread) for place, name in enumerate(names)}
            expected = first - sum(falls[name] * moves[name] for name in names)
            if room(self._moved({name: moves[name] * steps[name] for name in names})) != expected:
                return None
        # a symbol in steps of 16 by which two rows go uses an eighth of a row for each unit: the bound is
        # written with whole numbers, 8 times as large
        counts = {name: Fraction(falls[name], steps[name]) for name in names}
        most = first + sum(count * self._graph.base[name] for name, count in counts.items())
        common = math.lcm(*(count.denominator for count in counts.values()))
        parts = {name: int(count * common) for name, count in counts.items()}
        return Linear.made(parts, int(most * common))

    def _moved(self, moves: Mapping[str, int]) -> Sizes:
        return {name: size + moves.get(name, 0) for name, size in self._graph.base.items()}

    def _is_confirmed(self, linear: Linear, room: Callable[[Sizes], int | None]) -> bool:
        """True where the rows do for the sizes at a bound and run out beyond it, whichever symbol
        grows.
        """
        for name, count in linear.parts:
            if count <= 0:
                continue
            pair = self._graph.both_sides(linear.holds, name)
            if pair is None:
                return False
            left = [room(sizes) for sizes in pair]
            if left[0] is None or left[1] is None or left[0] < 0 or left[1] >= 0:
                return False
        return True

    def _searched(self, room: Callable[[Sizes], int | None], symbol: Symbol) -> Linear | None:
        """The bound of one symbol, by doubling and halving; None where the rows do not run out once
        and for all.
        """

        def is_legal(size: int) -> bool | None:
            left = room({**self._graph.base, symbol.name: size})
            return None if left is None else left >= 0

        low, high = self._graph.base[symbol.name], 2 * self._graph.base[symbol.name]
        while high <= GREATEST and is_legal(high):
            low, high = high, 2 * high
        is_bound = high <= GREATEST and is_legal(high) is False
        if not is_bound or not self._graph.is_on_path({**self._graph.base, symbol.name: high}):
            return None
        while high - low > symbol.step:
            middle = (low + high) // 2
            middle -= middle % symbol.step
            low, high = (middle, high) if is_legal(middle) else (low, middle)
        first = max(symbol.low, 1)
        spread = max((low - first) // _SAMPLES, 1)
        below = [size - size % symbol.step for size in range(first, low, spread)]
        beyond = [high + symbol.step * number for number in range(_SAMPLES)]
        beyond += [2 * high, 3 * high, 5 * high]
        holds_below = all(is_legal(size) is not False for size in below if size >= first)
        if not holds_below or any(map(is_legal, beyond)):
            return None
        return Linear.made({symbol.name: 1}, low)

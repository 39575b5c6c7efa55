"""Where sizes become illegal: the rows of a table run out, or a shape fits no longer.

A model with 128 rows of positions takes 128 tokens. Torch records no decision about that, since an
index has values, and values are not known in a trace. But these values are made of sizes alone, so
that they can be computed for any sizes (:mod:`.size_program`). What remains of ``embedding(table,
arange(past, past + n))`` is the number of rows that are left, ``128 - past - n``. It is evaluated
at a few sizes, found to be linear, and the bound ``past + n <= 128`` is tried: at 128 positions the
index is legal, and at 129 it is not. ``arange(n).clamp(max=127)`` looks the same at small sizes, and
is legal at 129.

``table[:n]`` and ``table.narrow(0, 0, n)`` are bounds that torch does record, as decisions of its
operators. A slice ends where the table ends, so it is the model that tells whether its result still
fits: it is run at the bound, and beyond it.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import sympy
import torch
from torch.fx import Node

from ..core.contract import Origin
from ..core.expression import Expression
from ..core.plan import Symbol
from ..infer.sizes import Sizes, is_possible
from ..lab.lab import Lab, SpentError
from ..lab.recorder import CountedOperators, ReachedError
from ..materialise.arguments import close_arguments, materialise
from ..model_source.lines import place_of_node
from ..observing.store import Sample
from ..torch_internals.fake_tensors import UNKNOWN_VALUES
from ..torch_internals.operators import OpOverload
from .graph import Graph
from .linear import Linear, limits_in_plan
from .path_condition import Atom, PathCondition, key_of, symbol_of
from .size_program import SizeProgram

__all__ = ["find_bounds"]

logger = logging.getLogger(__name__)
#: sizes are looked for up to this one
_GREATEST = 2**20
#: how many multiples of a step beyond a bound are looked at for sizes on the path of the trace
_MOST_STEPS = 64
#: how many sizes on each side of a bound are tried that is not known to be linear
_SAMPLES = 16
#: how many conditions of the model are tried on their other side
_MOST_ASKED = 4
#: the greatest bound beyond which the model is run with values
_LONGEST = 2048
_WHY = "sizes at a bound of the model"
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
#: conditions that some size may be too large for
_UPPER = (
    sympy.LessThan,
    sympy.StrictLessThan,
    sympy.GreaterThan,
    sympy.StrictGreaterThan,
)
#: operators that take a part of a tensor, and those that give it another form
_CUTS = frozenset({"slice", "narrow", "to", "_to_copy", "clone", "contiguous", "detach", "alias"})
_VIEWS = _CUTS | {"expand", "permute", "select", "squeeze", "transpose", "unsqueeze", "view"}
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


def find_bounds(
    graph: Graph, condition: PathCondition, samples: Sequence[Sample], lab: Lab
) -> tuple[PathCondition, tuple[Atom, ...]]:
    """The path condition of a trace without what are bounds of the model, and these bounds.

    Sizes beyond a bound that satisfy the path condition are refused by the model itself.
    """
    search = _Search(graph, condition, samples, lab)
    of_operators = search.of_operators()
    found = search.reduced(of_operators, search.of_indices())
    gone = [atom for atom in condition.atoms.values() if atom.key in of_operators]
    gone += search.implied_by(found)
    return condition.without(gone), tuple(found)


class _Search:
    """The bounds in one graph."""

    def __init__(
        self, graph: Graph, condition: PathCondition, samples: Sequence[Sample], lab: Lab
    ) -> None:
        self._plan, self._condition = graph.plan, condition
        self._samples, self._lab = samples, lab
        self._base: Sizes = dict(graph.sizes)
        self._symbols = {symbol.name: symbol for symbol in graph.plan.symbols}
        self._program = SizeProgram(graph.artifact, graph.plan, graph.names)
        self._is_on_processor = all(leaf.device in ("", "cpu") for leaf in graph.plan.inputs)
        self._asks_left = _MOST_ASKED
        self._taken: dict[Linear, bool] = {}
        self._indices: dict[tuple[Node, tuple[tuple[str, int], ...]], tuple[int, int] | None] = {}
        self._linear = {key: Linear.of(atom.condition) for key, atom in condition.atoms.items()}

    # -- what operators decided in the trace

    def of_operators(self) -> dict[tuple[str, str], Atom]:
        """The conditions of the trace that are bounds of the model, by their keys."""
        ends = self._ends_of_tensors()
        found: dict[tuple[str, str], Atom] = {}
        for key, atom in self._condition.atoms.items():
            linear, by_model = self._linear[key], atom.origin is Origin.MODEL
            is_candidate = isinstance(atom.condition, _UPPER) and not atom.is_number
            if not is_candidate or atom.origin not in (Origin.OPERATOR, Origin.MODEL):
                continue
            if by_model or linear is None:
                if not self._asks_left or len(atom.condition.free_symbols) > 2 - by_model:
                    continue
                self._asks_left -= 1
            error = self._refusal_beyond(atom)
            if error is None:
                continue
            condition = atom.condition if linear is None else self._condition_of(linear)
            if by_model:
                found[key] = _bound(condition, atom.line, f"the model raises {error}")
            else:
                place = linear or key_of(condition)
                where, what = ends.get(place, ("", "an operator takes no more"))
                found[key] = _bound(condition, where or atom.line, what)
        return found

    def _ends_of_tensors(self) -> dict[Any, tuple[str, str]]:
        """For each part of a tensor the condition that it ends inside of the tensor, and for each
        computed length that it is not negative: the line of the model, and what ends there.
        """
        found: dict[Any, tuple[str, str]] = {}
        for node in self._program.nodes:
            for dim, end in self._ends_of(node):
                rows = self._rows(node.args[0], dim)
                if rows is None or end is None:
                    continue
                condition = sympy.LessThan(end, rows, evaluate=False)
                place = Linear.of(condition) or key_of(condition)
                found.setdefault(place, (place_of_node(node), self._named(node.args[0], dim)))
            for size in _sizes_in(node):
                expression = self._program.in_plan(size)
                linear = None if expression is None else Linear.of(sympy.Le(0, expression))
                if linear is not None:
                    found.setdefault(linear, (place_of_node(node), "no length is negative"))
        return found

    def _ends_of(self, node: Node) -> Iterator[tuple[int, Any]]:
        """The dimension that a node takes a part of, and the places up to which it needs rows."""
        if not isinstance(node.target, OpOverload):
            return
        name = node.target._opname
        args: list[Any] = [*node.args, None, None, None]
        if name == "slice":
            dim = args[1] or 0
            yield from ((dim, self._program.in_plan(end)) for end in args[2:4] if end is not None)
        elif name == "narrow":
            start, length = map(self._program.in_plan, args[2:4])
            yield args[1], None if start is None or length is None else start + length
        elif name == "select":
            index = self._program.in_plan(args[2])
            yield args[1], None if index is None else index + 1

    def _refusal_beyond(self, atom: Atom) -> str | None:
        """What the model raises for sizes beyond a condition of the trace; None where it takes them,
        or does not take those at the bound either.

        Operators do the same for all sizes beyond. Where the model decides by itself it goes another
        way there, which may lead on: it has to refuse larger sizes too, with values as well.
        """
        by_model = atom.origin is Origin.MODEL
        for name in sorted(symbol.name for symbol in atom.condition.free_symbols):
            pair = self._both_sides(atom.constraint().holds, name, but=atom.key)
            if pair is None:
                continue
            inside, beyond = pair
            run = CountedOperators()
            error = self._refused(beyond, within=run)
            # at the bound the model has to come as far: what follows says nothing of this bound
            as_far = CountedOperators(run.count)
            if error is None or self._refused(inside, within=as_far) is not None:
                return None
            further = [{**beyond, name: factor * beyond[name]} for factor in (2, 5)]
            if by_model and not all(map(self._refused, further)):
                return None
            return error if not by_model or self._is_raised(error, beyond) else None
        return None

    def _is_raised(self, error: str, sizes: Sizes) -> bool:
        """True where the model refuses tensors with values as well. On other devices than the
        processor an index beyond its table may end the process: there the error has to be one that
        operators do not raise.
        """
        if self._is_on_processor:
            return self._refused(sizes, with_values=True) is not None
        return error not in ("RuntimeError", "IndexError")

    def _refused(
        self, sizes: Sizes, *, within: CountedOperators | None = None, with_values: bool = False
    ) -> str | None:
        """The class of the error that the model raises for tensors of these sizes; None where it
        takes them, or where that is not known. By default the tensors have no values.
        """
        run = partial(self._lab.run, memo=True) if with_values else self._lab.run_fake
        if within is not None:
            run = partial(self._lab.run_fake_within, within=within)
        try:
            values = materialise(self._plan, sizes, self._samples)
            run(close_arguments(self._plan, values), why=_WHY)
        except (SpentError, ReachedError, *UNKNOWN_VALUES):
            return None
        except Exception as error:
            logger.debug("the model refuses %s: %s", sizes, error)
            return type(error).__name__
        return None

    # -- indices into tables

    def of_indices(self) -> Iterator[Atom]:
        """The bounds of tables whose rows are chosen by sizes alone."""
        known: set[tuple[Any, ...]] = set()
        for node in self._program.nodes:
            for look_up in self._look_ups(node):
                key = (look_up.index, str(look_up.rows), look_up.wraps)
                if key in known:
                    continue
                known.add(key)
                for room in (self._rows_behind, self._rows_before):
                    linear = self._bound_of(look_up, partial(room, look_up))
                    if linear is not None:
                        what = self._named(look_up.table, look_up.dim)
                        yield _bound(self._condition_of(linear), place_of_node(node), what)

    def _look_ups(self, node: Node) -> Iterator[_LookUp]:
        if not isinstance(node.target, OpOverload):
            return
        name = node.target._opname
        args: list[Any] = [*node.args]
        if name in _INDEXING:
            yield from self._of_several(node)
            return
        if name == "one_hot" and isinstance(args[-1], int) and self._program.knows(args[0]):
            yield _LookUp(node, None, 0, sympy.Integer(args[-1]), args[0])
        places = _OPERATORS.get(name)
        if places is None or len(args) <= max(place or 0 for place in places):
            return
        at_table, at_dim, at_index = places
        dim = args[at_dim] if at_dim is not None else 0
        index = args[at_index]
        if isinstance(dim, int) and self._program.knows(index):
            rows = self._rows(args[at_table], dim)
            if rows is not None:
                yield _LookUp(node, args[at_table], dim, rows, index)

    def _of_several(self, node: Node) -> Iterator[_LookUp]:
        """The indices of ``x[first, second]``, where no mask is among them."""
        table: Any = node.args[0]
        indices: Any = node.args[1]
        dtypes = [str(_dtype(index)) for index in indices if isinstance(index, Node)]
        if "torch.bool" in dtypes or "torch.uint8" in dtypes:
            return
        for dim, index in enumerate(indices):
            rows = self._rows(table, dim)
            if rows is not None and self._program.knows(index):
                yield _LookUp(node, table, dim, rows, index, wraps=True)

    def _bound_of(self, look_up: _LookUp, room: Callable[[Sizes], int | None]) -> Linear | None:
        """The bound at which an index leaves its table; None where there is none, or where it was
        not found.
        """
        names = [*self._program.symbols_of([look_up.index])]
        names += [s.name for s in look_up.rows.free_symbols if s.name not in names]
        changing = [name for name in names if name in self._symbols]
        if not changing or len(changing) < len(names):
            return None
        linear = self._fitted(room, changing)
        if linear is None or not linear.is_upper or not self._is_confirmed(linear, room):
            only = changing[0] if len(changing) == 1 else ""
            linear = self._searched(room, self._symbols[only]) if only else None
        return linear if linear is not None and not self._is_taken_beyond(linear) else None

    def _is_taken_beyond(self, linear: Linear) -> bool:
        """True where the model takes sizes beyond a bound all the same: it may expect the error of an
        index. Known on the processor alone, where such an error ends nothing.
        """
        if linear not in self._taken:
            self._taken[linear] = self._runs_beyond(linear)
        return self._taken[linear]

    def _runs_beyond(self, linear: Linear) -> bool:
        for name, count in linear.parts:
            pair = self._both_sides(linear.holds, name) if count > 0 else None
            if pair is None or pair[1][name] > _LONGEST or not self._is_on_processor:
                continue
            values = materialise(self._plan, pair[1], self._samples)
            arguments = close_arguments(self._plan, values)
            with contextlib.suppress(SpentError):
                return self._lab.try_run(arguments, why=_WHY, memo=True) is not None
        return False

    def _rows_behind(self, look_up: _LookUp, sizes: Sizes) -> int | None:
        """How many rows are left beyond the greatest index: negative where it leaves the table. None
        where that is not known.
        """
        ends = self._ends_of_index(look_up.index, sizes)
        return None if ends is None else self._count(look_up, sizes) - 1 - ends[1]

    def _rows_before(self, look_up: _LookUp, sizes: Sizes) -> int | None:
        """How many rows are left before the least index."""
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
            values = self._program.values([index], sizes)
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
        steps = {name: self._symbols[name].step for name in names}
        first = room(self._base)
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
        for spread in (1, 2, 3):
            moves = {name: (1 + place * spread) for place, name in enumerate(names)}
            expected = first - sum(falls[name] * moves[name] for name in names)
            if room(self._moved({name: moves[name] * steps[name] for name in names})) != expected:
                return None
        counts = {name: Fraction(falls[name], steps[name]) for name in names}
        most = first + sum(count * self._base[name] for name, count in counts.items())
        common = math.lcm(*(count.denominator for count in counts.values()))
        parts = {name: int(count * common) for name, count in counts.items()}
        return Linear.made(parts, int(most * common))

    def _moved(self, moves: Mapping[str, int]) -> Sizes:
        return {name: size + moves.get(name, 0) for name, size in self._base.items()}

    def _is_confirmed(self, linear: Linear, room: Callable[[Sizes], int | None]) -> bool:
        """True where the rows do for the sizes at a bound and run out beyond it, whichever symbol
        grows.
        """
        for name, count in linear.parts:
            if count <= 0:
                continue
            pair = self._both_sides(linear.holds, name)
            if pair is None:
                return False
            left = [room(sizes) for sizes in pair]
            if left[0] is None or left[1] is None or left[0] < 0 or left[1] >= 0:
                return False
        return True

    def _both_sides(
        self, holds: Callable[[Sizes], bool], name: str, but: tuple[str, str] | None = None
    ) -> tuple[Sizes, Sizes] | None:
        """The greatest size of one symbol at which a condition holds, and the next one beyond it on
        the path of the trace, beside the example's sizes of all others; None where there is none.

        With ``but``, the key of an atom, other operators may decide otherwise beyond it as well.
        """
        step = self._symbols[name].step

        def at(size: int) -> Sizes:
            return {**self._base, name: size}

        low = self._base[name]
        high = low + step
        while high <= _GREATEST and holds(at(high)):
            low, high = high, high + 2 * (high - low)
        if high > _GREATEST or not holds(at(low)):
            return None
        while high - low > step:
            middle = low + (high - low) // (2 * step) * step
            low, high = (middle, high) if holds(at(middle)) else (low, middle)
        beyond = (at(low + number * step) for number in range(1, _MOST_STEPS))
        first = next((sizes for sizes in beyond if self._is_on_path(sizes, but)), None)
        return (at(low), first) if first is not None and self._is_on_path(at(low)) else None

    def _is_on_path(self, sizes: Sizes, but: tuple[str, str] | None = None) -> bool:
        """True for sizes at which the model goes the way of the trace."""

        def may_fail(key: tuple[str, str], atom: Atom) -> bool:
            is_operator = atom.origin is Origin.OPERATOR and isinstance(atom.condition, _UPPER)
            return key == but or (but is not None and is_operator and not atom.is_number)

        return is_possible(self._plan, sizes) and all(
            may_fail(key, atom) or atom.constraint().holds(sizes)
            for key, atom in self._condition.atoms.items()
        )

    def _searched(self, room: Callable[[Sizes], int | None], symbol: Symbol) -> Linear | None:
        """The bound of one symbol, by doubling and halving; None where the rows do not run out once
        and for all.
        """

        def is_legal(size: int) -> bool | None:
            left = room({**self._base, symbol.name: size})
            return None if left is None else left >= 0

        low, high = self._base[symbol.name], 2 * self._base[symbol.name]
        while high <= _GREATEST and is_legal(high):
            low, high = high, 2 * high
        is_bound = high <= _GREATEST and is_legal(high) is False
        if not is_bound or not self._is_on_path({**self._base, symbol.name: high}):
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
        holds = all(is_legal(size) is not False for size in below if size >= first)
        return (
            Linear.made({symbol.name: 1}, low) if holds and not any(map(is_legal, beyond)) else None
        )

    # -- what is told

    def reduced(
        self, of_operators: Mapping[tuple[str, str], Atom], of_indices: Iterable[Atom]
    ) -> list[Atom]:
        """The bounds without those that follow from the plan, from the path, or from other bounds."""
        limits = limits_in_plan(self._plan)
        bounds = {bound.key: bound for bound in (*of_operators.values(), *of_indices)}
        linear = {key: Linear.of(bound.condition) for key, bound in bounds.items()}
        path = [
            known
            for key, known in self._linear.items()
            if known is not None and key not in of_operators
        ]
        kept: list[Atom] = []
        for key, bound in bounds.items():
            own = linear[key]
            others = [other for other in linear.values() if other is not None and other != own]
            if own is None or not own.follows_from([*path, *others], limits):
                kept.append(bound)
        return kept

    def implied_by(self, bounds: Sequence[Atom]) -> Iterator[Atom]:
        """The conditions of operators that follow from bounds."""
        limits = limits_in_plan(self._plan)
        of_bounds = [Linear.of(bound.condition) for bound in bounds]
        facts = [linear for linear in of_bounds if linear is not None]
        for key, linear in self._linear.items():
            atom = self._condition.atoms[key]
            is_candidate = atom.origin is Origin.OPERATOR and not atom.is_number
            if linear is not None and is_candidate and linear.follows_from(facts, limits):
                yield atom

    def _condition_of(self, linear: Linear) -> Any:
        return linear.condition({name: symbol_of(symbol) for name, symbol in self._symbols.items()})

    def _rows(self, table: Any, dim: int) -> Any:
        """The size of a tensor in a dimension, as an expression of the plan."""
        value = table.meta.get("val") if isinstance(table, Node) else None
        shape = getattr(value, "shape", ())
        return self._program.in_plan(shape[dim]) if -len(shape) <= dim < len(shape) else None

    def _named(self, table: Any, dim: int) -> str:
        """What ends: ``128 rows of position_embeddings.weight``."""
        if table is None:
            return "the classes of one_hot"
        whole, count = table, self._rows(table, dim)
        if count is None or not count.is_Integer:
            whole = self._program.source(table, _CUTS)
            count = self._rows(whole, dim)
        name = self._program.name(self._program.source(whole, _VIEWS)) or "a tensor"
        if dim == 0:
            return f"{count} rows of {name}"
        return f"{name}.shape[{dim}] is {count}"


def _bound(condition: Any, line: str, what: str) -> Atom:
    return Atom(key_of(condition), condition, Origin.BOUND, line, reason=what)


def _sizes_in(node: Node) -> Iterator[Node]:
    """The sizes that an operator is given."""
    if isinstance(node.target, OpOverload):
        sizes = (torch.SymInt,)
        yield from (one for one in node.all_input_nodes if isinstance(one.meta.get("val"), sizes))


def _dtype(node: Node) -> Any:
    return getattr(node.meta.get("val"), "dtype", None)

"""Do two straight graphs compute the same, though they differ in form?

A model without a mask asks for causal attention by a flag; with a mask of ones it makes the same
mask of numbers. No operator-by-operator comparison finds them equal. Both graphs are traces, so no
Python decides any more: what they compute are functions of their inputs, and functions that agree
on random and on extreme values of many sizes are the same, but for thresholds that no value met.
So the test holds only where both graphs have the same thresholds:

- on values: a clamp, a comparison, a rounding whose arguments hang on the inputs that both have;
- on sizes: the numbers in comparisons, slices and arithmetic of positions (a window of 48), and those of
  arithmetic on sizes (``n // 64``). A number that one graph alone has is met by sizes around it, or the
  graphs count as different. Where a run costs little, a size that is large meets what no number tells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain, combinations
from typing import Any

import torch

from ..core.call import Values
from ..core.path import Path
from ..core.plan import Plan, symbol_names
from ..core.sizes.expression import Sizes
from ..infer.sizes import choose_sizes, is_possible, middle_sizes
from ..materialise.arguments import Calls, fill_of
from ..materialise.extremes import FAR, FLAT, GREAT, LARGE, extreme_values
from ..proofs.size_program import SizeProgram
from ..pytrees.comparisons.agree import agreement
from ..pytrees.nodes import SYMBOLIC
from ..torch_internals.graph_modules import input_names
from ..trace.graph import Graph
from .known_masks import are_same_with_known_masks
from .thresholds import (
    DECIDING,
    GREATEST_TRIED,
    LARGE_SIZE,
    POSITIONS,
    THRESHOLDS,
    numbers_in,
    numbers_of_pieces,
    operator_name,
    sizes_at,
    whole_numbers,
)

__all__ = [
    "are_lengths",
    "identity_difference",
    "is_met",
    "pieces_of",
    "symbols_of_positions",
]

#: the shares of a length at which positions are computed
_SHARES = (1, 2, 3, 5, 8, 16, 64)
#: a run of a graph of so many weights costs little
_FEW_WEIGHTS = 3_000_000
#: the number from which on whole numbers are rounded, or go round, in a dtype
_LEAST_ROUNDED = {
    torch.bfloat16: 2**8,
    torch.float16: 2**11,
    torch.int8: 2**7,
    torch.uint8: 2**8,
}
#: operators that make the numbers of positions
_COUNTING = frozenset({"arange", "cumsum", "sum", "add", "mul", "_to_copy", "to", "cumprod"})
#: at so many sizes at least the graphs have to agree
_FEWEST = 2


def identity_difference(
    first: Graph,
    second: Graph,
    calls: Calls,
    holds: Callable[[Sizes], bool],
) -> str:
    """Compares the second graph, which lacks some inputs, with the first one and its fills: returns
    where they differ, empty where no difference was found at sizes that ``holds`` admits.
    """
    if first.outputs.structure != second.outputs.structure:
        return "the results have other parts"
    if first.outputs.dynamic != second.outputs.dynamic:
        return "the results have other constants"
    shared = {leaf.path for leaf in second.plan.inputs}
    if _value_thresholds(first, shared) != _value_thresholds(second, shared):
        return "one of them has a threshold on values that the other lacks"
    numbers = _numbers_of_one(first, second)
    small = [number for number in numbers if number <= GREATEST_TRIED]
    for number in numbers[len(small) :]:
        names = symbols_of_positions(first, number) | symbols_of_positions(second, number)
        if is_met(number, names, dict(first.sizes), holds):
            return "one of them has a number on positions that is too large to be tried"
    large = [LARGE_SIZE] if _is_small(first) and _is_small(second) else []

    def are_taken(sizes: Sizes) -> bool:
        return holds(sizes) and is_possible(first.plan, sizes)

    choices = list(filter(are_taken, _sizes(first.plan, dict(first.sizes), small, large)))
    if len(choices) < _FEWEST and first.plan.symbols:
        return "too few sizes could be tried"
    empty = list(filter(are_taken, _empty_sizes(first.plan, choices[0] if choices else {})))
    if are_same_with_known_masks(first, second, [*choices, *empty]):
        return ""
    # sums of many numbers overflow float16
    of_extremes = [*choices[:1], *(_longest(choices[1:]) if _are_in_half(first, second) else [])]
    differences = chain(
        (_difference_of_extremes(first, second, calls, sizes) for sizes in of_extremes),
        (_difference_at(first, second, calls, sizes) for sizes in (*choices, *empty)),
    )
    return next(filter(None, differences), "")


def _are_in_half(*graphs: Graph) -> bool:
    """True where one of the graphs has a tensor of float16, whose largest number is 65504."""
    nodes = (node for graph in graphs for node in graph.artifact.graph.nodes)
    return any(getattr(node.meta.get("val"), "dtype", None) is torch.float16 for node in nodes)


def _longest(choices: Sequence[Sizes]) -> list[Sizes]:
    """For each symbol the sizes in which this symbol is largest."""
    names = list(choices[0]) if choices else []
    found = [max(choices, key=lambda sizes: sizes[name]) for name in names]
    return [sizes for number, sizes in enumerate(found) if sizes not in found[:number]]


def _empty_sizes(plan: Plan, general: Sizes) -> Iterator[Sizes]:
    """General sizes with each symbol at 0: a mean of nothing is not a number, and a sum of nothing is."""
    for symbol in plan.symbols:
        if symbol.takes(0):
            yield {**general, symbol.name: 0}


def _sizes(
    plan: Plan, traced: Sizes, numbers: Sequence[int], large: Sequence[int]
) -> Iterator[Sizes]:
    """The sizes of the trace and twice as large ones, further general and small ones, those
    around each number that one graph alone has, and the large ones.
    """
    general = {**choose_sizes(plan), **traced}
    yield general
    yield {name: 2 * size for name, size in general.items()}
    yield dict(choose_sizes(plan))
    yield dict(middle_sizes(plan, 0))
    for symbol in plan.symbols:
        near = ((n - 1, n, n + 1, 2 * n + 3) for n in (*numbers, 17))
        for size in (*chain(*near), *large):
            if symbol.takes(size) and size > 1:
                yield {**general, symbol.name: size}


def _difference_at(first: Graph, second: Graph, calls: Calls, sizes: Sizes) -> str:
    values = calls.values(sizes)
    for chosen in (values, extreme_values(calls, values, LARGE)):
        found = "" if chosen is None else _difference_of(first, second, chosen, sizes)
        if found:
            return found
    return ""


def _difference_of_extremes(first: Graph, second: Graph, calls: Calls, sizes: Sizes) -> str:
    """Where the graphs differ for rows of one number, or for numbers far from 0, or where numbers are infinite in one
    of them alone.
    """
    values = calls.values(sizes)
    for pattern in (*FLAT, FAR, *GREAT):
        chosen = extreme_values(calls, values, pattern)
        is_finite = pattern in GREAT  # large numbers are rounded in another way in another form
        if chosen is not None:
            found = _difference_of(first, second, chosen, sizes, as_finite=is_finite)
            if found:
                return found
    return ""


def _difference_of(
    first: Graph, second: Graph, values: Values, sizes: Sizes, *, as_finite: bool = False
) -> str:
    """Where the results for some values differ; ``as_finite`` compares which numbers are finite alone."""
    shared = {leaf.path for leaf in second.plan.inputs}
    inputs = [
        values[leaf.path] if leaf.path in shared else fill_of(leaf, sizes)
        for leaf in first.plan.inputs
    ]
    fewer = [values[leaf.path] for leaf in second.plan.inputs]
    results, refusals = list[list[Any]](), list[str]()
    for graph, given in ((first, inputs), (second, fewer)):
        try:
            results.append(graph(_copies(given)))
        except Exception as error:
            refusals.append(type(error).__name__)
    if len(refusals) == 2 and 0 in sizes.values():
        return ""
    if refusals:
        return f"a graph refuses {dict(sizes)}: {refusals[0]}"
    if as_finite:
        results = [[_finite(value) for value in result] for result in results]
    paths = list(first.outputs.structure.paths())
    found = agreement(paths, results[0], results[1])
    return "" if found.holds else f"the results differ at {dict(sizes)}"


def _finite(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.dtype.is_floating_point
    return torch.isfinite(value) if is_float else None


def _copies(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _name(node: torch.fx.Node) -> str:
    return operator_name(node.target)


def _numbers(node: torch.fx.Node) -> tuple[Any, ...]:
    return numbers_in(node.args, node.kwargs)


def _value_thresholds(graph: Graph, shared: set[Path]) -> Counter[Any]:
    """The thresholds on values that hang on inputs that both graphs have, each with its numbers."""
    names = {graph.names[path] for path in shared}
    given = dict(zip(input_names(graph.artifact), graph.names.values(), strict=True))
    hangs: set[torch.fx.Node] = set()
    found: Counter[Any] = Counter()
    for node in graph.artifact.graph.nodes:
        if node.op == "placeholder":
            if given.get(node.name) in names:
                hangs.add(node)
        elif any(other in hangs for other in _value_sources(node)):
            if isinstance(node.meta.get("val"), torch.Tensor):
                hangs.add(node)
            decided = [other for other in _deciding(node) if other in hangs]
            if _name(node) in THRESHOLDS and decided:
                found[_name(node), _numbers(node)] += 1
    return found


def _value_sources(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments whose values count: sizes, and tensors of which only the shape is read, do not."""
    is_like = _name(node).endswith("_like") or _name(node).startswith(("new_", "sym_"))
    return [] if is_like else list(node.all_input_nodes)


def _deciding(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a threshold compares: of a choice, its condition."""
    place = DECIDING.get(_name(node))
    if place is None:
        return list(node.all_input_nodes)
    return [one for one in node.args[place : place + 1] if isinstance(one, torch.fx.Node)]


def _is_small(graph: Graph) -> bool:
    """True for a graph of so few weights that a run of many rows costs little."""
    weights = graph.artifact.state_dict.values()
    return bool(sum(weight.numel() for weight in weights) <= _FEW_WEIGHTS)


def _numbers_of_one(first: Graph, second: Graph) -> list[int]:
    """The numbers on positions and sizes that one of the graphs has more often than the other."""
    left_out = {leaf.path.root for leaf in first.plan.inputs}
    left_out -= {leaf.path.root for leaf in second.plan.inputs}
    one, other = _numbers_on_sizes(first, left_out), _numbers_on_sizes(second, ())
    return sorted({*(one - other), *(other - one)})


def _numbers_on_sizes(graph: Graph, left_out: Collection[str]) -> Counter[int]:
    """The numbers of a graph on positions and sizes, in calls that leave out some arguments."""
    sizes, count = _sizes_of(graph, left_out), Counter(pieces_of(graph))
    for node in graph.artifact.graph.nodes:
        value = node.meta.get("val")
        if node.op != "call_function":
            continue
        if _name(node) in POSITIONS:
            count.update(whole_numbers(node.args, node.kwargs))
        elif (
            isinstance(value, torch.Tensor)
            and sizes.knows(node)
            and any(map(sizes.knows, node.all_input_nodes))
        ):
            count.update(size for n in _numbers(node) if (size := sizes_at(n)))
        if isinstance(value, torch.Tensor) and value.dtype in _LEAST_ROUNDED:
            is_counted = _name(node) in _COUNTING and sizes.knows(node) and _is_of_numbers(node)
            count.update([_LEAST_ROUNDED[value.dtype]] if is_counted else [])
    return count


def pieces_of(graph: Graph) -> frozenset[int]:
    """The sizes at which what a graph computes of sizes may begin another piece."""
    values = (node.meta.get("val") for node in graph.artifact.graph.nodes)
    expressions = {value.node.expr for value in values if isinstance(value, SYMBOLIC)}
    return frozenset().union(*map(numbers_of_pieces, expressions))


def _is_of_numbers(node: torch.fx.Node) -> bool:
    """False for an operator on answers, of which 0 and 1 are the only numbers."""
    tensors = [one.meta.get("val") for one in node.all_input_nodes]
    return not any(getattr(one, "dtype", None) is torch.bool for one in tensors)


def is_met(
    number: int, names: Collection[str], sizes: Sizes, holds: Callable[[Sizes], bool]
) -> bool:
    """True where the axes of some names, or the sum of some of them, can be about as long as a number, at
    sizes that ``holds`` admits; the others are those of ``sizes``.
    """
    for count in range(1, len(names) + 1):
        for first, *others in combinations(sorted(names), count):
            for total in (number - 1, number, number + 1, 2 * number + 3):
                shares = dict.fromkeys(others, total // count)
                if holds({**sizes, **shares, first: total - sum(shares.values())}):
                    return True
    return False


def _sizes_of(graph: Graph, left_out: Collection[str]) -> SizeProgram:
    """The part of a graph that depends on sizes alone, in calls that leave out some arguments."""
    leaves = [leaf for leaf in graph.plan.inputs if leaf.path.root in left_out and leaf.fill]
    fills = {leaf.path: partial(fill_of, leaf) for leaf in leaves}
    return SizeProgram(graph.artifact, graph.plan, graph.names, fills)


def symbols_of_positions(
    graph: Graph, number: int, left_out: Collection[str] = ()
) -> frozenset[str]:
    """Returns the symbols of the plan on which those positions depend that a graph compares with a number,
    in calls that leave out some arguments; all of them where such a position is computed from values.
    """
    sizes = _sizes_of(graph, left_out)
    found: set[str] = set()
    for node in sizes.nodes:
        is_compared = node.op == "call_function" and _name(node) in POSITIONS
        if not is_compared or number not in map(abs, _numbers(node)):
            continue
        if not sizes.knows(node):
            return frozenset(symbol_names(graph.plan))
        found.update(sizes.symbols_of([node]))
    return frozenset(found)


def are_lengths(
    graph: Graph, number: int, names: Sequence[str], base: Sizes, left_out: Collection[str]
) -> bool:
    """True where the positions that a graph compares with a number, in calls that leave out some
    arguments, are no larger than the sum of the sizes of some names, as far as that sum is below the
    number. False where they are computed from values.

    ``2 * arange(n) > 4096`` is decided at an n of 2049: such a number says nothing of lengths.
    """
    program = _sizes_of(graph, left_out)
    compared = [
        node
        for node in program.nodes
        if node.op == "call_function" and _name(node) in POSITIONS
        if number in map(abs, _numbers(node))
    ]
    operands = list(dict.fromkeys(one for node in compared for one in node.all_input_nodes))
    if not all(map(program.knows, operands)):
        return False
    own = set(symbol_names(graph.plan))
    for name in own.intersection(names):
        for share in _SHARES:
            sizes = {**base, name: max(base[name], (number - 2) // share)}
            length = sum(sizes[one] for one in names)
            if not all(_is_below(program, one, sizes, length) for one in operands):
                return False
    return True


def _is_below(program: SizeProgram, node: torch.fx.Node, sizes: Sizes, most: int) -> bool:
    """True for a node whose numbers at some sizes are at most ``most``."""
    values = program.values([node], sizes)
    if values is None:
        return False
    found = torch.as_tensor(values[0])
    return found.dtype is torch.bool or bool((found.abs() <= most).all())

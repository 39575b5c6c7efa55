"""Do two straight graphs compute the same, though they differ in form?

A model without a mask asks for causal attention by a flag; with a mask of ones it makes the same
mask of numbers. No operator-by-operator comparison finds them equal. Both graphs are traces, so no
Python decides any more: what they compute are functions of their inputs, and functions that agree
on random and on extreme values of many sizes are the same, but for thresholds that no value met.
So the test holds only where both graphs have the same thresholds:

- on values: a clamp, a comparison, a rounding whose arguments hang on the inputs that both have;
- on sizes: the numbers in comparisons, slices and arithmetic of positions (a window of 48). A number
  that one graph alone has is met by sizes around it, or the graphs count as different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import Plan
from ..infer.sizes import Sizes, choose_sizes, is_possible, middle_sizes
from ..materialise.arguments import fill_of, materialise
from ..materialise.extremes import LARGE, extreme_values
from ..observing.store import Sample
from ..pytrees.agree import agreement
from .graph import Graph

__all__ = ["identity_difference"]

#: operators that do another thing beyond a threshold
_THRESHOLDS = frozenset(
    {
        "clamp",
        "clamp_min",
        "clamp_max",
        "where",
        "gt",
        "lt",
        "ge",
        "le",
        "eq",
        "ne",
        "round",
        "floor",
    }
    | {"ceil", "trunc", "sign", "masked_fill", "hardtanh", "relu6", "minimum", "maximum", "isnan"}
    | {
        "threshold",
        "bucketize",
        "searchsorted",
        "nan_to_num",
        "isinf",
        "isfinite",
        "fmod",
        "remainder",
    }
)
#: operators whose numbers tell positions apart
_POSITIONS = frozenset(
    {"gt", "lt", "ge", "le", "eq", "ne", "sub", "rsub", "add", "clamp", "clamp_min", "clamp_max"}
    | {"slice", "narrow", "triu", "tril", "minimum", "maximum", "floor_divide", "remainder", "div"}
    | {"sym_max", "sym_min", "floordiv", "mod", "arange", "roll", "index_select", "select"}
)
#: a threshold on sizes is met by sizes up to this one
_GREATEST = 600


def identity_difference(
    first: Graph,
    second: Graph,
    samples: Sequence[Sample],
    holds: Callable[[Sizes], bool],
) -> str:
    """Where the second graph, which lacks some inputs, differs from the first one with their fills;
    empty where no difference was found at sizes that ``holds`` admits.
    """
    if first.outputs.structure != second.outputs.structure:
        return "the results have other parts"
    if first.outputs.dynamic != second.outputs.dynamic:
        return "the results have other constants"
    shared = {leaf.path for leaf in second.plan.inputs}
    if _value_thresholds(first, shared) != _value_thresholds(second, shared):
        return "one of them has a threshold on values that the other lacks"
    numbers = _numbers_of_one(first, second)
    if any(number > _GREATEST for number in numbers):
        return "one of them has a number on positions that is too large to be tried"
    n_tried = 0
    for sizes in _sizes(first.plan, dict(first.sizes), numbers):
        if not holds(sizes) or not is_possible(first.plan, sizes):
            continue
        difference = _difference_at(first, second, samples, sizes)
        if difference:
            return difference
        n_tried += 1
    return "" if n_tried >= 2 or not first.plan.symbols else "too few sizes could be tried"


def _sizes(plan: Plan, traced: Sizes, numbers: Sequence[int]) -> Iterator[Sizes]:
    """The sizes of the trace and twice as large ones, further general and small ones, and those
    around each number that one graph alone has.
    """
    general = {**choose_sizes(plan), **traced}
    yield general
    yield {name: 2 * size for name, size in general.items()}
    yield dict(choose_sizes(plan))
    yield dict(middle_sizes(plan, 0))
    for symbol in plan.symbols:
        for number in (*numbers, 17):
            for size in (number - 1, number, number + 1, 2 * number + 3):
                if symbol.takes(size) and size > 1:
                    yield {**general, symbol.name: size}


def _difference_at(
    first: Graph, second: Graph, samples: Sequence[Sample], sizes: Mapping[str, int]
) -> str:
    plan = first.plan
    shared = {leaf.path for leaf in second.plan.inputs}
    values = materialise(plan, sizes, samples)
    extreme = extreme_values(plan, values, samples, LARGE)
    for chosen in (values, extreme):
        if chosen is None:
            continue
        inputs = [
            chosen[leaf.path] if leaf.path in shared else fill_of(leaf, sizes)
            for leaf in plan.inputs
        ]
        fewer = [chosen[leaf.path] for leaf in second.plan.inputs]
        try:
            results = [graph(_copies(given)) for graph, given in ((first, inputs), (second, fewer))]
        except Exception as error:
            return f"a graph refuses {dict(sizes)}: {type(error).__name__}"
        paths = list(first.outputs.structure.paths())
        found = agreement(paths, results[0], results[1])
        if not found.holds:
            return f"the results differ at {dict(sizes)}"
    return ""


def _copies(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _name(node: torch.fx.Node) -> str:
    """The name of an operator without its overload, and without the mark of writing in place."""
    target = node.target
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet)).rpartition(".")[2].rstrip("_")


def _numbers(node: torch.fx.Node) -> tuple[Any, ...]:
    found: list[Any] = []

    def note(value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for item in value:
                note(item)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(value)

    note(list(node.args))
    note(list(node.kwargs.values()))
    return tuple(found)


def _value_thresholds(graph: Graph, shared: set[Path]) -> Counter[Any]:
    """The thresholds on values that hang on inputs that both graphs have, each with its numbers."""
    names = {graph.names[path] for path in shared}
    specs = graph.artifact.graph_signature.input_specs
    given = dict(zip(_user_inputs(specs), graph.names.values(), strict=True))
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
            if _name(node) in _THRESHOLDS and decided:
                found[_name(node), _numbers(node)] += 1
    return found


def _user_inputs(specs: Sequence[Any]) -> list[str]:
    return [spec.arg.name for spec in specs if spec.kind.name == "USER_INPUT"]


def _value_sources(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments whose values count: sizes, and tensors of which only the shape is read, do not."""
    is_like = _name(node).endswith("_like") or _name(node).startswith(("new_", "sym_"))
    return [] if is_like else list(node.all_input_nodes)


def _deciding(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments that a threshold compares: of a choice, its condition."""
    if _name(node) == "where":
        return [one for one in node.args[:1] if isinstance(one, torch.fx.Node)]
    if _name(node) == "masked_fill":
        return [one for one in node.args[1:2] if isinstance(one, torch.fx.Node)]
    return list(node.all_input_nodes)


def _numbers_of_one(first: Graph, second: Graph) -> list[int]:
    """The numbers on positions that one of the graphs has more often than the other."""
    counts = []
    for graph in (first, second):
        count: Counter[int] = Counter()
        for node in graph.artifact.graph.nodes:
            if node.op == "call_function" and _name(node) in _POSITIONS:
                count.update(abs(int(n)) for n in _numbers(node) if 2 <= abs(n) < 2**31)
        counts.append(count)
    one, other = counts
    return sorted({*(one - other), *(other - one)})

"""Widens the ranges of an exported program, only as far as trials prove.

torch starts every symbol at 2, and a symbol that guards tie to others inherits the sum of their bounds:
a mask of length past + sequence then starts at 4, and a prompt of one token is refused though the graph is
right for it. The lower bounds are set down to what the plan allows, and stay where the program then gives what
the model gives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._sympy.value_ranges import ValueRanges

from ..core.expression import Expression
from ..core.plan import Plan
from ..infer.sizes import Sizes, is_possible
from ..materialise.arguments import close_arguments, materialise
from ..observe.store import Sample, copy_leaves
from ..probe.subject import Subject
from ..pytrees.agree import agreement
from .graph import Graph
from .obtained import read_obtained, symbols_of
from .torch_ import runner_of

__all__ = ["lower_bounds", "set_lower_bounds", "widened"]

logger = logging.getLogger(__name__)


def widened(graph: Graph, samples: Sequence[Sample], subject: Subject) -> Graph:
    """The graph with lower bounds as low as the plan allows, where every trial there is exact."""
    plan, program = graph.plan, graph.artifact
    _raise_to_plan(graph)
    before = dict(program.range_constraints)
    targets = lower_bounds(graph)
    kept = targets
    for attempt in _attempts(targets) or [{}]:
        set_lower_bounds(program, before, attempt)
        run = runner_of(program, tuple(graph.names.values()))
        if _holds(replace(graph, run=run), _small_sizes(plan, attempt, program, graph), samples, subject):
            kept = attempt
            break
    else:
        set_lower_bounds(program, before, {})
        kept, run = {}, runner_of(program, tuple(graph.names.values()))
    obtained, ranges = read_obtained(program, plan, graph.names)
    refused = [str(symbol) for symbol in targets if symbol not in kept]
    notes = graph.notes + ((f"lower bounds kept for {len(refused)} symbols: trials there differ",) if refused else ())
    return replace(graph, run=run, obtained=obtained, ranges=ranges, notes=notes)


def _raise_to_plan(graph: Graph) -> None:
    """No symbol starts below what the plan allows: nothing was tried there."""
    program = graph.artifact
    lows = {symbol.name: symbol.low for symbol in graph.plan.symbols}
    for symbol, text in symbols_of(program, graph.plan, graph.names).items():
        limits = program.range_constraints.get(symbol)
        low = Expression.parse(text).evaluate(lows)
        if limits is not None and limits.lower < low:
            program.range_constraints[symbol] = ValueRanges(low, limits.upper)


def lower_bounds(graph: Graph) -> dict[Any, int]:
    """Per symbol of torch the least size that the plan allows, where it is below the program's."""
    plan, program = graph.plan, graph.artifact
    lows = {symbol.name: symbol.low for symbol in plan.symbols}
    found = {}
    for symbol, text in symbols_of(program, plan, graph.names).items():
        limits = program.range_constraints.get(symbol)
        low = max(0, Expression.parse(text).evaluate(lows))
        if limits is not None and limits.lower > low:
            found[symbol] = low
    return found


def _attempts(targets: Mapping[Any, int]) -> list[dict[Any, int]]:
    """All bounds at once, then without zeros, then all but one, then one alone."""
    everything = dict(targets)
    without_zero = {symbol: max(low, 1) for symbol, low in targets.items()}
    fewer = [{s: low for s, low in targets.items() if s is not left} for left in targets]
    single = [{symbol: low} for symbol, low in targets.items()] if len(targets) > 2 else []
    attempts: list[dict[Any, int]] = []
    for attempt in (everything, without_zero, *fewer, *single):
        if attempt and attempt not in attempts:
            attempts.append(attempt)
    return attempts


def set_lower_bounds(program: torch.export.ExportedProgram, before: Mapping[Any, Any], lows: Mapping[Any, int]) -> None:
    """Gives the program the ranges ``before``, with other lower bounds for some symbols, and for sums of them."""
    lowest = {key: lows.get(key, limits.lower) for key, limits in before.items() if key.is_Symbol}
    for key, limits in before.items():
        low = lowest[key] if key.is_Symbol else min(limits.lower, key.subs(lowest))
        program.range_constraints[key] = ValueRanges(low, limits.upper)


def _small_sizes(plan: Plan, lows: Mapping[Any, int], program: Any, graph: Graph) -> list[Sizes]:
    """Every widened symbol at its least size and at one, alone and together."""
    texts = {text: lows[s] for s, text in symbols_of(program, plan, graph.names).items() if s in lows}
    least = {s.name: texts.get(s.name, 2) for s in plan.symbols}
    ones = {name: max(size, 1) for name, size in least.items()}
    middle = {s.name: graph.sizes.get(s.name, 3) for s in plan.symbols}
    trials = [least, ones]
    for name in least:
        trials += [{**middle, name: least[name]}, {**middle, name: ones[name]}, {**ones, name: middle[name]}]
    unique: list[Sizes] = []
    for sizes in trials:
        if sizes not in unique and is_possible(plan, sizes):
            unique.append(sizes)
    return unique


def _holds(graph: Graph, trials: Sequence[Sizes], samples: Sequence[Sample], subject: Subject) -> bool:
    """True when every trial that the model itself accepts is exact."""
    ran = 0
    for sizes in trials:
        values = materialise(graph.plan, sizes, samples)
        try:
            expected = subject.try_out(close_arguments(graph.plan, values))
        except Exception as error:
            logger.debug("%s is no lawful size for the model: %s", sizes, type(error).__name__)
            continue
        try:
            got = graph(copy_leaves(tuple(values[leaf.path] for leaf in graph.plan.inputs)))
        except Exception as error:
            logger.debug("%s is refused by the program: %s", sizes, error)
            return False
        found = agreement(expected.structure.paths(), expected.leaves, got)
        if not found.holds:
            logger.debug("%s differs: %s", sizes, found.note)
            return False
        ran += 1
    return ran > 0

"""Widens the ranges of an exported program, only as far as trials prove.

torch starts every symbol at 2, and a symbol that guards tie to others inherits the sum of their bounds:
a mask of length past + sequence then starts at 4, and a prompt of one token is refused though the graph is
right for it. The lower bounds are set down to what the plan allows, and stay where the program then gives what
the model gives. So it is at the other end where one size is what another one leaves: of ``40 - n`` torch wants 2,
and ends ``n`` at 38.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch.utils._sympy.value_ranges import ValueRanges

from ..core.expression import Expression
from ..core.plan import Plan
from ..infer.sizes import Sizes, is_possible
from ..lab.lab import Lab as Subject
from ..materialise.arguments import close_arguments, materialise
from ..observe.store import Sample, copy_leaves
from ..pytrees.agree import agreement
from .graph import Graph
from .obtained import read_obtained, symbols_of
from .torch_run import runner_of

__all__ = ["lower_bounds", "set_bounds", "upper_bounds", "widened"]

logger = logging.getLogger(__name__)
#: draws of values at the first few choices of sizes, where as many calls were kept
_DRAWS, _THOROUGH = 3, 2


def widened(graph: Graph, samples: Sequence[Sample], subject: Subject) -> Graph:
    """The graph with bounds as wide as the plan allows, where every trial there is exact."""
    plan, program = graph.plan, graph.artifact
    _raise_to_plan(graph)
    before = dict(program.range_constraints)
    targets, highs = lower_bounds(graph), upper_bounds(graph)
    ends = _greatest_sizes(graph, highs)
    for attempt, greatest in product(_attempts(targets) or [{}], [highs, {}] if highs else [{}]):
        set_bounds(program, before, attempt, greatest)
        run = runner_of(program, tuple(graph.names.values()))
        trial, small = replace(graph, run=run), _small_sizes(plan, program, graph)
        ran = _exact(trial, small, samples, subject)
        if ran and (not greatest or _exact(trial, ends, samples, subject)):
            kept, notes = _proven(graph, attempt, before, ran), _retold(graph, before, greatest)
            set_bounds(program, before, kept, greatest)
            run = runner_of(program, tuple(graph.names.values())) if kept != attempt else run
            break
    else:
        _raise_until_exact(graph, before, samples, subject)
        kept, run, notes = {}, runner_of(program, tuple(graph.names.values())), graph.notes
    obtained, ranges = read_obtained(program, plan, graph.names)
    refused = [str(symbol) for symbol in targets if symbol not in kept]
    notes += (f"lower bounds kept for {len(refused)} symbols: trials there differ",) if refused else ()
    return replace(graph, run=run, obtained=obtained, ranges=ranges, notes=notes)


def _raise_until_exact(graph: Graph, before: Mapping[Any, Any], samples: Sequence[Sample], subject: Subject) -> None:
    """Gives the program the ranges ``before``; where it differs from the model there, some symbols begin at 2.

    torch takes it for granted that no size of its example may become 0 or 1. It does not always say so, and checks no
    bound of 2 at run time: a guard does.
    """
    program, names = graph.artifact, tuple(graph.names.values())
    texts = symbols_of(program, graph.plan, graph.names)
    small = [symbol for symbol in texts if before[symbol].lower < 2]
    ways: list[dict[Any, int]] = [{}, *({symbol: 2} for symbol in small), dict.fromkeys(small, 2)]
    for lows in ways:
        set_bounds(program, before, lows)
        trial = replace(graph, run=runner_of(program, names))
        if _exact(trial, _small_sizes(graph.plan, program, graph), samples, subject):
            break
    program._guards_code = [*program._guards_code, *(_at_least_two(graph, texts[symbol]) for symbol in lows)]


def _at_least_two(graph: Graph, text: str) -> str:
    """The guard that an expression of the plan is no 0 and no 1, as torch writes it."""
    axes = ((graph.names[leaf.path], axis.dim) for leaf in graph.plan.inputs for axis, e in leaf.axes if str(e) == text)
    name, dim = next(axes)
    return f"L['{name}'] >= 2" if dim is None else f"L['{name}'].size()[{dim}] >= 2"


def _retold(graph: Graph, before: Mapping[Any, Any], highs: Mapping[Any, int]) -> tuple[str, ...]:
    """The notes of a graph, with the greatest sizes as they are now."""
    names, notes = symbols_of(graph.artifact, graph.plan, graph.names), graph.notes
    for symbol, high in highs.items():
        text = f"{names[symbol]} is at most "
        notes = tuple(note.replace(f"{text}{before[symbol].upper}", f"{text}{high}") for note in notes)
    return notes


def _raise_to_plan(graph: Graph) -> None:
    """No symbol starts below what the plan allows: nothing was tried there."""
    program = graph.artifact
    for symbol, text in symbols_of(program, graph.plan, graph.names).items():
        limits = program.range_constraints.get(symbol)
        low = _least(graph.plan, Expression.parse(text))
        if limits is not None and limits.lower < low:
            program.range_constraints[symbol] = ValueRanges(low, limits.upper)


def _least(plan: Plan, expression: Expression) -> int:
    """The least size of an expression; one that falls as a symbol grows leaves 1."""
    lows = {symbol.name: symbol.low for symbol in plan.symbols}
    least = expression.evaluate(lows)
    falls = any(expression.evaluate({**lows, name: lows[name] + 1}) < least for name in expression.symbols)
    return 1 if falls else least


def lower_bounds(graph: Graph) -> dict[Any, int]:
    """Per symbol of torch the least size that the plan allows, where it is below the program's."""
    plan, program = graph.plan, graph.artifact
    found = {}
    for symbol, text in symbols_of(program, plan, graph.names).items():
        limits = program.range_constraints.get(symbol)
        low = max(0, _least(plan, Expression.parse(text)))
        if limits is not None and limits.lower > low:
            found[symbol] = low
    return found


def upper_bounds(graph: Graph) -> dict[Any, int]:
    """Per symbol of torch the greatest size that leaves 1 to what falls as it grows, where the program ends before."""
    plan, program = graph.plan, graph.artifact
    changing = [e for leaf in plan.inputs for _, e in leaf.axes if e.symbols]
    found = {}
    for symbol, name in symbols_of(program, plan, graph.names).items():
        limits = program.range_constraints.get(symbol)
        if limits is None or not limits.upper.is_Integer or name not in graph.sizes:
            continue
        most, known = int(limits.upper), plan.symbol(name)
        for size in range(most + 1, most + 3):
            left = [e.evaluate({**graph.sizes, name: size}) for e in changing if _falls(e, name, most, graph.sizes)]
            if left and min(left) >= 1 and known.allows(size):
                found[symbol] = size
    return found


def _falls(expression: Expression, name: str, size: int, sizes: Mapping[str, int]) -> bool:
    if name not in expression.symbols:
        return False
    return expression.evaluate({**sizes, name: size + 1}) < expression.evaluate({**sizes, name: size})


def _greatest_sizes(graph: Graph, highs: Mapping[Any, int]) -> list[Sizes]:
    """Each widened symbol at its greatest size, and every size between that and what the program ended at."""
    names = symbols_of(graph.artifact, graph.plan, graph.names)
    ends = {s: range(int(graph.artifact.range_constraints[s].upper) + 1, high + 1) for s, high in highs.items()}
    return [{**graph.sizes, names[symbol]: size} for symbol, sizes in ends.items() for size in reversed(sizes)]


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


def set_bounds(
    program: torch.export.ExportedProgram,
    before: Mapping[Any, Any],
    lows: Mapping[Any, int],
    highs: Mapping[Any, int] | None = None,
) -> None:
    """Gives the program the ranges ``before``, with other bounds for some symbols, and for expressions of them."""
    symbols = {key: limits for key, limits in before.items() if key.is_Symbol}
    lowest = {key: lows.get(key, limits.lower) for key, limits in symbols.items()}
    highest = {key: (highs or {}).get(key, limits.upper) for key, limits in symbols.items()}
    for key, limits in before.items():
        if key.is_Symbol:
            program.range_constraints[key] = ValueRanges(lowest[key], highest[key])
            continue
        ends = [key.subs(lowest), *([key.subs(highest)] if highs else [])]
        upper = max(limits.upper, *ends) if highs else limits.upper
        program.range_constraints[key] = ValueRanges(min(limits.lower, *ends), upper)


def _small_sizes(plan: Plan, program: Any, graph: Graph) -> list[Sizes]:
    """Every symbol at its least size and at one, alone and together."""
    limits = program.range_constraints
    texts = {text: int(limits[s].lower) for s, text in symbols_of(program, plan, graph.names).items() if s in limits}
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


def _exact(graph: Graph, trials: Sequence[Sizes], samples: Sequence[Sample], subject: Subject) -> list[Sizes]:
    """The trials that the model itself accepts and the graph's region has; none when one of them is not exact."""
    ran: list[Sizes] = []
    outside = _refusals_of_tracer(graph.artifact)
    for sizes, ordered in _draws(trials, samples):
        values = materialise(graph.plan, sizes, ordered)
        try:
            expected = subject.try_out(close_arguments(graph.plan, values))
        except Exception as error:
            logger.debug("%s is no lawful size for the model: %s", sizes, type(error).__name__)
            continue
        try:
            got = graph(copy_leaves(tuple(values[leaf.path] for leaf in graph.plan.inputs)))
        except Exception as error:
            logger.debug("%s is refused by the program: %s", sizes, error)
            if str(error) in outside:
                continue
            return []
        found = agreement(expected.structure.paths(), expected.leaves, got)
        if not found.holds:
            logger.debug("%s differs: %s", sizes, found.note)
            return []
        ran.append(sizes)
    return ran


def _draws(trials: Sequence[Sizes], samples: Sequence[Sample]) -> Iterator[tuple[Sizes, Sequence[Sample]]]:
    """The trials, each grown from another call first, and the least sizes from several.

    One draw of values may not tell two formulas apart.
    """
    turn = 0
    for number, sizes in enumerate(trials):
        for _ in range(min(len(samples), _DRAWS) if number < _THOROUGH else 1):
            first = turn % max(len(samples), 1)
            yield sizes, (*samples[first:], *samples[:first])
            turn += 1


def _refusals_of_tracer(program: torch.export.ExportedProgram) -> frozenset[str]:
    """What the program says when a guard of the trace fails: such a call belongs to another graph."""
    texts = [re.sub(r"L\['(\w+)'\]", r"\1", str(text)) for text in program._guards_code]
    return frozenset(f"Guard failed: {ast.unparse(ast.parse(text, mode='eval'))}" for text in texts)


def _proven(graph: Graph, lows: Mapping[Any, int], before: Mapping[Any, Any], ran: Sequence[Sizes]) -> dict[Any, int]:
    """The bounds as low as some trial went: a region may begin above what the plan allows."""
    texts = symbols_of(graph.artifact, graph.plan, graph.names)
    least = {s: min(Expression.parse(texts[s]).evaluate(sizes) for sizes in ran) for s in lows}
    return {s: max(low, least[s]) for s, low in lows.items() if least[s] < before[s].lower}

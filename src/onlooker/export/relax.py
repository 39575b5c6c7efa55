"""Drops guards that trials prove needless.

torch keeps every comparison that the trace met as a guard. Often the graph is right on both sides: a pad of 0 rows is
the same graph as a pad of 2, and `pad > 0` stays. Guards that fail together on some sizes are one group; a group may
fail, as a whole, where the program without it gives what the model gives, on several sizes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from ..core.path import Path
from ..core.plan import Symbol
from ..core.structure import Tree
from ..infer.sizes import Sizes, trial_sizes
from ..materialise.arguments import close_arguments, materialise
from ..observe.store import Sample, copy_leaves
from ..probe.subject import Subject
from ..pytrees.agree import agreement
from .graph import Graph
from .torch_ import runner_of
from .widen import lower_bounds, set_lower_bounds

__all__ = ["relaxed"]

logger = logging.getLogger(__name__)
#: distinct sizes on which a program has to be exact without a group of guards
_LEAST_TRIALS = 2
_MOST_SIZES = 48


@dataclass(frozen=True, slots=True)
class _Trial:
    """Sizes that the model takes, the guards that they violate, and what the model gives."""

    sizes: Sizes
    violated: frozenset[int]
    inputs: tuple[Any, ...]
    expected: Tree[Any]


def relaxed(graph: Graph, samples: Sequence[Sample], subject: Subject) -> Graph:
    """The graph without the guards that trials prove needless; the graph itself when there are none."""
    program, names = graph.artifact, tuple(graph.names.values())
    guards = [str(text) for text in program._guards_code]
    if not guards:
        return graph
    trials = _trials(graph, guards, samples, subject)
    if not trials:
        return graph
    with _without_guards(graph):
        run = replace(graph, run=runner_of(program, names))
        groups = _groups(trials, run)
    if not groups:
        return graph
    free = frozenset[int]().union(*groups)
    kept = [text for i, text in enumerate(guards) if i not in free]
    program._guards_code = [*kept, *(_together([guards[i] for i in sorted(group)]) for group in groups)]
    note = f"{len(free)} guards of torch were dropped: the program is exact on both sides of them"
    return replace(graph, run=runner_of(program, names), notes=(*graph.notes, note))


def _together(group: Sequence[str]) -> str:
    """All of a group hold, or none does: only that was tried. A guard alone may fail."""
    if len(group) == 1:
        return "True"
    holds = " and ".join(f"({text})" for text in group)
    fails = " and ".join(f"(not ({text}))" for text in group)
    return f"(({holds}) or ({fails}))"


@contextlib.contextmanager
def _without_guards(graph: Graph) -> Iterator[None]:
    """The program without guards, and with ranges as low as the plan allows."""
    program = graph.artifact
    guards, ranges = program._guards_code, dict(program.range_constraints)
    program._guards_code = []
    set_lower_bounds(program, ranges, lower_bounds(graph))
    try:
        yield
    finally:
        program._guards_code = guards
        program.range_constraints.update(ranges)


def _trials(graph: Graph, guards: Sequence[str], samples: Sequence[Sample], subject: Subject) -> list[_Trial]:
    """The trials that violate a guard, though the model takes them; the fewest violations first."""
    codes = [compile(text.strip(), "<guard of torch>", "eval") for text in guards]
    found = []
    for sizes in islice(_sizes_around(graph), _MOST_SIZES):
        values = materialise(graph.plan, sizes, samples)
        violated = _violated(codes, graph.names, values)
        if not violated:
            continue
        try:
            expected = subject.try_out(close_arguments(graph.plan, values))
        except Exception as error:
            logger.debug("%s is no lawful size for the model: %s", sizes, type(error).__name__)
            continue
        inputs = tuple(values[leaf.path] for leaf in graph.plan.inputs)
        found.append(_Trial(sizes, violated, inputs, expected))
    return sorted(found, key=lambda trial: (len(trial.violated), sorted(trial.violated)))


def _violated(codes: Sequence[Any], names: Mapping[Path, str], values: Mapping[Path, Any]) -> frozenset[int]:
    """The guards that do not hold; torch itself evaluates these texts, which it has written, in this way."""
    scope = {**SYMPY_INTERP, "L": {name: values[path] for path, name in names.items()}}
    return frozenset(i for i, code in enumerate(codes) if not _holds(code, scope))


def _holds(code: Any, scope: dict[str, Any]) -> bool:
    try:
        return bool(eval(code, scope))
    except ArithmeticError:  # a guard that divides by a size, for a size of 0
        return False


def _sizes_around(graph: Graph) -> Iterator[Sizes]:
    """Sizes to try: small and large ones, and the observed ones and their multiples in all combinations."""
    plan = graph.plan
    seen: list[Sizes] = [dict(graph.sizes)]
    pools = [tuple(enumerate(_pool(symbol, graph.sizes))) for symbol in plan.symbols]
    mixed = sorted(product(*pools), key=lambda choice: sum(position for position, _ in choice))
    names = [symbol.name for symbol in plan.symbols]
    around = [{n: size for n, (_, size) in zip(names, choice, strict=True)} for choice in mixed[:_MOST_SIZES]]
    for sizes in (*around, *(sizes for _, sizes in trial_sizes(plan, seen))):
        if sizes not in seen:
            seen.append(sizes)
            yield sizes


def _pool(symbol: Symbol, used: Mapping[str, int]) -> tuple[int, ...]:
    """The size of the export, the least ones, the observed ones, and twice as much: the likeliest first."""
    least = (symbol.low, symbol.low + symbol.step) if symbol.low > 1 else ()
    seen = (used.get(symbol.name, 2), *least, *symbol.observed[:3])
    wanted = dict.fromkeys((*seen, *(2 * size for size in seen)))
    return tuple(size for size in wanted if size >= symbol.low and (symbol.high is None or size <= symbol.high))


def _groups(trials: Sequence[_Trial], run: Graph) -> list[frozenset[int]]:
    """The groups that may fail: without them the program is exact wherever they alone are violated."""
    groups: list[frozenset[int]] = []
    results: dict[int, bool] = {}
    for trial in trials:
        free = frozenset[int]().union(*groups)
        group = trial.violated - free
        if not group or any(other & trial.violated not in (frozenset(), other) for other in groups):
            continue
        touched = [i for i, t in enumerate(trials) if t.violated - free == group]
        if len(touched) < _LEAST_TRIALS:
            continue
        for i in touched:
            results.setdefault(i, _is_exact(trials[i], run))
        if all(results[i] for i in touched):
            groups.append(group)
    return groups


def _is_exact(trial: _Trial, run: Graph) -> bool:
    try:
        got = run(copy_leaves(trial.inputs))
    except Exception as error:
        logger.debug("%s is refused by the graph itself: %s", trial.sizes, type(error).__name__)
        return False
    paths = trial.expected.structure.paths()
    return agreement(paths, trial.expected.leaves, got).holds

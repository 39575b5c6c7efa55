"""Drops guards that trials prove needless.

torch keeps every comparison that the trace met as a guard. Often the graph is right on both sides: a pad of 0 rows is
the same graph as a pad of 2, and `pad > 0` stays. Guards that fail together on some sizes are one group; a group may
fail, as a whole, where the program without it gives what the model gives, on several sizes, or for several values
where only one choice of sizes violates it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch

from ..core.path import Path
from ..core.plan import Symbol
from ..core.structure import Tree
from ..infer.sizes import Sizes, grain, is_possible, trial_sizes
from ..lab.lab import Lab as Subject
from ..materialise.arguments import close_arguments, materialise
from ..observe.store import Sample, copy_leaves
from ..pytrees.agree import agreement
from ..pytrees.numbers import altered
from .baked import sized, violated
from .graph import Graph
from .torch_run import runner_of, runner_on_demand
from .widen import lower_bounds, set_bounds, upper_bounds

__all__ = ["relaxed"]

logger = logging.getLogger(__name__)
#: trials, of distinct sizes where there are some, on which a program has to be exact without a group of guards
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
    maker = _Maker(graph, guards, samples, subject)
    trials = maker.around()
    if not trials:
        return graph
    with _without_guards(graph):
        run = replace(graph, run=runner_of(program, names))
        groups = _groups(trials, maker, run)
    if not groups:
        return graph
    free = frozenset[int]().union(*groups)
    kept = [text for i, text in enumerate(guards) if i not in free]
    program._guards_code = [*kept, *(_together([guards[i] for i in sorted(group)]) for group in groups)]
    note = f"{len(free)} guards of torch were dropped: the program is exact on both sides of them"
    return replace(graph, run=runner_on_demand(program, names), notes=(*graph.notes, note))


def _together(group: Sequence[str]) -> str:
    """All of a group hold, or none does: only that was tried. A guard alone may fail."""
    if len(group) == 1:
        return "True"
    holds = " and ".join(f"({text})" for text in group)
    fails = " and ".join(f"(not ({text}))" for text in group)
    return f"(({holds}) or ({fails}))"


@contextlib.contextmanager
def _without_guards(graph: Graph) -> Iterator[None]:
    """The program without guards, and with ranges as wide as the plan allows."""
    program = graph.artifact
    guards, ranges = program._guards_code, dict(program.range_constraints)
    program._guards_code = []
    set_bounds(program, ranges, lower_bounds(graph), upper_bounds(graph))
    try:
        yield
    finally:
        program._guards_code = guards
        program.range_constraints.update(ranges)


class _Maker:
    """Makes trials: sizes at which a guard does not hold, and what the model gives there."""

    def __init__(self, graph: Graph, guards: Sequence[str], samples: Sequence[Sample], subject: Subject) -> None:
        self.graph, self.samples, self.subject = graph, samples, subject
        self.codes = [compile(text.strip(), "<guard of torch>", "eval") for text in guards]

    def around(self) -> list[_Trial]:
        """The trials that violate a guard, though the model takes them; the fewest violations first."""
        found = list(islice(filter(None, map(self.at, _sizes_around(self.graph))), _MOST_SIZES))
        return sorted(found, key=lambda trial: (len(trial.violated), sorted(trial.violated)))

    def near(self, trial: _Trial) -> list[_Trial]:
        """Trials at sizes next to those of another one, each symbol for itself."""
        symbols = self.graph.plan.symbols
        moves = ((s, trial.sizes[s.name] + way * s.step) for s in symbols for way in (1, -1, 2, trial.sizes[s.name]))
        sizes = ({**trial.sizes, symbol.name: size} for symbol, size in moves if symbol.allows(size))
        return [found for found in map(self.at, sizes) if found is not None]

    def at(self, sizes: Sizes) -> _Trial | None:
        """The trial at some sizes, None where all guards hold, or the model refuses."""
        plan = self.graph.plan
        if not is_possible(plan, sizes):
            return None
        failing = violated(self.codes, {self.graph.names[x.path]: sized(x, sizes) for x in plan.inputs})
        return self._tried(sizes, failing, materialise(plan, sizes, self.samples)) if failing else None

    def redrawn(self, trial: _Trial) -> list[_Trial]:
        """Trials at the same sizes with other values: grown from each kept call, and changed ones."""
        plan = self.graph.plan
        draws = [materialise(plan, trial.sizes, [sample, *self.samples]) for sample in self.samples]
        changed = {x.path: _changed(draws[0][x.path]) for x in plan.inputs if x.is_tensor}
        tried = (self._tried(trial.sizes, trial.violated, values) for values in (*draws, draws[0] | changed))
        return [found for found in tried if found is not None]

    def _tried(self, sizes: Sizes, violated: frozenset[int], values: dict[Path, Any]) -> _Trial | None:
        try:
            expected = self.subject.try_out(close_arguments(self.graph.plan, values))
        except Exception as error:
            logger.debug("%s is no lawful size for the model: %s", sizes, type(error).__name__)
            return None
        return _Trial(sizes, violated, tuple(values[leaf.path] for leaf in self.graph.plan.inputs), expected)


def _changed(value: torch.Tensor) -> torch.Tensor:
    """Other values of the same kind."""
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return altered(value)
    return value.flip(-1) if value.ndim else value


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
    """The size of the export, even ones that were seen, twice as much, the least ones, others: the likeliest first."""
    even = [size for size in symbol.observed if size % grain(symbol) == 0]
    likely = (used.get(symbol.name, 2), *even[:2])
    least = (symbol.low, symbol.low + symbol.step) if symbol.low > 1 else ()
    wanted = dict.fromkeys((*likely, *(2 * size for size in likely), *least, *symbol.observed[:3]))
    return tuple(size for size in wanted if size >= symbol.low and (symbol.high is None or size <= symbol.high))


def _groups(trials: Sequence[_Trial], maker: _Maker, run: Graph) -> list[frozenset[int]]:
    """The groups that may fail: without them the program is exact wherever they alone are violated."""
    groups: list[frozenset[int]] = []
    known = list(trials)
    for trial in trials:
        free = frozenset[int]().union(*groups)
        group = trial.violated - free
        if not group or any(other & trial.violated not in (frozenset(), other) for other in groups):
            continue
        touched = [t for t in known if t.violated - free == group]
        if len(touched) < _LEAST_TRIALS:
            further = _further(trial, maker, group, free)
            known += further
            touched += further
        if len(touched) >= _LEAST_TRIALS and all(_is_exact(t, run) for t in touched):
            groups.append(group)
    return groups


def _further(trial: _Trial, maker: _Maker, group: frozenset[int], free: frozenset[int]) -> list[_Trial]:
    """More trials that violate a group alone, for one that has a single one: near it, else with other values.

    A guard that no size near to it violates says something of that size alone, as ``batch != 1`` does.
    """
    near = [t for t in maker.near(trial) if t.violated - free == group and t.sizes != trial.sizes]
    return near or maker.redrawn(trial)


def _is_exact(trial: _Trial, run: Graph) -> bool:
    try:
        got = run(copy_leaves(trial.inputs))
    except Exception as error:
        logger.debug("%s is refused by the graph itself: %s", trial.sizes, type(error).__name__)
        return False
    paths = trial.expected.structure.paths()
    return agreement(paths, trial.expected.leaves, got).holds

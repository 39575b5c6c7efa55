"""Calls to try on a program: every observed one with values, and sizes that neither calls nor
export had.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain, cycle, filterfalse, islice, zip_longest
from typing import Any

import torch

from ..contract.boundaries import between_bounds, boundary_sizes
from ..core.call import Arguments, Values
from ..core.contract import Contract, Way
from ..core.marks import FINITE, MEMORY, NUMBERS, contiguous_in
from ..core.plan import LeafPlan, Plan, Symbol, symbol_names
from ..core.precision import is_calibrated
from ..core.sizes.expression import Sizes
from ..core.structure import Result
from ..core.verdict import Check, Focus, Outcome, Scores
from ..infer.sizes import (
    are_in_range,
    is_general,
    least_sizes,
    middle_sizes,
    size_label,
    trial_sizes,
)
from ..materialise.arguments import Calls
from ..materialise.extremes import BOUNDLESS, EXTREME, INFINITE, LARGE, extreme_values
from ..materialise.floats import float_choices
from ..materialise.other_values import in_other_layout, numbers_beside, redrawn
from ..materialise.padding import with_padding
from ..observing.store import Sample
from ..proofs.operators import FATAL_IF_NOT_FINITE
from ..pytrees.comparisons.agree import Agreement
from ..pytrees.numbers import as_numbers
from ..torch_internals.graph_modules import nodes_of
from ..trace.graph import Graph

__all__ = [
    "Trial",
    "chosen_trials",
    "infinite_trials",
    "observed_trials",
    "symbol_sizes",
    "unseen_trials",
]

#: so many sizes of a region are tried with other padding, and without what may be left out
_THOROUGH = 3
#: the values of so many sizes are held, which trials of several kinds share
_HELD = 8
#: a size is large beside a small one that is so many times less
_LARGE = 8
#: how many steps from the least size of a symbol a small size is looked for, and how many small sizes
#: seeds choose from
_FAR, _SHIFTS = 256, 6
#: what stands before all other trials
_FIRST = {Focus.OBSERVED: 0, Focus.GIVEN: 1}
#: how often in a row nothing new is drawn before the drawing ends
_MOST_FRUITLESS = 100


@dataclass(frozen=True, slots=True)
class Trial:
    """Arguments by name, for the model and for a program alike.

    ``is_promised`` is False for sizes outside the contract of the graph: a program may refuse them.
    ``seen`` is what the model gave for the call while it was watched. ``is_asked`` is True for sizes
    that the user named: a trial of these that cannot be made has failed, and ``problem`` says why.
    """

    kind: str
    label: str
    arguments: Arguments
    sizes: tuple[tuple[str, int], ...] = ()
    plan: Plan | None = None
    is_promised: bool = True
    focus: Focus = Focus.SIZES
    seen: Result | None = None
    is_asked: bool = False
    problem: str = ""

    def compared(
        self, found: Agreement, scores: Scores | None = None, tolerance: float | None = None
    ) -> Check:
        """The check of a result that was compared with the model's."""
        outcome = Outcome.EXACT if found.holds else Outcome.DIFFERENT
        checked = self.kind, self.label, outcome, self.sizes
        return Check(*checked, found.difference, found.note, self.focus, scores, tolerance)

    def failed(self, note: str, outcome: Outcome = Outcome.FAILED) -> Check:
        """The check of a call that gave no result."""
        return Check(self.kind, self.label, outcome, self.sizes, math.inf, note, self.focus)


def chosen_trials(
    graphs: Sequence[Graph],
    samples: Sequence[Sample],
    kept: Sequence[Sample],
    given: Sequence[Sizes] = (),
    *,
    seed: int = 0,
    most: int | None = None,
    weights: str = "",
) -> Iterator[Trial]:
    """The trials of a program: the observed calls, the given sizes, then unseen calls, one of every
    kind and of every graph before the second of any.

    ``kept`` are the ``samples`` as the graphs see them. Of ``most`` trials there are some of every
    kind and of every graph; more than the usual ones are drawn by the ``seed``. ``weights`` is the argument
    that has weights.
    """
    asked = _of_given(graphs, kept, given, seed)
    unseen = _in_turn([unseen_trials(graph, kept, seed=seed, weights=weights) for graph in graphs])
    if most is None:
        return chain(observed_trials(samples), asked, unseen)
    some = [*islice(_in_turn([observed_trials(samples), asked, unseen]), most)]
    some.sort(key=lambda trial: _FIRST.get(trial.focus, len(_FIRST)))
    return chain(some, islice(_drawn(graphs, kept, seed, weights), most - len(some)))


def _in_turn(streams: Iterable[Iterator[Trial]]) -> Iterator[Trial]:
    """The first trial of each, then the second of each and so on."""
    rows = zip_longest(*streams)
    return (trial for row in rows for trial in row if trial is not None)


def observed_trials(samples: Sequence[Sample]) -> Iterator[Trial]:
    """Every call whose values were kept, as it was."""
    for sample in samples:
        yield Trial(
            "observed",
            f"call {sample.call.index}",
            sample.arguments(),
            focus=Focus.OBSERVED,
            seen=None if sample.altered else sample.outputs,
        )


def unseen_trials(
    graph: Graph, samples: Sequence[Sample], *, seed: int = 0, weights: str = ""
) -> Iterator[Trial]:
    """The calls of one graph that nobody made, one of every kind before the second of any. Every
    ``seed`` gives other sizes and values.
    """
    return _in_turn(_Unseen(graph, samples, seed, weights).kinds())


def infinite_trials(graph: Graph, samples: Sequence[Sample], weights: str) -> list[Trial]:
    """Calls of one graph with infinite floats, of the sizes of its trace and of the small ones of a
    verification; none where none of its inputs may be infinite.
    """
    unseen = _Unseen(graph, samples, 0, weights)
    trials = map(unseen.infinite, (_own_sizes(graph), unseen.smallest()[0]))
    return [trial for trial in trials if trial is not None]


class _Unseen:
    """Calls that nobody made, for one graph, by what they look at.

    For the sizes of a region the graph is one path, so they are small: the least general sizes that
    the contract takes, beside which one symbol after the other has its least size, one beyond what was
    seen, and the sizes on both sides of its bounds.
    """

    def __init__(
        self, graph: Graph, samples: Sequence[Sample], seed: int, weights: str = ""
    ) -> None:
        self.graph, self.plan, self.seed = graph, graph.plan, seed
        self._calls = Calls(graph.plan, samples, weights)
        self._materialised = lru_cache(_HELD)(lambda pairs: self._calls.values(dict(pairs)))
        plan, contract = graph.plan, graph.contract
        used = [dict(graph.sizes), *map(self._calls.sizes_of, self._calls.own)]
        self.small, self._least = _small_sizes(graph, used, seed)
        chosen = trial_sizes(plan, used, middle=self.small, least=self._least, seed=seed)
        self._tried = [*filter(self._is_possible, chosen)]
        known = [*used, *self._tried]
        self._known = [one for place, one in enumerate(known) if one not in known[:place]]
        bounds = [*map(self._narrowed, boundary_sizes(plan, contract, self.small))]
        self._at_bounds = [*filter(self._is_possible, bounds)]
        between = map(self._narrowed, between_bounds(plan, contract, self.small))
        fresh = [sizes for sizes in (*bounds, *between) if sizes not in self._known]
        self._beside = [*filter(self._is_possible, fresh)]

    @property
    def _is_reduced(self) -> bool:
        """True for a graph of another precision than its model."""
        return "precision" in self.graph.options

    def kinds(self) -> list[Iterator[Trial]]:
        """The trials of each kind."""
        served = [*filter(self.is_promised, (*self._tried, *self._at_bounds))]
        own = self.smallest()
        return [
            map(self.plain, self._tried),
            map(partial(self.plain, focus=Focus.BOUNDS), self._beside),
            self._padded_of(served),
            chain(self._left_out_of(served), self._of_ways()),
            self._redrawn(own),
            self._laid_out(own[0]),
            self._broadcast(own[0]),
            self._of_extremes(own),
            self._of_floats(),
            self._only_call(),
        ]

    def _only_call(self) -> Iterator[Trial]:
        """The call of a graph without inputs once more, since there is no other one; where no size of a graph
        changes, a call of the sizes that it has.
        """
        if not self.plan.inputs:
            yield self.plain({}, focus=Focus.REPEATED)
        elif not self._tried:
            yield self.plain(_own_sizes(self.graph))

    def smallest(self) -> list[Sizes]:
        """The two smallest sizes that are tried, or those of the trace where none are; where sizes that
        were used are half as much work or less, as of images, the smallest of both.
        """
        tried, known = (
            sorted(filter(self.is_promised, choices), key=_cost)[:2]
            for choices in (self._tried, self._known)
        )
        if tried and 2 * math.prod(known[0].values()) <= math.prod(tried[0].values()):
            return known
        return tried or [_own_sizes(self.graph)]

    def _narrowed(self, sizes: Sizes) -> Sizes:
        """Sizes at a bound, where one symbol is large the least sizes of the others but 0, if the graph
        takes both.
        """
        large = {name: size for name, size in sizes.items() if size > _LARGE * self.small[name]}
        narrow = {name: max(size, 1) for name, size in self._least.items()} | large
        is_both = large and self.is_promised(sizes) and self.is_promised(narrow)
        return narrow if is_both else sizes

    def is_promised(self, sizes: Sizes) -> bool:
        """True for sizes that the graph takes."""
        return _is_promised(self.graph, sizes)

    def plain(self, sizes: Sizes, focus: Focus = Focus.SIZES) -> Trial:
        """A call of some sizes."""
        return self._trial(sizes, self._values(sizes), "", focus)

    def padded(self, sizes: Sizes) -> Iterator[Trial]:
        """Yields the trials again with masks that hide another share, and with masks that hide
        nothing.
        """
        values = self._values(sizes)
        for name, hidden in ((", padded", True), (", not padded", False)):
            masked = with_padding(self._calls, values, hidden=hidden)
            if masked is not None:
                yield self._trial(sizes, masked, name, Focus.PADDING)

    def left_out(self, sizes: Sizes) -> Trial | None:
        """Yields the trials again without the arguments that have a fill and say nothing there."""
        values = self._values(sizes)
        gone = _filled(self.plan, values)
        way = self.graph.contract.way(gone)
        if way is not None and not way.holds(sizes):
            return None
        if not gone or len(gone) == len({leaf.path.root for leaf in self.plan.leaves}):
            return None
        return self._trial(sizes, values, "", Focus.LEFT_OUT, gone)

    def _padded_of(self, chosen: Iterable[Sizes]) -> Iterator[Trial]:
        """The calls with other padding of the first sizes of every region."""
        met: Counter[object] = Counter()
        for sizes in chosen:
            if (region := self._regions_of(sizes)) and met[region] < _THOROUGH:
                met[region] += 1
                yield from self.padded(sizes)

    def _left_out_of(self, chosen: Iterable[Sizes]) -> Iterator[Trial]:
        """The first calls of every region for each choice of arguments that is left out."""
        met: Counter[object] = Counter()
        for sizes in chosen:
            trial = self.left_out(sizes)
            if (
                trial is not None
                and met[key := (self._regions_of(sizes), *trial.arguments)] < _THOROUGH
            ):
                met[key] += 1
                yield trial

    def _regions_of(self, sizes: Sizes) -> tuple[bool, ...]:
        return tuple(region.holds(sizes) for region in self.graph.contract.regions)

    def _of_ways(self) -> Iterator[Trial]:
        """Calls that leave out what a trace left out too, at sizes for which it is proven, with the
        values of calls and with extreme ones.
        """
        for way in self.graph.contract.ways:
            for sizes in self._sizes_of_way(way):
                values = self._values(sizes)
                yield self._of_way(way, sizes, values, "")
                extreme = None
                if not self._is_reduced:
                    extreme = extreme_values(self._calls, values, LARGE)
                if extreme is not None:
                    yield self._of_way(way, sizes, extreme, ", extreme values")

    def _of_way(self, way: Way, sizes: Sizes, values: Values, suffix: str) -> Trial:
        trial = self._trial(sizes, values, suffix, Focus.LEFT_OUT, way.left_out)
        return replace(trial, is_promised=True)

    def _sizes_of_way(self, way: Way) -> Iterator[Sizes]:
        """Some sizes that a call may have with the arguments, and some that it may have without them
        alone.
        """
        bounds = boundary_sizes(self.plan, Contract(way.regions), self.small)
        tried = (*self._tried, *self._beside, *filter(partial(_has_tensors, self.plan), bounds))
        held = [one for one in tried if are_in_range(self.plan, one) and way.holds(one)]
        yield from islice(filter(self.is_promised, held), _THOROUGH)
        yield from islice(filterfalse(self.is_promised, held), _THOROUGH)

    def _redrawn(self, chosen: Sequence[Sizes]) -> Iterator[Trial]:
        """Small sizes with other values, and others with values beyond those that were seen.

        Where no size changes, the numbers beside a single int that calls passed are all that is left.
        """
        kinds = [(", other values", chosen[0], False), (", further values", chosen[-1], True)]
        if is_calibrated(self.graph.options.get("precision")):
            kinds = kinds[:1]  # further values lie outside of the bounds that calls had
        for name, sizes, beyond in kinds:
            values = self._values(sizes)
            changed = redrawn(self._calls, values, beyond=beyond, seed=self.seed)
            if changed is not None:
                yield self._trial(sizes, changed, name, Focus.VALUES)
        if self.plan.symbols:
            return
        own = chosen[0]
        for changed in numbers_beside(self._calls, self._values(own)):
            yield self._trial(own, changed, ", another number", Focus.VALUES)

    def _laid_out(self, sizes: Sizes) -> Iterator[Trial]:
        """Tensors that lie otherwise in memory, where the graph does not rest on how they lie."""
        if MEMORY not in self.graph.marks and not any(contiguous_in(self.graph.marks)):
            changed = in_other_layout(self.plan, self._values(sizes))
            if changed is not None:
                yield self._trial(sizes, changed, ", other layout", Focus.LAYOUT)

    def _broadcast(self, sizes: Sizes) -> Iterator[Trial]:
        """Calls in which one tensor is of size 1 along all axes along which it may be."""
        for leaf in self.plan.inputs:
            if leaf.broadcast:
                values = dict(self._values(sizes))
                for dim in leaf.broadcast:
                    values[leaf.path] = values[leaf.path][(slice(None),) * dim + (slice(1),)]
                yield self._trial(sizes, values, f", {leaf.path} broadcast", Focus.SIZES)

    def _of_extremes(self, chosen: Sequence[Sizes]) -> Iterator[Trial]:
        """Small sizes, in torch also those at bounds, with large, zero and negative floats, then with
        NaN and infinite ones.

        Another runtime than torch computes large numbers with rounding of its own: it is not tried on
        these. Infinite ones are tried once, and NaN where its graph takes it. A graph of another
        precision than its model is tried on none: large numbers have no place in it. Nor is a graph
        whose operators end the process where a number is not finite.
        """
        if self._is_reduced or _may_end_process(self.graph):
            return
        is_exact = self.graph.target == "torch"
        at_bounds = filter(self.is_promised, self._at_bounds if is_exact else ())
        for sizes in (*chosen, *at_bounds):
            values = self._values(sizes)
            for name, pattern in (
                (", extreme values", EXTREME if is_exact else LARGE),
                *([(", infinite values", INFINITE)] if is_exact else []),
            ):
                shift = self.seed % len(pattern)
                shifted = (*pattern[shift:], *pattern[:shift])
                changed = extreme_values(self._calls, values, shifted)
                if changed is not None:
                    yield self._trial(sizes, changed, name, Focus.EXTREME)
        if not is_exact:
            trial = self.infinite(chosen[0])
            if trial is not None and FINITE not in self.graph.marks:
                yield trial

    def infinite(self, sizes: Sizes) -> Trial | None:
        """A call with infinite floats, and NaN where the graph takes it; None where it has no floats,
        and where watched calls had infinite ones.
        """
        if any(map(_has_infinite, self._calls.samples)):
            return None
        pattern = BOUNDLESS if NUMBERS in self.graph.marks else INFINITE
        changed = extreme_values(self._calls, self._values(sizes), pattern)
        name = ", infinite values"
        return None if changed is None else self._trial(sizes, changed, name, Focus.EXTREME)

    def _of_floats(self) -> Iterator[Trial]:
        """Small sizes with floats that no call had: between those of calls, beyond them, negative,
        zero.
        """
        sizes = _own_sizes(self.graph)
        for choice in float_choices(self.plan, watched=False):
            label = ", ".join(f"{path} = {value}" for path, value in choice.items())
            trial = self._trial(sizes, {**self._values(sizes), **choice}, "", Focus.FLOATS)
            yield replace(trial, label=label)

    def _trial(
        self,
        sizes: Sizes,
        values: Values,
        suffix: str,
        focus: Focus,
        left_out: Collection[str] = (),
    ) -> Trial:
        label = size_label(sizes) or "the sizes of the export"
        without = f", without {', '.join(left_out)}" if left_out else ""
        arguments = self._calls.arguments_of(values)
        return Trial(
            "unseen",
            f"{label}{without}{suffix}",
            {name: value for name, value in arguments.items() if name not in left_out},
            tuple(sizes.items()),
            self.plan,
            self.is_promised(sizes),
            focus,
        )

    def _is_possible(self, sizes: Sizes) -> bool:
        """True where no tensor has a negative size, and the model is not known to refuse the sizes."""
        return _has_tensors(self.plan, sizes) and not self.graph.contract.ended(sizes)

    def _values(self, sizes: Sizes) -> Values:
        return self._materialised(tuple(sizes.items()))


def _may_end_process(graph: Graph) -> bool:
    """True for a graph with an operator that ends the process where its input is not finite."""
    program = graph.artifact
    return isinstance(program, torch.export.ExportedProgram) and any(
        node.target in FATAL_IF_NOT_FINITE for node in nodes_of(program)
    )


def _has_infinite(sample: Sample) -> bool:
    return any(bool(floats.isinf().any()) for floats in sample.floats())


def _small_sizes(graph: Graph, used: Sequence[Sizes], seed: int) -> tuple[Sizes, Sizes]:
    """The least general sizes that the graph takes, none of them used, 0 or 1, and of each symbol the
    least size beside them.

    A size that a model halves until it is 1 is 1 for all sizes up to twice the least: there, twice
    the least is chosen.
    """
    plan, sizes = graph.plan, _own_sizes(graph)
    if not _is_promised(graph, sizes):
        return middle_sizes(plan, seed), least_sizes(plan)
    shift = random.Random(seed).randrange(_SHIFTS) if seed else 0
    for symbol in plan.symbols:
        name, taken = symbol.name, [*_smaller(graph, sizes, symbol, least=2)]
        least = 2 * taken[0][name] if taken and taken[0][name] > 2 else 2
        fresh = [one for one in taken if one not in used]
        roomy = [one for one in fresh if one[name] >= least] or fresh
        general = list(islice((one for one in roomy if is_general(plan, one)), shift + 1))
        # the last of the general ones; where there is none, the first one; where nothing is fresh,
        # the sizes of before
        if general:
            sizes = general[-1]
        elif roomy:
            sizes = roomy[0]
    beside: dict[str, int] = {}
    for symbol in plan.symbols:
        smallest = next(_smaller(graph, sizes, symbol, least=0), sizes)
        beside[symbol.name] = smallest[symbol.name]
    return sizes, beside


def _smaller(graph: Graph, sizes: Sizes, symbol: Symbol, *, least: int) -> Iterator[Sizes]:
    """The sizes that the graph takes with a smaller one of a symbol, the least first."""
    own, first = sizes[symbol.name], symbol.nearest(max(least, symbol.low))
    near = range(first, min(own, first + _FAR * symbol.step), symbol.step)
    parts = (symbol.nearest(own // part) for part in (16, 8, 4, 2))
    for size in (*near, *(part for part in parts if near and near[-1] < part < own)):
        changed = {**sizes, symbol.name: size}
        if _is_promised(graph, changed):
            yield changed


def _cost(sizes: Sizes) -> tuple[bool, int]:
    """Small sizes first, and after all others those where a symbol is 0 or 1."""
    return min(sizes.values(), default=0) < 2, math.prod(sizes.values())


def symbol_sizes(plan: Plan, choice: Sizes) -> Sizes | None:
    """The sizes of symbols for sizes of symbols or of axes (``x.shape[1]``); None where the plan
    lacks one of them.
    """
    symbols = {name: name for name in symbol_names(plan)}
    axes = {str(axis): str(e) for leaf in plan.inputs for axis, e in leaf.axes if e.is_symbol}
    names = axes | symbols
    return (
        {names[name]: size for name, size in choice.items()}
        if names.keys() >= choice.keys()
        else None
    )


def _of_given(
    graphs: Sequence[Graph],
    samples: Sequence[Sample],
    given: Sequence[Sizes],
    seed: int,
) -> Iterator[Trial]:
    """The trials of sizes that the user gave, by each graph that has all their symbols, once by graphs
    with the same inputs. Sizes that cannot be tried are trials that have failed.
    """
    for choice in given:
        if all(symbol_sizes(graph.plan, choice) is None for graph in graphs):
            yield _failed(None, choice, "no graph has all of these sizes")
    first = {graph.plan.inputs: graph for graph in reversed(graphs)} if given else {}
    for graph in reversed(first.values()):
        unseen = _Unseen(graph, samples, seed)
        for choice in given:
            if (asked := symbol_sizes(graph.plan, choice)) is not None:
                yield from _of_asked(unseen, asked)


def _of_asked(unseen: _Unseen, asked: Sizes) -> Iterator[Trial]:
    """The trials of sizes that the user gave, beside small sizes of all other symbols, or their least
    ones where those are too many for a bound of the model.
    """
    plan, contract = unseen.plan, unseen.graph.contract
    choices = [{**middle_sizes(plan, unseen.seed), **asked}, {**unseen.small, **asked}]
    choices = [*filter(unseen.is_promised, choices), *choices, {**least_sizes(plan), **asked}]
    sizes = next((one for one in choices if not contract.ended(one)), choices[0])
    ended = contract.ended(sizes)
    if ended:
        bounds = "; ".join(map(str, ended))
        yield _failed(plan, sizes, f"the model itself refuses these sizes: it needs {bounds}")
        return
    if not _has_tensors(plan, sizes):
        yield _failed(plan, sizes, "a tensor would have a negative size")
        return
    try:
        plain = unseen.plain(sizes, Focus.GIVEN)
        others = [*unseen.padded(sizes), unseen.left_out(sizes)]
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        yield _failed(plan, sizes, f"no arguments of these sizes can be made: {cause}")
        return
    yield replace(plain, is_asked=True, is_promised=True)
    yield from (trial for trial in others if trial is not None)


def _failed(plan: Plan | None, sizes: Sizes, problem: str) -> Trial:
    """A trial of given sizes that cannot be made."""
    return Trial(
        "unseen",
        size_label(sizes),
        {},
        tuple(sizes.items()),
        plan,
        focus=Focus.GIVEN,
        is_asked=True,
        problem=problem,
    )


def _has_tensors(plan: Plan, sizes: Sizes) -> bool:
    """True when no tensor has a negative size; an int may be negative."""
    return all(e.evaluate(sizes) >= 0 for leaf in plan.inputs for e in leaf.shape)


def _is_promised(graph: Graph, sizes: Sizes) -> bool:
    in_range = are_in_range(graph.plan, sizes)
    return in_range and graph.contract.holds(sizes)


def _drawn(
    graphs: Sequence[Graph], samples: Sequence[Sample], seed: int, weights: str
) -> Iterator[Trial]:
    """Trials without end: sizes and values drawn by the seed, of one graph after the other.

    It ends where nothing new is left to draw.
    """
    chooser = random.Random(seed)
    bounds = [boundary_sizes(graph.plan, graph.contract, graph.sizes) for graph in graphs]
    of_graphs = [Calls(graph.plan, samples, weights) for graph in graphs]
    turns = cycle(zip(graphs, bounds, of_graphs, strict=True))
    known: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    fruitless = 0
    for number, (graph, at_bounds, calls) in enumerate(turns):
        plan, sizes = graph.plan, _drawn_sizes(graph.plan, at_bounds, chooser)
        drawn = chooser.getrandbits(32)
        fruitless += 1
        if fruitless > _MOST_FRUITLESS:
            return
        if not _has_tensors(plan, sizes) or graph.contract.ended(sizes):
            continue
        values = calls.values(sizes)
        pattern = [*(EXTREME if graph.target == "torch" else LARGE)]
        chooser.shuffle(pattern)
        other = redrawn(calls, values, beyond=bool(drawn % 2), seed=drawn)
        extreme = extreme_values(calls, values, pattern) if drawn % 3 == 0 else None
        key = plan.name, tuple(sizes.items())
        if other is None and key in known:
            continue
        known.add(key)
        fruitless = 0
        label = f"{size_label(sizes) or 'the sizes of the export'}, drawn {number}"
        arguments = calls.arguments_of(extreme or other or values)
        promised = _is_promised(graph, sizes)
        yield Trial(
            "unseen", label, arguments, key[1], plan, is_promised=promised, focus=Focus.DRAWN
        )


def _drawn_sizes(plan: Plan, at_bounds: Sequence[Sizes], chooser: random.Random) -> Sizes:
    """A size per symbol: at a bound, small, or up to twice what was seen."""
    found: dict[str, int] = {}
    for symbol in plan.symbols:
        greatest = max((*symbol.observed, 8))
        near = [sizes[symbol.name] for sizes in at_bounds]
        pool = (
            chooser.randint(0, 8),
            chooser.randint(0, 2 * greatest + 1),
            chooser.choice([*near, symbol.low]),
        )
        found[symbol.name] = symbol.nearest(chooser.choice(pool))
    return found


def _own_sizes(graph: Graph) -> Sizes:
    """The sizes of the export; where the program has bounds that exclude them, others that it
    takes.
    """
    sizes = dict(graph.sizes)
    if _is_promised(graph, sizes):
        return sizes
    nearest = {s.name: s.nearest(sizes[s.name]) for s in graph.plan.symbols}
    choices = [nearest, *trial_sizes(graph.plan, ())]
    return next((choice for choice in choices if _is_promised(graph, choice)), sizes)


def _filled(plan: Plan, values: Values) -> list[str]:
    """The arguments that a call may leave out, and that say nothing with these values: an empty cache,
    a mask of ones.
    """
    gone = []
    for root in dict.fromkeys(leaf.path.root for leaf in plan.leaves):
        leaves = [leaf for leaf in plan.inputs if leaf.path.root == root]
        if (
            root not in plan.needed
            and leaves
            and all(_is_filled(leaf, values[leaf.path]) for leaf in leaves)
        ):
            gone.append(root)
    is_refused = tuple(sorted(gone)) in plan.never_absent
    return [] if is_refused else gone


def _is_filled(leaf: LeafPlan, value: Any) -> bool:
    fill = leaf.fill
    if fill is None or leaf.bound:
        return False
    if not isinstance(value, torch.Tensor):
        return bool(value == fill.value)
    if fill.kind == "empty":
        return fill.dim is not None and value.shape[fill.dim] == 0
    return bool((as_numbers(value) == (1 if fill.kind == "ones" else 0)).all())

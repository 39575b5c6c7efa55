"""Calls to try on a program: every observed one with values, and sizes that neither calls nor
export had.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, islice, zip_longest
from typing import Any

import torch

from ..contract.boundaries import between_bounds, boundary_sizes
from ..core.marks import MEMORY
from ..core.path import Path
from ..core.plan import LeafPlan, Plan, Symbol
from ..core.structure import Tree
from ..core.verdict import Focus
from ..infer.sizes import middle_sizes, size_label, trial_sizes
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..materialise.domains import domains_of
from ..materialise.extremes import EXTREME, INFINITE, LARGE, extreme_values
from ..materialise.floats import float_choices
from ..materialise.padding import with_padding
from ..observing.store import Sample
from ..pytrees.numbers import as_numbers
from ..trace.graph import Graph
from .values import in_other_layout, redrawn

__all__ = [
    "Trial",
    "chosen_trials",
    "observed_trials",
    "symbol_sizes",
    "trials_of_sizes",
    "unseen_trials",
]

#: of the sizes that are tried, how many are tried with masks that hide nothing too
_THOROUGH = 3
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
    arguments: dict[str, Any]
    sizes: tuple[tuple[str, int], ...] = ()
    plan: Plan | None = None
    is_promised: bool = True
    focus: Focus = Focus.SIZES
    seen: Tree[Any] | None = None
    is_asked: bool = False
    problem: str = ""


def chosen_trials(
    graphs: Sequence[Graph],
    samples: Sequence[Sample],
    kept: Sequence[Sample],
    given: Sequence[Mapping[str, int]] = (),
    *,
    seed: int = 0,
    most: int | None = None,
) -> Iterator[Trial]:
    """The trials of a program: the observed calls, then the unseen ones of each graph.

    ``kept`` are the ``samples`` as the graphs see them. Of ``most`` trials there are some of every
    kind and of every graph, as many of each as possible; more than the usual ones are drawn by the
    ``seed``.
    """
    usual = chain(observed_trials(samples), _of_graphs(graphs, kept, given, seed))
    if most is None:
        return usual
    bounded = _some_of_every_kind([*usual], most)
    return chain(bounded, islice(_drawn(graphs, kept, seed), most - len(bounded)))


def _of_graphs(
    graphs: Sequence[Graph],
    samples: Sequence[Sample],
    given: Sequence[Mapping[str, int]],
    seed: int,
) -> Iterator[Trial]:
    """The unseen trials of each graph; given sizes are tried once by graphs with the same
    inputs.
    """
    known: set[tuple[LeafPlan, ...]] = set()
    for choice in given:
        if all(symbol_sizes(graph.plan, choice) is None for graph in graphs):
            yield _failed(None, choice, "no graph has all of these sizes")
    for graph in graphs:
        yield from unseen_trials(
            graph, samples, () if graph.plan.inputs in known else given, seed=seed
        )
        known.add(graph.plan.inputs)


def _some_of_every_kind(trials: Sequence[Trial], most: int) -> list[Trial]:
    """The first of every kind and of every graph, then the second of each and so on, in the
    order of the trials.
    """
    groups: dict[tuple[Focus, str], list[int]] = {}
    for number, trial in enumerate(trials):
        groups.setdefault((trial.focus, trial.plan.name if trial.plan else ""), []).append(number)
    order = list(Focus)
    ordered = [groups[key] for key in sorted(groups, key=lambda key: order.index(key[0]))]
    chosen = [number for row in zip_longest(*ordered) for number in row if number is not None]
    return [trials[number] for number in sorted(chosen[:most])]


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
    graph: Graph,
    samples: Sequence[Sample],
    given: Sequence[Mapping[str, int]] = (),
    *,
    seed: int = 0,
) -> Iterator[Trial]:
    """Sizes never used: every symbol small and large, alone and together; masks padded; what is
    optional left out.

    Then the bounds of the contract, floats never used, values never used, for sizes of which the
    values before were tried, and tensors that are not contiguous. The ``given`` sizes come first,
    for graphs that have all their symbols. Every ``seed`` gives other sizes and values.
    """
    plan = graph.plan
    used = [dict(graph.sizes)]
    used += [
        sizes_of(plan, leaf_values(sample)) for sample in samples if sample.call.index in plan.calls
    ]
    for choice in given:
        if (asked := symbol_sizes(plan, choice)) is not None:
            yield from _of_given(graph, samples, asked, seed)
    tried = [sizes for _, sizes in trial_sizes(plan, used, [*_wide_sizes(plan)], seed=seed)]
    for number, sizes in enumerate(tried):
        yield from _of_sizes(graph, samples, sizes, Focus.SIZES, thorough=number < _THOROUGH)
    yield from _of_ways(graph, samples, tried)
    yield from _at_bounds(graph, samples, [*used, *tried], seed)
    yield from _of_floats(graph, samples)
    lawful = [
        (size_label(sizes), sizes)
        for sizes in sorted(tried, key=_cost)
        if graph.contract.holds(sizes)
    ]
    known = [] if lawful else [("the sizes of the export", _own_sizes(graph))]
    for number, (label, sizes) in enumerate((lawful or known)[:2]):
        yield from _of_values(
            graph, samples, label, sizes, beyond=number == 1 or not lawful, seed=seed
        )


def _of_ways(
    graph: Graph, samples: Sequence[Sample], tried: Sequence[Mapping[str, int]]
) -> Iterator[Trial]:
    """Calls that leave out what a trace left out too, at sizes for which it is proven, with the
    values of calls and with extreme ones.
    """
    plan = graph.plan
    for way in graph.contract.ways:
        lawful = [sizes for sizes in tried if way.holds(sizes) and graph.contract.holds(sizes)]
        for sizes in lawful[:_THOROUGH]:
            values = materialise(plan, sizes, samples)
            extreme = extreme_values(plan, values, samples, LARGE)
            for name, chosen in (("", values), (", extreme values", extreme)):
                if chosen is None:
                    continue
                arguments = close_arguments(plan, chosen)
                fewer = {n: v for n, v in arguments.items() if n not in way.left_out}
                label = f"{size_label(sizes)}, without {', '.join(way.left_out)}{name}"
                pairs = tuple(sizes.items())
                yield Trial("unseen", label, fewer, pairs, plan, focus=Focus.LEFT_OUT)


def _cost(sizes: Mapping[str, int]) -> tuple[bool, int]:
    """Small sizes first, and after all others those where a symbol is 0 or 1."""
    return min(sizes.values(), default=0) < 2, sum(sizes.values())


def symbol_sizes(plan: Plan, choice: Mapping[str, int]) -> dict[str, int] | None:
    """The sizes of symbols for sizes of symbols or of axes (``x.shape[1]``); None where the plan
    lacks one of them.
    """
    symbols = {symbol.name: symbol.name for symbol in plan.symbols}
    axes = {str(axis): str(e) for leaf in plan.inputs for axis, e in leaf.axes if e.is_symbol}
    names = axes | symbols
    return (
        {names[name]: size for name, size in choice.items()}
        if names.keys() >= choice.keys()
        else None
    )


def _of_given(
    graph: Graph, samples: Sequence[Sample], asked: Mapping[str, int], seed: int
) -> Iterator[Trial]:
    """The trials of sizes that the user gave, beside middle sizes of all other symbols, or their
    least ones where middle ones are too many for a bound of the model.

    Sizes that cannot be tried are trials that have failed.
    """
    plan = graph.plan
    least = {symbol.name: _allowed(symbol, symbol.low) for symbol in plan.symbols}
    choices = [{**middle_sizes(plan, seed), **asked}, {**least, **asked}]
    sizes = next((one for one in choices if not graph.contract.ended(one)), choices[0])
    ended = graph.contract.ended(sizes)
    if ended:
        bounds = "; ".join(map(str, ended))
        yield _failed(plan, sizes, f"the model itself refuses these sizes: it needs {bounds}")
        return
    if not _has_tensors(plan, sizes):
        yield _failed(plan, sizes, "a tensor would have a negative size")
        return
    try:
        trials = [*_of_sizes(graph, samples, sizes, Focus.GIVEN)]
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        yield _failed(plan, sizes, f"no arguments of these sizes can be made: {cause}")
        return
    for trial in trials:
        is_asked = trial.focus is Focus.GIVEN
        yield replace(trial, is_asked=is_asked, is_promised=is_asked or trial.is_promised)


def _failed(plan: Plan | None, sizes: Mapping[str, int], problem: str) -> Trial:
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


def _of_sizes(
    graph: Graph,
    samples: Sequence[Sample],
    sizes: Mapping[str, int],
    focus: Focus,
    *,
    thorough: bool = False,
) -> Iterator[Trial]:
    """The trials of some sizes, which a program need not take outside the contract; none where the
    model itself is known to refuse them.
    """
    if not _has_tensors(graph.plan, sizes) or graph.contract.ended(sizes):
        return
    for trial in trials_of_sizes(graph.plan, samples, size_label(sizes), sizes, thorough=thorough):
        own = focus if trial.focus is Focus.SIZES else trial.focus
        yield replace(trial, focus=own, is_promised=_is_promised(graph, sizes))


def _has_tensors(plan: Plan, sizes: Mapping[str, int]) -> bool:
    """True when no tensor has a negative size; an int may be negative."""
    return all(e.evaluate(sizes) >= 0 for leaf in plan.inputs for e in leaf.shape)


def _is_promised(graph: Graph, sizes: Mapping[str, int]) -> bool:
    in_range = all(symbol.takes(sizes[symbol.name]) for symbol in graph.plan.symbols)
    return in_range and graph.contract.holds(sizes)


def _at_bounds(
    graph: Graph, samples: Sequence[Sample], known: Sequence[Mapping[str, int]], seed: int
) -> Iterator[Trial]:
    """The sizes at every bound of the contract, in torch also with extreme values, and those
    beside and between.
    """
    plan = graph.plan
    at_bounds = boundary_sizes(plan, graph.contract, graph.sizes)
    for sizes in at_bounds:
        if sizes not in known:
            yield from _of_sizes(graph, samples, sizes, Focus.BOUNDS)
        is_possible = _has_tensors(plan, sizes) and not graph.contract.ended(sizes)
        if is_possible and graph.target == "torch":
            for trial in _of_extremes(
                plan, samples, size_label(sizes), sizes, exact=True, seed=seed
            ):
                yield replace(trial, is_promised=_is_promised(graph, sizes))
    for sizes in between_bounds(plan, graph.contract, graph.sizes):
        if sizes not in known and sizes not in at_bounds:
            yield from islice(_of_sizes(graph, samples, sizes, Focus.BOUNDS), 1)


def _drawn(graphs: Sequence[Graph], samples: Sequence[Sample], seed: int) -> Iterator[Trial]:
    """Trials without end: sizes and values drawn by the seed, of one graph after the other.

    It ends where nothing new is left to draw.
    """
    chooser = random.Random(seed)
    bounds = [boundary_sizes(graph.plan, graph.contract, graph.sizes) for graph in graphs]
    known: set[tuple[str, tuple[tuple[str, int], ...]]] = set()
    fruitless = 0
    for number in count():
        graph = graphs[number % len(graphs)]
        plan, sizes = graph.plan, _drawn_sizes(graph.plan, bounds[number % len(graphs)], chooser)
        drawn = chooser.getrandbits(32)
        fruitless += 1
        if fruitless > _MOST_FRUITLESS:
            return
        if not _has_tensors(plan, sizes) or graph.contract.ended(sizes):
            continue
        values = materialise(plan, sizes, samples)
        pattern = [*(EXTREME if graph.target == "torch" else LARGE)]
        chooser.shuffle(pattern)
        other = redrawn(plan, values, samples, beyond=bool(drawn % 2), seed=drawn)
        extreme = extreme_values(plan, values, samples, pattern) if drawn % 3 == 0 else None
        key = plan.name, tuple(sizes.items())
        if other is None and key in known:
            continue
        known.add(key)
        fruitless = 0
        label = f"{size_label(sizes) or 'the sizes of the export'}, drawn {number}"
        arguments = close_arguments(plan, extreme or other or values)
        promised = _is_promised(graph, sizes)
        yield Trial(
            "unseen", label, arguments, key[1], plan, is_promised=promised, focus=Focus.DRAWN
        )


def _drawn_sizes(
    plan: Plan, at_bounds: Sequence[Mapping[str, int]], chooser: random.Random
) -> dict[str, int]:
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
        found[symbol.name] = _allowed(symbol, chooser.choice(pool))
    return found


def _of_floats(graph: Graph, samples: Sequence[Sample]) -> Iterator[Trial]:
    """The sizes of the export with floats that no call had: between those of calls, beyond them,
    negative, zero.
    """
    plan = graph.plan
    choices = float_choices(plan, watched=False)
    sizes = _own_sizes(graph) if choices else {}
    pairs = tuple(sizes.items())
    values = materialise(plan, sizes, samples) if choices else {}
    for choice in choices:
        label = ", ".join(f"{path} = {value}" for path, value in choice.items())
        yield Trial(
            "unseen", label, close_arguments(plan, values | choice), pairs, plan, focus=Focus.FLOATS
        )


def _own_sizes(graph: Graph) -> dict[str, int]:
    """The sizes of the export; where the program has bounds that exclude them, others that it
    takes.
    """
    sizes = dict(graph.sizes)
    if _is_promised(graph, sizes):
        return sizes
    nearest = {s.name: _allowed(s, sizes[s.name]) for s in graph.plan.symbols}
    choices = [nearest, *(found for _, found in trial_sizes(graph.plan, ()))]
    return next((choice for choice in choices if _is_promised(graph, choice)), sizes)


def _wide_sizes(plan: Plan) -> Iterator[dict[str, int]]:
    """Each symbol at twice what was seen, beside small ones; then all symbols of one size."""
    ones = {s.name: _allowed(s, 1) for s in plan.symbols}
    for symbol in plan.symbols:
        yield {**ones, symbol.name: _allowed(symbol, 2 * max(*symbol.observed, 8) + 1)}
    if len(plan.symbols) > 1:
        yield {s.name: _allowed(s, 5) for s in plan.symbols}


def _allowed(symbol: Symbol, wanted: int) -> int:
    """The size nearest to ``wanted`` that the range and the step of the symbol allow."""
    size = max(-(-wanted // symbol.step) * symbol.step, -(-symbol.low // symbol.step) * symbol.step)
    return size if symbol.high is None else min(size, symbol.high // symbol.step * symbol.step)


def _of_values(
    graph: Graph,
    samples: Sequence[Sample],
    label: str,
    sizes: Mapping[str, int],
    *,
    beyond: bool,
    seed: int,
) -> Iterator[Trial]:
    """The same sizes with other values, or with those ``beyond`` them, and laid out otherwise in
    memory.
    """
    plan = graph.plan
    values, pairs = materialise(plan, sizes, samples), tuple(sizes.items())
    is_laid_out = not beyond and MEMORY not in graph.marks
    for name, focus, changed in (
        (
            "further values" if beyond else "other values",
            Focus.VALUES,
            redrawn(plan, values, samples, beyond=beyond, seed=seed),
        ),
        ("other layout", Focus.LAYOUT, in_other_layout(plan, values) if is_laid_out else None),
    ):
        if changed is not None:
            yield Trial(
                "unseen",
                f"{label}, {name}",
                close_arguments(plan, changed),
                pairs,
                plan,
                focus=focus,
            )
    found = _of_extremes(plan, samples, label, sizes, exact=graph.target == "torch", seed=seed)
    yield from islice(found, 1 if beyond else None)


def _of_extremes(
    plan: Plan,
    samples: Sequence[Sample],
    label: str,
    sizes: Mapping[str, int],
    *,
    exact: bool,
    seed: int,
) -> Iterator[Trial]:
    """The same sizes with large, zero and negative floats, then with NaN and infinite ones.

    Another runtime than torch computes large and infinite numbers with rounding of its own: only an
    ``exact`` one is tried on them.
    """
    values, pairs = materialise(plan, sizes, samples), tuple(sizes.items())
    for name, pattern in (
        ("extreme values", EXTREME if exact else LARGE),
        *([("infinite values", INFINITE)] if exact else []),
    ):
        shift = seed % len(pattern)
        changed = extreme_values(plan, values, samples, (*pattern[shift:], *pattern[:shift]))
        if changed is not None:
            arguments = close_arguments(plan, changed)
            yield Trial("unseen", f"{label}, {name}", arguments, pairs, plan, focus=Focus.EXTREME)


def trials_of_sizes(
    plan: Plan,
    samples: Sequence[Sample],
    label: str,
    sizes: Mapping[str, int],
    *,
    thorough: bool = True,
) -> Iterator[Trial]:
    """One choice of sizes: plain, padded, ``thorough`` also without padding, and without what
    has a fill.
    """
    values, domains = materialise(plan, sizes, samples), domains_of(samples)
    pairs = tuple(sizes.items())
    yield Trial("unseen", label, close_arguments(plan, values), pairs, plan)
    for name, hidden in (("padded", True), ("not padded", False))[: 1 + thorough]:
        masked = with_padding(plan, values, domains, hidden=hidden)
        if masked is not None:
            arguments = close_arguments(plan, masked)
            yield Trial("unseen", f"{label}, {name}", arguments, pairs, plan, focus=Focus.PADDING)
    fewer = _without_fills(plan, values)
    if fewer is not None:
        yield Trial(
            "unseen", f"{label}, without {fewer[0]}", fewer[1], pairs, plan, focus=Focus.LEFT_OUT
        )


def _without_fills(plan: Plan, values: Mapping[Path, Any]) -> tuple[str, dict[str, Any]] | None:
    """The arguments without those that a call may leave out, where they say nothing for these
    sizes.

    An empty cache is left out when it is empty; a mask of ones always.
    """
    arguments = close_arguments(plan, values)
    gone = []
    for root in dict.fromkeys(leaf.path.root for leaf in plan.leaves):
        leaves = [leaf for leaf in plan.inputs if leaf.path.root == root]
        if (
            root not in plan.needed
            and leaves
            and all(
                leaf.fill is not None and _is_filled(leaf, values[leaf.path]) for leaf in leaves
            )
        ):
            gone.append(root)
    for root in gone:
        del arguments[root]
    return (", ".join(gone), arguments) if gone and arguments else None


def _is_filled(leaf: LeafPlan, value: Any) -> bool:
    fill = leaf.fill
    if fill is None or leaf.bound:
        return False
    if not isinstance(value, torch.Tensor):
        return bool(value == fill.value)
    if fill.kind == "empty":
        return fill.dim is not None and value.shape[fill.dim] == 0
    return bool((as_numbers(value) == (1 if fill.kind == "ones" else 0)).all())

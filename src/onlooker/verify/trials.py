"""Calls to try on a program: every observed one with values, and sizes that neither calls nor export had."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..contract.boundaries import boundary_sizes
from ..core.path import Path
from ..core.plan import LeafPlan, Plan, Symbol
from ..infer.sizes import trial_sizes
from ..materialise.arguments import close_arguments, leaf_values, materialise
from ..materialise.counting import sizes_of
from ..materialise.domain import Domain
from ..materialise.domains import Domains, domains_of
from ..materialise.extremes import EXTREME, INFINITE, LARGE, extreme_values
from ..materialise.floats import float_choices
from ..observe.store import Sample
from ..pytrees.numbers import as_numbers, is_same
from ..trace.graph import Graph
from .values import in_other_layout, redrawn

__all__ = ["Trial", "observed_trials", "trials_of_sizes", "unseen_trials"]

#: of the sizes that are tried, how many are tried with masks that hide nothing too
_THOROUGH = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """Arguments by name, for the model and for a program alike.

    ``is_promised`` is False for sizes outside the contract of the graph: a program may refuse them.
    """

    kind: str
    label: str
    arguments: dict[str, Any]
    sizes: tuple[tuple[str, int], ...] = ()
    plan: Plan | None = None
    is_promised: bool = True


def observed_trials(samples: Sequence[Sample]) -> Iterator[Trial]:
    """Every call whose values were kept, as it was."""
    for sample in samples:
        yield Trial("observed", f"call {sample.call.index}", sample.arguments())


def unseen_trials(
    graph: Graph, samples: Sequence[Sample], further: Sequence[Mapping[str, int]] = ()
) -> Iterator[Trial]:
    """Sizes never used: every symbol small and large, alone and together; masks padded; what is optional left out.

    Then floats never used, values never used, for sizes of which the values before were tried, and tensors that are
    not contiguous.
    ``further`` sizes are tried beside them, for graphs that have all their symbols.
    """
    plan = graph.plan
    used = [dict(graph.sizes)]
    used += [sizes_of(plan, leaf_values(sample)) for sample in samples if sample.call.index in plan.calls]
    bounds = [sizes for sizes in boundary_sizes(plan, graph.contract, graph.sizes) if sizes not in used]
    tried = trial_sizes(plan, used, [*_wide_sizes(plan), *bounds, *further])
    for number, (label, sizes) in enumerate(tried):
        promised = graph.contract.holds(sizes)
        for trial in trials_of_sizes(plan, samples, label, sizes, thorough=number < _THOROUGH):
            yield replace(trial, is_promised=promised)
    tried = [(label, sizes) for label, sizes in tried if graph.contract.holds(sizes)]
    yield from _of_floats(graph, samples)
    known = [("the sizes of the export", dict(graph.sizes))]
    for number, (label, sizes) in enumerate((tried or known)[:2]):
        yield from _of_values(
            plan, samples, label, sizes, beyond=number == 1 or not tried, exact=graph.target == "torch"
        )


def _of_floats(graph: Graph, samples: Sequence[Sample]) -> Iterator[Trial]:
    """The sizes of the export with floats that no call had: between those of calls, beyond them, negative, zero."""
    plan, pairs = graph.plan, tuple(graph.sizes.items())
    choices = float_choices(plan, watched=False)
    values = materialise(plan, graph.sizes, samples) if choices else {}
    for choice in choices:
        label = ", ".join(f"{path} = {value}" for path, value in choice.items())
        yield Trial("unseen", label, close_arguments(plan, values | choice), pairs, plan)


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
    plan: Plan, samples: Sequence[Sample], label: str, sizes: Mapping[str, int], *, beyond: bool, exact: bool
) -> Iterator[Trial]:
    """The same sizes with other values, or with those ``beyond`` them, and laid out otherwise in memory.

    Another runtime than torch computes large and infinite numbers with rounding of its own: only an ``exact`` one is
    tried on them.
    """
    values, pairs = materialise(plan, sizes, samples), tuple(sizes.items())
    for name, changed in (
        ("further values" if beyond else "other values", redrawn(plan, values, samples, beyond=beyond)),
        ("other layout", in_other_layout(plan, values) if not beyond else None),
        ("extreme values", extreme_values(plan, values, samples, EXTREME if exact else LARGE)),
        ("infinite values", extreme_values(plan, values, samples, INFINITE) if exact and not beyond else None),
    ):
        if changed is not None:
            yield Trial("unseen", f"{label}, {name}", close_arguments(plan, changed), pairs, plan)


def trials_of_sizes(
    plan: Plan, samples: Sequence[Sample], label: str, sizes: Mapping[str, int], *, thorough: bool = True
) -> Iterator[Trial]:
    """One choice of sizes: plain, padded, ``thorough`` also without padding, and without what has a fill."""
    values, domains = materialise(plan, sizes, samples), domains_of(samples)
    pairs = tuple(sizes.items())
    yield Trial("unseen", label, close_arguments(plan, values), pairs, plan)
    for name, hidden in (("padded", True), ("not padded", False))[: 1 + thorough]:
        masked = _masked(plan, values, domains, hidden)
        if masked is not None:
            yield Trial("unseen", f"{label}, {name}", close_arguments(plan, masked), pairs, plan)
    fewer = _without_fills(plan, values)
    if fewer is not None:
        yield Trial("unseen", f"{label}, without {fewer[0]}", fewer[1], pairs, plan)


def _masked(plan: Plan, values: Mapping[Path, Any], domains: Domains, hidden: bool) -> dict[Path, Any] | None:
    """The same values with masks that hide the beginning of rows: half of the first one, a third of the third one,
    a quarter of the fourth one and so on, nothing of the second one. None where that changes nothing.
    """
    masks = [leaf.path for leaf in plan.inputs if _is_padding_mask(leaf, values[leaf.path], domains.of(leaf.path))]
    if not masks:
        return None
    changed = dict(values)
    for path in masks:
        mask = torch.ones_like(values[path])
        for row in range(mask.shape[0] if hidden else 0):
            mask[row, : 0 if row == 1 else mask.shape[1] // max(row + 1, 2)] = 0
        changed[path] = mask
    return None if all(is_same(changed[path], values[path]) for path in masks) else changed


def _is_padding_mask(leaf: LeafPlan, value: Any, domain: Domain) -> bool:
    """True for a mask of two dimensions that hides positions by zeros, one for which ones are neutral among them."""
    if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.dtype.is_floating_point:
        return False
    is_neutral = leaf.fill is not None and leaf.fill.kind == "ones"
    return (domain.is_mask or is_neutral) and value.shape[1] > 1


def _without_fills(plan: Plan, values: Mapping[Path, Any]) -> tuple[str, dict[str, Any]] | None:
    """The arguments without those that a call may leave out, where they say nothing for these sizes.

    An empty cache is left out when it is empty; a mask of ones always.
    """
    arguments = close_arguments(plan, values)
    gone = []
    for root in dict.fromkeys(leaf.path.root for leaf in plan.leaves):
        leaves = [leaf for leaf in plan.inputs if leaf.path.root == root]
        if leaves and all(leaf.fill is not None and _is_filled(leaf, values[leaf.path]) for leaf in leaves):
            gone.append(root)
    for root in gone:
        del arguments[root]
    return (", ".join(gone), arguments) if gone and arguments else None


def _is_filled(leaf: LeafPlan, value: Any) -> bool:
    fill = leaf.fill
    if fill is None:
        return False
    if not isinstance(value, torch.Tensor):
        return bool(value == fill.value)
    if fill.kind == "empty":
        return fill.dim is not None and value.shape[fill.dim] == 0
    return bool((as_numbers(value) == (1 if fill.kind == "ones" else 0)).all())

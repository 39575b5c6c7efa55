"""The answer to a call on the other side of a condition: another graph, or a refusal of the model
or of the program.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core.call import Values
from ..core.contract import Constraint, Contract, Origin, Region
from ..core.experiment import FindingKind
from ..core.plan import LeafPlan, Plan, symbol_names
from ..core.sizes.expression import Sizes
from ..core.support.enums import StrEnum
from .boundaries import failing_sizes
from .checker import Checker

__all__ = ["Fate", "FateKind", "OtherSides"]


class FateKind(StrEnum):
    """The ways in which a program treats a call."""

    TAKEN = "taken"
    REFUSED_BY_MODEL = "refused-by-model"
    NOT_TRACED = "not-traced"


@dataclass(frozen=True, slots=True)
class Fate:
    """The answer of a program to calls of some sizes; ``graph`` takes them, where one does.

    >>> str(Fate(FateKind.TAKEN, (("sequence", 25),), "main_2"))
    'taken by graph main_2 (sequence = 25)'
    >>> str(Fate(FateKind.NOT_TRACED, (("sequence", 25),)))
    'refused by this program: not traced (sequence = 25)'
    """

    kind: FateKind
    sizes: tuple[tuple[str, int], ...]
    graph: str = ""

    def __str__(self) -> str:
        words = {
            FateKind.TAKEN: f"taken by graph {self.graph}",
            FateKind.REFUSED_BY_MODEL: "refused by the model itself",
            FateKind.NOT_TRACED: "refused by this program: not traced",
        }
        return f"{words[self.kind]} ({', '.join(f'{name} = {size}' for name, size in self.sizes)})"


class OtherSides:
    """Finds the answer to calls at sizes of one graph that another one may take; ``graphs`` are
    those of the whole program.
    """

    def __init__(self, graphs: Sequence[tuple[Plan, Contract]]) -> None:
        self._graphs = tuple(graphs)

    @functools.cached_property
    def _checkers(self) -> list[Checker]:
        return [Checker(plan, contract) for plan, contract in self._graphs]

    def beyond(
        self, plan: Plan, region: Region, constraint: Constraint, base: Sizes
    ) -> tuple[Fate, ...]:
        """Returns the fates of calls that satisfy a region but for one constraint, each once;
        nothing where no sizes do.

        ``base`` are the sizes of the export. The experiments of the plan tell which sizes the model
        refuses. No model is run.
        """
        refused = [sizes for sizes, is_taken in _tried(plan) if not is_taken]
        found: dict[tuple[FateKind, str], Fate] = {}
        for sizes in _beyond(plan, region, constraint, base):
            graph = self._taker(plan, sizes)
            is_refused = sizes in refused or constraint.origin is Origin.BOUND
            kind = FateKind.REFUSED_BY_MODEL if is_refused else FateKind.NOT_TRACED
            kind = FateKind.TAKEN if graph else kind
            found.setdefault((kind, graph), Fate(kind, tuple(sizes.items()), graph))
        order = list(FateKind)
        return tuple(sorted(found.values(), key=lambda fate: order.index(fate.kind)))

    def _taker(self, plan: Plan, sizes: Sizes) -> str:
        """The name of the first graph that takes inputs of these sizes; empty where none does."""
        given = {leaf.path: _stand_in(leaf, sizes) for leaf in plan.inputs}
        for checker in self._checkers:
            if _takes_leaves(checker.plan, plan, given) and checker(
                [given[leaf.path] for leaf in checker.plan.inputs]
            ):
                return checker.plan.name
        return ""


def _tried(plan: Plan) -> Iterator[tuple[Sizes, bool]]:
    """The sizes that were tried with the model, and whether it took them."""
    for experiment in plan.probes:
        sizes = plan.symbol_sizes(experiment) if experiment.axes else None
        if sizes and experiment.finding.kind in (FindingKind.ACCEPTED, FindingKind.REFUSED):
            yield sizes, experiment.finding.kind is FindingKind.ACCEPTED


def _beyond(plan: Plan, region: Region, constraint: Constraint, base: Sizes) -> list[Sizes]:
    """Sizes at which the constraint fails: those that were tried with the model, else the nearest
    to the base.

    Only those where all else of the region holds, if there are any.
    """
    tried = [sizes for sizes, _ in _tried(plan)]
    inside = [dict(base), *tried]
    start = next(
        (sizes for sizes in inside if len(sizes) == len(plan.symbols) and region.holds(sizes)),
        dict(base),
    )
    names = symbol_names(plan)
    ordered: list[Sizes] = [{name: sizes[name] for name in names} for sizes in tried]
    candidates = [sizes for sizes in ordered if not constraint.holds(sizes)]
    near = failing_sizes(plan, constraint.formula, start)
    others = [other for other in region.constraints if other != constraint]
    for pool in (candidates, near):
        alone = [sizes for sizes in pool if all(other.holds(sizes) for other in others)]
        if alone:
            return alone
    return candidates or near


class _Sized(NamedTuple):
    """Stands for a tensor in a check, which reads its shape alone."""

    shape: tuple[int, ...]


def _stand_in(leaf: LeafPlan, sizes: Sizes) -> Any:
    if leaf.is_tensor:
        return _Sized(tuple(expression.evaluate(sizes) for expression in leaf.shape))
    return None if leaf.value is None else leaf.value.evaluate(sizes)


def _takes_leaves(other: Plan, plan: Plan, given: Values) -> bool:
    """True where a call of one plan has the leaves of another one, and its constants."""
    ours, theirs = ({leaf.path: leaf for leaf in one.leaves} for one in (plan, other))
    return ours.keys() == theirs.keys() and all(
        _is_alike(ours[path], leaf, given) for path, leaf in theirs.items()
    )


def _is_alike(ours: LeafPlan, theirs: LeafPlan, given: Values) -> bool:
    if theirs.is_constant and not ours.is_constant:
        return theirs.constant is not None and theirs.constant.value == given[ours.path]
    if ours.is_constant:
        return (ours.constant, ours.opaque) == (theirs.constant, theirs.opaque)
    kinds = [(leaf.dtype, leaf.device, len(leaf.shape), leaf.is_float) for leaf in (ours, theirs)]
    return kinds[0] == kinds[1]

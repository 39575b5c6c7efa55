"""What a model remembers when it begins: sizes of calls before the watching end graphs.

    if self.shape != x.shape:                       # what was made for the last shape
        self.grid, self.shape = grid_of(x.shape), x.shape

A model that was used before it was watched has such a shape, and a graph that was traced from there holds for all
shapes but this one. Any state that a call leaves behind is as good a beginning, since results must not hang on it.
So the model begins from what a call of sizes leaves behind that nobody asks for, and is traced anew.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from dataclasses import replace

from ..core.call import Arguments
from ..core.errors import ExportError
from ..infer.sizes import are_in_range, choose_sizes, is_possible
from ..lab.rerun import is_as_seen, rerun
from ..lab.stateful import Stateful
from ..observing.module_state import later_values, plain_values
from ..observing.state import StateKeeper
from ..pytrees.open import copy_tensors
from .one_plan.search import PlanSearch
from .program_graphs import ProgramGraphs

__all__ = ["begin_elsewhere"]

logger = logging.getLogger(__name__)
#: choices of sizes that are tried; those before them are for traces
_OFFSETS = range(5, 9)


def begin_elsewhere(program: ProgramGraphs) -> bool:
    """Lets the model begin from what a call of other sizes leaves behind, where graphs end at sizes that it
    remembers, and watched calls give the same from there; True where it does from now on.
    """
    lab = program.lab
    if lab.begins_elsewhere or isinstance(lab.model, Stateful) or not lab.kept.remembered:
        return False
    remembered = lab.kept.sizes
    found = (search for search in program.searches if remembered & set(_numbers_of(search)))
    search = next(found, None)
    if search is None:
        return False
    lab.begins_elsewhere = True
    return any(_begins_after(call, program) for call in _other_calls(search, remembered))


def _numbers_of(search: PlanSearch) -> Iterator[int]:
    """Yields the numbers that sizes are, or are not, in the graphs of a search."""
    for graph in search.current_graphs():
        for region in graph.contract.regions:
            for constraint in region.constraints:
                for part in ast.walk(ast.parse(constraint.formula, mode="eval")):
                    match part:
                        case ast.Compare(_, [ast.Eq() | ast.NotEq()], [ast.Constant(int(number))]):
                            yield number


def _other_calls(search: PlanSearch, remembered: frozenset[int]) -> Iterator[Arguments]:
    """Yields calls of sizes that are none of those that are remembered, nor of watched calls."""
    watched = [sizes for sizes, _ in search.domain.calls]
    for offset in _OFFSETS:
        try:
            sizes = choose_sizes(search.plan, offset=offset)
        except ExportError:
            return
        is_other = remembered.isdisjoint(sizes.values()) and sizes not in watched
        if is_other and are_in_range(search.plan, sizes) and is_possible(search.plan, sizes):
            yield search.calls.arguments(sizes)


def _begins_after(call: Arguments, program: ProgramGraphs) -> bool:
    """Lets the model begin after a call, where the first and the last watched call give what they gave."""
    lab, former = program.lab, program.lab.subject
    try:
        with lab.private_run(why="what a call of other sizes leaves behind"):
            before = plain_values(lab.model)
            lab(copy_tensors(call))
            left = later_values(lab.model, before)
    except Exception as error:
        logger.debug("the model refuses a call of other sizes: %s", error)
        return False
    lab.subject = replace(former, former={**former.former, **left}, keeper=StateKeeper())
    samples = [sample for sample in program.samples if not sample.altered]
    if left and all(is_as_seen(one, rerun(one, lab)) for one in (*samples[:1], *samples[-1:])):
        return True
    lab.subject = former
    return False

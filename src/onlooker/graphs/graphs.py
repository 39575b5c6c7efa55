"""Plans -> graphs: every watched call has to be served, and every graph is proven for the sizes
that it takes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ..core.drawing.alike import named_few
from ..core.errors import ExportError
from ..core.plan import Plan
from ..hypotheses.overrides import Overrides
from ..lab.lab import Lab
from ..lab.stateful import Stateful
from ..observing.wrapped_model import advice_on_wrapped
from ..repairs.numbers.quick_quotients import quotients_made_quickly
from ..trace.graph import Graph
from ..trace.torch_export import reads_state
from .adapters import check_adapters
from .asked_ranges import check_asked_ranges
from .beginning import begin_elsewhere
from .equal_blocks import check_equal_blocks
from .first_graphs import add_first_graphs
from .left_out import (
    add_calls_without_masks,
    add_free_options,
    add_watched_ways,
    settle_absent_tensors,
)
from .prepare import Prepared
from .program_graphs import ProgramGraphs
from .refused_calls import add_sides_of_masks, complete_observed, drop_useless
from .sides.side_runs import SideRuns
from .sides.symbolic_sizes import WayDiffersError

__all__ = ["export_graphs"]

logger = logging.getLogger(__name__)
#: attributes that a verdict names
_MOST_NAMED = 4


@quotients_made_quickly()
def export_graphs(
    plans: Sequence[Plan], prepared: Prepared, lab: Lab, overrides: Overrides | None
) -> tuple[list[Graph], list[str]]:
    """Returns the graphs of all plans that torch can export, and the reasons why not of the others.

    Every kept call that no graph takes, though the model takes it, leads to further traces, until
    all are served or no further graph helps. Then the sizes of interest that no graph holds are
    traced. The graph that serves most watched calls is the first one, and is called ``main``.

    :raises ExportError: when not one plan can be exported, or what is exported serves no kept call:
        ``no-call-served``
    :raises UsageError: ``range-beyond-bound`` for a range with sizes that the model refuses
    :raises UnsupportedError: ``blocks-differ``, ``adapters-not-lifted``
    """
    program = ProgramGraphs(prepared, lab, overrides or Overrides())
    add_first_graphs(program, plans)
    if begin_elsewhere(program):
        return export_graphs(plans, prepared, lab, overrides)
    check_asked_ranges(program.overrides, program.searches)
    # every watched call has to be served: in other forms, then call by call
    add_watched_ways(program)
    complete_observed(program)
    if lab.rolled_numbers and not all(map(program.serves, program.samples)):
        # a step of a loop assumes of a number what does not hold for a watched call
        lab.rolls_numbers = lab.rolled_numbers = False
        return export_graphs(plans, prepared, lab, overrides)
    drop_useless(program)
    add_sides_of_masks(program)
    # sizes of interest that no graph holds
    for search in program.searches:
        search.drop_unwanted()
        program.explore(search)
    # other forms of calls, compared with the graphs at all sizes that these hold by now
    add_calls_without_masks(program)
    settle_absent_tensors(program)
    _note_calls_after_others(program)
    add_free_options(program)
    _find_broadcast_axes(program)
    _check_watched_calls(program)
    # graphs stand for several blocks or adapters: each has to give the same graph
    check_equal_blocks(program)
    check_adapters(program)
    return program.finished(), program.refusals


def _find_broadcast_axes(program: ProgramGraphs) -> None:
    """Lets calls have a size of 1 where graphs only broadcast, but not without experiments, nor where the
    user wants the sizes of watched calls alone.
    """
    if program.overrides.probe and not program.overrides.observed:
        for search in program.searches:
            with program.noting(search):
                search.find_broadcast_axes()


def _note_calls_after_others(program: ProgramGraphs) -> None:
    """Compares a model that remembers something, such as a table or that it was called, with the graphs
    after a call: these compute what the first call computes. The verdict says where they differ, or
    where that was not shown. Sizes that are too large to be tried are left out, and so are attributes that
    each call sets before it reads them.

    :raises ExportError: ``model-keeps-state`` where the state that was asked for lacks something
    """
    kept, model = program.lab.kept, program.lab.model
    regions = [
        region for search in program.searches for graph in search.graphs for region in graph.regions
    ]
    remembered = [
        path for path in kept.remembered if not all(path in region.unread for region in regions)
    ]
    if isinstance(model, Stateful):
        remembered += model.unread
    if not remembered or not program.samples:
        return
    for search in program.searches:
        try:
            search.end_at(SideRuns(search, program.lab).limits_after_a_call(program.samples[0]))
        except WayDiffersError as different:
            logger.info("after another call: %s", different)
            if isinstance(model, Stateful):
                raise reads_state(
                    search.plan, dict.fromkeys(remembered, ""), is_watched=True
                ) from different
            kept.difference = f"it reads {named_few(remembered, _MOST_NAMED)}: {different}"
            return


def _check_watched_calls(program: ProgramGraphs) -> None:
    """Passes when there are graphs, and one of them serves a kept call.

    :raises ExportError: ``no-call-served``, or what torch says of the first plan
    """
    if program.first_refusal is not None and not program.searches:
        raise program.first_refusal
    if program.samples and not any(map(program.serves, program.samples)):
        raise _serving_nothing(program)


def _serving_nothing(program: ProgramGraphs) -> ExportError:
    """Returns the error, with the lines of the model that made sizes or values a part of graphs."""
    graphs = program.graphs
    sample = program.samples[0]
    failing = []
    for search in program.searches[:1]:
        sizes = search.calls.sizes_of(sample)
        failing = [
            c for graph in search.current_graphs()[:1] for c in graph.contract.failing(sizes)
        ]
    why = "".join(f" {graphs[0].name} needs {constraint}." for constraint in failing[:2])
    if not failing and graphs:
        why = program.refusal_of(graphs[0], sample)
    calls = ", ".join(str(sample.call.index) for sample in program.samples[:6])
    return ExportError(
        f"torch.export gives {len(graphs)} graphs, and none takes a call that was watched"
        f" (calls {calls}).{why}",
        slug="no-call-served",
        hint=(
            f"{advice_on_wrapped(program.lab.model)}Write these lines without numbers of Python that"
            " are made from sizes or values, or pin the axes that they ask about with static=."
        ),
    )

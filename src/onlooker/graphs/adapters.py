"""Does a model with one of its adapters give what its copy gives, in which the adapter is an argument?"""

from __future__ import annotations

from dataclasses import replace

from ..core.errors import UnsupportedError
from ..lab.rerun import difference
from ..observing.state import StateKeeper
from ..observing.wrapping.adapted_model import NO_ADAPTER, AdaptedModel, with_adapters
from .program_graphs import ProgramGraphs

__all__ = ["check_adapters"]


def check_adapters(program: ProgramGraphs) -> None:
    """Passes for a model without adapters that are an argument, and where each adapter, and none, runs
    the first kept call with the same result.

    :raises UnsupportedError: ``adapters-not-lifted``
    """
    subject = program.lab.subject
    lifted = subject.watched
    if not isinstance(lifted, AdaptedModel) or not program.samples:
        return
    arguments = program.samples[0].arguments()
    own = {name: value for name, value in arguments.items() if name != lifted.argument}
    runner = replace(subject, changed=())
    for name, weights in lifted.sets().items():
        active = [] if name == NO_ADAPTER else [name]
        model = with_adapters(lifted.model, active)
        itself = replace(runner, model=model, original=None, keeper=StateKeeper())
        found = difference(itself.try_out(own), runner.try_out({**own, lifted.argument: weights}))
        if found:
            raise UnsupportedError(
                f"The adapter {name} cannot be an argument: with it as one, call"
                f" {program.samples[0].call.index} gives another result ({found}).",
                slug="adapters-not-lifted",
                hint="Export the model with one adapter, merged perhaps.",
            )

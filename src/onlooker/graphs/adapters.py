"""Does a model with one of its adapters give what its copy gives, in which the adapter is an argument?"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..core.errors import ExportError, UnsupportedError
from ..lab.rerun import difference
from ..observing.state import StateKeeper
from ..observing.wrapping.adapted_model import NO_ADAPTER, AdaptedModel, with_adapters
from .program_graphs import ProgramGraphs

__all__ = ["check_adapters", "lifting_adapters"]


@contextlib.contextmanager
def lifting_adapters(model: Any) -> Iterator[None]:
    """Inside the block a model that runs with its adapters, and not with one as an argument, is refused
    for that reason.

    :raises UnsupportedError: ``adapters-not-lifted``
    """
    try:
        yield
    except ExportError as error:
        if isinstance(model, AdaptedModel) and error.slug == "replay-refused":
            why = f"a watched call raises {type(error.__cause__).__name__}: {error.__cause__}"
            raise _not_lifted(why) from error
        raise


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
            index = program.samples[0].call.index
            raise _not_lifted(f"with {name}, call {index} gives another result ({found})")


def _not_lifted(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"The adapters cannot be an argument: with one as an argument, {why}.",
        slug="adapters-not-lifted",
        hint="Export the model with one adapter, merged perhaps; and watch it in evaluation mode.",
    )

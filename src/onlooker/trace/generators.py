"""Generators of random numbers that a call passes: any other one does as well, where the model does
not use it.

A trace gets a generator that refuses to be read, and the graph must not hold it. So the graph is
the same for every generator on the same device. Models that use the generator are refused: a graph
would draw from the watched one for ever.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..repairs.inner_gradients import TRANSFORM_USED
from ..torch_internals.graph_modules import nodes_of
from ..torch_internals.modes import is_functorch_wrapped_tensor

__all__ = ["NoGraphError", "check_generators", "told_of_generators", "without_generator"]


class NoGraphError(RuntimeError):
    """The model does what no graph can do; ``hint`` says what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint: str = hint


def _generator_is_used() -> NoGraphError:
    return NoGraphError(
        "a torch.Generator that a call passes or the model holds is used, and a graph can only draw from torch's own",
        "Draw the random numbers outside of the model, and pass them.",
    )


def told_of_generators(error: Exception) -> Exception:
    """The error of a trace; one of ours where it ended in a function of torch that was given a generator: torch says
    there that a size is no number.
    """
    place = error.__traceback__
    while place is not None:
        named = place.tb_frame.f_locals.get("kwargs")
        given = named.values() if isinstance(named, dict) else ()
        if any(isinstance(value, torch.Generator) for value in given):
            return _generator_is_used()
        place = place.tb_next
    return error


class _Unread(torch.Generator):
    """A generator whose state nobody may read or set."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise _generator_is_used()

    get_state = set_state = initial_seed = manual_seed = seed = _refuse
    clone_state = graphsafe_get_state = graphsafe_set_state = _refuse
    get_offset = set_offset = _refuse


def without_generator(value: Any) -> Any:
    """A generator that refuses to be read in the place of a generator; any other value itself."""
    return _Unread(device=value.device) if isinstance(value, torch.Generator) else value


def check_generators(program: torch.export.ExportedProgram) -> None:
    """Passes for a graph that holds no generator, and no tensor of a derivative: ``torch.func.grad``
    wraps what it is given, and torch.export takes the wrapped tensor for a constant without values.

    :raises NoGraphError: for one that does
    """
    arguments = (
        value for node in nodes_of(program) for value in (*node.args, *node.kwargs.values())
    )
    if any(
        isinstance(value, torch.Generator) for value in (*program.constants.values(), *arguments)
    ):
        raise _generator_is_used()
    tensors = [value for value in program.constants.values() if isinstance(value, torch.Tensor)]
    if any(map(is_functorch_wrapped_tensor, tensors)):
        raise NoGraphError(
            f"{TRANSFORM_USED}, and torch.export makes a constant of the tensor that it is given",
            "Compute the derivative outside of the model, or by formulas in it.",
        )

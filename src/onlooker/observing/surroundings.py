"""The surroundings of a call, read from torch and put there again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ..core.call import Call
from ..core.drawing.alike import named_few
from ..core.errors import ObservationError
from ..core.surroundings import Autocast, Gradients, Surroundings
from ..pytrees.open import dtype_of
from ..torch_internals.modes import is_any_autocast_enabled

__all__ = [
    "autocast_of",
    "autocast_state",
    "inside_autocast",
    "inside_gradients",
    "outside_autocast",
    "record_gradients",
    "surroundings_now",
]

#: the kinds of devices that torch has autocast for
_KINDS = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "ipu", "xla", "privateuseone")
_PLAIN = {gradients: Surroundings((), gradients) for gradients in Gradients}
_MOST_NAMED = 6


def surroundings_now() -> Surroundings:
    """The state of torch in which the caller runs."""
    if torch.is_inference_mode_enabled():
        gradients = Gradients.INFERENCE
    else:
        gradients = Gradients.RECORDED if torch.is_grad_enabled() else Gradients.NO_GRAD
    if not is_any_autocast_enabled():
        return _PLAIN[gradients]
    cache = torch.is_autocast_cache_enabled()
    autocast = tuple(
        Autocast(kind, str(torch.get_autocast_dtype(kind)), cache)
        for kind in _KINDS
        if torch.is_autocast_enabled(kind)
    )
    return Surroundings(autocast, gradients)


def autocast_state(device: str) -> str:
    """Returns the dtype to which autocast casts for a kind of devices now; ``off`` where it does not.

    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     autocast_state("cpu")
    'torch.bfloat16'
    >>> autocast_state("cpu")
    'off'
    """
    return str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "off"


def autocast_of(calls: Iterable[Call]) -> tuple[Autocast, ...]:
    """The autocast that all calls were made in. A call of which nothing is noted, as in recordings
    of older versions, is passed over.

    A graph has one autocast state: it is no argument, by which a call could find its graph.

    :raises ObservationError: ``different-autocast`` for calls that were made in different ones
    """
    states: dict[frozenset[tuple[str, str]], tuple[Autocast, ...]] = {}
    numbers: dict[frozenset[tuple[str, str]], list[int]] = {}
    for call in calls:
        if call.surroundings is not None:
            casts = call.surroundings.casts
            states.setdefault(casts, call.surroundings.autocast)
            numbers.setdefault(casts, []).append(call.index)
    if len(states) > 1:
        found = [(numbers[casts], state) for casts, state in states.items()]
        raise _different(found)
    return next(iter(states.values()), ())


def _different(found: list[tuple[list[int], tuple[Autocast, ...]]]) -> ObservationError:
    texts = []
    for numbers, state in found:
        calls = named_few([*map(str, numbers)], _MOST_NAMED)
        where = f"inside {' and '.join(map(str, state))}" if state else "without autocast"
        texts.append(f"{'calls' if len(numbers) > 1 else 'call'} {calls} {where}")
    return ObservationError(
        f"The calls were made under different autocast: {'; '.join(texts)}. The same arguments give"
        " other results there, and a program cannot tell such calls apart.",
        slug="different-autocast",
        hint="Watch the calls of each state with an observer of its own.",
    )


def record_gradients(calls: Iterable[Call]) -> bool:
    """True where there are calls, and gradients were recorded in each."""
    found = {call.surroundings.gradients if call.surroundings else None for call in calls}
    return found == {Gradients.RECORDED}


def inside_gradients(gradients: Gradients) -> contextlib.AbstractContextManager[Any]:
    """A block in which gradients are recorded, or not, as they were in a call."""
    if gradients is Gradients.INFERENCE:
        return torch.inference_mode()
    return torch.set_grad_enabled(gradients is Gradients.RECORDED)


@contextlib.contextmanager
def outside_autocast() -> Iterator[None]:
    """Inside the block autocast is off, whatever the caller stands in.

    What a trace cast inside the block is not kept: such a weight has no values, and the caller's own
    block would go on with it.
    """
    if not is_any_autocast_enabled():
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.callback(torch.clear_autocast_cache)
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextlib.contextmanager
def inside_autocast(states: Iterable[Autocast], *, keeps_casts: bool) -> Iterator[None]:
    """Inside the block autocast is on as it was in a call; a trace writes it into its graph.

    Where it ``keeps_casts``, weights are cast once in the block if they were in the call. Such a
    weight stays until the outermost block ends, which may be one of the caller.
    """
    with contextlib.ExitStack() as stack:
        for state in states:
            dtype = dtype_of(state.dtype)
            cached = keeps_casts and state.cache
            stack.enter_context(torch.autocast(state.device, dtype=dtype, cache_enabled=cached))
        yield

"""Small sizes that stand for large ones: a run at 5 tokens costs little, one at 500 does not.

A convolution network refuses small images, or reduces them to one pixel, and a model may branch on
a length. So small sizes are taken only where the model runs the same operators as near to what was
seen, and no tensor of the run has a size of 0 or 1 that is larger there. Both runs are on tensors
without values.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from ..core.errors import ExportError
from ..core.plan import Plan
from ..core.sizes.expression import Sizes
from ..infer.sizes import (
    Scale,
    choose_sizes,
    cut_sizes,
    example_sizes,
    is_below_observed,
    is_general,
    large_symbols,
    size_label,
)
from ..materialise.arguments import Calls, leaf_values
from ..materialise.room import with_room
from ..observing.store import Sample
from .lab import Lab, SpentError

__all__ = ["representative", "short_call"]

logger = logging.getLogger(__name__)
#: a call is cut where that leaves at most this part of most of its arguments
_MOST_LEFT = 1 / 32
#: the least work of a call that is worth a cut, as a part of the most work of one run
_WORTH_A_CUT = 1 / 5
#: small sizes that a call is cut to, one after the other
_MOST_CUTS = 2


def representative(
    calls: Calls, lab: Lab, choices: Iterable[Sizes], *, of_trace: bool = False
) -> Iterator[Sizes]:
    """The choices without those that are smaller than what was seen and do not stand for it.

    Each has room for the values that have to stand in a row: see :func:`with_room`. For the sizes
    ``of_trace``, which says itself for which sizes it stands, two of equal blocks are run.
    """
    for choice in choices:
        sizes = with_room(calls, choice)
        is_below = is_below_observed(calls.plan, sizes)
        with lab.again_without_repeats() if of_trace else contextlib.nullcontext():
            is_chosen = not is_below or _is_representative(calls, lab, sizes)
        if is_chosen:
            yield sizes
        else:
            logger.debug("%s is too small to stand for what was seen", size_label(sizes))


def _is_representative(calls: Calls, lab: Lab, sizes: Sizes) -> bool:
    """True for sizes that stand for what was seen; none do that are smaller than others that do
    not.
    """
    large = {name: sizes[name] for name in large_symbols(calls.plan)}
    if any(_is_within(large, other) for other in lab.too_small):
        return False
    stands = _stands_for_large(calls, lab, sizes)
    if not stands:
        lab.too_small.append(large)
    return stands


def _is_within(sizes: Sizes, others: Sizes) -> bool:
    """True where the same symbols have sizes that are no larger."""
    return sizes.keys() == others.keys() and all(sizes[name] <= others[name] for name in sizes)


def short_call(plan: Plan, sample: Sample, lab: Lab) -> Sample | None:
    """A kept call with small sizes for its large ones, and the result of the model for it.

    None where the call is not large, or where no small sizes stand for its own. A run of a call that
    is little work costs less than the runs without values that would tell.
    """
    if lab.work_of(leaf_values(sample)) < lab.most_work * _WORTH_A_CUT:
        return None
    calls = Calls(plan, [sample])
    sizes = calls.sizes_of(sample)
    for choice in islice(example_sizes(plan), _MOST_CUTS):
        small = with_room(calls, choice)
        cut = cut_sizes(plan, sizes, small)
        try:
            values = calls.values(cut)
            leaves = tuple(values[path] for path in sample.inputs.structure.paths())
            if _part_left(leaves, sample) > _MOST_LEFT:
                continue
            short = replace(sample, inputs=replace(sample.inputs, leaves=leaves))
            why = f"call {sample.call.index} at {size_label(cut)}"
            both = (dict(one.arguments()) for one in (sample, short))
            runs = [lab.shapes_of_run(call, why=f"{why}, without values") for call in both]
            if _are_alike(*runs):
                return replace(short, outputs=lab.run(dict(short.arguments()), why=why, memo=True))
        except SpentError:
            return None
        except Exception as error:
            logger.debug("call %s is not cut: %s", sample.call.index, error)
    return None


def _part_left(short: Sequence[Any], sample: Sample) -> float:
    """Returns the share of most arguments that is left.

    A step that decodes one token is not long, though its cache and its mask are.
    """
    parts: dict[str, float] = {}
    for one, (path, whole) in zip(short, sample.inputs.items(), strict=True):
        if isinstance(whole, torch.Tensor) and whole.numel():
            part = one.numel() / whole.numel()
            parts[path.root] = max(part, parts.get(path.root, 0.0))
    return statistics.median_high(parts.values()) if parts else 1.0


def _stands_for_large(calls: Calls, lab: Lab, sizes: Sizes) -> bool:
    """True where the operators and the sizes of 0 and 1 are those of sizes near to what was seen.

    Where that is not known, since the model needs values or the budget has ended, it is False. Of
    small symbols, such as a batch, both runs have the same sizes where that is possible.
    """
    plan = calls.plan
    try:
        large = with_room(calls, choose_sizes(plan, scale=Scale.NEAR))
        cut = {name: sizes[name] for name in large_symbols(plan)}
        alike = {**large, **cut}
        is_one = any(size < 2 for size in sizes.values())
        small = sizes if is_one or not is_general(plan, alike) else alike
        runs = [
            lab.shapes_of_run(
                calls.arguments(choice),
                why=f"operators at {size_label(choice)}, without values",
            )
            for choice in (large, small)
        ]
    except (ExportError, SpentError) as error:
        logger.debug("%s", error)
        return False
    except Exception as error:
        logger.debug("the model is not run without values: %s", error)
        return False
    return _are_alike(*runs)


def _are_alike(large: tuple[Any, ...], small: tuple[Any, ...]) -> bool:
    return len(large) == len(small) and all(
        one[0] == other[0] and _same_ones(one[1], other[1])
        for one, other in zip(large, small, strict=True)
    )


def _same_ones(large: Sequence[tuple[int, ...]], small: Sequence[tuple[int, ...]]) -> bool:
    """True where shapes have as many sizes, and those of 0 and 1 at the same places."""
    return [len(shape) for shape in large] == [len(shape) for shape in small] and all(
        min(one, 2) == min(other, 2)
        for shape, further in zip(large, small, strict=True)
        for one, other in zip(shape, further, strict=True)
    )

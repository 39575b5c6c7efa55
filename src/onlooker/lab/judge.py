"""Compares the results of two runs: what the model computes, without the inputs that it passes
through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..core.call import Values
from ..core.spec import Axis
from ..core.structure import Result
from ..materialise.domains import Domains
from ..pytrees.comparisons.agree import Agreement, agreement
from ..pytrees.numbers import altered, as_dtype, as_numbers, is_same

__all__ = [
    "computed_outputs",
    "have_same_ranks",
    "perturbed",
    "results_agree",
    "results_equal",
    "results_within_rounding",
]

#: the largest difference that two ways to compute one result may have: attention with a mask rounds
#: otherwise than without one (1 to 6 units of float32 were met)
_ROUNDING = 1e-5


def results_agree(expected: Result, got: Result) -> bool:
    """True when two results have the same containers and the same values, within the tolerance
    of their dtypes.
    """
    if expected.structure != got.structure:
        return False
    return agreement(expected.structure.paths(), expected.leaves, got.leaves).holds


def results_equal(values: Values, first: Result, second: Result) -> bool:
    """True when the model computes the same numbers, to the last bit; inputs (of ``values``) that
    it passes through do not count.
    """
    return _agreement_of_computed(values, first, second, atol=0.0).difference == 0.0


def results_within_rounding(values: Values, first: Result, second: Result) -> bool:
    """True when two ways to compute one result could differ as much as these two results do.

    A value that was read can change a result by less: of an untrained network of many layers, a
    column of an image does.
    """
    return _agreement_of_computed(values, first, second, atol=_ROUNDING).holds


def _agreement_of_computed(
    values: Values, first: Result, second: Result, *, atol: float
) -> Agreement:
    """Compares the outputs that are no inputs passed through: returns how far they are apart."""
    all_paths = list(first.structure.paths())
    paths, before, after = [], [], []
    for position in computed_outputs(values.values(), first.leaves):
        paths.append(all_paths[position])
        before.append(first.leaves[position])
        after.append(second.leaves[position])
    return agreement(paths, before, after, atol=atol)


def have_same_ranks(expected: Result, got: Result) -> bool:
    """True when two results have as many leaves, and their tensors as many dimensions."""
    before = [getattr(leaf, "ndim", -1) for leaf in expected.leaves]
    after = [getattr(leaf, "ndim", -1) for leaf in got.leaves]
    return before == after


def computed_outputs(inputs: Iterable[Any], outputs: Sequence[Any]) -> list[int]:
    """The positions of the outputs that are no input, passed through as it came; all where every
    output is one.

    An output that is passed through does not show whether the model reads it.

    >>> x = torch.arange(3.0)
    >>> computed_outputs([x], [x + 1, x.clone()]), computed_outputs([x], [x.clone()])
    ([0], [0])
    """
    known: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for value in inputs:
        if isinstance(value, torch.Tensor):
            known.setdefault(_fingerprint(value), []).append(value)
    own = [i for i, leaf in enumerate(outputs) if not _is_passed_through(leaf, known)]
    if any(isinstance(outputs[i], torch.Tensor) for i in own):
        return own
    return list(range(len(outputs)))


def _is_passed_through(leaf: Any, known: Mapping[tuple[Any, ...], list[torch.Tensor]]) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() < 2:
        return False
    return any(is_same(leaf, value) for value in known.get(_fingerprint(leaf), ()))


def _fingerprint(value: torch.Tensor) -> tuple[Any, ...]:
    """Returns a value that equal tensors share, so that few are compared element by element."""
    first = as_numbers(value.detach()).reshape(-1)[0].item() if value.numel() else None
    return tuple(value.shape), value.dtype, value.device, first


def perturbed(values: Values, before: Values, axes: Sequence[Axis], domains: Domains) -> Values:
    """The values with other valid numbers in what these axes have more than before; an int is as
    it was before.

    Numbers that were there before stay: where no others are valid beside them, all stay as they
    are.
    """
    # ids may become any others; of times that have to rise the new ones come nearer to those before, or
    # to each other; what allows none of these stays
    for others in (_other_numbers, _nearer, _closer_together, _turned_round):
        changed = dict(values)
        for axis in axes:
            value = changed[axis.path]
            if axis.dim is None or not isinstance(value, torch.Tensor):
                changed[axis.path] = before[axis.path]
                continue
            old_size = int(before[axis.path].shape[axis.dim])
            value = value.clone()
            added = value.narrow(axis.dim, old_size, value.shape[axis.dim] - old_size)
            added.copy_(others(added, value, axis.dim))
            changed[axis.path] = value
        valid = domains.clamped(changed)
        keeps = all(_keeps(valid[path], value, before.get(path)) for path, value in changed.items())
        if keeps and all(_is_other(valid[axis.path], values[axis.path]) for axis in axes):
            return valid
    return dict(values)


def _keeps(valid: Any, proposed: Any, before: Any) -> bool:
    """True where what was made valid has the numbers of the proposed tensor, so far as they
    were there before.
    """
    if valid is proposed:
        return True
    known = tuple(slice(0, size) for size in getattr(before, "shape", ()))
    return bool(torch.equal(as_numbers(valid)[known], as_numbers(proposed)[known]))


def _is_other(valid: Any, value: Any) -> bool:
    """True for an int, and for a tensor with other numbers."""
    return not isinstance(value, torch.Tensor) or not value.numel() or not is_same(valid, value)


def _other_numbers(added: torch.Tensor, value: torch.Tensor, dim: int) -> torch.Tensor:
    """Numbers of the same kind that are all different from those of ``added``: ids stay ids,
    masks masks.
    """
    if value.dtype == torch.bool:
        return ~added
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return altered(added)
    numbers, present = as_numbers(value), as_numbers(added)
    low, high = numbers.min(), numbers.max()
    if bool(low == high):
        return as_dtype(torch.where(present > 0, present - 1, present + 1), value.dtype)
    return as_dtype(torch.where(present == low, high, low), value.dtype)


def _nearer(added: torch.Tensor, value: torch.Tensor, dim: int) -> torch.Tensor:
    """Numbers half way to those before them: what is sorted stays so."""
    if value.dtype == torch.bool or not added.numel() or added.shape[dim] == value.shape[dim]:
        return added
    numbers, present = as_numbers(value), as_numbers(added)
    n_before = value.shape[dim] - added.shape[dim]
    last = numbers.narrow(dim, n_before - 1, 1)
    return as_dtype(_half_way(last, present), value.dtype)


def _closer_together(added: torch.Tensor, value: torch.Tensor, dim: int) -> torch.Tensor:
    """Rows of numbers half as far from the first one of each: other rows that are sorted too."""
    if value.dtype == torch.bool or not added.numel():
        return added
    present = as_numbers(added)
    return as_dtype(_half_way(present[..., :1], present), value.dtype)


def _half_way(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    distance = end - start
    is_exact = end.dtype.is_floating_point or end.dtype.is_complex
    return start + (distance / 2 if is_exact else distance // 2)


def _turned_round(added: torch.Tensor, value: torch.Tensor, dim: int) -> torch.Tensor:
    """Returns the numbers in the other order: their sum stays."""
    return as_dtype(as_numbers(added).flip(dim), value.dtype)

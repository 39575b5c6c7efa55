"""Compares the results of two runs: what the model computes, without the inputs that it passes through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..core.path import Path
from ..core.spec import Axis
from ..core.structure import Tree
from ..pytrees.agree import agreement
from ..pytrees.numbers import altered, as_dtype, as_numbers, is_same

__all__ = ["computed_outputs", "have_same_ranks", "perturbed", "results_agree", "results_equal"]


def results_agree(expected: Tree[Any], got: Tree[Any]) -> bool:
    """True when two results have the same containers and the same values, within the tolerance of their dtypes."""
    if expected.structure != got.structure:
        return False
    return agreement(expected.structure.paths(), expected.leaves, got.leaves).holds


def results_equal(values: Mapping[Path, Any], first: Tree[Any], second: Tree[Any]) -> bool:
    """True when the model computes exactly the same; inputs (of ``values``) that it passes through do not count."""
    all_paths = list(first.structure.paths())
    paths, before, after = [], [], []
    for position in computed_outputs(values.values(), first.leaves):
        paths.append(all_paths[position])
        before.append(first.leaves[position])
        after.append(second.leaves[position])
    return agreement(paths, before, after, atol=0.0).holds


def have_same_ranks(expected: Tree[Any], got: Tree[Any]) -> bool:
    """True when two results have as many leaves, and their tensors as many dimensions."""
    before = [getattr(leaf, "ndim", -1) for leaf in expected.leaves]
    after = [getattr(leaf, "ndim", -1) for leaf in got.leaves]
    return before == after


def computed_outputs(inputs: Iterable[Any], outputs: Sequence[Any]) -> list[int]:
    """The positions of the outputs that are no input, passed through as it came; all where every output is one.

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
    """What equal tensors share, so that few are compared element by element."""
    first = as_numbers(value.detach()).reshape(-1)[0].item() if value.numel() else None
    return tuple(value.shape), value.dtype, value.device, first


def perturbed(values: Mapping[Path, Any], before: Mapping[Path, Any], axes: Sequence[Axis]) -> dict[Path, Any]:
    """The values with other numbers in what these axes have more than before; an int is as it was before."""
    changed = dict(values)
    for axis in axes:
        value = changed[axis.path]
        if axis.dim is None or not isinstance(value, torch.Tensor):
            changed[axis.path] = before[axis.path]
            continue
        old_size = int(before[axis.path].shape[axis.dim])
        value = value.clone()
        added = value.narrow(axis.dim, old_size, value.shape[axis.dim] - old_size)
        added.copy_(_other_numbers(added, value))
        changed[axis.path] = value
    return changed


def _other_numbers(added: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Numbers of the same kind that are all different from those of ``added``: ids stay ids, masks masks."""
    if value.dtype == torch.bool:
        return ~added
    if value.dtype.is_floating_point or value.dtype.is_complex:
        return altered(added)
    numbers, present = as_numbers(value), as_numbers(added)
    low, high = numbers.min(), numbers.max()
    if bool(low == high):
        return as_dtype(torch.where(present > 0, present - 1, present + 1), value.dtype)
    return as_dtype(torch.where(present == low, high, low), value.dtype)

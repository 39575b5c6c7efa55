"""Real arguments for chosen sizes, grown from the values of observed calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core.errors import ObservationError
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..observing.store import Sample
from ..pytrees.open import close_tree, spec_of
from .counting import counted
from .domains import Domains, domains_of
from .tensors import filled_tensor, resized

__all__ = ["close_arguments", "dtype_of", "fill_of", "leaf_values", "materialise"]


def dtype_of(name: str) -> torch.dtype:
    """The dtype that torch prints as ``name``."""
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype


def materialise(
    plan: Plan,
    sizes: Mapping[str, int],
    samples: Sequence[Sample],
    *,
    varied: bool = True,
    domains: Domains | None = None,
) -> dict[Path, Any]:
    """A value per leaf of the plan, for a size per symbol.

    A leaf is grown from the call that has the most leaves among those that have it, and that the
    plan is about where there is one; a leaf that no kept call has gets its fill. Every tensor stays
    in the domain that the kept calls show; ``domains`` are these, where they are known already.

    :raises ObservationError: ``no-values`` when a leaf has neither values nor a fill
    """
    own = frozenset(plan.calls)
    ordered = sorted(
        samples, key=lambda sample: (sample.call.index not in own, -len(sample.inputs.leaves))
    )
    seen = [leaf_values(sample) for sample in ordered]
    proposed = {leaf.path: _value(plan, leaf, sizes, seen, varied) for leaf in plan.leaves}
    return (domains or domains_of(samples)).lawful(proposed)


def leaf_values(sample: Sample) -> dict[Path, Any]:
    """The values of a call by path; they are not copied."""
    return dict(zip(sample.inputs.structure.paths(), sample.inputs.leaves, strict=True))


def _value(
    plan: Plan,
    leaf: LeafPlan,
    sizes: Mapping[str, int],
    seen: Sequence[Mapping[Path, Any]],
    varied: bool,
) -> Any:
    if leaf.is_tensor:
        shape = [expression.evaluate(sizes) for expression in leaf.shape]
        held = [v[leaf.path] for v in seen if isinstance(v.get(leaf.path), torch.Tensor)]
        candidates = [
            tensor for tensor in held if tensor.ndim == len(shape)
        ]  # other graphs may have other ranks
        positions = counted(plan, leaf, sizes, seen)
        if positions is not None:
            return positions
        if candidates:
            return resized(_best_source(candidates, shape), shape, varied=varied)
        if leaf.fill is not None:
            return fill_of(leaf, sizes)
        raise ObservationError(
            f"No call with values for {leaf.path.code()} was kept.",
            slug="no-values",
            hint="Raise store_n_calls so that a call which has it is kept.",
        )
    if leaf.value is not None:
        return leaf.value.evaluate(sizes)
    if leaf.constant is not None:
        return leaf.constant.value
    if leaf.is_float:
        floats = (v[leaf.path] for v in seen if leaf.takes_float(v.get(leaf.path)))
        return next(floats, leaf.floats[0].value)
    held = [v[leaf.path] for v in seen if leaf.path in v]
    return next(
        (value for value in held if spec_of(value) == leaf.opaque), held[0] if held else None
    )


def _best_source(candidates: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor:
    """The first tensor that is at least as large everywhere, else the one with the most
    elements.
    """
    for tensor in candidates:
        if all(have >= want for have, want in zip(tensor.shape, shape, strict=True)):
            return tensor
    return max(candidates, key=lambda tensor: tensor.numel())


def fill_of(leaf: LeafPlan, sizes: Mapping[str, int]) -> Any:
    """The value of a leaf that a call does not have."""
    if leaf.fill is None:
        return None
    if not leaf.is_tensor:
        return leaf.fill.value
    shape = [expression.evaluate(sizes) for expression in leaf.shape]
    if leaf.fill.kind == "empty" and leaf.fill.dim is not None:
        shape[leaf.fill.dim] = 0
    return filled_tensor(leaf.fill.kind, shape, dtype_of(leaf.dtype), leaf.device)


def close_arguments(plan: Plan, values: Mapping[Path, Any]) -> dict[str, Any]:
    """The arguments by name, from a value per leaf."""
    arguments: dict[str, Any] = close_tree(
        plan.structure, [values[path] for path in plan.structure.paths()]
    )
    return arguments

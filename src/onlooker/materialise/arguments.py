"""Real arguments for chosen sizes, grown from the values of observed calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch

from ..core.call import Arguments, Values
from ..core.errors import ObservationError
from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Sizes
from ..observing.store import Sample
from ..pytrees.open import close_tree, dtype_of, spec_of
from ..pytrees.unusual import unusual
from .counting import counted, sizes_of
from .domains import Domains, domains_of
from .tensors import filled_tensor, resized

__all__ = ["Calls", "close_arguments", "fill_of", "leaf_values"]


class Calls:
    """Makes calls of a plan, of any sizes, from the calls whose values were kept.

    ``own`` are the kept calls that the plan was made of. A leaf is grown from the call that has the
    most leaves among those that have it, an own one where there is one; a leaf that no kept call has
    gets its fill. Every tensor stays in the domain that the kept calls show. ``weights`` is the argument
    that has the weights of blocks or of adapters, where there is one.
    """

    def __init__(self, plan: Plan, samples: Iterable[Sample], weights: str = "") -> None:
        self.plan, self.samples, self.weights = plan, tuple(samples), weights
        self.own = [sample for sample in self.samples if sample.call.index in plan.calls]

    @cached_property
    def domains(self) -> Domains:
        """The domains that the kept calls show."""
        return domains_of(self.samples)

    @cached_property
    def _seen(self) -> list[Values]:
        """The values of the kept calls, those that leaves are grown from first."""
        own = frozenset(self.plan.calls)
        ordered = sorted(
            self.samples,
            key=lambda sample: (sample.call.index not in own, -len(sample.inputs.leaves)),
        )
        return [leaf_values(sample) for sample in ordered]

    def sizes_of(self, sample: Sample) -> Sizes:
        """The sizes of the symbols in a call."""
        return sizes_of(self.plan, leaf_values(sample))

    def values(self, sizes: Sizes, *, varied: bool = True, has_floats: bool = True) -> Values:
        """A value per leaf of the plan, for a size per symbol. Unless it ``has_floats``, those in tensors are
        arbitrary: for runs without floats.

        :raises ObservationError: ``no-values`` when a leaf has neither values nor a fill
        """
        proposed = {
            leaf.path: _value(self.plan, leaf, sizes, self._seen, varied, has_floats)
            for leaf in self.plan.leaves
        }
        return self.domains.clamped(proposed)

    def shapes(self, sizes: Sizes) -> Values:
        """A meta tensor per tensor of the plan, for a size per symbol: tells the work of a run at these sizes before
        its values are made.
        """
        return {
            leaf.path: torch.empty(
                [one.evaluate(sizes) for one in leaf.shape],
                dtype=dtype_of(leaf.dtype),
                device="meta",
            )
            for leaf in self.plan.leaves
            if leaf.is_tensor
        }

    def arguments(self, sizes: Sizes) -> Arguments:
        """The arguments by name, for a size per symbol.

        :raises ObservationError: as :meth:`values`
        """
        return close_arguments(self.plan, self.values(sizes))

    def arguments_of(self, values: Values) -> Arguments:
        """The arguments by name, from a value per leaf."""
        return close_arguments(self.plan, values)


def leaf_values(sample: Sample) -> Values:
    """The values of a call by path; they are not copied."""
    return dict(zip(sample.inputs.structure.paths(), sample.inputs.leaves, strict=True))


def _value(
    plan: Plan,
    leaf: LeafPlan,
    sizes: Sizes,
    seen: Sequence[Values],
    varied: bool,
    has_floats: bool,
) -> Any:
    if leaf.is_tensor:
        shape = [expression.evaluate(sizes) for expression in leaf.shape]
        held = [v[leaf.path] for v in seen if isinstance(v.get(leaf.path), torch.Tensor)]
        # other graphs may have other ranks and other dtypes
        of_rank = [tensor for tensor in held if tensor.ndim == len(shape)]
        candidates = [one for one in of_rank if str(one.dtype) == leaf.dtype] or of_rank
        positions = counted(plan, leaf, sizes, seen)
        if positions is not None:
            return positions
        if candidates:
            source = _best_source(candidates, shape)
            if not has_floats and source.is_floating_point() and unusual(source) is None:
                return source.detach().new_empty(shape)
            return resized(source, shape, varied=varied)
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


def fill_of(leaf: LeafPlan, sizes: Sizes) -> Any:
    """The value of a leaf that a call does not have."""
    if leaf.fill is None:
        return None
    if not leaf.is_tensor:
        return leaf.fill.value
    shape = [expression.evaluate(sizes) for expression in leaf.shape]
    if leaf.empty_dim is not None:
        shape[leaf.empty_dim] = 0
    return filled_tensor(leaf.fill.kind, shape, dtype_of(leaf.dtype), leaf.device)


def close_arguments(plan: Plan, values: Values) -> Arguments:
    """The arguments by name, from a value per leaf."""
    arguments: Arguments = close_tree(
        plan.structure, [values[path] for path in plan.structure.paths()]
    )
    return arguments

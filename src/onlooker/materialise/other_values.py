"""Other values for the arguments of a trial, of the same sizes: a constant of the program shows
only there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..core.call import Values
from ..core.plan import LeafPlan, Plan
from ..pytrees.numbers import as_dtype, as_numbers
from ..pytrees.open import map_tensors
from .arguments import Calls, leaf_values
from .domain import Domain

__all__ = ["as_parts", "in_other_layout", "numbers_beside", "redrawn"]

#: so often each number of a code comes again
_AGAIN = 4


def redrawn(
    calls: Calls,
    values: Values,
    *,
    beyond: bool,
    seed: int,
) -> Values | None:
    """Returns the leaves with values that were drawn anew, the same ones for the same ``seed``;
    None where there is nothing to draw.

    Ids come from those that were observed, in columns of their own where the last size never
    changes. Floats change their places, and an eighth of them is 0. With ``beyond``, ids come from
    the whole range of what was observed and floats change their sign. Masks, positions, and ints in
    fewer than two dimensions stay. All values stay in their domains: what is sorted is sorted, and
    what adds up to 1 does.
    """
    domains = calls.domains
    generator = torch.Generator().manual_seed((1 + beyond + 2 * seed) % (1 << 63))
    seen = [leaf_values(sample) for sample in calls.samples]
    changed = dict(values)
    for leaf in calls.plan.inputs:
        pool = [v[leaf.path] for v in seen if isinstance(v.get(leaf.path), torch.Tensor)]
        pool = [as_numbers(value) for value in pool if value.numel()]
        value = values[leaf.path]
        if (
            isinstance(value, torch.Tensor)
            and value.numel()
            and _is_free(value, domains.of(leaf.path))
        ):
            changed[leaf.path] = as_dtype(
                _drawn(leaf, as_numbers(value), pool, beyond, generator), value.dtype
            )
    return domains.changed(values, changed)


def numbers_beside(calls: Calls, values: Values) -> Iterator[Values]:
    """Gives the same leaves with each int tensor without axes one higher, then one lower.

    Such an int may be a length or an index, so that the model refuses some of these values.
    """
    single = [path for path, value in values.items() if _is_single_int(value)]
    for step in (1, -1) if single else ():
        changed = {path: values[path] + step for path in single}
        yield calls.domains.clamped({**values, **changed})


def _is_single_int(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim:
        return False
    return (
        not value.dtype.is_floating_point
        and not value.dtype.is_complex
        and value.dtype != torch.bool
    )


def _is_free(value: torch.Tensor, domain: Domain) -> bool:
    """True for a tensor whose values say nothing of sizes, positions, or what is hidden."""
    if domain.is_mask or value.is_complex() or value.layout != torch.strided:
        return False
    if as_numbers(value).dtype.is_floating_point:
        return True
    return (
        value.ndim > 1
        and not domain.is_binary
        and not domain.is_consecutive
        and domain.low < domain.high
    )


def _drawn(
    leaf: LeafPlan,
    value: torch.Tensor,
    pool: Sequence[torch.Tensor],
    beyond: bool,
    generator: torch.Generator,
) -> torch.Tensor:
    if value.dtype.is_floating_point:
        return _moved(value, beyond, generator)
    if not pool:
        return value
    wide = [p for p in pool if p.shape[-1] == value.shape[-1]]
    if leaf.shape[-1].is_constant and value.shape[-1] <= 16 and wide:
        columns = [
            _chosen(
                value[..., i], torch.cat([p[..., i].reshape(-1) for p in wide]), beyond, generator
            )
            for i in range(value.shape[-1])
        ]
        return torch.stack(columns, dim=-1)
    return _chosen(value, torch.cat([p.reshape(-1) for p in pool]), beyond, generator)


def _moved(value: torch.Tensor, negated: bool, generator: torch.Generator) -> torch.Tensor:
    """Returns the floats in other places, some of them 0."""
    flat = value.detach().reshape(-1)
    order = torch.randperm(flat.numel(), generator=generator)
    kept = (torch.rand(flat.numel(), generator=generator) >= 0.125).to(flat.device, flat.dtype)
    moved = flat[order.to(flat.device)] * kept
    return (-moved if negated else moved).reshape(value.shape)


def _chosen(
    value: torch.Tensor, pool: torch.Tensor, beyond: bool, generator: torch.Generator
) -> torch.Tensor:
    """Ids from the observed ones, or from their range; the least and the greatest are always among
    them.

    Between a few numbers that come again and again, and between an id and a mark such as -100,
    nothing is valid.
    """
    low, high = int(pool.min()), int(pool.max())
    if beyond and low >= 0 and len(set(pool.tolist())) * _AGAIN > pool.numel():
        flat = torch.randint(low, high + 1, (value.numel(),), generator=generator).to(
            value.device, value.dtype
        )
    else:
        picked = torch.randint(0, pool.numel(), (value.numel(),), generator=generator)
        flat = pool[picked.to(pool.device)].to(value.dtype)
    flat[0], flat[-1] = low, high
    return flat.reshape(value.shape)


def in_other_layout(plan: Plan, values: Values) -> Values | None:
    """Returns the values with tensors that are not contiguous; None where no tensor has two
    dimensions to exchange.
    """
    changed = dict(values)
    for leaf in plan.inputs:
        value = values[leaf.path]
        if isinstance(value, torch.Tensor) and value.ndim > 1 and value.layout == torch.strided:
            changed[leaf.path] = _laid_otherwise(value)
    strides = [v.stride() for v in changed.values() if isinstance(v, torch.Tensor)]
    before = [v.stride() for v in values.values() if isinstance(v, torch.Tensor)]
    return None if strides == before else changed


def _laid_otherwise(value: torch.Tensor) -> torch.Tensor:
    """Images with their channels last, which operators hand on to their results; rows of others as columns."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.ndim)
    images = value if last is None else value.contiguous(memory_format=last)
    return (
        value.transpose(0, -1).contiguous().transpose(0, -1) if images.is_contiguous() else images
    )


def as_parts(arguments: Any) -> Any:
    """The arguments with tensors that are parts of larger ones, with gaps between their elements."""
    return map_tensors(_as_part, arguments)


def _as_part(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        return tensor
    turned = tensor.transpose(0, -1) if tensor.ndim > 1 else tensor.reshape(tensor.shape or 1)
    larger = turned.new_zeros((*turned.shape[:-1], 2 * turned.shape[-1] + 1))
    part = larger[..., 1::2]
    part.copy_(turned)
    return part.transpose(0, -1) if tensor.ndim > 1 else part.reshape(tensor.shape)

"""Ints that count positions: ``arange(past, past + sequence)`` stays that for other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ..core.call import Call, Values
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..core.sizes.expression import Expression, Sizes
from ..core.spec import ConstantSpec, Spec
from ..core.structure import Tree

__all__ = ["counted", "known_sizes", "sizes_of", "values_of_specs", "watched_sizes"]


def watched_sizes(plan: Plan, calls: Iterable[Call]) -> list[tuple[Sizes, int]]:
    """The sizes of the symbols in each recorded call of a plan, and how often there was such a
    call.
    """
    found: list[tuple[Sizes, int]] = []
    for call in calls:
        if call.index in plan.calls:
            found.append((sizes_of(plan, values_of_specs(call.inputs)), call.count))
    return found


def values_of_specs(inputs: Tree[Spec]) -> dict[Path, object]:
    """The constants of a recorded call as they are; of tensors the specs, which have their sizes."""
    return {
        path: leaf.value if isinstance(leaf, ConstantSpec) else leaf
        for path, leaf in inputs.items()
    }


def sizes_of(plan: Plan, values: Mapping[Path, object]) -> dict[str, int]:
    """The sizes of the symbols in given values; a symbol that no size shows has its least size."""
    sizes = known_sizes(plan, values)
    return {symbol.name: sizes.get(symbol.name, symbol.low) for symbol in plan.symbols}


def known_sizes(plan: Plan, values: Mapping[Path, object]) -> Sizes:
    """The sizes of the symbols that given values show.

    A symbol that stands alone on some axis is read there; another one follows from a sum or a
    product of which it is the only unknown. The symbols of a cache that is absent have their least
    size.
    """
    sizes: dict[str, int] = {}
    rest: list[tuple[Expression, int]] = []
    for leaf in plan.inputs:
        value = values.get(leaf.path)
        if value is None:
            continue
        shape = getattr(value, "shape", ())
        for expression, size in zip(leaf.shape, shape, strict=False):
            _read(expression, int(size), sizes, rest)
        if leaf.value is not None and isinstance(value, int):
            _read(leaf.value, value, sizes, rest)
    if len(sizes) < len(plan.symbols):
        empty = _empty(plan, values)
        _solve(rest, sizes, empty)
        least = {symbol.name: symbol.low for symbol in plan.symbols if symbol.name in empty}
        sizes = {**least, **sizes}
    return sizes


def _read(
    expression: Expression, size: int, sizes: dict[str, int], rest: list[tuple[Expression, int]]
) -> None:
    if expression.is_symbol:
        sizes.setdefault(str(expression), size)
    elif not expression.is_constant:
        rest.append((expression, size))


def _empty(plan: Plan, values: Mapping[Path, object]) -> set[str]:
    """The symbols of leaves that are empty since the values do not have them: they have their
    least size.
    """
    missing = [
        leaf for leaf in plan.inputs if leaf.fill is not None and values.get(leaf.path) is None
    ]
    return {
        name
        for leaf in missing
        if leaf.empty_dim is not None
        for name in leaf.shape[leaf.empty_dim].symbols
    }


def _solve(rest: list[tuple[Expression, int]], sizes: dict[str, int], known: set[str]) -> None:
    """Adds the symbols that are the only unknown of an expression, as long as there is one."""
    while True:
        fresh = dict[str, int]()
        for expression, size in rest:
            unknown = [
                name for name in expression.symbols if name not in sizes and name not in known
            ]
            if len(unknown) == 1 and known.isdisjoint(expression.symbols):
                found = expression.solved(unknown[0], size, sizes)
                fresh |= {} if found is None else {unknown[0]: found}
        if not fresh:
            return
        sizes |= fresh


def counted(
    plan: Plan, leaf: LeafPlan, sizes: Sizes, seen: Sequence[Values]
) -> torch.Tensor | None:
    """The positions for other sizes, or None for a leaf that does not count them.

    Every observed value has to be consecutive along its last dimension, in all rows alike, and to
    begin at the size of one symbol (the length of the past), in two distinct calls at least.
    """
    starts: list[tuple[int, Sizes]] = []
    for values in seen:
        value = values.get(leaf.path)
        if isinstance(value, torch.Tensor):
            start = _start(value)
            if start is None:
                return None
            starts.append((start, sizes_of(plan, values)))
    if len({start for start, _ in starts}) < 2:
        return None
    for symbol in plan.symbols:
        if all(start == known[symbol.name] for start, known in starts):
            shape = [expression.evaluate(sizes) for expression in leaf.shape]
            like = next(v[leaf.path] for v in seen if isinstance(v.get(leaf.path), torch.Tensor))
            begin = sizes[symbol.name]
            return (
                torch.arange(begin, begin + shape[-1], dtype=like.dtype, device=like.device)
                .expand(shape)
                .clone()
            )
    return None


def _start(value: torch.Tensor) -> int | None:
    """Returns the first of consecutive ints; None for anything else."""
    if value.ndim == 0 or value.numel() == 0 or value.dtype not in (torch.int64, torch.int32):
        return None
    first = value.reshape(-1)[0]
    steps = torch.arange(value.shape[-1], dtype=value.dtype, device=value.device)
    return int(first) if bool((value == first + steps).all()) else None

"""The leaves of the arguments of calls: what each was, and which sizes it had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .call import Call
from .path import Path
from .spec import Spec, TensorSpec

__all__ = ["LeafRow", "leaf_rows"]

_MOST_SIZES = 5
_MOST_KINDS = 8


@dataclass(frozen=True, slots=True)
class LeafRow:
    """One leaf of the arguments: its kinds (dtype and rank, or a constant), its sizes by
    dimension, its calls.
    """

    path: str
    kinds: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]
    count: int

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """The row in words: of many kinds and sizes the first ones."""
        sizes = ", ".join(map(_listed, self.sizes))
        sizes = f"[{sizes}]" if sizes else ""
        return self.path, _shown(self.kinds), sizes, str(self.count)


def leaf_rows(calls: Iterable[Call]) -> tuple[LeafRow, ...]:
    """A row for each leaf, in the order in which they came."""
    specs: dict[Path, list[tuple[Spec, int]]] = {}
    for call in calls:
        for path, spec in call.inputs.items():
            specs.setdefault(path, []).append((spec, call.count))
    return tuple(_row(path, found) for path, found in specs.items())


def _row(path: Path, found: Sequence[tuple[Spec, int]]) -> LeafRow:
    kinds = dict.fromkeys(_kind(spec) for spec, _ in found)
    shapes = [spec.shape for spec, _ in found if isinstance(spec, TensorSpec)]
    ranks = {len(shape) for shape in shapes}
    sizes: list[tuple[int, ...]] = []
    if len(ranks) == 1:
        for column in zip(*shapes, strict=True):
            sizes.append(tuple(sorted(set(column))))
    n_calls = sum(count for _, count in found)
    return LeafRow(path.code(), tuple(kinds), tuple(sizes), n_calls)


def _kind(spec: Spec) -> str:
    return (
        f"{spec.dtype.removeprefix('torch.')}, rank {len(spec.shape)}"
        if isinstance(spec, TensorSpec)
        else str(spec)
    )


def _shown(kinds: Sequence[str]) -> str:
    """The kinds; of many constants, as floats that change, the first ones."""
    more = len(kinds) - _MOST_KINDS
    return ", ".join([*kinds[:_MOST_KINDS], f"{more} more"] if more > 1 else kinds)


def _listed(sizes: Sequence[int]) -> str:
    shown = (
        [*map(str, sizes)] if len(sizes) <= _MOST_SIZES else [str(sizes[0]), "...", str(sizes[-1])]
    )
    return "|".join(shown)

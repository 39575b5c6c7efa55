"""The table that relations are mined from: a row per call or probe, a column per axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..core.call import Call
from ..core.path import Path
from ..core.plan import Fill
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec

__all__ = ["Row", "Table", "axes_of", "row_of", "row_of_values", "table_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """The sizes of one call or probe: absent axes are not in it."""

    label: str
    sizes: Mapping[Axis, int]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of sizes, and the axes in the order of the arguments."""

    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]

    def column(self, axis: Axis) -> tuple[int | None, ...]:
        """The sizes of one axis, None where a row does not have it."""
        return tuple(row.sizes.get(axis) for row in self.rows)

    def with_row(self, row: Row) -> Table:
        """The table with one more row."""
        return Table(self.axes, (*self.rows, row))


def axes_of(path: Path, spec: Spec) -> tuple[Axis, ...]:
    """The axes of a leaf: one per dimension of a tensor, one for an int, none otherwise."""
    if isinstance(spec, TensorSpec):
        return tuple(Axis(path, dim) for dim in range(len(spec.shape)))
    if isinstance(spec, ConstantSpec) and spec.is_int:
        return (Axis(path, None),)
    return ()


def row_of(label: str, leaves: Iterable[tuple[Path, Spec]], fills: Mapping[Path, Fill] | None = None) -> Row:
    """The row of one call.

    A leaf that the call lacks and that is filled by an empty tensor counts as size 0 on that axis: an
    absent cache is a cache of length 0. A missing counter counts as its fill.
    """
    sizes: dict[Axis, int] = {}
    for path, spec in leaves:
        if isinstance(spec, TensorSpec):
            sizes.update({Axis(path, dim): size for dim, size in enumerate(spec.shape)})
        elif isinstance(spec, ConstantSpec) and spec.is_int and isinstance(spec.value, int):
            sizes[Axis(path, None)] = spec.value
    present = {axis.path for axis in sizes}
    for path, fill in (fills or {}).items():
        if path in present:
            continue
        if fill.kind == "empty":
            sizes[Axis(path, fill.dim)] = 0
        elif fill.kind == "constant":
            sizes[Axis(path, None)] = fill.value
    return Row(label, sizes)


def row_of_values(label: str, values: Mapping[Path, object]) -> Row:
    """The row of real values: everything with a shape, and ints.

    >>> from onlooker.core.path import Name
    >>> row_of_values("probe 0", {Path((Name("n"),)): 3, Path((Name("flag"),)): True}).sizes
    {Axis(path=Path(entries=(Name(name='n'),)), dim=None): 3}
    """
    sizes: dict[Axis, int] = {}
    for path, value in values.items():
        shape = getattr(value, "shape", None)
        if shape is not None:
            sizes.update({Axis(path, dim): int(size) for dim, size in enumerate(shape)})
        elif isinstance(value, int) and not isinstance(value, bool):
            sizes[Axis(path, None)] = value
    return Row(label, sizes)


def table_of(calls: Iterable[Call], fills: Mapping[Path, Fill] | None = None) -> Table:
    """The table of some calls; the axes stand in the order in which leaves were met first."""
    axes: dict[Axis, None] = {}
    rows = []
    for call in calls:
        for path, spec in call.inputs.items():
            axes.update(dict.fromkeys(axes_of(path, spec)))
        rows.append(row_of(f"call {call.index}", call.inputs.items(), fills))
    return Table(tuple(axes), tuple(rows))

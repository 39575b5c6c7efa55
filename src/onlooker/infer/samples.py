"""The table that relations are mined from: a row per call or probe, a column per axis."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.call import Call
from ..core.path import Path
from ..core.plan import Fill
from ..core.sizes.expression import Expression
from ..core.spec import Axis, AxisSizes, ConstantSpec, Spec, TensorSpec, axis_sizes
from .unify import Form, forms_of

__all__ = [
    "Cells",
    "Demand",
    "Demands",
    "Row",
    "Table",
    "axes_of",
    "row_of_values",
    "table_of",
    "table_of_forms",
]

#: the sizes of one axis, one per row; None where a row does not have the axis
Cells = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The sizes of one call or probe: absent axes are not in it."""

    label: str
    sizes: AxisSizes


@dataclass(frozen=True, slots=True)
class Demand:
    """The size of an axis is an expression of those of others: ``axes`` are these by their names in the
    expression.
    """

    axis: Axis
    expression: Expression
    axes: Mapping[str, Axis]


@dataclass(frozen=True, slots=True)
class Demands:
    """What the model was seen to ask of the sizes of its inputs.

    ``relations`` tie classes of axes. The axes that are ``divided`` have to be multiples of a number, as sides
    of images that are cut into patches. ``ties_none`` is True where the run that was looked at came to its end,
    and tied no classes: what a few calls say of them is chance.
    """

    relations: tuple[Demand, ...] = ()
    divided: frozenset[Axis] = frozenset()
    ties_none: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The sizes by axis, in the order of the arguments, and the labels of the rows.

    The last ``n_probes`` rows are experiments, or the word of the caller; the ones before are
    calls. ``demands`` are what the model was seen to ask of the sizes.
    """

    columns: Mapping[Axis, Cells]
    labels: tuple[str, ...]
    n_probes: int = 0
    demands: Demands = Demands()

    @classmethod
    def of(cls, axes: Iterable[Axis], rows: Sequence[Row]) -> Table:
        """The table of some rows."""
        return cls(
            {axis: tuple(row.sizes.get(axis) for row in rows) for axis in axes},
            tuple(r.label for r in rows),
        )

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, in the order of the arguments."""
        return tuple(self.columns)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The sizes by row."""
        columns = self.columns.items()
        return tuple(
            Row(label, {axis: size for axis, column in columns if (size := column[i]) is not None})
            for i, label in enumerate(self.labels)
        )

    def column(self, axis: Axis) -> Cells:
        """The sizes of one axis."""
        return self.columns.get(axis, (None,) * len(self.labels))

    @property
    def n_calls(self) -> int:
        """The number of rows that are calls: the first ones."""
        return len(self.labels) - self.n_probes

    def extended(self, axes: Iterable[Axis], rows: Sequence[Row]) -> Table:
        """The table with further axes, which no row has so far, and with further rows, of
        experiments.
        """
        columns = dict(self.columns)
        absent = (None,) * len(self.labels)
        for axis in axes:
            columns.setdefault(axis, absent)
        if rows:
            columns = {
                axis: column + tuple(row.sizes.get(axis) for row in rows)
                for axis, column in columns.items()
            }
        labels = (*self.labels, *(row.label for row in rows))
        return replace(self, columns=columns, labels=labels, n_probes=self.n_probes + len(rows))


def axes_of(path: Path, spec: Spec) -> tuple[Axis, ...]:
    """The axes of a leaf: one per dimension of a tensor, one for an int, none otherwise."""
    if isinstance(spec, TensorSpec):
        return tuple(Axis(path, dim) for dim in range(len(spec.shape)))
    if isinstance(spec, ConstantSpec) and spec.is_int:
        return (Axis(path, None),)
    return ()


def _filled(present: Collection[Path], fills: Mapping[Path, Fill]) -> dict[Axis, int]:
    """The sizes that the fills of missing leaves stand for."""
    sizes: dict[Axis, int] = {}
    for path, fill in fills.items():
        if path not in present and fill.kind == "empty":
            sizes[Axis(path, fill.dim)] = 0
        elif path not in present and fill.kind == "constant":
            sizes[Axis(path, None)] = fill.value
    return sizes


def row_of_values(label: str, values: Mapping[Path, object]) -> Row:
    """The row of real values: everything with a shape, and ints."""
    return Row(label, axis_sizes(values.items()))


def table_of(calls: Iterable[Call], fills: Mapping[Path, Fill] | None = None) -> Table:
    """The table of some calls; the axes stand in the order in which leaves were met first."""
    return table_of_forms(forms_of(calls), fills)


def table_of_forms(forms: Iterable[Form], fills: Mapping[Path, Fill] | None = None) -> Table:
    """The table of the calls of some forms, in the order of the calls.

    It is read form by form and column by column: all calls of a form have the same leaves, and ten
    thousand calls have millions of sizes.
    """
    ordered = sorted(forms, key=lambda form: form.example.index)
    calls = sorted(
        (call.index, number, i)
        for number, form in enumerate(ordered)
        for i, call in enumerate(form.calls)
    )
    places: list[list[int]] = [[] for _ in ordered]
    for row, (_, number, _) in enumerate(calls):
        places[number].append(row)
    pieces = [(rows, _columns(form), form) for rows, form in zip(places, ordered, strict=True)]
    axes = dict.fromkeys(axis for _, sizes, _ in pieces for axis in sizes)
    columns: dict[Axis, list[Cells]] = {axis: [] for axis in axes}
    for rows, sizes, form in pieces:
        own = {
            axis: (size,) * len(rows) for axis, size in _filled(_sized(form), fills or {}).items()
        }
        for axis in axes:
            columns[axis].append(sizes.get(axis) or own.get(axis) or (None,) * len(rows))
    known: dict[tuple[Cells, ...], Cells] = {}
    for parts in map(tuple, columns.values()):
        if parts not in known:
            known[parts] = _interleaved(parts, places, len(calls))
    table = {axis: known[tuple(parts)] for axis, parts in columns.items()}
    return Table(table, tuple(f"call {index}" for index, _, _ in calls))


def _sized(form: Form) -> set[Path]:
    """The leaves that have sizes of their own."""
    return {path for path, spec in form.leaves.items() if axes_of(path, spec)}


def _interleaved(parts: Sequence[Cells], places: Sequence[Sequence[int]], n_rows: int) -> Cells:
    """The sizes of the forms, each in the rows of its calls."""
    if len(parts) == 1:
        return parts[0]
    column: list[int | None] = [None] * n_rows
    for part, rows in zip(parts, places, strict=True):
        for row, size in zip(rows, part, strict=True):
            column[row] = size
    return tuple(column)


def _columns(form: Form) -> dict[Axis, tuple[int, ...]]:
    """The sizes of each axis of a form, one per call; leaves with the same shapes share them."""
    columns: dict[Axis, tuple[int, ...]] = {}
    known: dict[tuple[tuple[int, ...], ...], list[tuple[int, ...]]] = {}
    calls = sorted(form.calls, key=lambda call: call.index)
    by_leaf = zip(*(call.inputs.leaves for call in calls), strict=True)
    for (path, spec), specs in zip(form.leaves.items(), by_leaf, strict=True):
        if isinstance(spec, TensorSpec):
            shapes = tuple(s.shape for s in specs)
            if shapes not in known:
                known[shapes] = [
                    tuple(shape[dim] for shape in shapes) for dim in range(len(spec.shape))
                ]
            columns.update({Axis(path, dim): sizes for dim, sizes in enumerate(known[shapes])})
        elif isinstance(spec, ConstantSpec) and spec.is_int:
            columns[Axis(path, None)] = tuple(s.value for s in specs)
    return columns

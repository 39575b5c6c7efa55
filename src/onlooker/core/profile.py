"""The traffic of a recording: how often which sizes came together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .call import Call
from .spec import Axis, TensorSpec, axis_sizes

__all__ = ["GraphProfile", "Profile", "moving_axes", "profile_of_axes", "profile_of_rows"]

#: the shares of calls for which a size is shown
_SHARES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class GraphProfile:
    """The calls of one graph: ``rows`` are sizes that came together, in the order of ``names``,
    each with the number of its calls; the most frequent first.

    >>> graph = GraphProfile("main", ("batch", "length"), (((1, 8), 6), ((2, 4), 3), ((1, 32), 1)))
    >>> graph.calls, graph.percentile("length", 50), graph.percentile("length", 99)
    (10, 8, 32)
    """

    name: str
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[int, ...], int], ...]

    @property
    def calls(self) -> int:
        """The number of calls."""
        return sum(count for _, count in self.rows)

    def counts(self, name: str) -> dict[int, int]:
        """The number of calls of each size of one symbol, the least size first."""
        place = self.names.index(name)
        found: Counter[int] = Counter()
        for sizes, count in self.rows:
            found[sizes[place]] += count
        return dict(sorted(found.items()))

    def percentile(self, name: str, share: float) -> int:
        """The least size of a symbol that is enough for so many of 100 calls."""
        wanted, seen = self.calls * share / 100, 0
        for size, count in self.counts(name).items():
            seen += count
            if seen >= wanted:
                return size
        return 0

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.calls} calls of {len(self.rows)} sizes"]
        for name in self.names:
            seen = list(self.counts(name))
            shares = ", ".join(f"p{share} {self.percentile(name, share)}" for share in _SHARES)
            lines.append(f"  {name}: {seen[0]} to {seen[-1]}, {shares}")
        for sizes, count in self.rows[:5]:
            pairs = zip(self.names, sizes, strict=True)
            lines.append(f"  {count} calls: {', '.join(f'{n}={s}' for n, s in pairs)}")
        more = len(self.rows) - 5
        if more > 0:
            lines.append(f"  and {more} more sizes")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Profile:
    """The traffic per graph. ``unserved`` is the number of calls that no graph takes."""

    graphs: tuple[GraphProfile, ...]
    unserved: int = 0

    def graph(self, name: str) -> GraphProfile | None:
        """The calls of the graph called ``name``; None where it had none."""
        return next((graph for graph in self.graphs if graph.name == name), None)

    def __str__(self) -> str:
        lost = [f"{self.unserved} calls that no graph takes"] if self.unserved else []
        return "\n".join([*map(str, self.graphs), *lost])


def profile_of_rows(name: str, rows: Iterable[tuple[Mapping[str, int], int]]) -> GraphProfile:
    """The profile of sizes by name, each with a number of calls; all have the same names."""
    found: Counter[tuple[int, ...]] = Counter()
    names: tuple[str, ...] = ()
    for sizes, count in rows:
        names = tuple(sizes)
        found[tuple(sizes.values())] += count
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return GraphProfile(name, names, tuple(ordered))


def profile_of_axes(calls: Iterable[Call]) -> Profile:
    """The axes that change among calls of one structure, without a plan: equal axes are several
    names.
    """
    groups: dict[object, list[Call]] = {}
    for call in calls:
        kind = tuple(
            leaf.dtype if isinstance(leaf, TensorSpec) else "" for leaf in call.inputs.leaves
        )
        groups.setdefault((call.inputs.structure, kind), []).append(call)
    return Profile(tuple(_profile_of_group(group) for group in groups.values()))


def _profile_of_group(calls: Sequence[Call]) -> GraphProfile:
    """Returns the profile of calls of one structure, by the axes that change among them."""
    rows = [axis_sizes(call.inputs.items()) for call in calls]
    moving = [axis for axis in rows[0] if len({row.get(axis) for row in rows}) > 1]
    named: list[tuple[dict[str, int], int]] = []
    for call, row in zip(calls, rows, strict=True):
        sizes = {str(axis): row[axis] for axis in moving if axis in row}
        named.append((sizes, call.count))
    return profile_of_rows(f"calls as call {calls[0].index}", named)


def moving_axes(calls: Sequence[Call]) -> dict[Axis, tuple[int | None, ...]]:
    """The axes of which calls have different sizes, with the size of each call; None where it has no
    such axis. Of axes that are equal in all calls, the first one.
    """
    rows = [axis_sizes(call.inputs.items()) for call in calls]
    axes = dict.fromkeys(axis for row in rows for axis in row)
    columns = {axis: tuple(row.get(axis) for row in rows) for axis in axes}
    first = {sizes: axis for axis, sizes in reversed(columns.items())}
    return {
        axis: sizes
        for axis, sizes in columns.items()
        if len(set(sizes)) > 1 and first[sizes] is axis
    }

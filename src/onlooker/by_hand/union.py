"""All calls of a method laid over each other: which arguments there are, which dimensions changed.

This is what one graph for everything would have to take; no model is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..core.call import Call, Passing, Signature
from ..core.errors import ObservationError
from ..core.path import Path
from ..core.plan import Fill
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from ..core.structure import Structure, Tree
from ..infer.mine import mine
from ..infer.name import names_of
from ..infer.relations import varies
from ..infer.samples import Table, table_of
from ..infer.unify import Union, find_conflict, forms_of, growing_dim, union_of

__all__ = ["CallUnion", "union_of_calls"]


@dataclass(frozen=True)
class CallUnion:
    """The union of some calls, with the signature they were bound to."""

    union: Union
    calls: tuple[Call, ...]
    signature: Signature

    def arguments(self) -> Iterator[tuple[str, Structure, tuple[tuple[Path, Spec], ...]]]:
        """``(name, structure, leaves)`` in the order of the signature; what came by ``**kwargs``
        stands last.
        """
        order = {name: i for i, name in enumerate(self.signature.names)}
        tree = Tree(self.union.structure, tuple(self.union.leaves.items()))
        parts = tree.parts().items()
        found = [(entry.code(), part.structure, part.leaves) for entry, part in parts]
        yield from sorted(found, key=lambda item: order.get(item[0], len(order)))

    def passed_as(self, passing: Passing) -> tuple[str, ...]:
        """The arguments that came that way in some call, in the order in which they were met."""
        return tuple(
            dict.fromkeys(
                name for call in self.calls for name, how in call.passed if how is passing
            )
        )

    @property
    def positional(self) -> bool:
        """True when every argument of every call came by position, and none by ``*args``."""
        return all(how is Passing.POSITIONAL for call in self.calls for _, how in call.passed)

    @cached_property
    def dropped(self) -> frozenset[str]:
        """The arguments that say nothing: None, a default, or a constant that went to ``**kwargs``.

        torch.export cannot spell dynamic shapes for a constant in ``**kwargs``.
        """
        extra = self.passed_as(Passing.VAR_KEYWORD)
        return frozenset(
            name
            for name, structure, leaves in self.arguments()
            if self._says_nothing(name, leaves, extra)
        )

    def _says_nothing(
        self, name: str, leaves: Sequence[tuple[Path, Spec]], extra: Sequence[str]
    ) -> bool:
        if (
            len(leaves) != 1
            or not isinstance(leaves[0][1], ConstantSpec)
            or len(leaves[0][0].entries) > 1
        ):
            return not leaves
        if self.positional:
            return False
        parameter = self.signature.get(name)
        return (
            leaves[0][1] == ConstantSpec(None)
            or name in extra
            or (parameter is not None and parameter.default == leaves[0][1])
        )

    @cached_property
    def fills(self) -> Mapping[Path, Fill]:
        """The fills of absent leaves of containers: an absent cache is an empty one."""
        found = {}
        for form in self.union.forms:
            for path in self.union.missing(form):
                spec = self.union.leaves[path]
                dim = growing_dim(self.union, path, spec) if isinstance(spec, TensorSpec) else None
                if dim is not None and len(path.entries) > 1:
                    found[path] = Fill("empty", dim=dim)
        return found

    @cached_property
    def table(self) -> Table:
        """The sizes of all calls; absent leaves are absent."""
        return table_of(self.calls)

    def changes(self, axis: Axis) -> bool:
        """True when the axis had two sizes, or is the length of a container that was empty once."""
        fill = self.fills.get(axis.path)
        return varies(self.table.column(axis)) or (fill is not None and fill.dim == axis.dim)

    def axis_names(self) -> dict[Axis, str]:
        """A name per changing axis; axes that always were equal share one."""
        mined = mine(table_of(self.calls, self.fills))
        names = names_of(mined)
        return {axis: names[column.name] for column in mined.columns for axis in column.axes}


def union_of_calls(calls: Sequence[Call], signature: Signature) -> CallUnion:
    """The union of calls.

    :raises ObservationError: ``constant-changes``, ``container-changes`` or ``calls-contradict``
        when no single answer exists
    """
    forms = forms_of(calls)
    union = union_of(forms)
    for form in forms:
        _check(form.example, union, forms[0].example, signature)
    _check_floats(union)
    conflict = find_conflict(union)
    if conflict is not None:
        raise ObservationError(
            f"Two calls contradict each other: {conflict}.",
            slug="calls-contradict",
            hint=_SEVERAL_GRAPHS,
        )
    return CallUnion(union, tuple(calls), signature)


_SEVERAL_GRAPHS = "One graph cannot serve both; observer.export() makes one graph for each."


def _check(call: Call, union: Union, first: Call, signature: Signature) -> None:
    _check_defaults(call, union, signature)
    counts: dict[str, int] = {}
    for path, spec in call.inputs.items():
        counts[path.root] = counts.get(path.root, 0) + isinstance(spec, TensorSpec)
        other = union.leaves.get(path)
        if len(path.entries) == 1 and _contradict(spec, other):
            raise ObservationError(
                f"Two calls were made with different constant values: {path} is {spec} in call"
                f" {call.index} and {other} in others.",
                slug="constant-changes",
                hint=_SEVERAL_GRAPHS,
            )
    for root, count in counts.items():
        most = sum(p.root == root and isinstance(s, TensorSpec) for p, s in union.leaves.items())
        if count not in (0, most):
            raise ObservationError(
                f"{_argument(root, first)} has {count} tensors in call {call.index} and {most} in"
                " others.",
                slug="container-changes",
                hint=_SEVERAL_GRAPHS,
            )


def _check_floats(union: Union) -> None:
    """A float is a constant of arguments for torch.export by hand: two values contradict each
    other.
    """
    for path, values in union.floats.items():
        if len(values) > 1:
            raise ObservationError(
                f"Two calls were made with different constant values: {path} is {values[0]} in one"
                f" and {values[-1]} in another one.",
                slug="constant-changes",
                hint=_SEVERAL_GRAPHS,
            )


def _check_defaults(call: Call, union: Union, signature: Signature) -> None:
    """A constant that a call leaves out counts as its default."""
    passed = {name for name, _ in call.passed}
    for path, spec in union.leaves.items():
        parameter = signature.get(path.root)
        default = parameter.default if parameter is not None else None
        if (
            default is not None
            and len(path.entries) == 1
            and path.root not in passed
            and _contradict(spec, default)
        ):
            raise ObservationError(
                f"Two calls were made with different constant values: {path} is {default}, its"
                f" default, in call {call.index} and {spec} in others.",
                slug="constant-changes",
                hint=_SEVERAL_GRAPHS,
            )


def _contradict(left: Spec, right: Spec | None) -> bool:
    """True for two constants that differ, None aside."""
    both = isinstance(left, ConstantSpec) and isinstance(right, ConstantSpec)
    return both and left != right and ConstantSpec(None) not in (left, right)


def _argument(root: str, call: Call) -> str:
    positions = {name: (i, how) for i, (name, how) in enumerate(call.passed)}
    position, how = positions.get(root, (0, Passing.KEYWORD))
    return (
        f"Positional argument {position}"
        if how is Passing.POSITIONAL
        else f"Named argument {root!r}"
    )

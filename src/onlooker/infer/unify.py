"""Calls -> forms, and the union of forms: which leaves there are, and which of them are missing
where.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..core.call import Call
from ..core.path import Attr, Entry, Path
from ..core.spec import ConstantSpec, OpaqueSpec, Spec, TensorSpec
from ..core.structure import Structure, Tree
from .floats import Floats, float_kind, floats_of, merged_floats

__all__ = ["Form", "Union", "find_conflict", "forms_of", "growing_dim", "union_of"]


@dataclass(frozen=True, slots=True)
class Form:
    """Calls of the same structure, constants and ranks: they can differ in sizes and in floats
    only.

    ``floats`` are some of the values of each float.
    """

    calls: tuple[Call, ...]
    floats: Floats = field(default_factory=dict, compare=False)

    @property
    def example(self) -> Call:
        """The first call."""
        return self.calls[0]

    @property
    def leaves(self) -> dict[Path, Spec]:
        """The leaves of the first call, by path."""
        return dict(self.example.inputs.items())


@dataclass(frozen=True, slots=True)
class Union:
    """The union of some forms: per argument the richest of their structures, and an example of each
    leaf.

    ``floats`` are some of the values of each float: where there are two, it changes.
    """

    structure: Structure
    leaves: dict[Path, Spec]
    forms: tuple[Form, ...]
    floats: Floats = field(default_factory=dict, compare=False)

    def missing(self, form: Form) -> tuple[Path, ...]:
        """The leaves that a form lacks: not there, or None where others have something."""
        own = form.leaves
        return tuple(path for path, spec in self.leaves.items() if _absent(own.get(path), spec))


def _absent(own: Spec | None, spec: Spec) -> bool:
    return own is None or (own == ConstantSpec(None) and spec != ConstantSpec(None))


def _kinds(leaves: tuple[Spec, ...]) -> tuple[object, ...]:
    """Returns of each leaf what two calls of one form have in common: all but sizes and floats."""
    return tuple(
        (
            (spec.dtype, len(spec.shape), spec.device)
            if type(spec) is TensorSpec
            else _constant_kind(spec)
        )
        for spec in leaves
    )


def _constant_kind(spec: Spec) -> object:
    if not isinstance(spec, ConstantSpec):
        return spec
    if spec.is_int:
        return "int"
    return float_kind(spec) if spec.is_float else spec


def forms_of(calls: Iterable[Call]) -> tuple[Form, ...]:
    """The calls grouped into forms, in the order of their first calls."""
    groups: dict[tuple[object, ...], list[Call]] = {}
    numbers: dict[Structure, int] = {}
    seen: dict[int, tuple[Structure, int]] = {}  # by identity: to hash a structure is to walk it
    for call in calls:
        structure = call.inputs.structure
        known = seen.get(id(structure))
        if known is None:
            known = seen[id(structure)] = structure, numbers.setdefault(structure, len(numbers))
        groups.setdefault((known[1], *_kinds(call.inputs.leaves)), []).append(call)
    return tuple(Form(tuple(group), floats_of(group)) for group in groups.values())


def union_of(forms: Sequence[Form]) -> Union:
    """The union of forms: every argument that one of them has, in its richest structure."""
    parts: dict[Entry, Tree[Spec]] = {}
    for form in forms:
        for entry, part in form.example.inputs.parts().items():
            known = parts.get(entry)
            if known is None or _richness(part.leaves) > _richness(known.leaves):
                parts[entry] = part
    tree = forms[0].example.inputs.with_parts(parts)
    floats = merged_floats(form.floats for form in forms)
    return Union(tree.structure, dict(tree.items()), tuple(forms), floats)


def _richness(specs: Sequence[Spec]) -> tuple[int, int]:
    return sum(isinstance(s, TensorSpec) for s in specs), sum(
        s != ConstantSpec(None) for s in specs
    )


def find_conflict(union: Union) -> str | None:
    """Returns the reason for which these forms cannot share a graph whatever is filled in; None
    where nothing speaks against it.
    """
    for form in union.forms:
        for path, own in form.leaves.items():
            spec = union.leaves.get(path)
            if spec is None:
                if own != ConstantSpec(None):
                    return (
                        f"{path.code()} is {own} in call {form.example.index} and nothing in others"
                    )
            elif not _absent(own, spec) and not _compatible(own, spec):
                return f"{path.code()} is {own} in call {form.example.index} and {spec} in others"
    return None


def _compatible(left: Spec, right: Spec) -> bool:
    if isinstance(left, TensorSpec) and isinstance(right, TensorSpec):
        return (left.dtype, len(left.shape), left.device) == (
            right.dtype,
            len(right.shape),
            right.device,
        )
    if isinstance(left, ConstantSpec) and isinstance(right, ConstantSpec):
        both_floats = left.is_float and right.is_float and float_kind(left) == float_kind(right)
        return left == right or both_floats or (left.is_int and right.is_int)
    return isinstance(left, OpaqueSpec) and left == right


def growing_dim(union: Union, path: Path, spec: TensorSpec) -> int | None:
    """The dimension along which a container grows: one that changes, else the length of keys and
    values.
    """
    shapes = {
        leaf.shape
        for form in union.forms
        if (number := next((i for i, p in enumerate(form.leaves) if p == path), None)) is not None
        for call in form.calls
        if isinstance(leaf := call.inputs.leaves[number], TensorSpec)
    }
    for dim in range(1, len(spec.shape)):
        if len({shape[dim] for shape in shapes}) > 1:
            return dim
    last = path.entries[-1]
    named = isinstance(last, Attr) and last.name in ("keys", "values")
    return len(spec.shape) - 2 if named and len(spec.shape) > 2 else None

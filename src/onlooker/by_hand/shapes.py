"""Dynamic shapes spelled as torch.export wants them, from specs alone.

A dimension that changed between calls is ``Dim.DYNAMIC`` (or a name), a constant one is absent, a
tensor without changing dimensions is ``{}``, a constant is None. Lists, tuples and dicts keep their
nesting, other classes become the list of their children, as torch.export addresses registered
classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..core.call import Passing
from ..core.drawing.alike import first_few, folded
from ..core.errors import UsageError
from ..core.path import Path
from ..core.spec import Axis, ConstantSpec, Spec, TensorSpec
from ..core.structure import Structure
from ..core.support.kinds import check_kind
from ..infer.samples import Table
from ..pytrees.open import NAMED_TUPLE
from .union import CallUnion

__all__ = ["DimNames", "batch_roots", "constant_axes", "infer_shapes"]

#: as many axes are named in a text
_MOST_AXES = 8

DimNames = bool | Mapping[str | int, Mapping[int, str]] | None
BatchFor = Collection[int | str] | bool | None


@dataclass(frozen=True, slots=True)
class _Namer:
    """Gives a hint, or a name, for a dimension that changes."""

    table: Table
    names: Mapping[Axis, str] | None

    def __call__(self, axis: Axis) -> Any:
        if self.names is None:
            return torch.export.Dim.DYNAMIC
        return self.names.get(axis) or f"{axis.path.root}_dim_{axis.dim}"


def infer_shapes(
    union: CallUnion, batch_for: BatchFor, dim_names: DimNames
) -> tuple[Any, ...] | dict[str, Any]:
    """One shape per argument: a tuple when all came by position, else a dict by name."""
    roots = batch_roots(union, batch_for)
    namer = _Namer(union.table, _names(union, dim_names))
    shapes: dict[str, Any] = {}
    for name, structure, leaves in union.arguments():
        if name in union.dropped:
            continue
        shapes[name] = _shape_tree(structure, iter(leaves), _LeafShape(union, name in roots, namer))
    if union.positional:
        return tuple(shapes.values())
    keywords = {
        name: shapes.pop(name) for name in union.passed_as(Passing.VAR_KEYWORD) if name in shapes
    }
    catch_all = union.signature.of_kind("VAR_KEYWORD")
    return shapes | ({catch_all: keywords} if catch_all and keywords else {})


def constant_axes(union: CallUnion) -> str:
    """The axes of tensors that did not change, as text; the first ones when there are more."""
    axes = [
        str(Axis(path, dim))
        for name, _, leaves in union.arguments()
        for path, spec in leaves
        if name not in union.dropped and isinstance(spec, TensorSpec)
        for dim in range(len(spec.shape))
        if not union.changes(Axis(path, dim))
    ]
    axes = folded(axes)
    shown = first_few(axes, _MOST_AXES)
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def batch_roots(union: CallUnion, batch_for: BatchFor) -> frozenset[str]:
    """The arguments whose first dimension is a batch whatever was observed.

    :raises UsageError: ``unknown-argument`` for a name or a position that the signature does not
        have
    """
    if batch_for is True:
        return frozenset(name for name, _, _ in union.arguments())
    if not batch_for:
        return frozenset()
    option = "set_batch_dimension_for"
    check_kind(batch_for, Collection, option, "True, or the names or positions of arguments")
    return frozenset(_argument(item, union, option) for item in batch_for)


def _argument(item: object, union: CallUnion, option: str) -> str:
    """The name of the argument that an item of an option means by its name or its position."""
    known = union.signature.names
    takes_any = union.signature.of_kind("VAR_KEYWORD") is not None
    name = known[item] if isinstance(item, int) and 0 <= item < len(known) else item
    if not isinstance(name, str) or (name not in known and not takes_any):
        raise UsageError(
            f"There is no argument {item!r} in {option}.",
            slug="unknown-argument",
            hint=f"The method has {', '.join(known)}.",
        )
    return name


@dataclass(frozen=True, slots=True)
class _LeafShape:
    """The shape of one leaf; ``batch`` makes the first dimension change whatever was observed."""

    union: CallUnion
    batch: bool
    namer: _Namer

    def __call__(self, path: Path, spec: Spec) -> Any:
        if isinstance(spec, TensorSpec):
            changing = {
                dim for dim in range(len(spec.shape)) if self.union.changes(Axis(path, dim))
            }
            changing |= {0} if self.batch and spec.shape else set()
            return {dim: self.namer(Axis(path, dim)) for dim in sorted(changing)}
        if isinstance(spec, ConstantSpec) and spec.is_int and self.union.changes(Axis(path, None)):
            return torch.export.Dim.DYNAMIC
        return None


def _shape_tree(
    structure: Structure, leaves: Iterator[tuple[Path, Spec]], leaf: Callable[[Path, Spec], Any]
) -> Any:
    if structure.is_leaf:
        return leaf(*next(leaves))
    children = [_shape_tree(child, leaves, leaf) for child in structure.children]
    kind = structure.kind.rpartition(".")[2]
    if structure.context == NAMED_TUPLE:
        build: Any = structure.extra
        return build(children)
    if kind == "tuple":
        return tuple(children)
    if kind in ("dict", "OrderedDict"):
        return {entry.key: child for entry, child in zip(structure.entries, children, strict=True)}  # type: ignore[union-attr]
    if kind.endswith("Cache") and "EncoderDecoder" not in kind:
        return [shape for layer in children for shape in _flattened(layer)]
    return children


def _flattened(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list):
        for child in tree:
            yield from _flattened(child)
    else:
        yield tree


def _names(union: CallUnion, dim_names: DimNames) -> Mapping[Axis, str] | None:
    if dim_names is None or dim_names is False:
        return None
    if dim_names is True:
        return {axis: _spelled(name) for axis, name in union.axis_names().items()}
    wanted = "True, or names by argument and dimension: {'x': {0: 'batch'}}"
    check_kind(dim_names, Mapping, "dim_names", wanted)
    found = {}
    for key, dims in dim_names.items():
        root = _argument(key, union, "dim_names")
        check_kind(dims, Mapping, f"What dim_names gives for {root}", wanted)
        axes = [
            axis for axis in union.table.axes if axis.path.root == root and axis.dim is not None
        ]
        for dim, name in dims.items():
            check_kind(name, str, f"The name of dimension {dim} of {root}", "a text")
            if axes and dim not in {axis.dim for axis in axes}:
                raise UsageError(
                    f"dim_names names the dimension {dim!r} of {root}, which does not have it.",
                    slug="no-such-dimension",
                    hint=f"It has the dimensions 0 to {max(axis.dim or 0 for axis in axes)}.",
                )
            found.update({axis: name for axis in axes if axis.dim == dim})
    return found


def _spelled(name: str) -> str:
    """Names as other exporters spell them: ``batch_size``, ``sequence_length``."""
    if name == "batch":
        return "batch_size"
    return f"{name}_length" if name.endswith("sequence") else name

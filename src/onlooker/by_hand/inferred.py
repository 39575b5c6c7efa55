"""Arguments for torch.export by hand: one observed call, completed, or grown where its sizes
cannot be exported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..core.call import Call, Passing, Signature, Values
from ..core.errors import (
    ArgumentKindError,
    ExportError,
    ObservationError,
    UnsupportedError,
    UsageError,
)
from ..core.path import Path
from ..core.spec import Axis, ConstantSpec, TensorSpec
from ..core.structure import Structure, Tree
from ..infer.build import build_plan
from ..infer.samples import table_of
from ..infer.sizes import choose_sizes
from ..materialise.arguments import Calls, leaf_values
from ..observing.bind import bind, python_signature
from ..observing.store import Sample, copy_leaves
from ..pytrees.open import close_tree, dtype_of, open_arguments, spec_of
from .union import CallUnion

__all__ = ["check_given", "check_kept", "given_sample", "infer_values", "pick_sample", "spelled"]


def pick_sample(union: CallUnion, samples: Sequence[Sample], index: int | None) -> Sample:
    """The kept call at ``index``, or the first one that has all arguments, or the one with the most
    tensors.

    :raises UsageError: ``no-such-call`` for an index out of range
    :raises ObservationError: ``no-values`` when no call was kept
    """
    if index is not None:
        if not -len(samples) <= index < len(samples):
            raise UsageError(
                f"There is no kept call {index}: {len(samples)} were kept.",
                slug="no-such-call",
                hint="Raise store_n_calls, or give a smaller index.",
            )
        return samples[index]
    check_kept(samples)
    for sample in samples:
        if _is_complete(union, sample):
            return sample
    return max(samples, key=lambda sample: sample.call.n_tensors)


def check_kept(samples: Sequence[Sample]) -> None:
    """Refuses to go on without values.

    :raises ObservationError: ``no-values``
    """
    if not samples:
        raise ObservationError(
            "No call with values was kept.",
            slug="no-values",
            hint="Raise store_n_calls, or watch calls whose tensors have values.",
        )


def infer_values(
    union: CallUnion, samples: Sequence[Sample], index: int | None, *, general: bool
) -> Values:
    """A value per leaf of the union.

    A missing tensor is an empty one: size 0 in its last changing dimension, or the observed size
    where none changed. With ``general``, a call in which a changing size is 0 or 1, which
    torch.export would take for a constant, is replaced by another one, or grown to sizes that obey
    the relations between the axes.
    """
    sample = pick_sample(union, samples, index)
    if general and index is None and not _exportable(union, sample):
        better = next(
            (s for s in samples if _is_complete(union, s) and _exportable(union, s)), None
        )
        if better is None:
            grown = _grown(union, samples)
            if grown is not None:
                return grown
        sample = better or sample
    values = dict(zip(leaf_values(sample), copy_leaves(sample.inputs.leaves), strict=True))
    return {
        path: values[path] if _has(values, path, spec) else _missing(union, path, spec)
        for path, spec in union.union.leaves.items()
    }


def _has(values: Values, path: Path, spec: object) -> bool:
    return path in values and not (values[path] is None and spec != ConstantSpec(None))


def _is_complete(union: CallUnion, sample: Sample) -> bool:
    values = leaf_values(sample)
    leaves = union.union.leaves.items()
    return all(path in values for path, spec in leaves if isinstance(spec, TensorSpec))


def _exportable(union: CallUnion, sample: Sample) -> bool:
    """True when no changing dimension of the call has size 0 or 1."""
    return all(
        size > 1
        for path, spec in sample.call.inputs.items()
        if isinstance(spec, TensorSpec)
        for dim, size in enumerate(spec.shape)
        if union.changes(Axis(path, dim))
    )


def _grown(union: CallUnion, samples: Sequence[Sample]) -> Values | None:
    table = table_of(union.calls, union.fills)
    plan = build_plan(union.union, table, union.fills)
    try:
        return Calls(plan, samples).values(choose_sizes(plan))
    except (ExportError, ObservationError, UnsupportedError):
        return None


def _missing(union: CallUnion, path: Path, spec: object) -> Any:
    if not isinstance(spec, TensorSpec):
        return spec.value if isinstance(spec, ConstantSpec) else None
    shape = list(spec.shape)
    changing = [dim for dim in range(len(shape)) if union.changes(Axis(path, dim))]
    if changing:
        shape[max(changing)] = 0
    return torch.zeros(shape, dtype=dtype_of(spec.dtype), device=spec.device)


def spelled(union: CallUnion, values: Values, *, as_args_kwargs: bool) -> Any:
    """The values as arguments: a tuple when all came by position, else a dict by name.

    :raises ObservationError: ``args-and-names`` when the method has ``*args`` and names
    """
    arguments = {
        name: close_tree(structure, [values[path] for path, _ in leaves])
        for name, structure, leaves in union.arguments()
        if name not in union.dropped
    }
    var = union.signature.of_kind("VAR_POSITIONAL")
    if not as_args_kwargs:
        if union.positional:
            return tuple(arguments.values())
        if var in arguments:
            raise ObservationError(
                f"The arguments are neither a tuple nor a dict: the method has *{var} and names.",
                slug="args-and-names",
                hint="Ask for both with as_args_kwargs=True.",
            )
        return arguments
    by_position = set(union.passed_as(Passing.POSITIONAL)) | {var}
    args: list[Any] = []
    for name in [n for n in arguments if n in by_position]:
        value = arguments.pop(name)
        args += value if name == var else [value]
    return tuple(args), arguments


def check_given(given: object) -> None:
    """Refuses what is neither an index, a tuple nor a dict.

    :raises ArgumentKindError: ``unexpected-arguments``
    """
    if given is not None and (
        isinstance(given, bool) or not isinstance(given, (int, tuple, dict, list))
    ):
        raise ArgumentKindError(
            f"Unexpected type {type(given).__name__} for index_or_args_or_kwargs.",
            slug="unexpected-arguments",
            hint=(
                "Give the index of a kept call, a tuple of positional arguments or a dict of named"
                " ones."
            ),
        )


def given_sample(
    signature: Signature, given: tuple[Any, ...] | list[Any] | dict[str, Any]
) -> Sample:
    """Arguments that the user gives, as if they had been observed.

    :raises UsageError: ``does-not-bind`` when the method would refuse them
    """
    args, kwargs = ((), given) if isinstance(given, dict) else (tuple(given), {})
    try:
        values, passed = bind(python_signature(signature), args, kwargs, partial=True)
    except TypeError as error:
        raise UsageError(
            f"These arguments do not fit the method: {error}.",
            slug="does-not-bind",
            hint="Give them as in a call.",
        ) from error
    inputs = open_arguments(values)
    specs = inputs.each(spec_of)
    nothing: Tree[Any] = Tree(Structure(), (None,))
    return Sample(Call(0, specs, Tree(Structure(), (spec_of(None),)), passed), inputs, nothing)

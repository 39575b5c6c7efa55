"""Which attributes of a model its watched calls change, and their values before and after each call.

A recorded call then has its state among its arguments, and its new state in its result: ``{"output":
..., "state": {"conv.frames": ...}}``. So sizes, relations and graphs of state are found as those of
any argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from ..core.call import ARGUMENTS, OUTPUT, STATE, Call, ChangedArgument, Parameter, Signature
from ..core.path import Key, Name
from ..core.spec import ConstantSpec, Spec
from ..core.structure import Structure, Tree
from ..pytrees.adopt import holds_numbers, placed
from ..pytrees.layers import is_cache
from ..pytrees.open import open_tree, spec_of
from .module_state import are_equal, copied_values, held_values
from .remove import call_without, tree_without
from .samples import Sample

__all__ = [
    "StateTracker",
    "name_of_state",
    "plain_call",
    "plain_sample",
    "stateful_result",
    "with_changed_arguments",
    "with_state_parameter",
]

T = TypeVar("T")


def name_of_state(signature: Signature) -> str:
    """The name of the argument that has the state: ``state``, or one like it where that is taken."""
    return next(
        name
        for name in ("state", *(f"state_{number}" for number in range(2, len(signature.names) + 3)))
        if name not in signature.names
    )


def with_state_parameter(signature: Signature, name: str) -> Signature:
    """The signature with one more parameter, which is given by name alone."""
    state = Parameter(name, "KEYWORD_ONLY", required=False, default=ConstantSpec(None))
    last = [p for p in signature.parameters if p.kind == "VAR_KEYWORD"]
    others = [p for p in signature.parameters if p.kind != "VAR_KEYWORD"]
    return Signature((*others, state, *last))


def stateful_result(result: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    """What a call with state gives: the result of the method, and the new state."""
    return {OUTPUT: result, STATE: dict(state)}


def with_changed_arguments(
    parts: dict[str, Any], arguments: Mapping[str, Any], changed: Iterable[ChangedArgument]
) -> dict[str, Any]:
    """The parts of a result, and the arguments among the ``changed`` ones that the call had and that
    are not in its output; lists and dicts of numbers in any case.
    """
    given = {one.name: arguments[one.name] for one in changed if one.name in arguments}
    found = {
        name: value
        for name, value in given.items()
        if value is not None and (placed(parts[OUTPUT], value) is None or holds_numbers(value))
    }
    return {**parts, ARGUMENTS: found} if found else parts


@dataclass(frozen=True, slots=True)
class Marks:
    """The attributes before a call: each object, and what tells whether it was written to."""

    values: Mapping[str, Any]
    versions: Mapping[str, tuple[Any, ...]]


class StateTracker:
    """Finds the attributes that calls change, and gives their values before and after a call.

    ``initial`` are the values that stood when watching began. An attribute that no call had changed
    so far has its initial value in all calls before. ``unread`` are attributes that calls change and
    that nothing depends on: they are left out of the calls.
    """

    def __init__(self, model: Any, name: str) -> None:
        self.name = name
        self._model = model
        self.initial: dict[str, Any] = copied_values(held_values(model))
        self._ranks = {path: rank for rank, path in enumerate(self.initial)}
        self._found_in: dict[str, int] = {}
        self.unread: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[str, ...]:
        """The attributes that some call changed, in the order of the model."""
        return tuple(sorted(self._found_in, key=self._ranks.__getitem__))

    @property
    def paths(self) -> tuple[str, ...]:
        """The attributes that are state: those that calls change, but for the ``unread`` ones."""
        return tuple(path for path in self.written if path not in self.unread)

    def before(self) -> tuple[dict[str, Any], Marks]:
        """The values of the known attributes before a call, and marks of all attributes."""
        values = held_values(self._model)
        marks = Marks(values, {path: _versions(value) for path, value in values.items()})
        return self._known(values), marks

    def after(self, marks: Marks, index: int) -> dict[str, Any]:
        """The values of the attributes after the call with this number, those among them that it is
        the first to change.
        """
        values = held_values(self._model)
        for path in {**values, **marks.values}:
            if path not in self._found_in and self._is_changed(path, values, marks):
                self._ranks.setdefault(path, len(self._ranks))
                self._found_in[path] = index
        return self._known(values)

    def _known(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {path: values[path] for path in self.written if path in values}

    def _is_changed(self, path: str, values: Mapping[str, Any], marks: Marks) -> bool:
        if path not in values or path not in self.initial:
            return True
        value = values[path]
        is_untouched = value is marks.values.get(path) and _versions(value) == marks.versions[path]
        return not is_untouched and not are_equal(self.initial[path], value)

    # ------------------------------------------------------------------------------ recorded calls

    def completed_call(self, call: Call) -> Call:
        """The call with the attributes that were found after it, which had their initial values."""
        before, after = self._missing(call.index)
        return replace(
            call,
            inputs=_completed(call.inputs, Name(self.name), self._specs(before), self.paths),
            outputs=_completed(call.outputs, Key(STATE), self._specs(after), self.paths),
        )

    def completed_sample(self, sample: Sample) -> Sample:
        """The same with values."""
        before, after = self._missing(sample.call.index)
        return replace(
            sample,
            call=self.completed_call(sample.call),
            inputs=_completed(sample.inputs, Name(self.name), self._trees(before), self.paths),
            outputs=_completed(sample.outputs, Key(STATE), self._trees(after), self.paths),
        )

    def _missing(self, index: int) -> tuple[list[str], list[str]]:
        """The attributes that the inputs of a call lack, and those that its outputs lack."""
        had = [path for path in self.paths if path in self.initial]
        before = [path for path in had if index <= self._found_in[path]]
        return before, [path for path in before if index < self._found_in[path]]

    def _trees(self, paths: Sequence[str]) -> dict[str, Tree[Any]]:
        return {path: open_tree(self.initial[path]) for path in paths}

    def _specs(self, paths: Sequence[str]) -> dict[str, Tree[Spec]]:
        return {
            path: Tree(tree.structure, tuple(map(spec_of, tree.leaves)))
            for path, tree in self._trees(paths).items()
        }


class _Same:
    """Equal for one and the same tensor, which lives as long."""

    __slots__ = ("tensor",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.tensor is self.tensor


def _versions(value: Any) -> tuple[Any, ...]:
    """What is another one when a value, or a tensor in it, was written to or replaced; torch counts
    no writes to an inference tensor, which is never equal.
    """
    if isinstance(value, torch.Tensor):
        return (_Same(value), object() if value.is_inference() else value._version)
    if isinstance(value, (list, tuple, dict)) or is_cache(value):
        tree = open_tree(value)
        return (tree.structure, *(part for leaf in tree.leaves for part in _versions(leaf)))
    return (value,)


def _completed(
    tree: Tree[T], part: Name | Key, missing: Mapping[str, Tree[T]], order: Sequence[str]
) -> Tree[T]:
    """The tree with other entries in the dict at ``part``: those in ``order``, of its own and of the
    ``missing`` ones.
    """
    children: list[Structure] = []
    leaves: list[T] = []
    start = 0
    for entry, child in zip(tree.structure.entries, tree.structure.children, strict=True):
        stop = start + child.n_leaves
        own = Tree(child, tree.leaves[start:stop])
        start = stop
        if entry == part:
            own = _merged(own, missing, order)
        children.append(own.structure)
        leaves += own.leaves
    return Tree(replace(tree.structure, children=tuple(children)), tuple(leaves))


def _merged(tree: Tree[T], missing: Mapping[str, Tree[T]], order: Sequence[str]) -> Tree[T]:
    parts = {**_entries(tree), **missing}
    named = {path: parts[path] for path in order if path in parts}
    empty = open_tree(dict.fromkeys(named)).structure
    children = tuple(part.structure for part in named.values())
    leaves = tuple(leaf for part in named.values() for leaf in part.leaves)
    return Tree(replace(empty, children=children), leaves)


def _entries(tree: Tree[T]) -> dict[str, Tree[T]]:
    """The values of a dict, each as a tree."""
    found: dict[str, Tree[T]] = {}
    start = 0
    for entry, child in zip(tree.structure.entries, tree.structure.children, strict=True):
        stop = start + child.n_leaves
        key = entry.key if isinstance(entry, Key) else entry.code()
        found[key] = Tree(child, tree.leaves[start:stop])
        start = stop
    return found


def plain_call(call: Call, name: str) -> Call:
    """A call without its state: the arguments and the result of the method itself."""
    return replace(call_without(call, {name}), outputs=_entries(call.outputs)[OUTPUT])


def plain_sample(sample: Sample, name: str) -> Sample:
    """The same with values."""
    return replace(
        sample,
        call=plain_call(sample.call, name),
        inputs=tree_without(sample.inputs, {name}),
        outputs=_entries(sample.outputs)[OUTPUT],
    )

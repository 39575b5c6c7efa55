"""The attributes of a model that its watched calls change, with their values before and after each
call.

A recorded call then has its state among its arguments, and its new state in its result: ``{"output":
..., "state": {"conv.frames": ...}}``. So sizes, relations and graphs of state are found as those of
any argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from ..core.call import ARGUMENTS, OUTPUT, STATE, Call, ChangedArgument, Parameter, Signature
from ..core.path import Entry, Key, Name
from ..core.spec import ConstantSpec
from ..core.structure import Tree
from ..pytrees.adopt import holds_numbers, placed
from ..pytrees.layers import is_cache
from ..pytrees.open import open_tree, spec_of
from .effects import HeldTree, was_written, write_mark
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
    """Returns the result of a call with state: that of the method, and the new state."""
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
    marks: Mapping[str, Any]


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
        marks = Marks(values, {path: _mark(value) for path, value in values.items()})
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
        is_same = path in marks.values and value is marks.values[path]
        if is_same and not _is_touched(value, marks.marks[path]):
            return False
        # a tensor that calls write is state, though they wrote what stood there
        return isinstance(value, torch.Tensor) or not are_equal(self.initial[path], value)

    # ------------------------------------------------------------------------------ recorded calls

    def completed_call(self, call: Call) -> Call:
        """The call with the attributes that were found after it, which had their initial values."""
        found: Call = self._completed(call, call.index, spec_of)
        return found

    def completed_sample(self, sample: Sample) -> Sample:
        """Returns the sample of the completed call, with values."""
        call = self.completed_call(sample.call)
        found: Sample = self._completed(sample, call.index, _itself)
        return replace(found, call=call)

    def _completed(self, one: Any, index: int, leaf_of: Callable[[Any], Any]) -> Any:
        """Inputs lack attributes that only later calls changed, and outputs those that later calls than
        this one changed first.
        """
        had = [path for path in self.paths if path in self.initial]
        before = [path for path in had if index <= self._found_in[path]]
        after = [path for path in before if index < self._found_in[path]]
        trees = {path: open_tree(self.initial[path]) for path in before}
        leaves = {path: tuple(map(leaf_of, tree.leaves)) for path, tree in trees.items()}
        initial = {path: Tree(tree.structure, leaves[path]) for path, tree in trees.items()}
        outputs = {path: initial[path] for path in after}
        return replace(
            one,
            inputs=_completed(one.inputs, Name(self.name), initial, self.paths),
            outputs=_completed(one.outputs, Key(STATE), outputs, self.paths),
        )


def _itself(leaf: Any) -> Any:
    return leaf


def _mark(value: Any) -> Any:
    """Returns a mark that tells later whether a value, or a tensor in it, was written to or
    replaced.
    """
    if isinstance(value, torch.Tensor):
        return write_mark(value, copies=False)
    if isinstance(value, (list, tuple, dict)) or is_cache(value):
        return HeldTree(open_tree(value), copies=False)
    return None


def _is_touched(value: Any, mark: Any) -> bool:
    if isinstance(mark, HeldTree):
        return bool(mark.effects(open_tree(value)))
    return was_written(value, mark)


def _completed(
    tree: Tree[T], part: Name | Key, missing: Mapping[str, Tree[T]], order: Sequence[str]
) -> Tree[T]:
    """The tree with other entries in the dict at ``part``: those in ``order``, of its own and of the
    ``missing`` ones.
    """
    parts = tree.parts()
    own = {_key(entry): value for entry, value in parts[part].parts().items()} | {**missing}
    named: dict[Entry, Tree[T]] = {Key(path): own[path] for path in order if path in own}
    structure = open_tree({path: None for path in order if path in own}).structure
    empty: Tree[T] = Tree(structure, ())
    parts[part] = empty.with_parts(named)
    return tree.with_parts(parts)


def _key(entry: Entry) -> Any:
    return entry.key if isinstance(entry, Key) else entry.code()


def plain_call(call: Call, name: str) -> Call:
    """A call without its state: the arguments and the result of the method itself."""
    return replace(call_without(call, {name}), outputs=call.outputs.parts()[Key(OUTPUT)])


def plain_sample(sample: Sample, name: str) -> Sample:
    """Returns the sample without the state: the arguments and the result of the method alone."""
    return replace(
        sample,
        call=plain_call(sample.call, name),
        inputs=tree_without(sample.inputs, {name}),
        outputs=sample.outputs.parts()[Key(OUTPUT)],
    )

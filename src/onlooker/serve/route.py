"""The way from calls of one structure to the inputs of one graph: found once, then followed for
every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ..contract.checker import kind_of
from ..core.call import Signature
from ..core.drawing.alike import folded
from ..core.path import Path
from ..core.plan import LeafPlan, Plan
from ..core.spec import ConstantSpec, OpaqueSpec, Spec
from ..core.structure import Structure, child_of
from ..core.traffic import ALWAYS_GIVEN, Violation, ViolationKind
from ..pytrees.open import dtype_of, spec_of
from .contexts import conflict
from .fills import Filler

__all__ = ["Mismatch", "Route", "default_float"]

#: containers that say something by being empty
_EMPTY = frozenset({"list", "tuple", "dict", "OrderedDict", "collections.OrderedDict"})
_STRIDED = torch.strided
#: torch computes with ints below this one
_FAR = 1 << 63
#: the dtype of a tensor, and its rank
_Kind = tuple[torch.dtype, int]
#: tensors of one kind: each with its position among the inputs, that among the leaves, and its plan
_Tensors = tuple[_Kind, tuple[tuple[int, int, LeafPlan], ...]]


class Mismatch(Exception):
    """The reason for which one graph does not take a call; never seen by a user."""

    def __init__(self, *violations: Violation) -> None:
        super().__init__(*violations)
        self.violations = violations

    def __str__(self) -> str:
        return "; ".join(folded(violation.said for violation in self.violations))


class Route:
    """The way from the leaves of a structure to the inputs of a plan.

    What does not depend on the values of a call is decided here: where each input stands, what is
    missing, what the graph has no place for.

    :raises Mismatch: when no call of this structure can be served
    """

    def __init__(
        self,
        plan: Plan,
        structure: Structure,
        signature: Signature,
        ways: Sequence[frozenset[str]] = (),
        marks: Collection[str] = (),
    ) -> None:
        self._plan, self._ways = plan, frozenset(ways)
        places = {path: position for position, path in enumerate(structure.paths())}
        self._absent = _absent_options(plan, places, signature)
        self._constants = _constants(plan, places, signature)
        self._objects = _objects(plan, places, signature)
        self._rest = _rest(plan, places, signature)
        _check_needed(plan, structure)
        reason = conflict(plan.structure, structure, marks)
        if reason is not None:
            raise Mismatch(reason)
        _check_leaves(plan, structure)
        _check_empty(plan, structure)
        kinds: dict[_Kind, list[tuple[int, int, LeafPlan]]] = {}
        self._ints: list[tuple[int, int, LeafPlan]] = []
        self._floats: list[tuple[int, int, LeafPlan]] = []
        self._defaults: list[tuple[int, float | int]] = []
        missing: list[tuple[int, LeafPlan]] = []
        for target, leaf in enumerate(plan.inputs):
            source = places.get(leaf.path)
            if (
                source is None
                and leaf.is_float
                and (default := default_float(leaf, signature)) is not None
            ):
                self._defaults.append((target, default))
            elif (
                source is None
                and leaf.value is not None
                and ((number := _default_int(leaf, signature)) is not None)
            ):
                self._defaults.append((target, number))
            elif source is None:
                missing.append((target, leaf))
            elif leaf.is_float:
                self._floats.append((target, source, leaf))
            elif leaf.is_tensor:
                kinds.setdefault((dtype_of(leaf.dtype), len(leaf.shape)), []).append(
                    (target, source, leaf)
                )
            else:
                self._ints.append((target, source, leaf))
        self._tensors: list[_Tensors] = [(kind, tuple(places)) for kind, places in kinds.items()]
        self._count = len(plan.inputs)
        self._missing = tuple(missing)
        self._fillers: dict[tuple[int, ...], Filler] = {}
        _check_filled(missing)
        _check_together(plan, places)
        if self._absent and not any(way.issuperset(self._absent) for way in self._ways):
            raise Mismatch(*_left_out(plan, self._absent, signature))
        self._signature = signature

    def left_out(self, leaves: Sequence[Any]) -> frozenset[str]:
        """The options that a call leaves out, or passes as their default, where the graph was
        traced with something else.
        """
        absent = set(self._absent)
        for source, kind, constant, path, default in self._constants:
            value = leaves[source]
            if type(value) is kind and value == constant and kind is not float:
                continue
            if _is_default(value, default) and not _is_default(constant, default):
                absent.add(path.root)
        for source, path, opaque, default in self._objects:
            if _is_default(leaves[source], default) and spec_of(leaves[source]) != opaque:
                absent.add(path.root)
        return frozenset(absent)

    def is_whole(self, leaves: Sequence[Any]) -> bool:
        """True for a call that has all inputs, and leaves out no option: nothing stands in for them."""
        return not self._tensors_left_out(leaves) and not self.left_out(leaves)

    def way_of(self, leaves: Sequence[Any]) -> frozenset[str]:
        """The options that a call leaves out, and the tensors where it may leave them out at some sizes
        alone.
        """
        tensors, options = self._tensors_left_out(leaves), self.left_out(leaves)
        return options | tensors if tensors in self._ways else options

    def _tensors_left_out(self, leaves: Sequence[Any]) -> frozenset[str]:
        """The arguments of the inputs that a call does not have."""
        left_out = [leaf for _, leaf in self._missing]
        of_tensors = [place for _, places in self._tensors for place in places]
        for _, source, leaf in (*of_tensors, *self._ints):
            if leaves[source] is None:
                left_out.append(leaf)
        return _roots_of(left_out)

    def _check_way(self, leaves: Sequence[Any]) -> None:
        """Passes for a call that leaves out nothing, or what a trace left out too."""
        absent = self.left_out(leaves)
        if absent and absent not in self._ways:
            raise Mismatch(*_left_out(self._plan, absent, self._signature))

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """The inputs of the graph, in the order of its plan, from the leaves of a call.

        :raises Mismatch: with the argument, what was observed and what came
        """
        is_other = bool(self._absent)
        for source, kind, constant, path, default in self._constants:
            value = leaves[source]
            if type(value) is not kind or value != constant or kind is float:
                is_other = _check_constant(path, constant, value, default) or is_other
        for source, path, opaque, default in self._objects:
            came = spec_of(leaves[source])
            if came != opaque and default is not None and came == default:
                is_other = True
            elif came != opaque:
                got = came.beside(opaque) if isinstance(came, OpaqueSpec) else str(came)
                expected = f"the {opaque} of the watched calls"
                raise Mismatch(Violation(ViolationKind.CONSTANT, str(path), expected, got))
        if is_other:
            self._check_way(leaves)
        for source, path, default in self._rest:
            _check_rest(path, default, leaves[source])
        inputs: list[Any] = [None] * self._count
        absent: list[tuple[int, LeafPlan]] = []
        for tensors in self._tensors:
            _place_tensors(tensors, leaves, inputs, absent)
        if self._ints:
            _place_ints(self._ints, leaves, inputs, absent)
        for target, source, leaf in self._floats:
            inputs[target] = checked_float(leaf, leaves[source])
        for target, number in self._defaults:
            inputs[target] = number
        if self._missing or absent:
            self._fill(absent, inputs)
        return inputs

    def _fill(self, absent: Sequence[tuple[int, LeafPlan]], inputs: list[Any]) -> None:
        key = tuple([target for target, _ in absent])
        filler = self._fillers.get(key)
        if filler is None:
            _check_filled(absent)
            _check_absent_sets(self._plan, [leaf for _, leaf in (*self._missing, *absent)])
            _check_determined(self._plan, [leaf for _, leaf in (*self._missing, *absent)])
            filler = self._fillers[key] = Filler(self._plan, [*self._missing, *absent])
        filler.fill(inputs)


def _place_tensors(
    tensors: _Tensors, leaves: Sequence[Any], inputs: list[Any], absent: list[tuple[int, LeafPlan]]
) -> None:
    """Puts the tensors of one kind where the graph wants them."""
    (dtype, rank), places = tensors
    for target, source, leaf in places:
        value = leaves[source]
        if value is None:
            absent.append((target, leaf))
            continue
        try:
            fits = value.dtype is dtype and len(value.shape) == rank and value.layout is _STRIDED
        except (
            AttributeError,
            RuntimeError,
        ):  # a nested tensor, or one without a shape yet, refuses to be asked
            fits = False
        if not fits:
            raise Mismatch(
                Violation(ViolationKind.TYPE, str(leaf.path), kind_of(leaf), _said(value))
            )
        inputs[target] = value


def _said(value: Any) -> str:
    """A leaf that does not fit, in words; a tensor that is no dense block of numbers has its layout."""
    layout = getattr(value, "layout", _STRIDED)
    said = str(spec_of(value))
    return said if layout is _STRIDED else f"{said} of the layout {layout}"


def default_float(leaf: LeafPlan, signature: Signature) -> float | None:
    """The float that a call which leaves out this argument means; None where it is no float."""
    number = _default_constant(leaf, signature)
    return float(number) if isinstance(number, float) and leaf.takes_float(number) else None


def _default_int(leaf: LeafPlan, signature: Signature) -> int | None:
    """The int that a call which leaves out this argument means; None where it is no int."""
    number = _default_constant(leaf, signature)
    return number if type(number) is int else None


def _default_constant(leaf: LeafPlan, signature: Signature) -> Any:
    default = signature.default_of(leaf.path)
    return default.value if isinstance(default, ConstantSpec) else None


def checked_float(leaf: LeafPlan, value: Any) -> float:
    """The float of a call.

    :raises Mismatch: for anything else, an int for instance, of which a model may make something
        else
    """
    if leaf.takes_float(value):
        return float(value)
    kind, expected = ViolationKind.TYPE, f"a {leaf.float_class}"
    if replace(leaf, between=None).takes_float(value):
        kind, expected = ViolationKind.RANGE, str(leaf.between)
    raise Mismatch(Violation(kind, str(leaf.path), expected, str(spec_of(value))))


def _place_ints(
    places: Sequence[tuple[int, int, LeafPlan]],
    leaves: Sequence[Any],
    inputs: list[Any],
    absent: list[tuple[int, LeafPlan]],
) -> None:
    for target, source, leaf in places:
        value = leaves[source]
        if type(value) is int and -_FAR <= value < _FAR:
            inputs[target] = value
        elif value is None:
            absent.append((target, leaf))
        else:
            kind = "an int of 64 bits" if type(value) is int else "an int"
            raise Mismatch(Violation(ViolationKind.TYPE, str(leaf.path), kind, str(spec_of(value))))


def _check_needed(plan: Plan, structure: Structure) -> None:
    """The arguments that must be there, if only without parts; None is not there."""
    pairs = structure.parts
    given = {Path((entry,)).root for entry, child in pairs if not child.is_leaf}
    for name in plan.needed:
        if name not in given:
            raise Mismatch(Violation(ViolationKind.ABSENT, name, ALWAYS_GIVEN, "nothing"))


def _check_leaves(plan: Plan, structure: Structure) -> None:
    """Passes where no container stands in the place of an input: a list of numbers is no tensor."""
    for leaf in plan.inputs:
        given = child_of(structure, *leaf.path.entries)
        if given is not None and not given.is_leaf:
            expected = "tensor" if leaf.is_tensor else "float" if leaf.is_float else "an int"
            got = f"a {given.kind}"
            raise Mismatch(Violation(ViolationKind.TYPE, str(leaf.path), expected, got))


def _check_empty(plan: Plan, structure: Structure) -> None:
    """An empty list, tuple or dict is a value, not an argument that is left out: the model may fill
    it, count its items, or go through them. Only where tensors of the graph stand in for what is
    left out, as for a cache without layers, does it say the same.
    """
    for path, kind in _lost(plan.structure, structure):
        expected = f"an empty {kind}, as in the watched calls"
        raise Mismatch(Violation(ViolationKind.ABSENT, str(path), expected, "nothing"))
    for path, kind in _empty_in(structure, plan.structure):
        leaves = [
            leaf for leaf in plan.leaves if leaf.path.entries[: len(path.entries)] == path.entries
        ]
        if not leaves or any(leaf.empty_dim is None for leaf in leaves):
            expected = "with items, as in the watched calls" if leaves else "left out"
            raise Mismatch(
                Violation(ViolationKind.UNKNOWN, str(path), expected, f"an empty {kind}")
            )


def _lost(
    planned: Structure, given: Structure, path: Path | None = None
) -> Iterator[tuple[Path, str]]:
    """The empty containers of a plan for which a call has nothing, or a value; a whole argument that is
    left out is looked at by its leaves.
    """
    here = Path() if path is None else path
    for entry, child in planned.parts:
        came = child_of(given, entry)
        if came is None or came.is_leaf:
            if child.kind in _EMPTY and not child.entries:
                yield here / entry, child.kind
        else:
            yield from _lost(child, came, here / entry)


def _empty_in(
    given: Structure, planned: Structure | None, path: Path | None = None
) -> Iterator[tuple[Path, str]]:
    """The places of a call with an empty container of Python that is not empty in the plan."""
    here = Path() if path is None else path
    is_known = planned is not None and not planned.is_leaf and not planned.entries
    if given.kind in _EMPTY and not given.entries and not is_known:
        yield here, given.kind
    for entry, child in given.parts:
        known = child_of(planned, entry)
        yield from _empty_in(child, known, here / entry)


def _check_filled(missing: Sequence[tuple[int, LeafPlan]]) -> None:
    for _, leaf in missing:
        if leaf.fill is None or leaf.bound:
            path = str(leaf.path)
            raise Mismatch(Violation(ViolationKind.ABSENT, path, ALWAYS_GIVEN, "nothing"))


def _check_absent_sets(plan: Plan, missing: Sequence[LeafPlan]) -> None:
    """Arguments without which the model was found to compute something else, all of them together,
    are not left out together.
    """
    absent = _roots_of(missing)
    for names in plan.never_absent:
        if absent == set(names):
            expected = "given" if len(names) == 1 else f"given, or another of {', '.join(names)}"
            got = "nothing, for which the model computes something else"
            raise Mismatch(Violation(ViolationKind.ABSENT, names[0], expected, got))


def _roots_of(leaves: Sequence[LeafPlan]) -> frozenset[str]:
    return frozenset(leaf.path.root for leaf in leaves)


def _check_together(plan: Plan, places: Mapping[Path, int]) -> None:
    """Tensors and numbers of one argument that watched calls passed together, and not always, are passed together
    or not at all: experiments left out the whole argument.
    """
    groups: dict[tuple[str, int], list[LeafPlan]] = {}
    for leaf in plan.inputs:
        if leaf.fill is not None and leaf.empty_dim is None:
            groups.setdefault((leaf.path.root, leaf.calls), []).append(leaf)
    for leaves in groups.values():
        given = [leaf for leaf in leaves if leaf.path in places]
        for leaf in leaves if given else ():
            if leaf.path not in places:
                expected = f"given, as in every observed call with {given[0].path}"
                raise Mismatch(Violation(ViolationKind.ABSENT, str(leaf.path), expected, "nothing"))


def _check_determined(plan: Plan, missing: Sequence[LeafPlan]) -> None:
    """The sizes of ones and zeros that stand in for a leaf follow from leaves that are there, or
    from empty ones.
    """
    made = [
        leaf
        for leaf in missing
        if leaf.is_tensor and leaf.fill is not None and leaf.empty_dim is None
    ]
    others = [leaf for leaf in plan.inputs if leaf not in made]
    known = {name for leaf in others for name in leaf.symbols}
    for leaf in made:
        unknown = leaf.symbols - known
        if unknown:
            expected = (
                f"given, since nothing else in the call says its {', '.join(sorted(unknown))}"
            )
            raise Mismatch(Violation(ViolationKind.ABSENT, str(leaf.path), expected, "nothing"))


def _absent_options(plan: Plan, places: Mapping[Path, int], signature: Signature) -> frozenset[str]:
    """The options that no call of this structure has, and whose default is not what the graph was
    traced with.
    """
    found: set[str] = set()
    for leaf in plan.leaves:
        constant = leaf.constant if leaf.is_constant else None
        is_object = leaf.opaque is not None and len(leaf.path.entries) == 1
        if (constant is not None or is_object) and leaf.path not in places:
            default = signature.default_of(leaf.path)
            if default != (constant or leaf.opaque) and not _waits(leaf, plan):
                if any(
                    path.root == leaf.path.root for path in places
                ):  # it is there, but for a part
                    expected = str(constant or leaf.opaque)
                    raise Mismatch(
                        Violation(ViolationKind.CONSTANT, str(leaf.path), expected, "nothing")
                    )
                found.add(leaf.path.root)
    return frozenset(found)


def _waits(leaf: LeafPlan, plan: Plan) -> bool:
    """True for a constant in a cache, which is not there before the tensors beside it are."""
    if len(leaf.path.entries) == 1 or leaf.calls == len(plan.calls):
        return False
    beside = (one for one in plan.inputs if one.path.root == leaf.path.root)
    return any(one.fill is not None for one in beside)


def _left_out(plan: Plan, names: Collection[str], signature: Signature) -> Iterator[Violation]:
    """A violation for each left-out option that the graph has as a constant, with what its default means."""
    for leaf in plan.leaves:
        fixed = leaf.opaque or (leaf.constant if leaf.is_constant else None)
        if fixed is not None and leaf.path.root in names:
            default = signature.default_of(leaf.path)
            got = "nothing" if default is None else f"its default, {default}"
            yield Violation(ViolationKind.CONSTANT, str(leaf.path), str(fixed), got)


def _constants(
    plan: Plan, places: Mapping[Path, int], signature: Signature
) -> list[tuple[int, type, Any, Path, Spec | None]]:
    """The leaves that must be as they were observed, each with the default of its argument."""
    found: list[tuple[int, type, Any, Path, Spec | None]] = []
    for leaf in plan.leaves:
        constant, source = leaf.constant, places.get(leaf.path)
        if leaf.is_constant and constant is not None and source is not None:
            default = signature.default_of(leaf.path)
            found.append((source, type(constant.value), constant.value, leaf.path, default))
    return found


def _objects(
    plan: Plan, places: Mapping[Path, int], signature: Signature
) -> list[tuple[int, Path, OpaqueSpec, Spec | None]]:
    """The leaves that are objects which could not be opened, and must be the same as they were, each
    with the default of its argument.
    """
    found: list[tuple[int, Path, OpaqueSpec, Spec | None]] = []
    for leaf in plan.leaves:
        source = places.get(leaf.path)
        if leaf.opaque is not None and source is not None:
            found.append((source, leaf.path, leaf.opaque, signature.default_of(leaf.path)))
        elif (
            leaf.opaque is not None
            and leaf.calls == len(plan.calls)
            and leaf.opaque != signature.default_of(leaf.path)
        ):
            expected = f"the {leaf.opaque} of the watched calls"
            raise Mismatch(Violation(ViolationKind.CONSTANT, str(leaf.path), expected, "nothing"))
    return found


def _is_default(value: Any, default: Spec | None) -> bool:
    return default is not None and spec_of(value) == default


def _check_constant(path: Path, constant: Any, value: Any, default: Spec | None) -> bool:
    """True for a call that passes the default instead; the comparison is exact: NaN is NaN, and 0.0
    is not -0.0.
    """
    expected, came = ConstantSpec(constant), spec_of(value)
    if came == expected:
        return False
    if default is not None and came == default:
        return True
    raise Mismatch(Violation(ViolationKind.CONSTANT, str(path), str(expected), str(came)))


def _rest(
    plan: Plan, places: Mapping[Path, int], signature: Signature
) -> list[tuple[int, Path, Spec | None]]:
    """The leaves that the graph has no place for, and the defaults of the signature for them."""
    known = {leaf.path for leaf in plan.leaves}
    return [
        (source, path, signature.default_of(path))
        for path, source in places.items()
        if path not in known
    ]


def _check_rest(path: Path, default: Spec | None, value: Any) -> None:
    """Passes for the default of a whole argument: a call with it is the call without it. A part of
    an argument has no default: an empty tensor or None says something to the model.
    """
    if default is not None and default == spec_of(value):
        return
    raise Mismatch(Violation(ViolationKind.UNKNOWN, str(path), "left out", str(spec_of(value))))

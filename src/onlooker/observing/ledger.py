"""The calls of a recording, kept small: equal ones are counted, and what many leaves share is kept
once.

A decode step has the same few sizes in each of its layers. So a call is kept as its distinct specs,
by number, and as the place of each among the leaves, which thousands of calls have in common.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..core.call import Call, Passed
from ..core.spec import ConstantSpec, OpaqueSpec, Spec, TensorSpec
from ..core.structure import LEAF, Structure, Tree
from ..core.support.locks import lock_of
from ..core.surroundings import Surroundings
from ..pytrees.open import NESTED, dtype_of, spec_of
from ..pytrees.reopen import StructureReader

__all__ = ["EntryForm", "Form", "Ledger", "Made", "Row", "SpecNumbers"]

#: a call whose leaves are the numbers of their specs
Row = tuple[int, ...]
#: how a call was made: how each argument came, and what stood around it
Made = tuple[Passed, Surroundings | None]
#: the number of a structure, and a number for each of its leaves
Form = tuple[int, Row]
#: the structures of arguments and result, how the call was made, how many leaves are of the
#: arguments, and the place of each leaf's spec among those of the entry
EntryForm = tuple[int, int, Made, int, Row]
_tensor_key = operator.attrgetter("shape", "dtype", "device")
_BY_VALUE = (bool, int, str, type(None))
#: what one call takes about, and one number in it, and one spec, with its places in tables
_ENTRY_BYTES, _NUMBER_BYTES, _SPEC_BYTES = 200, 12, 250
#: objects of one class that are told from each other, and the name of all others: no object has it
_MOST_OBJECTS = 64
_ANOTHER = "object after many others"


class SpecNumbers:
    """A number for every spec that was seen; a spec is written out when somebody asks for it."""

    def __init__(self) -> None:
        self._lock = lock_of(self)
        self._numbers: dict[Any, int] = {}
        self._keys: list[Any] = []
        self._kinds: list[int] = []
        self._wide_kinds: list[int] = []
        self._kind_numbers: dict[Any, int] = {}
        self._objects: dict[str, int] = {}
        self.nbytes: int = 0

    def row(self, leaves: Sequence[Any], *, identified: bool = True) -> Row:
        """The number of each leaf's spec; objects of results are not told from others of their
        class.
        """
        tensor, constant_key = torch.Tensor, _constant_key if identified else _result_key
        try:
            keys = [
                _tensor_key(leaf) if isinstance(leaf, tensor) else constant_key(leaf)
                for leaf in leaves
            ]
        except RuntimeError:
            keys = [
                _sizeless_key(leaf) if isinstance(leaf, tensor) else constant_key(leaf)
                for leaf in leaves
            ]
        row = tuple(map(self._numbers.get, keys))
        return tuple(map(self._number, keys)) if None in row else row  # type: ignore[return-value]

    def _number(self, key: Any) -> int:
        with self._lock:
            number = self._numbers.get(key)
            return self._add(self._limited(key)) if number is None else number

    def _limited(self, key: Any) -> Any:
        """The key, of an object one that stands for all further ones where its class has many:
        each call brings one.
        """
        if key[0] is not Spec or not isinstance(key[1], OpaqueSpec) or not key[1].identity:
            return key
        kind = key[1].kind
        count = self._objects.get(kind, 0) + 1
        self._objects[kind] = count
        return key if count <= _MOST_OBJECTS else (Spec, OpaqueSpec(kind, _ANOTHER))

    def _add(self, key: Any) -> int:
        number = self._numbers.get(key)
        if number is not None:
            return number
        kind, wide = _kinds(key)
        self.nbytes += _SPEC_BYTES + (len(key[1]) if isinstance(key[1], str) else 0)
        self._keys.append(key)
        self._kinds.append(self._kind_numbers.setdefault(kind, len(self._kind_numbers)))
        self._wide_kinds.append(self._kind_numbers.setdefault(wide, len(self._kind_numbers)))
        self._numbers[key] = len(self._keys) - 1
        return self._numbers[key]

    def of_specs(self, specs: Iterable[Spec]) -> Row:
        """The number of each spec: that of leaves which have it."""
        return tuple(self._number(_key_of(spec)) for spec in specs)

    def known_row(self, leaves: Sequence[Any], *, identified: bool = True) -> Row | None:
        """As :meth:`row`, but None where a spec is new: nothing is added."""
        of_others = _constant_key if identified else _result_key
        keys = [_sizeless_key(v) if isinstance(v, torch.Tensor) else of_others(v) for v in leaves]
        row = tuple(self._numbers.get(key, -1) for key in keys)
        return None if -1 in row else row

    def kinds(self, row: Row) -> Row:
        """Returns the marks by which a call is of a new kind: the ranks and dtypes of tensors, and
        constants that are no sizes.
        """
        return tuple(map(self._kinds.__getitem__, row))

    def wide_kinds(self, row: Row) -> Row:
        """Returns these marks with the classes of constants alone."""
        return tuple(map(self._wide_kinds.__getitem__, row))

    def specs(self, row: Iterable[int]) -> dict[int, Spec]:
        """The specs of these numbers."""
        return {number: _spec(self._keys[number]) for number in set(row)}

    def __len__(self) -> int:
        return len(self._keys)


def _constant_key(leaf: Any) -> tuple[Any, ...]:
    cls = type(leaf)
    return (cls, leaf) if cls in _BY_VALUE else (Spec, spec_of(leaf))


def _result_key(leaf: Any) -> tuple[Any, ...]:
    cls = type(leaf)
    return (cls, leaf) if cls in _BY_VALUE else (Spec, spec_of(leaf, identified=False))


def _sizeless_key(leaf: torch.Tensor) -> Any:
    """The key of any tensor: a nested one, or a parameter that is not initialised, raises when
    asked for sizes.
    """
    try:
        return _tensor_key(leaf)
    except RuntimeError:
        return (Spec, spec_of(leaf))


def _key_of(spec: Spec) -> Any:
    """The key that a leaf with the spec has."""
    if isinstance(spec, TensorSpec):
        dtype = dtype_of(spec.dtype)
        return torch.Size(spec.shape), dtype, torch.device(spec.device)
    if isinstance(spec, ConstantSpec) and type(spec.value) in _BY_VALUE:
        return type(spec.value), spec.value
    return Spec, spec


def _kinds(key: tuple[Any, ...]) -> tuple[Any, Any]:
    if isinstance(key[0], torch.Size):
        kind = (key[1], len(key[0]))
        return kind, kind
    spec = _spec(key)
    if isinstance(spec, OpaqueSpec):
        return spec, spec.kind
    if not isinstance(spec, ConstantSpec):
        return spec, spec
    return ("int", "int") if spec.is_int else (spec, type(spec.value))


def _spec(key: tuple[Any, ...]) -> Spec:
    if isinstance(key[0], torch.Size):
        shape, dtype, device = key
        if any(type(size) is not int for size in shape):
            return OpaqueSpec(NESTED)
        return TensorSpec(tuple(shape), str(dtype), str(device))
    found: Spec = key[1] if key[0] is Spec else ConstantSpec(key[1])
    return found


class Ledger:
    """The finished calls of one method, in their order."""

    def __init__(self) -> None:
        self.numbers: SpecNumbers = SpecNumbers()
        self.inputs: StructureReader = StructureReader()
        self.outputs: StructureReader = StructureReader()
        self.n_calls: int = 0
        self.n_changes: int = 0
        self.nbytes: int = 0
        self._forms: dict[Any, int] = {}
        self._form_list: list[EntryForm] = []
        self._entries: list[Row] = []
        self._first: dict[Row, int] = {}
        self._indices, self._counts, self._seconds = array("q"), array("q"), array("d")

    def add(
        self,
        inputs: Form,
        outputs: Form,
        made: Made,
        seconds: float,
        *,
        alone: bool = False,
        has_room: bool = True,
    ) -> int | None:
        """Notes a call and gives the position of its entry; equal calls are one entry, but for one
        that shall stand ``alone``. Where there is no room for a new entry nothing is noted, and the
        position of one that is there is given.
        """
        form, places = _form_of(inputs, outputs, made)
        number = self._forms.get(form)
        if not has_room:
            return None if number is None else self._first.get((number, *places))
        entry = (self._new_form(form) if number is None else number, *places)
        index, self.n_calls = self.n_calls, self.n_calls + 1
        position = self._first.setdefault(entry, len(self._entries))
        if alone or position == len(self._entries):
            self._append(entry, index, 1, seconds)
            return len(self._entries) - 1
        self._counts[position] += 1
        return position

    def add_call(self, call: Call) -> None:
        """Notes a call that was seen elsewhere, as often as it was made."""
        inputs = (
            self.inputs.number(call.inputs.structure),
            self.numbers.of_specs(call.inputs.leaves),
        )
        outputs = (
            self.outputs.number(call.outputs.structure),
            self.numbers.of_specs(call.outputs.leaves),
        )
        position = self.add(inputs, outputs, (call.passed, call.surroundings), call.seconds)
        assert position is not None
        self._counts[position] += call.count - 1
        self.n_calls += call.count - 1

    def _new_form(self, form: EntryForm) -> int:
        number = self._forms[form] = len(self._form_list)
        self._form_list.append(form)
        self.nbytes += _ENTRY_BYTES + 2 * _NUMBER_BYTES * len(form[4])
        return number

    def _append(self, entry: Row, index: int, count: int, seconds: float) -> None:
        self.nbytes += _ENTRY_BYTES + _NUMBER_BYTES * len(entry)
        self._entries.append(entry)
        self._indices.append(index)
        self._counts.append(count)
        self._seconds.append(seconds)

    @property
    def entries(self) -> Sequence[Row]:
        """The entries, each the number of a form and numbers of specs; they are only added to."""
        return self._entries

    @property
    def forms(self) -> Sequence[EntryForm]:
        """The forms of entries; they are only added to."""
        return self._form_list

    def _rows(self, entry: Row) -> tuple[Form, Form, Made]:
        structure_in, structure_out, made, n_inputs, pattern = self._form_list[entry[0]]
        row = tuple(entry[place + 1] for place in pattern)
        return (structure_in, row[:n_inputs]), (structure_out, row[n_inputs:]), made

    def calls(self, start: int = 0) -> tuple[Call, ...]:
        """The calls from an entry on, written out."""
        specs = self.numbers.specs(
            number for entry in self._entries[start:] for number in entry[1:]
        )
        return tuple(self._call(position, specs) for position in range(start, len(self._entries)))

    def last_call(self) -> Call:
        """The latest entry."""
        return self.calls(len(self._entries) - 1)[0]

    def _call(self, position: int, specs: dict[int, Spec]) -> Call:
        (number_in, row_in), (number_out, row_out), made = self._rows(self._entries[position])
        return Call(
            self._indices[position],
            Tree(self.inputs.structures[number_in], tuple(map(specs.__getitem__, row_in))),
            Tree(self.outputs.structures[number_out], tuple(map(specs.__getitem__, row_out))),
            made[0],
            self._seconds[position],
            self._counts[position],
            made[1],
        )

    def input_forms(self) -> set[Form]:
        """The kinds of the inputs of all calls."""
        rows = [self._rows(entry)[0] for entry in self._entries]
        return {(number, self.numbers.kinds(row)) for number, row in rows}

    def change(self, change: Callable[[Call], Call]) -> None:
        """Replaces every call; what is changed are the arguments, whose leaves are numbers here."""
        entries: list[Row] = []
        for position, entry in enumerate(self._entries):
            (number, row), outputs, (passed, surroundings) = self._rows(entry)
            tree: Tree[Any] = Tree(self.inputs.structures[number], row)
            changed = change(Call(self._indices[position], tree, Tree(Structure(LEAF), ()), passed))
            numbers: Any = changed.inputs.leaves
            inputs = self.inputs.number(changed.inputs.structure), numbers
            form, places = _form_of(inputs, outputs, (changed.passed, surroundings))
            known = self._forms.get(form)
            entries.append((self._new_form(form) if known is None else known, *places))
        self._entries, self._first = entries, {}
        for position, entry in enumerate(entries):
            self._first.setdefault(entry, position)
        self.n_changes += 1


def _form_of(inputs: Form, outputs: Form, made: Made) -> tuple[EntryForm, Iterable[int]]:
    """The form of an entry, and its distinct numbers."""
    row = inputs[1] + outputs[1]
    places = dict.fromkeys(row, 0)
    for place, number in enumerate(places):
        places[number] = place
    pattern = tuple(map(places.__getitem__, row))
    return (inputs[0], outputs[0], made, len(inputs[1]), pattern), places

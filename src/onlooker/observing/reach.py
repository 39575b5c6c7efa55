"""All that a method can reach and change in Python, beside its arguments: found by a walk, compared,
and put back.

A walk begins at the object of the method. It follows attributes of modules and other objects,
containers, and the functions of the user's own files: what their closures hold, their defaults,
the globals that they name, and the attributes of their classes. Functions of installed packages are
not followed, the attributes of their objects are. Of a module, a class or a function of a package those
attributes are looked at that the user's functions set, as in ``sys.calls += 1``.

Each thing that can change in place is a *holder*: a dict, a list, a cell, a tensor. A snapshot has a
shallow copy of every holder, so that a comparison costs one identity per value.

>>> import collections
>>> model = torch.nn.Linear(2, 2)
>>> model.seen, model.counts = collections.deque(maxlen=3), {"calls": [0]}
>>> snapshot = Snapshot.of(model)
>>> model.seen.append(1)
>>> model.counts["calls"][0] += 1
>>> [str(effect) for effect in snapshot.effects()]
['seen was deque([]) and is deque([1])', "counts['calls'][0] was 0 and is 1"]
>>> snapshot.put_back()
>>> model.seen, model.counts
(deque([], maxlen=3), {'calls': [0]})
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import dis
import functools
import importlib.metadata
import io
import itertools
import operator
import os
import queue
import random
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from ..model_source.frames import codes_in
from ..pytrees.identity import slots_of
from ..pytrees.nodes import SYMBOLIC
from ..pytrees.unusual import unusual
from ..torch_internals.tensor_marks import attributes_given_to
from .effects import MISSING, Effect, hides_writes, shown, was_written, write_mark

__all__ = [
    "Holder",
    "ObjectState",
    "Snapshot",
    "holds_state",
    "is_file_of_user",
    "values_of_function",
]

#: values that cannot change, and that are compared by value
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ATOMS = frozenset(
    {
        *_PLAIN,
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
        *SYMBOLIC,
        *(range, slice, type(...), type(NotImplemented)),
        *(BuiltinFunctionType, type(torch.ops.aten.add.Tensor)),
    }
)
#: containers that have nothing but what they contain
_CONTAINERS = frozenset(
    {
        *(dict, list, tuple, set, frozenset, bytearray),
        *(collections.OrderedDict, collections.defaultdict, collections.Counter),
        collections.deque,
    }
)
#: what a walk holds on to at most; of a model with more nothing is known
_MOST_HOLDERS = 400_000
#: the values of tensors are copied up to so many bytes in all, once for each Lab
_MOST_BYTES = 1 << 28
#: parameters are copied as long as all copies take so many bytes
_MOST_OF_WEIGHTS = 1 << 24
#: modules of the standard library whose objects are not looked into: they are everybody's
_LEFT_ALONE = frozenset(
    {"logging", "threading", "weakref", "importlib", "warnings", "re", "inspect", "ast", "io"}
)
#: lists that torch's recurrent layers make anew of their parameters, whenever one of these is set
_BOOKKEEPING = frozenset({"_flat_weights", "_flat_weight_refs"})
#: iterators that tell where they stand
_COUNTING = frozenset({itertools.count, enumerate})
_STEPPING = frozenset(
    map(type, map(iter, ([], (), {}, set(), range(0), "", {}.values(), {}.items())))
)
#: whose attributes are all somebody's
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
#: what has attributes for anybody, and is followed no further where it is of a package
_WITH_NAMES = (ModuleType, type, FunctionType)
#: numbers in memory that are written in place
_IN_MEMORY: Any = (array.array, memoryview, ctypes.c_int.__mro__[2])
_OWN_NAME = __name__.partition(".")[0]
_OWN = str(Path(__file__).resolve().parents[1])
#: what stands for a size, a step or a function while a trace lasts, and is no state of the model
_REPAIRS = f"{__name__.partition('.')[0]}.repairs."


# ---------------------------------------------------------------------------------- holders


class Holder:
    """Something that can change in place, with a copy of what it held: ``saved``."""

    __slots__ = ("path", "saved", "value")

    def __init__(self, path: str, value: Any) -> None:
        self.path, self.value = path, value
        self.saved: Any = self.read()

    def read(self) -> Any:
        """A copy of what it holds now."""
        raise NotImplementedError

    def is_unchanged(self) -> bool:
        """True where it holds what it held."""
        return bool(self.read() == self.saved)

    def effects(self) -> Iterator[Effect]:
        """Yields the effects on what it held."""
        yield Effect(self.path, self.saved, self.read(), holder=self)

    def put_back(self) -> None:
        """Gives it what it held."""
        raise NotImplementedError

    @property
    def lasts(self) -> bool:
        """True where putting back leaves what it holds."""
        return False

    def again(self) -> Holder | None:
        """Returns a holder of what the object holds now; None where a trace cannot look at it."""
        cls: Any = type(self)
        made: Holder = object.__new__(cls)
        for name in slots_of(cls):
            setattr(made, name, getattr(self, name))
        made.saved = self.read()
        return made

    def items(self) -> Mapping[Any, Any]:
        """Returns the items that it held, by keys."""
        return {}

    def put(self, key: Any, value: Any) -> None:
        """Puts something at a key."""
        self.value[key] = value

    def is_about(self, other: Holder) -> bool:
        """True for another holder of the same object."""
        return self.value is other.value


class _Table(Holder):
    """A dict: the attributes of its ``owner``, or a container."""

    __slots__ = ("attributes", "owner")

    def __init__(
        self, path: str, value: dict[Any, Any], *, attributes: bool, owner: Any = None
    ) -> None:
        self.path, self.value, self.saved = path, value, dict(value)
        self.attributes, self.owner = attributes, owner

    def _now(self) -> dict[Any, Any]:
        """The dict itself; an object may have another one for its attributes by now."""
        found: dict[Any, Any] = self.value
        return found if self.owner is None else getattr(self.owner, "__dict__", found)

    def read(self) -> dict[Any, Any]:
        return dict(self._now())

    def is_unchanged(self) -> bool:
        now, saved = self.value if self.owner is None else self._now(), self.saved
        if len(now) != len(saved):
            return False
        if not saved:  # as most hooks of modules
            return True
        return all(map(operator.is_, now.values(), saved.values())) and all(
            map(operator.is_, now, saved)
        )

    def effects(self) -> Iterator[Effect]:
        table = self.read()
        same_keys = not self.attributes and table.keys() == self.saved.keys()
        if same_keys and list(table) != list(self.saved):  # as ``move_to_end`` leaves it
            yield Effect(self.path, list(self.saved), list(table), holder=self)
        for key in dict.fromkeys((*self.saved, *table)):
            before, now = self.saved.get(key, MISSING), table.get(key, MISSING)
            if not _is_equal(before, now) and not self._is_bookkeeping(key):
                yield Effect(self.path_of(key), before, now, holder=self, key=key)

    def again(self) -> Holder:
        # most holders are dicts of modules
        return _Table(self.path, self._now(), attributes=self.attributes, owner=self.owner)

    def _is_bookkeeping(self, key: Any) -> bool:
        return isinstance(self.owner, torch.nn.Module) and key in _BOOKKEEPING

    def items(self) -> Mapping[Any, Any]:
        found: dict[Any, Any] = self.saved
        return found

    def path_of(self, key: Any) -> str:
        """The path of a value."""
        if not self.attributes:
            return f"{self.path}[{shown(key)}]"
        return f"{self.path}.{key}" if self.path else str(key)

    def put_back(self) -> None:
        # whatever a class of the user's makes of these methods
        is_ordered = isinstance(self.value, collections.OrderedDict)
        if self._now() is not self.value:
            object.__setattr__(self.owner, "__dict__", self.value)
        kind: Any = collections.OrderedDict if is_ordered else dict
        kind.clear(self.value)
        kind.update(self.value, self.saved)


class _Sequence(Holder):
    """A list, a deque or a bytearray."""

    __slots__ = ()

    def read(self) -> list[Any]:
        return list(_items_of(self.value))

    def is_unchanged(self) -> bool:
        now = self.value
        if len(self.saved) != (list.__len__(now) if isinstance(now, list) else len(now)):
            return False
        return all(map(operator.is_, _items_of(now), self.saved))

    def effects(self) -> Iterator[Effect]:
        now = self.read()
        if len(now) != len(self.saved):
            before: Any = list(self.saved)
            if isinstance(self.value, collections.deque):
                before = collections.deque(before, self.value.maxlen)
            yield Effect(self.path, before, self.value, holder=self)
            return
        for number, (one, other) in enumerate(zip(self.saved, now, strict=True)):
            if not _is_equal(one, other):
                yield Effect(f"{self.path}[{number}]", one, other, holder=self, key=number)

    def items(self) -> Mapping[Any, Any]:
        return dict(enumerate(self.saved))

    def put_back(self) -> None:
        if isinstance(self.value, list):
            list.__setitem__(self.value, slice(None), self.saved)
        elif isinstance(self.value, collections.deque):
            self.value.clear()
            self.value.extend(self.saved)
        else:
            self.value[:] = bytes(self.saved)


def _items_of(values: Any) -> Iterable[Any]:
    """Returns the items of a container, whatever a class of the user's makes of its length and its
    items.
    """
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset)
    kind = next((kind for kind in kinds if isinstance(values, kind)), None)
    items: Iterable[Any] = values if kind is None else kind.__iter__(values)
    return items


class _Set(Holder):
    __slots__ = ()

    def read(self) -> set[Any]:
        return set(self.value)

    def effects(self) -> Iterator[Effect]:
        yield Effect(self.path, self.saved, self.value, holder=self)

    def put_back(self) -> None:
        self.value.clear()
        self.value.update(self.saved)


class _Named(Holder):
    """Some names of a namespace: globals that functions name, slots, or what a class holds. ``get``,
    ``set`` and ``delete`` are what the namespace has for a name.
    """

    __slots__ = ("delete", "get", "names", "set")

    def __init__(
        self,
        path: str,
        names: Iterable[str],
        get: Callable[[str], Any],
        set: Callable[[str, Any], None],
        delete: Callable[[str], None],
    ) -> None:
        self.names, self.get, self.set, self.delete = tuple(names), get, set, delete
        super().__init__(path, None)

    @classmethod
    def of_table(cls, path: str, names: Iterable[str], table: dict[str, Any]) -> _Named:
        """Some keys of a dict."""
        get = functools.partial(_at, table)
        return cls(path, names, get, table.__setitem__, table.__delitem__)

    @classmethod
    def of_attributes(
        cls, path: str, names: Iterable[str], obj: Any, get: Callable[[str], Any], kind: Any
    ) -> _Named:
        """Some attributes of an object, which are set and deleted as those of a ``kind``."""
        put = functools.partial(kind.__setattr__, obj)
        return cls(path, names, get, put, functools.partial(kind.__delattr__, obj))

    def read(self) -> dict[str, Any]:
        return {name: self.get(name) for name in self.names}

    def is_unchanged(self) -> bool:
        return all(self.get(name) is value for name, value in self.saved.items())

    def effects(self) -> Iterator[Effect]:
        for name, before in self.saved.items():
            now = self.get(name)
            if not _is_equal(before, now):
                yield Effect(f"{self.path}.{name}", before, now, holder=self, key=name)

    def items(self) -> Mapping[Any, Any]:
        found: dict[str, Any] = self.saved
        return found

    def put(self, key: Any, value: Any) -> None:
        self.set(key, value)

    def is_about(self, other: Holder) -> bool:
        return type(self) is type(other) and self.path == other.path

    def put_back(self) -> None:
        for name, before in self.saved.items():
            if self.get(name) is not before:
                if before is MISSING:
                    self.delete(name)
                else:
                    self.set(name, before)


def _at(table: dict[str, Any], name: str) -> Any:
    return table.get(name, MISSING)


class ObjectState(Holder):
    """An object whose whole state is read and set: a source of random numbers, an array."""

    __slots__ = ("equal", "get", "set")

    def __init__(
        self,
        path: str,
        value: Any,
        get: Callable[[], Any],
        set: Callable[[Any], Any] | None,
        equal: Callable[[Any, Any], bool] = operator.eq,
    ) -> None:
        """Without ``set`` the state is seen and cannot be set, as that of a generator of Python."""
        self.get, self.set, self.equal = get, set, equal
        super().__init__(path, value)

    def read(self) -> Any:
        """The state of now."""
        return self.get()

    @property
    def lasts(self) -> bool:
        """True for a state that cannot be set."""
        return self.set is None

    def is_unchanged(self) -> bool:
        """True where the state is what it was."""
        return bool(self.equal(self.saved, self.read()))

    def effects(self) -> Iterator[Effect]:
        """The state before and now."""
        if isinstance(self.value, torch.Generator):  # its draws are operators of torch
            yield Effect(self.path, self.value, self.value, is_write=True)
        else:
            yield from super().effects()

    def again(self) -> Holder | None:
        """Returns a look at the state of now; the state of torch is a tensor, of which a trace has
        no values.
        """
        return None if isinstance(self.value, torch.Generator) else super().again()

    def put_back(self) -> None:
        """Sets the state that was read."""
        if self.set is not None:
            self.set(self.saved)


class _WrittenTensor(Holder):
    """A tensor; ``saved`` is a copy of it, or None.

    torch counts writes to tensors, but not those of batch norms to the statistics of their channels: floats
    of one dimension are compared with their copy.
    """

    __slots__ = ("mark",)

    def __init__(self, path: str, tensor: torch.Tensor, copy: torch.Tensor | None) -> None:
        self.path, self.value, self.saved = path, tensor, copy
        self.mark = copy if tensor.is_inference() else write_mark(tensor)

    @property
    def lasts(self) -> bool:
        return self.saved is None

    def is_unchanged(self) -> bool:
        if was_written(self.value, self.mark):
            return False
        if self.saved is None:
            return True
        if hides_writes(self.value):
            return not was_written(self.value, self.saved)
        if self.value.ndim != 1 or not self.value.is_floating_point():
            return True
        return torch.equal(self.value, self.saved) or not was_written(self.value, self.saved)

    def effects(self) -> Iterator[Effect]:
        # what is written through ``data`` is in no graph
        is_write = not hides_writes(self.value) or was_written(self.value, self.mark)
        yield Effect(self.path, self.saved, self.value, is_write=is_write)

    def again(self) -> Holder | None:
        return None

    def put_back(self) -> None:
        if self.saved is None:
            return
        is_inference = self.value.is_inference()
        with torch.inference_mode() if is_inference else torch.no_grad():
            self.value.copy_(self.saved)
        if not is_inference:
            self.mark = write_mark(self.value)


def _is_of_model(value: Any) -> bool:
    """True for an object that a model may have made: none of torch's, and nothing that stands for another object
    while a trace lasts.
    """
    root = type(value).__module__.partition(".")[0]
    if isinstance(value, torch.Tensor) and attributes_given_to(value):
        return True
    if isinstance(value, (torch.nn.Module, FunctionType, type, *_PLAIN)):
        return isinstance(value, torch.nn.Module) and root not in ("torch", _OWN_NAME)
    return root not in ("torch", _OWN_NAME) and value is not MISSING


def values_of_function(function: FunctionType) -> Iterator[Any]:
    """Yields the values in the closure of a function, whoever wrote it, and those of the globals that it reads."""
    yield from map(_content_of, function.__closure__ or ())
    read, _ = _globals_of(function.__code__)
    yield from (function.__globals__.get(name) for name in read)


def _content_of(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty one
        return MISSING


def _is_equal(left: Any, right: Any) -> bool:
    """True for one object, and for equal numbers and texts."""
    if left is right:
        return True
    return type(left) is type(right) and isinstance(left, _PLAIN) and repr(left) == repr(right)


# ------------------------------------------------------------------------------------- the walk


class Snapshot:
    """All values in reach of an object at one moment.

    ``tensors`` are all tensors in reach, parameters among them, ``objects`` all holders and modules.
    ``is_whole`` is False where there was too much to look at.
    """

    def __init__(self) -> None:
        self.holders: list[Holder] = []
        self.tensors: dict[int, torch.Tensor] = {}
        self.objects: dict[int, Any] = {}
        self.is_whole = True
        self._bytes = 0
        #: the names of globals that are held already, by the identity of their namespace
        self._globals: dict[int, set[str]] = {}
        #: the attributes that functions set and that are held already, by the identity of the object
        self._set: dict[int, set[str]] = {}

    @classmethod
    def of(cls, obj: Any, *, copies: bool = True) -> Snapshot:
        """Everything in reach of an object; without ``copies`` the values of tensors are not kept."""
        made = cls()
        waiting: list[tuple[str, Any]] = [("", obj)]
        while waiting:
            path, value = waiting.pop()
            if type(value) in _ATOMS or id(value) in made.objects or id(value) in made.tensors:
                continue
            if len(made.holders) > _MOST_HOLDERS:
                made.is_whole = False
                break
            children = list(made._entered(path, value, copies=copies))
            waiting.extend(reversed(children))
        made.holders += _sources_of_random_numbers()
        return made

    def again(self) -> Snapshot:
        """Looks at the same objects once more, without tensors: for a moment inside of a trace."""
        made = Snapshot()
        fresh = (holder.again() for holder in self.holders)
        made.holders = [holder for holder in fresh if holder is not None]
        return made

    def now(self) -> Snapshot:
        """Looks at the same objects once more, as :meth:`again`, and at those that a call has put there since."""
        made = self.again()
        made.objects = dict(self.objects)
        effects = [
            effect
            for holder in self.holders
            if isinstance(holder, _Table) and holder.attributes and not holder.is_unchanged()
            for effect in holder.effects()
        ]
        put = [one.after for one in effects if _is_of_model(one.after)]
        if put:
            made.holders += Snapshot.of(put, copies=False).again().holders[1:]
        return made

    def holder_like(self, other: Holder) -> Holder | None:
        """The holder of the same object as another one; None where there is none."""
        return next((one for one in self.holders if one.is_about(other)), None)

    def changed(self) -> list[Holder]:
        """The holders that hold something else now."""
        return [holder for holder in self.holders if not holder.is_unchanged()]

    def effects(self) -> list[Effect]:
        """All that is another now, by path."""
        return [effect for holder in self.changed() for effect in holder.effects()]

    def put_back(self) -> None:
        """Gives everything what it held."""
        for holder in self.changed():
            holder.put_back()

    def lasting(self) -> list[Effect]:
        """The changes that putting back leaves."""
        return [effect for holder in self.changed() if holder.lasts for effect in holder.effects()]

    # -- one object

    def _entered(self, path: str, value: Any, *, copies: bool) -> Iterator[tuple[str, Any]]:
        """Notes an object, and gives what it holds, with paths."""
        if isinstance(value, torch.Tensor):
            yield from self._tensor(path, value, copies=copies)
            return
        self.objects[id(value)] = value
        kind = type(value)
        if kind is FunctionType:
            yield from self._function(path, value)
        elif kind is CellType:
            yield from self._cell(path, value)
        elif kind is MethodType:
            yield path, value.__self__
            yield path, value.__func__
        elif isinstance(value, type):
            yield from self._class(path, value)
        elif isinstance(value, ModuleType):
            yield from self._file(value)
        elif isinstance(value, (staticmethod, classmethod)):
            yield path, value.__func__
        elif isinstance(value, property):
            yield from ((path, one) for one in (value.fget, value.fset) if one is not None)
        elif isinstance(value, functools.partial):
            yield from self._attributes(path, value.__dict__, value)
            yield from ((path, one) for one in (value.func, value.args, value.keywords))
        else:
            yield from self._container(path, value)
            if kind not in _CONTAINERS:
                yield from self._instance(path, value)

    def _tensor(self, path: str, value: torch.Tensor, *, copies: bool) -> Iterator[tuple[str, Any]]:
        self.tensors[id(value)] = value
        yield from self._given_to(path, value)
        if unusual(value) is not None:
            return
        copy, is_weight = None, isinstance(value, torch.nn.Parameter)
        if is_weight and not (copies and self._bytes + value.nbytes <= _MOST_OF_WEIGHTS):
            return  # methods that write to it are watched: see ``kept_weights``
        if copies and self._bytes + value.nbytes <= _MOST_BYTES:
            self._bytes += value.nbytes
            copy = value.detach().clone()
        self.holders.append(_WrittenTensor(path, value, copy))

    def _given_to(self, path: str, tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
        """The attributes that somebody gave to a tensor object; one of a trace has more, of torch's."""
        if type(tensor) in _PLAIN_TENSORS:
            yield from self._attributes(path, vars(tensor), tensor)
        else:
            read = functools.partial(attributes_given_to, tensor)
            self.holders.append(ObjectState(path, tensor, read, None, _has_same_items))
            for name, item in read().items():
                if type(item) not in _ATOMS:
                    yield f"{path}.{name}", item

    def _container(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self.holders.append(_Table(path, value, attributes=False))
            for key, item in list(dict.items(value)):
                if type(item) not in _ATOMS:
                    yield f"{path}[{shown(key)}]", item
        elif isinstance(value, (list, collections.deque)):
            self.holders.append(_Sequence(path, value))
            yield from _numbered(path, value)
        elif isinstance(value, bytearray):
            self.holders.append(_Sequence(path, value))
        elif isinstance(value, set):
            self.holders.append(_Set(path, value))
            yield from _numbered(path, value)
        elif isinstance(value, (tuple, frozenset)):
            yield from _numbered(path, value)

    def _instance(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """The attributes of an object, and what is known of its kind."""
        cls: Any = type(value)
        if isinstance(value, torch.nn.Module):
            yield from self._module(path, value)
        elif (holder := _state_of(path, value)) is not None:
            self.holders.append(holder)
            return
        elif _is_followed(cls):
            table = getattr(value, "__dict__", None)
            if type(table) is dict:
                yield from self._attributes(path, table, value)
            if slots := list(slots_of(cls)):
                yield from self._slots(path, value, slots)
        if _is_of_user(cls):
            yield cls.__name__, cls

    def _module(self, path: str, module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
        """A module: what is in its tables has the path of an attribute."""
        table = vars(module)
        self.objects[id(table)] = table
        self.holders.append(_Table(path, table, attributes=True, owner=module))
        prefix = f"{path}." if path else ""
        for name, value in table.items():
            if type(value) in _ATOMS or name in _BOOKKEEPING:
                continue
            if name in ("_parameters", "_buffers", "_modules") and type(value) is dict:
                self.objects[id(value)] = value
                self.holders.append(_Table(path, value, attributes=True))
                for key, item in value.items():
                    yield f"{prefix}{key}", item
            else:
                yield f"{prefix}{name}", value

    def _attributes(
        self, path: str, table: dict[str, Any], owner: Any
    ) -> Iterator[tuple[str, Any]]:
        self.objects[id(table)] = table
        self.holders.append(_Table(path, table, attributes=True, owner=owner))
        for name, value in list(table.items()):
            if type(value) not in _ATOMS:
                yield (f"{path}.{name}" if path else str(name)), value

    def _slots(self, path: str, value: Any, slots: list[str]) -> Iterator[tuple[str, Any]]:
        def read(name: str) -> Any:
            return getattr(value, name, MISSING)

        self.holders.append(_Named.of_attributes(path, slots, value, read, object))
        for name in slots:
            item = read(name)
            if item is not MISSING and type(item) not in _ATOMS:
                yield f"{path}.{name}", item

    def _cell(self, path: str, cell: CellType) -> Iterator[tuple[str, Any]]:
        def read(_: str) -> Any:
            return _content_of(cell)

        def write(_: str, value: Any) -> None:
            cell.cell_contents = value

        def remove(_: str) -> None:
            del cell.cell_contents

        function, _, name = path.rpartition(".")
        self.holders.append(_Named(function, [name], read, write, remove))
        value = read(name)
        if value is not MISSING:
            yield path, value

    def _function(self, path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
        """Yields what a function of the user's holds: its closure, its defaults, and globals by
        name.
        """
        if function.__dict__:
            yield from self._attributes(function.__qualname__, function.__dict__, function)
        wrapped = function.__dict__.get("__wrapped__")
        name = function.__qualname__
        code = function.__code__
        is_own = is_file_of_user(code.co_filename)
        for free, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            if is_own:
                yield f"{name}.{free}", cell
            elif isinstance(content := _content_of(cell), FunctionType):
                # a decorator of a package around a function of the user
                yield f"{name}.{free}", content
        if not is_own:
            return
        if wrapped is not None:
            yield name, wrapped
        yield from _numbered(f"{name}.__defaults__", function.__defaults__ or ())
        for key, value in (function.__kwdefaults__ or {}).items():
            yield f"{name}.{key}", value
        space = function.__globals__
        module = str(space.get("__name__", "globals"))
        read, stored = _globals_of(code)
        known = self._globals.setdefault(id(space), set())
        fresh = [one for one in stored if one not in known]
        if fresh:
            known.update(fresh)
            self.holders.append(_Named.of_table(module, fresh, space))
        for chain, attribute in _set_elsewhere(code):
            self._set_at(chain, attribute, space)
        for one in read:
            value = space.get(one, MISSING)
            if value is not MISSING and type(value) not in _ATOMS:
                yield f"{module}.{one}", value

    def _set_at(self, chain: tuple[str, ...], attribute: str, space: dict[str, Any]) -> None:
        """Holds an attribute that a function of the user's sets at what other names stand for: at a module,
        a class or a function.
        """
        value = space.get(chain[0], sys.modules.get(chain[0]))
        for name in chain[1:]:
            value = vars(value).get(name) if isinstance(value, _WITH_NAMES) else None
        known = self._set.setdefault(id(value), set())
        if isinstance(value, _WITH_NAMES) and attribute not in known:
            known.add(attribute)
            read = functools.partial(_attribute_of, value)
            kind = type if isinstance(value, type) else object
            path = ".".join(chain)
            self.holders.append(_Named.of_attributes(path, [attribute], value, read, kind))

    def _file(self, module: ModuleType) -> Iterator[tuple[str, Any]]:
        """Yields the values in a Python module of the user's beside functions and classes."""
        name, space = module.__name__, vars(module)
        if module is os:
            state = ObjectState("os.environ", os.environ, os.environ.copy, _set_environment)
            self.holders.append(state)
        if not _is_module_of_user(name):
            return
        kinds = (FunctionType, type, ModuleType)
        data = [
            one
            for one, value in space.items()
            if not _is_special(one) and not isinstance(value, kinds)
        ]

        self.holders.append(_Named.of_table(name, data, space))
        for one in data:
            if type(space[one]) not in _ATOMS:
                yield f"{name}.{one}", space[one]

    def _class(self, path: str, cls: type) -> Iterator[tuple[str, Any]]:
        """Yields the bases, the attributes and the methods of a class of the user's."""
        for base in cls.__mro__:
            if base is cls or not _is_of_user(base):
                continue
            yield base.__name__, base
        if not _is_of_user(cls):
            return
        own = {name: value for name, value in vars(cls).items() if not _is_special(name)}
        data = [name for name, value in own.items() if not _is_code(value)]

        if data:
            read = functools.partial(_attribute_of, cls)
            self.holders.append(_Named.of_attributes(cls.__name__, data, cls, read, type))
        for name, value in vars(cls).items():
            if type(value) not in _ATOMS and (_is_code(value) or not _is_special(name)):
                yield f"{cls.__name__}.{name}", value


def _numbered(path: str, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(list(_items_of(values))):
        if type(value) not in _ATOMS:
            yield f"{path}[{number}]", value


def _attribute_of(value: Any, name: str) -> Any:
    return vars(value).get(name, MISSING)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_code(value: Any) -> bool:
    return isinstance(value, (FunctionType, staticmethod, classmethod, property))


def holds_state(value: Any) -> bool:
    """True for an object whose state a snapshot holds, if it has any: a container, one that tells its state,
    or one with attributes.
    """
    cls: Any = type(value)
    if cls in _CONTAINERS or _state_of("", value) is not None:
        return True
    return _is_followed(cls) and (hasattr(value, "__dict__") or any(slots_of(cls)))


def _state_of(path: str, value: Any) -> Holder | None:
    """The holder of an object whose state is read by methods of its own; None for others."""
    if isinstance(value, torch.Generator):
        return ObjectState(path, value, value.get_state, value.set_state, torch.equal)
    if isinstance(value, contextvars.ContextVar):
        read = functools.partial(value.get, MISSING)
        return ObjectState(path, value, read, functools.partial(_set_variable, value), _is_equal)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return ObjectState(path, value, value.getstate, value.setstate)
    if type(value) in _COUNTING:
        return ObjectState(path, value, lambda: repr(value.__reduce__()), None)
    if type(value) in _STEPPING:
        return ObjectState(path, value, lambda: operator.length_hint(value, -1), None)
    if isinstance(value, GeneratorType):
        return ObjectState(path, value, lambda: _place_in(value), None)
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return ObjectState(
            path, value, lambda: _text_in(value), functools.partial(_put_text, value)
        )
    if isinstance(value, queue.SimpleQueue):
        return ObjectState(path, value, value.qsize, None)
    if isinstance(value, _IN_MEMORY):
        put = functools.partial(_put_bytes, value)
        return ObjectState(path, value, lambda: _bytes_of(value), put)
    drawn: Any = getattr(sys.modules.get("numpy"), "random", None)
    if drawn is not None and isinstance(value, (drawn.Generator, drawn.RandomState)):
        source = getattr(value, "bit_generator", getattr(value, "_bit_generator", None))
        put = functools.partial(setattr, source, "state")
        return ObjectState(path, value, lambda: getattr(source, "state", None), put, _is_same_state)
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    if kind is not None and isinstance(value, kind) and value.dtype != object:
        return ObjectState(
            path,
            value,
            value.copy,
            functools.partial(value.__setitem__, ...),
            lambda one, other: bool(one.tobytes() == other.tobytes()),
        )
    return None


def _set_variable(variable: contextvars.ContextVar[Any], value: Any) -> None:
    """Sets a variable of the context; one that had no value gets its default."""
    if value is MISSING:
        with contextlib.suppress(LookupError):
            variable.set(contextvars.Context().run(variable.get))
        return
    variable.set(value)


def _set_environment(variables: dict[str, str]) -> None:
    """Gives the environment of the process these variables, and no others."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def _sources_of_random_numbers() -> Iterator[Holder]:
    """The random numbers of torch, of Python and of numpy, which every model can draw."""
    for source in (torch.default_generator, *torch.cuda.default_generators):
        yield ObjectState("torch.random", source, source.get_state, source.set_state, torch.equal)
    yield ObjectState("random", random, random.getstate, random.setstate)
    drawn: Any = getattr(sys.modules.get("numpy"), "random", None)
    if drawn is not None:
        yield ObjectState("numpy.random", drawn, drawn.get_state, drawn.set_state, _is_same_state)


def _is_same_state(left: Any, right: Any) -> bool:
    """True for two states of numpy: each a tuple or a dict with an array."""
    if isinstance(left, (tuple, dict)):
        pairs = zip(*(x.values() if isinstance(x, dict) else x for x in (left, right)), strict=True)
        return all(_is_same_state(one, other) for one, other in pairs)
    return bool((left == right).all()) if hasattr(left, "all") else bool(left == right)


def _has_same_items(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(left[name] is right[name] for name in left)


def _text_in(file: io.StringIO | io.BytesIO) -> Any:
    """Returns what a file in memory has, and where it is read or written next."""
    return None if file.closed else (file.tell(), file.getvalue())


def _put_text(file: Any, state: Any) -> None:
    """Gives a file in memory what it had, and the place where it was read or written."""
    if state is not None and not file.closed:
        place, text = state
        file.seek(0)
        file.truncate()
        file.write(text)
        file.seek(place)


def _bytes_of(value: Any) -> bytes | None:
    """The bytes of numbers in memory; None where these are no longer there."""
    with contextlib.suppress(ValueError, BufferError):
        return bytes(memoryview(value))
    return None


def _put_bytes(value: Any, saved: bytes | None) -> None:
    """Writes the bytes of numbers in memory."""
    with contextlib.suppress(ValueError, BufferError, TypeError):
        memoryview(value).cast("B")[:] = saved or b""


def _place_in(generator: GeneratorType[Any, Any, Any]) -> Any:
    frame = generator.gi_frame
    if frame is None:
        return None
    plain = {name: value for name, value in frame.f_locals.items() if isinstance(value, _PLAIN)}
    return frame.f_lasti, plain


# ----------------------------------------------------------------------- whose code and classes


@functools.lru_cache(maxsize=1)
def _installed() -> tuple[str, ...]:
    """The folders of Python and of installed packages."""
    found = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    with contextlib.suppress(Exception):
        found += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple({str(Path(one)) for one in found} | {_OWN, str(Path(torch.__file__).parent)})


@functools.lru_cache(maxsize=4096)
def is_file_of_user(file: str) -> bool:
    """True for a file that is neither Python's, nor of an installed package, nor ours; and for what
    was typed.
    """
    if file.startswith(("<frozen", *_installed())) or "site-packages" in file:
        return False
    folders = (folder for folder in sys.path if folder and Path(file).is_relative_to(folder))
    return not any(Path(file).relative_to(one).parts[0] in _packages_in(one) for one in folders)


@functools.lru_cache(maxsize=256)
def _packages_in(folder: str) -> frozenset[str]:
    """The files and folders that ``pip install --target`` put into a folder of ``sys.path``."""
    found = map(importlib.metadata.PathDistribution, Path(folder).glob("*.dist-info"))
    return frozenset(file.parts[0] for one in found for file in one.files or ())


@functools.lru_cache(maxsize=4096)
def _is_module_of_user(name: str) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or is_file_of_user(str(file))


def _is_of_user(cls: type) -> bool:
    return cls.__module__ != "builtins" and _is_module_of_user(str(cls.__module__))


def _is_followed(cls: type) -> bool:
    """True for a class whose objects are looked into."""
    module = str(cls.__module__)
    return module.partition(".")[0] not in _LEFT_ALONE and not module.startswith(_REPAIRS)


@functools.lru_cache(maxsize=4096)
def _globals_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of globals that a code reads, and those that it binds; inner functions too."""
    read: dict[str, None] = {}
    stored: dict[str, None] = {}
    for one in itertools.chain.from_iterable(map(dis.get_instructions, codes_in(code))):
        if one.opname == "LOAD_GLOBAL":
            read.setdefault(str(one.argval))
        elif one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stored.setdefault(str(one.argval))
    return tuple(read), tuple(stored)


@functools.lru_cache(maxsize=4096)
def _set_elsewhere(code: CodeType) -> tuple[tuple[tuple[str, ...], str], ...]:
    """The attributes that a code sets at what global names stand for, inner functions too: the names that lead
    to the object, and the attribute.

    >>> def count():
    ...     torch.nn.calls += 1
    ...     setattr(sys, "calls", 1)
    >>> _set_elsewhere(count.__code__)
    ((('torch', 'nn'), 'calls'), (('sys',), 'calls'))
    """
    found: dict[tuple[tuple[str, ...], str], None] = {}
    for inner in codes_in(code):
        chain: tuple[str, ...] = ()
        local: dict[str, tuple[str, ...]] = {}
        is_doubled = False
        by_name = "setattr" in inner.co_names
        for one in dis.get_instructions(inner):
            name = one.opname
            if name in ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"):
                chain, is_doubled = (str(one.argval),), False
            elif name.startswith("LOAD_FAST"):
                chain, is_doubled = local.get(str(one.argval), ()), False
            elif name == "STORE_FAST" and chain:
                local[str(one.argval)], chain = chain, ()
            elif name in ("COPY", "DUP_TOP"):
                is_doubled = True
            elif name in ("STORE_ATTR", "DELETE_ATTR") or (is_doubled and name == "LOAD_ATTR"):
                if chain:
                    found[chain, str(one.argval)] = None
                chain = ()
            elif by_name and chain and name == "LOAD_CONST" and isinstance(one.argval, str):
                found[chain, one.argval] = None
                chain = ()
            elif name in ("LOAD_ATTR", "LOAD_METHOD") and chain:
                chain = (*chain, str(one.argval))
            elif name not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
                chain = ()
    return tuple(found)

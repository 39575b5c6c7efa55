"""All that a method can reach and change in Python, beside its arguments: found by a walk, compared,
and put back.

A walk begins at the object of the method. It follows attributes of modules and other objects,
containers, and the functions of the user's own files: what their closures hold, their defaults,
the globals that they name, and the attributes of their classes. Functions of installed packages are
not followed, the attributes of their objects are.

Each thing that can change in place is a *holder*: a dict, a list, a cell, a tensor. A snapshot has a
shallow copy of every holder, so that a comparison costs one identity per value.

>>> import collections
>>> model = torch.nn.Linear(2, 2)
>>> model.seen, model.counts = collections.deque(maxlen=3), {"calls": [0]}
>>> snapshot = Snapshot.of(model)
>>> model.seen.append(1)
>>> model.counts["calls"][0] += 1
>>> [str(change) for change in snapshot.changes()]
['seen was deque([]) and is deque([1])', "counts['calls'][0] was 0 and is 1"]
>>> snapshot.put_back()
>>> model.seen, model.counts
(deque([], maxlen=3), {'calls': [0]})
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import dis
import functools
import itertools
import operator
import os
import random
import reprlib
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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

from ..pytrees.numbers import is_same
from ..pytrees.unusual import unusual

__all__ = ["MISSING", "Change", "Holder", "ObjectState", "Snapshot", "is_file_of_user"]

#: values that cannot change, and that are compared by value
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ATOMS = frozenset(
    {
        *_PLAIN,
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
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
MISSING: Any = object()
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
_OWN = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True, slots=True)
class Change:
    """What stands at ``path`` instead of what stood there; ``MISSING`` is nothing.

    ``is_write`` is True for a tensor that is the same object with other values. ``holder`` is what
    holds it, ``key`` where in it; None for a holder that changed as a whole.
    """

    path: str
    before: Any
    now: Any
    is_write: bool = False
    holder: Holder | None = None
    key: Any = None

    @property
    def lasts(self) -> bool:
        """True for a change that putting back leaves: a step of an iterator."""
        return isinstance(self.holder, _Opaque)

    def __str__(self) -> str:
        if self.is_write:
            return f"{self.path} was written in place"
        return f"{self.path} was {_shown(self.before)} and is {_shown(self.now)}"


def _shown(value: Any) -> str:
    if value is MISSING:
        return "absent"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"


# ---------------------------------------------------------------------------------- holders


class Holder:
    """Something that can change in place, with a copy of what it held."""

    __slots__ = ("path",)
    path: str

    def again(self) -> Holder | None:
        """The same with what it holds now; None where a trace cannot look at it."""
        return None

    def put(self, key: Any, value: Any) -> None:
        """Puts something at a key."""
        raise NotImplementedError

    def is_about(self, other: Holder) -> bool:
        """True for another holder of the same object."""
        for name in ("table", "values", "value"):
            if hasattr(self, name):
                return getattr(self, name) is getattr(other, name, self)
        return type(self) is type(other) and self.path == other.path

    def at(self, key: Any) -> Any:
        """What it held at a key."""
        return MISSING

    def keys_of(self, value: Any) -> list[Any]:
        """The keys at which it held this very object."""
        return []

    def is_unchanged(self) -> bool:
        """True where it holds what it held."""
        raise NotImplementedError

    def changes(self) -> Iterator[Change]:
        """What it holds instead."""
        raise NotImplementedError

    def put_back(self) -> None:
        """Gives it what it held."""
        raise NotImplementedError


class _Table(Holder):
    """A dict: the attributes of its ``owner``, or a container."""

    __slots__ = ("attributes", "owner", "saved", "table")

    def __init__(
        self, path: str, table: dict[Any, Any], *, attributes: bool, owner: Any = None
    ) -> None:
        self.path, self.table, self.attributes, self.owner = path, table, attributes, owner
        self.saved = dict(table)

    def is_unchanged(self) -> bool:
        now, saved = self.table, self.saved
        if len(now) != len(saved):
            return False
        if not saved:
            return True
        return all(map(operator.is_, now.values(), saved.values())) and all(
            map(operator.is_, now, saved)
        )

    def changes(self) -> Iterator[Change]:
        table = dict(self.table)
        same_keys = not self.attributes and table.keys() == self.saved.keys()
        if same_keys and list(table) != list(self.saved):  # as ``move_to_end`` leaves it
            yield Change(self.path, list(self.saved), list(table), holder=self)
        for key in dict.fromkeys((*self.saved, *table)):
            before, now = self.saved.get(key, MISSING), table.get(key, MISSING)
            if not _is_equal(before, now) and not self._is_bookkeeping(key):
                yield Change(self.path_of(key), before, now, holder=self, key=key)

    def _is_bookkeeping(self, key: Any) -> bool:
        return isinstance(self.owner, torch.nn.Module) and key in _BOOKKEEPING

    def again(self) -> Holder:
        return _Table(self.path, self.table, attributes=self.attributes, owner=self.owner)

    def put(self, key: Any, value: Any) -> None:
        self.table[key] = value

    def at(self, key: Any) -> Any:
        return self.saved.get(key, MISSING)

    def keys_of(self, value: Any) -> list[Any]:
        return [key for key, item in self.saved.items() if item is value]

    def path_of(self, key: Any) -> str:
        """The path of a value."""
        if not self.attributes:
            return f"{self.path}[{_shown(key)}]"
        return f"{self.path}.{key}" if self.path else str(key)

    def put_back(self) -> None:
        kind = _dict_of(self.table)
        kind.clear(self.table)
        kind.update(self.table, self.saved)


def _dict_of(table: dict[Any, Any]) -> Any:
    """The class whose methods change a dict, whatever a class of the user's makes of them."""
    return collections.OrderedDict if isinstance(table, collections.OrderedDict) else dict


class _Sequence(Holder):
    """A list, a deque or a bytearray."""

    __slots__ = ("saved", "values")

    def __init__(self, path: str, values: Any) -> None:
        self.path, self.values = path, values
        self.saved = list(_items_of(values))

    def is_unchanged(self) -> bool:
        now = self.values
        if len(self.saved) != (list.__len__(now) if isinstance(now, list) else len(now)):
            return False
        return all(map(operator.is_, _items_of(now), self.saved))

    def changes(self) -> Iterator[Change]:
        now = list(_items_of(self.values))
        if len(now) != len(self.saved):
            before: Any = list(self.saved)
            if isinstance(self.values, collections.deque):
                before = collections.deque(before, self.values.maxlen)
            yield Change(self.path, before, self.values, holder=self)
            return
        for number, (one, other) in enumerate(zip(self.saved, now, strict=True)):
            if not _is_equal(one, other):
                yield Change(f"{self.path}[{number}]", one, other, holder=self, key=number)

    def again(self) -> Holder:
        return _Sequence(self.path, self.values)

    def put(self, key: Any, value: Any) -> None:
        self.values[key] = value

    def at(self, key: Any) -> Any:
        return self.saved[key]

    def keys_of(self, value: Any) -> list[Any]:
        return [number for number, item in enumerate(self.saved) if item is value]

    def put_back(self) -> None:
        if isinstance(self.values, list):
            list.__setitem__(self.values, slice(None), self.saved)
        elif isinstance(self.values, collections.deque):
            self.values.clear()
            self.values.extend(self.saved)
        else:
            self.values[:] = bytes(self.saved)


def _items_of(values: Any) -> Iterable[Any]:
    """What a list holds, whatever a class of the user's makes of it."""
    return list.__iter__(values) if isinstance(values, list) else values


class _Set(Holder):
    __slots__ = ("saved", "values")

    def __init__(self, path: str, values: set[Any]) -> None:
        self.path, self.values, self.saved = path, values, set(values)

    def is_unchanged(self) -> bool:
        return len(self.values) == len(self.saved) and self.values == self.saved

    def changes(self) -> Iterator[Change]:
        yield Change(self.path, self.saved, self.values, holder=self)

    def again(self) -> Holder:
        return _Set(self.path, self.values)

    def put_back(self) -> None:
        self.values.clear()
        self.values.update(self.saved)


class _Named(Holder):
    """Some names of a namespace: globals that functions name, slots, or what a class holds."""

    __slots__ = ("read", "remove", "saved", "write")

    def __init__(
        self,
        path: str,
        names: Iterable[str],
        read: Callable[[str], Any],
        write: Callable[[str, Any], None],
        remove: Callable[[str], None],
    ) -> None:
        self.path, self.read, self.write, self.remove = path, read, write, remove
        self.saved = {name: read(name) for name in names}

    def is_unchanged(self) -> bool:
        return all(self.read(name) is value for name, value in self.saved.items())

    def changes(self) -> Iterator[Change]:
        for name, before in self.saved.items():
            now = self.read(name)
            if not _is_equal(before, now):
                yield Change(f"{self.path}.{name}", before, now, holder=self, key=name)

    def again(self) -> Holder:
        return _Named(self.path, self.saved, self.read, self.write, self.remove)

    def put(self, key: Any, value: Any) -> None:
        self.write(key, value)

    def at(self, key: Any) -> Any:
        return self.saved.get(key, MISSING)

    def keys_of(self, value: Any) -> list[Any]:
        return [name for name, item in self.saved.items() if item is value]

    def put_back(self) -> None:
        for name, before in self.saved.items():
            if self.read(name) is not before:
                if before is MISSING:
                    self.remove(name)
                else:
                    self.write(name, before)


class ObjectState(Holder):
    """An object whose whole state is read and set: a source of random numbers, an array."""

    __slots__ = ("equal", "read", "saved", "value", "write")

    def __init__(
        self,
        path: str,
        value: Any,
        read: Callable[[], Any],
        write: Callable[[Any], Any],
        equal: Callable[[Any, Any], bool],
    ) -> None:
        self.path, self.value, self.read, self.write, self.equal = path, value, read, write, equal
        self.saved = read()

    def is_unchanged(self) -> bool:
        """True where the state is what it was."""
        return self.equal(self.saved, self.read())

    def changes(self) -> Iterator[Change]:
        """The state before and now."""
        if not self.is_unchanged():
            if isinstance(self.value, torch.Generator):  # its draws are operators of torch
                yield Change(self.path, self.value, self.value, is_write=True)
            else:
                yield Change(self.path, self.saved, self.read(), holder=self)

    def again(self) -> Holder | None:
        """The same with the state of now; the state of torch is a tensor, of which a trace has no
        values.
        """
        if isinstance(self.value, torch.Generator):
            return None
        return ObjectState(self.path, self.value, self.read, self.write, self.equal)

    def put_back(self) -> None:
        """Sets the state that was read."""
        self.write(self.saved)


class _Opaque(Holder):
    """An object whose state is seen and cannot be set: a generator of Python."""

    __slots__ = ("read", "saved", "value")

    def __init__(self, path: str, value: Any, read: Callable[[], Any]) -> None:
        self.path, self.value, self.read = path, value, read
        self.saved = read()

    def is_unchanged(self) -> bool:
        return bool(self.read() == self.saved)

    def changes(self) -> Iterator[Change]:
        if not self.is_unchanged():
            yield Change(self.path, self.saved, self.read(), holder=self)

    def again(self) -> Holder:
        return _Opaque(self.path, self.value, self.read)

    def put_back(self) -> None:
        return None


class _Written(Holder):
    """A tensor that is no parameter: torch counts the writes to it, but for an inference tensor."""

    __slots__ = ("copy", "tensor", "version")

    def __init__(self, path: str, tensor: torch.Tensor, copy: torch.Tensor | None) -> None:
        self.path, self.tensor, self.copy = path, tensor, copy
        self.version = None if tensor.is_inference() else tensor._version

    def is_unchanged(self) -> bool:
        if self.version is not None:
            return self.tensor._version == self.version
        return self.copy is None or is_same(self.tensor, self.copy)

    def changes(self) -> Iterator[Change]:
        if not self.is_unchanged():
            yield Change(self.path, self.copy, self.tensor, is_write=True)

    def put_back(self) -> None:
        if self.copy is None:
            return
        if self.version is None:
            with torch.inference_mode():
                self.tensor.copy_(self.copy)
            return
        with torch.no_grad():
            self.tensor.copy_(self.copy)
        self.version = self.tensor._version


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
    """What everything in reach of an object held at one moment.

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

    @classmethod
    def of(cls, obj: Any, *, copies: bool = True, also: Iterable[Any] = ()) -> Snapshot:
        """Everything in reach of an object, and of further ones; without ``copies`` the values of
        tensors are not kept.
        """
        made = cls()
        waiting: list[tuple[str, Any]] = [(type(one).__name__, one) for one in also]
        waiting.append(("", obj))
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
        """What the same objects hold now, without tensors: for a moment inside of a trace."""
        made = Snapshot()
        fresh = (holder.again() for holder in self.holders)
        made.holders = [holder for holder in fresh if holder is not None]
        return made

    def changed(self) -> list[Holder]:
        """The holders that hold something else now."""
        return [holder for holder in self.holders if not holder.is_unchanged()]

    def changes(self) -> list[Change]:
        """All that is another now, by path."""
        return [change for holder in self.changed() for change in holder.changes()]

    def put_back(self) -> None:
        """Gives everything what it held."""
        for holder in self.changed():
            holder.put_back()

    def lasting(self) -> list[Change]:
        """The changes that putting back leaves."""
        return [
            change
            for holder in self.changed()
            if isinstance(holder, _Opaque) or (isinstance(holder, _Written) and holder.copy is None)
            for change in holder.changes()
        ]

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
            yield from ((path, one) for one in (value.func, value.args, value.keywords))
        else:
            yield from self._container(path, value)
            if kind not in _CONTAINERS:
                yield from self._instance(path, value)

    def _tensor(self, path: str, value: torch.Tensor, *, copies: bool) -> Iterator[Any]:
        self.tensors[id(value)] = value
        if isinstance(value, torch.nn.Parameter) or unusual(value) is not None:
            return
        copy = None
        if copies and self._bytes + value.nbytes <= _MOST_BYTES:
            self._bytes += value.nbytes
            copy = value.detach().clone()
        self.holders.append(_Written(path, value, copy))
        yield from ()

    def _container(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self.holders.append(_Table(path, value, attributes=False))
            for key, item in list(dict.items(value)):
                if type(item) not in _ATOMS:
                    yield f"{path}[{_shown(key)}]", item
        elif isinstance(value, (list, collections.deque)):
            self.holders.append(_Sequence(path, value))
            yield from _numbered(path, _items_of(value))
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
            slots = [name for name in _slots_of(cls) if name != "__dict__"]
            if slots:
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

        self.holders.append(
            _Named(
                path,
                slots,
                read,
                functools.partial(object.__setattr__, value),
                functools.partial(object.__delattr__, value),
            )
        )
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
        """What a function of the user's holds: its closure, its defaults, and globals by name."""
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
            self.holders.append(
                _Named(
                    module,
                    fresh,
                    lambda one: space.get(one, MISSING),
                    space.__setitem__,
                    space.__delitem__,
                )
            )
        for one in read:
            value = space.get(one, MISSING)
            if value is not MISSING and type(value) not in _ATOMS:
                yield f"{module}.{one}", value

    def _file(self, module: ModuleType) -> Iterator[tuple[str, Any]]:
        """What a Python module of the user's has beside functions and classes."""
        name, space = module.__name__, vars(module)
        if module is os:
            state = ObjectState(
                "os.environ", os.environ, os.environ.copy, _set_environment, operator.eq
            )
            self.holders.append(state)
        if not _is_module_of_user(name):
            return
        kinds = (FunctionType, type, ModuleType)
        data = [
            one
            for one, value in space.items()
            if not _is_special(one) and not isinstance(value, kinds)
        ]

        def read(one: str) -> Any:
            return space.get(one, MISSING)

        self.holders.append(_Named(name, data, read, space.__setitem__, space.__delitem__))
        for one in data:
            if type(space[one]) not in _ATOMS:
                yield f"{name}.{one}", space[one]

    def _class(self, path: str, cls: type) -> Iterator[tuple[str, Any]]:
        """What a class of the user's holds, and its methods."""
        for base in cls.__mro__:
            if base is cls or not _is_of_user(base):
                continue
            yield base.__name__, base
        if not _is_of_user(cls):
            return
        own = {name: value for name, value in vars(cls).items() if not _is_special(name)}
        data = [name for name, value in own.items() if not _is_code(value)]

        def read(name: str) -> Any:
            return vars(cls).get(name, MISSING)

        if data:
            self.holders.append(
                _Named(
                    cls.__name__,
                    data,
                    read,
                    functools.partial(setattr, cls),
                    functools.partial(delattr, cls),
                )
            )
        for name, value in vars(cls).items():
            if type(value) not in _ATOMS and (_is_code(value) or not _is_special(name)):
                yield f"{cls.__name__}.{name}", value


def _numbered(path: str, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(list(values)):
        if type(value) not in _ATOMS:
            yield f"{path}[{number}]", value


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_code(value: Any) -> bool:
    return isinstance(value, (FunctionType, staticmethod, classmethod, property))


def _state_of(path: str, value: Any) -> Holder | None:
    """The holder of an object whose state is read by methods of its own; None for others."""
    if isinstance(value, torch.Generator):
        return ObjectState(path, value, value.get_state, value.set_state, torch.equal)
    if isinstance(value, contextvars.ContextVar):
        read = functools.partial(value.get, MISSING)
        return ObjectState(path, value, read, functools.partial(_set_variable, value), _is_equal)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return ObjectState(path, value, value.getstate, value.setstate, operator.eq)
    if type(value) in _COUNTING:
        return _Opaque(path, value, lambda: repr(value.__reduce__()))
    if type(value) in _STEPPING:
        return _Opaque(path, value, lambda: operator.length_hint(value, -1))
    if isinstance(value, GeneratorType):
        return _Opaque(path, value, lambda: _place_in(value))
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is not None and isinstance(value, array) and value.dtype != object:
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
    yield ObjectState("random", random, random.getstate, random.setstate, operator.eq)
    drawn: Any = getattr(sys.modules.get("numpy"), "random", None)
    if drawn is not None:
        yield ObjectState("numpy.random", drawn, drawn.get_state, drawn.set_state, _is_same_state)


def _is_same_state(left: Any, right: Any) -> bool:
    """True for two states of numpy, each a tuple with an array."""
    return all(
        bool((one == other).all()) if hasattr(one, "all") else bool(one == other)
        for one, other in zip(left, right, strict=True)
    )


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
    if file.startswith("<frozen"):
        return False
    return not file.startswith(_installed()) and "site-packages" not in file


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
    return str(cls.__module__).partition(".")[0] not in _LEFT_ALONE


@functools.lru_cache(maxsize=4096)
def _slots_of(cls: type) -> tuple[str, ...]:
    """The names of the slots of a class and of its bases, as attributes have them."""
    found: list[str] = []
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return tuple(name for name in dict.fromkeys(found) if name != "__weakref__")


@functools.lru_cache(maxsize=4096)
def _globals_of(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of globals that a code reads, and those that it binds; inner functions too."""
    read: dict[str, None] = {}
    stored: dict[str, None] = {}
    for one in dis.get_instructions(code):
        if one.opname == "LOAD_GLOBAL":
            read.setdefault(str(one.argval))
        elif one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            stored.setdefault(str(one.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner_read, inner_stored = _globals_of(constant)
            read.update(dict.fromkeys(inner_read))
            stored.update(dict.fromkeys(inner_stored))
    return tuple(read), tuple(stored)
